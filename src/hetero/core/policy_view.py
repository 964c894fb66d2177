"""What a policy is shown of the tasks: seconds on each device, transfer times of inputs and of results.

In: task states, estimates, replicas, affinities and leases. Out: `ReadyTask`. It must not place a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import overload

import numpy as np
from numpy.typing import NDArray

from hetero.core.eligibility import Affinities
from hetero.core.estimates import EstimateRows
from hetero.core.fleet import Fleet
from hetero.core.leases import LeasePool
from hetero.core.replicas import Item, Replicas
from hetero.core.state import DevicePhase, DeviceState, Row, TaskState
from hetero.model.device import HOST_NODE
from hetero.plan.policies.base import Floats, Ints, ReadyTask

__all__ = ["BestDevice", "PolicyView", "ReadyTasks"]


class ReadyTasks(Sequence[ReadyTask]):
    """Ready tasks as a policy sees them, each made when it is looked at: most policies stop early."""

    __slots__ = ("_made", "_show", "_states")

    def __init__(self, show: Callable[[TaskState], ReadyTask], states: list[TaskState]) -> None:
        self._show = show
        self._states = states
        self._made: list[ReadyTask | None] = [None] * len(states)

    def __len__(self) -> int:
        return len(self._states)

    @overload
    def __getitem__(self, at: int) -> ReadyTask: ...

    @overload
    def __getitem__(self, at: slice) -> list[ReadyTask]: ...

    def __getitem__(self, at: int | slice) -> ReadyTask | list[ReadyTask]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        made = self._made[at]
        if made is None:
            made = self._made[at] = self._show(self._states[at])
        return made

    def __iter__(self) -> Iterator[ReadyTask]:
        for at in range(len(self._states)):
            yield self[at]


class PolicyView:
    """Makes what a policy is shown.

    Attributes
    ----------
    now_s, stalled
        Seconds, and whether tasks only wait for others, and none may run beside them.
    """

    def __init__(
        self,
        fleet: Fleet,
        rows: EstimateRows,
        replicas: Replicas,
        pool: LeasePool,
        affinities: Affinities,
        best_device: BestDevice,
    ) -> None:
        self._fleet = fleet
        self._rows = rows
        self._replicas = replicas
        self._pool = pool
        self._affinities = affinities
        self._best_device = best_device
        self.now_s = 0.0
        self.stalled = False

    def show(self, state: TaskState) -> ReadyTask:
        """Return a ready task as the policy sees it."""
        row = self._rows.of(state)
        inputs = state.task.inputs
        arrive = self._replicas.costs.arrivals(inputs) if inputs and self._fleet.own_nodes else None
        back = self._best_device.back_s(row, arrive, inputs) if self._fleet.own_nodes else None
        return ReadyTask(state.task.id, self.seconds(state, row), arrive, state.task.signature, back)

    def seconds(self, state: TaskState, row: Row) -> Floats:
        """Return the seconds that a task takes on each device by now, inf where it must not run; not to be changed."""
        request, lends = state.task.request, self._pool.lends
        special = request.near or request.apart or state.excluded or state.avoided or request.lease
        stacked = self._fleet.suspended or (state.above is not None and state.is_deadly)
        if not (special or lends or stacked):
            return row.by_now(self.now_s)
        seconds = row.by_now(self.now_s).copy()
        if stacked:
            self._keep_off_stacks(seconds, state)
        if request.lease or lends:
            self._keep_to_leases(seconds, state)
        for index in state.excluded:
            seconds[index] = inf
        self._affinities.narrow(seconds, request)
        self._avoid(seconds, state.avoided)
        return seconds

    def _keep_off_stacks(self, seconds: Floats, state: TaskState) -> None:
        """Set the seconds of devices to inf where others wait that a task may not run on top of."""
        for device in self._fleet.states:
            at = device.index
            if not self._fleet.admits(device, state, self.stalled):
                seconds[at] = inf

    def _keep_to_leases(self, seconds: Floats, state: TaskState) -> None:
        """Set the seconds of devices that others have leased, or that are not of the task's lease, to inf."""
        lease = state.task.request.lease
        if lease and state.is_again and self._pool.ended(lease):
            lease = 0
        for device in self._fleet.states:
            if not self._pool.admits(device.name, lease) and not self._is_of_who_waits(state, device):
                seconds[device.index] = inf

    @staticmethod
    def _is_of_who_waits(state: TaskState, device: DeviceState) -> bool:
        """Return whether a task is nested in the one that waits at a device, which runs there to its end."""
        return len(device.suspended) > 0 and state.is_below(device.suspended[-1])

    def _avoid(self, seconds: Floats, avoided: frozenset[int]) -> None:
        """Set the seconds of devices that a task avoids to inf, as long as another may run it."""
        states = self._fleet.states
        able = (each for each in states if each.phase is not DevicePhase.GONE and not each.told)
        others = (each for each in able if each.index not in avoided)
        if avoided and any(seconds[each.index] < inf for each in others):
            for index in avoided:
                seconds[index] = inf


