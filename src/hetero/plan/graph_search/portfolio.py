"""The portfolio: list schedules over every rank, with and without a look ahead, with and without dear devices.

In: a `Problem`. Out: schedules one after the other, the starts first, then those that are often best. It must not
search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.plan.bounds.graph import left_out, priced_seconds
from hetero.plan.planners.heuristics import PLANNERS, planner
from hetero.plan.planners.list_scheduling import list_schedule, order_of, schedule_by_keys
from hetero.plan.planners.ranks import RANKS, by_rank, optimistic_costs, rank
from hetero.plan.problem import Floats, Problem, Timeline

__all__ = ["PortfolioSchedule", "portfolio"]

Bools = NDArray[np.bool_]

_PRICED = (
    ("mean", 1.5),
    ("optimistic", 2.5),
    ("mean", 1.05),
    ("optimistic", 5.0),
    ("fastest", 2.5),
    ("mean", 5.0),
    ("optimistic", 1.05),
    ("fastest", 5.0),
    ("mean", 2.5),
    ("fastest", 1.5),
)
"""A rank, and how many times dearer than a task's cheapest device another may be."""

_BATCH = ("minmin", "maxmin", "sufferage")
_BATCH_AT_MOST = 1_000
"""Above so many tasks the planners that look at all ready tasks each time are left out: they are quadratic."""

_START_STEPS = 1_500_000
"""So many steps, a task on a device or an edge to a memory node each, the starts may take together: about a tenth
of a second. A start beyond them is one of the others, but for the first three."""

_LEAST_STARTS = 3
_AS_GIVEN = "as given"


class PortfolioSchedule(NamedTuple):
    """One schedule of the portfolio.

    Attributes
    ----------
    name
        As in 'fastest + oct'.
    keys
        Shape (n_tasks,); what the tasks were ordered by, higher first.
    timeline
        The schedule.
    is_start
        Whether it is looked at before a search may end, whatever its budget.
    """

    name: str
    keys: Floats
    timeline: Timeline
    is_start: bool = False


def portfolio(p: Problem, most_steps: int = _START_STEPS) -> Iterator[PortfolioSchedule]:
    """Yield the list schedules one by one.

    Parameters
    ----------
    most_steps
        Of the starts; the first three are starts however large the graph is.

    Notes
    -----
    First the starts: everything in one place, and the planners by name, min-min, max-min and sufferage up to 1,000
    tasks. Then the upward rank over the fastest device; then ranks with EFT among the devices whose time, at the
    prices of the area relaxation, is not much dearer for the task than its cheapest: for that kind of graph in which
    a plain list schedule puts tasks on a slow device because the fast one is busy just now; then {fastest,
    optimistic, mean, geometric, harmonic, median} × {EFT, EFT + OCT}.

    References
    ----------
    M. Amaris, G. Lucarelli, C. Mommessin, D. Trystram, "Generic algorithms for scheduling applications on
    heterogeneous platforms", Concurrency and Computation 31 (2019), e4905: allocation by a linear program, then
    a list schedule. Here the program's prices leave devices out, and the list schedule chooses among the others.
    """
    steps = p.seconds.size + len(p.pred) * len(p.latency_s)
    taken = 0
    for number, start in enumerate(_starts(p)):
        taken += start.passes * steps
        keys, timeline = start.make()
        yield PortfolioSchedule(start.name, keys, timeline, number < _LEAST_STARTS or taken <= most_steps)
    yield from _spread(p)


class _Start(NamedTuple):
    """A start that is not made yet; `passes` says how many times it looks at all tasks and edges."""

    name: str
    make: Callable[[], tuple[Floats, Timeline]]
    passes: int = 1


