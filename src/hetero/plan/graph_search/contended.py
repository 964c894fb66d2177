"""The search under contention: list schedules on shared links, what the contention-free search finds, evolution.

In: a `Problem`, its `Channels`, a seed. Out: ever better schedules with their transfers. It must not read a clock.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from hetero.plan.bounds.graph import critical_path_bound
from hetero.plan.graph_search.combined import BestSchedule, search
from hetero.plan.graph_search.evolution import Evolution
from hetero.plan.graph_search.portfolio import portfolio
from hetero.plan.planners.contention import Channels, Moves, contended_schedule, least_transfers
from hetero.plan.planners.list_scheduling import order_of
from hetero.plan.planners.ranks import by_rank
from hetero.plan.problem import Ints, Problem, Timeline

__all__ = ["ContendedFound", "contended_search"]

_CHILDREN_STEPS, _CHILDREN_AT_MOST = 60_000, 100
_FREE_EVERY = 3
"""One turn of so many goes to the contention-free search."""


class ContendedFound(NamedTuple):
    """The best so far under contention.

    Attributes
    ----------
    timeline, moves : the schedule and its transfers
    lower_bound_s : s, proven for the graph
    by : what found it
    """

    timeline: Timeline
    moves: Moves
    lower_bound_s: float
    by: str

    @property
    def is_optimal(self) -> bool:
        """Return whether nothing better can be, but for a millionth."""
        return self.timeline.makespan_s <= self.lower_bound_s * (1.0 + 1e-6)


class _Contended:
    """The best schedule so far, and how others are timed."""

    def __init__(self, p: Problem, c: Channels) -> None:
        self._p, self._c = p, c
        self._is_direct = np.array_equal(least_transfers(p).latency_s, p.latency_s)
        self._best: ContendedFound | None = None
        self._bound_s = critical_path_bound(least_transfers(p))

    @property
    def best(self) -> ContendedFound:
        assert self._best is not None
        return self._best._replace(lower_bound_s=self._bound_s)

    def timed(self, order: Ints, pinned: Ints | None, by: str) -> Timeline:
        timeline, moves = contended_schedule(self._p, self._c, order, pinned)
        if self._best is None or timeline.makespan_s < self._best.timeline.makespan_s:
            self._best = ContendedFound(timeline, moves, self._bound_s, by)
        return timeline

    def may_gain(self, free: Timeline) -> bool:
        """Return whether a schedule could be the best: under contention none is shorter than without."""
        return self._best is None or free.makespan_s < self._best.timeline.makespan_s

    def prove(self, bound_s: float) -> None:
        """Take a bound of the contention-free problem; it holds where no detour is faster than the direct way."""
        if self._is_direct:
            self._bound_s = max(self._bound_s, bound_s)


def contended_search(p: Problem, c: Channels, seed: int) -> Generator[ContendedFound, float | None, None]:
    """Yield the best schedule so far after each iteration, until it is proven to be the best possible.

    Parameters
    ----------
    p : the problem; at least one task
    seed : of every random choice

    Notes
    -----
    The first iteration takes all starts of the portfolio as they are. Another is one order of it, with the devices of
    its contention-free schedule and with devices chosen anew; or a few children of the evolution; or, one turn of
    three, an iteration of the contention-free search, the schedule of which is timed under contention when it is a
    new one. No schedule under contention is shorter than the best without, so the bounds of that search hold here as
    well.
    """
    if not (p.pred_bytes > 0.0).any() or len(set(p.node.tolist())) == 1:
        yield from _nothing_travels(p, c, seed)
        return
    found = _Contended(p, c)
    members, ranked = [], set()
    for member in portfolio(p):
        if found.may_gain(member.timeline) or not member.is_start:
            members.append(found.timed(order_of(p, member.timeline), member.timeline.device, member.name))
        mark = member.keys.tobytes()
        if mark not in ranked and not member.is_start:
            ranked.add(mark)
            members.append(found.timed(by_rank(p, member.keys), None, member.name))
        if found.best.is_optimal or not member.is_start:
            yield found.best
        if found.best.is_optimal:
            return
    yield from _improve(found, p, seed, members)


def _nothing_travels(p: Problem, c: Channels, seed: int) -> Generator[ContendedFound, float | None, None]:
    free = search(p, seed)
    _, no_moves = contended_schedule(p, c, p.order)
    found = next(free)
    while True:
        left_s = yield ContendedFound(found.timeline, no_moves, found.lower_bound_s, found.by)
        try:
            found = free.send(left_s)
        except StopIteration:
            return


def _improve(
    found: _Contended, p: Problem, seed: int, members: list[Timeline]
) -> Generator[ContendedFound, float | None, None]:
    rng = np.random.Generator(np.random.PCG64(seed))
    evolution = Evolution(p, members, lambda _, order, pinned: found.timed(order, pinned, "evolution"))
    free: Generator[BestSchedule, float | None, None] | None = search(p, seed)
    last: Timeline | None = None
    left_s: float | None = None
    turn = 0
    while not found.best.is_optimal:
        turn += 1
        if turn % _FREE_EVERY == 0 and free is not None:
            try:
                better = next(free) if last is None else free.send(left_s)
            except StopIteration:
                free = None
                continue
            found.prove(better.lower_bound_s)
            if better.timeline is not last:
                last = better.timeline
                timed = found.timed(order_of(p, last), last.device, better.by)
                evolution.add(timed)
        else:
            for _ in range(min(_CHILDREN_AT_MOST, max(1, _CHILDREN_STEPS // p.seconds.size))):
                evolution.child(rng)
        left_s = yield found.best
