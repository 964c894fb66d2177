"""`hetero.graphs.Graph`: a task graph written down before any of it runs, so that all of it is planned from the start.

In: functions, their arguments, tasks of the graph among these. Out: futures of a Context. It must not place anything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hetero.floor.containers import is_container, rebuild
from hetero.floor.errors import BadValueError
from hetero.floor.units import shown
from hetero.graphs.formats import read_graph
from hetero.model.graph import topological_order
from hetero.session.context import Context
from hetero.session.futures import Future

__all__ = ["Graph", "GraphNode"]


class GraphNode:
    """One task of a `Graph`; give it to other tasks as an argument.

    Attributes
    ----------
    name
        The function's name, or the id in the file.
    """

    __slots__ = ("_args", "_function", "_graph", "_index", "_kwargs", "name")

    def __init__(
        self,
        graph: Graph,
        index: int,
        name: str,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: object,
    ) -> None:
        self._graph = graph
        self._index = index
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self.name = name

    def __repr__(self) -> str:
        return f"<Node {self._index} {self.name}>"


class Graph:
    """A task graph that is handed to a Context as a whole.

    Notes
    -----
    Futures make a graph too, but each task may start before the next is handed in. Here nothing is placed before
    everything is known, which the policy 'planned' makes use of.

    Examples
    --------
    >>> import hetero
    >>> graph = hetero.graphs.Graph()
    >>> low, high = graph.add(min, [3, 1, 2]), graph.add(max, [3, 1, 2])
    >>> both = graph.add(sum, [low, high])
    >>> with hetero.Context(devices="1xcpu", engine="inline", policy="planned") as ctx:
    ...     graph.run(ctx)
    [4]
    """

    def __init__(self) -> None:
        self._nodes: list[GraphNode] = []
        self._read: set[int] = set()

    def add(self, function: Callable[..., object], /, *args: object, **kwargs: object) -> GraphNode:
        """Add one call of a function.

        Parameters
        ----------
        function
            A task, or a plain function.
        *args, **kwargs
            Its arguments; a node, also inside lists, tuples, dicts, sets, named tuples and dataclasses, makes the task
            wait for it.

        Raises
        ------
        BadValueError
            It is no function, or a node is of another graph.

        Examples
        --------
        >>> import hetero
        >>> graph = hetero.graphs.Graph()
        >>> total = graph.add(sum, [graph.add(abs, -1), 2])
        >>> len(graph), total.name
        (2, 'sum')
        """
        if not callable(function):
            raise BadValueError(f"{shown(function)} is no function", remedy="give a function, then its arguments")
        named = getattr(function, "__name__", type(function).__name__)
        node = GraphNode(self, len(self._nodes), named, function, args, kwargs)
        _replaced((args, kwargs), self._used)
        self._nodes.append(node)
        return node

    def _used(self, node: GraphNode) -> GraphNode:
        if node._graph is not self:
            raise BadValueError(f"{node!r} is of another graph", remedy="add its task to this graph too")
        self._read.add(node._index)
        return node

    @classmethod
    def from_file(cls, path: str | Path, function: Callable[..., object]) -> Graph:
        """Read a hetero-graph/1 file; each task calls `function(task id, *results of the tasks before it)`.

        Raises
        ------
        GraphError
            The file is wrong.
        BadValueError
            It is no function.

        Examples
        --------
        >>> import hetero, json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "graph.json"
        >>> rows = {
        ...     "devices": [{"id": "cpu0", "memory_node": "ram"}],
        ...     "memory_nodes": [{"id": "ram"}],
        ...     "tasks": [{"id": "a", "seconds": {"cpu0": 1.0}}, {"id": "b", "seconds": {"cpu0": 1.0}}],
        ...     "edges": [{"src": "a", "dst": "b"}],
        ... }
        >>> _ = path.write_text(json.dumps({"format": "hetero-graph/1", "links": [], **rows}))
        >>> graph = hetero.graphs.Graph.from_file(path, lambda name, *before: [*before, name])
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     graph.run(ctx)
        [[['a'], 'b']]
        """
        read = read_graph(Path(path))
        number = {task.id: index for index, task in enumerate(read.tasks)}
        pairs = [(number[edge.src], number[edge.dst]) for edge in read.edges]
        before: list[list[int]] = [[] for _ in read.tasks]
        for src, dst in pairs:
            before[dst].append(src)
        graph, made = cls(), dict[int, GraphNode]()
        for index in topological_order([task.id for task in read.tasks], pairs):
            node = graph.add(function, read.tasks[index].id, *(made[src] for src in before[index]))
            node.name = read.tasks[index].id
            made[index] = node
        return graph

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def last(self) -> list[GraphNode]:
        """The tasks that no other task reads, in the order in which they were added."""
        return [node for node in self._nodes if node._index not in self._read]

    def submit(self, ctx: Context) -> dict[GraphNode, Future]:
        """Hand the whole graph in at once and give the future of each task.

        Raises
        ------
        SerialisationError
            A function or an argument cannot travel; nothing of the graph runs then.

        Examples
        --------
        >>> import hetero
        >>> graph = hetero.graphs.Graph()
        >>> one = graph.add(abs, -1)
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     graph.submit(ctx)[one].result()
        1
        """
        futures: dict[GraphNode, Future] = {}
        with ctx.driver.together():
            for node in self._nodes:
                args, kwargs = _replaced((node._args, node._kwargs), futures.__getitem__)
                futures[node] = ctx.submit(node._function, *args, **kwargs)
        return futures

    def run(self, ctx: Context) -> list[Any]:
        """Run the graph and give the results of the tasks that no other task reads.

        Examples
        --------
        >>> import hetero
        >>> graph = hetero.graphs.Graph()
        >>> _ = graph.add(sum, [graph.add(abs, -1), 2])
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     graph.run(ctx)
        [3]
        """
        futures = self.submit(ctx)
        return ctx.gather([futures[node] for node in self.last])

    def __repr__(self) -> str:
        return f"<hetero.graphs.Graph of {len(self._nodes)} tasks>"


def _replaced(value: object, of: Callable[[GraphNode], object]) -> Any:
    """Return a value with something else in place of each node, also inside containers."""
    if isinstance(value, GraphNode):
        return of(value)
    return rebuild(value, lambda each: _replaced(each, of)) if is_container(type(value)) else value
