"""Ruin and recreate: a stretch of a schedule around one task is taken out and placed anew.

In: a `Problem`, a schedule, a generator of chance. Out: a schedule like it, most often a little longer.
It must not know the time.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.graph_search.justification import Justification
from hetero.plan.planners.list_scheduling import schedule_by_keys
from hetero.plan.problem import Floats, Ints, Problem, Timeline

__all__ = ["Recreation"]

_TRIES, _SAME = 3, 1e-4
_LEAST_SPAN, _MOST_SPAN = 0.02, 0.2
_CRITICAL_FRAC, _PINNED_FRAC, _SPREAD = 0.8, 0.6, 0.3


class Recreation:
    """Kicks for one problem's schedules.

    Parameters
    ----------
    p : the problem
    justification : packs what comes out

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

    def kicked(self, timeline: Timeline, rng: np.random.Generator) -> Timeline:
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
