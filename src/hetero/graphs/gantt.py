"""A schedule as a Gantt chart of text: a row a device.

In: a graph, a schedule, a width. Out: lines. It must not print.
"""

from __future__ import annotations

from hetero.floor.units import format_seconds
from hetero.model.graph import TaskGraph
from hetero.model.schedule import Schedule

__all__ = ["gantt"]

_LEAST_WIDTH, _MOST_NAME = 16, 24
_MOST_DEVICES = 40
_SHADES = " ▁▂▃▄▅▆▇█"


def gantt(graph: TaskGraph, schedule: Schedule, width: int) -> list[str]:
    """Draw each device's busy share over time, and name its tasks where there is room.

    Parameters
    ----------
    width
        Columns, at least about 50.

    Notes
    -----
    Up to as many tasks as would still be readable each is drawn as a block with its id, after '↻' where it runs
    again; beyond, each column's height is the share of its time in which the device is busy.
    """
    devices = graph.devices[:_MOST_DEVICES]
    name_width = min(_MOST_NAME, max((len(device.id) for device in devices), default=0))
    columns = max(_LEAST_WIDTH, width - name_width - 9)
    lines = []
    for device in devices:
        ran = [(row, row.task) for row in schedule.placements] + [(row, f"↻{row.task}") for row in schedule.repeats]
        rows = [(row.start_s, row.finish_s, name) for row, name in ran if row.device == device.id]
        busy_s = sum(finish_s - start_s for start_s, finish_s, _ in rows)
        share = busy_s / schedule.makespan_s if schedule.makespan_s > 0.0 else 0.0
        drawn = _blocks(rows, columns, schedule.makespan_s) if len(rows) * 4 <= columns else None
        bar = drawn or _shares(rows, columns, schedule.makespan_s)
        lines.append(f"{device.id[:name_width]:<{name_width}} │{bar}│ {share:4.0%}")
    if len(graph.devices) > _MOST_DEVICES:
        lines.append(f"… and {len(graph.devices) - _MOST_DEVICES} more devices")
    lines.append(f"{'':<{name_width}} 0{format_seconds(schedule.makespan_s):>{columns}}")
    return lines


def _blocks(rows: list[tuple[float, float, str]], columns: int, makespan_s: float) -> str | None:
    """Draw each task as '[id]' over its time; None where two would fall on one another."""
    bar = [" "] * columns
    for start_s, finish_s, task in sorted(rows):
        first = round(start_s / makespan_s * columns) if makespan_s > 0.0 else 0
        last = round(finish_s / makespan_s * columns) if makespan_s > 0.0 else 0
        if last - first < 3 or any(mark != " " for mark in bar[first:last]):
            return None
        text = task[: last - first - 2].center(last - first - 2, "─")
        bar[first:last] = ["[", *text, "]"]
    return "".join(bar)


def _shares(rows: list[tuple[float, float, str]], columns: int, makespan_s: float) -> str:
    busy = [0.0] * columns
    step_s = makespan_s / columns
    for start_s, finish_s, _ in rows:
        if step_s <= 0.0:
            break
        first, last = int(start_s / step_s), min(int(finish_s / step_s), columns - 1)
        for column in range(first, last + 1):
            busy[column] += max(0.0, min(finish_s, (column + 1) * step_s) - max(start_s, column * step_s))
    shares = (min(1.0, amount / step_s) if step_s > 0.0 else 0.0 for amount in busy)
    return "".join(_SHADES[round(share * (len(_SHADES) - 1))] for share in shares)
