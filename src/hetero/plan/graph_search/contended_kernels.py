"""The inner loops of the search under contention: clusters of tasks, and an annealing that moves tasks and clusters.

In: a `Problem`, `Routes`, a `ContendedWalk` and drawn numbers. Out: clusters and devices; the walk moved on, in place.
Compiled where numba is installed; import it inside functions. It must not draw chance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero.plan.compiled import njit, njit_in_place
from hetero.plan.graph_search.walk_kernels import shift
from hetero.plan.planners.contention_kernels import Bookmarks, LinkState, place_all
from hetero.plan.problem import Floats, Ints, Moves, Problem, Routes

__all__ = [
    "BEST",
    "DRAWS",
    "NOW",
    "ContendedWalk",
    "by_dominant_sequence",
    "by_edge_zeroing",
    "by_paths",
    "mapped",
    "start_walk",
    "walk_contended",
]


@njit
def by_paths(p: Problem, work_s: Floats, travel_s: Floats) -> Ints:
    """Cut the graph into paths: time after time the longest path of what is left is one (linear clustering)."""
    n = len(work_s)
    cluster = np.full(n, -1, dtype=np.int64)
    rank = np.empty(n)
    behind = np.empty(n, dtype=np.int64)
    left, number = n, 0
    while left > 0:
        head, longest = -1, -1.0
        for at in range(n - 1, -1, -1):
            i = p.order[at]
            if cluster[i] >= 0:
                continue
            rank[i], behind[i] = 0.0, -1
            for e in range(p.succ_first[i], p.succ_first[i + 1]):
                j = p.succ[e]
                if cluster[j] < 0 and travel_s[e] + rank[j] > rank[i]:
                    rank[i], behind[i] = travel_s[e] + rank[j], j
            rank[i] += work_s[i]
            if rank[i] > longest:
                head, longest = i, rank[i]
        while head >= 0:
            cluster[head] = number
            left -= 1
            head = behind[head]
        number += 1
    return cluster


@njit
def _span(p: Problem, order: Ints, work_s: Floats, travel_s: Floats, cluster: Ints, finish_s: Floats) -> float:
    """Return the makespan with a device for each cluster, on which its tasks follow one another in an order."""
    n = len(work_s)
    free_s, ready_s = np.zeros(n), np.zeros(n)
    span_s = 0.0
    for i in order:
        finish_s[i] = max(free_s[cluster[i]], ready_s[i]) + work_s[i]
        free_s[cluster[i]] = finish_s[i]
        span_s = max(span_s, finish_s[i])
        for e in range(p.succ_first[i], p.succ_first[i + 1]):
            j = p.succ[e]
            ready_s[j] = max(ready_s[j], finish_s[i] + (travel_s[e] if cluster[i] != cluster[j] else 0.0))
    return span_s


@njit
def by_edge_zeroing(p: Problem, order: Ints, work_s: Floats, travel_s: Floats, edges: Ints, source: Ints) -> Ints:
    """Join the clusters of two ends of an edge, the dearest edges first, wherever the makespan grows no longer."""
    n = len(work_s)
    cluster = np.arange(n)
    tried = cluster.copy()
    finish_s = np.empty(n)
    span_s = _span(p, order, work_s, travel_s, cluster, finish_s)
    for e in edges:
        one, other = cluster[source[e]], cluster[p.succ[e]]
        if one == other:
            continue
        for i in range(n):
            tried[i] = one if cluster[i] == other else cluster[i]
        joined_s = _span(p, order, work_s, travel_s, tried, finish_s)
        if joined_s <= span_s:
            span_s = joined_s
            cluster[:] = tried
    return cluster


@njit
def by_dominant_sequence(p: Problem, order: Ints, work_s: Floats, travel_s: Floats, source: Ints) -> Ints:
    """Join each task to the cluster of that predecessor behind which it would start first, if it gains by that."""
    n = len(work_s)
    cluster = np.arange(n)
    free_s, finish_s = np.zeros(n), np.zeros(n)
    first = np.zeros(n + 1, dtype=np.int64)
    into = np.empty(len(p.succ), dtype=np.int64)
    for e in range(len(p.succ)):
        first[p.succ[e] + 1] += 1
    for i in range(n):
        first[i + 1] += first[i]
    filled = first[:-1].copy()
    for e in range(len(p.succ)):
        into[filled[p.succ[e]]] = e
        filled[p.succ[e]] += 1
    for i in order:
        least, chosen = 0.0, i
        for at in range(first[i], first[i + 1]):
            least = max(least, finish_s[source[into[at]]] + travel_s[into[at]])
        for at in range(first[i], first[i + 1]):
            own = cluster[source[into[at]]]
            start = free_s[own]
            for other in range(first[i], first[i + 1]):
                e = into[other]
                start = max(start, finish_s[source[e]] + (travel_s[e] if cluster[source[e]] != own else 0.0))
            if start < least:
                least, chosen = start, own
        cluster[i] = chosen
        finish_s[i] = least + work_s[i]
        free_s[chosen] = finish_s[i]
    return cluster


@njit
def mapped(p: Problem, cluster: Ints, source: Ints, weight: float, allowed: Ints) -> Ints:
    """Return a device for each task: clusters go, the one with the most work first, where load + transfers are least.

    `weight` says how much a second of a transfer counts; `allowed` is 0 for a device that stays empty. A task that
    cannot run on its cluster's device goes where it is fastest.
    """
    n, m = p.seconds.shape
    work = np.zeros((n, m))
    lacks = np.zeros((n, m))
    size = np.zeros(n)
    fastest = np.empty(n, dtype=np.int64)
    for i in range(n):
        fastest[i] = np.argmin(p.seconds[i])
        for d in range(m):
            if p.seconds[i, d] < np.inf:
                work[cluster[i], d] += p.seconds[i, d]
            else:
                lacks[cluster[i], d] += 1.0
        size[cluster[i]] += p.seconds[i, fastest[i]]
    load = np.zeros(m)
    device = np.full(n, -1, dtype=np.int64)
    home = np.full(n, -1, dtype=np.int64)
    price = np.empty(m)
    for own in np.argsort(-size):
        if size[own] <= 0.0:
            break
        price[:] = load + work[own] + 1e6 * lacks[own] * size.max()
        for e in range(len(p.succ)):
            a, b = cluster[source[e]], cluster[p.succ[e]]
            if a == b or p.succ_bytes[e] <= 0.0 or (a != own and b != own):
                continue
            other = home[b if a == own else a]
            if other >= 0:
                for d in range(m):
                    here, there = (p.node[d], p.node[other]) if a == own else (p.node[other], p.node[d])
                    if here != there:
                        price[d] += weight * (p.latency_s[here, there] + p.succ_bytes[e] * p.s_per_byte[here, there])
        chosen = -1
        for d in range(m):
            if allowed[d] > 0 and (chosen < 0 or price[d] < price[chosen]):
                chosen = d
        home[own] = chosen
        load[chosen] += work[own, chosen]
    for i in range(n):
        device[i] = home[cluster[i]]
        if device[i] < 0 or p.seconds[i, device[i]] == np.inf:
            device[i] = fastest[i]
    return device


NOW, BEST = range(2)
"""What a walk's `span_s` holds: the makespan now, and the best of all."""

