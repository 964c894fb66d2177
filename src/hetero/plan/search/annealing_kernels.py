"""The inner loops of annealing over the order and the devices of a schedule.

In: a `Problem`, a `Walk` and drawn numbers. Out: the walk moved on, in place. Compiled where numba is installed;
import it inside functions. It must not draw chance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hetero.plan.compiled import njit, njit_in_place
from hetero.plan.problem import Floats, Ints, Problem

__all__ = ["Walk", "begin", "critical", "walk"]


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
    ranked, choices : each task's devices, the cheapest first, and how many can run it
    tail_s : shape (n_tasks, n_nodes), s; the least from a task's finish to the end
    sinks : the tasks without successors
    path : the tasks of a critical path, from the end
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
    ranked: Ints
    choices: Ints
    tail_s: Floats
    sinks: Ints
    path: Ints
    best_order: Ints
    best_device: Ints
    span_s: Floats
    number: Ints


class Move(NamedTuple):
    """A task on its way to another position and device.

    Attributes
    ----------
    task, device : what moves, and to which device
    was, now : its position in the order, before and after
    left, right : the task that it is put behind on the device, and the one that it is put before; -1 for none
    """

    task: int
    device: int
    was: int
    now: int
    left: int
    right: int


@njit_in_place
def _travel_s(p: Problem, nbytes: float, here: int, there: int) -> float:
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
        start = max(start, w.finish_s[other] + _travel_s(p, p.pred_bytes[e], p.node[w.device[other]], here))
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
        travel_s = _travel_s(p, p.succ_bytes[e], here, p.node[d])
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
def critical(p: Problem, w: Walk) -> int:
    """Write a critical path, from the end to the start; gives its length."""
    task = w.sinks[0]
    for other in w.sinks:
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
        if w.before[task] >= 0 and w.finish_s[w.before[task]] >= start:
            cause = w.before[task]
        for e in range(p.pred_first[task], p.pred_first[task + 1]):
            other = p.pred[e]
            there = p.node[w.device[other]]
            if w.finish_s[other] + _travel_s(p, p.pred_bytes[e], there, here) >= start:
                cause = other
        if cause < 0:
            return count
        task = cause


@njit_in_place
def _room(p: Problem, w: Walk, task: int) -> tuple[int, int]:
    """Give the first and last position that a task can take without passing what it depends on."""
    low, high = 0, len(w.order) - 1
    for e in range(p.pred_first[task], p.pred_first[task + 1]):
        low = max(low, w.place[p.pred[e]] + 1)
    for e in range(p.succ_first[task], p.succ_first[task + 1]):
        high = min(high, w.place[p.succ[e]] - 1)
    return low, high


@njit_in_place
def _neighbours(w: Walk, task: int, device: int, now: int) -> tuple[int, int]:
    """Give the tasks of a device that a task would stand between at a position of the order."""
    right = w.first[device]
    if right < 0:
        return -1, -1
    at = now if w.place[task] < now else now - 1
    while at >= 0 and (w.device[w.order[at]] != device or w.order[at] == task):
        at -= 1
    left = -1
    if at >= 0:
        left = w.order[at]
        right = w.after[left]
    if right == task:
        right = w.after[task]
    return left, right


@njit_in_place
def _behind(w: Walk, move: Move, task: int) -> int:
    """Give the task behind another on its device, once a move is made."""
    if task == move.task:
        return move.right
    if task == move.left:
        return move.task
    behind: int = w.after[task]
    if behind == move.task:
        behind = w.after[behind]
    return behind


@njit_in_place
def _judged_finish_s(p: Problem, w: Walk, move: Move, task: int, number: int) -> float:
    """Give when a task would end, once a move is made."""
    d = move.device if task == move.task else w.device[task]
    if task == move.task:
        ahead = move.left
    elif task == move.right:
        ahead = move.task
    else:
        ahead = w.before[task]
        if ahead == move.task:
            ahead = w.before[move.task]
    start = 0.0
    if ahead >= 0:
        start = w.next_finish_s[ahead] if w.changed[ahead] == number else w.finish_s[ahead]
    here = p.node[d]
    for e in range(p.pred_first[task], p.pred_first[task + 1]):
        other = p.pred[e]
        end_s = w.next_finish_s[other] if w.changed[other] == number else w.finish_s[other]
        there = p.node[move.device] if other == move.task else p.node[w.device[other]]
        start = max(start, end_s + _travel_s(p, p.pred_bytes[e], there, here))
    finish: float = start + p.seconds[task, d]
    return finish


@njit_in_place
def _spreads(p: Problem, w: Walk, move: Move, task: int, number: int, cutoff_s: float) -> bool:
    """Hand a task's new finish on to those behind it; tells whether all behind the moved part ends by the cutoff."""
    high = max(move.was, move.now)
    finish = w.next_finish_s[task]
    later = task == move.task or finish > w.finish_s[task]
    d = move.device if task == move.task else w.device[task]
    here = p.node[d]
    if later and finish + w.tail_s[task, here] > cutoff_s:
        return False
    behind = _behind(w, move, task)
    if behind >= 0 and behind != move.task:
        if w.place[behind] <= high:
            w.touched[behind] = number
        elif later and finish + p.seconds[behind, d] + w.rest_s[behind] > cutoff_s:
            return False
    for e in range(p.succ_first[task], p.succ_first[task + 1]):
        child = p.succ[e]
        if w.place[child] <= high:
            w.touched[child] = number
        elif later:
            d = w.device[child]
            travel_s = _travel_s(p, p.succ_bytes[e], here, p.node[d])
            if finish + travel_s + p.seconds[child, d] + w.rest_s[child] > cutoff_s:
                return False
    return True