class BestDevice:
    """The device that would be the best one alone, and what it costs to bring results back to it.

    Notes
    -----
    A program on many devices is no slower than on its best device alone if whatever runs elsewhere is back before
    that device would have had it: placement keeps to that, so the best device must be known.

    best = argmin over d of (sum over tasks of seconds[d]) + (transfer of the user's own data to d)
    + (transfer from d to the host of the results that exceed its memory).
    It is computed again when a quarter more tasks came, or estimates moved as often as there are devices and
    classes of tasks.

    back[d] = (latency + bytes / bandwidth) * (1 + tasks accepted at d) + bytes owed at d / bandwidth, and inf
    where its own part is more than the best device would take for the task and for fetching its inputs. Owed are
    results on the memory node of d that open tasks will read: they travel over the same link, and only when
    they are read, so that the best device may have to wait for all of them.
    """

    def __init__(self, fleet: Fleet, rows: EstimateRows, replicas: Replicas) -> None:
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

    def start_round(self) -> int:
        """Start a round: compute what the transfer back costs now, and return the best device."""
        self._round += 1
        best = self.index()
        if best >= 0:
            self._latency_s, self._per_byte_s = self._replicas.costs.links_to(self._fleet.devices[best].memory_node)
            self._away = self._latency_s + self._per_byte_s > 0.0
            self._ahead = 1 + self._fleet.queued[: len(self._away)]
            self._owed_s = self._owed_bytes * self._per_byte_s
        return best

    def index(self) -> int:
        """Return the index of the best device, -1 when there is none."""
        if self._seen < self._due and self._rows.moves - self._moves <= len(self._fleet.states) + len(self._rows):
            return self._index
        self._due = self._seen + self._seen // 4 + 1
        self._moves = self._rows.moves
        total = self._rows.alone_s()
        if self._outside:
            latency_s, per_byte_s = self._replicas.costs.links_from(HOST_NODE)
            total += len(self._outside) * latency_s + self._outside_bytes * per_byte_s
        kept_bytes = self._rows.result_bytes() - self._released_bytes
        capacity_bytes = [self._replicas.capacity(device.memory_node) for device in self._fleet.devices]
        total += np.maximum(kept_bytes - np.array(capacity_bytes), 0.0) * self._replicas.costs.links_to(HOST_NODE)[1]
        for state in self._fleet.states:
            if state.phase is DevicePhase.GONE:
                total[state.index] = inf
        self._index = int(total.argmin()) if np.isfinite(total).any() else -1
        return self._index

    def back_s(self, row: Row, arrive_s: Floats | None, inputs: tuple[int, ...]) -> Floats | None:
        """Return the seconds that a result of this class takes from each device to the best one; None for no time.

        Parameters
        ----------
        arrive_s
            Shape (n_devices,), s, or None for no time; transfer of the task's inputs to each device.
        inputs
            Ids of the task's inputs.

        Notes
        -----
        A result whose size was never seen is not sent anywhere: until then its task runs on the best device,
        unless its inputs lie elsewhere; then it is taken to be as large as they are.
        """
        nbytes = row.out_bytes
        if self._index < 0 or nbytes == 0:
            return None
        pull_s = 0.0 if arrive_s is None else float(arrive_s[self._index])
        if pull_s > 0.0:
            return self._transfer(row, nbytes if nbytes > 0 else self._replicas.nbytes(inputs), pull_s)
        if row.back[0] != self._round:
            row.back = (self._round, self._transfer(row, nbytes, 0.0))
        return row.back[1]

    def _transfer(self, row: Row, nbytes: int, pull_s: float) -> Floats:
        if nbytes < 0:
            return np.where(self._away, inf, 0.0)
        own_s = self._latency_s + nbytes * self._per_byte_s
        total_s: Floats = own_s * self._ahead + self._owed_s
        total_s[own_s > row.seconds[self._index] + pull_s] = inf
        return total_s
