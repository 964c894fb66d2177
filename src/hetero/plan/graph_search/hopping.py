"""Long annealing cycles from the best schedule, and between them short, cold ones from where a kick led.

In: a `Problem`, a schedule to begin with, a generator of chance. Out: better schedules. It must not read a clock: how
many moves are left is handed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hetero.plan.graph_search.annealing import Annealing
from hetero.plan.graph_search.justification import Justification
from hetero.plan.graph_search.recreation import Recreation
from hetero.plan.problem import Floats, Problem, Timeline

__all__ = ["Hopping"]

_HOT, _WARM, _COLD = 0.07, 0.03, 0.007
"""The temperature at the beginning of a long cycle, at that of a hop, and at the end of both, as shares of the mean
seconds of a placed task."""

_HOP_MOVES, _LEAST_MOVES = 400, 2_500
"""A hop has so many moves a task; no cycle is shorter than so many moves."""

_FIRST_STEPS, _LONGER = 2_500_000, 4
"""The first long cycle has so many moves times tasks; each is so many times the one before."""

_FEW, _MANY = 1_000_000, 10_000_000
"""Up to so many moves that are left at first, all are one long cycle; up to so many, half of them are."""


class _Cycle(NamedTuple):
    """How many moves a cycle has, whether it begins at a kick, and whether it has all moves that are left."""

    moves: int
    is_hop: bool
    is_last: bool = False


class Hopping:
    """One annealing that is moved on in batches, in long cycles and hops.

    Parameters
    ----------
    p : the problem
    tail_s : shape (n_tasks, n_nodes), s; the least from a task's finish on a memory node to the end of the graph
    timeline : the schedule to begin with
    justification : packs what kicks leave

    Notes
    -----
    As many moves go to hops as to the long cycle before them. A hop is kept unless it ends in a longer schedule than
    it left, so the search drifts among schedules of one length.

    References
    ----------
    D. J. Wales, J. P. K. Doye, "Global optimization by basin-hopping", Journal of Physical Chemistry A 101 (1997),
    5111-5116; here every basin is looked through by annealing.
    """

    def __init__(self, p: Problem, tail_s: Floats, timeline: Timeline, justification: Justification) -> None:
        self._annealing = Annealing(p, tail_s)
        self._recreation = Recreation(p, justification)
        self._count, self._base, self._rest = len(p.order), timeline, np.inf
        self._hop = max(_HOP_MOVES * self._count, _LEAST_MOVES)
        self._cycles = self._course()
        self._cycle = _Cycle(0, is_hop=False)

    @property
    def makespan_s(self) -> float:
        """The makespan of the best schedule of this cycle, s."""
        return self._annealing.makespan_s

    def best(self) -> Timeline:
        """Return the best schedule of this cycle."""
        return self._annealing.best()

    def go_on_from(self, timeline: Timeline) -> None:
        """Start the next cycle at a better schedule, which was found elsewhere."""
        self._base = timeline

    def batch(self, moves: int, rng: np.random.Generator, rest: float = np.inf) -> None:
        """Try so many moves; about `rest` moves are left with them."""
        self._rest = rest
        if self._annealing.is_over:
            if self._annealing.makespan_s <= self._base.makespan_s:
                self._base = self._annealing.best()
            self._cycle = cycle = next(self._cycles)
            begin = self._recreation.kicked(self._base, rng) if cycle.is_hop else self._base
            self._annealing.begin(begin, cycle.moves, _WARM if cycle.is_hop else _HOT, _COLD)
        if self._cycle.is_last:
            self._annealing.go_on_for(int(rest))
        self._annealing.batch(moves, rng)

    def _course(self) -> Iterator[_Cycle]:
        """Yield the cycles one by one; a first short one shows how many moves there will be."""
        yield _Cycle(_LEAST_MOVES, is_hop=False)
        long = max(_FIRST_STEPS // self._count, _LEAST_MOVES)
        if self._rest < _FEW:
            yield _Cycle(int(self._rest), is_hop=False, is_last=True)
        elif self._rest < _MANY:
            long = int(self._rest / 2)
        while True:
            yield _Cycle(long, is_hop=False)
            for _ in range(long // self._hop):
                yield _Cycle(self._hop, is_hop=True)
            longer = _LONGER * long
            while self._rest < longer:
                yield _Cycle(self._hop, is_hop=True)
            long = longer if self._rest > 4 * longer else int(self._rest / 2)
