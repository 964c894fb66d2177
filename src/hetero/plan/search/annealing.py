"""Annealing of the order and the devices of a schedule.

In: a `Problem`, a schedule to begin with, a generator of chance. Out: better schedules. It must not know the time.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.listing import order_of, timed_schedule
from hetero.plan.prices import priced_seconds
from hetero.plan.problem import Floats, Problem, Timeline
from hetero.plan.search.annealing_kernels import walk
from hetero.plan.search.walk_kernels import Walk, begin

__all__ = ["Annealing"]

_HOT, _COLD = 0.1, 0.01
"""The temperature at the beginning and at the end of a cycle, as shares of the mean seconds of a placed task."""

_FIRST_STEPS, _FIRST_MOVES, _LONGER = 2_000_000, 1_000, 4
"""The first cycle has so many steps over tasks, and at least so many moves; each is so many times the one before."""


class Annealing:
    """One annealing that is moved on in batches, in cycles of growing length.

    Parameters
    ----------
    p : the problem
    tail_s : shape (n_tasks, n_nodes), s; the least from a task's finish on a memory node to the end of the graph
    timeline : the schedule to begin with

    Notes
    -----
    A move takes a task (six times of ten from the critical path) and has it change places and devices with another,
    or gives it another device, more often one that is cheap for it at the prices of the area relaxation, or the same,
    and puts it elsewhere in the order between its predecessors and successors; all start as early as they can. A move
    that lengthens the schedule by x is accepted with probability exp(-x / T); since the number that decides is drawn
    first, a move is given up as soon as finish + tail is beyond what would be accepted. T falls geometrically within
    a cycle; the next cycle is longer, and begins at the best schedule.

    References
    ----------
    S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, "Optimization by simulated annealing", Science 220 (1983), 671-680.
    """

    def __init__(self, p: Problem, tail_s: Floats, timeline: Timeline) -> None:
        n, m = p.seconds.shape
        self.problem = p
        ranked = np.argsort(priced_seconds(p), axis=1, kind="stable").astype(np.int64)
        whole, times_s = np.zeros(n, dtype=np.int64), np.zeros(n)
        self.walk = Walk(
            whole.copy(), whole.copy(), whole.copy(), times_s.copy(), times_s.copy(), times_s.copy(), whole.copy(),
            whole.copy(), np.zeros(m, dtype=np.int64), times_s.copy(), whole.copy(), whole.copy(), ranked,
            np.isfinite(p.seconds).sum(axis=1), tail_s, np.flatnonzero(np.diff(p.succ_first) == 0), whole.copy(),
            whole.copy(), whole.copy(), np.array([np.inf, np.inf]), np.zeros(1, dtype=np.int64),
        )  # fmt: skip
        self._done, self._cycle = 0, max(_FIRST_STEPS // n, _FIRST_MOVES)
        self.begin_at(timeline)

    @property
    def makespan_s(self) -> float:
        """The best makespan so far, s."""
        return float(self.walk.span_s[1])

    def begin_at(self, timeline: Timeline) -> None:
        """Go on from a schedule."""
        self.walk.order[:] = order_of(self.problem, timeline)
        self.walk.device[:] = timeline.device
        begin(self.problem, self.walk)

    def batch(self, moves: int, rng: np.random.Generator, rest: float = np.inf) -> None:
        """Try so many moves; about `rest` moves are left after them, and the last cycle is to end with them."""
        at = (self._done + np.arange(moves)) / self._cycle
        mean_s = float((self.walk.finish_s - self.walk.start_s).mean())
        temperature_s = mean_s * _HOT * (_COLD / _HOT) ** np.minimum(at, 1.0)
        walk(self.problem, self.walk, rng.random((moves, 5)), -np.log1p(-rng.random(moves)) * temperature_s)
        self._done += moves
        if self._done >= self._cycle:
            longer = _LONGER * self._cycle
            self._done, self._cycle = 0, int(rest) + _FIRST_MOVES if rest < 2 * longer else longer
            self.walk.order[:] = self.walk.best_order
            self.walk.device[:] = self.walk.best_device
            begin(self.problem, self.walk)

    def best(self) -> Timeline:
        """Give the best schedule so far."""
        return timed_schedule(self.problem, self.walk.best_order, self.walk.best_device)
