"""What a policy is shown of the tasks: seconds on each device, the way of their inputs, the way of their results.

In: task states, and the rooms that know seconds, ways, affinities and leases. Out: `ReadyTask`. It must not place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import overload

from hetero.core.affinity import Affinities
from hetero.core.estimates import Row, Rows
from hetero.core.fleet import Fleet
from hetero.core.home import Home
from hetero.core.leases import Pool
from hetero.core.replicas import Replicas
from hetero.core.state import DevicePhase, TaskState
from hetero.plan.policies.base import Floats, ReadyTask

__all__ = ["Showing", "Shown"]


class Shown(Sequence[ReadyTask]):
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


class Showing:
    """Makes what a policy is shown.

    Attributes
    ----------
    now_s, stalled : s, and whether tasks only wait for others; set at the begin of each round
    """

    def __init__(
        self, fleet: Fleet, rows: Rows, replicas: Replicas, pool: Pool, affinities: Affinities, home: Home
    ) -> None:
        self._fleet = fleet
        self._rows = rows
        self._replicas = replicas
        self._pool = pool
        self._affinities = affinities
        self._home = home
        self.now_s = 0.0
        self.stalled = False

    def show(self, state: TaskState) -> ReadyTask:
        """Return a ready task as the policy sees it."""
        row = self._rows.of(state)
        inputs = state.task.inputs
        arrive = self._replicas.ways.arrivals(inputs) if inputs and self._fleet.own_nodes else None
        back = self._home.back_s(row, arrive, inputs) if self._fleet.own_nodes else None
        return ReadyTask(state.task.id, self.seconds(state, row), arrive, state.task.signature, back)

    def seconds(self, state: TaskState, row: Row) -> Floats:
        """Return the seconds that a task takes on each device by now, inf where it must not run; not to be changed."""
        request, lends = state.task.request, self._pool.lends
        special = request.near or request.apart or state.excluded or state.avoided or request.lease
        if not (special or lends or self._fleet.suspended):
            return row.by_now(self.now_s)
        seconds = row.by_now(self.now_s).copy()
        if self._fleet.suspended:
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
            if device.suspended and not self._fleet.admits(device, state, seconds[at], self.now_s, self.stalled):
                seconds[at] = inf

    def _keep_to_leases(self, seconds: Floats, state: TaskState) -> None:
        """Set the seconds of devices that others have leased, or that are not of the task's lease, to inf."""
        lease = state.task.request.lease
        if state.recomputed and self._pool.ended(lease):
            lease = 0
        for index, device in enumerate(self._fleet.devices):
            if not self._pool.admits(device.id, lease):
                seconds[index] = inf

    def _avoid(self, seconds: Floats, avoided: frozenset[int]) -> None:
        """Set the seconds of devices that a task avoids to inf, as long as another may run it."""
        states = self._fleet.states
        able = (each for each in states if each.phase is not DevicePhase.GONE and not each.told)
        others = (each for each in able if each.index not in avoided)
        if avoided and any(seconds[each.index] < inf for each in others):
            for index in avoided:
                seconds[index] = inf
