"""HEFT: tasks by upward rank, each to the device that ends it first.

In: a `Problem`. Out: a `Timeline`. It must not look ahead.
"""

from __future__ import annotations

from hetero.plan.planners.list_scheduling import schedule_by_keys
from hetero.plan.planners.ranks import upward_rank
from hetero.plan.problem import Problem, Timeline

__all__ = ["plan"]


def plan(p: Problem, over: str = "mean") -> Timeline:
    """Schedule by heterogeneous earliest finish time.

    Parameters
    ----------
    over : which mean of a task's seconds the rank takes; the paper's is 'mean'

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
