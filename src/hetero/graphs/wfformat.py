"""WfFormat 1.5 of WfCommons: recorded workflows with run times and file sizes, without devices.

In: a document and a fleet. Out: a `TaskGraph`. It must not invent a run time.
"""

from __future__ import annotations

from typing import Any

from hetero.floor.errors import GraphError
from hetero.floor.units import shown
from hetero.graphs.document import DocumentPlace
from hetero.graphs.fleet_files import GraphFleet
from hetero.model.graph import GraphEdge, GraphTask, TaskGraph

__all__ = ["is_wfformat", "read_wfformat"]


def is_wfformat(document: object) -> bool:
    """Return whether a document is of WfFormat."""
    return isinstance(document, dict) and "workflow" in document and "schemaVersion" in document


def read_wfformat(document: Any, file: str, fleet: GraphFleet) -> TaskGraph:
    """Read a workflow of WfFormat 1.5.

    Parameters
    ----------
    document : as JSON gives it
    fleet : the devices; a task that ran for t seconds takes t / speed, and its kind is the name of its program

    Notes
    -----
    The bytes of an edge are those of the files that the parent writes and the child reads.

    References
    ----------
    T. Coleman et al., "WfCommons: a framework for enabling scientific workflow research and development",
    Future Generation Computer Systems 128 (2022), 16-27.
    """
    place = DocumentPlace(file)
    version = str(document.get("schemaVersion"))
    if version != "1.5":
        raise (place / "schemaVersion").wrong(version, "'1.5'", "convert the file with WfCommons")
    rows = _get(document, place, "workflow", "specification", "tasks")
    sizes = _sizes(document, place)
    ran = {
        _text(row, "id", place / "workflow" / "execution" / "tasks" / number): (number, row)
        for number, row in enumerate(_get(document, place, "workflow", "execution", "tasks"))
    }
    here = place / "workflow" / "specification" / "tasks"
    names = [_text(row, "id", here / number) for number, row in enumerate(rows)]
    by_name: dict[str, Any] = {}
    for number, (name, row) in enumerate(zip(names, rows, strict=True)):
        if by_name.setdefault(name, row) is not row:
            raise GraphError(f"{here / number}: the id {shown(name)} is given twice", remedy="give each task its own")
    tasks = tuple(GraphTask(name, fleet.seconds(*_run(name, ran, place))) for name in names)
    edges = tuple(
        GraphEdge(src, dst, _bytes(by_name[src], by_name[dst], sizes, here / dst)) for src, dst in _pairs(by_name, here)
    )
    return TaskGraph(fleet.devices, fleet.topology, tasks, edges)


def _get(document: object, place: DocumentPlace, *keys: str) -> list[Any]:
    value = document
    for key in keys:
        place = place / key
        if not isinstance(value, dict) or key not in value:
            raise GraphError(f"{place}: this part of WfFormat is missing")
        value = value[key]
    if not isinstance(value, list):
        raise place.wrong(value, "a list")
    return value


def _text(row: object, key: str, place: DocumentPlace) -> str:
    if not isinstance(row, dict):
        raise place.wrong(row, "an object")
    return (place / key).text(row.get(key))


def _sizes(document: Any, place: DocumentPlace) -> dict[str, int]:
    here = place / "workflow" / "specification" / "files"
    if "files" not in document["workflow"]["specification"]:
        return {}
    return {
        _text(row, "id", here / number): (here / number / "sizeInBytes").whole(
            row.get("sizeInBytes"), "a size in bytes"
        )
        for number, row in enumerate(_get(document, place, "workflow", "specification", "files"))
    }


def _run(name: str, ran: dict[str, tuple[int, Any]], place: DocumentPlace) -> tuple[float, str]:
    """Return the seconds that a task ran, and its program."""
    here = place / "workflow" / "execution" / "tasks"
    if name not in ran:
        raise GraphError(f"{here}: task {shown(name)} has no run time", remedy="give its runtimeInSeconds")
    number, row = ran[name]
    seconds = (here / number / "runtimeInSeconds").number(row.get("runtimeInSeconds"), "a run time")
    command = row.get("command")
    program = command.get("program", "") if isinstance(command, dict) else ""
    return seconds, program if isinstance(program, str) else ""


def _pairs(by_name: dict[str, object], place: DocumentPlace) -> list[tuple[str, str]]:
    """Yield every (parent, child) pair that either of them names, once."""
    found: dict[tuple[str, str], None] = {}
    for number, (name, row) in enumerate(by_name.items()):
        for key in ("parents", "children"):
            for other in _names(row, key, place / number):
                if other not in by_name:
                    raise GraphError(f"{place / number / key}: no task has the id {shown(other)}")
                found[(other, name) if key == "parents" else (name, other)] = None
    return list(found)


def _names(row: Any, key: str, place: DocumentPlace) -> list[str]:
    """Return a list of ids, [] where there is none."""
    given = row.get(key)
    given = [] if given is None else given
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise (place / key).wrong(given, "a list of ids", "write [] or a list of texts")
    return given


def _bytes(parent: object, child: object, sizes: dict[str, int], place: DocumentPlace) -> int:
    read = set(_names(child, "inputFiles", place))
    total = 0
    for name in dict.fromkeys(_names(parent, "outputFiles", place)):
        if name in read:
            if name not in sizes:
                raise GraphError(f"{place}: the file {shown(name)} has no size", remedy="list it in files")
            total += sizes[name]
    return total
