"""The independent checker of schedules: it shares no code with the planner, only the values.

In: a graph and a schedule. Out: every violation, in words. It must not import plan/.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from hetero.model.graph import UNLIMITED_BYTES, GraphTask, TaskGraph
from hetero.model.schedule import Placed, Schedule, Sent

__all__ = ["contention_violations", "violations"]

_ROUTE_BYTES = 1e6

Item = tuple[str, int]
"""A data item: the task that made it, and its bytes."""


def violations(graph: TaskGraph, schedule: Schedule) -> list[str]:
    """Return what is wrong with a schedule under the model that it names; nothing when it is sound.

    Notes
    -----
    Every task stands once, on a device that can run it, for as long as it takes there, and may be repeated later;
    a device runs one task at a time; a task starts when all that it needs has finished and travelled; the makespan is
    the last finish; the lower bound is not above it. Under the model 'contention' the transfers are the plan's own,
    share links and buses, and no memory node overflows. Times may be off by a billionth of the makespan.

    Examples
    --------
    >>> from hetero.graphs import GraphDevice, GraphTask, MemoryNode, TaskGraph, Topology, plan_graph, violations
    >>> topology = Topology((MemoryNode("ram", 10**9),))
    >>> graph = TaskGraph((GraphDevice("cpu0", "ram"),), topology, (GraphTask("load", (1.0,)),), ())
    >>> violations(graph, plan_graph(graph, "heft").schedule)
    []
    """
    slack_s = 1e-9 * max((abs(row.finish_s) for row in schedule.placements if math.isfinite(row.finish_s)), default=0.0)
    found = [*_violations_of_rows(graph, schedule, slack_s), *_violations_of_repeats(graph, schedule, slack_s)]
    if found:
        return found
    if schedule.model == "contention":
        found = contention_violations(graph, schedule, slack_s)
    else:
        found = list(_early_starts(graph, {row.task: row for row in schedule.placements}, slack_s))
    return [*_overlaps(graph, schedule, slack_s), *found, *_wrong_totals(schedule, slack_s)]


def _violations_of_rows(graph: TaskGraph, schedule: Schedule, slack_s: float) -> Iterator[str]:
    tasks = {task.id: task for task in graph.tasks}
    column = {device.id: index for index, device in enumerate(graph.devices)}
    seen: set[str] = set()
    for row in schedule.placements:
        if row.task not in tasks:
            yield f"task {row.task!r} is not in the graph"
        elif row.task in seen:
            yield f"task {row.task!r} is placed twice"
        elif row.device not in column:
            yield f"task {row.task!r}: the graph has no device {row.device!r}"
        else:
            yield from _violations_of_span(tasks[row.task], column[row.device], row, slack_s)
        seen.add(row.task)
    for task in graph.tasks:
        if task.id not in seen:
            yield f"task {task.id!r} is not placed"


def _violations_of_repeats(graph: TaskGraph, schedule: Schedule, slack_s: float) -> Iterator[str]:
    tasks = {task.id: task for task in graph.tasks}
    column = {device.id: index for index, device in enumerate(graph.devices)}
    first = {row.task: row for row in schedule.placements}
    for row in schedule.repeats:
        if row.task not in tasks or row.device not in column:
            yield f"task {row.task!r} is repeated on {row.device!r}, and the graph has no such task or device"
        elif schedule.model != "contention":
            yield f"task {row.task!r} is repeated, and under the model {schedule.model!r} nothing is dropped"
        elif row.task in first and row.start_s < first[row.task].finish_s - slack_s:
            yield f"task {row.task!r} is repeated at {row.start_s:.9g} s, before it has finished"
        else:
            yield from _violations_of_span(tasks[row.task], column[row.device], row, slack_s)


def _violations_of_span(task: GraphTask, column: int, row: Placed, slack_s: float) -> Iterator[str]:
    seconds = task.seconds[column]
    if math.isinf(seconds):
        yield f"task {row.task!r} cannot run on {row.device!r}"
    elif not (math.isfinite(row.start_s) and math.isfinite(row.finish_s)) or row.start_s < -slack_s:
        yield f"task {row.task!r} starts at {row.start_s:g} s and finishes at {row.finish_s:g} s"
    elif abs(row.finish_s - row.start_s - seconds) > slack_s:
        took = row.finish_s - row.start_s
        yield f"task {row.task!r} takes {took:.9g} s on {row.device!r}, the table says {seconds:.9g} s"


def _overlaps(graph: TaskGraph, schedule: Schedule, slack_s: float) -> Iterator[str]:
    for device in graph.devices:
        ran = (*schedule.placements, *schedule.repeats)
        rows = [row for row in ran if row.device == device.id and row.finish_s > row.start_s]
        rows.sort(key=lambda row: (row.start_s, row.finish_s))
        for one, other in pairwise(rows):
            if other.start_s < one.finish_s - slack_s:
                yield f"{device.id!r} runs {one.task!r} and {other.task!r} at {other.start_s:.9g} s"


def _early_starts(graph: TaskGraph, where: dict[str, Placed], slack_s: float) -> Iterator[str]:
    node = {device.id: device.memory_node for device in graph.devices}
    routes = {name: _routes_from(graph, name) for name in sorted(set(node.values()))}
    for edge in graph.edges:
        src, dst = where[edge.src], where[edge.dst]
        here, there = node[src.device], node[dst.device]
        travel_s = 0.0
        if here != there and edge.nbytes > 0:
            if there not in routes[here]:
                yield f"nothing leads from {here!r} to {there!r}, where {edge.dst!r} needs what {edge.src!r} made"
                continue
            latency_s, s_per_byte = routes[here][there]
            travel_s = latency_s + edge.nbytes * s_per_byte
        if dst.start_s < src.finish_s + travel_s - slack_s:
            yield (
                f"task {edge.dst!r} starts at {dst.start_s:.9g} s, and what it needs from {edge.src!r} is there at"
                f" {src.finish_s + travel_s:.9g} s"
            )


def _routes_from(graph: TaskGraph, source: str) -> dict[str, tuple[float, float]]:
    """Return latency and seconds a byte to every memory node: fewest links first, then the faster for a megabyte."""
    queue = [(0, 0.0, source, 0.0, 0.0)]
    found: dict[str, tuple[float, float]] = {}
    while queue:
        hops, _, node, latency_s, s_per_byte = heapq.heappop(queue)
        if node in found:
            continue
        found[node] = (latency_s, s_per_byte)
        for link in graph.topology.links:
            if link.src == node:
                total_s, each_s = latency_s + link.latency_s, s_per_byte + 1.0 / link.bandwidth_bytes_per_s
                heapq.heappush(queue, (hops + 1, total_s + _ROUTE_BYTES * each_s, link.dst, total_s, each_s))
    return found


def _wrong_totals(schedule: Schedule, slack_s: float) -> Iterator[str]:
    last_s = max((row.finish_s for row in (*schedule.placements, *schedule.repeats)), default=0.0)
    if not abs(schedule.makespan_s - last_s) <= slack_s:
        yield f"the makespan is said to be {schedule.makespan_s:.9g} s, the last task finishes at {last_s:.9g} s"
    if not schedule.lower_bound_s <= last_s * (1.0 + 1e-9):
        yield f"the lower bound {schedule.lower_bound_s:.9g} s is above the makespan {last_s:.9g} s"


class _Stay(NamedTuple):
    """One stay of a data item on a memory node: room is taken from `begin_s` on, the item is there from `ready_s`."""

    begin_s: float
    ready_s: float
    end_s: float


class _Use(NamedTuple):
    """From when to when something needs an item on a memory node."""

    start_s: float
    finish_s: float
    by: str


def contention_violations(graph: TaskGraph, schedule: Schedule, slack_s: float) -> list[str]:
    """Return what is wrong with the transfers of a schedule, and with what lies where.

    Notes
    -----
    A data item is what a task makes with one number of bytes. It is on the task's memory node from the task's start
    (room) and finish (there), and in the same way wherever the task is repeated; a transfer brings it to another,
    where room is taken from the transfer's start. It stays until it is evicted, else until its last use: a task that
    reads it, or a transfer that takes it on. What takes no time may come before an eviction at the same instant, or
    after it. One link, or the links of one bus, carry one transfer at a time, for
    latency + bytes / bandwidth. No memory node ever holds more than its capacity.
    """
    found = [*_violations_of_transfers(graph, schedule, slack_s), *_violations_of_orders(graph, schedule, slack_s)]
    stays: dict[str, list[tuple[_Stay, int]]] = {}
    arrivals, uses = _arrivals(graph, schedule), _uses(graph, schedule)
    gone: dict[tuple[Item, str], list[float]] = {}
    for row in schedule.evictions:
        gone.setdefault(((row.task, row.nbytes), row.node), []).append(row.at_s)
    for key in sorted({*arrivals, *uses}):
        item, node = key
        stayed = _stays(sorted(arrivals.get(key, [])), uses.get(key, []), sorted(gone.get(key, [])), slack_s)
        for stay in stayed:
            if isinstance(stay, str):
                found.append(f"{stay} needs what {item[0]!r} made ({item[1]:,} bytes) on {node!r}, where it is not")
            else:
                stays.setdefault(node, []).append((stay, item[1]))
    return [*found, *_overfull(graph, stays, slack_s)]


def _violations_of_transfers(graph: TaskGraph, schedule: Schedule, slack_s: float) -> Iterator[str]:
    links = {(link.src, link.dst): link for link in graph.topology.links}
    items = {(edge.src, edge.nbytes) for edge in graph.edges if edge.nbytes > 0}
    channels: dict[tuple[str, ...], list[Sent]] = {}
    for row in schedule.transfers:
        link = links.get((row.src, row.dst))
        if link is None:
            yield f"no link leads from {row.src!r} to {row.dst!r}, where {_named(row)} is sent"
            continue
        if (row.task, row.nbytes) not in items:
            yield f"{_named(row)} is sent, and no edge has it"
        took_s, needs_s = row.finish_s - row.start_s, link.latency_s + row.nbytes / link.bandwidth_bytes_per_s
        if not abs(took_s - needs_s) <= slack_s:
            yield f"{_named(row)} takes {took_s:.9g} s from {row.src!r} to {row.dst!r}, the link needs {needs_s:.9g} s"
        channels.setdefault((link.bus,) if link.bus else (link.src, link.dst), []).append(row)
    for name, rows in channels.items():
        rows.sort(key=lambda row: (row.start_s, row.finish_s))
        for one, other in pairwise(rows):
            if other.start_s < one.finish_s - slack_s and other.finish_s > other.start_s:
                yield f"{' → '.join(name)} carries {_named(one)} and {_named(other)} at {other.start_s:.9g} s"


def _named(row: Sent) -> str:
    return f"what {row.task!r} made ({row.nbytes:,} bytes)"


def _violations_of_orders(graph: TaskGraph, schedule: Schedule, slack_s: float) -> Iterator[str]:
    where = {row.task: row for row in schedule.placements}
    for edge in graph.edges:
        src, dst = where[edge.src], where[edge.dst]
        if dst.start_s < src.finish_s - slack_s:
            yield f"task {edge.dst!r} starts at {dst.start_s:.9g} s, before {edge.src!r} finishes"


def _places(graph: TaskGraph, schedule: Schedule) -> dict[str, list[tuple[Placed, str]]]:
    """Return each attempt of each task, repeats included, and the memory node that it works on."""
    node = {device.id: device.memory_node for device in graph.devices}
    found: dict[str, list[tuple[Placed, str]]] = {}
    for row in (*schedule.placements, *schedule.repeats):
        found.setdefault(row.task, []).append((row, node[row.device]))
    return found


def _arrivals(graph: TaskGraph, schedule: Schedule) -> dict[tuple[Item, str], list[tuple[float, float]]]:
    """Return from when room is taken, and from when the item is there, for each item and memory node."""
    found: dict[tuple[Item, str], list[tuple[float, float]]] = {}
    places = _places(graph, schedule)
    for item in {(edge.src, edge.nbytes) for edge in graph.edges if edge.nbytes > 0}:
        for row, node in places[item[0]]:
            found.setdefault((item, node), []).append((row.start_s, row.finish_s))
    for sent in schedule.transfers:
        found.setdefault(((sent.task, sent.nbytes), sent.dst), []).append((sent.start_s, sent.finish_s))
    return found


def _uses(graph: TaskGraph, schedule: Schedule) -> dict[tuple[Item, str], list[_Use]]:
    found: dict[tuple[Item, str], list[_Use]] = {}
    places = _places(graph, schedule)
    for edge in graph.edges:
        if edge.nbytes > 0:
            for row, node in places[edge.dst]:
                use = _Use(row.start_s, row.finish_s, f"task {row.task!r} at {row.start_s:.9g} s")
                found.setdefault(((edge.src, edge.nbytes), node), []).append(use)
    for sent in schedule.transfers:
        use = _Use(sent.start_s, sent.finish_s, f"the transfer to {sent.dst!r} at {sent.start_s:.9g} s")
        found.setdefault(((sent.task, sent.nbytes), sent.src), []).append(use)
    return found


def _stays(
    arrivals: list[tuple[float, float]], uses: list[_Use], gone_s: list[float], slack_s: float
) -> Iterator[_Stay | str]:
    """Yield the stays of an item on a memory node, one between two evictions; or which use finds nothing there.

    What takes no time and happens at the instant of an eviction comes before or after it, as the uses need.
    """

    def turns(start_s: float, finish_s: float) -> range:
        first = bisect_left(gone_s, finish_s - slack_s)
        return range(first, max(first, bisect_right(gone_s, start_s + slack_s)) + 1)

    came: list[list[tuple[float, float]]] = [[] for _ in range(len(gone_s) + 1)]
    besides: list[list[tuple[float, float]]] = [[] for _ in came]
    for one in arrivals:
        first, *others = turns(*one)
        came[first].append(one)
        for turn in others:
            besides[turn].append(one)
    last_s = [max([ready_s for _, ready_s in each], default=0.0) for each in came]
    for use in uses:
        at = turns(use.start_s, use.finish_s)
        found = [turn for turn in at if _is_there(came[turn], use, slack_s)]
        if not found:
            found = [turn for turn in at if _is_there(besides[turn], use, slack_s)]
            for turn in found[:1]:
                came[turn] += besides[turn]
        if not found:
            yield use.by
        else:
            last_s[found[0]] = max(last_s[found[0]], use.finish_s)
    for turn, each in enumerate(came):
        if each:
            begin_s, ready_s = min(begin_s for begin_s, _ in each), min(ready_s for _, ready_s in each)
            yield _Stay(begin_s, ready_s, gone_s[turn] if turn < len(gone_s) else last_s[turn])


def _is_there(came: list[tuple[float, float]], use: _Use, slack_s: float) -> bool:
    return any(ready_s <= use.start_s + slack_s for _, ready_s in came)


def _overfull(graph: TaskGraph, stays: dict[str, list[tuple[_Stay, int]]], slack_s: float) -> Iterator[str]:
    for node in graph.topology.nodes:
        if node.capacity_bytes == UNLIMITED_BYTES:
            continue
        changes = []
        for stay, nbytes in stays.get(node.id, []):
            if stay.end_s - stay.begin_s > slack_s:
                changes += [(stay.begin_s + slack_s, nbytes), (stay.end_s, -nbytes)]
        held = 0
        for at_s, change in sorted(changes):
            held += change
            if held > node.capacity_bytes:
                yield f"{node.id!r} holds {held:,} bytes at {at_s:.6g} s, its capacity is {node.capacity_bytes:,}"
                break
