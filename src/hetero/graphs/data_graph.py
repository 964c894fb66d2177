"""The format hetero-graph/2: tasks that say how they use named items; read, written, and turned into tasks and edges.

In: a document as JSON gives it. Out: a checked `DataGraph`, and the `TaskGraph` that planners take, or an error that
names the place. It must not read files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from hetero.floor.errors import BadValueError, GraphError, did_you_mean
from hetero.floor.units import shown
from hetero.graphs.document import (
    BYTES_SCHEMA,
    ID_SCHEMA,
    SECONDS_SCHEMA,
    DocumentPlace,
    checked_object,
    checked_rows,
    document_of,
    fleet_of,
    known_id,
    new_id,
    rows_schema,
    seconds_of,
)
from hetero.model.graph import GraphDevice, GraphEdge, GraphTask, TaskGraph, topological_order
from hetero.model.topology import Topology

__all__ = ["FORMAT", "DataGraph", "DataTask", "GraphItem", "ItemUse", "data_document", "data_graph_of", "data_schema"]

FORMAT = "hetero-graph/2"

UseMode = Literal["R", "W", "RW", "COMMUTE", "REDUCE"]

USE_MODES: tuple[UseMode, ...] = get_args(UseMode)


class GraphItem(NamedTuple):
    """A named value that tasks use.

    Attributes
    ----------
    id
        Unique in the graph.
    nbytes
        >= 0.
    at
        The memory node where it lies at the start, '' where a task has to write it first.
    home
        The memory node where it must be in the end, '' for anywhere.
    operator_s
        Shape (n_devices,), s that combining two values takes on each device; empty without an operator.
    """

    id: str
    nbytes: int
    at: str = ""
    home: str = ""
    operator_s: tuple[float, ...] = ()


class ItemUse(NamedTuple):
    """How a task uses an item: R, W and RW in the order of the tasks, COMMUTE and REDUCE among neighbours in any."""

    item: str
    mode: UseMode


class DataTask(NamedTuple):
    """One task.

    Attributes
    ----------
    id
        Unique in the graph.
    seconds
        Shape (n_devices,), s; inf where it cannot run.
    uses
        The items that it reads and writes.
    after
        Tasks that must have ended before, although it uses nothing of them.
    cores
        That its device must have.
    memory_bytes
        That the memory node of its device must have.
    devices
        That it takes together.
    release_s
        Seconds, when it may begin.
    """

    id: str
    seconds: tuple[float, ...]
    uses: tuple[ItemUse, ...] = ()
    after: tuple[str, ...] = ()
    cores: int = 0
    memory_bytes: int = 0
    devices: int = 1
    release_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DataGraph:
    """A graph of tasks and items over a fleet.

    Attributes
    ----------
    devices, topology
        As of a `TaskGraph`.
    cores
        Of each device, 0 where unknown.
    items
        Of the tasks.
    tasks
        In the order in which they are submitted, from which follows what reads what.
    file
        Where it comes from, for messages.
    """

    devices: tuple[GraphDevice, ...]
    topology: Topology
    cores: tuple[int, ...]
    items: tuple[GraphItem, ...]
    tasks: tuple[DataTask, ...]
    file: str = "graph"

    def as_tasks(self) -> TaskGraph:
        """Return tasks and edges with the same plans.

        Raises
        ------
        GraphError
            No plan can keep to something that a task asks for.

        Notes
        -----
        What lies somewhere at the start is made there by a task of no time, `item@node`, and what must come home is
        read there by one, `item>node`. What tasks reduce is combined by tasks `item+1`, `item+2`, … as a tree, in the
        order of the tasks. Tasks that commute follow one another, those to which fewer tasks lead first. Items that
        the same tasks read of one task are one edge. Of others that a task reads of one task, all but the first go
        through a task of no time, `item>task`, which takes room for them a second time.
        """
        return _Unfolded(self).graph()


# --- reading ------------------------------------------------------------------------------------------------


def data_graph_of(document: object, file: str) -> DataGraph:
    """Check a hetero-graph/2 document.

    Raises
    ------
    GraphError
        Anything is missing, unknown, given twice, negative or beyond the format; an item is read before anything writes
        it, or written twice in vain; or the tasks make a cycle.
    """
    place = DocumentPlace(file)
    named = checked_object(document, place, ("format", "devices", "memory_nodes", "links", "items", "tasks"), ("name",))
    if named["format"] != FORMAT:
        raise (place / "format").wrong(named["format"], f"{FORMAT!r}")
    plain, cores = _without_cores(named["devices"], place / "devices")
    devices, topology = fleet_of({**named, "devices": plain}, place)
    column = {device.id: at for at, device in enumerate(devices)}
    nodes = [node.id for node in topology.nodes]
    items = tuple(_items(named["items"], column, nodes, place / "items"))
    tasks = tuple(_tasks(named["tasks"], column, [item.id for item in items], place / "tasks"))
    graph = DataGraph(devices, topology, tuple(cores), items, tasks, file)
    _Unfolded(graph)
    return graph


def _without_cores(given: object, place: DocumentPlace) -> tuple[object, list[int]]:
    """Return the rows of devices without their cores, and these."""
    if not isinstance(given, list):
        return given, []
    rows: list[object] = []
    cores: list[int] = []
    for number, row in enumerate(given):
        if isinstance(row, dict):
            cores.append((place / number / "cores").whole(row.get("cores", 0), "a number of cores"))
            row = {key: value for key, value in row.items() if key != "cores"}
        rows.append(row)
    return rows, cores


def _items(given: object, devices: dict[str, int], nodes: Sequence[str], place: DocumentPlace) -> Iterator[GraphItem]:
    seen: dict[str, None] = {}
    for here, row in checked_rows(given, place, ("id", "bytes"), ("at", "home", "operator")):
        name = new_id((here / "id").text(row["id"]), seen, here / "id")
        at, home = (
            known_id(row[key], nodes, "memory node", here / key) if row.get(key) else "" for key in ("at", "home")
        )
        operator_s: tuple[float, ...] = ()
        if row.get("operator") is not None:
            operator_s = seconds_of(row["operator"], devices, here / "operator", f"the operator of {shown(name)}")
        yield GraphItem(name, (here / "bytes").whole(row["bytes"], "a number of bytes"), at, home, operator_s)


def _tasks(given: object, devices: dict[str, int], items: Sequence[str], place: DocumentPlace) -> Iterator[DataTask]:
    seen: dict[str, None] = {}
    more = ("uses", "after", "cores", "memory_bytes", "devices", "release_s")
    rows = list(checked_rows(given, place, ("id", "seconds"), more))
    names = [(here / "id").text(row["id"]) for here, row in rows]
    known = dict.fromkeys(items, 0)
    every = dict.fromkeys(names, 0)
    for (here, row), name in zip(rows, names, strict=True):
        new_id(name, seen, here / "id")
        yield DataTask(
            name,
            seconds_of(row["seconds"], devices, here / "seconds", f"task {shown(name)}"),
            tuple(_uses(row.get("uses", []), known, here / "uses")),
            tuple(_after(row.get("after", []), name, every, here / "after")),
            (here / "cores").whole(row.get("cores", 0), "a number of cores"),
            (here / "memory_bytes").whole(row.get("memory_bytes", 0), "a number of bytes"),
            _count(row.get("devices", 1), here / "devices"),
            (here / "release_s").number(row.get("release_s", 0.0), "a number of seconds"),
        )


def _count(given: object, place: DocumentPlace) -> int:
    count = place.whole(given, "a number of devices")
    if not count:
        raise place.wrong(given, "a number of devices", "write at least 1")
    return count


def _uses(given: object, items: dict[str, int], place: DocumentPlace) -> Iterator[ItemUse]:
    seen: dict[str, None] = {}
    for here, row in checked_rows(given, place, ("item", "mode")):
        name = known_id(row["item"], items, "item", here / "item")
        mode = next((each for each in USE_MODES if each == row["mode"]), None)
        if mode is None:
            problem = f"{here / 'mode'}: {shown(row['mode'])} is not how a task uses an item"
            raise GraphError(
                f"{problem}{did_you_mean(str(row['mode']), USE_MODES)}", remedy=f"allowed: {', '.join(USE_MODES)}"
            )
        if name in seen:
            raise GraphError(f"{here}: the item {shown(name)} is used twice by one task", remedy="use it once, as RW")
        seen[name] = None
        yield ItemUse(name, mode)


def _after(given: object, task: str, tasks: dict[str, int], place: DocumentPlace) -> Iterator[str]:
    if not isinstance(given, list):
        raise place.wrong(given, "a list of ids", "write [] or a list of texts")
    for number, name in enumerate(dict.fromkeys(place.text(each) for each in given)):
        known_id(name, tasks, "task", place / number)
        if name == task:
            raise GraphError(f"{place / number}: task {shown(task)} waits for itself", remedy="take it out")
        yield name


# --- writing ------------------------------------------------------------------------------------------------


def data_document(graph: DataGraph) -> dict[str, object]:
    """Write a graph as a hetero-graph/2 document; `data_graph_of` gives the same graph back."""
    base = document_of(TaskGraph(graph.devices, graph.topology, (), ()))
    rows = base["devices"]
    assert isinstance(rows, list)
    names = [device.id for device in graph.devices]
    devices = [{**row, **({"cores": count} if count else {})} for row, count in zip(rows, graph.cores, strict=True)]
    return {
        "format": FORMAT,
        "devices": devices,
        "memory_nodes": base["memory_nodes"],
        "links": base["links"],
        "items": [_item_row(item, names) for item in graph.items],
        "tasks": [_task_row(task, names) for task in graph.tasks],
    }


def _seconds(seconds: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    return {name: s for name, s in zip(names, seconds, strict=True) if s < math.inf}


def _item_row(item: GraphItem, names: Sequence[str]) -> dict[str, object]:
    more: dict[str, object] = {"at": item.at, "home": item.home}
    if item.operator_s:
        more["operator"] = _seconds(item.operator_s, names)
    return {"id": item.id, "bytes": item.nbytes, **{key: value for key, value in more.items() if value}}


def _task_row(task: DataTask, names: Sequence[str]) -> dict[str, object]:
    more: dict[str, object] = {
        "uses": [{"item": use.item, "mode": use.mode} for use in task.uses],
        "after": list(task.after),
        "cores": task.cores,
        "memory_bytes": task.memory_bytes,
        "devices": task.devices if task.devices > 1 else 0,
        "release_s": task.release_s,
    }
    return {
        "id": task.id,
        "seconds": _seconds(task.seconds, names),
        **{key: value for key, value in more.items() if value},
    }


def data_schema(of_tasks: Mapping[str, object]) -> dict[str, object]:
    """Return the schema, draft 2020-12.

    Parameters
    ----------
    of_tasks
        The schema of hetero-graph/1, whose fleet is the same.
    """
    before = of_tasks["properties"]
    assert isinstance(before, dict)
    seconds = {"type": "object", "additionalProperties": SECONDS_SCHEMA, "minProperties": 1}
    count = {**BYTES_SCHEMA}
    use = rows_schema({"item": ID_SCHEMA, "mode": {"enum": list(USE_MODES)}})
    properties = {
        "format": {"const": FORMAT},
        "devices": rows_schema(
            {"id": ID_SCHEMA, "memory_node": ID_SCHEMA}, {"kind": {"type": "string"}, "cores": count}, least=1
        ),
        "memory_nodes": before["memory_nodes"],
        "links": before["links"],
        "items": rows_schema(
            {"id": ID_SCHEMA, "bytes": BYTES_SCHEMA},
            {"at": {"type": "string"}, "home": {"type": "string"}, "operator": seconds},
        ),
        "tasks": rows_schema(
            {"id": ID_SCHEMA, "seconds": seconds},
            {
                "uses": use,
                "after": {"type": "array", "items": ID_SCHEMA},
                "cores": count,
                "memory_bytes": count,
                "devices": {**count, "minimum": 1},
                "release_s": SECONDS_SCHEMA,
            },
        ),
    }
    return {
        **of_tasks,
        "title": FORMAT,
        "properties": {**properties, "name": {"type": "string"}},
        "required": list(properties),
    }


# --- tasks and edges ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class _ItemVersion:
    """What an item holds between two tasks that write it, or after a group of tasks whose order does not matter.

    Attributes
    ----------
    item
        Whose it is.
    mode
        R for what lies there at the start, else how it is written.
    before
        The version that a group begins with.
    makers
        Places of the tasks that write it.
    maker
        The task that has it to give, '' before that is known.
    level
        Length of the longest path of tasks that leads to it.
    closed
        True once it is read.
    """

    item: GraphItem
    mode: UseMode = "W"
    before: _ItemVersion | None = None
    makers: list[int] = field(default_factory=list)
    maker: str = ""
    level: int = 0
    closed: bool = False

    @property
    def has_value(self) -> bool:
        return bool(self.makers) or self.mode == "R"


class _Unfolded:
    """A graph of items as tasks and edges.

    It follows the order of the tasks when it is made, and refuses what has none.
    """

    def __init__(self, graph: DataGraph) -> None:
        self._graph = graph
        self._names = {task.id for task in graph.tasks}
        self._sums: dict[str, int] = {}
        self._place = DocumentPlace(graph.file)
        self._items = {item.id: item for item in graph.items}
        self._now = {
            item.id: _ItemVersion(item, "R", maker=self._new_name(f"{item.id}@{item.at}"))
            if item.at
            else _ItemVersion(item)
            for item in graph.items
        }
        self._starts = {version.maker: version.item for version in self._now.values() if version.maker}
        self._levels: list[int] = []
        self._reads: list[list[_ItemVersion]] = []
        self._makes: list[list[_ItemVersion]] = []
        self._tasks: list[GraphTask] = []
        self._values: dict[tuple[str, str], dict[str, None]] = {}
        self._orders: dict[tuple[str, str], None] = {}
        number = {task.id: at for at, task in enumerate(graph.tasks)}
        for at, task in enumerate(graph.tasks):
            self._use(at, task, number)
        for at, item in enumerate(graph.items):
            if item.home and not self._now[item.id].has_value:
                raise GraphError(
                    f"{self._place / 'items' / at / 'home'}: {shown(item.id)} must be at {shown(item.home)} in the end,"
                    " and no task writes it",
                    remedy="take 'home' out, or say where it lies at the start by 'at'",
                )

    def _new_name(self, name: str) -> str:
        """Return a name for a task of our own, with a mark at its end where a task of the graph has that name."""
        while name in self._names:
            name += "'"
        self._names.add(name)
        return name

    def _use(self, at: int, task: DataTask, number: dict[str, int]) -> None:
        """Move the items of a task on to what it makes."""
        reads: list[_ItemVersion] = []
        makes: list[_ItemVersion] = []
        for place, use in enumerate(task.uses):
            here = self._place / "tasks" / at / "uses" / place
            version = self._now[use.item]
            if use.mode != "W" and use.mode != "REDUCE":
                reads.append(self._read(task, version, use.mode, here))
            if use.mode != "R":
                makes.append(self._made(task, version, use.mode, here))
        needs = [version.level for version in reads]
        needs += [self._levels[number[name]] for name in task.after if number[name] < at]
        level = 1 + max(needs, default=0)
        for version in reads:
            version.closed = True
        for version in makes:
            if version.before is not None:
                version.before.closed = True
            version.makers.append(at)
            version.level = max(version.level, level)
            self._now[version.item.id] = version
        self._levels.append(level)
        self._reads.append(reads)
        self._makes.append(makes)

    def _read(self, task: DataTask, version: _ItemVersion, mode: UseMode, here: DocumentPlace) -> _ItemVersion:
        """Return the version that a task reads; one that commutes reads what was there before its group."""
        if version.mode == mode == "COMMUTE" and not version.closed and version.before is not None:
            version = version.before
        if not version.has_value:
            raise GraphError(
                f"{here}: task {shown(task.id)} reads {shown(version.item.id)} before any task writes it",
                remedy="say where it lies at the start by 'at', or put the task that writes it before",
            )
        return version

    def _made(self, task: DataTask, version: _ItemVersion, mode: UseMode, here: DocumentPlace) -> _ItemVersion:
        item = version.item
        if mode == "REDUCE" and not item.operator_s:
            raise GraphError(
                f"{here}: task {shown(task.id)} reduces {shown(item.id)}, which has no operator",
                remedy="give the item its 'operator': the seconds that combining two values takes",
            )
        if mode == "W" and version.makers and not version.closed:
            last = self._graph.tasks[version.makers[-1]].id
            if last not in task.after:
                raise GraphError(
                    f"{here}: tasks {shown(last)} and {shown(task.id)} both write {shown(item.id)}, and nothing orders"
                    f" them",
                    remedy=f"use RW, COMMUTE or REDUCE, or name {shown(last)} in 'after'",
                )
        if mode in ("COMMUTE", "REDUCE"):
            if version.mode == mode and not version.closed:
                return version
            return _ItemVersion(item, mode, version, level=version.level)
        return _ItemVersion(item)

    # what planners take

    def graph(self) -> TaskGraph:
        """Return the tasks and edges."""
        graph = self._graph
        order = sorted(range(len(graph.tasks)), key=lambda at: (self._levels[at], at))
        rows: dict[str, GraphTask] = {}
        for at in order:
            task = graph.tasks[at]
            rows[task.id] = GraphTask(task.id, self._seconds(at, task))
            for name in task.after:
                self._orders[name, task.id] = None
            for version in self._reads[at]:
                self._given(version, task.id)
            for version in self._makes[at]:
                self._gives(version, task.id)
        for name, version in self._now.items():
            home = self._items[name].home
            if home:
                self._given(version, self._added(f"{name}>{home}", self._only_at(home, name)))
        for maker, item in self._starts.items():
            if self._values.get((maker, item.id)):
                self._tasks.append(GraphTask(maker, self._only_at(item.at, item.id)))
        edges = tuple(self._edges({task.id: task for task in (*rows.values(), *self._tasks)}))
        tasks = (*[rows[task.id] for task in graph.tasks], *self._tasks)
        number = {task.id: at for at, task in enumerate(tasks)}
        try:
            topological_order([task.id for task in tasks], [(number[edge.src], number[edge.dst]) for edge in edges])
        except BadValueError as error:
            raise GraphError(f"{self._place / 'tasks'}: {error.problem}", remedy=error.remedy) from error
        return TaskGraph(graph.devices, graph.topology, tasks, edges)

    def _seconds(self, at: int, task: DataTask) -> tuple[float, ...]:
        """Return the seconds of a task on the devices that have what it asks for."""
        here = self._place / "tasks" / at
        if task.devices > 1:
            raise GraphError(
                f"{here / 'devices'}: task {shown(task.id)} takes {task.devices} devices together, and plans give a"
                " task one",
                remedy="make one device of them, or split the task",
            )
        if task.release_s:
            raise GraphError(
                f"{here / 'release_s'}: task {shown(task.id)} begins at {task.release_s:g} s at the earliest, and plans"
                " begin a task as soon as they can",
                remedy="take it out",
            )
        room = {node.id: node.capacity_bytes for node in self._graph.topology.nodes}
        seconds = tuple(
            math.inf if (cores and task.cores > cores) or task.memory_bytes > room[device.memory_node] else value
            for value, device, cores in zip(task.seconds, self._graph.devices, self._graph.cores, strict=True)
        )
        if not any(map(math.isfinite, seconds)):
            raise GraphError(
                f"{here}: no device has the {task.cores} cores and {task.memory_bytes:,} bytes of task"
                f" {shown(task.id)}",
                remedy="give it a device that has",
            )
        return seconds

    def _only_at(self, node: str, item: str) -> tuple[float, ...]:
        seconds = tuple(0.0 if device.memory_node == node else math.inf for device in self._graph.devices)
        if not any(map(math.isfinite, seconds)):
            raise GraphError(
                f"{self._place}: {shown(item)} lies at {shown(node)}, where no device can send or take it",
                remedy=f"add a device whose memory_node is {shown(node)}",
            )
        return seconds

    def _added(self, name: str, seconds: tuple[float, ...]) -> str:
        """Add a task of our own under a name that no other has."""
        name = self._new_name(name)
        self._tasks.append(GraphTask(name, seconds))
        return name

    def _given(self, version: _ItemVersion, reader: str) -> None:
        self._values.setdefault((self._maker(version), version.item.id), {})[reader] = None

    def _gives(self, version: _ItemVersion, task: str) -> None:
        """Note that a task writes a version, or its part of one."""
        if version.mode == "COMMUTE":
            assert version.before is not None
            last = version.maker or self._maker(version.before)
            before = self._values.setdefault((self._maker(version.before), version.item.id), {})
            before.pop(task, None)
            self._values.setdefault((last, version.item.id), {})[task] = None
        if version.mode != "REDUCE":
            version.maker = task

    def _maker(self, version: _ItemVersion) -> str:
        """Return the task that has a version to give; tasks that combine what others reduce are added."""
        if version.mode == "REDUCE" and not version.maker:
            version.maker = self._combined(version)
        return version.maker

    def _combined(self, version: _ItemVersion) -> str:
        item, parts = version.item, [self._graph.tasks[at].id for at in sorted(version.makers)]
        if version.before is not None and version.before.has_value:
            parts.insert(0, self._maker(version.before))
        while len(parts) > 1:
            pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
            parts = [self._sum(item, pair) if len(pair) > 1 else pair[0] for pair in pairs]
        return parts[0]

    def _sum(self, item: GraphItem, pair: list[str]) -> str:
        self._sums[item.id] = self._sums.get(item.id, 0) + 1
        name = self._added(f"{item.id}+{self._sums[item.id]}", item.operator_s)
        for each in pair:
            self._values.setdefault((each, item.id), {})[name] = None
        return name

    def _edges(self, tasks: Mapping[str, GraphTask]) -> Iterator[GraphEdge]:
        """Yield one edge for each pair of tasks; see `DataGraph.as_tasks`."""
        read: dict[str, dict[tuple[str, ...], list[str]]] = {}
        for (maker, item), by in self._values.items():
            if by:
                read.setdefault(maker, {}).setdefault(tuple(by), []).append(item)
        found: dict[tuple[str, str], int] = {}
        for maker, groups in read.items():
            sizes = set[int]()
            for readers, items in groups.items():
                nbytes = sum(self._items[item].nbytes for item in items)
                while nbytes and nbytes in sizes:  # edges with as many bytes would be one item
                    nbytes += 1
                sizes.add(nbytes)
                for reader in readers:
                    at = maker
                    if nbytes and found.get((maker, reader)):
                        at = self._added(
                            f"{items[0]}>{reader}", tuple(0.0 if s < math.inf else s for s in tasks[reader].seconds)
                        )
                        found[maker, at] = nbytes
                    found[at, reader] = nbytes or found.get((at, reader), 0)
        for pair in self._orders:
            found.setdefault(pair, 0)
        for (src, dst), nbytes in found.items():
            yield GraphEdge(src, dst, nbytes)
