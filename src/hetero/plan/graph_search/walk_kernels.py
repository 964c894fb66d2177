"""Where an annealing stands: an order with the times of its tasks from the front and from the back.

In: a `Problem`, a `Walk`, a move to make. Out: the walk moved on, in place. Compiled where numba is installed;
import it inside functions. It must not judge a move.

A move changes when tasks behind it end and how far it is to the end for those ahead of it. Neither is followed up at
once: finish times are kept right up to a position of the order and times to the end from a position on, and both are
moved along when they are asked for. A walk that stays near its last move so pays for a few tasks, not for all.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from hetero.plan.compiled import njit, njit_in_place
from hetero.plan.problem import Floats, Ints, Problem

__all__ = [
    "AT", "BEST", "HEADS", "NOW", "NUMBER", "SEEN", "STEP", "TAILS", "UNTIL", "Move", "Walk", "begin", "find_heads",
    "find_tails", "make", "settle", "shift", "travel",
]  # fmt: skip

NUMBER, AT, STEP, HEADS, TAILS, UNTIL = range(6)
"""What a walk's `state` holds: the number of the last judged move; the position where it is and the step to the next;
the last position up to which finish times are right and the first from which times to the end are; how many more
steps the longest path seen is collected over."""

NOW, BEST, SEEN = range(3)
"""What a walk's `span_s` holds: the makespan now, the best of all, the longest path seen of late."""


class Walk(NamedTuple):
    """Where an annealing stands.

    Attributes
    ----------
    order, place
        A topological order, and each task's position in it.
    device, node, seconds
        Each task's device, the memory node of that, and the s that it takes there.
    finish_s
        Seconds; each task starts as early as it can in the order; right up to the position `state[HEADS]`.
    rest_s
        Seconds; from a task's finish to the end, along the longest path through tasks and devices; right from the
        position `state[TAILS]` on.
    before, after
        The task before and behind each on its device, -1 for none.
    first
        Shape (n_devices,); the first task of each device, -1 for none.
    next_finish_s
        The finish times of the move that is being judged.
    touched, changed
        Shape (n_tasks,); the number of the last move that a task had to be timed anew for, and of the last that changed
        its finish.
    priced_s
        Shape (n_tasks, n_devices), s; the seconds of each task, at the price of each device.
    ranked, choices
        Each task's devices, the cheapest first, and how many can run it.
    tail_s
        Shape (n_tasks, n_nodes), s; the least from a task's finish to the end.
    sources, sinks
        The tasks without predecessors and those without successors.
    best_order, best_device
        The best schedule so far.
    span_s
        Shape (3,), s; see `NOW`.
    state
        Shape (6,); see `NUMBER`.
    """

    order: Ints
    place: Ints
    device: Ints
    node: Ints
    seconds: Floats
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
    sources: Ints
    sinks: Ints
    best_order: Ints
    best_device: Ints
    span_s: Floats
    state: Ints


class Move(NamedTuple):
    """A task on its way to another position and device, or two that change places.

    Attributes
    ----------
    task, device
        What moves, and to which device.
    was, now
        Its position in the order, before and after.
    left, right
        The task that it is put behind on the device, and the one that it is put before; -1 for none.
    other
        The task that it changes places with, -1 for none.
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
    """Return the s of a transfer between two memory nodes; within one both prices are 0."""
    if nbytes <= 0.0:
        return 0.0
    travel_s: float = p.latency_s[here, there] + nbytes * p.s_per_byte[here, there]
    return travel_s


@njit_in_place
def _finish(p: Problem, w: Walk, task: int) -> float:
    """Return the finish of a task that starts as early as its inputs and the task before it on its device allow."""
    here = w.node[task]
    start = 0.0
    if w.before[task] >= 0:
        start = w.finish_s[w.before[task]]
    for e in range(p.pred_first[task], p.pred_first[task + 1]):
        other = p.pred[e]
        start = max(start, w.finish_s[other] + travel(p, p.pred_bytes[e], w.node[other], here))
    finish: float = start + w.seconds[task]
    return finish


@njit_in_place
def _rest(p: Problem, w: Walk, task: int) -> float:
    """Return the s from a task's finish to the end."""
    rest = 0.0
    here = w.node[task]
    behind = w.after[task]
    if behind >= 0:
        rest = w.seconds[behind] + w.rest_s[behind]
    for e in range(p.succ_first[task], p.succ_first[task + 1]):
        child = p.succ[e]
        rest = max(rest, travel(p, p.succ_bytes[e], here, w.node[child]) + w.seconds[child] + w.rest_s[child])
    return rest


