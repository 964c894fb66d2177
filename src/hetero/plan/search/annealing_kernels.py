"""The inner loops of annealing over the order and the devices of a schedule.

In: a `Problem`, a `Walk` and drawn numbers. Out: the walk moved on, in place. Compiled where numba is installed;
import it inside functions. It must not draw chance.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.compiled import njit, njit_in_place
from hetero.plan.problem import Floats, Problem
from hetero.plan.search.walk_kernels import Move, Walk, make, travel

__all__ = ["walk"]

_CRITICAL_FRAC, _ELSEWHERE_FRAC, _EXCHANGED_FRAC = 0.8, 0.5, 0.35
"""Of the moves so many are of a task of a critical path, to another device, or exchanges of two tasks."""

_PROBES, _ROUNDING = 64, 1e-9
_WORK_WEIGHT = 0.2
"""A second of work, at the prices of the area relaxation, counts as so much of a second of makespan."""


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
def _exchanged(move: Move, task: int) -> int:
    """Give the other one of the two tasks that change places; any other task is itself."""
    if task == move.task:
        return move.other
    return move.task if task == move.other else task


@njit_in_place
def _device(w: Walk, move: Move, task: int) -> int:
    """Give the device of a task, once a move is made."""
    if task == move.task:
        return move.device
    device: int = w.device[move.task] if task == move.other else w.device[task]
    return device


@njit_in_place
def _ahead(w: Walk, move: Move, task: int) -> int:
    """Give the task before another on its device, once a move is made."""
    if move.other >= 0:
        return _exchanged(move, w.before[_exchanged(move, task)])
    if task == move.task:
        return move.left
    if task == move.right:
        return move.task
    ahead: int = w.before[task]
    if ahead == move.task:
        ahead = w.before[ahead]
    return ahead


@njit_in_place
def _behind(w: Walk, move: Move, task: int) -> int:
    """Give the task behind another on its device, once a move is made."""
    if move.other >= 0:
        return _exchanged(move, w.after[_exchanged(move, task)])
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
    d = _device(w, move, task)
    here = p.node[d]
    start = 0.0
    ahead = _ahead(w, move, task)
    if ahead >= 0:
        start = w.next_finish_s[ahead] if w.changed[ahead] == number else w.finish_s[ahead]
    for e in range(p.pred_first[task], p.pred_first[task + 1]):
        before = p.pred[e]
        end_s = w.next_finish_s[before] if w.changed[before] == number else w.finish_s[before]
        start = max(start, end_s + travel(p, p.pred_bytes[e], p.node[_device(w, move, before)], here))
    finish: float = start + p.seconds[task, d]
    return finish


@njit_in_place
def _spreads(p: Problem, w: Walk, move: Move, task: int, number: int, cutoff_s: float) -> bool:
    """Hand a task's new finish on to those behind it; tells whether all behind the moved part ends by the cutoff."""
    high = max(move.was, move.now)
    finish = w.next_finish_s[task]
    later = task == move.task or task == move.other or finish > w.finish_s[task]
    d = _device(w, move, task)
    here = p.node[d]
    if later and finish + w.tail_s[task, here] > cutoff_s:
        return False
    behind = _behind(w, move, task)
    if behind >= 0:
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
            travel_s = travel(p, p.succ_bytes[e], here, p.node[d])
            if finish + travel_s + p.seconds[child, d] + w.rest_s[child] > cutoff_s:
                return False
    return True


@njit_in_place
def _passed(w: Walk, move: Move, at: int) -> int:
    """Give the task at a position between the two of a move, once it is made."""
    if at == move.now:
        return move.task
    if move.other < 0:
        at += 1 if move.now > move.was else -1
    elif at == move.was:
        return move.other
    task: int = w.order[at]
    return task


