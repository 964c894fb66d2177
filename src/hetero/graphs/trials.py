"""Many runs of a task graph in virtual time, summed up beside its plan.

In: a graph, a policy, spread, losses, a number of draws. Out: `Trials`. It must not print.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero.drive.faults import Faults, Loss
from hetero.drive.sim_values import SimResult
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.units import parse_seconds
from hetero.graphs.planning import Budget, plan_graph
from hetero.graphs.simulation import device_ids, host_node, prepared, run_graph
from hetero.model.device import HOST_NODE
from hetero.model.graph import UNLIMITED_BYTES, TaskGraph
from hetero.model.schedule import Schedule
from hetero.plan.policies.registry import get

__all__ = ["Trials", "losses_of", "try_out"]


@dataclass(frozen=True, slots=True)
class Trials:
    """What some runs took.

    Attributes
    ----------
    plan : made beforehand
    policy : its name
    model : of transfers and memory, 'contention' or 'free'
    draws : number of runs
    median_s, low_s, high_s : s; the median, the 10th and the 90th percentile of the makespans
    busy_frac : the mean share of the makespan in which each device computed, by id
    copied_bytes : sent from memory node to memory node in a run, the mean
    peak_bytes : the most that each memory node held in any run, by id
    repeated : attempts beyond one a task, over all runs
    failed : why a task failed, by id; of the first run in which any did
    notes : for people
    """

    plan: Schedule
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

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name, for JSON."""
        planned = {"makespan_s": self.plan.makespan_s, "lower_bound_s": self.plan.lower_bound_s}
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


def try_out(
    graph: TaskGraph,
    policy: str = "planned",
    *,
    noise: float = 0.0,
    losses: Sequence[Loss] = (),
    draws: int = 1,
    seed: int = 0,
    iterations: int = 20,
    model: str = "contention",
) -> Trials:
    """Plan a graph and run it in virtual time a number of times.

    Parameters
    ----------
    policy : name of a policy
    noise : standard deviation of the logarithm of real over expected seconds
    losses : devices that are lost
    draws, seed : runs, with the seeds seed, seed + 1, …
    iterations : of the search for the plan
    model : as of `plan_graph`, for the plan and for the runs

    Raises
    ------
    BadValueError
        The policy or the model is not known.
    """
    get(policy)
    plan = plan_graph(graph, "search", Budget(iterations=iterations), seed, model=model).schedule
    tally = _Tally(graph, draws)
    for turn in range(draws):
        lost = Faults(losses=tuple(losses))
        shared = model == "contention"
        tally.add(run_graph(graph, policy, guide=plan, noise=noise, seed=seed + turn, faults=lost, contention=shared))
    spans = tally.spans
    cuts = statistics.quantiles(spans, n=10, method="inclusive") if draws > 1 else [spans[0]] * 9
    return Trials(
        plan=plan,
        policy=policy,
        model=model,
        draws=draws,
        median_s=statistics.median(spans),
        low_s=cuts[0],
        high_s=cuts[-1],
        busy_frac=tally.busy,
        copied_bytes=tally.copied / draws,
        peak_bytes=tally.peak,
        repeated=tally.repeated,
        failed=tally.failed,
        notes=_notes(graph, model),
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
