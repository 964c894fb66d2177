"""Task graphs of tiled linear algebra with measured milliseconds a device kind: a line a task.

In: text and a fleet whose devices name a column by their kind. Out: a `TaskGraph`.
It must not invent bytes: those of a tile are handed in.
"""

from __future__ import annotations

import math

from hetero.floor.errors import GraphError
from hetero.floor.units import shown
from hetero.graphs.fleet_files import GraphFleet
from hetero.model.graph import GraphEdge, GraphTask, TaskGraph

__all__ = ["read_hswf"]


def read_hswf(text: str, file: str, fleet: GraphFleet, kinds: tuple[str, ...], edge_bytes: int = 0) -> TaskGraph:
    """Read a graph of lines 'id ms … predecessors', one column of milliseconds a device kind; -1 cannot run there.

    Parameters
    ----------
    fleet : a task of t milliseconds in a device's column takes t / 1000 / speed seconds there
    kinds : the columns, as in ('cpu', 'gpu'); each device of the fleet has one of them as its kind
    edge_bytes : the bytes of every edge, a tile's

    Raises
    ------
    GraphError
        A line or an id is wrong, or a device is of a kind that has no column.

    References
    ----------
    M. Amaris, G. Lucarelli, C. Mommessin, D. Trystram, "Generic algorithms for scheduling applications on
    heterogeneous platforms", Concurrency and Computation 31 (2019), e4905: Chameleon's graphs with times.
    """
    columns = _columns(fleet, kinds)
    tasks: list[GraphTask] = []
    edges: list[GraphEdge] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace(",", " ").split()
        if not words:
            continue
        name, milliseconds = words[0], _milliseconds(words[1 : 1 + len(kinds)], len(kinds), f"{file}:{number}")
        spans = zip(columns, fleet.speed, strict=True)
        tasks.append(GraphTask(name, tuple(milliseconds[column] / 1e3 / speed for column, speed in spans)))
        edges += [GraphEdge(before, name, edge_bytes) for before in dict.fromkeys(words[1 + len(kinds) :])]
    known = {task.id for task in tasks}
    stray = next((edge for edge in edges if edge.src not in known), None)
    if stray is not None:
        raise GraphError(f"{file}: task {stray.dst}: no task has the id {stray.src}")
    return TaskGraph(fleet.devices, fleet.topology, tuple(tasks), tuple(edges))


def _columns(fleet: GraphFleet, kinds: tuple[str, ...]) -> list[int]:
    """Return the number of each device's column."""
    for device in fleet.devices:
        if device.kind not in kinds:
            raise GraphError(
                f"device {device.id!r} is of the kind {device.kind!r}, and no column is",
                remedy=f"give it one of the kinds {', '.join(kinds)} in the fleet file",
            )
    return [kinds.index(device.kind) for device in fleet.devices]


def _milliseconds(words: list[str], count: int, place: str) -> list[float]:
    try:
        found = [float(word) for word in words]
    except ValueError as error:
        raise GraphError(f"{place}: {shown(' '.join(words))} are not milliseconds") from error
    if len(found) < count or not all(math.isfinite(value) for value in found):
        raise GraphError(f"{place}: {count} columns of milliseconds are due")
    return [math.inf if value < 0.0 else value for value in found]