@njit_in_place
def _allowed(p: Problem, w: Walk, move: Move, cutoff_s: float) -> bool:
    """Tell whether the makespan would be at most the cutoff, which is no less than the makespan now.

    What is behind both positions keeps its order and devices, and so its `rest_s`: only the tasks between them whose
    inputs or devices come at another time are timed anew.
    """
    w.number[0] += 1
    number = w.number[0]
    for seed in (move.task, move.other, w.after[move.task], move.right):
        if seed >= 0:
            w.touched[seed] = number
    for at in range(min(move.was, move.now), max(move.was, move.now) + 1):
        task = _passed(w, move, at)
        if w.touched[task] != number:
            continue
        finish = _judged_finish_s(p, w, move, task, number)
        if finish == w.finish_s[task] and task != move.task and task != move.other:
            continue
        w.changed[task] = number
        w.next_finish_s[task] = finish
        if not _spreads(p, w, move, task, number, cutoff_s):
            return False
    return True


@njit_in_place
def _drawn(p: Problem, w: Walk, task: int, draw: Floats) -> Move:
    """Give the move of a task that was drawn."""
    was, device = w.place[task], w.device[task]
    low, high = _room(p, w, task)
    aim = 2.0 * draw[4] - 1.0
    span = high - was if aim > 0.0 else was - low
    reach = min(int(aim * aim * (span + 1)), span)
    now = was + reach if aim > 0.0 else was - reach
    if draw[2] > 1.0 - _EXCHANGED_FRAC:
        other = w.order[now]
        return Move(task, w.device[other], was, now, w.before[other], w.after[other], other)
    if draw[2] < _ELSEWHERE_FRAC and w.choices[task] > 1:
        device = w.ranked[task, int(draw[3] * draw[3] * w.choices[task])]
    left, right = _neighbours(w, task, device, now)
    return Move(task, device, was, now, left, right, -1)


@njit_in_place
def _is_sound(p: Problem, w: Walk, move: Move) -> bool:
    """Tell whether a move can be made and changes anything."""
    old = w.device[move.task]
    if move.other < 0:
        return bool(move.device != old or move.left != w.before[move.task])
    if move.device == old or p.seconds[move.task, move.device] == np.inf or p.seconds[move.other, old] == np.inf:
        return False
    low, high = _room(p, w, move.other)
    return bool(low <= move.was <= high)


@njit_in_place
def _picked(w: Walk, draw: Floats) -> int:
    """Give a task: mostly one of a critical path, looked for in steps of a drawn width from a drawn one on."""
    n = len(w.order)
    task = int(draw[1] * n)
    if draw[0] >= _CRITICAL_FRAC:
        return task
    step = 1 + int(draw[0] / _CRITICAL_FRAC * (n - 1))
    for _ in range(_PROBES):
        if w.finish_s[task] + w.rest_s[task] >= w.span_s[0] * (1.0 - _ROUNDING):
            break
        task = (task + step) % n
    return task


@njit_in_place
def _more_work_s(w: Walk, move: Move) -> float:
    """Give how much dearer a move's devices are for its tasks, s at the prices of the area relaxation."""
    old = w.device[move.task]
    more_s: float = w.priced_s[move.task, move.device] - w.priced_s[move.task, old]
    if move.other >= 0:
        more_s += w.priced_s[move.other, old] - w.priced_s[move.other, move.device]
    return more_s


@njit
def walk(p: Problem, w: Walk, draws: Floats, slack_s: Floats) -> int:
    """Try a row of moves; gives how many were accepted.

    `draws` is of shape (n_moves, 5), uniform in [0, 1): which task and whether from the critical path, which
    device and whether a new one, which position. `slack_s` says by how much each may lengthen the schedule.
    """
    accepted = 0
    for number in range(len(draws)):
        move = _drawn(p, w, _picked(w, draws[number]), draws[number])
        if not _is_sound(p, w, move):
            continue
        slack = slack_s[number] - _WORK_WEIGHT * _more_work_s(w, move)
        if slack >= 0.0 and _allowed(p, w, move, w.span_s[0] + slack):
            make(p, w, move)
            accepted += 1
    return accepted