@njit_in_place
def find_heads(p: Problem, w: Walk, at: int) -> None:
    """Make the finish times right up to a position."""
    while w.state[HEADS] < at:
        w.state[HEADS] += 1
        task = w.order[w.state[HEADS]]
        w.finish_s[task] = _finish(p, w, task)


@njit_in_place
def find_tails(p: Problem, w: Walk, at: int) -> None:
    """Make the times to the end right from a position on."""
    while w.state[TAILS] > at:
        w.state[TAILS] -= 1
        task = w.order[w.state[TAILS]]
        w.rest_s[task] = _rest(p, w, task)


@njit_in_place
def settle(p: Problem, w: Walk, forward: bool) -> None:
    """Find the makespan from all finish times or from all times to the end, and keep the schedule if it is the best."""
    span_s = 0.0
    if not forward:
        find_tails(p, w, 0)
        for task in w.sources:
            span_s = max(span_s, w.seconds[task] + w.rest_s[task])
    if forward or span_s < w.span_s[BEST]:
        find_heads(p, w, len(w.order) - 1)
        span_s = 0.0
        for task in w.sinks:
            span_s = max(span_s, w.finish_s[task])
    w.span_s[NOW] = w.span_s[SEEN] = span_s
    if span_s < w.span_s[BEST]:
        w.span_s[BEST] = span_s
        for at in range(len(w.order)):
            w.best_order[at] = w.order[at]
            w.best_device[at] = w.device[at]


@njit
def begin(p: Problem, w: Walk) -> float:
    """Time the order and the devices that the walk was given; returns the makespan."""
    n = len(w.order)
    last = np.full(p.seconds.shape[1], -1, dtype=np.int64)
    w.first[:] = -1
    for at in range(n):
        task = w.order[at]
        d = w.device[task]
        w.place[task], w.node[task], w.seconds[task] = at, p.node[d], p.seconds[task, d]
        w.before[task], w.after[task] = last[d], -1
        if last[d] < 0:
            w.first[d] = task
        else:
            w.after[last[d]] = task
        last[d] = task
    w.state[AT], w.state[STEP], w.state[HEADS], w.state[TAILS] = 0, 1, -1, n
    find_tails(p, w, 0)
    settle(p, w, True)
    return float(w.span_s[NOW])


class _Turns(Protocol):
    """Tasks in an order: a task for each turn, and a turn for each task."""

    @property
    def order(self) -> Ints: ...
    @property
    def place(self) -> Ints: ...


@njit_in_place
def shift(turns: _Turns, was: int, now: int) -> None:
    """Put the task at one turn of an order to another, those between them one on."""
    order, place = turns.order, turns.place
    task = order[was]
    step = 1 if now > was else -1
    at = was
    while at != now:
        other = order[at + step]
        order[at] = other
        place[other] = at
        at += step
    order[now] = task
    place[task] = now


@njit_in_place
def _link(w: Walk, left: int, right: int, device: int) -> None:
    if left >= 0:
        w.after[left] = right
    else:
        w.first[device] = right
    if right >= 0:
        w.before[right] = left


@njit_in_place
def _relink(p: Problem, w: Walk, move: Move) -> None:
    """Write the order, the devices and the neighbours on them that a move makes."""
    task, other = move.task, move.other
    device, left, right = w.device[task], w.before[task], w.after[task]
    if other < 0:
        _link(w, left, right, device)
        shift(w, move.was, move.now)
    else:
        w.device[other], w.node[other], w.seconds[other] = device, p.node[device], p.seconds[other, device]
        _link(w, left, other, device)
        _link(w, other, right, device)
        w.order[move.was], w.place[other] = other, move.was
        w.order[move.now], w.place[task] = task, move.now
    w.device[task], w.node[task] = move.device, p.node[move.device]
    w.seconds[task] = p.seconds[task, move.device]
    _link(w, move.left, task, move.device)
    _link(w, task, move.right, move.device)


@njit_in_place
def make(p: Problem, w: Walk, move: Move) -> None:
    """Make the move that was judged last."""
    _relink(p, w, move)
    low, high = min(move.was, move.now), max(move.was, move.now)
    for at in range(low, high + 1):
        task = w.order[at]
        if w.changed[task] == w.state[NUMBER]:
            w.finish_s[task] = w.next_finish_s[task]
    w.state[HEADS], w.state[TAILS] = high, high + 1
