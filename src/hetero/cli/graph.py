"""`hetero graph convert`, `show` and `schema`: task graphs in files, what is in them, and their JSON Schema.

In: a graph of any format, and a fleet; or the trace of a run. Out: a file, lines for people, or one JSON document.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.output import print_json, say

if TYPE_CHECKING:
    from hetero.model.graph import TaskGraph

__all__ = ["convert", "schema", "show", "tell_unused"]


def convert(
    file: Annotated[Path, typer.Argument(help="WfFormat 1.5, Standard Task Graph, DOT, hswf or hetero-graph/1.")],
    fleet: Annotated[
        str | None, typer.Option(help="Fleet file (hetero-fleet/1), or a number of equal devices.")
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="wfformat, stg, dot, hswf or hetero; default: by name and content.")
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Of hswf: the kinds of devices of its columns of milliseconds, as in cpu,gpu.")
    ] = "",
    edge_bytes: Annotated[str, typer.Option(help="Of hswf: the bytes of every edge, as in 3686400 or 3.5MB.")] = "0B",
    out: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
) -> None:
    """Write a graph as hetero-graph/1."""
    import json

    from hetero.floor.units import parse_bytes
    from hetero.graphs.document import document_of
    from hetero.graphs.files import write_text
    from hetero.graphs.formats import convert as read_any

    names = [name.strip() for name in columns.split(",") if name.strip()]
    graph = read_any(file, fleet, format_, names, parse_bytes(edge_bytes))
    tell_unused(file, graph, fleet)
    document = document_of(graph)
    if out is None:
        print_json(document)
        return
    write_text(out, json.dumps(document, indent=1) + "\n")
    say(f"{out}: {len(graph.tasks):,} tasks, {len(graph.edges):,} edges, {len(graph.devices)} devices")


def show(
    file: Annotated[Path, typer.Argument(help="A graph of any format, or the trace of a run.")],
    fleet: Annotated[
        str | None, typer.Option(help="Fleet file (hetero-fleet/1), or a number of equal devices.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="SVG file to draw the graph into.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the tasks and edges of a graph, or of a run by its trace."""
    from hetero.graphs.files import checked_output, write_text
    from hetero.graphs.formats import convert as convert_any
    from hetero.graphs.show import graph, view_of

    if output is not None:
        checked_output(output)
    if ".jsonl" in file.suffixes:
        view = graph(file)
    else:
        read = convert_any(file, fleet or "1")
        tell_unused(file, read, fleet)
        view = view_of(read)
    if output is not None:
        write_text(output, view.svg)
    if json:
        print_json(view.as_dict())
    else:
        say(str(view))
        if output is not None:
            say(f"picture: {output}")


def tell_unused(file: Path, graph: TaskGraph, fleet: str | None) -> None:
    """Say on standard error that a fleet was given for a graph that names its own devices."""
    from hetero.graphs.fleet_files import read_fleet

    if fleet is not None and read_fleet(fleet).devices != graph.devices:
        say(f"note: {file} names its own devices, so --fleet {fleet} is left out", to=sys.stderr)


def schema() -> None:
    """Print the JSON Schema of hetero-graph/1."""
    from hetero.graphs.document import graph_schema

    print_json(graph_schema())
