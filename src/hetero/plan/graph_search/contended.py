"""The search under contention: list schedules on shared links, clusters, parts of the fleet, annealing of all of it.

In: a `Problem`, its `Channels`, a seed. Out: ever better schedules with their transfers. It must not read a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.floor.extras import is_there
from hetero.plan.bounds.graph import critical_path_bound, least_tails, priced_seconds
from hetero.plan.graph_search.clustering import clusterings, held_to, parts_of_fleet
from hetero.plan.graph_search.combined import BestSchedule, Turns, search, search_from
from hetero.plan.graph_search.contended_kernels import (
    BEST,
    DRAWS,
    ContendedWalk,
    start_walk,
    walk_contended,
)
from hetero.plan.graph_search.exact_search import improve_linked, is_small
from hetero.plan.graph_search.portfolio import portfolio
from hetero.plan.planners.contention import Channels, contended_schedule, least_transfers
from hetero.plan.planners.contention_kernels import bookmarks_of, state_of
from hetero.plan.planners.heuristics import PLANNERS, planner
from hetero.plan.planners.list_scheduling import order_of
from hetero.plan.planners.ranks import by_rank, rank
from hetero.plan.problem import Floats, Ints, Moves, Problem, Timeline

__all__ = ["ContendedAnnealing", "ContendedFound", "contended_search", "least_s", "rehearse"]

Bools = NDArray[np.bool_]

_ALONE = ("one device", "one memory node", "one host")
_PLANNED_AT_MOST = 1_000
"""Up to so many tasks each planner by name is tried on single hosts and memory nodes."""

_CLUSTERED_PARTS = 3
"""Clusters are mapped to all devices, and to so many parts of the fleet, those with the shortest schedules."""

_STEPS_A_BATCH, _LEAST_A_BATCH, _MOST_A_BATCH = 250_000, 8, 2_000
"""A batch of annealing has so many moves times tasks and edges, and so many moves at least and at most."""

_BOOKMARKS = 16
"""A schedule is known at so many turns, so that a move needs to be timed only from the last one before it."""

_HOT, _COLD = 0.12, 0.004
"""The temperature at the two ends of a cycle, as shares of the mean seconds of a task and its transfers."""

_TRIES, _TRY_FRAC = 4, 0.06
"""So many starts are annealed for a while, each for such a share of the moves that are left at first."""

_FIRST_MOVES = 4_000
_FREE = (3, 48)
"""The contention-free search has its first turn after so many; one without gain makes the next rarer."""

_EXACT_AFTER, _EXACT_LIMIT, _EXACT_LONGER = 20, 0.005, 4.0
"""Exact searches begin after so many turns, with so much of OR-tools' deterministic time, and have ever more of it."""

_EXACT_SHARE, _EXACT_PACE = 0.8, 12.0
"""An exact search may take such a share of the seconds that are left; a unit of its limit takes about so many."""

_FREE_SHARE = 0.4
"""Of the seconds that are left the contention-free search is told such a share."""


class ContendedFound(NamedTuple):
    """The best so far under contention.

    Attributes
    ----------
    timeline, moves
        The schedule and its transfers.
    lower_bound_s
        Seconds, proven for the graph.
    by
        What found it.
    """

    timeline: Timeline
    moves: Moves
    lower_bound_s: float
    by: str

    @property
    def is_optimal(self) -> bool:
        """Return whether nothing better can be, but for a millionth."""
        return self.timeline.makespan_s <= self.lower_bound_s * (1.0 + 1e-6)


class _Origin(NamedTuple):
    """A schedule under contention to anneal from."""

    makespan_s: float
    order: Ints
    device: Ints


class _Contended:
    """The best schedule so far, and how others are timed."""

    def __init__(self, p: Problem, c: Channels) -> None:
        self._p, self._c = p, c
        self.least = least_transfers(p, c)
        self._best: ContendedFound | None = None
        self._bound_s = critical_path_bound(self.least)
        self._alone_s = np.inf
        self.starts: list[_Origin] = []

    @property
    def best(self) -> ContendedFound:
        """Return the best so far; it is never longer than what one device, memory node or host makes alone."""
        assert self._best is not None
        assert self._best.timeline.makespan_s <= self._alone_s
        return self._best._replace(lower_bound_s=self._bound_s)

    def timed(
        self, order: Ints, pinned: Ints | None, by: str, seconds: Floats | None = None, *, is_start: bool = True
    ) -> Timeline:
        """Time an order under contention, and keep it if it is the best."""
        p = self._p if seconds is None else self._p._replace(seconds=seconds)
        timeline, moves = contended_schedule(p, self._c, order, pinned)
        if by.startswith(_ALONE):
            self._alone_s = min(self._alone_s, timeline.makespan_s)
        if is_start:
            self.starts.append(_Origin(timeline.makespan_s, order, timeline.device))
        if self._best is None or timeline.makespan_s < self._best.timeline.makespan_s:
            self._best = ContendedFound(timeline, moves, self._bound_s, by)
        return timeline

    def may_gain(self, free: Timeline) -> bool:
        """Return whether a schedule could be the best: under contention none is shorter than without."""
        return self._best is None or free.makespan_s < self._best.timeline.makespan_s

    def prove(self, bound_s: float) -> None:
        """Take a bound of the problem with the least transfers."""
        self._bound_s = max(self._bound_s, bound_s)


