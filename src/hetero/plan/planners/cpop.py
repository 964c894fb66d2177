"""CPOP: the critical path on the one device that runs it fastest, the rest by earliest finish.

In: a `Problem`. Out: a `Timeline`. It must not search.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.planners.list_scheduling import schedule_by_keys
from hetero.plan.planners.ranks import downward_rank, upward_rank
from hetero.plan.problem import Floats, Problem, Timeline

__all__ = ["plan"]


def plan(p: Problem) -> Timeline:
    """Schedule by critical path on a processor.

    Notes
    -----
    priority(n_i) = rank_d(n_i) + rank_u(n_i). The critical path begins at the entry task of the highest priority
    and goes on to the successor of the highest priority. Its tasks go to the critical-path processor p_CP, the
    device of the least sum of w over them; every other task goes to the device of the least EFT. Always the
    ready task of the highest priority is next.

    It departs from the paper where p_CP cannot run all of the path: the device that can run most of it is
    taken, and the tasks that it cannot run go to the device of the least EFT.

    References
    ----------
    Topcuoglu, Hariri, Wu 2002, figure 4.
    """
    priority = downward_rank(p) + upward_rank(p)
    path = _critical_path(p, priority)
    pinned = np.full(len(p.order), -1, dtype=np.int64)
    if path:
        seconds = p.seconds[path]
        missing = (~np.isfinite(seconds)).sum(axis=0)
        total_s = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=0)
        processor = int(np.lexsort((np.arange(len(total_s)), total_s, missing))[0])
        pinned[path] = np.where(np.isfinite(seconds[:, processor]), processor, -1)
    return schedule_by_keys(p, priority, pinned)


def _critical_path(p: Problem, priority: Floats) -> list[int]:
    entries = np.flatnonzero(np.diff(p.pred_first) == 0)
    if not len(entries):
        return []
    path = [int(entries[np.argmax(priority[entries])])]
    while p.succ_first[path[-1]] < p.succ_first[path[-1] + 1]:
        children = p.succ[p.succ_first[path[-1]] : p.succ_first[path[-1] + 1]]
        path.append(int(children[np.argmax(priority[children])]))
    return path
