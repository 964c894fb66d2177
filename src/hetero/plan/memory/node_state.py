"""The memory nodes of a plan on its way: tasks ask for their inputs and for room, others' items make way.

In: tasks that begin and end, in time. Out: transfers, evictions and repeats. It must not choose which task is next.
"""

from __future__ import annotations

from math import ceil, inf
from typing import NamedTuple

import numpy as np

from hetero.plan.memory.replicas import Attempts, Dropped, PlannedReplicas
from hetero.plan.planners.contention import Channels
from hetero.plan.problem import Floats, Moves, Problem

__all__ = ["Remaking", "Repeat", "Residence"]

_CHAIN_AT_MOST = 64
"""A value that takes more tasks than this to be made again is not dropped for it."""


class Repeat(NamedTuple):
    """What it would take to make a value again.

    Attributes
    ----------
    task
        The one that makes it.
    device
        Where, if its inputs are kept until then; -1 where it is ordered when its reader's turn has come.
    for_
        The attempt that reads the value next.
    cost_s
        Seconds, of all runs and transfers that it needs.
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

    def __init__(
        self, p: Problem, c: Channels, attempts: Attempts, replicas: PlannedReplicas, *, allowed: bool
    ) -> None:
        self._p, self._c, self._attempts, self._replicas = p, c, attempts, replicas
        self._allowed = allowed
        self._due: list[int] = []

    def pop_due(self) -> list[int]:
        """Return and clear the attempts that are to be queued again and have not begun meanwhile, each once."""
        due, self._due = list(dict.fromkeys(self._due)), []
        return [attempt for attempt in due if self._attempts.waiting.get(self._attempts.task[attempt]) == attempt]

    def offer(self, item: int, node: int, reader: int, before: float) -> Repeat | None:
        """Return how an item would be made again for its next reader; None where it cannot be.

        Parameters
        ----------
        node
            Where its last copy lies.
        before
            The place of the attempt that takes its room.
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
        absent_s
            Seconds, the way of an input that lies nowhere.
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


