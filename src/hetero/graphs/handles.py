"""Tasks and data of a `Graph`, by handles: tasks say what they read and write, and their order follows from that.

In: accesses in the order in which tasks are added. Out: for each task the versions that it reads and makes.
It must not submit anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast, get_args

from hetero.drive.call_environment import Writes
from hetero.engines.shared.items import MISSING
from hetero.floor.containers import is_container, rebuild
from hetero.floor.errors import BadValueError, SerialisationError, did_you_mean
from hetero.session.futures import Future, RaisingFuture

if TYPE_CHECKING:
    from hetero.graphs.program import Graph

__all__ = ["Access", "GraphData", "GraphNode", "Uses", "Version", "replaced"]


Shape = TypeVar("Shape")

Mode = Literal["read", "write", "readwrite", "commute", "reduce"]

_MODES: tuple[Mode, ...] = get_args(Mode)

IN_PLACE: tuple[Mode, ...] = ("readwrite", "commute")
"""Modes in which the function gets the value as an argument that it may change."""


class Version:
    """What a handle holds between two tasks that write it, or after a group of tasks whose order does not matter.

    Attributes
    ----------
    start
        The value, where it is there from the beginning.
    mode
        'write' where one task makes it, 'commute' or 'reduce' where a group does.
    before
        The version that a group begins with.
    operator, name
        By which a group that reduces combines values, and the name of its handle.
    makers
        How many tasks make it.
    level
        Length of the longest path of tasks that leads to it.
    closed
        True once it is read, so that no further task joins the group.
    """

    __slots__ = ("before", "closed", "level", "makers", "mode", "name", "operator", "start")

    def __init__(self, mode: Mode = "write", before: Version | None = None, start: object = MISSING) -> None:
        self.start = start
        self.mode = mode
        self.before = before
        self.operator: Callable[..., object] | None = None
        self.name = ""
        self.makers = 0
        self.level: int = 0 if before is None else before.level
        self.closed = False

    @property
    def has_value(self) -> bool:
        """Return whether there is something to read."""
        return self.makers > 0 or self.start is not MISSING


class GraphData:
    """A handle of data that the tasks of a `Graph` read and write; made by `Graph.data`.

    Attributes
    ----------
    name
        For people.
    """

    __slots__ = ("__weakref__", "_first", "_graph", "_latest", "_operator", "_version", "name")

    def __init__(self, graph: Graph, version: Version, name: str, operator: Callable[..., object] | None) -> None:
        self._graph = graph
        self._first = self._version = version
        self._operator = operator
        self._latest: RaisingFuture[object] | None = None
        self.name = name

    @property
    def read(self) -> Access:
        """The value as an argument, which the task leaves as it is."""
        return Access(self, "read")

    @property
    def write(self) -> Access:
        """The result of the task is the new value; the function gets no argument for it."""
        return Access(self, "write")

    @property
    def readwrite(self) -> Access:
        """The value as an argument, which may be changed in place; the result of the task is the new value."""
        return Access(self, "readwrite")

    @property
    def commute(self) -> Access:
        """As `readwrite`, among neighbours whose order does not matter: those that are ready early go first."""
        return Access(self, "commute")

    @property
    def reduce(self) -> Access:
        """The result of the task is combined with the value by the operator of the handle; there is no argument."""
        return Access(self, "reduce")

    def result(self, timeout: float | None = None) -> Any:
        """Return the value after the latest `run` or `submit` of the graph, waiting for it if need be.

        Parameters
        ----------
        timeout
            S, at the longest; None for no limit.

        Raises
        ------
        BadValueError
            The graph has not run since the handle was made, or nothing writes the handle.
        TimeoutError
            The value is not there in time.
        Exception
            Whatever the task raised that would have written it.

        Examples
        --------
        >>> import hetero
        >>> graph = hetero.graphs.Graph()
        >>> total = graph.data(1, name="total")
        >>> _ = graph.add(pow, 2, 3, total.write)
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     _ = graph.run(ctx)
        ...     total.result()
        8
        """
        if not self._version.has_value:
            raise BadValueError(
                f"{self.name} has no value, and no task writes it",
                remedy="give graph.data a value, or add a task that writes it",
            )
        if self._latest is None:
            raise BadValueError(f"{self.name} has no value yet", remedy="run the graph first: graph.run(ctx)")
        return self._latest.result(timeout)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self.name} has no {name!r}{did_you_mean(name, _MODES)}; allowed: {', '.join(_MODES)}, result()"
        )

    def __reduce__(self) -> NoReturn:
        raise SerialisationError(
            f"the handle {self.name} cannot travel to a worker", remedy=f"give graph.add {self.name}.read"
        )

    def __repr__(self) -> str:
        return f"<Data {self.name}>"


class GraphNode:
    """One task of a `Graph`; give it to other tasks as an argument.

    Attributes
    ----------
    name
        The function's name, or the id in the file.
    """

    __slots__ = ("_after", "_call", "_function", "_graph", "_index", "_level", "_makes", "_writes", "name")

    def __init__(
        self,
        graph: Graph,
        index: int,
        name: str,
        function: Callable[..., object],
        uses: Uses,
        after: tuple[GraphNode, ...],
    ) -> None:
        self._graph = graph
        self._index = index
        self._function = function
        self._call = (uses.args, uses.kwargs)
        self._after = after
        self._makes = tuple(uses.makes.values())
        self._level = 0
        names = tuple([data.name for data in uses.makes])
        self._writes = Writes(tuple(uses.changes), names, copies=False) if names else None
        self.name = name

    def __getattr__(self, name: str) -> NoReturn:
        of_its_future = not name.startswith("_") and hasattr(Future, name)
        raise AttributeError(
            f"a node has no {name!r}" + (f"; its future has: graph.submit(ctx)[node].{name}" if of_its_future else "")
        )

    def __repr__(self) -> str:
        return f"<Node {self._index} {self.name}>"


class Access:
    """How one task uses one handle, as in `handle.readwrite`; it stands among the arguments of `Graph.add`."""

    __slots__ = ("data", "mode")

    def __init__(self, data: GraphData, mode: Mode) -> None:
        self.data = data
        self.mode = mode

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse to be called."""
        raise BadValueError(f"{self} is no function", remedy=f"give it as it is: graph.add(f, {self})")

    def __repr__(self) -> str:
        return f"{self.data.name}.{self.mode}"


