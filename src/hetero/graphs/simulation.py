"""A task graph from a file run in virtual time, by the core that runs programs: once, or many times beside its plan.

In: a graph, a policy, how far real times stray from the graph's, losses, a number of draws. Out: what the simulated
driver says happened, summed up as `Trials`. It must not print.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hetero.backends.registry import kind_named
from hetero.core.machine import Rules
from hetero.drive.sim import simulate
from hetero.drive.sim_engine import Costs
from hetero.drive.sim_faults import Faults, Loss
from hetero.drive.sim_values import Program, SimResult, SimTask
from hetero.floor.deprecation import renamed_keywords
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.units import parse_seconds
from hetero.graphs.planning import Budget, check_transfer_model, plan_graph
from hetero.model.device import HOST_NODE, Device, DeviceType
from hetero.model.graph import UNLIMITED_BYTES, TaskGraph
from hetero.model.schedule import Schedule
from hetero.model.tasks import Request, Task
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.performance.cost_model import CostModel, Sample, TimeEstimate
from hetero.plan.policies.base import Policy
from hetero.plan.policies.registry import get
from hetero.plan.problem import problem_of

__all__ = [
    "GraphRun",
    "TableCost",
    "Trials",
    "device_ids",
    "guide_of",
    "host_node",
    "losses_of",
    "prepared",
    "run_graph",
    "try_out",
]

_ITERATIONS = 20
"""Of the search for the plan that a policy follows, where no number is given."""


class TableCost(CostModel):
    """The cost model that believes a graph's table of seconds, whatever it sees.

    Parameters
    ----------
    seconds
        Seconds by signature and device id; a device that is absent cannot run it.
    """

    def __init__(self, seconds: Mapping[str, Mapping[str, float]]) -> None:
        super().__init__()
        self._seconds = seconds

    def observe(self, signature: str, size: float, device: Device, seconds: float) -> bool:
        """Learn nothing."""
        return False

    def estimate(self, signature: str, size: float, device: Device) -> TimeEstimate:
        """Return what the table says."""
        seconds = self._seconds[signature][device.id]
        return TimeEstimate(seconds, seconds, seconds, "history", 1)

    def load(self, samples: Iterable[Sample]) -> None:
        """Learn nothing."""


class GraphRun(NamedTuple):
    """A graph in the form in which the core takes it.

    Attributes
    ----------
    devices, topology
        Its fleet.
    program
        Its tasks; the id of a task is its place in the graph, from 1.
    cost
        What is believed of run times.
    widened
        Tasks that hand different bytes to different tasks; their result counts as large as the largest.
    """

    devices: tuple[Device, ...]
    topology: Topology
    program: Program
    cost: TableCost
    widened: int


def run_graph(
    graph: TaskGraph,
    policy: str | Policy = "planned",
    *,
    guide: Schedule | None = None,
    noise: float = 0.0,
    seed: int = 0,
    faults: Faults | None = None,
    contention: bool = True,
) -> SimResult:
    """Run a task graph in virtual time.

    Parameters
    ----------
    policy
        A policy's name, or a policy; 'planned' follows `guide` where one is given.
    guide
        A plan of the graph, made beforehand.
    noise
        Standard deviation of the logarithm of real over estimated seconds; 0 for none.
    seed
        Of every chance.
    contention
        False lets every transfer have its link alone, and gives every memory node no end.

    Notes
    -----
    The factor of a task on a device is drawn from the seed alone, so it is the same under every policy. A result is
    one data item: it travels once to a memory node, when a task that reads it has been placed there.
    """
    made = prepared(graph if contention else _without_limits(graph))
    chosen: str | Policy = policy
    if policy == "planned":
        from hetero.plan.policies.planned import Planned

        chosen = Planned(None if guide is None else guide_of(graph, guide), ahead_s=0.0)
    shape = (len(graph.tasks), len(graph.devices))
    real_s = np.array([task.seconds for task in graph.tasks]).reshape(shape)
    real_s = real_s * np.exp(noise * np.random.default_rng(seed).standard_normal(shape))
    column = {device.id: index for index, device in enumerate(made.devices)}
    return simulate(
        made.program,
        made.devices,
        lambda task, device: float(real_s[task.id - 1, column[device.id]]),
        policy=chosen,
        cost=made.cost,
        topology=made.topology,
        seed=seed,
        costs=Costs(notice_s=0.0, shared=contention),
        faults=faults,
        rules=Rules(stall_s=math.inf, sweep_s=math.inf, recheck_s=_recheck_s(graph)),
        check_every=1 << 30,
    )


def _without_limits(graph: TaskGraph) -> TaskGraph:
    nodes = tuple(MemoryNode(node.id, UNLIMITED_BYTES) for node in graph.topology.nodes)
    return replace(graph, topology=replace(graph.topology, nodes=nodes, _by_pair={}))


def _recheck_s(graph: TaskGraph) -> float:
    """Return how long an idle device waits to be considered anew: some tenth of a task, some thousandth of the run."""
    least = sorted(min(task.seconds) for task in graph.tasks)
    return max(0.1 * least[len(least) // 2], 1e-3 * sum(least) / len(graph.devices), 1e-9) if least else 1.0


def guide_of(graph: TaskGraph, plan: Schedule) -> dict[int, tuple[float, int]]:
    """Return start and device index by the core's task ids."""
    task = {task.id: number for number, task in enumerate(graph.tasks, 1)}
    column = {device.id: index for index, device in enumerate(graph.devices)}
    return {task[row.task]: (row.start_s, column[row.device]) for row in plan.placements}


