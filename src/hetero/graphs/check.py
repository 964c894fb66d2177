"""The independent checker of schedules: it shares no code with the planner, only the values.

In: a graph and a schedule. Out: every fault, in words. It must not import plan/.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import pairwise

from hetero.graphs.check_contention import contention_faults
from hetero.model.graph import GraphTask, TaskGraph
from hetero.model.schedule import Placed, Schedule

__all__ = ["faults"]

_ROUTE_BYTES = 1e6


def faults(graph: TaskGraph, schedule: Schedule) -> list[str]:
    """Return what is wrong with a schedule under the model that it names; nothing when it is sound.

    Notes
    -----
    Every task stands once, on a device that can run it, for as long as it takes there, and may be repeated later;
    a device runs one task at a time; a task starts when all that it needs has finished and travelled; the makespan is
    the last finish; the lower bound is not above it. Under the model 'contention' the transfers are the plan's own,
    share links and buses, and no memory node overflows. Times may be off by a billionth of the makespan.
    """
    slack_s = 1e-9 * max((abs(row.finish_s) for row in schedule.placements if math.isfinite(row.finish_s)), default=0.0)
    found = [*_faults_of_rows(graph, schedule, slack_s), *_faults_of_repeats(graph, schedule, slack_s)]
    if found:
        return found
    if schedule.model == "contention":
        found = contention_faults(graph, schedule, slack_s)
    else:
        found = list(_early_starts(graph, {row.task: row for row in schedule.placements}, slack_s))
    return [*_overlaps(graph, schedule, slack_s), *found, *_wrong_totals(schedule, slack_s)]


def _faults_of_rows(graph: TaskGraph, schedule: Schedule, slack_s: float) -> Iterator[str]:
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
            yield from _fault_of_span(tasks[row.task], column[row.device], row, slack_s)
        seen.add(row.task)
    for task in graph.tasks:
        if task.id not in seen:
            yield f"task {task.id!r} is not placed"


def _faults_of_repeats(graph: TaskGraph, schedule: Schedule, slack_s: float) -> Iterator[str]:
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
            yield from _fault_of_span(tasks[row.task], column[row.device], row, slack_s)


def _fault_of_span(task: GraphTask, column: int, row: Placed, slack_s: float) -> Iterator[str]:
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
