"""A task graph as arrays: the form that the planners' inner loops take.

In: a `TaskGraph`. Out: a `Problem` of NumPy arrays, tasks and devices as indices in the graph's order.
It must not choose anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.floor.errors import BadValueError
from hetero.model.graph import TaskGraph, topological_order
from hetero.model.topology import Link, Topology

__all__ = [
    "ROUTE_BYTES",
    "Floats",
    "Ints",
    "Moves",
    "Problem",
    "Routes",
    "Timeline",
    "backwards",
    "paths_from",
    "problem_of",
    "without_path",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUTE_BYTES = 1_000_000
"""Between two paths of as many links, the one that is faster for this many bytes is taken."""


class Problem(NamedTuple):
    """A task graph as arrays.

    Attributes
    ----------
    seconds
        Shape (n_tasks, n_devices), s; inf where a task cannot run.
    node
        Shape (n_devices,); number of each device's memory node.
    latency_s
        Shape (n_nodes, n_nodes), s; 0 on the diagonal.
    s_per_byte
        Shape (n_nodes, n_nodes), s/byte; 0 on the diagonal.
    pred_first, pred, pred_bytes
        The edges into task t are at pred_first[t] .. pred_first[t + 1] - 1.
    succ_first, succ, succ_bytes
        The edges out of task t.
    order
        A topological order.

    Notes
    -----
    An edge of b > 0 bytes from memory node i to j costs latency_s[i, j] + b * s_per_byte[i, j], and nothing
    where i = j. Where there is no link from i to j, the path of the fewest links is taken, each hop after
    the other. An edge of 0 bytes is an order alone and costs nothing.
    """

    seconds: Floats
    node: Ints
    latency_s: Floats
    s_per_byte: Floats
    pred_first: Ints
    pred: Ints
    pred_bytes: Floats
    succ_first: Ints
    succ: Ints
    succ_bytes: Floats
    order: Ints


class Timeline(NamedTuple):
    """A schedule as arrays, one entry a task.

    Attributes
    ----------
    device
        Shape (n_tasks,).
    start_s, finish_s
        Shape (n_tasks,), s.
    """

    device: Ints
    start_s: Floats
    finish_s: Floats

    @property
    def makespan_s(self) -> float:
        """The last finish, s."""
        return float(self.finish_s.max()) if len(self.finish_s) else 0.0


class Routes(NamedTuple):
    """The data items of a graph and the paths that they take, without names; see `Channels` of planners/contention."""

    n_nodes: int
    n_channels: int
    item_task: Ints
    item_bytes: Floats
    pred_item: Ints
    hop_first: Ints
    hop_src: Ints
    hop_dst: Ints
    hop_channel: Ints
    hop_latency_s: Floats
    hop_s_per_byte: Floats


class Moves(NamedTuple):
    """Transfers as arrays, one entry a hop.

    Attributes
    ----------
    item, hop
        Which data item, over which hop of `Routes`.
    start_s, finish_s
        Seconds.
    """

    item: Ints
    hop: Ints
    start_s: Floats
    finish_s: Floats


def problem_of(graph: TaskGraph) -> Problem:
    """Write a task graph as arrays.

    Raises
    ------
    BadValueError
        The graph has a cycle, a task that no device can run, or two memory nodes without a path between which data may
        have to go.
    """
    number = {task.id: index for index, task in enumerate(graph.tasks)}
    pairs = [(number[edge.src], number[edge.dst]) for edge in graph.edges]
    order = topological_order([task.id for task in graph.tasks], pairs)
    seconds = np.array([task.seconds for task in graph.tasks], dtype=np.float64).reshape(len(order), len(graph.devices))
    _refuse_stranded(graph, seconds)
    src = np.array([pair[0] for pair in pairs], dtype=np.int64)
    dst = np.array([pair[1] for pair in pairs], dtype=np.int64)
    nbytes = np.array([edge.nbytes for edge in graph.edges], dtype=np.float64)
    nodes = sorted({device.memory_node for device in graph.devices})
    latency_s, s_per_byte = _routes(graph, nodes)
    return Problem(
        seconds,
        np.array([nodes.index(device.memory_node) for device in graph.devices], dtype=np.int64),
        latency_s,
        s_per_byte,
        *_rows(dst, src, nbytes, len(order)),
        *_rows(src, dst, nbytes, len(order)),
        np.array(order, dtype=np.int64),
    )


def backwards(p: Problem) -> Problem:
    """Return the problem with every edge and link turned round: its schedules, read from the end, are those of `p`."""
    return Problem(
        p.seconds,
        p.node,
        np.ascontiguousarray(p.latency_s.T),
        np.ascontiguousarray(p.s_per_byte.T),
        p.succ_first,
        p.succ,
        p.succ_bytes,
        p.pred_first,
        p.pred,
        p.pred_bytes,
        p.order[::-1].copy(),
    )


def _refuse_stranded(graph: TaskGraph, seconds: Floats) -> None:
    stranded = np.flatnonzero(~np.isfinite(seconds).any(axis=1))
    if len(stranded):
        raise BadValueError(
            f"task {graph.tasks[stranded[0]].id!r} can run on no device", remedy="give its seconds on one of them"
        )


def _rows(of: Ints, other: Ints, nbytes: Floats, count: int) -> tuple[Ints, Ints, Floats]:
    """Sort edges by one end, then by the other."""
    by = np.lexsort((other, of))
    first = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(of, minlength=count), out=first[1:])
    return first, other[by], nbytes[by]


def without_path(graph: TaskGraph) -> tuple[str, str] | None:
    """Return two memory nodes without a path of links between which data may have to go, None for none.

    Notes
    -----
    Data may have to go from one to the other where a device of the first can run a task that makes some, and a device
    of the second one that reads it.
    """
    nodes = sorted({device.memory_node for device in graph.devices})
    if not nodes:
        return None
    number = {task.id: at for at, task in enumerate(graph.tasks)}
    of_device = np.array([nodes.index(device.memory_node) for device in graph.devices])
    runs = np.isfinite([task.seconds for task in graph.tasks]).reshape(len(number), len(graph.devices))
    on_node = np.stack([runs[:, of_device == node].any(axis=1) for node in range(len(nodes))], axis=1)
    carried = [(number[edge.src], number[edge.dst]) for edge in graph.edges if edge.nbytes > 0]
    src, dst = np.array(carried, dtype=np.int64).reshape(-1, 2).T
    goes = on_node[src].T.astype(np.float64) @ on_node[dst] > 0.0
    for row, name in enumerate(nodes):
        found = paths_from(graph.topology, name) if goes[row].any() else {}
        for column in np.flatnonzero(goes[row]):
            if nodes[column] not in found:
                return name, nodes[column]
    return None


def _routes(graph: TaskGraph, nodes: Sequence[str]) -> tuple[Floats, Floats]:
    """Return latency and s a byte between all memory nodes, 0 where there is no path and nothing has to go."""
    stranded = without_path(graph)
    if stranded is not None:
        raise BadValueError(
            f"no path of links leads from memory node {stranded[0]!r} to {stranded[1]!r}",
            remedy="add a link between them",
        )
    latency_s = np.zeros((len(nodes), len(nodes)))
    s_per_byte = np.zeros_like(latency_s)
    for row, src in enumerate(nodes):
        found = paths_from(graph.topology, src)
        for column, dst in enumerate(nodes):
            for link in found.get(dst, ()):
                latency_s[row, column] += link.latency_s
                s_per_byte[row, column] += 1.0 / link.bandwidth_bytes_per_s
    return latency_s, s_per_byte


def paths_from(topology: Topology, src: str) -> dict[str, tuple[Link, ...]]:
    """Return the path of the fewest links to each memory node within reach; of as many, the faster for a megabyte."""
    outgoing: dict[str, list[Link]] = {}
    for link in sorted(topology.links, key=lambda link: (link.src, link.dst)):
        outgoing.setdefault(link.src, []).append(link)
    found: dict[str, tuple[Link, ...]] = {src: ()}
    edge = [src]
    while edge:
        reached: dict[str, tuple[Link, ...]] = {}
        for node in edge:
            for link in outgoing.get(node, ()):
                if link.dst in found:
                    continue
                path = (*found[node], link)
                if link.dst not in reached or _path_s(path) < _path_s(reached[link.dst]):
                    reached[link.dst] = path
        found.update(reached)
        edge = sorted(reached)
    return found


def _path_s(path: tuple[Link, ...]) -> float:
    return sum(link.seconds(ROUTE_BYTES) for link in path)