_CRITICAL, _CHANGED = range(2)
"""What a walk's `counts` holds: the number of critical tasks, and of the tasks that a move gave another device."""

DRAWS = 7
"""Numbers that a move takes: the task and whether it is critical, the kind, the device and how it is chosen, how
many tasks go along, the new turn."""

_CRITICAL_FRAC = 0.75
_ONE_FRAC, _TURN_FRAC, _EXCHANGED_FRAC, _CHAIN_FRAC = 0.42, 0.62, 0.72, 0.86
"""Up to these shares a move is of one task, of its turn alone, an exchange of two tasks, a chain; else a cluster."""

_NEAR_FRAC = 0.5


class ContendedWalk(NamedTuple):
    """Where an annealing under contention stands.

    Attributes
    ----------
    order, place, device
        The turns of the tasks, each task's turn, and its device.
    ranked, choices
        Each task's devices, the cheapest first, and how many can run it.
    tail_s
        Shape (n_tasks, n_nodes), s; the least from a task's finish on a memory node to the end.
    dst
        The task that each edge of `Problem.pred` leads into.
    critical
        The tasks that the makespan waits for.
    changed, was
        The tasks that a move gave another device, and which they had.
    marked
        Shape (n_tasks,); the number of the last move that gathered a task.
    best_order, best_device
        The best so far.
    span_s
        Shape (2,), s; see `NOW`.
    counts
        Shape (3,); see `_CRITICAL`; the last is the number of the move.
    """

    order: Ints
    place: Ints
    device: Ints
    ranked: Ints
    choices: Ints
    tail_s: Floats
    dst: Ints
    critical: Ints
    changed: Ints
    was: Ints
    marked: Ints
    best_order: Ints
    best_device: Ints
    span_s: Floats
    counts: Ints


