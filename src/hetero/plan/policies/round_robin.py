"""Round robin: each task to the next device in turn.

In: the fleet and the first ready tasks. Out: proposals for all of them; whose turn it is, as memory.
It must not look at load or speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.plan.policies.base import Memory, Proposal, ReadyTask, View

__all__ = ["RoundRobin"]


class RoundRobin:
    """Put each task on the next device that can run it.

    Notes
    -----
    It departs from the paper in serving queues of tasks and not of packets, and in that a device that cannot
    run the task is passed over without losing its turn for the next one.

    References
    ----------
    J. B. Nagle, "On packet switches with infinite storage", IEEE Trans. Communications 35 (1987), 435-438.
    """

    name = "round_robin"

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose a device for each task that can run somewhere; remember the device after the last one."""
        turn = memory if isinstance(memory, int) else 0
        proposals: list[Proposal] = []
        for task in ready:
            able = np.flatnonzero(view.ready & np.isfinite(task.seconds))
            if not len(able):
                continue
            device = int(able[np.searchsorted(able, turn) % len(able)])
            proposals.append(Proposal(task.id, device))
            turn = (device + 1) % len(view.devices)
        return proposals, turn
