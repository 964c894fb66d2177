"""Runs the schedulers of SAGA on a table task × device: in an environment of its own, called by graphs_saga.py.

In: one JSON document on standard input. Out: one JSON document, scheduler to placements or why there are none. It
must not import hetero.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any

import saga
from saga import schedulers

LEFT_OUT = ("BruteForceScheduler", "SMTScheduler", "HybridScheduler")
"""Two take exponential time; the third is the best of others that it is given."""


class Cost(float):
    """A task's mean seconds, which over a device's speed are its seconds there."""

    row: list[float]

    def __truediv__(self, other: float) -> float:
        """Return the table's seconds for a device, else the quotient."""
        return self.row[other.column] if isinstance(other, Speed) else float(self) / other


class Speed(float):
    """A device's mean speed, and its column of the table."""

    column: int


class Size(float):
    """The bytes of an edge, which over a link are its seconds there."""

    def __truediv__(self, other: float) -> float:
        """Return latency + bytes / bandwidth; nothing for no bytes or within a memory node."""
        if not isinstance(other, Route):
            return float(self) / other
        return other.latency_s + float(self) * other.s_per_byte if self > 0.0 else 0.0


class Route(float):
    """The bandwidth between two devices, with what it is made of."""

    latency_s: float
    s_per_byte: float


class Instance:
    """A graph and a network of SAGA's over a table, with look-ups in constant time that keep the table's numbers."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.tasks = [self._task(number, row) for number, row in enumerate(document["seconds"])]
        self.edges = [self._edge(*row) for row in document["edges"]]
        self.nodes = [self._node(column, document) for column in range(len(document["node"]))]
        self.routes = [self._route(a, b, document) for a in range(len(self.nodes)) for b in range(a + 1)]
        self.graph = saga.TaskGraph.create(self.tasks, self.edges)
        self.network = saga.Network.create(self.nodes, [])
        self.network = saga.Network(nodes=frozenset(self.nodes), edges=frozenset(self.routes))
        self._look_up()

    @staticmethod
    def _task(number: int, row: list[float]) -> Any:
        cost = Cost(sum(row) / len(row))
        cost.row = row
        task = saga.TaskGraphNode(name=f"t{number:06d}", cost=0.0)
        task.cost = cost
        return task

    @staticmethod
    def _edge(src: int, dst: int, nbytes: float) -> Any:
        edge = saga.TaskGraphEdge(source=f"t{src:06d}", target=f"t{dst:06d}", size=0.0)
        edge.size = Size(nbytes)
        return edge

    @staticmethod
    def _node(column: int, document: dict[str, Any]) -> Any:
        rows = [row for row in document["seconds"] if row[column] > 0.0]
        speed = Speed(sum(sum(row) / len(row) / row[column] for row in rows) / len(rows) if rows else 1.0)
        speed.column = column
        node = saga.NetworkNode(name=f"d{column:03d}", speed=1.0)
        node.speed = speed
        return node

    @staticmethod
    def _route(a: int, b: int, document: dict[str, Any]) -> Any:
        src, dst = document["node"][b], document["node"][a]
        s_per_byte = document["s_per_byte"][src][dst]
        route = Route(1.0 / s_per_byte if s_per_byte > 0.0 else float("inf"))
        route.latency_s, route.s_per_byte = document["latency_s"][src][dst], s_per_byte
        edge = saga.NetworkEdge(source=f"d{b:03d}", target=f"d{a:03d}", speed=1.0)
        edge.speed = route
        return edge

    def _look_up(self) -> None:
        """Have SAGA's classes answer from dictionaries of this instance."""
        tasks = {task.name: task for task in self.graph.tasks}
        nodes = {node.name: node for node in self.network.nodes}
        pairs = {(edge.source, edge.target): edge for edge in self.graph.dependencies}
        links = {tuple(sorted((edge.source, edge.target))): edge for edge in self.network.edges}
        into: dict[str, list[Any]] = {name: [] for name in tasks}
        out: dict[str, list[Any]] = {name: [] for name in tasks}
        for edge in sorted(self.graph.dependencies):
            into[edge.target].append(edge)
            out[edge.source].append(edge)

        def name(one: Any) -> str:
            return one if isinstance(one, str) else str(one.name)

        saga.TaskGraph.get_task = lambda _, one: tasks[name(one)]
        saga.TaskGraph.get_dependency = lambda _, a, b: pairs[name(a), name(b)]
        saga.TaskGraph.in_edges = lambda _, one: list(into[name(one)])
        saga.TaskGraph.out_edges = lambda _, one: list(out[name(one)])
        saga.TaskGraph.in_degree = lambda _, one: len(into[name(one)])
        saga.TaskGraph.out_degree = lambda _, one: len(out[name(one)])
        saga.Network.get_node = lambda _, one: nodes[name(one)]
        saga.Network.get_edge = lambda _, a, b: links[tuple(sorted((name(a), name(b))))]
        saga.Schedule.is_scheduled = lambda schedule, one: name(one) in schedule._task_map


def placements(schedule: Any) -> list[list[Any]]:
    """Return [task, device, start, finish] of each task of the graph."""
    return [
        [int(row.name[1:]), int(row.node[1:]), float(row.start), float(row.end)]
        for rows in schedule.mapping.values()
        for row in rows
        if not row.name.startswith("__")
    ]


def late(*_: object) -> None:
    """End a scheduler that takes too long."""
    raise TimeoutError("it took too long")


def main() -> None:
    """Read an instance, run every scheduler on it, write what they found."""
    document = json.load(sys.stdin)
    logging.disable(logging.WARNING)
    signal.signal(signal.SIGALRM, late)
    instance = Instance(document)
    found: dict[str, Any] = {}
    for name in schedulers.__all__:
        if name in LEFT_OUT:
            continue
        signal.alarm(int(document["limit_s"]))
        try:
            found[name] = placements(getattr(schedulers, name)().schedule(instance.network, instance.graph))
        except Exception as error:  # noqa: BLE001  a scheduler may raise anything
            found[name] = f"{type(error).__name__}: {error}"[:200]
        finally:
            signal.alarm(0)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
