"""Where an annealing stands: the times of a schedule in both directions, kept up to date move by move.

In: a `Problem`, a `Walk`, a move to make. Out: the walk moved on, in place. Compiled where numba is installed;
import it inside functions. It must not judge a move.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero.plan.compiled import njit, njit_in_place
from hetero.plan.problem import Floats, Ints, Problem

__all__ = ["Move", "Walk", "begin", "make", "travel"]


class Walk(NamedTuple):
    """Where an annealing stands.

    Attributes
    ----------
    order, place : a topological order, and each task's position in it
    device, start_s, finish_s : the schedule: each task starts as early as it can in the order
    rest_s : shape (n_tasks,), s; from a task's finish to the end, along the longest path through tasks and devices
    before, after : the task before and behind each on its device, -1 for none
    first : shape (n_devices,); the first task of each device, -1 for none
    next_finish_s : the finish times of the move that is being judged
    touched, changed : shape (n_tasks,); the number of the last move that a task had to be timed anew for, and of the
        last that changed its finish
    priced_s : shape (n_tasks, n_devices), s; the seconds of each task, at the price of each device
    ranked, choices : each task's devices, the cheapest first, and how many can run it
    tail_s : shape (n_tasks, n_nodes), s; the least from a task's finish to the end
    sinks : the tasks without successors
    best_order, best_device : the best schedule so far
    span_s : shape (2,), s; the makespan now, and the best
    number : shape (1,); of the last move
    """

    order: Ints
    place: Ints
    device: Ints
    start_s: Floats
    finish_s: Floats
    rest_s: Floats
    before: Ints
    after: Ints
    first: Ints
    next_finish_s: Floats
    touched: Ints
    changed: Ints
    priced_s: Floats
    ranked: Ints
    choices: Ints
    tail_s: Floats
    sinks: Ints
    best_order: Ints
    best_device: Ints
    span_s: Floats
    number: Ints


class Move(NamedTuple):
    """A task on its way to another position and device, or two that change places.

    Attributes
    ----------
    task, device : what moves, and to which device
    was, now : its position in the order, before and after
    left, right : the task that it is put behind on the device, and the one that it is put before; -1 for none
    other : the task that it changes places with, -1 for none
    """

    task: int
    device: int
    was: int
    now: int
    left: int
    right: int
    other: int


@njit_in_place
def travel(p: Problem, nbytes: float, here: int, there: int) -> float:
    """Give the s of a transfer between two memory nodes."""
    if here == there or nbytes <= 0.0:
        return 0.0
    travel_s: float = p.latency_s[here, there] + nbytes * p.s_per_byte[here, there]
    return travel_s


@njit_in_place
def _timed(p: Problem, w: Walk, task: int) -> None:
    """Start a task as early as its inputs and the task before it on its device allow."""
    d = w.device[task]
    here = p.node[d]
    start = 0.0
    if w.before[task] >= 0:
        start = w.finish_s[w.before[task]]
    for e in range(p.pred_first[task], p.pred_first[task + 1]):
        other = p.pred[e]
        start = max(start, w.finish_s[other] + travel(p, p.pred_bytes[e], p.node[w.device[other]], here))
    w.start_s[task] = start
    w.finish_s[task] = start + p.seconds[task, d]


@njit_in_place
def _rest(p: Problem, w: Walk, task: int) -> float:
    """Give the s from a task's finish to the end."""
    rest = 0.0
    here = p.node[w.device[task]]
    behind = w.after[task]
    if behind >= 0:
        rest = p.seconds[behind, w.device[behind]] + w.rest_s[behind]
    for e in range(p.succ_first[task], p.succ_first[task + 1]):
        child = p.succ[e]
        d = w.device[child]
        travel_s = travel(p, p.succ_bytes[e], here, p.node[d])
        rest = max(rest, travel_s + p.seconds[child, d] + w.rest_s[child])
    return rest


@njit_in_place
def _span_s(w: Walk) -> float:
    span_s = 0.0
    for task in w.sinks:
        span_s = max(span_s, w.finish_s[task])
    return span_s


