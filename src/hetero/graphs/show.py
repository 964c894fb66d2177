"""`hetero.graphs.graph`: the task graph of a run as it went, or of a file, as text and as a picture.

In: a Context that writes a trace, a trace, or a task graph. Out: a `GraphView`. It must not run anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import chain
from math import inf
from pathlib import Path
from typing import NamedTuple

from hetero.drive.trace_read import read_trace
from hetero.floor.units import format_seconds
from hetero.model.commands import Fail
from hetero.model.events import TaskFinished, TaskSubmitted
from hetero.model.graph import TaskGraph, topological_order
from hetero.session.context import Context
from hetero.session.runs import trace_of

__all__ = ["GraphView", "ShownTask", "graph", "view_of"]

_MOST_LINES, _MOST_DRAWN = 40, 600
_WIDE, _HIGH, _BOX_WIDE, _BOX_HIGH = 150, 34, 120, 24
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#999933")


class ShownTask(NamedTuple):
    """One task of a run or of a graph.

    Attributes
    ----------
    needs
        Ids of the tasks that it waited for.
    device
        Id, '' where it has not finished.
    start_s, seconds
        Seconds since the first start, and how long it took; of a graph, the time on its fastest device.
    state
        'finished', 'failed' or 'open'; '' in a graph.
    """

    id: int
    name: str
    needs: tuple[int, ...]
    device: str
    start_s: float
    seconds: float
    state: str


class GraphView:
    """The task graph of a run or of a file.

    Attributes
    ----------
    tasks
        In the order in which they were handed in.
    """

    def __init__(self, tasks: tuple[ShownTask, ...]) -> None:
        self.tasks = tasks

    @property
    def depth(self) -> dict[int, int]:
        """The number of tasks on the longest way to each task, by id."""
        found: dict[int, int] = {}
        for task in self.tasks:
            found[task.id] = max((found[before] + 1 for before in task.needs if before in found), default=0)
        return found

    @property
    def edges(self) -> int:
        """Return the number of edges."""
        return sum(len(task.needs) for task in self.tasks)

    @property
    def levels(self) -> int:
        """Return the number of tasks on the longest path."""
        return max(self.depth.values(), default=-1) + 1

    def as_dict(self) -> dict[str, object]:
        """Return plain values."""
        counts = {"count": len(self.tasks), "edges": self.edges, "levels": self.levels}
        return {**counts, "tasks": [task._asdict() for task in self.tasks]}

    def __str__(self) -> str:
        head = f"{len(self.tasks):,} tasks, {self.edges:,} edges, {self.levels:,} levels"
        lines = [_line(task) for task in self.tasks[:_MOST_LINES]]
        more = [f"… and {len(self.tasks) - _MOST_LINES:,} more"] if len(self.tasks) > _MOST_LINES else []
        return "\n".join([head, *lines, *more])

    def _repr_html_(self) -> str:
        return self.svg

    @property
    def svg(self) -> str:
        """The picture: a column a level, a colour a device; of very large graphs the first tasks."""
        depth, rows = self.depth, dict[int, int]()
        places: dict[int, tuple[int, int]] = {}
        for task in self.tasks[:_MOST_DRAWN]:
            row = rows[depth[task.id]] = rows.get(depth[task.id], -1) + 1
            places[task.id] = (10 + depth[task.id] * _WIDE, 10 + row * _HIGH)
        devices = list(dict.fromkeys(task.device for task in self.tasks if task.device))
        width = 20 + (max((depth[task] for task in places), default=0) + 1) * _WIDE
        height = 20 + (max(rows.values(), default=0) + 2) * _HIGH
        drawn = chain(self._edges(places), self._boxes(places, devices), _legend(devices, height - _HIGH))
        opened = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        return f'{opened} font-size="11">{"".join(drawn)}</svg>'

    def _edges(self, places: dict[int, tuple[int, int]]) -> Iterator[str]:
        for task in self.tasks[:_MOST_DRAWN]:
            x, y = places[task.id]
            for before in task.needs:
                if before in places:
                    left, top = places[before]
                    line = f'x1="{left + _BOX_WIDE}" y1="{top + _BOX_HIGH // 2}" x2="{x}" y2="{y + _BOX_HIGH // 2}"'
                    yield f'<line {line} stroke="#888"/>'

    def _boxes(self, places: dict[int, tuple[int, int]], devices: list[str]) -> Iterator[str]:
        for task in self.tasks[:_MOST_DRAWN]:
            x, y = places[task.id]
            colour = _COLOURS[devices.index(task.device) % len(_COLOURS)] if task.device else "#ffffff"
            box = (
                f'<rect x="{x}" y="{y}" width="{_BOX_WIDE}" height="{_BOX_HIGH}" rx="3" fill="{colour}" stroke="#333">'
            )
            text = f'<text x="{x + 5}" y="{y + 16}">{escape(task.name[:18])}</text>'
            yield f"{box}<title>{escape(_line(task))}</title></rect>{text}"


def _legend(devices: list[str], top: int) -> Iterator[str]:
    for number, device in enumerate(devices):
        colour = _COLOURS[number % len(_COLOURS)]
        yield f'<text x="{10 + number * 110}" y="{top + 16}" fill="{colour}">{escape(device.partition("/")[2])}</text>'


def _line(task: ShownTask) -> str:
    needs = f" ← {', '.join(map(str, task.needs[:6]))}{'…' if len(task.needs) > 6 else ''}" if task.needs else ""
    ran = f" on {task.device.partition('/')[2]}, {format_seconds(task.seconds)}" if task.device else ""
    state = task.state or f"{format_seconds(task.seconds)} on its fastest device"
    return f"{task.id} {task.name}{needs}: {state}{ran}"


def graph(ctx: Context | str | Path) -> GraphView:
    """Show the task graph of a run; of one that is still going, until now.

    Parameters
    ----------
    ctx
        A Context that was opened with `trace=`, or the path of a trace.

    Raises
    ------
    BadValueError
        The Context writes no trace.
    TraceError
        The trace cannot be read.

    Examples
    --------
    >>> import hetero, tempfile
    >>> path = tempfile.mkdtemp() + "/run.trace.jsonl.gz"
    >>> with hetero.Context(devices="1xcpu", engine="inline", trace=path) as ctx:
    ...     total = ctx.run(sum, ctx.submit(sorted, [3, 1, 2]))
    >>> print(str(hetero.graphs.graph(ctx)).splitlines()[0])
    2 tasks, 1 edges, 2 levels
    """
    return GraphView(_tasks(trace_of(ctx)))


def view_of(graph: TaskGraph) -> GraphView:
    """Return the view of a task graph that was read from a file.

    Examples
    --------
    >>> from hetero.model.graph import GraphDevice, GraphEdge, GraphTask
    >>> from hetero.model.topology import Topology
    >>> tasks = GraphTask("load", (1.0, 2.0)), GraphTask("fit", (inf, 4.0))
    >>> devices = GraphDevice("d0", "ram"), GraphDevice("d1", "ram")
    >>> print(view_of(TaskGraph(devices, Topology(), tasks, (GraphEdge("load", "fit", 8),))))
    2 tasks, 1 edges, 2 levels
    0 load: 1 s on its fastest device
    1 fit ← 0: 4 s on its fastest device
    """
    place = {task.id: at for at, task in enumerate(graph.tasks)}
    edges = [(place[edge.src], place[edge.dst]) for edge in graph.edges]
    ordered = [graph.tasks[at] for at in topological_order(list(place), edges)]
    number = {task.id: at for at, task in enumerate(ordered)}
    needs: dict[int, list[int]] = {}
    for edge in graph.edges:
        needs.setdefault(number[edge.dst], []).append(number[edge.src])
    return GraphView(
        tuple(
            ShownTask(at, task.id, tuple(needs.get(at, ())), "", 0.0, min(task.seconds, default=inf), "")
            for at, task in enumerate(ordered)
        )
    )


def _tasks(path: str | Path) -> tuple[ShownTask, ...]:
    found: dict[int, ShownTask] = {}
    begin_s: float | None = None
    for _, record in read_trace(path):
        if isinstance(record, TaskSubmitted):
            task = record.task
            needs = tuple(before for before in dict.fromkeys((*task.inputs, *task.after)) if before in found)
            found[task.id] = ShownTask(task.id, task.name, needs, "", 0.0, 0.0, "open")
        elif isinstance(record, TaskFinished) and record.task in found:
            begin_s = record.started_s if begin_s is None else begin_s
            found[record.task] = found[record.task]._replace(
                device=record.device, start_s=record.started_s - begin_s, seconds=record.seconds, state="finished"
            )
        elif isinstance(record, Fail) and record.task in found:
            found[record.task] = found[record.task]._replace(state="failed")
    return tuple(found.values())
