"""Work stealing: each task to a home device; an idle device takes the oldest task of the longest queue.

In: the fleet, the ready tasks, the waiting tasks. Out: proposals for the ready ones, moves for waiting ones.
It must not move a task that would end later where it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from hetero.plan.policies.base import Floats, Memory, Proposal, ReadyTask, View, Waiting

__all__ = ["WorkStealing"]


class WorkStealing:
    """Put each task on its home device, the one that its id falls on, and let idle devices steal.

    Notes
    -----
    home = id mod (number of devices that can run the task). A thief is a device with nothing accepted and
    nothing proposed; its victim is the device with the most waiting tasks; it steals the oldest of them if
    now + arrive + seconds on the thief is less than the time at which the victim would end it.

    It departs from the paper in that the victim is the longest queue and not a random one (no chance in a
    policy), and that the times are compared: on unequal devices a slow thief can make the whole slower.

    References
    ----------
    R. D. Blumofe, C. E. Leiserson, "Scheduling multithreaded computations by work stealing", JACM 46 (1999),
    720-748.
    """

    name = "work_stealing"

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose a home for each ready task, then what the idle devices steal."""
        idle = view.ready & (view.queued == 0)
        proposals: list[Proposal] = []
        for task in ready:
            able = np.flatnonzero(view.ready & np.isfinite(task.seconds))
            if len(able):
                home = int(able[task.id % len(able)])
                idle[home] = False
                proposals.append(Proposal(task.id, home))
        if view.waiting and idle.any():
            proposals += _steals(view, idle)
        return proposals, memory


def _steals(view: View, idle: NDArray[np.bool_]) -> list[Proposal]:
    """Return the moves of waiting tasks to idle devices, at most one to each."""
    queues: dict[int, list[Waiting]] = {}
    for entry in view.waiting:
        queues.setdefault(entry.device, []).append(entry)
    moves: list[Proposal] = []
    refused: set[int] = set()
    while idle.any() and len(refused) < len(queues):
        victim = min((d for d in queues if d not in refused), key=lambda d: (-len(queues[d]), d))
        oldest = queues[victim][0].task
        end_s = np.where(idle, _ends(view, oldest), np.inf)
        thief = int(end_s.argmin())
        if not end_s[thief] < _stays(view, queues[victim]):
            refused.add(victim)
            continue
        moves.append(Proposal(oldest.id, thief))
        idle[thief] = False
        queues[victim] = queues[victim][1:]
        if not queues[victim]:
            del queues[victim]
    return moves


def _ends(view: View, task: ReadyTask) -> Floats:
    """Return when a task would end on each device if that began it now, s."""
    begin = view.available_s if task.arrive_s is None else np.maximum(view.available_s, view.now_s + task.arrive_s)
    ends: Floats = begin + task.seconds
    return ends


def _stays(view: View, queue: Sequence[Waiting]) -> float:
    """Return when the oldest task of a queue would end where it is, s."""
    device = queue[0].device
    if not view.ready[device]:
        return float(np.inf)
    behind_s = [float(entry.task.seconds[device]) for entry in queue[1:]]
    return float(view.available_s[device]) - sum(seconds for seconds in behind_s if isfinite(seconds))
