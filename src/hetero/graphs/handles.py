"""Data of a `Graph` by handles: tasks say what they read and write, and their order follows from that.

In: accesses in the order in which tasks are added. Out: for each task the versions that it reads and makes.
It must not submit anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from hetero.floor.containers import is_container, rebuild
from hetero.floor.errors import BadValueError, SerialisationError
from hetero.session.futures import Future

if TYPE_CHECKING:
    from hetero.graphs.program import Graph

__all__ = ["MISSING", "Access", "GraphData", "Uses", "Version", "replaced"]


class _Missing:
    __slots__ = ()


MISSING = _Missing()

Mode = Literal["read", "write", "readwrite"]


class Version:
    """What a handle holds between two tasks that write it.

    Attributes
    ----------
    start
        The value, where it is there from the beginning.
    maker
        Index of the task that makes it, None for a value that is there from the beginning.
    """

    __slots__ = ("maker", "start")

    def __init__(self, start: object = MISSING, maker: int | None = None) -> None:
        self.start = start
        self.maker = maker


class GraphData:
    """A handle of data that the tasks of a `Graph` read and write; made by `Graph.data`.

    Attributes
    ----------
    name
        For people.
    """

    __slots__ = ("__weakref__", "_graph", "_latest", "_version", "name")

    def __init__(self, graph: Graph, start: object, name: str) -> None:
        self._graph = graph
        self._version = Version(start)
        self._latest: object = MISSING
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

    def result(self) -> Any:
        """Return the value after the latest `run` or `submit` of the graph, waiting for it if need be.

        Raises
        ------
        BadValueError
            The graph has not run since the handle was made, or nothing has written the handle.
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
        if self._latest is MISSING:
            raise BadValueError(f"{self.name} has no value yet", remedy="run the graph first: graph.run(ctx)")
        return self._latest.result() if isinstance(self._latest, Future) else self._latest

    def __reduce__(self) -> NoReturn:
        raise SerialisationError(
            f"the handle {self.name} cannot travel to a worker", remedy=f"give graph.add {self.name}.read"
        )

    def __repr__(self) -> str:
        return f"<Data {self.name}>"


class Access:
    """How one task uses one handle, as in `handle.readwrite`; it stands among the arguments of `Graph.add`."""

    __slots__ = ("data", "mode")

    def __init__(self, data: GraphData, mode: Mode) -> None:
        self.data = data
        self.mode = mode

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
    written
        The handles that the task writes, in the order in which it returns their values.
    """

    def __init__(self, graph: Graph, name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        self._graph, self._name = graph, name
        self._modes: dict[GraphData, Mode] = {}
        self.written: list[GraphData] = []
        self.changes: list[int | str] = []
        kept: list[object] = []
        for value in args:
            if isinstance(value, Access) and value.mode == "write":
                self._note(value)
            else:
                kept.append(self._argument(value, len(kept)))
        self.args = tuple(kept)
        self.kwargs = {word: self._argument(value, word) for word, value in kwargs.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the handles that the task writes."""
        return tuple([data.name for data in self.written])

    def _argument(self, value: object, place: int | str) -> object:
        if not isinstance(value, Access) or value.mode == "read":
            return self._inside(value)
        if value.mode == "write":
            raise BadValueError(
                f"{self._name} gets no argument for {value}, and {place}= gives it one",
                remedy=f"give {value} without a name in front",
            )
        self._note(value)
        self.changes.append(place)
        return self._version(value)

    def _inside(self, value: Any) -> object:
        if isinstance(value, Access):
            if value.mode != "read":
                raise BadValueError(
                    f"{value} stands inside a list or dict that {self._name} gets, where handles can only be read",
                    remedy=f"give {value} as an argument of its own",
                )
            self._note(value)
            return self._version(value)
        if isinstance(value, GraphData):
            raise BadValueError(
                f"{self._name} does not say how it uses {value.name}",
                remedy=f"give {value.name}.read, {value.name}.write or {value.name}.readwrite",
            )
        return rebuild(value, self._inside) if is_container(type(value)) else value

    def _note(self, access: Access) -> None:
        data = access.data
        if data._graph is not self._graph:
            raise BadValueError(f"{data.name} is a handle of another graph", remedy="make one with graph.data here")
        before = self._modes.setdefault(data, access.mode)
        if before != access.mode:
            raise BadValueError(
                f"{self._name} uses {data.name} in two modes, {before} and {access.mode}",
                remedy=f"give {data.name}.readwrite once",
            )
        if access.mode != "read":
            if data in self.written:
                raise BadValueError(f"{self._name} writes {data.name} twice", remedy=f"give {access} once")
            self.written.append(data)

    def _version(self, access: Access) -> Version:
        version = access.data._version
        if version.start is MISSING and version.maker is None:
            raise BadValueError(
                f"{self._name} reads {access.data.name}, which has no value and which no task before it writes",
                remedy="give graph.data a value, or add the task that writes it before",
            )
        return version


def replaced(value: object, kinds: tuple[type, ...], of: Callable[[Any], object]) -> Any:
    """Return a value with something else in place of each object of these types, also inside containers."""
    if isinstance(value, kinds):
        return of(value)
    return rebuild(value, lambda each: replaced(each, kinds, of)) if is_container(type(value)) else value
