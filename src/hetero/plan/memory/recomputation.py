"""Values that were dropped for room and are made again: at what cost, where, and when that is ordered.

In: an item without room and its next reader, or a reader whose input lies nowhere. Out: further attempts of tasks.
It must not drop anything.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from hetero.plan.memory.attempts import Attempts
from hetero.plan.memory.replicas import Replicas
from hetero.plan.planners.contention import Channels
from hetero.plan.problem import Problem

__all__ = ["Remaking", "Repeat"]

_CHAIN_AT_MOST = 64
"""A value that takes more tasks than this to be made again is not dropped for it."""


class Repeat(NamedTuple):
    """What it would take to make a value again.

    Attributes
    ----------
    task : the one that makes it
    device : where, if its inputs are kept until then; -1 where it is ordered when its reader's turn has come
    for_ : the attempt that reads the value next
    cost_s : s, of all runs and transfers that it needs
    """

    task: int
    device: int
    for_: int
    cost_s: float


class Remaking:
    """Repeats of tasks: offered for what is to be dropped, and ordered.

    Notes
    -----
    Where the inputs of a task are there, and take less room than what is dropped, they are kept and the repeat is
    ordered at once. Else nothing is kept: when the reader's turn has come its task is run again, and when that finds
    no inputs either, theirs before it, as deep as needed. A repeat that is wanted sooner than for whom it was ordered
    is brought forward.
    """

    def __init__(self, p: Problem, c: Channels, attempts: Attempts, replicas: Replicas, *, allowed: bool) -> None:
        self._p, self._c, self._attempts, self._replicas = p, c, attempts, replicas
        self._allowed = allowed
        self._due: list[int] = []

    def due(self) -> list[int]:
        """Return the attempts that are to be queued anew and have not begun meanwhile, each once."""
        due, self._due = list(dict.fromkeys(self._due)), []
        return [attempt for attempt in due if self._attempts.waiting.get(self._attempts.task[attempt]) == attempt]

    def offer(self, item: int, node: int, reader: int, before: float) -> Repeat | None:
        """Return how an item would be made again for its next reader; None where it cannot be.

        Parameters
        ----------
        node : where its last copy lies
        before : the place of the attempt that takes its room
        """
        task, place = int(self._c.item_task[item]), self._attempts.place
        if not self._allowed or not self._attempts.may_grow:
            return None
        waiting = self._attempts.waiting.get(task, -1)
        if waiting >= 0 and place[waiting] < place[reader]:
            return Repeat(task, self._attempts.device[waiting], reader, 0.0)
        kept = [one for one in self._replicas.inputs(task) if self._would_leave(one, node, place[reader])]
        if waiting < 0 and self._c.item_bytes[kept].sum() < self._c.item_bytes[item]:
            cost_s, device = self._cheapest(task, item, reader, absent_s=inf)
            if cost_s < inf:
                return Repeat(task, device, reader, cost_s)
        cost_s = self._chain_s(task, place[reader]) if place[reader] > before else inf
        return Repeat(task, -1, reader, cost_s) if cost_s < inf else None

    def order(self, repeat: Repeat) -> None:
        """Have a task run again, and keep what it reads until then; nothing yet where nothing is kept."""
        if repeat.device >= 0 and repeat.task not in self._attempts.waiting:
            attempt = self._attempts.add(repeat.task, repeat.device, repeat.for_)
            self._replicas.will_read(attempt)
            self._due.append(attempt)

    def call_for(self, item: int, reader: int) -> None:
        """Have an item made again that lies nowhere, for an attempt whose turn has come."""
        task, attempts = int(self._c.item_task[item]), self._attempts
        waiting = attempts.waiting.get(task, -1)
        if waiting < 0 and self._allowed and attempts.may_grow:
            cost_s, device = self._cheapest(task, item, reader, absent_s=0.0)
            if cost_s < inf:
                self.order(Repeat(task, device, reader, cost_s))
        elif waiting >= 0 and attempts.place[waiting] >= attempts.place[reader]:
            self._replicas.has_read(waiting)
            attempts.place[waiting] = attempts.before(reader)
            self._replicas.will_read(waiting)
            self._due.append(waiting)

    def _cheapest(self, task: int, item: int, reader: int, *, absent_s: float) -> tuple[float, int]:
        """Return the least seconds for a run, its inputs' ways and the result's, and on which device.

        Parameters
        ----------
        absent_s : s, the way of an input that lies nowhere
        """
        home, inputs, costs = self._attempts.node[reader], self._replicas.inputs(task), []
        for device in np.flatnonzero(np.isfinite(self._p.seconds[task])).tolist():
            there = int(self._p.node[device])
            ways_s = sum(self._replicas.nearest_s(one, there) if self._replicas.of[one] else absent_s for one in inputs)
            run_s = float(self._p.seconds[task, device])
            costs.append((run_s + ways_s + self._replicas.way_s(item, there, home), device))
        return min(costs)

    def _would_leave(self, item: int, node: int, place: float) -> bool:
        """Return whether an item would be gone from a node at some place of the order."""
        readers = [tasks[0] for tasks in self._replicas.readers[item].values() if tasks]
        return node in self._replicas.of[item] and all(self._attempts.place[reader] < place for reader in readers)

    def _chain_s(self, task: int, place: float) -> float:
        """Return the least seconds of a task and of all before it whose items will be gone; inf for too many."""
        chain, total_s = [task], 0.0
        for link in chain:
            total_s += float(self._p.seconds[link].min())
            for item in self._replicas.inputs(link):
                lies, source = self._replicas.of[item], int(self._c.item_task[item])
                if source not in chain and all(self._would_leave(item, node, place) for node in lies):
                    chain.append(source)
            if len(chain) > _CHAIN_AT_MOST:
                return inf
        return total_s
