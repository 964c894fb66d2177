"""Schedules in files: the format hetero-plan/1.

In: a `Schedule`, or a document. Out: a document, or a `Schedule`. It must not judge the schedule; check.py does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from hetero.floor.errors import GraphError
from hetero.graphs.document import DocumentPlace
from hetero.graphs.files import parse_json, read_text
from hetero.model.schedule import Evicted, Placed, Schedule, Sent

__all__ = ["FORMAT", "MODELS", "plan_document", "plan_of", "read_plan"]

FORMAT = "hetero-plan/1"

MODELS = ("contention", "free")
"""What a plan may assume of transfers: that they share links and memory nodes have capacities, or neither."""

Row = TypeVar("Row", Placed, Sent, Evicted)


def plan_document(schedule: Schedule) -> dict[str, object]:
    """Write a schedule as a hetero-plan/1 document."""
    return {
        "format": FORMAT,
        "policy": schedule.policy,
        "model": schedule.model,
        "makespan_s": schedule.makespan_s,
        "lower_bound_s": schedule.lower_bound_s,
        "placements": [row._asdict() for row in schedule.placements],
        "transfers": [_with_bytes(row._asdict()) for row in schedule.transfers],
        "evictions": [_with_bytes(row._asdict()) for row in schedule.evictions],
        "repeats": [row._asdict() for row in schedule.repeats],
    }


def _with_bytes(row: dict[str, object]) -> dict[str, object]:
    return {"bytes" if key == "nbytes" else key: value for key, value in row.items()}


def read_plan(path: Path) -> Schedule:
    """Read a plan file; raises GraphError where it is wrong."""
    return plan_of(parse_json(read_text(path), str(path)), str(path))


def plan_of(document: object, file: str) -> Schedule:
    """Read a hetero-plan/1 document; a bound that is not given counts as 0."""
    place = DocumentPlace(file)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        given = document.get("format") if isinstance(document, dict) else document
        raise (place / "format").wrong(given, f"{FORMAT!r}")
    model = document.get("model", "free")
    if model not in MODELS:
        raise (place / "model").wrong(model, "a model of transfers", f"write {' or '.join(map(repr, MODELS))}")
    return Schedule(
        tuple(_rows(document, "placements", Placed, place)),
        (place / "makespan_s").number(document.get("makespan_s"), "a number of seconds"),
        (place / "lower_bound_s").number(document.get("lower_bound_s", 0.0), "a number of seconds"),
        str(document.get("policy", "")),
        model,
        tuple(_rows(document, "transfers", Sent, place)),
        tuple(_rows(document, "evictions", Evicted, place)),
        tuple(_rows(document, "repeats", Placed, place)),
    )


def _rows(document: dict[str, object], key: str, kind: type[Row], place: DocumentPlace) -> Iterator[Row]:
    """Read a list of rows; only the placements must be there."""
    rows = document.get(key, None if key == "placements" else [])
    if not isinstance(rows, list):
        raise (place / key).wrong(rows, "a list")
    for number, row in enumerate(rows):
        yield _row(row, kind, place / key / number)


def _row(row: object, kind: type[Row], place: DocumentPlace) -> Row:
    names = ["bytes" if name == "nbytes" else name for name in kind._fields]
    if not isinstance(row, dict):
        raise place.wrong(row, "an object", f"write {{{', '.join(names)}}}")
    missing = [name for name in names if name not in row]
    if missing:
        raise GraphError(f"{place}: the key {missing[0]!r} is missing")
    values: list[Any] = [_value(row[name], name, place / name) for name in names]
    return kind(*values)


def _value(given: object, name: str, place: DocumentPlace) -> str | int | float:
    if name == "bytes":
        return place.whole(given, "a number of bytes")
    return place.number(given, "a number of seconds") if name.endswith("_s") else place.text(given)