def device_ids(graph: TaskGraph) -> list[str]:
    """Return the ids that the graph's devices have in the core."""
    return [device.id if "/" in device.id else f"h0/{device.id}" for device in graph.devices]


def prepared(graph: TaskGraph) -> GraphRun:
    """Return a graph's fleet and tasks in the core's terms."""
    host = host_node(graph)
    devices = tuple(
        Device(
            name,
            device.kind or "cpu",
            DeviceType(kind_named(device.kind or "cpu").type),
            "simulated",
            index,
            name=device.id,
            memory_node=HOST_NODE if device.memory_node == host else device.memory_node,
            simulated=True,
            takes="python",
        )
        for index, (name, device) in enumerate(zip(device_ids(graph), graph.devices, strict=True))
    )
    tasks, widened = _tasks(graph, devices)
    table = {
        entry.task.signature: {
            device.id: seconds for device, seconds in zip(devices, graph.tasks[entry.task.id - 1].seconds, strict=True)
        }
        for entry in tasks
    }
    sizes = {entry.task.signature: entry.nbytes for entry in tasks}
    program = Program(tasks, together=True)
    cost = TableCost(table)
    cost.result_bytes.update(sizes)
    return GraphRun(devices, _topology(graph, host), program, cost, widened)


def host_node(graph: TaskGraph) -> str:
    """Return the memory node that counts as the host's: that of the first CPU, else of the first device."""
    on_host = (device.memory_node for device in graph.devices if kind_named(device.kind).is_host)
    return next(on_host, graph.devices[0].memory_node)


def _topology(graph: TaskGraph, host: str) -> Topology:
    """Return a link for each path between two memory nodes; a direct one keeps its bus."""
    p = problem_of(graph)
    nodes = sorted({device.memory_node for device in graph.devices})
    capacity = {node.id: node.capacity_bytes for node in graph.topology.nodes}

    def named(node: str) -> str:
        return HOST_NODE if node == host else node

    links = []
    for row, src in enumerate(nodes):
        for column, dst in enumerate(nodes):
            if src != dst and p.s_per_byte[row, column] > 0.0:
                direct = graph.topology.link(src, dst)
                bus = direct.bus if direct is not None else ""
                latency_s, s_per_byte = float(p.latency_s[row, column]), float(p.s_per_byte[row, column])
                links.append(Link(named(src), named(dst), latency_s, 1.0 / s_per_byte, bus))
    return Topology(tuple(MemoryNode(named(node), capacity[node]) for node in nodes), tuple(links))