@njit_in_place
def _trace(p: Problem, w: ContendedWalk, c: Routes, s: LinkState) -> None:
    """Write down the tasks that the last one waits for: through devices, inputs, and transfers that were in the way."""
    n = len(w.order)
    task = 0
    for other in range(n):
        if s.finish_s[other] > s.finish_s[task]:
            task = other
    many = 0
    while task >= 0 and many < n:
        w.critical[many] = task
        many += 1
        cause = s.cause[task]
        if cause >= -1:
            task = cause
            continue
        e = -2 - cause
        before, item = p.pred[e], c.pred_item[e]
        here, there = p.node[s.device[before]], p.node[s.device[task]]
        task = before
        if item >= 0 and here != there:
            waited = s.behind[item * c.n_nodes + there]
            if waited >= 0:
                if many < n:
                    w.critical[many] = before
                    many += 1
                if many < n and w.dst[waited] != w.critical[many - 1]:
                    w.critical[many] = w.dst[waited]
                    many += 1
                task = p.pred[waited]
    w.counts[_CRITICAL] = many


@njit_in_place
def _turn(p: Problem, w: ContendedWalk, task: int, draw: float) -> int:
    """Return a drawn turn that a task can take without passing what it depends on, its neighbours most often."""
    was = w.place[task]
    low, high = 0, len(w.order) - 1
    for e in range(p.pred_first[task], p.pred_first[task + 1]):
        low = max(low, w.place[p.pred[e]] + 1)
    for e in range(p.succ_first[task], p.succ_first[task + 1]):
        high = min(high, w.place[p.succ[e]] - 1)
    aim = 2.0 * draw - 1.0
    if aim > 0.0:
        turn: int = was + min(int(aim * aim * (high - was + 1)), high - was)
    else:
        turn = was - min(int(aim * aim * (was - low + 1)), was - low)
    return turn


@njit_in_place
def _neighbour(p: Problem, task: int, draw: float) -> int:
    """Return a drawn predecessor or successor of a task, -1 where it has none."""
    before = p.pred_first[task + 1] - p.pred_first[task]
    behind = p.succ_first[task + 1] - p.succ_first[task]
    if before + behind == 0:
        return -1
    at = int(draw * (before + behind))
    if at < before:
        other: int = p.pred[p.pred_first[task] + at]
    else:
        other = p.succ[p.succ_first[task] + at - before]
    return other


@njit_in_place
def _new_device(p: Problem, w: ContendedWalk, task: int, how: float, draw: float) -> int:
    """Return the device of a neighbour, or one of the cheap ones."""
    if how < _NEAR_FRAC:
        other = _neighbour(p, task, how / _NEAR_FRAC)
        if other >= 0 and w.device[other] != w.device[task]:
            near: int = w.device[other]
            return near
    device: int = w.ranked[task, int(draw * draw * w.choices[task])]
    return device


@njit_in_place
def _give(p: Problem, w: ContendedWalk, task: int, device: int) -> None:
    """Move a task to another device, if it can run there, and remember the one that it had."""
    if w.device[task] != device and p.seconds[task, device] < np.inf:
        at = w.counts[_CHANGED]
        w.changed[at], w.was[at] = task, w.device[task]
        w.device[task] = device
        w.counts[_CHANGED] = at + 1


@njit_in_place
def _give_chain(p: Problem, w: ContendedWalk, task: int, device: int, along: int) -> None:
    """Assign a device to a task and to those behind it, always on to the successor that reads the most."""
    for _ in range(along):
        _give(p, w, task, device)
        most, chosen = -1.0, -1
        for e in range(p.succ_first[task], p.succ_first[task + 1]):
            if p.succ_bytes[e] > most or (p.succ_bytes[e] == most and w.place[p.succ[e]] < w.place[chosen]):
                most, chosen = p.succ_bytes[e], p.succ[e]
        if chosen < 0:
            return
        task = chosen


