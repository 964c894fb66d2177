"""Graph files of every format: which one a file has, and the graph in it.

In: a path, and a fleet where the format has no devices. Out: a checked `TaskGraph`. It must not plan.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero.floor.errors import BadValueError, GraphError, did_you_mean
from hetero.floor.units import shown
from hetero.graphs.data_graph import FORMAT as DATA_FORMAT
from hetero.graphs.data_graph import DataGraph, DataTask, GraphItem, ItemUse, data_document, data_graph_of
from hetero.graphs.document import DocumentPlace, document_of, graph_of
from hetero.graphs.dot import read_dot
from hetero.graphs.files import parse_json, read_text
from hetero.graphs.fleet_files import GraphFleet, read_fleet
from hetero.model.graph import GraphEdge, GraphTask, TaskGraph, topological_order
from hetero.plan.problem import without_path

__all__ = [
    "FORMATS",
    "convert",
    "is_data_graph",
    "is_wfformat",
    "read_any",
    "read_graph",
    "read_hswf",
    "read_plannable",
    "read_stg",
    "read_wfformat",
]

FORMATS = ("hetero", "wfformat", "stg", "dot", "hswf")
"""The formats by name: hetero-graph/1, WfFormat 1.5, the Standard Task Graph format, DOT, columns of milliseconds."""

_ENDS = {".json": "json", ".stg": "stg", ".dot": "dot", ".gv": "dot"}


def _graph_of(document: object, file: str) -> TaskGraph:
    """Check a document of hetero-graph/1 or hetero-graph/2; return its tasks and edges."""
    return data_graph_of(document, file).as_tasks() if is_data_graph(document) else graph_of(document, file)


def is_data_graph(document: object) -> bool:
    """Return whether a document says that it is of hetero-graph/2."""
    return isinstance(document, dict) and document.get("format") == DATA_FORMAT


def read_graph(path: Path, *, items: bool = True) -> TaskGraph:
    """Read a hetero-graph/1 or hetero-graph/2 file.

    Parameters
    ----------
    items
        False refuses hetero-graph/2, whose tasks come with some of our own.

    Raises
    ------
    GraphError
        The file is of another format, or wrong.
    """
    text = read_text(path)
    if _guess(path, text) != "json":
        raise GraphError(
            f"{path}: this is not a hetero-graph/1 file", remedy=f"run 'hetero graph convert {path} --devices FLEET'"
        )
    document = parse_json(text, str(path))
    if is_wfformat(document):
        raise GraphError(
            f"{path}: WfFormat names no devices", remedy=f"run 'hetero graph convert {path} --devices FLEET'"
        )
    if not items and is_data_graph(document):
        raise GraphError(
            f"{path}: tasks of {DATA_FORMAT} use items, and a function of what the tasks before returned has none",
            remedy="write the graph by handles: graph.data and graph.add",
        )
    return _graph_of(document, str(path))


def read_plannable(path: Path) -> TaskGraph:
    """Read a hetero-graph/1 file that is to be planned.

    Raises
    ------
    GraphError
        As of `read_graph`; or data has no way between two memory nodes with devices.
    """
    return _linked(read_graph(path), path)


def convert(
    path: Path, fleet: str | None = None, form: str | None = None, columns: Sequence[str] = (), edge_bytes: int = 0
) -> TaskGraph:
    """Read a graph file of any format, as tasks and edges; parameters and errors as for `read_any`."""
    found = read_any(path, fleet, form, columns, edge_bytes)
    return _linked(found.as_tasks(), fleet or path) if isinstance(found, DataGraph) else found


def read_any(
    path: Path, fleet: str | None = None, form: str | None = None, columns: Sequence[str] = (), edge_bytes: int = 0
) -> TaskGraph | DataGraph:
    """Read a graph file of any format.

    Parameters
    ----------
    fleet
        A hetero-fleet/1 file, or a number of equal devices; needed unless the file names its devices.
    form
        One of `FORMATS`, None to go by the file's name and content.
    columns, edge_bytes
        Of the format hswf: the device kind of each column, and the bytes of every edge.

    Raises
    ------
    GraphError
        The file or the fleet is wrong.
    BadValueError
        The format is not known, or the fleet is missing.
    """
    if form is not None and form not in FORMATS:
        raise BadValueError(
            f"{form!r} is not a format of graphs{did_you_mean(form, FORMATS)}", remedy=f"allowed: {', '.join(FORMATS)}"
        )
    text = read_text(path)
    guess = ("json" if form in ("hetero", "wfformat") else form) or _guess(path, text)
    document = parse_json(text, str(path)) if guess == "json" else None
    if guess == "json" and not is_wfformat(document):
        if is_data_graph(document):
            return data_graph_of(document, str(path))
        return _linked(graph_of(document, str(path)), path)
    if guess == "hswf" and not columns:
        raise BadValueError(
            f"{path} has columns of milliseconds without names",
            remedy="name their kinds: 'hetero graph convert --columns cpu,gpu'",
        )
    if fleet is None:
        raise BadValueError(f"{path} names no devices", remedy="give --devices: a file, or a number of equal devices")
    found = read_fleet(fleet)
    graph: TaskGraph | DataGraph
    if guess == "json":
        graph = read_wfformat(document, str(path), found)
        if isinstance(graph, DataGraph):
            return data_graph_of(data_document(graph), str(path))
    elif guess == "hswf":
        graph = read_hswf(text, str(path), found, tuple(columns), edge_bytes)
    else:
        graph = {"stg": read_stg, "dot": read_dot}[guess](text, str(path), found)
    return _linked(graph_of(document_of(graph), str(path)), fleet)


def _linked(graph: TaskGraph, file: Path | str) -> TaskGraph:
    """Refuse a graph whose data cannot reach a device that may need them."""
    stranded = without_path(graph)
    if stranded is not None:
        raise GraphError(
            f"{file}: links: no path of links leads from memory node {stranded[0]!r} to {stranded[1]!r}",
            remedy="add a link between them",
        )
    return graph


def _guess(path: Path, text: str) -> str:
    """Return 'json', 'stg', 'dot' or 'hswf' by the name of the file, else by how it begins."""
    for end in path.suffixes[::-1]:
        if end in _ENDS:
            return _ENDS[end]
    start = text.lstrip()[:1]
    if start.isdigit():
        return "stg" if len(text.split("\n", 1)[0].split()) == 1 else "hswf"
    return "json" if start in ("{", "[") else "dot"


# --- HSWF ---------------------------------------------------------------------------------------------------


def read_hswf(text: str, file: str, fleet: GraphFleet, kinds: tuple[str, ...], edge_bytes: int = 0) -> TaskGraph:
    """Read a graph of lines 'id ms … predecessors', one column of milliseconds a device kind; -1 cannot run there.

    Parameters
    ----------
    fleet
        A task of t milliseconds in a device's column takes t / 1000 / speed seconds there.
    kinds
        The columns, as in ('cpu', 'gpu'); each device of the fleet has one of them as its kind.
    edge_bytes
        The bytes of every edge, a tile's.

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


