"""The inner loops of annealing over the order and the devices of a schedule.

In: a `Problem`, a `Walk` and drawn numbers. Out: the walk moved on, in place. Compiled where numba is installed;
import it inside functions. It must not draw chance.
"""

from __future__ import annotations

import math

import numpy as np

from hetero.plan.compiled import njit, njit_in_place
from hetero.plan.graph_search.walk_kernels import (
    AT,
    NOW,
    NUMBER,
    SEEN,
    STEP,
    UNTIL,
    Move,
    Walk,
    find_heads,
    find_tails,
    make,
    settle,
    travel,
)
from hetero.plan.problem import Floats, Problem

__all__ = ["walk"]

_ELSEWHERE_FRAC, _EXCHANGED_FRAC = 0.5, 0.35
"""Of the moves so many are to another device, or exchanges of two tasks."""

_AGAIN_FRAC, _OTHER_FRAC = 0.9, 0.1
"""How often a critical task is tried again while it is one, and of the tasks that are not critical how many are tried
as the walk passes."""

_PASSED = 1.0 / math.log(1.0 - _OTHER_FRAC)

_SEEN_FRAC, _SEEN_LEAST = 0.2, 16
"""The longest path that is seen over so much of the order, or so many tasks, is held to be the makespan."""

_ROUNDING = 1e-9
_WORK_WEIGHT = 0.2
"""A second of work, at the prices of the area relaxation, counts as so much of a second of makespan."""


@njit_in_place
def _room(p: Problem, w: Walk, task: int) -> tuple[int, int]:
    """Return the first and last position that a task can take without passing what it depends on."""
    low, high = 0, len(w.order) - 1
    for e in range(p.pred_first[task], p.pred_first[task + 1]):
        low = max(low, w.place[p.pred[e]] + 1)
    for e in range(p.succ_first[task], p.succ_first[task + 1]):
        high = min(high, w.place[p.succ[e]] - 1)
    return low, high


@njit_in_place
def _neighbours(w: Walk, task: int, device: int, now: int) -> tuple[int, int]:
    """Return the tasks of a device that a task would stand between at a position of the order."""
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
    """Return the other one of the two tasks that change places; any other task is itself."""
    if task == move.task:
        return move.other
    return move.task if task == move.other else task


@njit_in_place
def _node(p: Problem, w: Walk, move: Move, task: int) -> int:
    """Return the memory node of a task's device, once a move is made."""
    if task == move.task:
        node: int = p.node[move.device]
    elif task == move.other:
        node = w.node[move.task]
    else:
        node = w.node[task]
    return node


@njit_in_place
def _seconds(p: Problem, w: Walk, move: Move, task: int) -> float:
    """Return the s that a task takes, once a move is made."""
    if task == move.task:
        seconds: float = p.seconds[task, move.device]
    elif task == move.other:
        seconds = p.seconds[task, w.device[move.task]]
    else:
        seconds = w.seconds[task]
    return seconds


@njit_in_place
def _ahead(w: Walk, move: Move, task: int) -> int:
    """Return the task before another on its device, once a move is made."""
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
    """Return the task behind another on its device, once a move is made."""
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
    """Return when a task would end, once a move is made."""
    here = _node(p, w, move, task)
    start = 0.0
    ahead = _ahead(w, move, task)
    if ahead >= 0:
        start = w.next_finish_s[ahead] if w.changed[ahead] == number else w.finish_s[ahead]
    for e in range(p.pred_first[task], p.pred_first[task + 1]):
        before = p.pred[e]
        end_s = w.next_finish_s[before] if w.changed[before] == number else w.finish_s[before]
        start = max(start, end_s + travel(p, p.pred_bytes[e], _node(p, w, move, before), here))
    finish: float = start + _seconds(p, w, move, task)
    return finish


@njit_in_place
def _spread(p: Problem, w: Walk, move: Move, task: int, number: int, cutoff_s: float) -> float:
    """Hand a task's new finish on to those behind it; returns the longest path from it past the moved part.

    A path beyond the cutoff is given as infinite; one from a task that ends no later than before as 0.
    """
    high = max(move.was, move.now)
    finish = w.next_finish_s[task]
    later = task == move.task or task == move.other or finish > w.finish_s[task]
    here = _node(p, w, move, task)
    longest_s = finish + w.tail_s[task, here] if later else 0.0
    if longest_s > cutoff_s:
        return np.inf
    behind = _behind(w, move, task)
    if behind >= 0:
        if w.place[behind] <= high:
            w.touched[behind] = number
        elif later:
            longest_s = max(longest_s, finish + w.seconds[behind] + w.rest_s[behind])
    for e in range(p.succ_first[task], p.succ_first[task + 1]):
        child = p.succ[e]
        if w.place[child] <= high:
            w.touched[child] = number
        elif later:
            travel_s = travel(p, p.succ_bytes[e], here, w.node[child])
            longest_s = max(longest_s, finish + travel_s + w.seconds[child] + w.rest_s[child])
            if longest_s > cutoff_s:
                return np.inf
    return longest_s if longest_s <= cutoff_s else np.inf


@njit_in_place
def _passed(w: Walk, move: Move, at: int) -> int:
    """Return the task at a position between the two of a move, once it is made."""
    if at == move.now:
        return move.task
    if move.other < 0:
        at += 1 if move.now > move.was else -1
    elif at == move.was:
        return move.other
    task: int = w.order[at]
    return task