class Residence:
    """What tasks find on their memory nodes, and what they leave there.

    Attributes
    ----------
    replicas
        What lies where.

    Notes
    -----
    `repeats` says whether values may be dropped whose tasks run again for their next readers.
    """

    def __init__(
        self, p: Problem, c: Channels, capacity_bytes: Floats, attempts: Attempts, *, repeats: bool = True
    ) -> None:
        self.replicas = PlannedReplicas(p, c, capacity_bytes, attempts)
        self._remaking = Remaking(p, c, attempts, self.replicas, allowed=repeats)
        self._c, self._attempts = c, attempts
        self._node, self._place = attempts.node, attempts.place
        self._made: list[list[int]] = [[] for _ in p.order]
        for item, task in enumerate(c.item_task):
            self._made[task].append(item)
        self._dues: list[float] = []
        self._blocked: dict[int, tuple[int, float]] = {}

    # what the run asks for

    def begin_round(self) -> None:
        """Forget which memory nodes an earlier task waits for room on."""
        self._blocked.clear()

    def blocked(self) -> tuple[int, int, float] | None:
        """Return an attempt that waits for room in this round, the memory node and how many bytes; None for none."""
        return next(((attempt, node, nbytes) for node, (attempt, nbytes) in self._blocked.items()), None)

    def fetch(self, attempt: int) -> None:
        """Send what an attempt reads to its memory node, where channels and room allow."""
        there = self._node[attempt]
        for item in self.replicas.inputs(attempt):
            if there not in self.replicas.of[item]:
                self._copy(item, there, attempt)

    def take(self, attempt: int) -> bool:
        """Reserve what an attempt makes and use what it reads; False while something is missing."""
        node, of = self._node[attempt], self.replicas.of
        inputs = self.replicas.inputs(attempt)
        for item in inputs:
            if not of[item]:
                self._remaking.call_for(item, attempt)
        if any(node not in of[item] or of[item][node].ready_s > self.replicas.now_s for item in inputs):
            return False
        made = self._made[self._attempts.task[attempt]]
        absent = [item for item in made if node not in of[item]]
        if not self._room(node, float(self._c.item_bytes[absent].sum()), attempt):
            return False
        for item in inputs:
            of[item][node].users += 1
        self.replicas.make(made, node, again=self._attempts.is_repeat(attempt))
        if self._attempts.is_repeat(attempt):
            del self._attempts.waiting[self._attempts.task[attempt]]
        return True

    def finished(self, attempt: int) -> None:
        """Record that an attempt has ended: what it made is there, what nobody needs goes."""
        node, now_s = self._node[attempt], self.replicas.now_s
        made, inputs = self._made[self._attempts.task[attempt]], self.replicas.inputs(attempt)
        for item in made:
            replica = self.replicas.of[item][node]
            replica.ready_s = min(replica.ready_s, now_s)
            replica.users -= 1
        for item in inputs:
            self.replicas.of[item][node].users -= 1
        self.replicas.has_read(attempt)
        for item in (*made, *inputs):
            self.replicas.tidy(item)

    def pop_dues(self) -> list[float]:
        """Return and clear the times at which something will be possible that is not yet, each once."""
        dues, self._dues = sorted(set(self._dues)), []
        return [due_s for due_s in dues if due_s > self.replicas.now_s]

    def pop_repeats(self) -> list[int]:
        """Return and clear the attempts that are to make dropped values again, at their places; they may have moved."""
        return self._remaking.pop_due()

    @property
    def transfers(self) -> int:
        """How many transfers there have been, a hop each."""
        return len(self.replicas.sent)

    def history(self) -> tuple[Moves, tuple[Dropped, ...]]:
        """Return all transfers, and the evictions of items that came back, by a transfer or made again."""
        return self.replicas.history()

    # transfers and room

    def _copy(self, item: int, there: int, attempt: int) -> None:
        """Start to send an item to a memory node from the nearest copy, if that can be now."""
        ways = [(self.replicas.way_s(item, node, there), node) for node in self.replicas.lies_ready(item)]
        way_s, src = min(ways, default=(inf, -1))
        if way_s == inf:
            return
        path = self.replicas.path(src, there)
        if self._wait_for_channel(path[0]):
            return
        ends = [int(self._c.hop_dst[hop]) for hop in path]
        needed = [node for node in ends if node not in self.replicas.of[item]]
        nbytes = float(self._c.item_bytes[item])
        made = all(self._room(node, nbytes, attempt) for node in needed)
        if made and all(self._lacking(node, nbytes) <= 0.0 for node in needed):
            self._dues.append(self.replicas.send(item, src, there))

    def _wait_for_channel(self, hop: int) -> bool:
        """Record when a hop that is in use will be free, and return True; False where it is free now."""
        free_s = float(self.replicas.free_s[self._c.hop_channel[hop]])
        if free_s > self.replicas.now_s:
            self._dues.append(free_s)
            return True
        return False

    def _lacking(self, node: int, nbytes: float) -> float:
        return float(self.replicas.used_bytes[node] + nbytes - self.replicas.capacity_bytes[node])

    def _room(self, node: int, nbytes: float, attempt: int) -> bool:
        """Make room on a memory node for an attempt, at the cost of later ones; False while there is none."""
        if node in self._blocked:
            return False
        lacking = self._lacking(node, nbytes)
        if lacking <= 0.0:
            return True
        spared = {*self.replicas.inputs(attempt), *self._made[self._attempts.task[attempt]]}
        for _, item in sorted(self._victims(node, attempt, spared), reverse=True):
            if self.replicas.is_spare(item, node):
                self.replicas.drop(item, node)
                lacking -= self._c.item_bytes[item]
                if lacking <= 0.0:
                    return True
        lacking -= self.replicas.leaving_bytes[node]
        for _, item in sorted(self._victims(node, attempt, spared), reverse=True):
            if lacking <= 0.0:
                break
            if self._part_with(item, node, attempt):
                lacking -= self._c.item_bytes[item]
        if self._lacking(node, nbytes) <= 0.0:
            return True
        self._blocked[node] = attempt, nbytes
        return False

    def _victims(self, node: int, attempt: int, spared: set[int]) -> list[tuple[float, int]]:
        """Return (place of the next reader, item) of what lies idle on a node and is read later than by the attempt."""
        found = []
        for item, replica in self.replicas.on[node].items():
            if replica.users or replica.ready_s > self.replicas.now_s or item in spared:
                continue
            readers = self.replicas.readers[item].get(node)
            next_place = self._place[readers[-1]] if readers else inf
            if next_place > ceil(self._place[attempt]):
                found.append((next_place, item))
        return found

    def _part_with(self, item: int, node: int, attempt: int) -> bool:
        """Start to send the last copy of an item away, or drop it where making it again costs less."""
        reader, way_s = self.replicas.next_reader(item), self.replicas.way_s
        refuge = self._refuge(item, node)
        repeat = self._remaking.offer(item, node, reader, ceil(self._place[attempt]))
        if repeat is not None:
            away_s = way_s(item, node, refuge) + way_s(item, refuge, self._node[reader]) if refuge >= 0 else inf
            if repeat.cost_s < away_s:
                self.replicas.drop(item, node)
                self._remaking.order(repeat)
                return True
        if refuge < 0:
            return False
        if not self._wait_for_channel(self.replicas.path(node, refuge)[0]):
            self._dues.append(self.replicas.send_away(item, node, refuge))
        return True

    def _refuge(self, item: int, node: int) -> int:
        """Return the memory node with the most room that an item can be sent to; -1 for none."""
        nbytes = self._c.item_bytes[item]
        room = self.replicas.capacity_bytes - self.replicas.used_bytes
        for other in np.argsort(-room, kind="stable").tolist():
            path = self.replicas.path(node, other)
            taken = other == node or other in self._blocked or other in self.replicas.of[item]
            between = [int(self._c.hop_dst[hop]) for hop in path[:-1]]
            if path and not taken and all(room[at] >= nbytes for at in (other, *between)):
                return int(other)
        return -1
