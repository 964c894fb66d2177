"""Two fleets for one task graph, compared so that a larger one is never said to be slower than a smaller one.

In: the graph on each fleet, a budget, a seed, a clock. Out: a plan for each with its lower bound, and what is certain
about the best plans of both. It must not change a fleet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hetero.floor.clock import cpu_seconds
from hetero.graphs.check import violations
from hetero.graphs.planning import Budget, plan_graph
from hetero.model.graph import TaskGraph
from hetero.model.schedule import Schedule

__all__ = ["FleetComparison", "compare", "is_part_of", "plan_family"]

_ROUNDS = 2
"""Each fleet is planned so often: at first from the smaller one's plan, then from the larger one's where it fits."""


class FleetComparison(NamedTuple):
    """The plans of a graph on two fleets.

    Attributes
    ----------
    now, then
        With their lower bounds.
    is_same
        Whether the fleets are the same one.
    """

    now: Schedule
    then: Schedule
    is_same: bool = False

    @property
    def times_as_fast(self) -> float | None:
        """How many times as fast the second plan is, None where it takes no time."""
        return _ratio(self.now.makespan_s, self.then.makespan_s)

    @property
    def at_least(self) -> float | None:
        """The least that the ratio of the best possible plans can be."""
        return 1.0 if self.is_same else _ratio(self.now.lower_bound_s, self.then.makespan_s)

    @property
    def at_most(self) -> float | None:
        """The most that the ratio of the best possible plans can be, None for no limit."""
        return 1.0 if self.is_same else _ratio(self.now.makespan_s, self.then.lower_bound_s)

    @property
    def is_decided(self) -> bool:
        """Return whether it is certain which fleet is faster at its best, or that both are equally fast."""
        now, then = self.now, self.then
        is_exact = self.is_same or (now.is_optimal and then.is_optimal)
        return is_exact or now.lower_bound_s > then.makespan_s or then.lower_bound_s > now.makespan_s


def _ratio(one: float, other: float) -> float | None:
    return one / other if other > 0.0 else None


def is_part_of(small: TaskGraph, large: TaskGraph) -> bool:
    """Return whether every plan of one graph is one of the other: as many tasks and no less of a fleet.

    Examples
    --------
    >>> from hetero.graphs import GraphDevice, GraphTask, MemoryNode, TaskGraph, Topology
    >>> ram = Topology((MemoryNode("ram", 10**9),))
    >>> one = TaskGraph((GraphDevice("a", "ram"),), ram, (GraphTask("t", (1.0,)),), ())
    >>> two = TaskGraph((GraphDevice("a", "ram"), GraphDevice("b", "ram")), ram, (GraphTask("t", (1.0, 2.0)),), ())
    >>> is_part_of(one, two), is_part_of(two, one)
    (True, False)
    """
    column = {device.id: at for at, device in enumerate(large.devices)}
    if any(large.devices[column[d.id]] != d if d.id in column else True for d in small.devices):
        return False
    columns = [column[device.id] for device in small.devices]
    if [task.id for task in small.tasks] != [task.id for task in large.tasks] or small.edges != large.edges:
        return False
    if any(
        one.seconds != tuple(other.seconds[at] for at in columns)
        for one, other in zip(small.tasks, large.tasks, strict=True)
    ):
        return False
    room = {node.id: node.capacity_bytes for node in large.topology.nodes}
    has_room = all(node.capacity_bytes <= room.get(node.id, -1) for node in small.topology.nodes)
    return has_room and set(small.topology.links) <= set(large.topology.links)


def compare(
    now: TaskGraph,
    then: TaskGraph,
    budget: Budget,
    seed: int,
    clock: Callable[[], float] = cpu_seconds,
    progress: Callable[[str], object] = str,
) -> FleetComparison:
    """Plan a graph on two fleets, each with the budget.

    Parameters
    ----------
    clock
        Gives s.
    progress
        Is told what is planned next.

    Notes
    -----
    Where one fleet is part of the other, its plan is a plan of the other, too: so the other's is never longer, and its
    own lower bound is never below the other's.
    """
    first, second = plan_family((now, then), budget, seed, clock, progress)
    return FleetComparison(first, second, is_same=now == then)


def plan_family(
    graphs: Sequence[TaskGraph],
    budget: Budget,
    seed: int,
    clock: Callable[[], float] = cpu_seconds,
    progress: Callable[[str], object] = str,
) -> list[Schedule]:
    """Plan a graph on several fleets, the smallest first, each from the plans of those that are part of it.

    Notes
    -----
    Of two fleets of which neither is part of the other nothing follows. A plan is taken from a larger fleet where the
    checker confirms it on the smaller.
    """
    order = sorted(range(len(graphs)), key=lambda at: len(graphs[at].devices))
    inside = {(a, b) for a in order for b in order if a != b and is_part_of(graphs[a], graphs[b])}
    slice_ = _part(budget)
    best: dict[int, Schedule] = {}
    for turn in range(_ROUNDS):
        for place, at in enumerate(order):
            if at in best and best[at].is_optimal:
                continue
            progress(
                f"plan {turn * len(order) + place + 1} of {_ROUNDS * len(order)}: {len(graphs[at].devices)} devices"
            )
            starts = [
                best[other] for other in order if other in best and ({(other, at), (at, other)} & inside or other == at)
            ]
            made = plan_graph(graphs[at], "search", slice_, seed + turn, clock, starts=starts).schedule
            best[at] = min((made, *([best[at]] if at in best else [])), key=lambda each: each.makespan_s)
            _carry_over(graphs, best, inside)
    return [best[at] for at in range(len(graphs))]


def _part(budget: Budget) -> Budget:
    if budget.iterations is None:
        return Budget(budget.seconds / _ROUNDS)
    return Budget(budget.seconds, max(1, math.ceil(budget.iterations / _ROUNDS)))


def _carry_over(graphs: Sequence[TaskGraph], best: dict[int, Schedule], inside: set[tuple[int, int]]) -> None:
    """Carry the plans of smaller fleets to larger ones, back where they fit, and bounds of larger to smaller ones."""
    for small, large in sorted(inside, key=lambda pair: (len(graphs[pair[1]].devices), len(graphs[pair[0]].devices))):
        if small not in best or large not in best:
            continue
        for giver, taker in ((small, large), (large, small)):
            plan = replace(best[giver], lower_bound_s=0.0)
            if plan.makespan_s < best[taker].makespan_s and not violations(graphs[taker], plan):
                best[taker] = replace(plan, lower_bound_s=min(best[taker].lower_bound_s, plan.makespan_s))
        bound_s = max(best[small].lower_bound_s, best[large].lower_bound_s)
        best[small] = replace(best[small], lower_bound_s=min(bound_s, best[small].makespan_s))
