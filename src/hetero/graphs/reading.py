"""Graph files of every format: which one a file has, and the graph in it.

In: a path, and a fleet where the format has no devices. Out: a checked `TaskGraph`. It must not plan.
"""

from __future__ import annotations

from pathlib import Path

from hetero.floor.errors import BadValueError, GraphError, did_you_mean
from hetero.graphs.document import document_of, graph_of
from hetero.graphs.dot import read_dot
from hetero.graphs.files import parse_json, read_text
from hetero.graphs.fleets import read_fleet
from hetero.graphs.stg import read_stg
from hetero.graphs.wfformat import is_wfformat, read_wfformat
from hetero.model.graph import TaskGraph

__all__ = ["FORMATS", "convert", "read_graph"]

FORMATS = ("hetero", "wfformat", "stg", "dot")
"""The formats by name: hetero-graph/1, WfFormat 1.5, the Standard Task Graph format, DOT."""

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
            f"{path}: this is not a hetero-graph/1 file", remedy=f"run 'hetero graph convert {path} --fleet FLEET'"
        )
    document = parse_json(text, str(path))
    if is_wfformat(document):
        raise GraphError(
            f"{path}: WfFormat names no devices", remedy=f"run 'hetero graph convert {path} --fleet FLEET'"
        )
    return graph_of(document, str(path))


def convert(path: Path, fleet: str | None = None, form: str | None = None) -> TaskGraph:
    """Read a graph file of any format.

    Parameters
    ----------
    fleet : a hetero-fleet/1 file, or a number of equal devices; needed unless the file names its devices
    form : one of `FORMATS`, None to go by the file's name and content

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
    guess = form if form in ("stg", "dot") else "json" if form else _guess(path, text)
    document = parse_json(text, str(path)) if guess == "json" else None
    if guess == "json" and not is_wfformat(document):
        return graph_of(document, str(path))
    if fleet is None:
        raise BadValueError(f"{path} names no devices", remedy="give --fleet: a file, or a number of equal devices")
    found = read_fleet(fleet)
    if guess == "json":
        graph = read_wfformat(document, str(path), found)
    else:
        graph = read_stg(text, str(path), found) if guess == "stg" else read_dot(text, str(path), found)
    return graph_of(document_of(graph), str(path))


def _guess(path: Path, text: str) -> str:
    """Give 'json', 'stg' or 'dot' by the name of the file, else by how it begins."""
    for end in path.suffixes[::-1]:
        if end in _ENDS:
            return _ENDS[end]
    start = text.lstrip()[:1]
    return "json" if start in ("{", "[") else "stg" if start.isdigit() else "dot"