def contended_search(
    p: Problem, c: Channels, seed: int, given: Sequence[Timeline] = ()
) -> Generator[ContendedFound, float | None, None]:
    """Yield the best schedule so far after each iteration, until it is proven to be the best possible.

    Parameters
    ----------
    p
        The problem; at least one task.
    seed
        Of every random choice.
    given
        Schedules to begin with, besides the starts of the portfolio.

    Notes
    -----
    The first iteration takes all starts of the portfolio and everything on one host. Another is one order of the
    portfolio, with the devices of its contention-free schedule and with devices chosen anew; one part of the fleet;
    one clustering; then a batch of annealing under contention, or a turn of the contention-free search, the schedule
    of which is timed under contention when it is a new one. No schedule under contention is shorter than the best
    without, so the bounds of that search hold here as well.
    """
    if not (p.pred_bytes > 0.0).any() or len(set(p.node.tolist())) == 1:
        yield from _nothing_travels(p, c, seed)
        return
    found = _Contended(p, c)
    members: list[Timeline] = []
    for timeline in given:
        found.timed(order_of(p, timeline), timeline.device, "given")
    for _ in _starts(found, p, c, members):
        yield found.best
        if found.best.is_optimal:
            return
    yield from _improve(found, p, c, seed, members)


def rehearse(p: Problem, c: Channels) -> None:
    """Take each part of the search once, so that loading and compiling is over before a budget begins."""
    found = _Contended(p, c)
    for _ in _starts(found, p, c, []):
        pass
    annealing = ContendedAnnealing(p, c, lambda order, device: None)
    _Cycles(annealing, found.starts).batch(np.random.Generator(np.random.PCG64(0)), None)


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


def _starts(found: _Contended, p: Problem, c: Channels, members: list[Timeline]) -> Iterator[None]:
    """Time the starts, the contention-free ones of which are kept in `members`; pause after each iteration."""
    mean = by_rank(p, rank(p, "mean"))
    hosts, parts = parts_of_fleet(p, _hosts(c, p))
    ranked: set[bytes] = set()
    has_hosts = False
    for member in portfolio(p):
        members.append(member.timeline)
        if not member.is_start and not has_hosts:
            _take_alone(found, p, hosts)
            has_hosts = True
        if found.may_gain(member.timeline) or not member.is_start:
            found.timed(order_of(p, member.timeline), member.timeline.device, member.name)
        mark = member.keys.tobytes()
        if mark not in ranked and not member.is_start:
            ranked.add(mark)
            found.timed(by_rank(p, member.keys), None, member.name)
        if found.best.is_optimal or not member.is_start:
            yield
    took = [
        (found.timed(mean, None, "part of the fleet", held_to(p, part)).makespan_s, at) for at, part in enumerate(parts)
    ]
    yield
    few = [parts[at] for _, at in sorted(took)[:_CLUSTERED_PARTS]]
    for name, device in clusterings(p, few):
        found.timed(mean, device, name)
        yield


def _take_alone(found: _Contended, p: Problem, hosts: list[Bools]) -> None:
    """Time everything on one host, and by each planner on hosts and memory nodes that could beat the best so far."""
    nodes = [part for node in range(len(p.latency_s)) if (part := p.node == node).sum() > 1]
    for what, part in [("one host", part) for part in hosts] + [("one memory node", part) for part in nodes]:
        devices = np.flatnonzero(part)
        only = p._replace(seconds=np.ascontiguousarray(p.seconds[:, devices]), node=p.node[devices])
        if not np.isfinite(only.seconds).any(axis=1).all():
            continue
        if what == "one host":
            found.timed(by_rank(p, rank(only, "mean")), None, what, held_to(p, part))
        if len(p.order) > _PLANNED_AT_MOST or least_s(only) >= found.best.timeline.makespan_s:
            continue
        for name in PLANNERS:
            timeline = planner(name)(only)
            found.timed(order_of(p, timeline), devices[timeline.device], what)


