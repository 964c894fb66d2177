"""Annealing of the order and the devices of a schedule, in long cycles with short, cold ones between them.

In: a `Problem`, a schedule to begin with, a generator of chance. Out: better schedules. It must not read a clock: how
many moves are left is handed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hetero.plan.bounds.graph import priced_seconds
from hetero.plan.graph_search.annealing_kernels import walk
from hetero.plan.graph_search.justification import Justification
from hetero.plan.graph_search.walk_kernels import BEST, Walk, begin
from hetero.plan.planners.list_scheduling import order_of, schedule_by_keys, timed_schedule
from hetero.plan.problem import Floats, Ints, Problem, Timeline

__all__ = ["Annealing", "Hopping", "Recreation"]

_TRIES, _SAME = 3, 1e-4
_LEAST_SPAN, _MOST_SPAN = 0.02, 0.2
_CRITICAL_FRAC, _PINNED_FRAC, _SPREAD = 0.8, 0.6, 0.3

_HOT, _WARM, _COLD = 0.07, 0.03, 0.007
"""The temperature at the beginning of a long cycle, at that of a hop, and at the end of both, as shares of the mean
seconds of a placed task."""

_HOP_MOVES, _LEAST_MOVES = 400, 2_500
"""A hop has so many moves a task; no cycle is shorter than so many moves."""

_FIRST_STEPS, _LONGER = 2_500_000, 4
"""The first long cycle has so many moves times tasks; each is so many times the one before."""

_FEW, _MANY = 1_000_000, 10_000_000
"""Up to so many moves that are left at first, all are one long cycle; up to so many, half of them are."""


class Annealing:
    """One annealing that is moved on in batches, cycle after cycle.

    Parameters
    ----------
    p
        The problem.
    tail_s
        Shape (n_tasks, n_nodes), s; the least from a task's finish on a memory node to the end of the graph.

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


class Recreation:
    """Kicks for one problem's schedules.

    Parameters
    ----------
    p
        The problem.
    justification
        Packs what comes out.

    Notes
    -----
    A try picks a task (eight times of ten a critical one) and a stretch of time around it, frees some of the tasks
    there of their devices and shifts them in the order, most often gives the task a drawn device and an earlier turn,
    lists all tasks anew, the others on the devices they had, and justifies that.

    References
    ----------
    G. Schrimpf, J. Schneider, H. Stamm-Wilbrandt, G. Dueck, "Record breaking optimization results using the ruin and
    recreate principle", Journal of Computational Physics 159 (2000), 139-171.
    """

    def __init__(self, p: Problem, justification: Justification) -> None:
        self._p, self._justification = p, justification
        self._choices = [np.flatnonzero(row) for row in np.isfinite(p.seconds)]

    def perturbed(self, timeline: Timeline, rng: np.random.Generator) -> Timeline:
        """Return the best of a few tries, those left out that are as long as the schedule, and so most likely it."""
        critical = self._justification.critical(timeline)
        tries = []
        for _ in range(_TRIES):
            keys, pinned = self._torn(timeline, critical, rng)
            tries.append(self._justification.once(schedule_by_keys(self._p, keys, pinned)))
        span_s = timeline.makespan_s
        others = [found for found in tries if abs(found.makespan_s - span_s) > _SAME * span_s]
        return min(others or tries, key=lambda found: found.makespan_s)

    def _torn(self, now: Timeline, critical: Ints, rng: np.random.Generator) -> tuple[Floats, Ints]:
        """Return the keys and the pins of a try."""
        count = len(now.device)
        task = int(rng.choice(critical) if rng.random() < _CRITICAL_FRAC else rng.integers(count))
        span_s = now.makespan_s * rng.uniform(_LEAST_SPAN, _MOST_SPAN)
        begin_s = now.start_s[task]
        near = np.flatnonzero((now.start_s < begin_s + span_s) & (now.finish_s > begin_s - span_s))
        freed = near[rng.random(len(near)) < rng.random()]
        keys, pinned = -now.start_s, now.device.copy()
        keys[freed] -= rng.normal(0.0, _SPREAD * span_s, len(freed))
        pinned[freed] = -1
        if rng.random() < _PINNED_FRAC:
            pinned[task] = rng.choice(self._choices[task])
            keys[task] += span_s * rng.random()
        return keys, pinned


class _Cycle(NamedTuple):
    """Moves of a cycle, whether it begins at a perturbed schedule, and whether it has all moves that are left."""

    moves: int
    is_hop: bool
    is_last: bool = False


class Hopping:
    """One annealing that is moved on in batches, in long cycles and hops.

    Parameters
    ----------
    p
        The problem.
    tail_s
        Shape (n_tasks, n_nodes), s; the least from a task's finish on a memory node to the end of the graph.
    timeline
        The schedule to begin with.
    justification
        Packs what perturbations leave.

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
            begin = self._recreation.perturbed(self._base, rng) if cycle.is_hop else self._base
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