class Uses:
    """What one task reads and writes, checked before the graph takes it.

    Parameters
    ----------
    graph, name
        The graph, and the name of the function.
    args, kwargs
        The arguments as they were given.

    Attributes
    ----------
    args, kwargs
        The same with a `Version` for what is read, and without what is only written.
    changes
        Positions and names of the arguments that the function may change in place.
    reads
        The versions that must be there before.
    makes
        The version that the task makes of each handle that it writes, in the order in which it returns their values.
    """

    def __init__(self, graph: Graph, name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        self._graph, self._name = graph, name
        self._modes: dict[GraphData, Mode] = {}
        self.changes: list[int | str] = []
        self.reads: list[Version] = []
        self.makes: dict[GraphData, Version] = {}
        kept: list[object] = []
        for value in args:
            if isinstance(value, Access) and value.mode in ("write", "reduce"):
                self._made(value)
            else:
                kept.append(self._argument(value, len(kept)))
        self.args = tuple(kept)
        self.kwargs = {word: self._argument(value, word) for word, value in kwargs.items()}

    def _argument(self, value: object, place: int | str) -> object:
        if not isinstance(value, Access) or value.mode == "read":
            return self._inside(value)
        if value.mode not in IN_PLACE:
            raise BadValueError(
                f"{self._name} gets no argument for {value}, and {place}= gives it one",
                remedy=f"give {value} without a name in front",
            )
        self.changes.append(place)
        before, made = self._read(value), self._made(value)
        return made if value.mode == "commute" else before

    def _inside(self, value: object) -> object:
        if isinstance(value, Access):
            if value.mode != "read":
                raise BadValueError(
                    f"{value} stands inside a list or dict that {self._name} gets, where handles can only be read",
                    remedy=f"give {value} as an argument of its own",
                )
            return self._read(value)
        if isinstance(value, GraphData):
            raise BadValueError(
                f"{self._name} does not say how it uses {value.name}",
                remedy=f"give {value.name}.read, {value.name}.write or {value.name}.readwrite",
            )
        return rebuild(value, self._inside) if is_container(type(value)) else value

    def _note(self, access: Access) -> GraphData:
        data = access.data
        if data._graph is not self._graph:
            raise BadValueError(f"{data.name} is a handle of another graph", remedy="make one with graph.data here")
        before = self._modes.setdefault(data, access.mode)
        if before != access.mode:
            raise BadValueError(
                f"{self._name} uses {data.name} in two modes, {before} and {access.mode}",
                remedy=f"give {data.name}.readwrite once",
            )
        return data

    def _read(self, access: Access) -> Version:
        """Return the version that the task reads; one that commutes reads what was there before its group."""
        version = self._note(access)._version
        if version.mode == access.mode == "commute" and not version.closed and version.before is not None:
            version = version.before
        if not version.has_value:
            raise BadValueError(
                f"{self._name} reads {access.data.name}, which has no value and which no task before it writes",
                remedy="give graph.data a value, or add the task that writes it before",
            )
        self.reads.append(version)
        return version

    def _made(self, access: Access) -> Version:
        """Return the version that the task makes, or joins in making."""
        data, mode = self._note(access), access.mode
        if data in self.makes:
            raise BadValueError(f"{self._name} writes {data.name} twice", remedy=f"give {access} once")
        if mode == "reduce" and data._operator is None:
            raise BadValueError(
                f"{self._name} reduces {data.name}, which has no operator", remedy="make it by graph.data(operator=…)"
            )
        version = data._version
        if mode not in ("commute", "reduce"):
            version = Version()
        elif version.mode != mode or version.closed:
            version = Version(mode, version)
            version.operator, version.name = data._operator, data.name
        self.makes[data] = version
        return version


def replaced(value: Shape, kinds: tuple[type, ...], of: Callable[..., object]) -> Shape:
    """Return a value with something else in place of each object of these types, also inside containers."""
    if isinstance(value, kinds):
        return cast("Shape", of(value))
    if not is_container(type(value)):
        return value
    return cast("Shape", rebuild(value, lambda each: replaced(each, kinds, of)))
