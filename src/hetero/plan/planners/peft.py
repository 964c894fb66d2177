"""PEFT: the optimistic cost table both ranks the tasks and looks ahead when a device is chosen.

In: a `Problem`. Out: a `Timeline`. It must not search.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.planners.list_scheduling import schedule_by_keys
from hetero.plan.planners.ranks import optimistic_costs
from hetero.plan.problem import Problem, Timeline

__all__ = ["plan"]


def plan(p: Problem) -> Timeline:
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
