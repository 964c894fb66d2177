"""Least loaded: each task to the device that would be free first.

In: the fleet and the first ready tasks. Out: proposals for all of them.
It must not look at how fast a device is at the task; that is what earliest finish time adds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.plan.policies.base import Memory, Proposal, ReadyTask, View

__all__ = ["LeastLoaded"]


class LeastLoaded:
    """Put each task where the least work is left.

    Notes
    -----
    d = argmin(available), over the devices that can run the task; available[d] += seconds[d].

    It departs from the paper's join-the-shortest-queue in that the queue is measured in estimated seconds,
    not in tasks: on unequal devices equal counts are unequal loads.

    References
    ----------
    F. A. Haight, "Two queues in parallel", Biometrika 45 (1958), 401-410: join the shortest queue.
    """

    name = "least_loaded"

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose a device for each task that can run somewhere."""
        if not view.ready.any():
            return (), memory
        load = np.where(view.ready, view.available_s, np.inf)
        proposals: list[Proposal] = []
        for task in ready:
            able = np.where(np.isfinite(task.seconds), load, np.inf)
            device = int(able.argmin())
            if able[device] == np.inf:
                continue
            load[device] += task.seconds[device]
            proposals.append(Proposal(task.id, device))
        return proposals, memory