# --- STG ----------------------------------------------------------------------------------------------------


def read_stg(text: str, file: str, fleet: GraphFleet) -> TaskGraph:
    r"""Read a Standard Task Graph.

    Parameters
    ----------
    text
        The number of tasks, then a line a task: id, cost, number of predecessors, predecessors; '#' begins a comment.
    fleet
        The devices; a cost of c takes c / speed seconds.

    Notes
    -----
    The number in the first line leaves out the entry and the exit task, so up to two more lines are right.

    References
    ----------
    T. Tobita, H. Kasahara, "A standard task graph set for fair evaluation of multiprocessor scheduling
    algorithms", Journal of Scheduling 5 (2002), 379-394.

    Examples
    --------
    >>> from hetero.graphs.fleet_files import equal_devices
    >>> read_stg("2\n 1 5 0\n 2 3 1 1\n", "a.stg", equal_devices(1)).edges
    (GraphEdge(src='1', dst='2', nbytes=0),)
    """
    lines = [(number, line.partition("#")[0].split()) for number, line in enumerate(text.splitlines(), 1)]
    rows = [(number, [_number(word, f"{file}:{number}") for word in words]) for number, words in lines if words]
    if not rows:
        raise GraphError(f"{file}: the file is empty", remedy="an STG file begins with its number of tasks")
    (first, (count, *_)), *rows = rows
    if not count <= len(rows) <= count + 2:
        raise GraphError(f"{file}:{first}: {count:g} tasks are announced, {len(rows)} lines follow; is it cut short?")
    tasks = tuple(GraphTask(f"{row[0]:g}", fleet.seconds(_cost(row, f"{file}:{number}"))) for number, row in rows)
    lines_of: dict[str, int] = {}
    for task, (number, _) in zip(tasks, rows, strict=True):
        if lines_of.setdefault(task.id, number) != number:
            raise GraphError(f"{file}:{number}: the id {task.id} is given twice", remedy="give each task its own")
    edges = tuple(edge for number, row in rows for edge in _edges(row, lines_of, f"{file}:{number}"))
    return TaskGraph(fleet.devices, fleet.topology, tasks, edges)


