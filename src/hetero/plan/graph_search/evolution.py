"""Evolution over priority keys and pinned devices.

In: a `Problem`, the portfolio, a generator of chance. Out: better schedules. It must not know the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hetero.plan.planners.list_scheduling import list_schedule, order_of
from hetero.plan.planners.ranks import by_rank
from hetero.plan.problem import Floats, Ints, Problem, Timeline

__all__ = ["Evolution"]

_SIZE = 24
_CHANGED_FRAC, _LEAST_CHANGED = 0.02, 2


class _Genome(NamedTuple):
    """Keys in 0..1, the higher the earlier; pinned devices, -1 where the task goes where it ends first."""

    makespan_s: float
    number: int
    keys: Floats
    pinned: Ints


class Evolution:
    """A population of keys and pins, one child at a time.

    Parameters
    ----------
    p
        The problem.
    timelines
        The schedules to begin with; each becomes the keys and pins that give it again.

    Notes
    -----
    A child takes key and pin of each task from either of two parents, the better of two drawn ones each; a few
    tasks get a new key, a few are unpinned or pinned elsewhere. It is decoded by list scheduling with insertion,
    and takes the place of the worst if it is better than that.

    References
    ----------
    J. F. Goncalves, M. G. C. Resende, "Biased random-key genetic algorithms for combinatorial optimization",
    Journal of Heuristics 17 (2011), 487-525. The pins are added here.
    """

    def __init__(self, p: Problem, timelines: Sequence[Timeline]) -> None:
        self._p = p
        self._choices = [np.flatnonzero(row) for row in np.isfinite(p.seconds)]
        self._count = 0
        self._people: list[_Genome] = []
        for timeline in timelines:
            self.add(timeline)

    def add(self, timeline: Timeline) -> None:
        """Take a schedule into the population."""
        keys = np.empty(len(self._p.order))
        keys[order_of(self._p, timeline)] = np.linspace(1.0, 0.0, len(keys))
        self._join(_Genome(timeline.makespan_s, self._count, keys, timeline.device.copy()))

    def child(self, rng: np.random.Generator) -> Timeline:
        """Make and keep one child; returns its schedule."""
        one, other = self._parent(rng), self._parent(rng)
        mask = rng.random(len(one.keys)) < rng.uniform(0.5, 1.0)
        keys, pinned = np.where(mask, one.keys, other.keys), np.where(mask, one.pinned, other.pinned)
        changed = max(_LEAST_CHANGED, int(_CHANGED_FRAC * len(keys)))
        for task in rng.integers(len(keys), size=changed):
            keys[task] = np.clip(keys[task] + rng.normal(0.0, 0.05), 0.0, 1.0)
        for task in rng.integers(len(keys), size=changed):
            pinned[task] = -1 if rng.random() < 0.5 else rng.choice(self._choices[task])
        timeline = list_schedule(self._p, by_rank(self._p, keys), pinned)
        self._join(_Genome(timeline.makespan_s, self._count, keys, pinned))
        return timeline

    def _parent(self, rng: np.random.Generator) -> _Genome:
        first, second = rng.integers(len(self._people), size=2)
        return self._people[int(min(first, second))]

    def _join(self, genome: _Genome) -> None:
        """Keep the best, the first found before others of the same makespan."""
        self._count += 1
        self._people.append(genome)
        self._people.sort(key=lambda one: (one.makespan_s, one.number))
        del self._people[_SIZE:]