@njit_in_place
def _longest_s(p: Problem, w: Walk, move: Move, cutoff_s: float) -> float:
    """Return the longest path, s, through the tasks that would end later; infinite when it is beyond the cutoff.

    What is behind both positions keeps its order and devices, and so its `rest_s`: only the tasks between them whose
    inputs or devices come at another time are timed anew.
    """
    w.state[NUMBER] += 1
    number = w.state[NUMBER]
    for seed in (move.task, move.other, w.after[move.task], move.right):
        if seed >= 0:
            w.touched[seed] = number
    longest_s = 0.0
    for at in range(min(move.was, move.now), max(move.was, move.now) + 1):
        task = _passed(w, move, at)
        if w.touched[task] != number:
            continue
        finish = _judged_finish_s(p, w, move, task, number)
        if finish == w.finish_s[task] and task != move.task and task != move.other:
            continue
        w.changed[task] = number
        w.next_finish_s[task] = finish
        longest_s = max(longest_s, _spread(p, w, move, task, number, cutoff_s))
        if longest_s == np.inf:
            break
    return longest_s


@njit_in_place
def _drawn(p: Problem, w: Walk, task: int, draw: Floats) -> Move:
    """Return the move of a task that was drawn."""
    was, device = w.place[task], w.device[task]
    low, high = _room(p, w, task)
    aim = 2.0 * draw[3] - 1.0
    span = high - was if aim > 0.0 else was - low
    reach = min(int(aim * aim * (span + 1)), span)
    now = was + reach if aim > 0.0 else was - reach
    if draw[1] > 1.0 - _EXCHANGED_FRAC:
        other = w.order[now]
        return Move(task, w.device[other], was, now, w.before[other], w.after[other], other)
    if draw[1] < _ELSEWHERE_FRAC and w.choices[task] > 1:
        device = w.ranked[task, int(draw[2] * draw[2] * w.choices[task])]
    left, right = _neighbours(w, task, device, now)
    return Move(task, device, was, now, left, right, -1)


@njit_in_place
def _is_sound(p: Problem, w: Walk, move: Move) -> bool:
    """Return whether a move can be made and changes anything."""
    old = w.device[move.task]
    if move.other < 0:
        return bool(move.device != old or move.left != w.before[move.task])
    if move.device == old or p.seconds[move.task, move.device] == np.inf or p.seconds[move.other, old] == np.inf:
        return False
    low, high = _room(p, w, move.other)
    return bool(low <= move.was <= high)


@njit_in_place
def _more_work_s(w: Walk, move: Move) -> float:
    """Return how much dearer a move's devices are for its tasks, s at the prices of the area relaxation."""
    old = w.device[move.task]
    more_s: float = w.priced_s[move.task, move.device] - w.priced_s[move.task, old]
    if move.other >= 0:
        more_s += w.priced_s[move.other, old] - w.priced_s[move.other, move.device]
    return more_s


@njit_in_place
def _step(p: Problem, w: Walk) -> None:
    """Go on to the next position, at an end of the order back again."""
    w.state[AT] += w.state[STEP]
    w.state[UNTIL] -= 1
    if w.state[AT] < 0 or w.state[AT] == len(w.order):
        settle(p, w, w.state[STEP] > 0)
        w.state[STEP] = -w.state[STEP]
        w.state[AT] += w.state[STEP]
    elif w.state[UNTIL] <= 0:
        w.span_s[NOW] = w.span_s[SEEN]
    if w.state[UNTIL] <= 0:
        w.span_s[SEEN] = 0.0
        w.state[UNTIL] = max(_SEEN_LEAST, int(_SEEN_FRAC * len(w.order)))


@njit_in_place
def _tried(p: Problem, w: Walk, task: int, draw: Floats, slack_s: float) -> bool:
    """Make a drawn move of a task, if it is sound and within its slack; tells whether."""
    move = _drawn(p, w, task, draw)
    if not _is_sound(p, w, move):
        return False
    slack_s -= _WORK_WEIGHT * _more_work_s(w, move)
    if slack_s < 0.0:
        return False
    find_heads(p, w, max(move.was, move.now))
    longest_s = _longest_s(p, w, move, w.span_s[NOW] + slack_s)
    if longest_s == np.inf:
        return False
    make(p, w, move)
    w.span_s[NOW], w.span_s[SEEN] = max(w.span_s[NOW], longest_s), max(w.span_s[SEEN], longest_s)
    return True


@njit_in_place
def _next(p: Problem, w: Walk, others: int) -> bool:
    """Go on to the next critical task, past at most so many that are not; return whether the walk is at one."""
    while True:
        find_heads(p, w, w.state[AT])
        find_tails(p, w, w.state[AT])
        task = w.order[w.state[AT]]
        through_s = w.finish_s[task] + w.rest_s[task]
        w.span_s[SEEN] = max(w.span_s[SEEN], through_s)
        if through_s >= w.span_s[NOW] * (1.0 - _ROUNDING):
            return True
        if others <= 0:
            return False
        others -= 1
        _step(p, w)


@njit
def walk(p: Problem, w: Walk, draws: Floats, slack_s: Floats) -> int:
    """Go to and fro along the order and try a row of moves of most tasks that are critical; returns how many were made.

    `draws` is of shape (n_moves, 4), uniform in [0, 1): whether a critical task is tried again or else how many that
    are not are passed, the kind of move, the device, the position. `slack_s` says by how much each may lengthen the
    schedule.
    """
    made, is_critical = 0, False
    for row in range(len(draws)):
        draw = draws[row]
        others = 0
        if not is_critical or draw[0] >= _AGAIN_FRAC:
            part = (draw[0] - _AGAIN_FRAC) / (1.0 - _AGAIN_FRAC) if is_critical else draw[0]
            others = int(math.log(1.0 - part) * _PASSED)
            _step(p, w)
        is_critical = _next(p, w, others)
        made += _tried(p, w, w.order[w.state[AT]], draw, slack_s[row])
    return made
