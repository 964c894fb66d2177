"""The replicas of a plan on its way: what is where, what is in use, what is coming, what makes room for what.

In: tasks that begin and end, in time. Out: transfers, and evictions. It must not choose which task is next.
"""

from __future__ import annotations

from bisect import insort
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from hetero.plan.channels import Channels, Moves
from hetero.plan.problem import Floats, Problem
from hetero.plan.residence_again import Attempts, Repeat

__all__ = ["Dropped", "Residence"]


class Dropped(NamedTuple):
    """An item that left a memory node at a time, s."""

    item: int
    node: int
    at_s: float


class _Replica:
    """One copy: when it is there, how many use it, and whether it leaves when it has been copied elsewhere."""

    __slots__ = ("leaving", "ready_s", "users")

    def __init__(self, ready_s: float) -> None:
        self.ready_s = ready_s
        self.users = 0
        self.leaving = False


class _Flight(NamedTuple):
    """A transfer on its way over one path."""

    end_s: float
    item: int
    src: int
    dst: int
    through: tuple[int, ...]


class Residence:
    """All replicas of a plan on its way.

    Attributes
    ----------
    now_s : s, set by who runs the plan
    capacity_bytes, used_bytes : shape (n_nodes,)

    Notes
    -----
    `repeats` says whether a value may be dropped whose task runs again for its next reader.
    """

    def __init__(
        self, p: Problem, c: Channels, capacity_bytes: Floats, attempts: Attempts, *, repeats: bool = True
    ) -> None:
        self.now_s = 0.0
        self.capacity_bytes, self.used_bytes = capacity_bytes, np.zeros(len(c.nodes))
        self._p, self._c, self._attempts, self._repeats = p, c, attempts, repeats
        self._node, self._place = attempts.node, attempts.place
        self._replicas: list[dict[int, _Replica]] = [{} for _ in c.item_task]
        self._lies_on: list[dict[int, _Replica]] = [{} for _ in c.nodes]
        self._readers = self._read_by()
        self._made: list[list[int]] = [[] for _ in p.order]
        for item, task in enumerate(c.item_task):
            self._made[task].append(item)
        self._free_s = np.zeros(int(c.hop_channel.max(initial=-1)) + 1)
        self._flights: list[_Flight] = []
        self._moves: list[tuple[int, int, float, float]] = []
        self._dropped: list[Dropped] = []
        self._new: list[int] = []
        self._made_again: list[tuple[int, int, float]] = []
        self._dues: list[float] = []
        self._blocked: dict[int, tuple[int, float]] = {}
        self._leaving_bytes = np.zeros(len(c.nodes))

    def _read_by(self) -> list[dict[int, list[int]]]:
        """Give for each item and memory node the tasks there that read it, the latest in the order first."""
        found: list[dict[int, list[int]]] = [{} for _ in self._c.item_task]
        for task in np.argsort(-np.array(self._place)).tolist():
            for item in self._inputs(task):
                found[item].setdefault(self._node[task], []).append(task)
        return found

    def _inputs(self, attempt: int) -> list[int]:
        task = self._attempts.task[attempt]
        items = self._c.pred_item[self._p.pred_first[task] : self._p.pred_first[task + 1]]
        return sorted({int(item) for item in items if item >= 0})

    # what the run asks for

    def begin_round(self) -> None:
        """Forget which memory nodes an earlier task waits for room on."""
        self._blocked.clear()

    def blocked(self) -> tuple[int, int, float] | None:
        """Give an attempt that waits for room in this round, the memory node and how many bytes; None for none."""
        return next(((attempt, node, nbytes) for node, (attempt, nbytes) in self._blocked.items()), None)

    def fetch(self, task: int) -> None:
        """Send what a task reads to its memory node, where channels and room allow."""
        there = self._node[task]
        for item in self._inputs(task):
            if there not in self._replicas[item]:
                self._copy(item, there, task)

    def take(self, task: int) -> bool:
        """Reserve what a task makes and use what it reads; False while something is missing."""
        node = self._node[task]
        inputs = [self._replicas[item].get(node) for item in self._inputs(task)]
        if any(replica is None or replica.ready_s > self.now_s for replica in inputs):
            return False
        made = self._made[self._attempts.task[task]]
        absent = [item for item in made if node not in self._replicas[item]]
        if not self._room(node, float(self._c.item_bytes[absent].sum()), task):
            return False
        for replica in inputs:
            assert replica is not None
            replica.users += 1
        for item in absent:
            self._put(item, node, inf)
        for item in made:
            self._replicas[item][node].users += 1
        if self._attempts.is_repeat(task):
            del self._attempts.waiting[self._attempts.task[task]]
            self._made_again += [(item, node, self.now_s) for item in absent]
        return True

    def finished(self, task: int) -> None:
        """Take note that a task has ended: what it made is there, what nobody needs goes."""
        node = self._node[task]
        for item in self._made[self._attempts.task[task]]:
            replica = self._replicas[item][node]
            replica.ready_s = self.now_s if replica.ready_s == inf else replica.ready_s
            replica.users -= 1
            self._tidy(item)
        for item in self._inputs(task):
            self._replicas[item][node].users -= 1
            self._readers[item][node].remove(task)
            self._tidy(item)

    def arrive(self) -> None:
        """Take note of the transfers that have ended by now."""
        ended = [flight for flight in self._flights if flight.end_s <= self.now_s]
        self._flights = [flight for flight in self._flights if flight.end_s > self.now_s]
        for flight in ended:
            source = self._replicas[flight.item][flight.src]
            source.users -= 1
            for node in (flight.dst, *flight.through):
                self._replicas[flight.item][node].users -= 1
            if source.leaving:
                self._leaving_bytes[flight.src] -= self._c.item_bytes[flight.item]
                source.leaving = False
                if not source.users:
                    self._drop(flight.item, flight.src)
            self._tidy(flight.item)

    def new_dues(self) -> list[float]:
        """Give the times at which something will be possible that is not yet, each once."""
        dues, self._dues = sorted(set(self._dues)), []
        return [due_s for due_s in dues if due_s > self.now_s]

    def new_repeats(self) -> list[int]:
        """Give the attempts that are to make dropped values again, each once."""
        new, self._new = self._new, []
        return new

    @property
    def transfers(self) -> int:
        """How many transfers there have been, a hop each."""
        return len(self._moves)

    def history(self) -> tuple[Moves, tuple[Dropped, ...]]:
        """Give all transfers, and the evictions of items that came back, by a transfer or made again."""
        rows = sorted(self._moves, key=lambda row: (row[2], row[3], row[0], row[1]))
        moves = Moves(
            np.array([row[0] for row in rows], dtype=np.int64),
            np.array([row[1] for row in rows], dtype=np.int64),
            np.array([row[2] for row in rows], dtype=np.float64),
            np.array([row[3] for row in rows], dtype=np.float64),
        )
        again = [(item, int(self._c.hop_dst[hop]), start_s) for item, hop, start_s, _ in rows] + self._made_again
        came = {(item, node): start_s for item, node, start_s in sorted(again, key=lambda row: row[2])}
        return moves, tuple(one for one in self._dropped if came.get((one.item, one.node), -1.0) >= one.at_s)

    # replicas

    def _put(self, item: int, node: int, ready_s: float) -> _Replica:
        made = self._replicas[item][node] = self._lies_on[node][item] = _Replica(ready_s)
        self.used_bytes[node] += self._c.item_bytes[item]
        return made

    def _drop(self, item: int, node: int) -> None:
        del self._replicas[item][node], self._lies_on[node][item]
        self.used_bytes[node] -= self._c.item_bytes[item]
        self._dropped.append(Dropped(item, node, self.now_s))

    def _tidy(self, item: int) -> None:
        """Drop the copies of an item that nobody needs."""
        for node in [*self._replicas[item]]:
            replica = self._replicas[item][node]
            idle = not replica.users and replica.ready_s <= self.now_s
            if idle and not self._readers[item].get(node) and self._is_spare(item, node):
                self._drop(item, node)

    def _is_spare(self, item: int, node: int) -> bool:
        """Tell whether an item has another copy, or no more readers."""
        others = (one.ready_s <= self.now_s for at, one in self._replicas[item].items() if at != node)
        return any(others) or not any(self._readers[item].values())

    # transfers and room

    def _copy(self, item: int, there: int, task: int) -> None:
        """Begin to send an item to a memory node from the nearest copy, if that can be now."""
        found = [
            (self._seconds(item, node, there), node)
            for node, one in self._replicas[item].items()
            if one.ready_s <= self.now_s and self._path(node, there)
        ]
        if not found:
            return
        src = min(found)[1]
        channel = self._c.hop_channel[self._path(src, there)[0]]
        if self._free_s[channel] > self.now_s:
            self._dues.append(float(self._free_s[channel]))
            return
        ends = [int(self._c.hop_dst[hop]) for hop in self._path(src, there)]
        needed = [node for node in ends if node not in self._replicas[item]]
        nbytes = float(self._c.item_bytes[item])
        made = all(self._room(node, nbytes, task) for node in needed)
        if made and all(self.used_bytes[node] + nbytes <= self.capacity_bytes[node] for node in needed):
            self._send(item, src, there)

    def _path(self, src: int, dst: int) -> range:
        at = src * len(self._c.nodes) + dst
        return range(int(self._c.hop_first[at]), int(self._c.hop_first[at + 1]))

    def _seconds(self, item: int, src: int, dst: int) -> float:
        path = slice(self._path(src, dst).start, self._path(src, dst).stop)
        own_s = self._c.hop_latency_s[path] + self._c.item_bytes[item] * self._c.hop_s_per_byte[path]
        return float(own_s.sum())

    def _send(self, item: int, src: int, dst: int) -> None:
        ready_s, through = self.now_s, []
        for hop in self._path(src, dst):
            channel = self._c.hop_channel[hop]
            start_s = max(ready_s, float(self._free_s[channel]))
            ready_s = start_s + self._c.hop_latency_s[hop] + self._c.item_bytes[item] * self._c.hop_s_per_byte[hop]
            self._free_s[channel] = ready_s
            self._moves.append((item, hop, start_s, float(ready_s)))
            node = int(self._c.hop_dst[hop])
            if node not in self._replicas[item]:
                self._put(item, node, float(ready_s))
            self._replicas[item][node].users += 1
            if node != dst:
                through.append(node)
        self._replicas[item][src].users += 1
        self._flights.append(_Flight(float(ready_s), item, src, dst, tuple(through)))
        self._dues.append(float(ready_s))

    def _room(self, node: int, nbytes: float, task: int) -> bool:
        """Make room on a memory node for a task, at the cost of later ones; False while there is none."""
        if node in self._blocked:
            return False
        lacking = self.used_bytes[node] + nbytes - self.capacity_bytes[node]
        if lacking <= 0.0:
            return True
        spared = {*self._inputs(task), *self._made[self._attempts.task[task]]}
        for _, item in sorted(self._victims(node, task, spared), reverse=True):
            if self._is_spare(item, node):
                self._drop(item, node)
                lacking -= self._c.item_bytes[item]
                if lacking <= 0.0:
                    return True
        lacking -= self._leaving_bytes[node]
        for _, item in sorted(self._victims(node, task, spared), reverse=True):
            if lacking <= 0.0:
                break
            if self._part_with(item, node):
                lacking -= self._c.item_bytes[item]
        if self.used_bytes[node] + nbytes <= self.capacity_bytes[node]:
            return True
        self._blocked[node] = task, nbytes
        return False

    def _victims(self, node: int, task: int, spared: set[int]) -> list[tuple[float, int]]:
        """Give (place of the next reader, item) of what lies idle on a node and is read later than the task."""
        found = []
        for item, replica in self._lies_on[node].items():
            if replica.users or replica.ready_s > self.now_s or item in spared:
                continue
            readers = self._readers[item].get(node)
            next_place = self._place[readers[-1]] if readers else inf
            if next_place > ceil(self._place[task]):
                found.append((next_place, item))
        return found

    def _part_with(self, item: int, node: int) -> bool:
        """Begin to send the last copy of an item away, or drop it where making it again costs less."""
        reader = min((tasks[-1] for tasks in self._readers[item].values() if tasks), key=self._place.__getitem__)
        refuge = self._refuge(item, node)
        repeat = self._repeat(item, node, reader) if self._repeats else None
        if repeat is not None:
            away_s = inf
            if refuge >= 0:
                away_s = self._seconds(item, node, refuge) + self._seconds(item, refuge, self._node[reader])
            if repeat.cost_s < away_s:
                self._drop(item, node)
                self._make_again(int(self._c.item_task[item]), repeat)
                return True
        if refuge < 0:
            return False
        free_s = float(self._free_s[self._c.hop_channel[self._path(node, refuge)[0]]])
        if free_s > self.now_s:
            self._dues.append(free_s)
            return True
        self._replicas[item][node].leaving = True
        self._leaving_bytes[node] += self._c.item_bytes[item]
        self._send(item, node, refuge)
        return True

    def _refuge(self, item: int, node: int) -> int:
        """Give the memory node with the most room that an item can be sent to; -1 for none."""
        nbytes = self._c.item_bytes[item]
        room = self.capacity_bytes - self.used_bytes
        for other in np.argsort(-room, kind="stable").tolist():
            path = self._path(node, other)
            taken = other == node or other in self._blocked or other in self._replicas[item]
            between = [int(self._c.hop_dst[hop]) for hop in path[:-1]]
            if path and not taken and all(room[at] >= nbytes for at in (other, *between)):
                return int(other)
        return -1

    # making values again

    def _repeat(self, item: int, node: int, reader: int) -> Repeat | None:
        """Give how an item would be made again for its next reader at the least cost; None where it cannot be."""
        task = int(self._c.item_task[item])
        if self._attempts.is_repeat(reader) or not self._attempts.may_grow:
            return None
        if (waiting := self._attempts.waiting.get(task, -1)) >= 0:
            soon = self._place[waiting] < self._place[reader]
            return Repeat(self._attempts.device[waiting], reader, 0.0) if soon else None
        inputs = self._inputs(task)
        kept = [one for one in inputs if self._would_leave(one, node, self._place[reader])]
        if self._c.item_bytes[kept].sum() >= self._c.item_bytes[item]:
            return None
        costs = []
        for device in np.flatnonzero(np.isfinite(self._p.seconds[task])).tolist():
            there = int(self._p.node[device])
            travel_s = sum(self._nearest_s(one, there) for one in inputs)
            costs.append((float(self._p.seconds[task, device]) + travel_s + self._way_s(item, there, reader), device))
        cost_s, device = min(costs)
        return Repeat(device, reader, cost_s) if cost_s < inf else None

    def _would_leave(self, item: int, node: int, place: float) -> bool:
        """Tell whether an item would be gone from a node at some place of the order."""
        readers = [tasks[0] for tasks in self._readers[item].values() if tasks]
        return node in self._replicas[item] and all(self._place[reader] < place for reader in readers)

    def _nearest_s(self, item: int, there: int) -> float:
        """Give the seconds of an item's way to a memory node from a copy that is ready; inf for none."""
        ready = (node for node, one in self._replicas[item].items() if one.ready_s <= self.now_s)
        return min((self._seconds(item, node, there) for node in ready if self._leads(node, there)), default=inf)

    def _way_s(self, item: int, there: int, reader: int) -> float:
        node = self._node[reader]
        return self._seconds(item, there, node) if self._leads(there, node) else inf

    def _leads(self, src: int, dst: int) -> bool:
        return src == dst or len(self._path(src, dst)) > 0

    def _make_again(self, task: int, repeat: Repeat) -> None:
        """Have a task run again, and keep what it reads until then."""
        if task in self._attempts.waiting:
            return
        attempt = self._attempts.add(task, repeat)
        self._new.append(attempt)
        for item in self._inputs(task):
            readers = self._readers[item].setdefault(self._node[attempt], [])
            insort(readers, attempt, key=lambda one: -self._place[one])
