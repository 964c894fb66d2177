"""Planned: what a plan of the whole open graph starts next; the rest is planned anew whenever a task has ended.

In: the fleet, the ready tasks, what lies ahead. Out: proposals; the plan, as memory.
It must not hold a device back for a plan that times have proved wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hetero.plan.policies.base import Floats, Memory, Proposal, ReadyTask, View
from hetero.plan.policies.eft import EarliestFinishTime
from hetero.plan.replanning.lookahead import WAITING, Ahead, Foreseen
from hetero.plan.replanning.replan import RemainingPlan, is_on_course, replan, warm_up

__all__ = ["Planned"]


AHEAD_S = 0.1
"""A busy device is given its next task when it will be free within this, so that it does not wait for a message …"""

PREFETCH = 0.2
"""… or when the inputs of that task take this part of the wait to travel. What is not given yet may go elsewhere."""

STRAYED = 0.7
"""From this spread of estimates on an idle device takes what would end there before the plan has it begin elsewhere."""


class Planned:
    """Follow a plan of everything that was handed in, made anew from what has happened.

    Parameters
    ----------
    guide
        Start and device index by task id of a plan that was made beforehand; None to begin without one.
    ahead_s
        Seconds before a device is free at which it may have its next task; the way of a message.

    Notes
    -----
    When a task has ended, the plan so far is shifted to what has happened and compared with list schedules over
    other ranks, by their ends in scenarios of how far times may stray (`plan.replan`, `plan.scenarios`); a device
    starts the task that the plan gives it first. If that one is not ready, the device takes the next of its tasks
    that is and ends before the other would begin. Once times have strayed from their estimates, an idle device takes
    any task that would end there before the plan has it begin elsewhere. Tasks that came since go where they end
    first, until a quarter more are known. A plan of tasks like those that were handed in before, all at once, is kept
    as long as what happens is near to it.

    The core is told where and when the plan has each task (`foresee`): it sends the inputs of each device's next task
    ahead, and where room is short drops first what the plan reads last.

    References
    ----------
    H. Topcuoglu, S. Hariri, M.-Y. Wu, IEEE TPDS 13 (2002), 260-274: the ranks and the list schedule with insertion.
    R. Sakellariou, H. Zhao, "A low-cost rescheduling policy for efficient mapping of workflows on grid systems",
    Scientific Programming 12 (2004), 253-262: planning the rest anew while a graph runs. It departs from it in
    planning at each end and not only where slack is used up, and in keeping the better of several plans.
    """

    name = "planned"
    looks_ahead = True

    def __init__(self, guide: Mapping[int, tuple[float, int]] | None = None, ahead_s: float = AHEAD_S) -> None:
        self._guide = guide
        self._ahead_s = ahead_s
        self._otherwise = EarliestFinishTime()
        warm_up()

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose what the plan starts now."""
        ahead = view.ahead
        if ahead is None or not ahead.open:
            return self._otherwise.propose(view, ready, None)[0], memory
        plan = memory if isinstance(memory, RemainingPlan) else None
        if plan is not None and plan.version != ahead.version and is_on_course(plan, ahead, view.now_s):
            plan = plan._replace(version=ahead.version)
        if plan is None or plan.version != ahead.version or 4 * len(ahead.ids) > 5 * plan.known:
            takes_s = np.where(view.ready, view.now_s, np.where(view.queued > 0, np.inf, view.available_s))
            plan = replan(ahead, view.now_s, takes_s, plan, self._guide)
        found = _due(view, ready, ahead, plan, self._ahead_s)
        return found, plan

    def foresee(self, memory: Memory) -> Foreseen | None:
        """Return where and when the plan has what waits.

        Parameters
        ----------
        memory
            What `propose` gave back.
        """
        return Foreseen(memory.device, memory.start_s) if isinstance(memory, RemainingPlan) else None


