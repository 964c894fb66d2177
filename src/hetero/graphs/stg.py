"""The Standard Task Graph format: identical processors, precedence, no data.

In: text and a fleet. Out: a `TaskGraph`. It must not give speeds that the fleet does not name.
"""

from __future__ import annotations

from hetero.floor.errors import GraphError
from hetero.floor.units import shown
from hetero.graphs.fleet_files import GraphFleet
from hetero.model.graph import GraphEdge, GraphTask, TaskGraph

__all__ = ["read_stg"]


def read_stg(text: str, file: str, fleet: GraphFleet) -> TaskGraph:
    r"""Read a Standard Task Graph.

    Parameters
    ----------
    text : the number of tasks, then a line a task: id, cost, number of predecessors, predecessors; '#' begins a comment
    fleet : the devices; a cost of c takes c / speed seconds

    Notes
    -----
    The number in the first line leaves out the entry and the exit task, so up to two more lines are right.

    References
    ----------
    T. Tobita, H. Kasahara, "A standard task graph set for fair evaluation of multiprocessor scheduling
    algorithms", Journal of Scheduling 5 (2002), 379-394.

    Examples
    --------
    >>> from hetero.graphs.fleet_files import equal_devices
    >>> read_stg("2\n 1 5 0\n 2 3 1 1\n", "a.stg", equal_devices(1)).edges
    (GraphEdge(src='1', dst='2', nbytes=0),)
    """
    lines = [(number, line.partition("#")[0].split()) for number, line in enumerate(text.splitlines(), 1)]
    rows = [(number, [_number(word, f"{file}:{number}") for word in words]) for number, words in lines if words]
    if not rows:
        raise GraphError(f"{file}: the file is empty", remedy="an STG file begins with its number of tasks")
    (first, (count, *_)), *rows = rows
    if not count <= len(rows) <= count + 2:
        raise GraphError(f"{file}:{first}: {count:g} tasks are announced, {len(rows)} lines follow; is it cut short?")
    tasks = tuple(GraphTask(f"{row[0]:g}", fleet.seconds(_cost(row, f"{file}:{number}"))) for number, row in rows)
    lines_of: dict[str, int] = {}
    for task, (number, _) in zip(tasks, rows, strict=True):
        if lines_of.setdefault(task.id, number) != number:
            raise GraphError(f"{file}:{number}: the id {task.id} is given twice", remedy="give each task its own")
    edges = tuple(edge for number, row in rows for edge in _edges(row, lines_of, f"{file}:{number}"))
    return TaskGraph(fleet.devices, fleet.topology, tasks, edges)


def _number(word: str, place: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < float("inf"):
        raise GraphError(f"{place}: {shown(word)} is not a number >= 0", remedy="write id, cost, count, predecessors")
    return number


def _cost(row: list[float], place: str) -> float:
    if len(row) < 3 or len(row) != 3 + row[2]:
        raise GraphError(
            f"{place}: {len(row)} numbers make no task", remedy="write id, cost, the number of predecessors, and those"
        )
    return row[1]


def _edges(row: list[float], known: dict[str, int], place: str) -> list[GraphEdge]:
    before = list(dict.fromkeys(f"{name:g}" for name in row[3:]))
    for name in before:
        if name not in known:
            raise GraphError(f"{place}: no task has the id {name}")
    return [GraphEdge(name, f"{row[0]:g}", 0) for name in before]
