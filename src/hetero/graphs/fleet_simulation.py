"""Fleets of thousands in virtual time: hosts with devices of the catalog, equal links, many independent tasks.

In: words for hosts, how much each task computes and reads. Out: what the simulated driver says happened.
It must not schedule anything itself: the core that runs programs does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from hetero.backends.registry import kinds
from hetero.catalog.load import find
from hetero.catalog.values import DeviceSpec
from hetero.core.machine import Rules
from hetero.drive.sim import Costs, simulate
from hetero.drive.sim_values import Program, SimResult, SimTask
from hetero.floor.errors import BadValueError
from hetero.model.device import HOST_NODE, Device, DeviceKind, DeviceType
from hetero.model.tasks import Request, Task
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.performance.cost_model import CostModel

__all__ = ["MOST_DEVICES", "Racks", "Scaled", "SimulatedLoad", "read_hosts", "run_at_scale"]

MOST_DEVICES = 20_000
_WORDS = re.compile(r"\s*(\d+)\s*[x×*]\s*(\d+)\s*[x×*]\s+(.+?)\s*")
_REACHED = 0.5
"""Share of the published operations/s that a task reaches."""
_LATENCY_S = 1e-4
_SEEN = 4


@dataclass(frozen=True, slots=True)
class Racks:
    """Hosts of one kind.

    Attributes
    ----------
    hosts, devices
        > 0; devices of each host.
    spec
        What the devices are.
    """

    hosts: int
    devices: int
    spec: DeviceSpec


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """What is to be computed.

    Attributes
    ----------
    tasks
        > 0.
    flop
        > 0 each, operations of a task; the tasks have these by turns.
    precision
        In which they are.
    nbytes
        Bytes that the tasks of one size share and read; they lie on the first host.
    """

    tasks: int
    flop: tuple[float, ...] = (1e12,)
    precision: str = "fp32"
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Scaled:
    """What a run took.

    Attributes
    ----------
    devices, hosts, tasks
        How many.
    makespan_s
        Seconds.
    best_s
        Seconds that all devices would take together, were work a liquid and data everywhere.
    busy_frac
        The mean share of the makespan in which the devices of a name computed.
    moved_bytes
        Over all links.
    """

    devices: int
    hosts: int
    tasks: int
    makespan_s: float
    best_s: float
    busy_frac: dict[str, float]
    moved_bytes: int


def read_hosts(words: Sequence[str]) -> tuple[Racks, ...]:
    """Read hosts written as 'HOSTS x DEVICES x NAME', with a name of the catalog.

    Raises
    ------
    BadValueError
        It is written otherwise, the catalog has no such device, or they are too many.

    Examples
    --------
    >>> [(rack.hosts, rack.devices, rack.spec.name) for rack in read_hosts(["2 x 8 x H100-SXM"])]
    [(2, 8, 'H100-SXM')]
    """
    racks = []
    for word in words:
        match = _WORDS.fullmatch(word)
        if match is None or not int(match[1]) * int(match[2]):
            raise BadValueError(f"{word!r} says no hosts", remedy="write HOSTS x DEVICES x NAME, as in '10 x 8 x A100'")
        racks.append(Racks(int(match[1]), int(match[2]), find(match[3])))
    count = sum(rack.hosts * rack.devices for rack in racks)
    if not 0 < count <= MOST_DEVICES:
        raise BadValueError(f"{count:,} devices", remedy=f"name 1 to {MOST_DEVICES:,}")
    return tuple(racks)


def run_at_scale(
    racks: Sequence[Racks],
    load: SimulatedLoad,
    *,
    link_bytes_per_s: float = 1.25e9,
    noise: float = 0.05,
    policy: str = "eft",
    seed: int = 0,
    tick_s: float = 0.0,
) -> tuple[Scaled, SimResult]:
    """Run independent tasks over many hosts in virtual time.

    Parameters
    ----------
    link_bytes_per_s
        Bytes/s of the link between the first host and each other, one direction.
    noise
        Standard deviation of the logarithm of run times.
    tick_s
        Seconds between two times at which the core hears what happened.

    Raises
    ------
    BadValueError
        The catalog does not say how fast a device is at that precision.

    Notes
    -----
    seconds = flop / (0.5 * published operations/s); the core is told them beforehand, as from earlier runs.
    """
    fleet = list(_devices(racks))
    speed = {rack.spec.name: _speed(rack.spec, load.precision) for rack in racks}
    cost = _known(fleet, speed, load)
    size = {f"size{kind}|": flop for kind, flop in enumerate(load.flop)}
    found = simulate(
        _program(load),
        fleet,
        lambda task, device: size[task.signature] / speed[device.name],
        policy=policy,
        cost=cost,
        topology=_topology(sum(rack.hosts for rack in racks), link_bytes_per_s),
        seed=seed,
        costs=Costs(noise=noise, tick_s=tick_s),
        rules=Rules(stall_s=inf, sweep_s=inf),
        check_every=1 << 30,
    )
    best_s = sum(size[f"size{number % len(size)}|"] for number in range(load.tasks)) / sum(
        speed[device.name] for device in fleet
    )
    return _summed(racks, load, found, best_s), found


def _speed(spec: DeviceSpec, precision: str) -> float:
    published = spec.flop_per_s.get(precision)
    if not published:
        known = ", ".join(name for name, value in spec.flop_per_s.items() if value)
        raise BadValueError(
            f"the catalog has no {precision} operations/s of {spec.name}",
            remedy=f"it has: {known}" if known else "name another device",
        )
    return _REACHED * published


def _devices(racks: Sequence[Racks]) -> Iterator[Device]:
    host = 0
    for rack in racks:
        kind = DeviceType(kinds().get(rack.spec.kind, DeviceKind("")).type)
        for _ in range(rack.hosts):
            for index in range(rack.devices):
                name = f"h{host}/{rack.spec.kind}:{index}"
                yield Device(
                    name, rack.spec.kind, kind, "simulated", index, name=rack.spec.name,
                    memory_node=f"h{host}/ram", simulated=True, takes="python",
                )  # fmt: skip
            host += 1


def _topology(hosts: int, link_bytes_per_s: float) -> Topology:
    others = [f"h{host}/ram" for host in range(1, hosts)]
    ways = [way for other in others for way in ((HOST_NODE, other), (other, HOST_NODE))]
    links = [Link(src, dst, _LATENCY_S, link_bytes_per_s, kind="network") for src, dst in ways]
    return Topology(tuple([MemoryNode(node, 1 << 40) for node in (HOST_NODE, *others)]), tuple(links))


def _known(fleet: Sequence[Device], speed: dict[str, float], load: SimulatedLoad) -> CostModel:
    """Return a cost model that has seen each size of task on one device of each name."""
    cost = CostModel(fleet)
    for device in {device.model_key: device for device in reversed(fleet)}.values():
        for kind, flop in enumerate(load.flop):
            for _ in range(_SEEN):
                cost.observe(f"size{kind}|", 0.0, device, flop / speed[device.name])
    return cost


def _program(load: SimulatedLoad) -> Program:
    kinds = len(load.flop)
    request = Request()
    items = [(1 + kind, load.nbytes) for kind in range(kinds)] if load.nbytes else []
    tasks = (
        SimTask(
            Task(1 + kinds + number, "task", f"size{number % kinds}|", 0.0,
                 (1 + number % kinds,) if items else (), (), request)
        )
        for number in range(load.tasks)
    )  # fmt: skip
    return Program(tasks, items, together=True)


def _summed(racks: Sequence[Racks], load: SimulatedLoad, found: SimResult, best_s: float) -> Scaled:
    count: Counter[str] = Counter()
    for rack in racks:
        count[rack.spec.name] += rack.hosts * rack.devices
    assert found.machine is not None
    busy = dict.fromkeys(count, 0.0)
    for device in found.machine.fleet.devices:
        busy[device.name] += found.busy_s[device.id]
    moved = found.machine.replicas.moved.values()
    return Scaled(
        sum(count.values()), sum(rack.hosts for rack in racks), load.tasks, found.makespan_s, best_s,
        {name: busy[name] / count[name] / found.makespan_s for name in count},
        sum(nbytes for _, nbytes in moved),
    )  # fmt: skip