def _tasks(graph: TaskGraph, devices: Sequence[Device]) -> tuple[list[SimTask], int]:
    """Return the tasks in an order in which each comes after what it needs, and how many results were widened."""
    number = {task.id: index for index, task in enumerate(graph.tasks, 1)}
    reads: dict[str, list[int]] = {task.id: [] for task in graph.tasks}
    after: dict[str, list[int]] = {task.id: [] for task in graph.tasks}
    sizes: dict[str, set[int]] = {task.id: set() for task in graph.tasks}
    for edge in graph.edges:
        (reads if edge.nbytes else after)[edge.dst].append(number[edge.src])
        if edge.nbytes:
            sizes[edge.src].add(edge.nbytes)
    capacity = {node.id: node.capacity_bytes for node in graph.topology.nodes if node.id != host_node(graph)}
    limits = [capacity.get(device.memory_node, UNLIMITED_BYTES) for device in graph.devices]
    requests: dict[tuple[bool, ...], Request] = {}
    made = []
    classes: dict[tuple[object, ...], str] = {}
    for index in problem_of(graph).order.tolist():
        task = graph.tasks[index]
        needed = sum(max(sizes[graph.tasks[read - 1].id]) for read in reads[task.id]) + max(sizes[task.id], default=0)
        able = _able(task.seconds, [limit >= needed for limit in limits])
        on = () if all(able) else tuple(device.id for device, fits in zip(devices, able, strict=True) if fits)
        request = requests.setdefault(able, Request(on=on, crashes=10))
        nbytes = max(sizes[task.id], default=0)
        signature = classes.setdefault((task.seconds, nbytes), f"t{len(classes)}|")
        entry = Task(index + 1, task.id, signature, 0.0, tuple(reads[task.id]), tuple(after[task.id]), request)
        made.append(SimTask(entry, 0.0, nbytes))
    return made, sum(len(found) > 1 for found in sizes.values())


def _able(seconds: Sequence[float], fits: Sequence[bool]) -> tuple[bool, ...]:
    """Return which devices can run a task; those whose memory is too small only where no other can."""
    able = tuple(each < math.inf for each in seconds)
    roomy = tuple(one and other for one, other in zip(able, fits, strict=True))
    return roomy if any(roomy) else able


