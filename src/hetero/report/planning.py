"""What a report says of the plan of a task graph: where it had each task at first, and what re-plans changed.

In: the notes of a run. Out: a sentence, figures, a curve of the expected end, and what the page draws.
It must not judge the plan: that is the lower bound's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hetero.floor.units import format_seconds
from hetero.model.annotations import PlanMade
from hetero.report.intervals import Floats
from hetero.report.record import RunRecord

__all__ = ["PlannedPlace", "Planning", "expected_end", "places_by_device", "planning", "sentence"]


class PlannedPlace(NamedTuple):
    """Where and when a task was to run: index of the device, s of the run."""

    device: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Planning:
    """What was told of plans.

    Attributes
    ----------
    places
        By task, where the first plan that reached it had it.
    first_end_s
        Seconds after the first submission at which the plan at the start was to end.
    replans
        Plans after that which were told: they moved a task, or another end was expected of them.
    moved
        How often a task was put on another device by a new plan.
    elsewhere
        Tasks that ran on another device than they were first planned on.
    """

    places: dict[int, PlannedPlace]
    first_end_s: float
    replans: int
    moved: int
    elsewhere: int

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name, for programs."""
        names = ("first_end_s", "replans", "moved", "elsewhere")
        return {"tasks": len(self.places), **{name: getattr(self, name) for name in names}}


def planning(run: RunRecord) -> Planning | None:
    """Return what a run tells of plans, None where nothing planned ahead."""
    told = [each for each in run.notes if isinstance(each, PlanMade)]
    if not told:
        return None
    index_of = {device.id: index for index, device in enumerate(run.devices)}
    places: dict[int, PlannedPlace] = {}
    for each in told:
        rows = zip(each.tasks, each.devices, each.starts_s, each.finishes_s, strict=True)
        places |= {task: PlannedPlace(index_of[name], *times) for task, name, *times in rows if name in index_of}
    whole = next((at for at, each in enumerate(told) if len(each.tasks) * 2 >= len(places)), 0)
    return Planning(
        places=places,
        first_end_s=told[whole].ends_s - run.begin_s,
        replans=len(told) - whole - 1,
        moved=sum(each.moved for each in told),
        elsewhere=sum(
            1
            for each in run.attempts
            if each.outcome == "done" and each.task in places and places[each.task].device != each.device
        ),
    )


def sentence(found: Planning, run: RunRecord) -> str:
    """Return what became of the plan."""
    plans = "1 re-plan" if found.replans == 1 else f"{found.replans:,} re-plans"
    moves = "none moved a task" if not found.moved else f"they moved tasks {found.moved:,} times"
    elsewhere = f"{found.elsewhere:,} of {len(found.places):,} tasks ran on another device than at first planned"
    return (
        f"The plan at the start was to end after {format_seconds(found.first_end_s)}, and the run took "
        f"{format_seconds(run.span_s)}; {plans} followed, {moves}, and {elsewhere}."
    )


def places_by_device(found: Planning | None, devices: int) -> tuple[list[int], Floats, Floats]:
    """Return how many places each device has in the first plan, and their starts and ends, s, device after device."""
    rows = sorted(found.places.values()) if found is not None else []
    table = np.array(rows, dtype=float).reshape(-1, 3)
    counts = np.bincount(table[:, 0].astype(np.int64), minlength=devices)
    return counts.tolist(), table[:, 1], table[:, 2]


def expected_end(run: RunRecord, edges: Floats) -> Floats | None:
    """Return when the run was expected to end, s after its begin, at the end of each step; None where no plan tells."""
    told = [(each.at_s, each.ends_s - run.begin_s) for each in run.notes if isinstance(each, PlanMade)]
    if not told:
        return None
    at, ends = np.array(told).T
    found: Floats = ends[(np.searchsorted(at, edges[1:], side="right") - 1).clip(min=0)]
    return found
