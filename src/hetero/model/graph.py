"""Task graphs: tasks with a table of seconds per device, edges with bytes, and the memory nodes and links they use.

In: values that a reader checked or a program built. Out: frozen values. It must not read files or plan anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hetero.floor.errors import BadValueError
from hetero.model.topology import Topology

__all__ = ["UNLIMITED_BYTES", "GraphDevice", "GraphEdge", "GraphTask", "TaskGraph", "topological_order"]

UNLIMITED_BYTES = 2**63 - 1
"""The capacity of a memory node of which none is given."""


class GraphDevice(NamedTuple):
    """One device of a graph's fleet.

    Attributes
    ----------
    id
        Unique in the graph.
    memory_node
        Id of the memory node that its data lives on.
    kind
        The device kind, '' where it does not matter.

    Examples
    --------
    >>> import hetero
    >>> hetero.graphs.GraphDevice("gpu0", "vram", "cuda").kind
    'cuda'
    """

    id: str
    memory_node: str
    kind: str = ""


class GraphTask(NamedTuple):
    """One task and its row of the table task × device.

    Attributes
    ----------
    id
        Unique in the graph.
    seconds
        Shape (n_devices,), s, in the order of the graph's devices; inf where it cannot run.

    Examples
    --------
    >>> import hetero
    >>> hetero.graphs.GraphTask("fft", (8.0, 0.5)).seconds
    (8.0, 0.5)
    """

    id: str
    seconds: tuple[float, ...]


class GraphEdge(NamedTuple):
    """What one task hands to another.

    Attributes
    ----------
    src, dst
        Task ids.
    nbytes
        >= 0, bytes that travel when the two run on different memory nodes; 0 for an order alone.

    Examples
    --------
    >>> import hetero
    >>> hetero.graphs.GraphEdge("load", "fft", 2_000_000).dst
    'fft'
    """

    src: str
    dst: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """A task graph over a fleet.

    Attributes
    ----------
    devices
        At least one.
    topology
        The memory nodes and links.
    tasks
        In the order of the file; ties are broken by this order.
    edges
        At most one for each pair of tasks.

    Examples
    --------
    >>> import hetero
    >>> from hetero.graphs import GraphDevice, GraphTask, MemoryNode, TaskGraph, Topology
    >>> topology = Topology((MemoryNode("ram", 10**9),))
    >>> graph = TaskGraph((GraphDevice("cpu0", "ram"),), topology, (GraphTask("load", (1.0,)),), ())
    >>> hetero.graphs.plan_graph(graph, "heft").schedule.makespan_s
    1.0
    """

    devices: tuple[GraphDevice, ...]
    topology: Topology
    tasks: tuple[GraphTask, ...]
    edges: tuple[GraphEdge, ...]


def topological_order(names: Sequence[str], edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the tasks in an order in which every edge points forward; among free tasks the first goes first.

    Parameters
    ----------
    names
        Task ids, for the message.
    edges
        (src, dst) as indices into `names`.

    Raises
    ------
    BadValueError
        The edges make a cycle; the message names it.

    Examples
    --------
    >>> topological_order(["a", "b", "c"], [(2, 0), (0, 1)])
    [2, 0, 1]
    """
    waits = [0] * len(names)
    children: list[list[int]] = [[] for _ in names]
    for src, dst in edges:
        waits[dst] += 1
        children[src].append(dst)
    order = [task for task, count in enumerate(waits) if count == 0]
    for task in order:
        for child in children[task]:
            waits[child] -= 1
            if waits[child] == 0:
                order.append(child)
    if len(order) < len(names):
        raise BadValueError(
            f"the tasks make a cycle: {_cycle(names, children, waits)}", remedy="take out one of its edges"
        )
    return order


def _cycle(names: Sequence[str], children: Sequence[Sequence[int]], waits: Sequence[int]) -> str:
    """Name one cycle among the tasks that still wait, cut after eight tasks."""
    parent = {child: task for task in range(len(names)) if waits[task] for child in children[task] if waits[child]}
    task = min(task for task, count in enumerate(waits) if count)
    seen: dict[int, int] = {}
    while task not in seen:
        seen[task] = len(seen)
        task = parent[task]
    back = list(seen)[seen[task] :]
    loop = [names[number] for number in [task, *reversed(back)]]
    shown = loop if len(loop) <= 9 else [*loop[:4], "…", *loop[-4:]]
    return " → ".join(shown)
