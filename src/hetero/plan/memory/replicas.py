"""The replicas of a plan on its way: what lies where, since when, for whom, and what is being sent.

In: items that are made, sent and dropped, in time. Out: transfers, and evictions. It must not choose what is dropped.
"""

from __future__ import annotations

from bisect import insort
from math import inf
from typing import NamedTuple

import numpy as np

from hetero.plan.planners.contention import Channels
from hetero.plan.problem import Floats, Ints, Moves, Problem

__all__ = ["Attempts", "Dropped", "PlannedReplica", "PlannedReplicas", "Repeated"]

_REPEATS_A_TASK, _REPEATS_BESIDES = 2, 2000
"""So many repeats for each task of the graph, and so many besides, and no more values are dropped to be made again."""

_JUST_BEFORE, _AND_BEFORE_THAT = 0.5, 1e-6
"""How far the place of a repeat is before the one that it is for: a task's first attempt, or a repeat."""


class Repeated(NamedTuple):
    """A further attempt of a task, from when to when, s."""

    task: int
    device: int
    start_s: float
    finish_s: float


class Attempts:
    """One entry an attempt; the first ones are the tasks themselves, under their own numbers.

    Attributes
    ----------
    task, device, node
        Of each attempt.
    place
        When its turn comes; that of a repeat is just before the attempt that it is for.
    waiting
        The repeat of a task that has not begun yet, by task.
    """

    def __init__(self, p: Problem, device: Ints, place: Ints) -> None:
        self._p = p
        self.task = list(range(len(device)))
        self.device: list[int] = device.tolist()
        self.node: list[int] = p.node[device].tolist()
        self.place: list[float] = place.astype(float).tolist()
        self.waiting: dict[int, int] = {}

    @property
    def may_grow(self) -> bool:
        """Return whether there may be further repeats."""
        return len(self.task) < (1 + _REPEATS_A_TASK) * len(self._p.order) + _REPEATS_BESIDES

    def is_repeat(self, attempt: int) -> bool:
        """Return whether an attempt is not the first of its task."""
        return attempt >= len(self._p.order)

    def add(self, task: int, device: int, for_: int) -> int:
        """Take in a further attempt of a task, for an attempt that reads what it makes; returns its number."""
        attempt = len(self.task)
        self.task.append(task)
        self.device.append(device)
        self.node.append(int(self._p.node[device]))
        self.place.append(self.before(for_))
        self.waiting[task] = attempt
        return attempt

    def before(self, attempt: int) -> float:
        """Return the place of a repeat that is for some attempt."""
        return self.place[attempt] - (_AND_BEFORE_THAT if self.is_repeat(attempt) else _JUST_BEFORE)


class Dropped(NamedTuple):
    """An item that left a memory node at a time, s."""

    item: int
    node: int
    at_s: float


class PlannedReplica:
    """One copy: when it is there, how many use it, and whether it leaves when it has been copied elsewhere."""

    __slots__ = ("leaving", "ready_s", "users")

    def __init__(self, ready_s: float) -> None:
        self.ready_s = ready_s
        self.users = 0
        self.leaving = False


class _TransferInFlight(NamedTuple):
    """A transfer on its way over one path."""

    end_s: float
    item: int
    src: int
    dst: int
    through: tuple[int, ...]