def _starts(p: Problem) -> Iterator[_Start]:
    """Yield everything on one device, everything on one memory node, and the planners by name.

    Notes
    -----
    Where data are dear, or one device is fast, everything in one place may be shorter than any schedule that spreads
    the work. The first three are the best device, the best memory node, and HEFT. On one memory node the tasks are
    ordered by two ranks, and as they are given.
    """
    devices, nodes = _devices(p), _memory_nodes(p)
    heft = _Start("mean", lambda: _listed(p, rank(p, "mean")))
    on_one = [_Start("one device", partial(_held, p, there)) for there in devices]
    on_node = [_Start("one memory node", partial(_held, p, there)) for there in nodes]
    yield from (*on_one[:1], *on_node[:1], heft, *on_one[1:], *on_node[1:])
    for there in nodes:
        yield _Start("one memory node, fastest", partial(_held, p, there, "fastest"))
        yield _Start("one memory node, as given", partial(_held, p, there, _AS_GIVEN))
    for name in PLANNERS[1:]:
        if name not in _BATCH:
            yield _Start(name, partial(_planned, p, name))
        elif len(p.order) <= _BATCH_AT_MOST:
            yield _Start(name, partial(_planned, p, name), len(p.order))


def _listed(p: Problem, keys: Floats) -> tuple[Floats, Timeline]:
    return keys, schedule_by_keys(p, keys)


def _planned(p: Problem, name: str) -> tuple[Floats, Timeline]:
    """Move the tasks of a planner forward into gaps that it left, on the devices that it chose."""
    timeline = planner(name)(p)
    keys = -timeline.start_s
    return keys, list_schedule(p, order_of(p, timeline), timeline.device)


def _held(p: Problem, there: Bools, over: str = "mean") -> tuple[Floats, Timeline]:
    """Hold tasks to some devices; one that cannot run there keeps what it has."""
    runs = np.isfinite(p.seconds[:, there]).any(axis=1, keepdims=True)
    only = p._replace(seconds=np.where(runs & ~there[None, :], np.inf, p.seconds))
    keys = -np.arange(len(p.order), dtype=np.float64) if over == _AS_GIVEN else rank(only, over)
    return _listed(only, keys)


def _devices(p: Problem) -> list[Bools]:
    """Return each device alone: first the one that lacks the fewest tasks, of equals the fastest."""
    total_s = np.where(np.isfinite(p.seconds), p.seconds, 0.0).sum(axis=0)
    lacking = np.isinf(p.seconds).sum(axis=0)
    return [np.arange(p.seconds.shape[1]) == device for device in np.lexsort((total_s, lacking))]


def _memory_nodes(p: Problem) -> list[Bools]:
    """Return the devices of each memory node of more than one: first the node that lacks the fewest tasks."""
    found = [there for node in range(len(p.latency_s)) if (there := p.node == node).sum() > 1]

    def lacks(there: Bools) -> tuple[int, float]:
        least_s = p.seconds[:, there].min(axis=1)
        runs = np.isfinite(least_s)
        return int((~runs).sum()), float(least_s[runs].sum() / there.sum())

    return sorted(found, key=lacks)


def _spread(p: Problem) -> Iterator[PortfolioSchedule]:
    """Yield list schedules that spread the work; those that the starts hold are left out."""
    oct_s = optimistic_costs(p)
    keys = {name: rank(p, name) for name in RANKS}
    order = {name: by_rank(p, keys[name]) for name in RANKS}
    yield PortfolioSchedule("fastest", keys["fastest"], list_schedule(p, order["fastest"]))
    priced = priced_seconds(p)
    for name, within in _PRICED:
        found = list_schedule(p, order[name], ahead_s=left_out(priced, within))
        yield PortfolioSchedule(f"{name} within {within:g}", keys[name], found)
    for name in RANKS:
        if name not in ("fastest", "mean"):
            yield PortfolioSchedule(name, keys[name], list_schedule(p, order[name]))
        if name != "optimistic":
            yield PortfolioSchedule(f"{name} + oct", keys[name], list_schedule(p, order[name], ahead_s=oct_s))
