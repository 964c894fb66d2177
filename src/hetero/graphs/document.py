"""The format hetero-graph/1: a JSON document as a `TaskGraph` and back.

In: a document as JSON gives it. Out: a checked graph, or an error that names the place. It must not read files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from hetero.floor.errors import BadValueError, GraphError, did_you_mean
from hetero.floor.text import has_control
from hetero.floor.units import shown
from hetero.model.graph import UNLIMITED_BYTES, GraphDevice, GraphEdge, GraphTask, TaskGraph, topological_order
from hetero.model.topology import Link, MemoryNode, Topology

__all__ = [
    "BEYOND",
    "BYTES_SCHEMA",
    "FORMAT",
    "ID_SCHEMA",
    "SECONDS_SCHEMA",
    "DocumentPlace",
    "checked_object",
    "checked_rows",
    "document_of",
    "fleet_of",
    "graph_of",
    "graph_schema",
    "known_id",
    "new_id",
    "rows_schema",
    "seconds_of",
]

FORMAT = "hetero-graph/1"

BEYOND = 1e19
"""No number of seconds, bytes or bytes per second is as large."""


LONGEST_NAME = 1000
"""Characters of a name."""

ID_SCHEMA = {"type": "string", "minLength": 1}
SECONDS_SCHEMA = {"type": "number", "minimum": 0, "exclusiveMaximum": BEYOND}
BYTES_SCHEMA = {"type": "integer", "minimum": 0, "maximum": UNLIMITED_BYTES}


class DocumentPlace:
    """A place in a document, for messages: 'g.json: tasks[3].seconds'.

    Parameters
    ----------
    words
        The place so far.

    Examples
    --------
    >>> DocumentPlace("g.json") / "tasks" / 3 / "seconds"
    g.json: tasks[3].seconds
    """

    __slots__ = ("_words",)

    def __init__(self, *words: str | int) -> None:
        self._words = words

    def __truediv__(self, word: str | int) -> DocumentPlace:
        return DocumentPlace(*self._words, word)

    def __repr__(self) -> str:
        file, *rest = self._words
        steps = (f"[{word}]" if isinstance(word, int) else f".{word}" for word in rest)
        return f"{file}: {''.join(steps).lstrip('.')}" if rest else str(file)

    def wrong(self, given: object, what: str, remedy: str = "") -> GraphError:
        """Return the error for a value here."""
        return GraphError(f"{self}: {shown(given)} is not {what}", remedy=remedy)

    def text(self, given: object) -> str:
        """Take a value that must be text and not empty."""
        if not isinstance(given, str) or not given:
            raise self.wrong(given, "a name", "write text between quotation marks")
        if has_control(given) or len(given) > LONGEST_NAME:
            raise self.wrong(given, "a name", f"write one line of at most {LONGEST_NAME} characters")
        return given

    def number(self, given: object, what: str, *, above: float = -1.0) -> float:
        """Take a value that must be a number >= 0, > `above` and not beyond all measure."""
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise self.wrong(given, what, "write a number")
        if not (0.0 <= given < BEYOND and given > above):
            raise self.wrong(
                given, what, f"write a number {f'> {above:g}' if above >= 0.0 else '>= 0'} and below {BEYOND:g}"
            )
        return float(given)

    def whole(self, given: object, what: str) -> int:
        """Take a value that must be a whole number of bytes."""
        number = self.number(given, what)
        whole = given if isinstance(given, int) else int(number)
        if number != int(number) or whole > UNLIMITED_BYTES:
            raise self.wrong(given, what, f"write a whole number up to {UNLIMITED_BYTES:,}")
        return whole


def graph_of(document: object, file: str) -> TaskGraph:
    """Check a hetero-graph/1 document.

    Parameters
    ----------
    document
        As JSON gives it.
    file
        Where it comes from, for messages.

    Raises
    ------
    GraphError
        Anything is missing, unknown, given twice, negative or beyond the format; or the tasks make a cycle.
    """
    place = DocumentPlace(file)
    named = checked_object(document, place, ("format", "devices", "memory_nodes", "links", "tasks", "edges"), ("name",))
    if named["format"] != FORMAT:
        raise (place / "format").wrong(named["format"], f"{FORMAT!r}")
    devices, topology = fleet_of(named, place)
    tasks = tuple(_tasks(named["tasks"], [device.id for device in devices], place / "tasks"))
    edges = tuple(_edges(named["edges"], [task.id for task in tasks], place / "edges"))
    number = {task.id: index for index, task in enumerate(tasks)}
    try:
        topological_order([task.id for task in tasks], [(number[edge.src], number[edge.dst]) for edge in edges])
    except BadValueError as error:
        raise GraphError(f"{place / 'edges'}: {error.problem}", remedy=error.remedy) from error
    return TaskGraph(devices, topology, tasks, edges)


def fleet_of(document: dict[str, object], place: DocumentPlace) -> tuple[tuple[GraphDevice, ...], Topology]:
    """Check the devices, memory nodes and links of a document."""
    nodes = tuple(_nodes(document["memory_nodes"], place / "memory_nodes"))
    names = [node.id for node in nodes]
    devices = tuple(_devices(document["devices"], names, place / "devices"))
    if not devices:
        raise (place / "devices").wrong([], "a fleet", "name at least one device")
    return devices, Topology(nodes, tuple(_links(document["links"], names, place / "links")))


def checked_object(
    given: object, place: DocumentPlace, needed: Sequence[str], more: Sequence[str] = ()
) -> dict[str, object]:
    """Take an object that has the needed keys, and of others only those that it may have."""
    if not isinstance(given, dict):
        raise place.wrong(given, "an object", f"write {{{', '.join(needed)}}}")
    allowed = (*needed, *more)
    for key in given:
        if key not in allowed:
            raise GraphError(
                f"{place}: the key {shown(key)} is not known{did_you_mean(key, allowed)}",
                remedy=f"allowed: {', '.join(allowed)}",
            )
    missing = [key for key in needed if key not in given]
    if missing:
        raise GraphError(f"{place}: the key {missing[0]!r} is missing", remedy=f"needed: {', '.join(needed)}")
    return given


def checked_rows(
    given: object, place: DocumentPlace, needed: Sequence[str], more: Sequence[str] = ()
) -> Iterator[tuple[DocumentPlace, Any]]:
    """Yield the objects of a list with their places, checked as by `checked_object`."""
    if not isinstance(given, list):
        raise place.wrong(given, "a list")
    for number, row in enumerate(given):
        here = place / number
        yield here, checked_object(row, here, needed, more)


def new_id(name: str, seen: dict[str, None], place: DocumentPlace) -> str:
    """Take an id that was not seen before."""
    if name in seen:
        raise GraphError(f"{place}: the id {shown(name)} is given twice", remedy="give each its own id")
    seen[name] = None
    return name


def known_id(given: object, names: Sequence[str] | dict[str, int], what: str, place: DocumentPlace) -> str:
    """Take a name that something has."""
    name = place.text(given)
    if name not in names:
        raise GraphError(f"{place}: no {what} has the id {shown(name)}{did_you_mean(name, list(names)[:1000])}")
    return name


def _nodes(given: object, place: DocumentPlace) -> Iterator[MemoryNode]:
    seen: dict[str, None] = {}
    for here, row in checked_rows(given, place, ("id",), ("capacity_bytes",)):
        name = new_id((here / "id").text(row["id"]), seen, here / "id")
        capacity = row.get("capacity_bytes")
        where = here / "capacity_bytes"
        yield MemoryNode(name, UNLIMITED_BYTES if capacity is None else where.whole(capacity, "a number of bytes"))


def _devices(given: object, nodes: Sequence[str], place: DocumentPlace) -> Iterator[GraphDevice]:
    seen: dict[str, None] = {}
    for here, row in checked_rows(given, place, ("id", "memory_node"), ("kind",)):
        name = new_id((here / "id").text(row["id"]), seen, here / "id")
        node = known_id(row["memory_node"], nodes, "memory node", here / "memory_node")
        yield GraphDevice(name, node, (here / "kind").text(row["kind"]) if row.get("kind") else "")


def _links(given: object, nodes: Sequence[str], place: DocumentPlace) -> Iterator[Link]:
    seen: dict[str, None] = {}
    for here, row in checked_rows(given, place, ("src", "dst", "bandwidth_bytes_per_s", "latency_s"), ("bus",)):
        src = known_id(row["src"], nodes, "memory node", here / "src")
        dst = known_id(row["dst"], nodes, "memory node", here / "dst")
        if src == dst:
            raise (here / "dst").wrong(dst, "another memory node than src", "take the link out")
        new_id(f"{src} → {dst}", seen, here)
        yield Link(
            src,
            dst,
            (here / "latency_s").number(row["latency_s"], "a number of seconds"),
            (here / "bandwidth_bytes_per_s").number(row["bandwidth_bytes_per_s"], "a bandwidth", above=1.0 / BEYOND),
            (here / "bus").text(row["bus"]) if row.get("bus") else "",
        )


def _tasks(given: object, devices: Sequence[str], place: DocumentPlace) -> Iterator[GraphTask]:
    seen: dict[str, None] = {}
    column = {name: index for index, name in enumerate(devices)}
    for here, row in checked_rows(given, place, ("id", "seconds")):
        name = new_id((here / "id").text(row["id"]), seen, here / "id")
        yield GraphTask(name, seconds_of(row["seconds"], column, here / "seconds", f"task {shown(name)}"))


def seconds_of(given: object, column: dict[str, int], place: DocumentPlace, what: str) -> tuple[float, ...]:
    """Check an object of device id to seconds; return a row, inf where a device is absent.

    Parameters
    ----------
    column
        The place of each device in the row.
    what
        Takes the seconds, for messages.
    """
    if not isinstance(given, dict):
        raise place.wrong(given, "an object", "write {device id: seconds}")
    seconds = [math.inf] * len(column)
    for device, value in given.items():
        if device not in column:
            known_id(device, column, "device", place)
        seconds[column[device]] = (place / device).number(value, "a number of seconds")
    if not given:
        raise GraphError(f"{place}: {what} can run on no device", remedy="give its seconds on one")
    return tuple(seconds)


def _edges(given: object, tasks: Sequence[str], place: DocumentPlace) -> Iterator[GraphEdge]:
    seen: dict[str, None] = {}
    known = {name: index for index, name in enumerate(tasks)}
    for here, row in checked_rows(given, place, ("src", "dst"), ("bytes",)):
        src = known_id(row["src"], known, "task", here / "src")
        dst = known_id(row["dst"], known, "task", here / "dst")
        new_id(f"{src} → {dst}", seen, here)
        yield GraphEdge(src, dst, (here / "bytes").whole(row.get("bytes", 0), "a number of bytes"))


def document_of(graph: TaskGraph) -> dict[str, object]:
    """Write a graph as a hetero-graph/1 document; `graph_of` gives the same graph back."""
    names = [device.id for device in graph.devices]
    return {
        "format": FORMAT,
        "devices": [
            {"id": device.id, "memory_node": device.memory_node, **({"kind": device.kind} if device.kind else {})}
            for device in graph.devices
        ],
        "memory_nodes": [
            {"id": node.id, "capacity_bytes": None if node.capacity_bytes == UNLIMITED_BYTES else node.capacity_bytes}
            for node in graph.topology.nodes
        ],
        "links": [_link(link) for link in graph.topology.links],
        "tasks": [
            {
                "id": task.id,
                "seconds": {name: s for name, s in zip(names, task.seconds, strict=True) if s < math.inf},
            }
            for task in graph.tasks
        ],
        "edges": [{"src": edge.src, "dst": edge.dst, "bytes": edge.nbytes} for edge in graph.edges],
    }


def _link(link: Link) -> dict[str, object]:
    written = {
        "src": link.src,
        "dst": link.dst,
        "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        "latency_s": link.latency_s,
    }
    return {**written, "bus": link.bus} if link.bus else written


def rows_schema(needed: dict[str, object], more: dict[str, object] | None = None, least: int = 0) -> dict[str, object]:
    """Return the schema of a list of objects."""
    row = {
        "type": "object",
        "properties": {**needed, **(more or {})},
        "required": list(needed),
        "additionalProperties": False,
    }
    return {"type": "array", "items": row, "minItems": least}


def graph_schema() -> dict[str, object]:
    """Return the schema, draft 2020-12."""
    link = {"src": ID_SCHEMA, "dst": ID_SCHEMA, "bandwidth_bytes_per_s": {**SECONDS_SCHEMA, "exclusiveMinimum": 0}}
    seconds = {"type": "object", "additionalProperties": SECONDS_SCHEMA, "minProperties": 1}
    properties = {
        "format": {"const": FORMAT},
        "devices": rows_schema({"id": ID_SCHEMA, "memory_node": ID_SCHEMA}, {"kind": {"type": "string"}}, least=1),
        "memory_nodes": rows_schema(
            {"id": ID_SCHEMA}, {"capacity_bytes": {**BYTES_SCHEMA, "type": ["integer", "null"]}}
        ),
        "links": rows_schema({**link, "latency_s": SECONDS_SCHEMA}, {"bus": {"type": "string"}}),
        "tasks": rows_schema({"id": ID_SCHEMA, "seconds": seconds}),
        "edges": rows_schema({"src": ID_SCHEMA, "dst": ID_SCHEMA}, {"bytes": BYTES_SCHEMA}),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FORMAT,
        "type": "object",
        "properties": {**properties, "name": {"type": "string"}},
        "required": list(properties),
        "additionalProperties": False,
    }