@njit_in_place
def _remember(w: Walk) -> None:
    w.span_s[0] = _span_s(w)
    if w.span_s[0] < w.span_s[1]:
        w.span_s[1] = w.span_s[0]
        for at in range(len(w.order)):
            w.best_order[at] = w.order[at]
            w.best_device[at] = w.device[at]


@njit
def begin(p: Problem, w: Walk) -> float:
    """Time the order and the devices that the walk was given; gives the makespan."""
    n = len(w.order)
    last = np.full(p.seconds.shape[1], -1, dtype=np.int64)
    w.first[:] = -1
    for at in range(n):
        task = w.order[at]
        d = w.device[task]
        w.place[task] = at
        w.before[task], w.after[task] = last[d], -1
        if last[d] < 0:
            w.first[d] = task
        else:
            w.after[last[d]] = task
        last[d] = task
        _timed(p, w, task)
    for at in range(n - 1, -1, -1):
        w.rest_s[w.order[at]] = _rest(p, w, w.order[at])
    _remember(w)
    return float(w.span_s[0])


@njit_in_place
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


@njit_in_place
def _link(w: Walk, left: int, right: int, device: int) -> None:
    if left >= 0:
        w.after[left] = right
    else:
        w.first[device] = right
    if right >= 0:
        w.before[right] = left


@njit_in_place
def _relink(w: Walk, move: Move) -> None:
    """Write the order, the devices and the neighbours on them that a move makes."""
    task, other = move.task, move.other
    device, left, right = w.device[task], w.before[task], w.after[task]
    if other < 0:
        _link(w, left, right, device)
        _shift(w, move.was, move.now)
    else:
        w.device[other] = device
        _link(w, left, other, device)
        _link(w, other, right, device)
        w.order[move.was], w.place[other] = other, move.was
        w.order[move.now], w.place[task] = task, move.now
    w.device[task] = move.device
    _link(w, move.left, task, move.device)
    _link(w, task, move.right, move.device)


@njit_in_place
def _forward(p: Problem, w: Walk, number: int, at: int, last: int) -> None:
    """Time the marked tasks anew, and those behind them that this changes."""
    while at <= last:
        task = w.order[at]
        at += 1
        if w.touched[task] != number:
            continue
        finish = w.finish_s[task]
        _timed(p, w, task)
        if w.finish_s[task] == finish and w.changed[task] != number:
            continue
        behind = w.after[task]
        if behind >= 0:
            w.touched[behind] = number
            last = max(last, w.place[behind])
        for e in range(p.succ_first[task], p.succ_first[task + 1]):
            w.touched[p.succ[e]] = number
            last = max(last, w.place[p.succ[e]])


@njit_in_place
def _backward(p: Problem, w: Walk, number: int, at: int, last: int) -> None:
    """Find the time to the end anew for the marked tasks, and those ahead of them that this changes."""
    while at >= last:
        task = w.order[at]
        at -= 1
        if w.touched[task] != number:
            continue
        rest = _rest(p, w, task)
        if rest == w.rest_s[task] and w.changed[task] != number:
            continue
        w.rest_s[task] = rest
        ahead = w.before[task]
        if ahead >= 0:
            w.touched[ahead] = number
            last = min(last, w.place[ahead])
        for e in range(p.pred_first[task], p.pred_first[task + 1]):
            w.touched[p.pred[e]] = number
            last = min(last, w.place[p.pred[e]])


@njit_in_place
def make(p: Problem, w: Walk, move: Move) -> None:
    """Make a move, and time what it changes."""
    left, right = w.before[move.task], w.after[move.task]
    _relink(w, move)
    for backwards in (False, True):
        w.number[0] += 1
        number = w.number[0]
        low = high = move.now
        for seed in (move.task, move.other, left if backwards else right, move.left if backwards else move.right):
            if seed >= 0:
                w.touched[seed] = number
                low, high = min(low, w.place[seed]), max(high, w.place[seed])
        w.changed[move.task] = number
        if move.other >= 0:
            w.changed[move.other] = number
        if backwards:
            _backward(p, w, number, high, low)
        else:
            _forward(p, w, number, low, high)
    _remember(w)
