"""The interface of a planner of whole task graphs, and the list of ours by name.

In: a name. Out: a function from a `Problem` to a `Timeline`. A planner sees the graph whole, once, before
anything runs; a policy in plan/policies sees the tasks that are ready now. It must not be given a clock.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.plan.problem import Problem, Timeline

__all__ = ["PLANNERS", "Planner", "planner"]

PLANNERS = ("heft", "peft", "cpop", "minmin", "maxmin", "sufferage")
"""The planners by name; each is the function `plan` of the file of its name in this folder."""


class Planner(Protocol):
    """A rule that schedules a whole graph: pure and deterministic, ties to the lower task and device index."""

    def __call__(self, p: Problem, /) -> Timeline:
        """Return a schedule of every task."""
        ...


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
    found: Planner = import_module(f"hetero.plan.planners.{name}").plan
    return found
