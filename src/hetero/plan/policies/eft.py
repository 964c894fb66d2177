"""Earliest finish time: each task to the device that would end it first, its transfers counted.

In: the fleet and the first ready tasks. Out: proposals for tasks that would start soon; the rest stays ready.
It must not bind a task early: what is not bound can still go where a faster device becomes free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero.model.device import Device
from hetero.plan.policies.base import Floats, Memory, Proposal, ReadyTask, View

__all__ = ["EarliestFinishTime"]

_ALL = slice(None)
_MANY = 512
"""On fleets from here on only the devices that could be chosen are looked at, …"""
_FEW = 8
"""… where the tasks are of no more kinds than this."""


class EarliestFinishTime:
    """Put each task where it would finish first; the default.

    Notes
    -----
    For each ready task in order, over all devices at once:
    eft = max(avail, now + arrive) + seconds; d = argmin(eft); avail[d] = eft[d].
    The task is proposed only if d has room, so that it starts soon; otherwise d is merely counted as busy
    longer. A slow device therefore gets a task only where the list schedule of the tasks in front puts one,
    and a device that would make the whole slower is left out.

    A device that is starting counts from when it should take tasks: what it would end first waits for it.

    Where the backlog is larger than what is shown, a device that got nothing may take one task from the end
    of what is shown, if it would end it before the other devices could end the whole backlog. That time is
    estimated low (each task at its shortest, each other device as good as at the task that suits it best),
    so a device is rather left out than in the way.

    It departs from the paper's HEFT in its order (priority and age, not upward rank), in deciding at every
    event instead of once, and from plain minimum completion time in that only what starts soon is bound.

    References
    ----------
    H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE TPDS 13 (2002), 260-274: earliest finish time.
    M. Maheswaran et al., "Dynamic mapping of a class of independent tasks onto heterogeneous computing
    systems", JPDC 59 (1999), 107-131: minimum completion time.
    """

    name = "eft"
    lazy_sends = True
    lone_to_fastest = True

    @staticmethod
    def suits(devices: Sequence[Device]) -> str:
        """Return why it is the right one, which it is for every fleet that no other policy claims.

        Notes
        -----
        It leaves out a device that would make the whole slower, counts transfers, and binds nothing early; no other
        policy here does all three.
        """
        if not devices:
            return "no device is known yet"
        if len(devices) == 1:
            return f"{devices[0].id} is the only device, and a lone task is sent there at once"
        kinds = len({device.model_key for device in devices})
        if kinds == 1:
            return f"the {len(devices)} devices are equal, but one may slow down, and nothing is bound early"
        return f"{len(devices)} devices of {kinds} kinds: a task ends first where its speed and transfers say so"

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose devices for the ready tasks that would start soon."""
        room = np.where(view.ready, np.maximum(view.room, 0), 0)
        offered = room if view.offered is None else np.minimum(room, view.offered)
        free = int(offered.sum())
        able: Any = _contenders(view, ready) if free else _ALL
        avail, room, asked = view.available_s[able].copy(), room[able], offered[able]
        proposals: list[Proposal] = []
        now_s = view.now_s
        eft = np.empty(len(avail))
        best = view.best_device
        for task_id, seconds, arrive_s, _, back_s in ready:
            if not free:
                return proposals, memory
            if arrive_s is None:
                np.add(avail, seconds[able], out=eft)
            else:
                np.add(arrive_s[able], now_s, out=eft)
                np.maximum(avail, eft, out=eft)
                np.add(eft, seconds[able], out=eft)
            if back_s is not None:
                eft[eft + back_s > eft[best]] = np.inf
            device = int(eft.argmin())
            end_s = eft[device]
            if end_s == np.inf:
                continue
            avail[device] = end_s
            if room[device] > 0:
                proposals.append(Proposal(task_id, int(able[device]) if able is not _ALL else device))
                room[device] -= 1
                free -= int(asked[device] > 0)
        if free and view.backlog > len(ready):
            proposals += _from_the_end(view, ready, proposals, offered)
        return proposals, memory


