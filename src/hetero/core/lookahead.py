"""Lookahead: the open task graph as arrays for policies that plan ahead, and the prefetches that their plan asks for.

In: tasks that come, start, end; copies of their results; the policy's plan. Out: `Ahead`, made in a time that does not
depend on how many tasks there are, and transfers. It must not place anything.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero.core.estimates import EstimateRows
from hetero.core.fleet import Fleet
from hetero.core.replicas import Replicas
from hetero.core.state import DevicePhase, Row, TaskState
from hetero.model.commands import Command
from hetero.model.tasks import Task
from hetero.plan.problem import Floats, Ints
from hetero.plan.replanning.lookahead import FINISHED, RUNNING, WAITING, Ahead, Bytes, Foreseen, OpenGraph

__all__ = ["Lookahead", "Prefetch"]

_FORGET = 4096
"""Slots are not given up before there are so many …"""

_LEAST_ERROR, _FIRST_ERROR, _LEARNED = 0.02, 0.2, 0.06
"""The spread of estimates is taken to be at least this, this at first, and follows the news at this rate at least: …"""

_BELIEVED = 5
"""… what is taken at first counts as much as so many tasks that ended."""


Column = NDArray[Any]
"""What is known of all tasks, or of all kinds of tasks, one entry each."""


class Lookahead:
    """Keeps one slot a task, in the order in which they were handed in.

    Slots of tasks that are over are given up when they are more than half of many, and nothing open reads them.
    """

    def __init__(self, fleet: Fleet, rows: EstimateRows, replicas: Replicas) -> None:
        self._fleet = fleet
        self._rows = rows
        self._replicas = replicas
        self._error = _FIRST_ERROR
        self._ended = 0
        self.version = self._table = self._upset = 0
        self._moves = -1
        self._nodes: tuple[str, ...] = ()
        self._links: tuple[Floats, Floats] = (np.zeros((0, 0)), np.zeros((0, 0)))
        self._node_of = np.zeros(0, dtype=np.int64)
        self._bound: list[int] = []
        self._clear()

    def _clear(self) -> None:
        self._count = self._edges = self.open = 0
        self._slot: dict[int, int] = {}
        self._states: list[TaskState] = []
        self._kinds: dict[Row, int] = {}
        self._columns: dict[str, Column] = {
            "phase": np.zeros(64, dtype=np.uint8),
            "kind": np.zeros(64, dtype=np.int64),
            "ids": np.zeros(64, dtype=np.int64),
            "device": np.full(64, -1, dtype=np.int64),
            "nbytes": np.zeros(64),
            "has": np.zeros((64, max(1, len(self._nodes))), dtype=np.uint8),
            "pred_first": np.zeros(65, dtype=np.int64),
            "pred": np.zeros(256, dtype=np.int64),
            "pred_data": np.zeros(256, dtype=np.uint8),
            "seconds": np.zeros((16, max(1, len(self._fleet.states)))),
            "kind_bytes": np.zeros(16),
        }

    def _room(self, name: str, count: int) -> Column:
        """Return a column, made longer where it holds fewer entries."""
        column = self._columns[name]
        if count > len(column):
            longer = np.zeros((max(count, 2 * len(column)), *column.shape[1:]), dtype=column.dtype)
            longer[: len(column)] = column
            column = self._columns[name] = longer
        return column

    # what happens

    def came(self, state: TaskState) -> None:
        """Record a task that was handed in."""
        if state.task.id in self._slot:
            self._reopen(state)
            return
        if self._count > _FORGET and 2 * self.open < self._count:
            self._forget()
        self._add(state)
        self._table += 1

    def _add(self, state: TaskState) -> None:
        slot, task = self._count, state.task
        self._count += 1
        self.open += 1
        self._slot[task.id] = slot
        self._states.append(state)
        for name, value in (("phase", WAITING), ("ids", task.id), ("device", -1), ("kind", self._kind(state))):
            self._room(name, slot + 1)[slot] = value
        self._room("nbytes", slot + 1)
        self._room("has", slot + 1)[slot] = 0
        for before in dict.fromkeys((*task.inputs, *task.after)):
            if before in self._slot:
                self._room("pred", self._edges + 1)[self._edges] = self._slot[before]
                self._room("pred_data", self._edges + 1)[self._edges] = before in task.inputs
                self._edges += 1
        self._room("pred_first", slot + 2)[slot + 1] = self._edges

    def _kind(self, state: TaskState) -> int:
        row = self._rows.of(state)
        kind = self._kinds.get(row)
        if kind is None:
            kind = self._kinds[row] = len(self._kinds)
            self._room("kind_bytes", kind + 1)
            self._write(self._room("seconds", kind + 1), kind, row)
        return kind

    def _write(self, seconds: Floats, kind: int, row: Row) -> None:
        if len(row.seconds) == seconds.shape[1]:
            seconds[kind] = row.seconds
        self._columns["kind_bytes"][kind] = max(0, row.out_bytes)

    def _reopen(self, state: TaskState) -> None:
        slot = self._slot[state.task.id]
        self.open += self._columns["phase"][slot] == FINISHED
        self._columns["phase"][slot] = WAITING
        self._columns["has"][slot] = 0
        self._states[slot] = state
        self.version += 1
        self._upset += 1

    def over(self, state: TaskState, device: int, nbytes: int) -> None:
        """Record that a task ended, well or not; `device` is -1 where it left no result."""
        slot = self._slot.get(state.task.id)
        if slot is None or self._columns["phase"][slot] == FINISHED:
            return
        self.open -= 1
        self.version += 1
        self._upset += device < 0
        self._columns["phase"][slot] = FINISHED
        self._columns["device"][slot] = max(device, 0)
        self._columns["nbytes"][slot] = nbytes if device >= 0 else 0
        if device >= 0 and device < len(self._node_of):
            self._columns["has"][slot, self._node_of[device]] = 1

    def took(self, seconds: float, predicted_s: float) -> None:
        """Learn how far estimates are off."""
        if seconds > 0.0 and predicted_s > 0.0:
            off = min(1.25 * abs(log(seconds / predicted_s)), 2.0)
            self._ended += 1
            self._error += max(_LEARNED, 1.0 / (_BELIEVED + self._ended)) * (off - self._error)

    def copied(self, item: int, node: str) -> None:
        """Record a further replica of a result."""
        slot = self._slot.get(item)
        if slot is not None and node in self._nodes:
            self._columns["has"][slot, self._nodes.index(node)] = 1

    def changed(self) -> None:
        """Record that the fleet changed."""
        self.version += 1
        self._upset += 1

    def _forget(self) -> None:
        """Free the slots of tasks that are over, except those that open tasks read; kinds keep their numbers."""
        old, states, count, kinds = self._columns, self._states, self._count, self._kinds
        first, pred = old["pred_first"], old["pred"]
        keep = [old["phase"][slot] != FINISHED for slot in range(count)]
        for slot in range(count):
            if old["phase"][slot] != FINISHED:
                for edge in range(first[slot], first[slot + 1]):
                    keep[pred[edge]] = True
        self._clear()
        if len(kinds) <= _FORGET:
            self._kinds = kinds
            self._columns.update({name: old[name] for name in ("seconds", "kind_bytes")})
        for slot in range(count):
            if keep[slot]:
                new = self._count
                self._add(states[slot])
                for name in ("device", "nbytes", "has", "phase"):
                    self._columns[name][new] = old[name][slot]
                self.open -= old["phase"][slot] == FINISHED
        self.version += 1

    # looking

    def tasks(self) -> tuple[Ints, Bytes]:
        """Return the task of each slot by its id, and its phase."""
        return self._columns["ids"][: self._count], self._columns["phase"][: self._count]

    def ahead(self) -> Ahead:
        """Return what lies ahead, as it is now; the arrays are the lookahead's own and change with it."""
        if len(self._node_of) != len(self._fleet.states):
            self._measure()
        if self._moves != self._rows.moves:
            self._refresh()
        running = self._running()
        count, column = self._count, self._columns
        graph = OpenGraph(
            column["phase"][:count], column["kind"][:count], column["seconds"], column["kind_bytes"],
            column["pred_first"][: count + 1], column["pred"][: self._edges], column["pred_data"][: self._edges],
            column["device"][:count], column["nbytes"][:count], column["has"][:count], self._node_of, *self._links,
        )  # fmt: skip
        ids = column["ids"][:count]
        return Ahead(graph, self._slot, ids, self.open, self.version, self._table, running, self.error, self._upset)

    @property
    def error(self) -> float:
        """The spread of estimates, as in `Ahead`."""
        return max(_LEAST_ERROR, self._error)

    def waiting(self) -> Ints:
        """Return the slots of the tasks that may still be placed anywhere."""
        return np.flatnonzero(self._columns["phase"][: self._count] == WAITING)

    def task(self, slot: int) -> Task:
        """Return the task of a slot."""
        return self._states[slot].task

    def _running(self) -> tuple[tuple[int, int, float, float], ...]:
        """Bind what was accepted to its device, and free what is no longer there."""
        phase, device = self._columns["phase"], self._columns["device"]
        for slot in self._bound:
            if slot < self._count and phase[slot] == RUNNING:
                phase[slot], device[slot] = WAITING, -1
        found: list[tuple[int, int, float, float]] = []
        for state in self._fleet.states:
            begun_s = state.started_s if state.sent else -1.0
            for task in (*(task for task, _ in state.sent.values()), *state.placed):
                slot = self._slot.get(task.task.id, -1)
                if slot >= 0 and phase[slot] != FINISHED:
                    phase[slot], device[slot] = RUNNING, state.index
                    found.append((slot, state.index, begun_s, task.predicted_s))
                begun_s = -1.0
        self._bound = [slot for slot, *_ in found]
        return tuple(found)

    def _refresh(self) -> None:
        """Take the estimates anew that may have moved."""
        self._moves = self._rows.moves
        self._table += 1
        seconds = self._columns["seconds"]
        if seconds.shape[1] != len(self._fleet.states):
            seconds = self._columns["seconds"] = np.full((len(seconds), len(self._fleet.states)), np.inf)
        for row, kind in self._kinds.items():
            self._rows.fresh(row)
            self._write(seconds, kind, row)

    def _measure(self) -> None:
        """Write the memory nodes and the links between them anew."""
        devices = self._fleet.devices
        old, had = self._nodes, self._columns["has"]
        self._nodes = tuple(dict.fromkeys(device.memory_node for device in devices))
        self._node_of = np.array([self._nodes.index(device.memory_node) for device in devices], dtype=np.int64)
        self._links = self._replicas.costs.links(self._nodes)
        has = self._columns["has"] = np.zeros((len(had), max(1, len(self._nodes))), dtype=np.uint8)
        for column, node in enumerate(old):
            has[:, self._nodes.index(node)] = had[:, column]
        self._moves = -1


