"""Schedules in files: the format hetero-plan/1.

In: a `Schedule`, or a document. Out: a document, or a `Schedule`. It must not judge the schedule; check.py does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hetero.floor.errors import GraphError
from hetero.graphs.document import Place
from hetero.graphs.files import parse_json, read_text
from hetero.model.schedule import Placed, Schedule

__all__ = ["FORMAT", "plan_document", "plan_of", "read_plan"]

FORMAT = "hetero-plan/1"


def plan_document(schedule: Schedule) -> dict[str, Any]:
    """Write a schedule as a hetero-plan/1 document."""
    return {
        "format": FORMAT,
        "policy": schedule.policy,
        "model": "free",
        "makespan_s": schedule.makespan_s,
        "lower_bound_s": schedule.lower_bound_s,
        "placements": [row._asdict() for row in schedule.placements],
    }


def read_plan(path: Path) -> Schedule:
    """Read a plan file; raises GraphError where it is wrong."""
    return plan_of(parse_json(read_text(path), str(path)), str(path))


def plan_of(document: Any, file: str) -> Schedule:
    """Read a hetero-plan/1 document; a bound that is not given counts as 0."""
    place = Place(file)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        given = document.get("format") if isinstance(document, dict) else document
        raise (place / "format").wrong(given, f"{FORMAT!r}")
    rows = document.get("placements")
    if not isinstance(rows, list):
        raise (place / "placements").wrong(rows, "a list")
    placements = tuple(_placed(row, place / "placements" / number) for number, row in enumerate(rows))
    return Schedule(
        placements,
        (place / "makespan_s").number(document.get("makespan_s"), "a number of seconds"),
        (place / "lower_bound_s").number(document.get("lower_bound_s", 0.0), "a number of seconds"),
        str(document.get("policy", "")),
    )


def _placed(row: Any, place: Place) -> Placed:
    if not isinstance(row, dict):
        raise place.wrong(row, "an object", f"write {{{', '.join(Placed._fields)}}}")
    missing = [key for key in Placed._fields if key not in row]
    if missing:
        raise GraphError(f"{place}: the key {missing[0]!r} is missing")
    return Placed(
        (place / "task").text(row["task"]),
        (place / "device").text(row["device"]),
        (place / "start_s").number(row["start_s"], "a number of seconds"),
        (place / "finish_s").number(row["finish_s"], "a number of seconds"),
    )
