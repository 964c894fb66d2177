"""Annealing of the order and the devices of a schedule.

In: a `Problem`, a schedule to begin with, a generator of chance. Out: better schedules. It must not know the time.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.bounds.area_prices import priced_seconds
from hetero.plan.graph_search.annealing_kernels import walk
from hetero.plan.graph_search.walk_kernels import BEST, Walk, begin
from hetero.plan.planners.list_scheduling import order_of, timed_schedule
from hetero.plan.problem import Floats, Problem, Timeline

__all__ = ["Annealing"]


class Annealing:
    """One annealing that is moved on in batches, cycle after cycle.

    Parameters
    ----------
    p : the problem
    tail_s : shape (n_tasks, n_nodes), s; the least from a task's finish on a memory node to the end of the graph

    Notes
    -----
    The walk goes to and fro along the order and tries moves of every critical task and of some of the others. A move
    has the task change places and devices with another, or gives it another device, more often one that is cheap for
    it at the prices of the area relaxation, or the same, and puts it elsewhere in the order between its predecessors
    and successors; all start as early as they can. A move that lengthens the schedule by x is accepted with
    probability exp(-x / T). Work that becomes dearer at those prices adds a fifth of that to x, so that among
    schedules of one length the search drifts to those that waste less. Since the number that decides is drawn first,
    a move is given up as soon as finish + tail is beyond what would be accepted. T falls geometrically within a cycle.

    The makespan is certain at the ends of the order, where the best schedule is kept; between them it is taken to be
    the longest path through the tasks that were passed of late.

    References
    ----------
    S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, "Optimization by simulated annealing", Science 220 (1983), 671-680.
    """

    def __init__(self, p: Problem, tail_s: Floats) -> None:
        n, m = p.seconds.shape
        self.problem = p
        priced_s = priced_seconds(p)
        ranked = np.argsort(priced_s, axis=1, kind="stable").astype(np.int64)
        whole, times_s = np.zeros(n, dtype=np.int64), np.zeros(n)
        self.walk = Walk(
            whole.copy(), whole.copy(), whole.copy(), whole.copy(), times_s.copy(), times_s.copy(), times_s.copy(),
            whole.copy(), whole.copy(), np.zeros(m, dtype=np.int64), times_s.copy(), whole.copy(), whole.copy(),
            priced_s, ranked, np.isfinite(p.seconds).sum(axis=1), tail_s, np.flatnonzero(np.diff(p.pred_first) == 0),
            np.flatnonzero(np.diff(p.succ_first) == 0), whole.copy(), whole.copy(), np.full(3, np.inf),
            np.zeros(6, dtype=np.int64),
        )  # fmt: skip
        self._done = self._moves = 0
        self._hot = self._cold = 0.0

    @property
    def makespan_s(self) -> float:
        """The best makespan of this cycle so far, s."""
        return float(self.walk.span_s[BEST])

    @property
    def is_over(self) -> bool:
        """Return whether the cycle has had its moves."""
        return self._done >= self._moves

    def begin(self, timeline: Timeline, moves: int, hot: float, cold: float) -> None:
        """Start a cycle of moves at a schedule; temperatures are shares of the mean seconds of a placed task."""
        self._done, self._moves, self._hot, self._cold = 0, moves, hot, cold
        self.walk.order[:] = order_of(self.problem, timeline)
        self.walk.device[:] = timeline.device
        self.walk.span_s[BEST] = np.inf
        begin(self.problem, self.walk)

    def go_on_for(self, moves: int) -> None:
        """Have the cycle end after so many moves more, and the temperature fall by then."""
        self._moves = self._done + max(moves, 1)

    def batch(self, moves: int, rng: np.random.Generator) -> None:
        """Try so many moves."""
        temperature_s = self.walk.seconds.mean() * self._hot * (self._cold / self._hot) ** (self._done / self._moves)
        walk(self.problem, self.walk, rng.random((moves, 4)), rng.standard_exponential(moves) * temperature_s)
        self._done += moves
        if self.is_over:
            begin(self.problem, self.walk)

    def best(self) -> Timeline:
        """Return the best schedule of this cycle so far."""
        return timed_schedule(self.problem, self.walk.best_order, self.walk.best_device)