@njit_in_place
def _allowed(p: Problem, w: Walk, move: Move, cutoff_s: float) -> bool:
    """Tell whether the makespan would be at most the cutoff, which is no less than the makespan now.

    What is behind both positions keeps its order and devices, and so its `rest_s`: only the tasks between them whose
    inputs or devices come at another time are timed anew.
    """
    w.number[0] += 1
    number = w.number[0]
    low, high = min(move.was, move.now), max(move.was, move.now)
    for seed in (w.after[move.task], move.right):
        if seed >= 0 and low <= w.place[seed] <= high:
            w.touched[seed] = number
    for step in range(high - low + 1):
        if move.now <= move.was:
            task = move.task if step == 0 else w.order[low + step - 1]
        else:
            task = move.task if step == high - low else w.order[low + step + 1]
        if task != move.task and w.touched[task] != number:
            continue
        finish = _judged_finish_s(p, w, move, task, number)
        if finish == w.finish_s[task] and task != move.task:
            continue
        w.changed[task] = number
        w.next_finish_s[task] = finish
        if not _spreads(p, w, move, task, number, cutoff_s):
            return False
    return True


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
def _make(p: Problem, w: Walk, move: Move) -> None:
    """Make a move, and time what it changes."""
    task = move.task
    left, right = w.before[task], w.after[task]
    _link(w, left, right, w.device[task])
    _link(w, move.left, task, move.device)
    _link(w, task, move.right, move.device)
    _shift(w, move.was, move.now)
    w.device[task] = move.device
    for backwards in (False, True):
        w.number[0] += 1
        number = w.number[0]
        w.changed[task] = number
        low = high = move.now
        for seed in (task, left, move.left) if backwards else (task, right, move.right):
            if seed >= 0:
                w.touched[seed] = number
                low, high = min(low, w.place[seed]), max(high, w.place[seed])
        if backwards:
            _backward(p, w, number, high, low)
        else:
            _forward(p, w, number, low, high)
    _remember(w)


@njit_in_place
def _drawn(p: Problem, w: Walk, task: int, draw: Floats) -> Move:
    """Give the move of a task that was drawn."""
    was, device = w.place[task], w.device[task]
    if draw[2] < 0.5 and w.choices[task] > 1:
        device = w.ranked[task, int(draw[3] * draw[3] * w.choices[task])]
    low, high = _room(p, w, task)
    aim = 2.0 * draw[4] - 1.0
    span = high - was if aim > 0.0 else was - low
    reach = min(int(aim * aim * (span + 1)), span)
    now = was + reach if aim > 0.0 else was - reach
    left, right = _neighbours(w, task, device, now)
    return Move(task, device, was, now, left, right)


@njit
def walk(p: Problem, w: Walk, draws: Floats, slack_s: Floats) -> int:
    """Try a row of moves; gives how many were accepted.

    `draws` is of shape (n_moves, 5), uniform in [0, 1): which task and whether from the critical path, which
    device and whether a new one, which position. `slack_s` says by how much each may lengthen the schedule.
    """
    accepted, known, length = 0, False, 0
    n = len(w.order)
    for number in range(len(draws)):
        draw = draws[number]
        if draw[0] < 0.6:
            if not known:
                length = critical(p, w)
                known = True
            task = w.path[int(draw[1] * length)]
        else:
            task = int(draw[1] * n)
        move = _drawn(p, w, task, draw)
        if move.device == w.device[task] and move.left == w.before[task]:
            continue
        if _allowed(p, w, move, w.span_s[0] + slack_s[number]):
            _make(p, w, move)
            known = False
            accepted += 1
    return accepted
