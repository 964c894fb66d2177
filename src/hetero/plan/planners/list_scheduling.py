"""List scheduling with insertion: tasks in an order, each into the earliest idle gap that suits it.

In: a `Problem`, an order or keys, devices that are pinned. Out: a `Timeline`. It must not search.
"""

from __future__ import annotations

import numpy as np

from hetero.plan.planners.ranks import by_rank
from hetero.plan.problem import Floats, Ints, Problem, Timeline

__all__ = ["compiler", "list_schedule", "one_by_one", "order_of", "schedule_by_keys", "timed_schedule"]

_NO_TABLE = np.empty((0, 0))


def compiler() -> str:
    """Return '' when the inner loops are compiled, else why they run slower."""
    from hetero.plan.compiled import WHY_NOT

    return WHY_NOT


def list_schedule(p: Problem, order: Ints, pinned: Ints | None = None, ahead_s: Floats | None = None) -> Timeline:
    """Place the tasks in an order, each on the device where it ends first, in the first idle gap that it fits.

    Parameters
    ----------
    order
        A topological order.
    pinned
        Shape (n_tasks,); the device that a task must take, -1 where it may choose.
    ahead_s
        Shape (n_tasks, n_devices), s; added to the finish when devices are compared.

    Notes
    -----
    EST(n_i, p_j) = the first time >= max over n_m in pred(n_i) of (AFT(n_m) + c_mi) at which p_j is idle for
    w_ij; EFT(n_i, p_j) = EST(n_i, p_j) + w_ij. The device of the least EFT + ahead is taken, the first of equals.

    References
    ----------
    Topcuoglu, Hariri, Wu 2002, equations 3 to 5 and the insertion-based policy.
    """
    from hetero.plan.planners.list_kernels import in_order

    found = _empty(len(order))
    free = np.full(len(order), -1, dtype=np.int64) if pinned is None else pinned
    in_order(p, order, free, _NO_TABLE if ahead_s is None else ahead_s, *found)
    return found


def schedule_by_keys(p: Problem, keys: Floats, pinned: Ints | None = None, ahead_s: Floats | None = None) -> Timeline:
    """Return the list schedule in which always the ready task of the highest key is next."""
    return list_schedule(p, by_rank(p, keys), pinned, ahead_s)


def one_by_one(p: Problem, rule: int) -> Timeline:
    """Place ready tasks one by one by completion time: rule 0 the least, 1 the greatest, 2 the greatest sufferage."""
    from hetero.plan.planners.list_kernels import by_completion

    found = _empty(len(p.order))
    by_completion(p, rule, *found)
    return found


def timed_schedule(p: Problem, order: Ints, device: Ints) -> Timeline:
    """Return the schedule of an order and devices: each task starts as early as those before it allow."""
    from hetero.plan.planners.list_kernels import timed

    found = Timeline(device.copy(), np.zeros(len(order)), np.zeros(len(order)))
    timed(p, order, *found)
    return found


def order_of(p: Problem, timeline: Timeline) -> Ints:
    """Return the tasks by start, a topological order: what takes no time goes before what starts with it."""
    depth = np.empty_like(p.order)
    depth[p.order] = np.arange(len(depth))
    return np.lexsort((depth, timeline.finish_s, timeline.start_s))


def _empty(count: int) -> Timeline:
    return Timeline(np.full(count, -1, dtype=np.int64), np.zeros(count), np.zeros(count))
