"""The long run: a program with everything in it, on a fleet with everything in it, with every fault."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from hetero.core.machine import Machine, Rules
from hetero.drive.sim import Costs, Program, SimTask
from hetero.drive.sim_faults import Dice, Faults, Slowdown
from hetero.model.device import HOST_NODE, Device, DeviceType
from hetero.model.events import (
    CancelRequested,
    DeviceAdded,
    DeviceLost,
    DeviceReady,
    Event,
    TaskFailed,
    TaskFinished,
    TaskSubmitted,
    TaskWithdrawn,
    TransferFailed,
    TransferFinished,
    UtilisationReported,
)
from hetero.model.tasks import Near, Request, Task
from hetero.model.topology import Link, MemoryNode, Topology

RULES = Rules(stall_s=1.0, stall_factor=20.0, sweep_s=0.5)
COSTS = Costs(noise=0.1, start_s=0.02)
FAULTS = Faults(
    crash=0.004,
    hang=0.001,
    exception=0.01,
    out_of_memory=0.004,
    absent=(("medium", "opencl"), ("large", "cuda")),
    transfer=0.01,
    start=0.05,
    duplicate=0.02,
    late=0.5,
    cancel=0.005,
    kill_every_s=0.4,
    permanent=0.2,
    back_s=0.5,
    out_of_memory_size=90.0,
    slowdowns=tuple(Slowdown(2.0 * i, "h0/cpu:1", 3.0 if i % 2 else 1.0) for i in range(1, 400)),
    utilisation_every_s=0.5,
)


def fleet() -> list[Device]:
    cpus = [Device(f"h0/cpu:{i}", "cpu", DeviceType("CPU"), "cpu", index=i) for i in range(3)]
    gpu, cpu = DeviceType("GPU"), DeviceType("CPU")
    gpus = [Device(f"h0/cuda:{i}", "cuda", gpu, "null", i, memory_node=f"h0/cuda:{i}", rack="r0") for i in range(2)]
    far = [Device(f"h1/cpu:{i}", "cpu", cpu, "cpu", i, memory_node=f"h1/cpu:{i}", rack="r1") for i in range(2)]
    kernels = [Device("h0/opencl:0", "opencl", DeviceType("GPU"), "null", rack="r0")]
    return [*cpus, *gpus, *far, *kernels]


def topology() -> Topology:
    nodes = ("h0/cuda:0", "h0/cuda:1", "h1/cpu:0", "h1/cpu:1")
    links = []
    for node in nodes:
        bus = "pcie" if node.startswith("h0") else "network"
        kind, rate = ("pcie", 1e9) if bus == "pcie" else ("network", 1e8)
        links += [Link(HOST_NODE, node, 1e-5, rate, bus, kind), Link(node, HOST_NODE, 1e-5, rate, bus, kind)]
    links.append(Link("h0/cuda:0", "h0/cuda:1", 1e-5, 5e9, "", "nvlink"))
    return Topology(tuple(MemoryNode(node, 4_000_000) for node in nodes), tuple(links))


SPEED = {"cpu": 1.0, "cuda": 4.0, "opencl": 2.0}


def truth(task: Task, device: Device) -> float:
    """Take a time that depends on the function, the size and the kind of device."""
    base = {"tiny": 2e-5, "small": 3e-4, "medium": 5e-3, "large": 3e-2}[task.name.partition("_")[0]]
    return base * (1.0 + task.size / 50.0) / SPEED[device.kind]


REQUESTS = {
    "plain": Request(retries=4),
    "urgent": Request(priority=5, retries=4),
    "gpu": Request(on=("gpu",), implemented=("cuda", "opencl"), retries=4),
    "limited": Request(timeout_s=0.3),
    "split": Request(splittable=True, retries=4),
    "group": Request(devices=2, retries=4),
    "trio": Request(devices=3, timeout_s=2.0, retries=4),
    "exclusive": Request(exclusive=True, retries=4),
    "memory": Request(memory_bytes=1_000_000, retries=4),
    "blue": Request(workload="blue", retries=4),
    "apart": Request(apart=(Near("host", workload="blue"),), retries=4),
}
ODDS = {
    "plain": 60.0, "urgent": 8.0, "gpu": 5.0, "limited": 4.0, "split": 2.0, "group": 0.5, "trio": 0.2,
    "exclusive": 0.2, "memory": 4.0, "blue": 3.0, "apart": 1.0, "near": 2.0,
}  # fmt: skip
NAMES = ("tiny", "small", "medium", "large")


def tasks(count: int, seed: int, gap_s: float) -> Iterator[SimTask]:
    """Generate tasks with dependencies on recent ones, items, and every kind of request."""
    dice = Dice(seed)
    kinds = [kind for kind, odds in ODDS.items() for _ in range(int(odds * 10))]
    names = [name for name, odds in zip(NAMES, (7, 8, 4, 1), strict=True) for _ in range(odds)]
    sized: deque[int] = deque(maxlen=20)
    at_s = 0.0
    for number in range(1, count + 1):
        kind, name = kinds[dice.below(len(kinds))], names[dice.below(len(names))]
        if kind == "near":
            scope = ("device", "host", "rack")[dice.below(3)]
            request = Request(near=(Near(scope, task=max(1, number - 1 - dice.below(20))),), retries=4)
        else:
            request = REQUESTS[kind]
        after = tuple(sorted({max(1, number - 1 - dice.below(40)) for _ in range(dice.below(3))} - {number}))
        inputs: tuple[int, ...] = ()
        if sized and dice.happens(0.3):
            inputs = tuple(sorted({sized[dice.below(len(sized))] for _ in range(1 + dice.below(2))}))
        elif dice.happens(0.05):
            inputs = (ITEMS[dice.below(len(ITEMS))][0],)
        nbytes = 1_000 + dice.below(400_000) if dice.happens(0.2) else 0
        if nbytes and request.devices == 1:
            sized.append(number)
        size = 1.0 + dice.below(100) if kind == "split" else 10.0 * (1 + dice.below(4))
        at_s += dice.wait_s(gap_s)
        parents = tuple(sorted({*after, *(i for i in inputs if i < ITEMS[0][0])}))
        task = Task(number, name, f"{name}|{size:g}", size, inputs, parents, request)
        yield SimTask(task, at_s, nbytes if request.devices == 1 else 0)


ITEMS = tuple((1_000_000_000 + i, 100_000 * (i + 1)) for i in range(8))


def program(count: int, seed: int, gap_s: float = 0.002) -> Program:
    return Program(tasks(count, seed, gap_s), ITEMS, released_after=100)


class Coverage:
    """Counts in which phase of its task or device each event met the core."""

    def __init__(self) -> None:
        self.met: Counter[tuple[str, str]] = Counter()

    def __call__(self, machine: Machine, event: Event) -> None:
        self.met[type(event).__name__, self._phase(machine, event)] += 1

    def _phase(self, machine: Machine, event: Event) -> str:
        if isinstance(event, DeviceAdded):
            known = machine.fleet.by_id.get(event.device.id)
            return "none" if known is None else known.phase.name
        if isinstance(event, DeviceReady | DeviceLost | UtilisationReported):
            return machine.fleet.by_id[event.device].phase.name
        if isinstance(event, TaskFinished | TaskFailed | TaskWithdrawn):
            state = machine.tasks.get(event.task)
            if state is None:
                return "over"
            return state.phase.name if state.attempt == event.attempt else f"{state.phase.name}, late"
        if isinstance(event, CancelRequested | TaskSubmitted):
            state = machine.tasks.get(event.task if isinstance(event, CancelRequested) else event.task.id)
            return "over" if state is None else state.phase.name
        if isinstance(event, TransferFinished | TransferFailed):
            item = machine.replicas.items.get(event.item)
            return "awaited" if item is not None and event.dst in item.arriving else "late"
        return ""
