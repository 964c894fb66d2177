"""Planners of whole task graphs: the list-scheduling heuristics of the literature, by name.

In: a name. Out: a function from a `Problem` to a `Timeline`. A planner sees the graph whole, once, before
anything runs; a policy in plan/policies sees the tasks that are ready now. It must not be given a clock.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.plan.planners.list_scheduling import one_by_one, schedule_by_keys
from hetero.plan.planners.ranks import downward_rank, optimistic_costs, upward_rank
from hetero.plan.problem import Floats, Problem, Timeline

__all__ = ["PLANNERS", "Planner", "cpop", "heft", "max_min", "min_min", "peft", "planner", "sufferage"]


class Planner(Protocol):
    """A rule that schedules a whole graph: pure and deterministic, ties to the lower task and device index."""

    def __call__(self, p: Problem, /) -> Timeline:
        """Return a schedule of every task."""
        ...


def heft(p: Problem, over: str = "mean") -> Timeline:
    """Schedule by heterogeneous earliest finish time.

    Parameters
    ----------
    over
        Which mean of a task's seconds the rank takes; the paper's is 'mean'.

    Notes
    -----
    In decreasing order of rank_u(n_i) = w_i + max over n_j in succ(n_i) of (c_ij + rank_u(n_j)), each task goes
    to the device p_j of the least EFT(n_i, p_j), insertion into idle gaps included.

    It departs from the paper in that means run over the devices that can run the task, and in that devices of
    one memory node exchange data at no cost.

    References
    ----------
    H. Topcuoglu, S. Hariri, M.-Y. Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE TPDS 13 (2002), 260-274, figure 2.
    """
    return schedule_by_keys(p, upward_rank(p, over))


def peft(p: Problem) -> Timeline:
    """Schedule by predict earliest finish time.

    Notes
    -----
    rank_oct(t_i) = mean over p_k of OCT(t_i, p_k). Always the ready task of the highest rank is next, and goes to
    the device of the least O_EFT(t_i, p_j) = EFT(t_i, p_j) + OCT(t_i, p_j).

    It departs from the paper in that means run over the devices that can run the task, and in that devices of
    one memory node exchange data at no cost.

    References
    ----------
    H. Arabnejad, J. G. Barbosa, "List scheduling algorithm for heterogeneous systems by an optimistic cost
    table", IEEE TPDS 25 (2014), 682-694, equations 3 to 5 and algorithm 1.
    """
    oct_s = optimistic_costs(p)
    allowed = np.isfinite(p.seconds)
    keys = np.where(allowed, oct_s, 0.0).sum(axis=1) / allowed.sum(axis=1)
    return schedule_by_keys(p, keys, ahead_s=oct_s)


def cpop(p: Problem) -> Timeline:
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


def min_min(p: Problem) -> Timeline:
    """Schedule by min-min.

    Notes
    -----
    CT(i) = min over devices j of (max(free_j, inputs of i on j) + w_ij). The ready task of the least CT is placed;
    then the CTs are taken anew. A task goes behind what its device holds: there is no insertion.

    It departs from the paper in that the set of tasks is not fixed: a task joins it when its inputs have been
    placed.

    References
    ----------
    O. H. Ibarra, C. E. Kim, "Heuristic algorithms for scheduling independent tasks on nonidentical processors",
    JACM 24 (1977), 280-289; M. Maheswaran et al., "Dynamic mapping of a class of independent tasks onto
    heterogeneous computing systems", JPDC 59 (1999), 107-131.
    """
    return one_by_one(p, 0)


def max_min(p: Problem) -> Timeline:
    """Schedule by max-min.

    Notes
    -----
    As `min_min`, of the same papers, but the ready task of the greatest CT is placed.
    """
    return one_by_one(p, 1)


def sufferage(p: Problem) -> Timeline:
    """Schedule by sufferage.

    Notes
    -----
    sufferage(i) = the second least minus the least completion time of task i over the devices; inf where only
    one device can run it. The ready task of the greatest sufferage is placed; then all are taken anew.

    It departs from the paper in that one task is placed at a time, and not one a device, and in that a task
    joins the set when its inputs have been placed.

    References
    ----------
    M. Maheswaran et al., "Dynamic mapping of a class of independent tasks onto heterogeneous computing
    systems", JPDC 59 (1999), 107-131, section 3.
    """
    return one_by_one(p, 2)


_PLANNERS: dict[str, Planner] = {
    "heft": heft,
    "peft": peft,
    "cpop": cpop,
    "minmin": min_min,
    "maxmin": max_min,
    "sufferage": sufferage,
}
PLANNERS = tuple(_PLANNERS)
"""The names of the planners."""


def planner(name: str) -> Planner:
    """Return the planner of that name.

    Raises
    ------
    BadValueError
        No planner has this name.
    """
    if name not in PLANNERS:
        raise BadValueError(
            f"no planner is named {name!r} (there are {', '.join(PLANNERS)}){did_you_mean(name, PLANNERS)}"
        )
    return _PLANNERS[name]
