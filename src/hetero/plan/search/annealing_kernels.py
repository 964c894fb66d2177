"""The inner loops of annealing over the order and the devices of a schedule.

In: a `Problem`, a `Walk` and drawn numbers. Out: the walk moved on, in place. Compiled where numba is installed;
import it inside functions. It must not draw chance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero.plan.compiled import njit
from hetero.plan.problem import Floats, Ints, Problem

__all__ = ["MARK", "Walk", "begin", "critical", "walk"]

MARK = 32
"""Every so many positions of the order the state of the devices is kept, so that a move is not judged from zero."""


class Walk(NamedTuple):
    """Where an annealing stands.

    Attributes
    ----------
    order, place : a topological order, and each task's position in it
    device, start_s, finish_s : the schedule: each task starts as early as it can in the order
    next_start_s, next_finish_s : the same for the move that is being judged
    free_s, next_free_s : shape (n_marks, n_devices + 1), s; when each device is free at every `MARK`th position,
        and the latest finish so far
    ranked, choices : each task's devices, the cheapest first, and how many can run it
    tail_s : shape (n_tasks, n_nodes), s; the least from a task's finish to the end
    path : the tasks of a critical path, from the end
    best_order, best_device : the best schedule so far
    span_s : shape (2,), s; the makespan now, and the best
    """

    order: Ints
    place: Ints
    device: Ints
    start_s: Floats
    finish_s: Floats
    next_start_s: Floats
    next_finish_s: Floats
    free_s: Floats
    next_free_s: Floats
    ranked: Ints
    choices: Ints
    tail_s: Floats
    path: Ints
    best_order: Ints
    best_device: Ints
    span_s: Floats


@njit
def _judge(p: Problem, w: Walk, since: int, cutoff_s: float) -> float:
    """Time the order from a position on; gives the makespan, or inf once it is sure to be beyond the cutoff."""
    n, m = p.seconds.shape
    mark = since // MARK
    free_s = w.free_s[mark].copy()
    for at in range(mark * MARK, since):
        task = w.order[at]
        free_s[w.device[task]] = w.finish_s[task]
        free_s[m] = max(free_s[m], w.finish_s[task])
    for at in range(since, n):
        if at % MARK == 0 and at > since:
            w.next_free_s[at // MARK] = free_s
        task = w.order[at]
        d = w.device[task]
        here = p.node[d]
        start = free_s[d]
        for e in range(p.pred_first[task], p.pred_first[task + 1]):
            before = p.pred[e]
            end_s = w.next_finish_s[before] if w.place[before] >= since else w.finish_s[before]
            there = p.node[w.device[before]]
            if there != here and p.pred_bytes[e] > 0.0:
                end_s = end_s + (p.latency_s[there, here] + p.pred_bytes[e] * p.s_per_byte[there, here])
            start = max(start, end_s)
        finish = start + p.seconds[task, d]
        if finish + w.tail_s[task, here] > cutoff_s:
            return np.inf
        w.next_start_s[task] = start
        w.next_finish_s[task] = finish
        free_s[d] = finish
        free_s[m] = max(free_s[m], finish)
    makespan_s: float = free_s[m]
    return makespan_s


@njit
def _accept(w: Walk, since: int, makespan_s: float) -> None:
    for at in range(since, len(w.order)):
        task = w.order[at]
        w.start_s[task] = w.next_start_s[task]
        w.finish_s[task] = w.next_finish_s[task]
    for mark in range(since // MARK + 1, len(w.free_s)):
        w.free_s[mark] = w.next_free_s[mark]
    w.span_s[0] = makespan_s
    if makespan_s < w.span_s[1]:
        w.span_s[1] = makespan_s
        w.best_order[:] = w.order
        w.best_device[:] = w.device


@njit
def begin(p: Problem, w: Walk) -> float:
    """Time the order and the devices that the walk was given; gives the makespan."""
    for at in range(len(w.order)):
        w.place[w.order[at]] = at
    w.free_s[:] = 0.0
    makespan_s = _judge(p, w, 0, np.inf)
    _accept(w, 0, makespan_s)
    return makespan_s


@njit
def critical(p: Problem, w: Walk) -> int:
    """Write a critical path, from the end to the start; gives its length."""
    task = 0
    for other in range(len(w.order)):
        if w.finish_s[other] > w.finish_s[task]:
            task = other
    count = 0
    while True:
        w.path[count] = task
        count += 1
        start, here = w.start_s[task], p.node[w.device[task]]
        if start <= 0.0:
            return count
        cause = -1
        for at in range(w.place[task] - 1, -1, -1):
            other = w.order[at]
            if w.device[other] == w.device[task]:
                if w.finish_s[other] >= start:
                    cause = other
                break
        for e in range(p.pred_first[task], p.pred_first[task + 1]):
            before = p.pred[e]
            end_s, there = w.finish_s[before], p.node[w.device[before]]
            if there != here and p.pred_bytes[e] > 0.0:
                end_s = end_s + (p.latency_s[there, here] + p.pred_bytes[e] * p.s_per_byte[there, here])
            if end_s >= start:
                cause = before
        if cause < 0:
            return count
        task = cause


@njit
def _shift(w: Walk, was: int, now: int) -> None:
    """Put the task at one position of the order to another, those between them one on."""
    task = w.order[was]
    step = 1 if now > was else -1
    at = was
    while at != now:
        other = w.order[at + step]
        w.order[at] = other
        w.place[other] = at
        at += step
    w.order[now] = task
    w.place[task] = now


@njit
def _room(p: Problem, w: Walk, task: int) -> tuple[int, int]:
    """Give the first and last position that a task can take without passing what it depends on."""
    low, high = 0, len(w.order) - 1
    for e in range(p.pred_first[task], p.pred_first[task + 1]):
        low = max(low, w.place[p.pred[e]] + 1)
    for e in range(p.succ_first[task], p.succ_first[task + 1]):
        high = min(high, w.place[p.succ[e]] - 1)
    return low, high


@njit
def _passes(w: Walk, was: int, now: int) -> bool:
    """Tell whether a task on its way passes another of its device; else the move changes nothing."""
    device = w.device[w.order[was]]
    step = 1 if now > was else -1
    at = was
    while at != now:
        at += step
        if w.device[w.order[at]] == device:
            return True
    return False


@njit
def walk(p: Problem, w: Walk, draws: Floats, slack_s: Floats) -> int:
    """Try a row of moves; gives how many were accepted.

    `draws` is of shape (n_moves, 5), uniform in [0, 1): which task and whether from the critical path, which
    device and whether a new one, which position. `slack_s` says by how much each may lengthen the schedule.
    """
    accepted, known, length = 0, False, 0
    n = len(w.order)
    for move in range(len(draws)):
        if draws[move, 0] < 0.6:
            if not known:
                length = critical(p, w)
                known = True
            task = w.path[int(draws[move, 1] * length)]
        else:
            task = int(draws[move, 1] * n)
        was, old = w.place[task], w.device[task]
        new = old
        if draws[move, 2] < 0.5 and w.choices[task] > 1:
            new = w.ranked[task, int(draws[move, 3] * draws[move, 3] * w.choices[task])]
        low, high = _room(p, w, task)
        aim = 2.0 * draws[move, 4] - 1.0
        span = high - was if aim > 0.0 else was - low
        reach = int(aim * aim * (span + 1))
        now = was + min(reach, span) if aim > 0.0 else was - min(reach, span)
        if new == old and not _passes(w, was, now):
            continue
        _shift(w, was, now)
        w.device[task] = new
        since = min(was, now)
        makespan_s = _judge(p, w, since, w.span_s[0] + slack_s[move])
        if makespan_s <= w.span_s[0] + slack_s[move]:
            _accept(w, since, makespan_s)
            known = False
            accepted += 1
        else:
            w.device[task] = old
            _shift(w, now, was)
    return accepted