@dataclass(frozen=True, slots=True)
class Trials:
    """What some runs took.

    Attributes
    ----------
    plan
        Made beforehand; None where the policy does not plan and none was asked for.
    policy
        Its name.
    model
        Of transfers and memory, 'contention' or 'free'.
    draws
        Number of runs.
    median_s, low_s, high_s
        Seconds; the median, the 10th and the 90th percentile of the makespans.
    busy_frac
        The mean share of the makespan in which each device computed, by id.
    copied_bytes
        Sent from memory node to memory node in a run, the mean.
    peak_bytes
        The most that each memory node held in any run, by id.
    repeated
        Attempts beyond one a task, over all runs.
    failed
        Why a task failed, by id; of the first run in which any did.
    notes
        For people.
    """

    plan: Schedule | None
    policy: str
    model: str
    draws: int
    median_s: float
    low_s: float
    high_s: float
    busy_frac: Mapping[str, float]
    copied_bytes: float
    peak_bytes: Mapping[str, int]
    repeated: int
    failed: Mapping[str, str]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name, for JSON."""
        planned = {name: getattr(self.plan, name, None) for name in ("makespan_s", "lower_bound_s")}
        rest = {name: getattr(self, name) for name in self.__slots__ if name != "plan"}
        return {"planned": planned, **rest}


def losses_of(graph: TaskGraph, words: Sequence[str]) -> tuple[Loss, ...]:
    """Read 'gpu0@0.5s': a device that is lost for good, and when.

    Raises
    ------
    BadValueError
        There is no '@', no such device, or no time.
    """
    found = []
    ids = [device.id for device in graph.devices]
    for word in words:
        name, at, when = word.rpartition("@")
        if not at:
            raise BadValueError(f"{word!r} does not say when a device fails", remedy="write DEVICE@TIME: gpu0@0.5s")
        match = next((id_ for id_ in ids if name in (id_, id_.partition("/")[2])), None)
        if match is None:
            raise BadValueError(f"the graph has no device {name!r}{did_you_mean(name, ids)}", remedy="name one of its")
        found.append(Loss(parse_seconds(when), device_ids(graph)[ids.index(match)]))
    return tuple(found)


@renamed_keywords(model="transfer_model")
def try_out(
    graph: TaskGraph,
    policy: str = "planned",
    *,
    noise: float = 0.0,
    losses: Sequence[Loss] = (),
    draws: int = 1,
    seed: int = 0,
    iterations: int | None = None,
    transfer_model: str = "contention",
) -> Trials:
    """Run a graph in virtual time a number of times, beside a plan of it.

    Parameters
    ----------
    policy
        Name of a policy.
    noise
        Standard deviation of the logarithm of real over expected seconds.
    losses
        Devices that are lost.
    draws, seed
        Runs, with the seeds seed, seed + 1, ….
    iterations
        Of the search for the plan; None for 20 where the policy is 'planned', and no plan where it is another.
    transfer_model
        As of `plan_graph`, for the plan and for the runs.

    Raises
    ------
    BadValueError
        The policy or the model is not known.
    """
    get(policy)
    check_transfer_model(transfer_model)
    plan = None
    if policy == "planned" or iterations is not None:
        budget = Budget(iterations=iterations or _ITERATIONS)
        plan = plan_graph(graph, "search", budget, seed, transfer_model=transfer_model).schedule
    tally = _Tally(graph, draws)
    for turn in range(draws):
        lost = Faults(losses=tuple(losses))
        shared = transfer_model == "contention"
        tally.add(run_graph(graph, policy, guide=plan, noise=noise, seed=seed + turn, faults=lost, contention=shared))
    spans = tally.spans
    cuts = statistics.quantiles(spans, n=10, method="inclusive") if draws > 1 else [spans[0]] * 9
    return Trials(
        plan=plan,
        policy=policy,
        model=transfer_model,
        draws=draws,
        median_s=statistics.median(spans),
        low_s=cuts[0],
        high_s=cuts[-1],
        busy_frac=tally.busy,
        copied_bytes=tally.copied / draws,
        peak_bytes=tally.peak,
        repeated=tally.repeated,
        failed=tally.failed,
        notes=_notes(graph, transfer_model),
    )


class _Tally:
    """What the runs so far came to."""

    def __init__(self, graph: TaskGraph, draws: int) -> None:
        self._graph = graph
        self._draws = draws
        self.spans: list[float] = []
        self.busy = dict.fromkeys((device.id for device in graph.devices), 0.0)
        self.peak = dict.fromkeys((node.id for node in graph.topology.nodes), 0)
        self.failed: dict[str, str] = {}
        self.copied = self.repeated = 0

    def add(self, found: SimResult) -> None:
        """Count one run."""
        self.spans.append(found.makespan_s)
        for device, busy_s in zip(self._graph.devices, found.busy_s.values(), strict=True):
            self.busy[device.id] += busy_s / found.makespan_s / self._draws if found.makespan_s else 0.0
        self.repeated += max(0, found.launches - len(found.commits) - len(found.failures))
        assert found.machine is not None
        replicas, host = found.machine.replicas, host_node(self._graph)
        self.copied += sum(nbytes for _, nbytes in replicas.moved.values())
        for node in self.peak:
            self.peak[node] = max(self.peak[node], replicas.peak.get(HOST_NODE if node == host else node, 0))
        if not self.failed:
            tasks = self._graph.tasks
            self.failed = {tasks[task - 1].id: failure.message for task, failure in found.failures.items()}


def _notes(graph: TaskGraph, model: str) -> tuple[str, ...]:
    notes = []
    if widened := prepared(graph).widened:
        notes.append(f"{widened:,} tasks hand different bytes to different tasks: each result counts as its largest")
    host = host_node(graph)
    limit = next((node.capacity_bytes for node in graph.topology.nodes if node.id == host), UNLIMITED_BYTES)
    if model == "contention" and limit != UNLIMITED_BYTES:
        notes.append(f"{host!r} counts as the host's memory: a run puts what exceeds it into files and goes on")
    return tuple(notes)
