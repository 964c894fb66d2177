"""The home: the device that would be the best one alone, and the way of results to it.

In: what was handed in so far, and the links. Out: one device, and seconds from each device to it. It must not place.
A program on many devices is no slower than on its home alone if whatever runs elsewhere is back before the home
would have had it: placing keeps to that, so the home must be known.
"""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from hetero.core.estimates import Row, Rows
from hetero.core.fleet import Fleet
from hetero.core.items import Item
from hetero.core.replicas import Replicas
from hetero.core.state import DevicePhase
from hetero.model.device import HOST_NODE
from hetero.plan.policies.base import Floats, Ints

__all__ = ["Home"]


class Home:
    """Keeps the home up to date, and not more often than it matters.

    Notes
    -----
    home = argmin over d of (sum over tasks of seconds[d]) + (way of the user's own data to d)
    + (way from d to the host of the results that exceed its memory).
    It is worked out anew when a quarter more tasks came, or estimates moved as often as there are devices and
    classes of tasks.

    back[d] = (latency + bytes / bandwidth) * (1 + tasks accepted at d) + bytes owed at d / bandwidth, and inf
    where its own part is more than the home would take for the task and for fetching its inputs. Owed are
    results on the memory node of d that open tasks will read: they travel over the same link, and only when
    they are read, so that the home may have to wait for all of them.
    """

    def __init__(self, fleet: Fleet, rows: Rows, replicas: Replicas) -> None:
        self._fleet = fleet
        self._rows = rows
        self._replicas = replicas
        self._index = -1
        self._seen = 0
        self._due = 1
        self._moves = -1
        self._outside: set[int] = set()
        self._outside_bytes = 0
        self._released_bytes = 0
        self._owed: dict[int, list[int]] = {}
        self._owed_bytes: Floats = np.zeros(0)
        self._round = 0
        self._away: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._ahead: Ints = np.zeros(0, dtype=np.int64)
        self._owed_s: Floats = np.zeros(0)
        self._latency_s: Floats = np.zeros(0)
        self._per_byte_s: Floats = np.zeros(0)

    def came(self, row: Row) -> None:
        """Count a task that was handed in."""
        row.count += 1
        self._seen += 1

    def reads(self, entry: Item) -> None:
        """Count the user's own data once."""
        if entry.producer is None and entry.id not in self._outside:
            self._outside.add(entry.id)
            self._outside_bytes += entry.nbytes

    def released(self, nbytes: int) -> None:
        """Count a result that nobody wants any more."""
        self._released_bytes += nbytes

    def kept(self, item: int, index: int, nbytes: int, readers: int) -> None:
        """Record a result on a device's own memory node that a number of open tasks will read."""
        if readers and self._fleet.devices[index].memory_node != HOST_NODE:
            self.paid(item)
            self._owed[item] = [index, nbytes, readers]
            self._owed_bytes[index] += nbytes

    def read(self, inputs: tuple[int, ...]) -> None:
        """Record that a task which read these items is over."""
        for item in inputs:
            owed = self._owed.get(item)
            if owed is not None:
                owed[2] -= 1
                if owed[2] <= 0:
                    self.paid(item)

    def paid(self, item: int) -> None:
        """Record that nobody waits for an item on the node where it came to be, or that it is elsewhere too."""
        owed = self._owed.pop(item, None)
        if owed is not None:
            self._owed_bytes[owed[0]] -= owed[1]

    def changed(self) -> None:
        """Record that devices came or went."""
        self._due = 0
        self._owed_bytes = np.resize(self._owed_bytes, len(self._fleet.states))
        self._owed_bytes[:] = 0.0
        for index, nbytes, _ in self._owed.values():
            self._owed_bytes[index] += nbytes

    def look(self) -> int:
        """Start a round: work out anew what the way back costs now; returns the home."""
        self._round += 1
        home = self.index()
        if home >= 0:
            self._latency_s, self._per_byte_s = self._replicas.ways.links_to(self._fleet.devices[home].memory_node)
            self._away = self._latency_s + self._per_byte_s > 0.0
            self._ahead = 1 + self._fleet.queued[: len(self._away)]
            self._owed_s = self._owed_bytes * self._per_byte_s
        return home

    def index(self) -> int:
        """Return the home, -1 when there is none."""
        if self._seen < self._due and self._rows.moves - self._moves <= len(self._fleet.states) + len(self._rows):
            return self._index
        self._due = self._seen + self._seen // 4 + 1
        self._moves = self._rows.moves
        total = self._rows.alone_s()
        if self._outside:
            latency_s, per_byte_s = self._replicas.ways.links_from(HOST_NODE)
            total += len(self._outside) * latency_s + self._outside_bytes * per_byte_s
        kept_bytes = self._rows.result_bytes() - self._released_bytes
        capacity_bytes = [self._replicas.capacity(device.memory_node) for device in self._fleet.devices]
        total += np.maximum(kept_bytes - np.array(capacity_bytes), 0.0) * self._replicas.ways.links_to(HOST_NODE)[1]
        for state in self._fleet.states:
            if state.phase is DevicePhase.GONE:
                total[state.index] = inf
        self._index = int(total.argmin()) if np.isfinite(total).any() else -1
        return self._index

    def back_s(self, row: Row, arrive_s: Floats | None, inputs: tuple[int, ...]) -> Floats | None:
        """Return the seconds that a result of this class takes from each device to the home; None for no time.

        Parameters
        ----------
        arrive_s : shape (n_devices,), s, or None for no time; the way of the task's inputs to each device
        inputs : ids of the task's inputs

        Notes
        -----
        A result whose size was never seen is not sent anywhere: until then its task stays at home, unless its
        inputs lie elsewhere; then it is taken to be as large as they are.
        """
        nbytes = row.out_bytes
        if self._index < 0 or nbytes == 0:
            return None
        pull_s = 0.0 if arrive_s is None else float(arrive_s[self._index])
        if pull_s > 0.0:
            return self._way(row, nbytes if nbytes > 0 else self._replicas.nbytes(inputs), pull_s)
        if row.back[0] != self._round:
            row.back = (self._round, self._way(row, nbytes, 0.0))
        return row.back[1]

    def _way(self, row: Row, nbytes: int, pull_s: float) -> Floats:
        if nbytes < 0:
            return np.where(self._away, inf, 0.0)
        own_s = self._latency_s + nbytes * self._per_byte_s
        way: Floats = own_s * self._ahead + self._owed_s
        way[own_s > row.seconds[self._index] + pull_s] = inf
        return way