class PlannedReplicas:
    """All replicas, who is still to read them, and the transfers so far.

    Attributes
    ----------
    now_s
        Seconds, set by who runs the plan.
    capacity_bytes, used_bytes, leaving_bytes
        Shape (n_nodes,); the last are on their way out.
    of
        For each item its replicas, by memory node.
    on
        For each memory node the replicas there, by item.
    readers
        For each item, by memory node, the attempts there that are still to read it, the next one last.
    free_s
        When each channel is idle again.
    sent
        The transfers so far: item, hop, start and finish.
    """

    def __init__(self, p: Problem, c: Channels, capacity_bytes: Floats, attempts: Attempts) -> None:
        self.now_s = 0.0
        self.capacity_bytes, self.used_bytes = capacity_bytes, np.zeros(len(c.nodes))
        self.leaving_bytes = np.zeros(len(c.nodes))
        self.of: list[dict[int, PlannedReplica]] = [{} for _ in c.item_task]
        self.on: list[dict[int, PlannedReplica]] = [{} for _ in c.nodes]
        self.free_s = np.zeros(int(c.hop_channel.max(initial=-1)) + 1)
        self.sent: list[tuple[int, int, float, float]] = []
        self._p, self._c, self._attempts = p, c, attempts
        self._in_flight: list[_TransferInFlight] = []
        self._dropped: list[Dropped] = []
        self._made_again: list[tuple[int, int, float]] = []
        self.readers: list[dict[int, list[int]]] = [{} for _ in c.item_task]
        for task in np.argsort(-np.array(attempts.place)).tolist():
            for item in self.inputs(task):
                self.readers[item].setdefault(attempts.node[task], []).append(task)

    def inputs(self, attempt: int) -> list[int]:
        """Return the items that an attempt reads."""
        task = self._attempts.task[attempt]
        items = self._c.pred_item[self._p.pred_first[task] : self._p.pred_first[task + 1]]
        return sorted({int(item) for item in items if item >= 0})

    # readers

    def will_read(self, attempt: int) -> None:
        """Record that an attempt is to read its inputs, at its place."""
        for item in self.inputs(attempt):
            readers = self.readers[item].setdefault(self._attempts.node[attempt], [])
            insort(readers, attempt, key=lambda one: -self._attempts.place[one])

    def has_read(self, attempt: int) -> None:
        """Record that an attempt reads its inputs no more."""
        for item in self.inputs(attempt):
            self.readers[item][self._attempts.node[attempt]].remove(attempt)

    def next_reader(self, item: int) -> int:
        """Return the attempt that is the next to read an item; there must be one."""
        return min((tasks[-1] for tasks in self.readers[item].values() if tasks), key=self._attempts.place.__getitem__)

    # what lies where

    def put(self, item: int, node: int, ready_s: float) -> PlannedReplica:
        """Take room for an item that will be there from `ready_s` on."""
        made = self.of[item][node] = self.on[node][item] = PlannedReplica(ready_s)
        self.used_bytes[node] += self._c.item_bytes[item]
        return made

    def make(self, items: list[int], node: int, *, again: bool) -> None:
        """Take room for what an attempt begins to make, where it is not there yet."""
        for item in items:
            if node not in self.of[item]:
                self.put(item, node, inf)
                if again:
                    self._made_again.append((item, node, self.now_s))
            self.of[item][node].users += 1

    def drop(self, item: int, node: int) -> None:
        """Release a replica."""
        del self.of[item][node], self.on[node][item]
        self.used_bytes[node] -= self._c.item_bytes[item]
        self._dropped.append(Dropped(item, node, self.now_s))

    def tidy(self, item: int) -> None:
        """Drop the copies of an item that nobody needs."""
        for node in [*self.of[item]]:
            replica = self.of[item][node]
            idle = not replica.users and replica.ready_s <= self.now_s
            if idle and not self.readers[item].get(node) and self.is_spare(item, node):
                self.drop(item, node)

    def is_spare(self, item: int, node: int) -> bool:
        """Return whether an item has another copy, or no more readers."""
        others = (one.ready_s <= self.now_s for at, one in self.of[item].items() if at != node)
        return any(others) or not any(self.readers[item].values())

    def lies_ready(self, item: int) -> list[int]:
        """Return the memory nodes where an item can be read or sent from now."""
        return [node for node, one in self.of[item].items() if one.ready_s <= self.now_s]

    # ways

    def path(self, src: int, dst: int) -> range:
        """Return the hops from a memory node to another; none where nothing leads there."""
        at = src * len(self._c.nodes) + dst
        return range(int(self._c.hop_first[at]), int(self._c.hop_first[at + 1]))

    def way_s(self, item: int, src: int, dst: int) -> float:
        """Return the seconds of an item's way on idle channels; inf where there is none."""
        if src == dst:
            return 0.0
        path = slice(self.path(src, dst).start, self.path(src, dst).stop)
        if path.start == path.stop:
            return inf
        return float((self._c.hop_latency_s[path] + self._c.item_bytes[item] * self._c.hop_s_per_byte[path]).sum())

    def nearest_s(self, item: int, there: int) -> float:
        """Return the seconds of an item's way to a memory node from a copy that is ready; inf for none."""
        return min((self.way_s(item, node, there) for node in self.lies_ready(item)), default=inf)

    # transfers

    def send(self, item: int, src: int, dst: int) -> float:
        """Start a transfer over all its hops; returns when it ends, s."""
        ready_s, through = self.now_s, []
        for hop in self.path(src, dst):
            channel = self._c.hop_channel[hop]
            start_s = max(ready_s, float(self.free_s[channel]))
            took_s = self._c.hop_latency_s[hop] + self._c.item_bytes[item] * self._c.hop_s_per_byte[hop]
            ready_s = float(start_s + took_s)
            self.free_s[channel] = ready_s
            self.sent.append((item, hop, start_s, ready_s))
            node = int(self._c.hop_dst[hop])
            if node not in self.of[item]:
                self.put(item, node, ready_s)
            self.of[item][node].users += 1
            if node != dst:
                through.append(node)
        self.of[item][src].users += 1
        self._in_flight.append(_TransferInFlight(ready_s, item, src, dst, tuple(through)))
        return ready_s

    def send_away(self, item: int, src: int, dst: int) -> float:
        """Start a transfer after which the copy that was sent is dropped; returns when it ends, s."""
        self.of[item][src].leaving = True
        self.leaving_bytes[src] += self._c.item_bytes[item]
        return self.send(item, src, dst)

    def arrive(self) -> None:
        """Record the transfers that have ended by now."""
        ended = [transfer for transfer in self._in_flight if transfer.end_s <= self.now_s]
        self._in_flight = [transfer for transfer in self._in_flight if transfer.end_s > self.now_s]
        for transfer in ended:
            source = self.of[transfer.item][transfer.src]
            source.users -= 1
            for node in (transfer.dst, *transfer.through):
                self.of[transfer.item][node].users -= 1
            if source.leaving:
                self.leaving_bytes[transfer.src] -= self._c.item_bytes[transfer.item]
                source.leaving = False
                if not source.users:
                    self.drop(transfer.item, transfer.src)
            self.tidy(transfer.item)

    def history(self) -> tuple[Moves, tuple[Dropped, ...]]:
        """Return all transfers, and the evictions of items that came back, by a transfer or made again."""
        rows = sorted(self.sent, key=lambda row: (row[2], row[3], row[0], row[1]))
        moves = Moves(
            np.array([row[0] for row in rows], dtype=np.int64),
            np.array([row[1] for row in rows], dtype=np.int64),
            np.array([row[2] for row in rows], dtype=np.float64),
            np.array([row[3] for row in rows], dtype=np.float64),
        )
        again = [(item, int(self._c.hop_dst[hop]), start_s) for item, hop, start_s, _ in rows] + self._made_again
        came = {(item, node): start_s for item, node, start_s in sorted(again, key=lambda row: row[2])}
        return moves, tuple(one for one in self._dropped if came.get((one.item, one.node), -1.0) >= one.at_s)