def _number(word: str, place: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < float("inf"):
        raise GraphError(f"{place}: {shown(word)} is not a number >= 0", remedy="write id, cost, count, predecessors")
    return number


def _cost(row: list[float], place: str) -> float:
    if len(row) < 3 or len(row) != 3 + row[2]:
        raise GraphError(
            f"{place}: {len(row)} numbers make no task", remedy="write id, cost, the number of predecessors, and those"
        )
    return row[1]


def _edges(row: list[float], known: dict[str, int], place: str) -> list[GraphEdge]:
    before = list(dict.fromkeys(f"{name:g}" for name in row[3:]))
    for name in before:
        if name not in known:
            raise GraphError(f"{place}: no task has the id {name}")
    return [GraphEdge(name, f"{row[0]:g}", 0) for name in before]


# --- WfFormat -----------------------------------------------------------------------------------------------


def is_wfformat(document: object) -> bool:
    """Return whether a document is of WfFormat."""
    return isinstance(document, dict) and "workflow" in document and "schemaVersion" in document


def read_wfformat(document: Any, file: str, fleet: GraphFleet) -> TaskGraph | DataGraph:
    """Read a workflow of WfFormat 1.5; as items where the fleet says where files lie, or how many cores devices have.

    Parameters
    ----------
    document
        As JSON gives it.
    fleet
        The devices; a task that ran for t seconds takes t / speed, and its kind is the name of its program.

    Notes
    -----
    The bytes of an edge are those of the files that the parent writes and the child reads. Where the machines of the
    trace have clocks of their own, t is what the task would have taken on the fastest. A program that is a whole
    script, as in traces of Nextflow, has the last word of its task's name, in small letters.

    As items each file travels by itself; those that no task writes lie at the fleet's `files_at`, and those that no
    task reads come home there. A task takes a device with as many cores as it was given, and with as much memory as it
    took.

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
    by_name: dict[str, object] = {}
    for number, (name, row) in enumerate(zip(names, rows, strict=True)):
        if by_name.setdefault(name, row) is not row:
            raise GraphError(f"{here / number}: the id {shown(name)} is given twice", remedy="give each task its own")
    clocks = _clocks(document["workflow"]["execution"].get("machines") or [], place)
    seconds = {name: fleet.seconds(*_run(name, by_name[name], ran, clocks, place)) for name in names}
    pairs = _pairs(by_name, here)
    if fleet.files_at or fleet.cores:
        return _with_files(by_name, seconds, {name: row for name, (_, row) in ran.items()}, pairs, sizes, fleet, place)
    tasks = tuple(GraphTask(name, seconds[name]) for name in names)
    edges = tuple(GraphEdge(src, dst, _bytes(by_name[src], by_name[dst], sizes, here / dst)) for src, dst in pairs)
    return TaskGraph(fleet.devices, fleet.topology, tasks, edges)


def _clocks(rows: object, place: DocumentPlace) -> dict[str, float]:
    """Return the clock of each machine over that of the fastest; nothing where one has none."""
    here = place / "workflow" / "execution" / "machines"
    if not isinstance(rows, list):
        raise here.wrong(rows, "a list")
    found: dict[str, float] = {}
    for number, row in enumerate(rows):
        name = _text(row, "nodeName", here / number)
        cpu = row.get("cpu")
        clock = cpu.get("speedInMHz") if isinstance(cpu, dict) else None
        if clock is None:
            return {}
        found[name] = (here / number / "cpu" / "speedInMHz").number(clock, "a clock", above=0.0)
    return {name: clock / max(found.values()) for name, clock in found.items()}


def _with_files(
    by_name: dict[str, object],
    seconds: dict[str, tuple[float, ...]],
    ran: dict[str, dict[str, object]],
    pairs: list[tuple[str, str]],
    sizes: dict[str, int],
    fleet: GraphFleet,
    place: DocumentPlace,
) -> DataGraph:
    """Return a workflow whose files are items; one that several tasks write is an item for each."""
    here, names = place / "workflow" / "specification" / "tasks", list(by_name)
    number = {name: at for at, name in enumerate(names)}
    made = {name: dict.fromkeys(_names(row, "outputFiles", here / name)) for name, row in by_name.items()}
    writers: dict[str, list[str]] = {}
    for name in names:
        for path in made[name]:
            writers.setdefault(path, []).append(name)
    parents: dict[str, list[str]] = {name: [] for name in names}
    for src, dst in pairs:
        parents[dst].append(src)
    items: dict[str, GraphItem] = {}

    def item(path: str, writer: str, name: str) -> str:
        if path not in sizes:
            raise GraphError(f"{here / name}: the file {shown(path)} has no size", remedy="list it in files")
        found = path if len(writers.get(path, ())) < 2 else f"{path} of {writer}"
        items.setdefault(found, GraphItem(found, sizes[path], "" if writer else fleet.files_at))
        return found

    tasks: list[DataTask] = []
    read: set[str] = set()
    for at in topological_order(names, [(number[src], number[dst]) for src, dst in pairs]):
        name, uses, before = names[at], dict[str, ItemUse](), set[str]()
        for path in dict.fromkeys(_names(by_name[name], "inputFiles", here / name)):
            givers = [each for each in parents[name] if path in made[each]]
            if not givers and path not in writers and fleet.files_at and sizes.get(path, 1):
                givers = [""]
            for giver in givers:
                found = item(path, giver, name)
                uses[found] = ItemUse(found, "R")
                before.add(giver)
        read.update(uses)
        for path in made[name]:
            if path in sizes:
                found = item(path, name, name)
                uses.setdefault(found, ItemUse(found, "W"))
        after = tuple(each for each in parents[name] if each not in before)
        cores, memory = (
            (place / "workflow" / "execution" / "tasks" / name / key).whole(ran[name].get(key) or 0, "a whole number")
            for key in ("coreCount", "memoryInBytes")
        )
        tasks.append(DataTask(name, seconds[name], tuple(uses.values()), after, cores, memory))
    homes = {
        name: each._replace(home=fleet.files_at) if name not in read and each.nbytes and not each.at else each
        for name, each in items.items()
    }
    cores_of = fleet.cores or (0,) * len(fleet.devices)
    return DataGraph(fleet.devices, fleet.topology, cores_of, tuple(homes.values()), tuple(tasks), str(place))


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


def _run(
    name: str,
    specified: object,
    ran: dict[str, tuple[int, dict[str, object]]],
    clocks: dict[str, float],
    place: DocumentPlace,
) -> tuple[float, str]:
    """Return the seconds that a task ran, and its program."""
    here = place / "workflow" / "execution" / "tasks"
    if name not in ran:
        raise GraphError(f"{here}: task {shown(name)} has no run time", remedy="give its runtimeInSeconds")
    number, row = ran[name]
    seconds = (here / number / "runtimeInSeconds").number(row.get("runtimeInSeconds"), "a run time")
    command = row.get("command")
    program = command.get("program", "") if isinstance(command, dict) else ""
    if not isinstance(program, str) or any(map(str.isspace, program)):  # a script
        process = specified.get("name", "") if isinstance(specified, dict) else ""
        program = re.split("[.:]", process)[-1].lower() if isinstance(process, str) else ""
    machines = row.get("machines")
    named = machines if isinstance(machines, list) else ()
    known = [clocks[each] for each in named if isinstance(each, str) and each in clocks]
    return seconds * (min(known) if known else 1.0), program


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