@njit_in_place
def _give_cluster(p: Problem, w: ContendedWalk, task: int, device: int, along: int) -> None:
    """Assign a device to a task and to those around it that are on the same memory node now, as far as edges lead."""
    home, number = p.node[w.device[task]], w.counts[2]
    w.counts[2] += 1
    number += 1
    w.marked[task] = number
    _give(p, w, task, device)
    first = w.counts[_CHANGED] - 1
    while 0 <= first < w.counts[_CHANGED] and w.counts[_CHANGED] < along:
        at = w.changed[first]
        first += 1
        for e in range(p.pred_first[at], p.pred_first[at + 1]):
            other = p.pred[e]
            if w.marked[other] != number and p.node[w.device[other]] == home and w.counts[_CHANGED] < along:
                w.marked[other] = number
                _give(p, w, other, device)
        for e in range(p.succ_first[at], p.succ_first[at + 1]):
            other = p.succ[e]
            if w.marked[other] != number and p.node[w.device[other]] == home and w.counts[_CHANGED] < along:
                w.marked[other] = number
                _give(p, w, other, device)


@njit_in_place
def _tried(
    p: Problem,
    c: Routes,
    s: LinkState,
    b: Bookmarks,
    w: ContendedWalk,
    draw: Floats,
    row: int,
    slack_s: float,
    no: Moves,
) -> bool:
    """Make a drawn move, if the makespan grows by no more than the slack; tells whether."""
    n = len(w.order)
    if draw[row, 0] < _CRITICAL_FRAC:
        task = w.critical[int(draw[row, 1] * w.counts[_CRITICAL])]
    else:
        task = int(draw[row, 1] * n)
    kind = draw[row, 2]
    w.counts[_CHANGED] = 0
    was = now = w.place[task]
    if kind < _ONE_FRAC:
        _give(p, w, task, _new_device(p, w, task, draw[row, 3], draw[row, 4]))
        if draw[row, 5] < 0.3:
            now = _turn(p, w, task, draw[row, 6])
    elif kind < _TURN_FRAC:
        now = _turn(p, w, task, draw[row, 6])
    elif kind < _EXCHANGED_FRAC:
        other = w.order[_turn(p, w, task, draw[row, 6])]
        device = w.device[task]
        if p.seconds[task, w.device[other]] < np.inf and p.seconds[other, device] < np.inf:
            _give(p, w, task, w.device[other])
            _give(p, w, other, device)
    else:
        along = 2 + int(draw[row, 5] ** 3 * n)
        device = _new_device(p, w, task, draw[row, 3], draw[row, 4])
        if kind < _CHAIN_FRAC:
            _give_chain(p, w, task, device, along)
        else:
            _give_cluster(p, w, task, device, along)
    if w.counts[_CHANGED] == 0 and now == was:
        return False
    since = min(was, now) if now != was else n
    for at in range(w.counts[_CHANGED]):
        since = min(since, w.place[w.changed[at]])
    if now != was:
        shift(w, was, now)
    span_s = place_all(p, c, s, b, w.order, w.device, since, w.tail_s, w.span_s[NOW] + slack_s, no)
    if span_s < np.inf:
        w.span_s[NOW] = span_s
        return True
    if now != was:
        shift(w, now, was)
    for at in range(w.counts[_CHANGED] - 1, -1, -1):
        w.device[w.changed[at]] = w.was[at]
    return False


@njit_in_place
def _keep(w: ContendedWalk) -> None:
    if w.span_s[NOW] < w.span_s[BEST]:
        w.span_s[BEST] = w.span_s[NOW]
        for at in range(len(w.order)):
            w.best_order[at], w.best_device[at] = w.order[at], w.device[at]


@njit
def start_walk(p: Problem, c: Routes, s: LinkState, b: Bookmarks, w: ContendedWalk, no: Moves) -> float:
    """Time the order and the devices that the walk was given; returns the makespan."""
    for at in range(len(w.order)):
        w.place[w.order[at]] = at
    b.known[0] = 0
    w.span_s[NOW] = place_all(p, c, s, b, w.order, w.device, len(w.order), w.tail_s, np.inf, no)
    _trace(p, w, c, s)
    w.span_s[BEST] = np.inf
    _keep(w)
    return float(w.span_s[NOW])


@njit
def walk_contended(
    p: Problem, c: Routes, s: LinkState, b: Bookmarks, w: ContendedWalk, draws: Floats, slack_s: Floats, no: Moves
) -> int:
    """Try a row of moves; returns how many were made.

    `draws` is of shape (n_moves, `DRAWS`), uniform in [0, 1); `slack_s` says by how much each may lengthen the
    schedule; `no` has room for no transfer.
    """
    made = 0
    for row in range(len(draws)):
        if _tried(p, c, s, b, w, draws, row, slack_s[row], no):
            made += 1
            _trace(p, w, c, s)
            _keep(w)
    return made
