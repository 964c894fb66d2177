"""`hetero graph convert`, `show` and `schema`: task graphs in files, what is in them, and their JSON Schema.

In: a graph of any format, and a fleet; or the trace of a run. Out: a file, lines for people, or one JSON document.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson, GraphDevices, Output
from hetero.cli.output import note, print_json, say

if TYPE_CHECKING:
    from hetero.model.graph import TaskGraph

__all__ = ["convert", "schema", "show", "tell_unused"]


def convert(
    file: Annotated[Path, typer.Argument(help="WfFormat 1.5, Standard Task Graph, DOT, hswf or hetero-graph/1.")],
    devices: GraphDevices = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="wfformat, stg, dot, hswf or hetero; default: by name and content.")
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Of hswf: the kinds of devices of its columns of milliseconds, as in cpu,gpu.")
    ] = "",
    edge_bytes: Annotated[str, typer.Option(help="Of hswf: the bytes of every edge, as in 3686400 or 3.5MB.")] = "0B",
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Write a graph as hetero-graph/1.

    Without --output the document goes to standard output.
    """
    from json import dumps

    from hetero.floor.units import parse_bytes
    from hetero.graphs.document import document_of
    from hetero.graphs.files import write_text
    from hetero.graphs.formats import convert as read_any

    names = [name.strip() for name in columns.split(",") if name.strip()]
    graph = read_any(file, devices, format_, names, parse_bytes(edge_bytes))
    tell_unused(file, graph, devices)
    document = document_of(graph)
    if output is None:
        print_json(document)
        return
    write_text(output, dumps(document, indent=1) + "\n")
    if json:
        counts = {"tasks": len(graph.tasks), "edges": len(graph.edges), "devices": len(graph.devices)}
        print_json({"output": str(output), **counts})
    else:
        say(f"{output}: {len(graph.tasks):,} tasks, {len(graph.edges):,} edges, {len(graph.devices)} devices")


def show(
    file: Annotated[Path, typer.Argument(help="A graph of any format, or the trace of a run.")],
    devices: GraphDevices = None,
    output: Output = None,
    json: AsJson = False,
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
        read = convert_any(file, devices or "1")
        tell_unused(file, read, devices)
        view = view_of(read)
    if output is not None:
        write_text(output, view.svg)
    if json:
        print_json(view.as_dict())
    else:
        say(str(view))
        if output is not None:
            say(f"picture: {output}")


def tell_unused(file: Path, graph: TaskGraph, devices: str | None) -> None:
    """Note on standard error that a fleet was given for a graph that names its own devices."""
    from hetero.graphs.fleet_files import read_fleet

    if devices is not None and read_fleet(devices).devices != graph.devices:
        note(f"note: {file} names its own devices, so --devices {devices} is left out")


def schema(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, as it does anyway.")] = True,
) -> None:
    """Print the JSON Schema of hetero-graph/1."""
    from hetero.graphs.document import graph_schema

    print_json(graph_schema())
