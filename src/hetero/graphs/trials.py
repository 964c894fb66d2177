"""Many runs of a task graph in virtual time, summed up beside its plan.

In: a graph, a policy, spread, losses, a number of draws. Out: `Trials`. It must not print.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero.drive.faults import Faults, Loss
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.units import parse_seconds
from hetero.graphs.planning import Budget, plan_graph
from hetero.graphs.simulating import device_ids, prepared, run_graph
from hetero.model.graph import TaskGraph
from hetero.model.schedule import Schedule
from hetero.plan.policies.registry import get

__all__ = ["Trials", "losses_of", "try_out"]

_SHOWN_FAILURES = 10


@dataclass(frozen=True, slots=True)
class Trials:
    """What some runs took.

    Attributes
    ----------
    plan : made beforehand
    policy : its name
    draws : number of runs
    median_s, low_s, high_s : s; the median, the 10th and the 90th percentile of the makespans
    busy_frac : the mean share of the makespan in which each device computed, by id
    repeated : attempts beyond one a task, over all runs
    failed : why a task failed, by id; of the first run in which any did
    notes : for people
    """

    plan: Schedule
    policy: str
    draws: int
    median_s: float
    low_s: float
    high_s: float
    busy_frac: Mapping[str, float]
    repeated: int
    failed: Mapping[str, str]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Give the figures by name, for JSON."""
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
) -> Trials:
    """Plan a graph and run it in virtual time a number of times.

    Parameters
    ----------
    policy : name of a policy
    noise : standard deviation of the logarithm of real over expected seconds
    losses : devices that are lost
    draws, seed : runs, with the seeds seed, seed + 1, …
    iterations : of the search for the plan

    Raises
    ------
    BadValueError
        The policy is not known.
    """
    get(policy)
    plan = plan_graph(graph, "search", Budget(iterations=iterations), seed).schedule
    spans: list[float] = []
    busy = dict.fromkeys((device.id for device in graph.devices), 0.0)
    failed: dict[str, str] = {}
    repeated = 0
    for turn in range(draws):
        found = run_graph(graph, policy, guide=plan, noise=noise, seed=seed + turn, faults=Faults(losses=tuple(losses)))
        spans.append(found.makespan_s)
        for device, busy_s in zip(graph.devices, found.busy_s.values(), strict=True):
            busy[device.id] += busy_s / found.makespan_s / draws if found.makespan_s else 0.0
        repeated += max(0, found.launches - len(found.commits) - len(found.failures))
        if not failed:
            first = list(found.failures.items())[:_SHOWN_FAILURES]
            failed = {graph.tasks[task - 1].id: failure.message for task, failure in first}
    cuts = statistics.quantiles(spans, n=10, method="inclusive") if draws > 1 else [spans[0]] * 9
    notes = _notes(graph)
    middle = statistics.median(spans)
    return Trials(plan, policy, draws, middle, cuts[0], cuts[-1], busy, repeated, failed, notes)


def _notes(graph: TaskGraph) -> tuple[str, ...]:
    widened = prepared(graph).widened
    if not widened:
        return ()
    return (f"{widened:,} tasks hand different bytes to different tasks: each result counts as its largest",)
