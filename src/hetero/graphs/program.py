"""`hetero.graphs.Graph`: a task graph written down before any of it runs, so that all of it is planned from the start.

In: functions, their arguments, tasks and data of the graph among these. Out: futures of a Context. It must not place
anything.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hetero.drive.frame import current
from hetero.engines.shared.items import MISSING
from hetero.floor.errors import BadValueError
from hetero.floor.units import shown
from hetero.graphs.formats import read_graph
from hetero.graphs.graph_plan import GraphPlan
from hetero.graphs.handles import Access, GraphData, GraphNode, Uses, Version, replaced
from hetero.model.graph import topological_order
from hetero.session.context import Context
from hetero.session.futures import Future
from hetero.session.task_context import TaskContext
from hetero.session.tasks import as_task

__all__ = ["Graph", "GraphNode"]


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
        self._data: weakref.WeakValueDictionary[int, GraphData] = weakref.WeakValueDictionary()
        self._handles = 0
        self._commutes = False
        self._waited_for: list[Collection[int]] = []

    def data(
        self, value: object = MISSING, /, *, name: str = "", operator: Callable[..., object] | None = None
    ) -> GraphData:
        """Return a handle of data that tasks read and write, in the order in which they are added.

        Parameters
        ----------
        value
            What it holds before the first task, taken when the graph is submitted; a node or a future for its result.
            Without one a task has to write it first.
        name
            For people.
        operator
            Associative function of two values, by which `handle.reduce` combines them, the earlier one first; it may
            change that one in place, and returns the total.

        Raises
        ------
        BadValueError
            The node is of another graph, the value is a handle, or the operator is no function.

        Notes
        -----
        A task is given `handle.read`, `write`, `readwrite`, `commute` or `reduce`. The result is that of running the
        tasks one after another: a task reads what those before it have written. Each write makes a new version, so that
        nobody waits for those that still read the one before. The function returns the new value; of several handles a
        tuple, in the order in which they were given to `add`.

        Examples
        --------
        >>> import hetero
        >>> graph = hetero.graphs.Graph()
        >>> items, longest = graph.data(["pear", "fig"], name="items"), graph.data(name="longest")
        >>> _ = graph.add(sorted, items.readwrite)
        >>> _ = graph.add(max, items.read, longest.write, key=len)
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     _ = graph.run(ctx)
        ...     items.result(), longest.result()
        (['fig', 'pear'], 'pear')
        """
        if operator is not None and not callable(operator):
            raise BadValueError(f"{shown(operator)} is no operator", remedy="give a function of two values")
        if isinstance(value, GraphData | Access):
            raise BadValueError(f"graph.data was given the handle {value}", remedy="give a value, a node or a future")
        version = Version(start=self._used(value) if isinstance(value, GraphNode) else value)
        version.level = value._level if isinstance(value, GraphNode) else 0
        self._handles += 1
        made = GraphData(self, version, name or f"data {self._handles}", operator)
        self._data[self._handles] = made
        return made

    def add(
        self, function: Callable[..., object], /, *args: object, after: Iterable[GraphNode] = (), **kwargs: object
    ) -> GraphNode:
        """Add one call of a function.

        Parameters
        ----------
        function
            A task, or a plain function.
        *args, **kwargs
            Its arguments; a node, or `handle.read` of a handle of `data`, also inside lists, tuples, dicts, sets, named
            tuples and dataclasses, makes the task wait for it. For `handle.write` the function gets no argument.
        after
            Nodes that must have ended before, although it reads nothing of them.

        Raises
        ------
        BadValueError
            It is no function; a node or a handle is of another graph; a handle is used in two modes, or read before
            anything writes it.

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
        uses = Uses(self, named, args, kwargs)
        node = GraphNode(self, len(self._nodes), named, function, uses, self._checked(after))
        if node._makes and as_task(function).split is not None:
            raise BadValueError(
                f"{named} has split= and writes {next(iter(uses.makes)).name}",
                remedy="give it values and nodes, or drop split=",
            )
        needs: list[GraphNode | Version] = [*node._after, *uses.reads]
        replaced(node._call, (GraphNode,), lambda each: needs.append(self._used(each)))
        node._level = 1 + max([each._level if isinstance(each, GraphNode) else each.level for each in needs], default=0)
        self._write(uses, node._level)
        self._nodes.append(node)
        return node

    def _write(self, uses: Uses, level: int) -> None:
        """Move the handles of a task on to what it makes."""
        for version in uses.reads:
            version.closed = True
        for data, version in uses.makes.items():
            if version.before is not None:
                version.before.closed = True
            self._commutes |= version.mode == "commute"
            version.makers += 1
            version.level = max(version.level, level)
            data._version = version

    def _checked(self, after: Iterable[GraphNode]) -> tuple[GraphNode, ...]:
        nodes = (after,) if isinstance(after, GraphNode) or not isinstance(after, Iterable) else tuple(after)
        for node in nodes:
            if not isinstance(node, GraphNode):
                raise BadValueError(f"after= was given {shown(node)}", remedy="give what graph.add returned")
            self._own(node)
        return nodes

    def _own(self, node: GraphNode) -> GraphNode:
        if node._graph is not self:
            raise BadValueError(f"{node!r} is of another graph", remedy="add its task to this graph too")
        return node

    def _used(self, node: GraphNode) -> GraphNode:
        self._read.add(self._own(node)._index)
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
        read = read_graph(Path(path), items=False)
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
        """The tasks that no other task reads and that write no handle, in the order in which they were added."""
        return [node for node in self._nodes if node._index not in self._read and not node._makes]

    def plan(self, ctx: Context | TaskContext) -> GraphPlan:
        """Take down the calls of the graph as it is now, to run them any number of times.

        Parameters
        ----------
        ctx
            A Context; inside a task what `hetero.current_context()` gives.

        Examples
        --------
        >>> import hetero
        >>> graph = hetero.graphs.Graph()
        >>> number = graph.data(1)
        >>> _ = graph.add(pow, number.readwrite, 2)
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     plan = graph.plan(ctx)
        ...     for value in (3, 4):
        ...         _ = plan.run({number: value})
        ...         print(number.result())
        9
        16
        """
        return GraphPlan(self, ctx)

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
        return GraphPlan(self, ctx).submit()

    def _ordered(self) -> list[GraphNode]:
        """Return the tasks in an order in which each comes after those that it needs.

        Of tasks that commute those go first to which fewer tasks lead: they are ready earlier.
        """
        return sorted(self._nodes, key=lambda node: (node._level, node._index)) if self._commutes else self._nodes

    def run(self, ctx: Context | TaskContext) -> list[Any]:
        """Run the graph and give the results of the tasks that no other task reads and that write no handle.

        What handles hold then is read by `handle.result()`.

        Parameters
        ----------
        ctx
            A Context; inside a task what `hetero.current_context()` gives.

        Raises
        ------
        Exception
            Whatever one of the tasks raised.

        Examples
        --------
        >>> import hetero
        >>> graph = hetero.graphs.Graph()
        >>> _ = graph.add(sum, [graph.add(abs, -1), 2])
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     graph.run(ctx)
        [3]
        """
        return GraphPlan(self, ctx).run()

    @contextmanager
    def _waits(self, items: Collection[int]) -> Iterator[None]:
        """Note the tasks for which somebody waits inside; none of them must wait for the graph again."""
        self._refuse_circle()
        self._waited_for.append(items)
        try:
            yield
        finally:
            self._waited_for.remove(items)

    def _refuse_circle(self) -> None:
        frame = current()
        if frame is not None and any(frame.task in items for items in self._waited_for):
            raise BadValueError(
                f"{self!r} would wait for itself: task {frame.task}, which runs it, is one that it waits for",
                remedy="make a graph of its own inside the task",
            )

    def __repr__(self) -> str:
        return f"<hetero.graphs.Graph of {len(self._nodes)} tasks>"
