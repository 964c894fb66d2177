"""The search: portfolio and justification first, then annealing, evolution and exact windows in turn.

In: a `Problem`, a seed; while it runs, the seconds left, from a driver that has a clock. Out: ever better schedules.
It must not read a clock: without the seconds left it is the same for a seed and a number of iterations.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from hetero.floor.extras import is_there
from hetero.plan.bounds.graph import critical_path_bound, grain, in_whole_grains, least_tails
from hetero.plan.graph_search.annealing import Hopping
from hetero.plan.graph_search.evolution import Evolution
from hetero.plan.graph_search.exact_search import ExactLimits, improve
from hetero.plan.graph_search.justification import Justification
from hetero.plan.graph_search.portfolio import portfolio
from hetero.plan.problem import Problem, Timeline

__all__ = ["WHOLE_AT_MOST", "BestSchedule", "Turns", "rehearse", "search", "search_from"]

WHOLE_AT_MOST = 60
"""Graphs of up to so many tasks are given to the exact search whole."""

_WINDOW = 32
_STEPS_A_BATCH = 3_000_000
_EVOLVE, _EXACT, _WINDOWS = (96, 384), (24, 96), (600, 2_400)
"""Evolution, an exact search of the whole and one of a window have their first turn after so many iterations; one
without gain makes the next one rarer, down to every so many."""

_CHILDREN_STEPS, _CHILDREN_AT_MOST = 60_000, 100
_JUSTIFIED_FRAC = 0.2
"""Justification takes at most so much of the time that is left when it begins."""
_LEAST_WALL_S, _SHARE_OF_REST, _WINDOW_WALL_S = 0.02, 0.45, 0.06
"""The exact search of the whole is begun with so much time at least, and has such a share of what is left: less than
half, since a driver stops that has not the time for another iteration as long. A window has so much."""

_FIRST_LIMIT, _MOST_LIMIT, _WINDOW_LIMIT = 0.02, 0.32, 0.01


class BestSchedule(NamedTuple):
    """The best so far.

    Attributes
    ----------
    timeline
        The schedule.
    lower_bound_s
        Seconds, proven for the graph.
    by
        What found it.
    """

    timeline: Timeline
    lower_bound_s: float
    by: str

    @property
    def is_optimal(self) -> bool:
        """Return whether nothing better can be, but for a millionth."""
        return self.timeline.makespan_s <= self.lower_bound_s * (1.0 + 1e-6)


def search(p: Problem, seed: int) -> Generator[BestSchedule, float | None, None]:
    """Yield the best schedule so far after each iteration, until it is proven to be the best possible.

    Parameters
    ----------
    p
        The problem; at least one task.
    seed
        Of every random choice.

    Notes
    -----
    The first iteration takes all starts of the portfolio, so that no budget gives a plan worse than any of them.
    Another is one list schedule, one pass of justification, one batch of annealing, a few children, or one exact
    window. The driver may send the seconds that it has left; exact windows then keep to a share of them, else to
    OR-tools' deterministic time. Up to 60 tasks a window is the whole graph, and its bound is the graph's.
    """
    best: BestSchedule | None = None
    bound_s = critical_path_bound(p)
    members = []
    for member in portfolio(p):
        members.append(member.timeline)
        if best is None or member.timeline.makespan_s < best.timeline.makespan_s:
            best = BestSchedule(member.timeline, bound_s, member.name)
        if best.is_optimal or not member.is_start:
            yield best
        if best.is_optimal:
            return
    assert best is not None
    yield from _Mixed(p, seed, best, members).run()


def search_from(p: Problem, seed: int, members: list[Timeline]) -> Generator[BestSchedule, float | None, None]:
    """Go on as `search` does once it has taken the portfolio, whose schedules are handed in."""
    best = min(members, key=lambda timeline: timeline.makespan_s)
    bound_s = critical_path_bound(p)
    found = BestSchedule(best, bound_s, "portfolio")
    yield found
    yield from _Mixed(p, seed, found, members).run()


def rehearse(p: Problem) -> None:
    """Take each part of the search once, so that loading and compiling is over before a budget begins."""
    members = [member.timeline for member in portfolio(p)]
    mixed = _Mixed(p, 0, BestSchedule(members[0], 0.0, ""), members)
    mixed.rehearse()


class Turns:
    """When a part of a search has its next turn; one without gain makes the next one rarer, down to every `rarest`."""

    def __init__(self, first: int, rarest: int) -> None:
        self._next = self._gap = self._least = first
        self._rarest = rarest

    def is_due(self, turn: int) -> bool:
        """Return whether it is its turn."""
        return turn >= self._next

    def took(self, turn: int, gained: bool) -> None:
        """Record a turn that was had."""
        self._gap = self._least if gained else min(2 * self._gap, self._rarest)
        self._next = turn + self._gap


class _Mixed:
    def __init__(self, p: Problem, seed: int, best: BestSchedule, members: list[Timeline]) -> None:
        self._p, self._seed, self._best = p, seed, best
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._evolution = Evolution(p, members)
        self._members, self._justification = members, Justification(p)
        self._annealing = Hopping(p, least_tails(p), best.timeline, self._justification)
        self._moves = min(20_000, max(100, _STEPS_A_BATCH // len(p.order)))
        self._children = min(_CHILDREN_AT_MOST, max(1, _CHILDREN_STEPS // p.seconds.size))
        self._limit = _FIRST_LIMIT
        self._grain_s = grain(p)
        self._moved, self._since_s = 0, 0.0

    def run(self) -> Generator[BestSchedule, float | None, None]:
        left_s = yield from self._justify()
        turn = 0
        small = len(self._p.order) <= WHOLE_AT_MOST
        exact = Turns(*(_EXACT if small else _WINDOWS))
        evolve = Turns(*_EVOLVE)
        while not self._best.is_optimal:
            turn += 1
            before_s = self._best.timeline.makespan_s
            if exact.is_due(turn) and self._may_be_exact(left_s):
                self._exact(left_s)
                exact.took(turn, small or self._best.timeline.makespan_s < before_s)
            elif evolve.is_due(turn):
                self._evolve()
                evolve.took(turn, self._best.timeline.makespan_s < before_s)
            else:
                self._anneal(left_s)
            left_s = yield self._best

    def rehearse(self) -> None:
        self._take(next(self._justification.of(self._members)), "justification")
        self._anneal(None)
        self._evolve()
        if is_there("ortools"):
            self._exact(None)

    def _take(self, timeline: Timeline, by: str) -> None:
        if timeline.makespan_s < self._best.timeline.makespan_s:
            self._best = BestSchedule(timeline, self._best.lower_bound_s, by)
            if by != "annealing":
                self._annealing.go_on_from(timeline)

    def _anneal(self, left_s: float | None) -> None:
        self._annealing.batch(self._moves, self._rng, self._rest(left_s))
        if self._annealing.makespan_s < self._best.timeline.makespan_s:
            self._take(self._annealing.best(), "annealing")

    def _rest(self, left_s: float | None) -> float:
        """Return how many moves are left, at the pace so far."""
        rest = np.inf
        if left_s is not None and not self._moved:
            self._since_s = left_s
        elif left_s is not None and self._since_s > left_s:
            rest = self._moved * left_s / (self._since_s - left_s)
        self._moved += self._moves
        return rest

    def _justify(self) -> Generator[BestSchedule, float | None, float | None]:
        """Take what justification makes of the portfolio; returns the seconds that are left."""
        left_s: float | None = None
        first_s: float | None = None
        for timeline in self._justification.of(self._members):
            self._take(timeline, "justification")
            left_s = yield self._best
            if first_s is None:
                first_s = left_s
            over = left_s is not None and first_s is not None and left_s < (1.0 - _JUSTIFIED_FRAC) * first_s
            if self._best.is_optimal or over:
                break
        return left_s

    def _evolve(self) -> None:
        self._evolution.add(self._best.timeline)
        for _ in range(self._children):
            self._take(self._evolution.child(self._rng), "evolution")

    def _may_be_exact(self, left_s: float | None) -> bool:
        least_s = _LEAST_WALL_S if len(self._p.order) <= WHOLE_AT_MOST else 4.0 * _WINDOW_WALL_S
        return is_there("ortools") and (left_s is None or left_s > least_s)

    def _exact(self, left_s: float | None) -> None:
        n = len(self._p.order)
        if n <= WHOLE_AT_MOST:
            wall_s = np.inf if left_s is None else _SHARE_OF_REST * left_s
            limit = self._limit if left_s is None else np.inf
            timeline, bound_s = improve(self._p, self._best.timeline, 0, n, ExactLimits(limit, wall_s, self._seed))
            self._limit = min(2.0 * self._limit, _MOST_LIMIT)
            bound_s = max(in_whole_grains(bound_s, self._grain_s), self._best.lower_bound_s)
            self._best = self._best._replace(lower_bound_s=min(bound_s, timeline.makespan_s))
        else:
            first = int(self._rng.integers(n - _WINDOW + 1))
            wall_s = np.inf if left_s is None else _WINDOW_WALL_S
            limits = ExactLimits(_WINDOW_LIMIT, wall_s, self._seed)
            timeline, _ = improve(self._p, self._best.timeline, first, first + _WINDOW, limits)
        self._take(timeline, "exact search")
