"""Graph files of every format: which one a file has, and the graph in it.

In: a path, and a fleet where the format has no devices. Out: a checked `TaskGraph`. It must not plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hetero.floor.errors import BadValueError, GraphError, did_you_mean
from hetero.graphs.document import document_of, graph_of
from hetero.graphs.dot import read_dot
from hetero.graphs.files import parse_json, read_text
from hetero.graphs.fleet_files import read_fleet
from hetero.graphs.hswf import read_hswf
from hetero.graphs.stg import read_stg
from hetero.graphs.wfformat import is_wfformat, read_wfformat
from hetero.model.graph import TaskGraph
from hetero.plan.problem import paths_from

__all__ = ["FORMATS", "convert", "read_graph", "read_plannable"]

FORMATS = ("hetero", "wfformat", "stg", "dot", "hswf")
"""The formats by name: hetero-graph/1, WfFormat 1.5, the Standard Task Graph format, DOT, columns of milliseconds."""

_ENDS = {".json": "json", ".stg": "stg", ".dot": "dot", ".gv": "dot"}


def read_graph(path: Path) -> TaskGraph:
    """Read a hetero-graph/1 file.

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
    return graph_of(document, str(path))


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
    """Read a graph file of any format.

    Parameters
    ----------
    fleet : a hetero-fleet/1 file, or a number of equal devices; needed unless the file names its devices
    form : one of `FORMATS`, None to go by the file's name and content
    columns, edge_bytes : of the format hswf: the device kind of each column, and the bytes of every edge

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
        return _linked(graph_of(document, str(path)), path)
    if guess == "hswf" and not columns:
        raise BadValueError(
            f"{path} has columns of milliseconds without names",
            remedy="name their kinds: 'hetero graph convert --columns cpu,gpu'",
        )
    if fleet is None:
        raise BadValueError(f"{path} names no devices", remedy="give --devices: a file, or a number of equal devices")
    found = read_fleet(fleet)
    if guess == "json":
        graph = read_wfformat(document, str(path), found)
    elif guess == "hswf":
        graph = read_hswf(text, str(path), found, tuple(columns), edge_bytes)
    else:
        graph = {"stg": read_stg, "dot": read_dot}[guess](text, str(path), found)
    return _linked(graph_of(document_of(graph), str(path)), fleet)


def _linked(graph: TaskGraph, file: Path | str) -> TaskGraph:
    """Refuse a graph whose data cannot reach every device."""
    nodes = sorted({device.memory_node for device in graph.devices})
    for src in nodes if any(edge.nbytes for edge in graph.edges) else ():
        reached = paths_from(graph.topology, src)
        for dst in nodes:
            if dst not in reached:
                raise GraphError(
                    f"{file}: links: no path of links leads from memory node {src!r} to {dst!r}",
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
