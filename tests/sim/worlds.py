"""Small worlds for the tests in virtual time: fleets with given speeds, tasks, and models that know them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hetero.drive.sim import Program, SimTask
from hetero.model.device import HOST_NODE, Device, DeviceType
from hetero.model.tasks import Request, Task
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.performance.cost_model import CostModel

PLAIN = Request()


def cpus(count: int, host: str = "h0") -> list[Device]:
    cpu = DeviceType("CPU")
    return [Device(f"{host}/cpu:{i}", "cpu", cpu, "cpu", i, name=f"{host} cpu {i}") for i in range(count)]


def gpu(index: int = 0) -> Device:
    name = f"h0/cuda:{index}"
    return Device(name, "cuda", DeviceType("GPU"), "null", index, name=name, memory_node=name)


def joined(*devices: Device, bytes_per_s: float, capacity_bytes: int = 1 << 40) -> Topology:
    """Link each device's own memory node with the host's."""
    nodes = tuple(MemoryNode(device.id, capacity_bytes) for device in devices)
    links = [Link(HOST_NODE, device.id, 1e-5, bytes_per_s) for device in devices]
    return Topology(nodes, (*links, *(Link(device.id, HOST_NODE, 1e-5, bytes_per_s) for device in devices)))


def task(
    number: int, request: Request = PLAIN, *, name: str = "f", after: Sequence[int] = (), inputs: Sequence[int] = ()
) -> Task:
    return Task(number, name, f"{name}|", 0.0, tuple(inputs), tuple(after), request)


def independent(count: int, request: Request = PLAIN, *, first: int = 1, at_s: float = 0.0) -> list[SimTask]:
    return [SimTask(task(number, request), at_s) for number in range(first, first + count)]


def program(tasks: Iterable[SimTask]) -> Program:
    return Program(list(tasks))


def speeds(fleet: Sequence[Device], base_s: float, *factors: float) -> Callable[[Task, Device], float]:
    """Return a truth in which every task takes base_s / speed."""
    seconds = {device.id: base_s / factor for device, factor in zip(fleet, factors, strict=True)}
    return lambda _, device: seconds[device.id]


def known(fleet: Sequence[Device], truth: Callable[[Task, Device], float], *names: str) -> CostModel:
    """Return a model that has seen tasks of these names on each device."""
    cost = CostModel(fleet)
    for name in names or ("f",):
        for device in fleet:
            for _ in range(8):
                cost.observe(f"{name}|", 0.0, device, truth(task(1, name=name), device))
    return cost
