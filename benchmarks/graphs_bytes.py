"""Bytes that a plan of a 20 × 20 Cholesky moves, over the least that its own placement needs: counted, not timed."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from benchmarks.graphs import cholesky
from hetero.graphs.check import violations
from hetero.graphs.planning import Budget, plan_graph
from hetero.model.graph import UNLIMITED_BYTES, TaskGraph
from hetero.model.schedule import Schedule
from hetero.model.topology import Link, MemoryNode, Topology

DEVICES = (2, 4, 8)
ROOM_FRAC = 0.3
TILE_BYTES = 960 * 960 * 4
LINK_BYTES_PER_S, LINK_S = 6e9, 1e-5


def least_bytes(graph: TaskGraph, schedule: Schedule) -> int:
    """Return the bytes that the placement needs: each item once to each memory node that reads and did not make it."""
    home = {device.id: device.memory_node for device in graph.devices}
    node = {row.task: home[row.device] for row in schedule.placements}
    needed = {(edge.src, edge.nbytes, node[edge.dst]) for edge in graph.edges if node[edge.src] != node[edge.dst]}
    return sum(nbytes for _, nbytes, _ in needed)


def tight(graph: TaskGraph, tiles: int) -> TaskGraph:
    """Return the graph with devices that hold only a part of the matrix each, and a host's memory beside them."""
    room = int(ROOM_FRAC * tiles * (tiles + 1) / 2) * TILE_BYTES
    names = [device.memory_node for device in graph.devices]
    nodes = (MemoryNode("ram", UNLIMITED_BYTES), *(MemoryNode(name, room) for name in names))
    pairs = [pair for name in names for pair in ((name, "ram"), ("ram", name))]
    links = tuple(Link(src, dst, LINK_S, LINK_BYTES_PER_S) for src, dst in pairs)
    return dataclasses.replace(graph, topology=Topology(nodes, (*graph.topology.links, *links)))


def count_bytes(bench: Bench, what: str, graph: TaskGraph, policy: str, at_most: float | None = 1.3) -> None:
    """Plan a graph, have the checker confirm the plan, and hold its bytes against the least."""
    schedule = plan_graph(graph, policy, Budget(iterations=60), 0).schedule
    wrong = violations(graph, schedule)
    if wrong:
        raise AssertionError(wrong[0])
    moved, least = sum(row.nbytes for row in schedule.transfers), least_bytes(graph, schedule)
    bench.measure(what, [float(moved)], "bytes")
    each = sum(edge.nbytes for edge in graph.edges)
    bench.note(**{what: f"{each:,} bytes on all edges, least {least:,}, {len(schedule.evictions)} evictions"})
    bench.claim(f"bytes moved, {what}", moved / least, rival="least of the same placement", at_most=at_most)


def main() -> None:
    """Plan, count and print."""
    given = arguments(str(__doc__))
    tiles = 8 if given.quick else 20
    bench = Bench("graphs_bytes", "bytes moved by a plan", ("numba", "scipy", "ortools"), given.out)
    for count in DEVICES[: 1 if given.quick else None]:
        graph = cholesky(tiles, count)
        for policy in ("search", "heft"):
            count_bytes(bench, f"{tiles} × {tiles} Cholesky on {count} devices, {policy}", graph, policy)
        little = f"{tiles} × {tiles} Cholesky on {count} devices with {ROOM_FRAC:.0%} of the matrix each"
        count_bytes(bench, little, tight(graph, tiles), "search", None)
    bench.finish()


if __name__ == "__main__":
    main()