def _contenders(view: View, ready: Sequence[ReadyTask]) -> object:
    """Return the columns of the only devices that these tasks could get; on small fleets, and where in doubt, all.

    Notes
    -----
    Of n tasks none goes to a device that n others would end it before: at most n - 1 of those have got one by then.
    """
    if len(view.available_s) < _MANY:
        return _ALL
    rows: dict[tuple[int, int], tuple[Floats, Floats | None]] = {}
    count = 0
    for _, seconds, arrive_s, _, back_s in ready:
        rows[id(seconds), id(arrive_s)] = seconds, arrive_s
        count += 1
        if back_s is not None or len(rows) > _FEW:
            return _ALL
    chosen = np.zeros(len(view.available_s), dtype=np.bool_)
    if count >= len(chosen):
        return _ALL
    for seconds, arrive_s in rows.values():
        begin = view.available_s if arrive_s is None else np.maximum(view.available_s, view.now_s + arrive_s)
        end_s = begin + seconds
        chosen |= end_s <= np.partition(end_s, count)[count]
    return np.flatnonzero(chosen)


def _from_the_end(
    view: View, ready: Sequence[ReadyTask], proposed: Sequence[Proposal], room: NDArray[np.int64]
) -> list[Proposal]:
    """Return a task each to devices that got nothing, where the others would take longer for the whole backlog."""
    idle = room > 0
    idle[[proposal.device for proposal in proposed]] = False
    if not idle.any():
        return []
    start_s = view.available_s
    others_end_s = _others_end(view, ready, start_s)
    taken = {proposal.task for proposal in proposed}
    found: list[Proposal] = []
    refused: dict[tuple[int, int], tuple[Floats, Floats | None]] = {}
    for task_id, seconds, arrive_s, _, back_s in reversed(ready):
        key = id(seconds), id(arrive_s)
        if task_id in taken or key in refused:
            continue
        begin = start_s if arrive_s is None else np.maximum(start_s, view.now_s + arrive_s)
        end_s = np.where(idle, begin + seconds, np.inf)
        end_s[end_s + (0.0 if back_s is None else back_s) > others_end_s] = np.inf
        device = int(end_s.argmin())
        if end_s[device] == np.inf:
            if arrive_s is None or back_s is None:
                refused[key] = seconds, arrive_s
            continue
        found.append(Proposal(task_id, device))
        idle[device] = False
        if not idle.any():
            break
    return found


def _others_end(view: View, ready: Sequence[ReadyTask], start_s: Floats) -> Floats:
    """Return for each device when the other devices would have ended the whole backlog, shape (n_devices,), s.

    Notes
    -----
    work = backlog * mean of the tasks' shortest seconds; rate[e] = the most, over the tasks, of shortest / seconds[e];
    end[d] = (work + sum over e != d of rate[e] * start[e]) / sum over e != d of rate[e].
    """
    rate = np.zeros(len(start_s))
    work_s, seen = 0.0, 0
    known: dict[int, tuple[Floats, float]] = {}
    for _, seconds, _, _, _ in ready:
        shortest = known[id(seconds)][1] if id(seconds) in known else None
        if shortest is None:
            shortest = float(np.where(np.isfinite(start_s), seconds, np.inf).min())
            known[id(seconds)] = seconds, shortest
            if shortest < np.inf:
                np.maximum(rate, max(shortest, 1e-12) / np.maximum(seconds, 1e-12), out=rate)
        if shortest < np.inf:
            work_s += shortest
            seen += 1
    rate[~np.isfinite(start_s)] = 0.0
    loaded = rate * np.where(rate > 0.0, start_s, 0.0)
    total = rate.sum() - rate
    work_s *= view.backlog / max(seen, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        end_s: Floats = np.where(total > 1e-12, (work_s + loaded.sum() - loaded) / total, np.inf)
    return end_s
