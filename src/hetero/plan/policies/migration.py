"""Migration: least loaded, and waiting tasks move to a device whose utilisation falls below a threshold.

In: the fleet, the ready tasks, the waiting tasks. Out: proposals for the ready ones, moves for waiting ones.
It must not move a task that would end later where it goes, nor one twice in a call.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.plan.policies.base import Floats, Memory, Proposal, ReadyTask, View, Waiting

__all__ = ["THRESHOLD_FRAC", "Migration", "utilisation"]

THRESHOLD_FRAC = 0.3
"""Below this utilisation a device takes waiting tasks of others."""


class Migration:
    """Put each task where the least work is left, and move waiting tasks to devices that are little used.

    Notes
    -----
    utilisation = 1 - (1 - own) * (1 - busy): `busy` is the share of its time that others use, `own` its
    accepted work over that of the device with the most. While a device is below the threshold, it takes the
    newest waiting task of the device that would end last, if it would end that task sooner. A device used by
    others is expected to run our tasks 1 / (1 - busy) times longer.

    It departs from the paper's threshold policy in that the receiver asks the most loaded device and not a
    random one, and that times are compared before a task moves.

    References
    ----------
    D. L. Eager, E. D. Lazowska, J. Zahorjan, "A comparison of receiver-initiated and sender-initiated adaptive
    load sharing", Performance Evaluation 6 (1986), 53-68.
    """

    name = "migration"
    watches_use = True

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose a device for each ready task, then moves."""
        if not view.ready.any():
            return (), memory
        slow_down = 1.0 / np.maximum(1.0 - view.busy_frac, 0.01)
        left_s = np.where(view.ready, (view.available_s - view.now_s) * slow_down, np.inf)
        proposals: list[Proposal] = []
        for task in ready:
            able = np.where(np.isfinite(task.seconds), left_s, np.inf)
            device = int(able.argmin())
            if able[device] < np.inf:
                left_s[device] += task.seconds[device] * slow_down[device]
                proposals.append(Proposal(task.id, device))
        if view.waiting:
            proposals += _moves(view, left_s, slow_down)
        return proposals, memory


def utilisation(left_s: Floats, busy_frac: Floats) -> Floats:
    """Return how much of each device is used, by us or by others.

    Parameters
    ----------
    left_s
        Seconds of our work that each device has yet to do, inf where it takes none.
    busy_frac
        0..1, use by others.

    Examples
    --------
    >>> import numpy as np
    >>> utilisation(np.array([4.0, 1.0, 0.0]), np.array([0.0, 0.0, 0.5])).tolist()
    [1.0, 0.25, 0.5]
    """
    taking = np.isfinite(left_s)
    most = float(np.max(left_s, where=taking, initial=0.0))
    own = np.where(taking, left_s / most if most > 0.0 else 0.0, 1.0)
    used: Floats = 1.0 - (1.0 - own) * (1.0 - busy_frac)
    return used


def _moves(view: View, left_s: Floats, slow_down: Floats) -> list[Proposal]:
    queues: dict[int, list[Waiting]] = {}
    for entry in view.waiting:
        queues.setdefault(entry.device, []).append(entry)
    moves: list[Proposal] = []
    while queues:
        victim = min(queues, key=lambda d: (-left_s[d], d))
        task = queues[victim].pop().task
        if not queues[victim]:
            del queues[victim]
        receivers = utilisation(left_s, view.busy_frac) < THRESHOLD_FRAC
        receivers[victim] = False
        begin = left_s if task.arrive_s is None else np.maximum(left_s, task.arrive_s)
        end_s = np.where(receivers, begin + task.seconds * slow_down, np.inf)
        device = int(end_s.argmin())
        if end_s[device] < left_s[victim]:
            moves.append(Proposal(task.id, device))
            left_s[device] = end_s[device]
            left_s[victim] -= min(task.seconds[victim] * slow_down[victim], left_s[victim])
    return moves
