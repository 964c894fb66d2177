"""Min-min: among the ready tasks that of the least completion time is next, on the device that ends it first.

In: a `Problem`. Out: a `Timeline`. It must not search.
"""

from __future__ import annotations

from hetero.plan.planners.list_scheduling import one_by_one
from hetero.plan.problem import Problem, Timeline

__all__ = ["plan"]


def plan(p: Problem) -> Timeline:
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
