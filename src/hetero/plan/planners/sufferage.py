"""Sufferage: among the ready tasks that is next which would suffer most from not getting its best device.

In: a `Problem`. Out: a `Timeline`. It must not search.
"""

from __future__ import annotations

from hetero.plan.planners.list_scheduling import one_by_one
from hetero.plan.problem import Problem, Timeline

__all__ = ["plan"]


def plan(p: Problem) -> Timeline:
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