def least_s(p: Problem) -> float:
    """Return what the devices need at the least for all tasks."""
    return max(critical_path_bound(p), float(p.seconds.min(axis=1).sum()) / len(p.node))


def _hosts(c: Channels, p: Problem) -> Ints:
    """Return the host of each memory node with devices: what stands before the first '/' of its id."""
    names = [name.partition("/")[0] for name in c.nodes[: len(p.latency_s)]]
    return np.array([names.index(name) for name in names], dtype=np.int64)


class ContendedAnnealing:
    """Annealing under contention of one schedule, moved on in batches.

    Parameters
    ----------
    p, c
        The problem and its channels.
    keep
        Takes the order and the devices of a schedule that is the best of its cycle so far.

    Notes
    -----
    A move gives a task another device, cheap ones and those of its neighbours more often, or another turn, has two
    tasks exchange their devices, or gives one device to a chain of tasks or to a cluster of tasks of one memory node.
    Three of four moves are of tasks that the makespan waits for: back from the last task, through whatever held up
    each, a task of its device, an input, or the transfer that was in the way of that. All turns are a list schedule
    with insertion on devices and links. A move that makes it longer by x is accepted with probability exp(-x / T);
    since the number that decides is drawn first, timing ends as soon as finish + least rest is beyond what is
    accepted, and it begins at the last bookmark before the first turn that is changed.
    """

    def __init__(self, p: Problem, c: Channels, keep: Callable[[Ints, Ints], object]) -> None:
        n = len(p.order)
        self.problem, self.channels, self._keep = p, c, keep
        routes = c.arrays
        priced_s = priced_seconds(p)

        def whole(count: int = n) -> Ints:
            return np.zeros(count, dtype=np.int64)

        self.walk = ContendedWalk(
            whole(), whole(), whole(), np.argsort(priced_s, axis=1, kind="stable").astype(np.int64),
            np.isfinite(p.seconds).sum(axis=1), least_tails(least_transfers(p, c)),
            np.repeat(np.arange(n), np.diff(p.pred_first)), whole(), whole(), whole(), whole(), whole(), whole(),
            np.full(2, np.inf), whole(3),
        )  # fmt: skip
        self.nothing = Moves(whole(0), whole(0), np.empty(0), np.empty(0))
        self.arrays = p, routes, state_of(p, routes), bookmarks_of(p, routes, _BOOKMARKS), self.walk
        self.moves_a_batch = int(min(_MOST_A_BATCH, max(_LEAST_A_BATCH, _STEPS_A_BATCH // (n + len(p.pred)))))
        self._done = self._moves = 0
        self._unit_s = 0.0

    @property
    def is_over(self) -> bool:
        """Return whether the cycle has had its moves."""
        return self._done >= self._moves

    def begin(self, order: Ints, device: Ints, moves: int) -> None:
        """Start a cycle of moves at a schedule."""
        w, p = self.walk, self.problem
        w.order[:], w.device[:] = order, device
        start_walk(*self.arrays, self.nothing)
        self._done, self._moves = 0, moves
        src, dst = p.node[device[p.pred]], p.node[device[w.dst]]
        apart = (src != dst) & (p.pred_bytes > 0.0)
        travel_s = np.where(apart, p.latency_s[src, dst] + p.pred_bytes * p.s_per_byte[src, dst], 0.0).sum()
        self._unit_s = float(p.seconds[np.arange(len(order)), device].sum() + travel_s) / len(order)

    def batch(self, rng: np.random.Generator) -> None:
        """Try a batch of moves."""
        before_s = self.walk.span_s[BEST]
        heat_s = _HOT * (_COLD / _HOT) ** (self._done / self._moves) * self._unit_s
        slack_s = rng.standard_exponential(self.moves_a_batch) * heat_s
        walk_contended(*self.arrays, rng.random((self.moves_a_batch, DRAWS)), slack_s, self.nothing)
        self._done += self.moves_a_batch
        if self.walk.span_s[BEST] < before_s:
            self._keep(self.walk.best_order.copy(), self.walk.best_device.copy())

    def best(self) -> _Origin:
        """Return the best schedule of this cycle."""
        return _Origin(float(self.walk.span_s[BEST]), self.walk.best_order.copy(), self.walk.best_device.copy())


class _Cycles:
    """One annealing in cycles: short ones from several starts, then longer ones from the best.

    Parameters
    ----------
    annealing
        To move on.
    starts
        To begin with, the shortest first.
    """

    def __init__(self, annealing: ContendedAnnealing, starts: Sequence[_Origin]) -> None:
        self._annealing, self._starts = annealing, starts
        self._spent, self._since_s, self._rest = 0, 0.0, np.inf
        self._course = self._cycles()

    def batch(self, rng: np.random.Generator, left_s: float | None) -> None:
        """Try a batch of moves; `left_s` are left for this and all others."""
        self._rest = self._left(left_s)
        if self._annealing.is_over:
            start, moves = next(self._course)
            self._annealing.begin(start.order, start.device, moves)
        self._annealing.batch(rng)
        self._spent += self._annealing.moves_a_batch

    def _left(self, left_s: float | None) -> float:
        """Return how many moves are left, at the pace so far."""
        if left_s is None:
            return np.inf
        if not self._spent:
            self._since_s = left_s
            return np.inf
        if self._since_s <= left_s:
            return np.inf
        return self._spent * left_s / (self._since_s - left_s)

    def _cycles(self) -> Iterator[tuple[_Origin, int]]:
        """Yield where each cycle begins and how many moves it has."""
        tried: list[_Origin] = []
        least = self._annealing.moves_a_batch
        for start in list({start.device.tobytes(): start for start in reversed(self._starts)}.values())[
            : -_TRIES - 1 : -1
        ]:
            yield start, least if self._rest == np.inf else max(least, int(_TRY_FRAC * self._rest))
            tried.append(self._annealing.best())
        long = _FIRST_MOVES
        while True:
            best = min(tried, key=lambda start: start.makespan_s)
            yield best, long if self._rest == np.inf else max(least, int(self._rest))
            tried = [best, self._annealing.best()]
            long *= 2


class _Proofs:
    """Exact searches of a small graph with its links, each longer than the one before it, until one is done.

    Their limit is OR-tools' deterministic time; how many seconds of the driver's clock that takes is learned. Between
    two of them as much time passes as the first one took.
    """

    def __init__(self, found: _Contended, p: Problem, c: Channels, seed: int) -> None:
        self._found, self._p, self._c, self._seed = found, p, c, seed
        self._limit, self._pace, self._spent = _EXACT_LIMIT, _EXACT_PACE, 0.0
        self._left_s: float | None = None
        self._next_s = np.inf
        self.is_over = not (is_there("ortools") and is_small(p, c))

    def may(self, left_s: float | None) -> bool:
        """Return whether there is time for the next one, which is made shorter to fit."""
        if self.is_over:
            return False
        if left_s is None:
            return True
        if self._left_s is not None and self._spent > 0.0:
            took_s = self._left_s - left_s
            self._pace = max(took_s / self._spent, 0.5 * _EXACT_PACE)
            self._left_s, self._next_s = None, left_s - took_s
        if left_s > self._next_s:
            return False
        fits = _EXACT_SHARE * left_s / self._pace
        if fits < (0.5 * self._limit if self._spent else self._limit):
            return False
        self._limit = min(self._limit, fits)
        return True

    def go_on(self, left_s: float | None) -> None:
        """Search once more, and take what it proves and finds."""
        best = self._found.best.timeline
        made = improve_linked(self._p, self._found.least, self._c, best, self._limit, self._seed)
        self._found.prove(min(made.bound_s, best.makespan_s))
        if made.order is not None and made.device is not None:
            self._found.timed(made.order, made.device, "exact search")
        self.is_over = made.is_done
        self._left_s, self._spent = left_s, made.spent
        self._limit *= _EXACT_LONGER


def _improve(
    found: _Contended, p: Problem, c: Channels, seed: int, members: list[Timeline]
) -> Generator[ContendedFound, float | None, None]:
    rng = np.random.Generator(np.random.PCG64(seed))
    annealing = ContendedAnnealing(p, c, lambda order, device: found.timed(order, device, "annealing", is_start=False))
    cycles = _Cycles(annealing, sorted(found.starts, key=lambda start: start.makespan_s))
    free: Generator[BestSchedule, float | None, None] | None = search_from(found.least, seed, members)
    turns = Turns(*_FREE)
    proofs = _Proofs(found, p, c, seed)
    last: Timeline | None = None
    left_s: float | None = None
    turn = 0
    while not found.best.is_optimal:
        turn += 1
        before = found.best
        if turn >= _EXACT_AFTER and (left_s is not None or turn % _EXACT_AFTER == 0) and proofs.may(left_s):
            proofs.go_on(left_s)
        elif free is not None and turns.is_due(turn):
            try:
                better = next(free) if last is None else free.send(None if left_s is None else _FREE_SHARE * left_s)
            except StopIteration:
                free = None
                continue
            found.prove(better.lower_bound_s)
            if better.timeline is not last:
                last = better.timeline
                if found.may_gain(last):
                    found.timed(order_of(p, last), last.device, better.by)
            now = found.best
            turns.took(turn, now.timeline is not before.timeline or now.lower_bound_s > before.lower_bound_s)
        else:
            cycles.batch(rng, left_s)
        left_s = yield found.best
