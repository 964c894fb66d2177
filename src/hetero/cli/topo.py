"""`hetero topo`: how devices, switches, NUMA nodes and networks hang together, and the best group of them.

In: this host, a topology file, or the output of `nvidia-smi topo -m`. Out: a tree and a table for people, JSON, a PNG.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import Network, Output, refuse_unused
from hetero.cli.output import console, print_json, say

if TYPE_CHECKING:
    from rich.table import Table
    from rich.tree import Tree

    from hetero.model.fabric import Fabric
    from hetero.plan.collectives.groups import DeviceGroup

__all__ = ["topo"]

_MOST_COLUMNS = 8
_ALWAYS = ("topology", "gpu", "network", "output", "json")
_ALL = (*_ALWAYS, "between", "group", "collective", "include", "exclude", "together", "spread", "near", "apart")


def topo(
    context: typer.Context,
    topology: Annotated[
        list[Path] | None,
        typer.Option(help="Topology file, or what 'nvidia-smi topo -m' printed; one a host. '-': input."),
    ] = None,
    gpu: Annotated[str, typer.Option(help="The GPUs' name in the catalog, for rates that a matrix lacks.")] = "",
    network: Network = "",
    between: Annotated[tuple[str, str] | None, typer.Option(help="Two parts: hops and bandwidth between them.")] = None,
    group: Annotated[int, typer.Option(help="Find the best group of that many devices.")] = 0,
    collective: Annotated[str, typer.Option(help="all_reduce, broadcast, all_to_all, …")] = "all_reduce",
    include: Annotated[list[str] | None, typer.Option(help="A device that the group must have.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="A device that it must not have.")] = None,
    together: Annotated[str, typer.Option(help="One rack, host, numa, pcie or nvlink for all of it.")] = "",
    spread: Annotated[str, typer.Option(help="Another rack, host, numa, pcie or nvlink for each.")] = "",
    near: Annotated[list[str] | None, typer.Option(help="DEVICE@SCOPE that it must share, as in cuda:0@numa.")] = None,
    apart: Annotated[list[str] | None, typer.Option(help="DEVICE@SCOPE that it must not share.")] = None,
    output: Output = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, which --topology reads.")] = False,
) -> None:
    """Show how devices are connected, and which of them work together best.

    --network joins hosts by their network cards; --output also draws a picture into a file.
    """
    from hetero.floor.units import parse_bandwidth
    from hetero.plan.collectives.groups import Terms, best_group

    if between is not None:
        refuse_unused(context, (*_ALWAYS, "between"), "with --between")
    elif not group:
        refuse_unused(context, _ALWAYS, "without --group")
    if not topology:
        refuse_unused(
            context, [name for name in _ALL if name != "gpu"], "without --topology: this host's devices are known"
        )
    fabric = _read(topology or [], gpu, parse_bandwidth(network) if network else None)
    if output is not None:
        from hetero.advise.topo_drawing import draw

        draw(fabric, output)
    if between is not None:
        _tell_path(fabric, between, json)
    elif group:
        places = _pairs("near", near), _pairs("apart", apart)
        terms = Terms(tuple(include or ()), tuple(exclude or ()), together, spread, *places)
        _tell_group(best_group(fabric, group, collective, terms), json)
    elif json:
        from hetero.backends.topology_files import as_document

        print_json(as_document(fabric))
    else:
        _show(fabric)


def _read(files: list[Path], gpu: str, network: float | None) -> Fabric:
    import sys

    from hetero.backends.topology_files import here, joined, rates_of, read_text, read_topology

    if not files:
        return here() if network is None else joined([here()], network)
    if files == [Path("-")]:
        text = read_text(sys.stdin.read(), "standard input", "h0", gpu, rates_of(gpu) if gpu else None)
        return joined([text], network)
    return read_topology(files, gpu, network)


def _pairs(option: str, given: list[str] | None) -> tuple[tuple[str, str], ...]:
    from hetero.floor.errors import BadValueError

    found = []
    for word in given or ():
        device, at, scope = word.rpartition("@")
        if not at:
            raise BadValueError(f"--{option} {word!r} names no scope", remedy="write DEVICE@SCOPE, as in cuda:0@numa")
        found.append((device, scope))
    return tuple(found)


def _tell_path(fabric: Fabric, ends: tuple[str, str], json: bool) -> None:
    from hetero.floor.units import format_rate

    way = fabric.path(*ends)
    nvlinked = fabric.nvlinked(*ends)
    if json:
        facts = {"hops": way.hops, "bytes_per_s": way.bytes_per_s, "latency_s": way.latency_s, "nvlink": nvlinked}
        print_json({"from": ends[0], "to": ends[1], **facts, "parts": way.parts})
        return
    say(" - ".join(way.parts))
    words = "NVLink all the way" if nvlinked else f"over {', '.join(way.kinds)}"
    say(f"{way.hops} hops, {format_rate(way.bytes_per_s, 'B/s')} in one direction, {words}")


def _tell_group(group: DeviceGroup, json: bool) -> None:
    from hetero.floor.units import format_rate

    if json:
        print_json(
            {
                "devices": group.devices,
                "collective": group.collective,
                "bytes_per_s": group.bytes_per_s,
                "mean_bytes_per_s": group.mean_bytes_per_s,
                "exact": group.exact,
            }
        )
        return
    say(" ".join(group.devices))
    how = "every group was looked at" if group.exact else "found by search"
    rate, mean = format_rate(group.bytes_per_s, "B/s"), format_rate(group.mean_bytes_per_s, "B/s")
    say(f"{group.collective}: slowest connection {rate}, {mean} in the mean of all pairs; {how}")


def _show(fabric: Fabric) -> None:
    out = console()
    for tree in _trees(fabric):
        out.print(tree)
    if 1 < len(fabric.devices) <= _MOST_COLUMNS:
        out.print(_matrix(fabric))
    kinds = {wire.kind for wire in fabric.wires if wire.origin == "declared"}
    if kinds:
        out.print(f"~ usual figures, not read here: {', '.join(sorted(kinds))}", markup=False)


def _trees(fabric: Fabric) -> list[Tree]:
    """Return one tree a host: its NUMA nodes, what hangs on them, and the wires that make no tree."""
    from rich.tree import Tree

    trees = []
    for host in dict.fromkeys(part.host for part in fabric.parts):
        members = [part for part in fabric.parts if part.host == host]
        tree = Tree(host or "network", highlight=False)
        places: dict[object, Tree] = {}
        for part in sorted(members, key=lambda part: (part.numa is None, part.numa or 0)):
            if part.kind == "numa":
                places[part.numa] = tree.add(part.id, highlight=False)
        for part in members:
            if part.kind in ("device", "nic"):
                places.get(part.numa, tree).add(_line(fabric, part.id, part.name), highlight=False)
        trees.append(tree)
    return trees


def _line(fabric: Fabric, name: str, words: str) -> str:
    from hetero.floor.units import format_rate

    ends = []
    for wire in fabric.wires:
        if name in (wire.one, wire.other):
            far = wire.other if wire.one == name else wire.one
            about = "~" if wire.origin == "declared" else ""
            ends.append(f"{wire.kind} {about}{format_rate(wire.bytes_per_s, 'B/s')} → {far}")
    return f"{name}  {words}  {'; '.join(ends)}".replace("    ", "  ")


def _matrix(fabric: Fabric) -> Table:
    """Return the bandwidths between all devices."""
    from rich.box import SIMPLE
    from rich.table import Table

    names = [part.id for part in fabric.devices]
    short = [name.rpartition("/")[2] if len({part.host for part in fabric.devices}) == 1 else name for name in names]
    table = Table(title="GB/s of the widest path, one direction", title_justify="left", box=SIMPLE)
    table.add_column("")
    for name in short:
        table.add_column(name, justify="right")
    for one, row in zip(short, fabric.bandwidths(names), strict=True):
        table.add_row(one, *("" if rate == 0.0 else f"{rate / 1e9:.3g}" for rate in row))
    return table