def _due(view: View, ready: Sequence[ReadyTask], ahead: Ahead, plan: RemainingPlan, ahead_s: float) -> list[Proposal]:
    """Return what each device with room should start now."""
    room = np.where(view.ready, np.maximum(view.room, 0), 0)
    lists: dict[int, list[tuple[float, ReadyTask, int]]] = {}
    new: list[ReadyTask] = []
    for task, at in [*((task, -1) for task in ready), *((entry.task, entry.device) for entry in view.waiting)]:
        slot = ahead.slot_of.get(task.id, plan.known)
        if slot < plan.known and np.isfinite(plan.start_s[slot] + task.seconds[plan.device[slot]]):
            lists.setdefault(int(plan.device[slot]), []).append((float(plan.start_s[slot]), task, at))
        elif at < 0:
            new.append(task)
    found: list[Proposal] = []
    taken: set[int] = set()
    next_s = _next_s(ahead, plan, len(room))
    for device in np.flatnonzero(room > 0).tolist():
        due = sorted(lists.get(device, ()), key=lambda entry: (entry[0], entry[1].id))
        chosen = _first(view, device, due, next_s[device], ahead_s)
        if chosen is not None:
            found.append(Proposal(chosen.id, device))
            taken.add(chosen.id)
            room[device] -= 1
    if ahead.error > STRAYED:
        found += _rather_than_idle(view, lists, taken, room, ahead, plan)
    if new:
        found += _where_they_end(view, new, room)
    if not found and not view.queued[view.ready].any():
        found += _where_they_end(view, ready, room)
    return found


def _next_s(ahead: Ahead, plan: RemainingPlan, devices: int) -> Floats:
    """Return the first planned start on each device among the tasks that wait."""
    waiting = np.flatnonzero(ahead.graph.phase[: plan.known] == WAITING)
    next_s = np.full(devices, np.inf)
    np.minimum.at(next_s, plan.device[waiting], plan.start_s[waiting])
    return next_s


def _first(
    view: View, device: int, due: Sequence[tuple[float, ReadyTask, int]], next_s: float, ahead_s: float
) -> ReadyTask | None:
    """Return the first task of a device that may start now."""
    for start_s, task, at in due:
        if at == device or _too_early(view, device, task, ahead_s):
            continue
        if start_s <= next_s or view.now_s + task.seconds[device] <= next_s:
            return task
    return None


def _too_early(view: View, device: int, task: ReadyTask, ahead_s: float) -> bool:
    """Return whether a busy device need not have a task yet: its inputs would travel in a small part of the wait."""
    if not view.queued[device]:
        return False
    left_s = view.available_s[device] - view.now_s
    travel_s = 0.0 if task.arrive_s is None else task.arrive_s[device]
    return bool(left_s > ahead_s and travel_s < PREFETCH * left_s)


def _rather_than_idle(
    view: View,
    lists: Mapping[int, Sequence[tuple[float, ReadyTask, int]]],
    taken: set[int],
    room: Floats,
    ahead: Ahead,
    plan: RemainingPlan,
) -> list[Proposal]:
    """Return idle devices the most urgent tasks that would end there before the plan has them begin."""
    found: list[Proposal] = []
    left = [task for due in lists.values() for _, task, at in due if at < 0 and task.id not in taken]
    left.sort(key=lambda task: (-plan.ranks.fastest[ahead.slot_of[task.id]], task.id))
    for task in left:
        planned_s = plan.start_s[ahead.slot_of[task.id]] - view.now_s
        takes_s = task.seconds if task.arrive_s is None else task.arrive_s + task.seconds
        takes_s = np.where((room > 0) & (view.queued == 0), takes_s, np.inf)
        device = int(takes_s.argmin())
        if takes_s[device] <= planned_s:
            room[device] -= 1
            found.append(Proposal(task.id, device))
    return found


def _where_they_end(view: View, tasks: Sequence[ReadyTask], room: Floats) -> list[Proposal]:
    """Place tasks that the plan has no place for on the device where each ends first, if that has room."""
    free_s = np.where(view.ready, view.available_s, np.inf)
    found: list[Proposal] = []
    for task in tasks:
        begin_s = free_s if task.arrive_s is None else np.maximum(free_s, view.now_s + task.arrive_s)
        end_s = begin_s + task.seconds
        device = int(end_s.argmin())
        if np.isfinite(end_s[device]):
            free_s[device] = end_s[device]
            if room[device] > 0:
                room[device] -= 1
                found.append(Proposal(task.id, device))
    return found