_AHEAD = 2
"""So many of the next tasks of each device have their inputs sent ahead."""


class Prefetch:
    """Reads the policy's plan; nothing here changes what is planned.

    Parameters
    ----------
    plan
        Gives where and when the policy means to run what waits, None where it has no plan.
    """

    def __init__(
        self, fleet: Fleet, replicas: Replicas, lookahead: Lookahead, plan: Callable[[], Foreseen | None]
    ) -> None:
        self._fleet = fleet
        self._replicas = replicas
        self._lookahead = lookahead
        self._plan = plan
        self._seen = (-1, -1)
        replicas.next_reads = self.next_reads

    def next_reads(self, node: str) -> dict[int, float]:
        """Return when the plan next reads items on a memory node, s; one that is absent is not read there again."""
        found: dict[int, float] = {}
        plan = self._plan()
        if plan is None:
            return found
        slots = self._waiting(plan)
        devices = [state.index for state in self._fleet.states if state.device.memory_node == node]
        slots = slots[np.isin(plan.device[slots], devices)]
        for slot in slots[np.argsort(plan.start_s[slots], kind="stable")].tolist():
            for item in self._lookahead.task(slot).inputs:
                found.setdefault(item, float(plan.start_s[slot]))
        return found

    def fetches(self) -> list[Command]:
        """Return the transfers that bring each device the inputs of its next tasks, as far as they exist."""
        seen = (self._lookahead.version, self._replicas.settled)
        if seen == self._seen or not self._fleet.own_nodes:
            return []
        self._seen = seen
        plan = self._plan()
        if plan is None:
            return []
        slots = self._waiting(plan)
        slots = slots[np.lexsort((plan.start_s[slots], plan.device[slots]))]
        first = np.searchsorted(plan.device[slots], np.arange(len(self._fleet.states) + 1))
        commands: list[Command] = []
        for state in self._fleet.states:
            if state.phase is DevicePhase.READY and not state.held_by:
                near = slots[first[state.index] : first[state.index + 1]][:_AHEAD].tolist()
                wanted = (
                    self._replicas.fetch(self._lookahead.task(slot).inputs, state.device.memory_node) for slot in near
                )
                commands.extend(islice((transfer for transfer in wanted if transfer is not None), 1))
        return commands

    def _waiting(self, plan: Foreseen) -> Ints:
        """Return the slots of the tasks that wait, of those that the plan knows."""
        slots = self._lookahead.waiting()
        return slots[slots < len(plan.device)]
