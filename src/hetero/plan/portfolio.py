"""The portfolio: list schedules over every rank, with and without a look ahead, with and without dear devices.

In: a `Problem`. Out: schedules one after the other, those that are often best first. It must not search.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.plan.listing import list_schedule
from hetero.plan.planners.base import planner
from hetero.plan.prices import left_out, priced_seconds
from hetero.plan.problem import Floats, Problem, Timeline
from hetero.plan.ranks import RANKS, by_rank, optimistic_costs, rank

__all__ = ["Member", "portfolio"]

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

_BATCH_AT_MOST = 1_000
"""Above so many tasks the planners that look at all ready tasks each time are left out: they are quadratic."""


class Member(NamedTuple):
    """One schedule of the portfolio.

    Attributes
    ----------
    name : as in 'fastest + oct'
    keys : shape (n_tasks,); what the tasks were ordered by, higher first
    timeline : the schedule
    """

    name: str
    keys: Floats
    timeline: Timeline


def portfolio(p: Problem) -> Iterator[Member]:
    """Yield the list schedules one by one.

    Notes
    -----
    First everything on one device, the best for that, and on each memory node: where data are dear these may be
    shorter than any schedule that spreads the work, and no plan should be worse than them. Then the upward rank over
    the fastest device and PEFT; then ranks with EFT among the devices whose time, at the prices of the area
    relaxation, is not much dearer for the task than its cheapest: for that kind of graph in which a plain list
    schedule puts tasks on a slow device because the fast one is busy just now; then {fastest, optimistic, mean,
    geometric, harmonic, median} × {EFT, EFT + OCT}; then CPOP and, up to 1,000 tasks, min-min, max-min and sufferage.

    References
    ----------
    M. Amaris, G. Lucarelli, C. Mommessin, D. Trystram, "Generic algorithms for scheduling applications on
    heterogeneous platforms", Concurrency and Computation 31 (2019), e4905: allocation by a linear program, then
    a list schedule. Here the program's prices leave devices out, and the list schedule chooses among the others.
    """
    oct_s = optimistic_costs(p)
    keys = {name: rank(p, name) for name in RANKS}
    order = {name: by_rank(p, keys[name]) for name in RANKS}
    for name, seconds in _held_together(p):
        yield Member(name, keys["fastest"], list_schedule(p._replace(seconds=seconds), order["fastest"]))
    yield Member("fastest", keys["fastest"], list_schedule(p, order["fastest"]))
    yield Member("optimistic + oct", keys["optimistic"], list_schedule(p, order["optimistic"], ahead_s=oct_s))
    priced = priced_seconds(p)
    for name, within in _PRICED:
        found = list_schedule(p, order[name], ahead_s=left_out(priced, within))
        yield Member(f"{name} within {within:g}", keys[name], found)
    for name in RANKS:
        if name != "fastest":
            yield Member(name, keys[name], list_schedule(p, order[name]))
        if name != "optimistic":
            yield Member(f"{name} + oct", keys[name], list_schedule(p, order[name], ahead_s=oct_s))
    for name in ("cpop", "minmin", "maxmin", "sufferage"):
        if name == "cpop" or len(p.order) <= _BATCH_AT_MOST:
            timeline = planner(name)(p)
            yield Member(name, -timeline.start_s, timeline)


def _held_together(p: Problem) -> Iterator[tuple[str, Floats]]:
    """Yield the seconds of the problem with one device only, then with each memory node only.

    Notes
    -----
    A task that cannot run there keeps what it has. Of the devices that is one which takes the least time for all
    tasks, then one that can run the most tasks; of memory nodes whose devices are alike, one.
    """
    total_s = np.where(np.isfinite(p.seconds), p.seconds, 0.0).sum(axis=0)
    lacking = np.isinf(p.seconds).sum(axis=0)
    best = int(np.lexsort((total_s, lacking))[0])
    yield "one device", _only(p, np.arange(p.seconds.shape[1]) == best)
    seen = set()
    for node in range(len(p.latency_s)):
        there = p.node == node
        mark = p.seconds[:, there].tobytes()
        if there.sum() > 1 and not there.all() and mark not in seen:
            seen.add(mark)
            yield "one memory node", _only(p, there)


def _only(p: Problem, there: Bools) -> Floats:
    runs = np.isfinite(p.seconds[:, there]).any(axis=1, keepdims=True)
    return np.where(runs & ~there[None, :], np.inf, p.seconds)
