"""The fleet as the core sees it: device states, their columns, and how much work each has accepted.

In: devices that come and go, work accepted and ended. Out: the `View` that policies see. It must not place.
"""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from hetero.core.state import Batch, DevicePhase, DeviceState, TaskState
from hetero.model.device import HOST_NODE, Device
from hetero.plan.policies.base import Ints, View, Waiting

__all__ = ["AHEAD_S", "LOOKAHEAD_S", "Fleet"]

LOOKAHEAD_S = 2e-3
"""A device is sent small tasks while what it has would end sooner than this."""

AHEAD_S = 0.1
"""One more task is sent ahead while the one that runs would end sooner than this, so that no time passes between
the two; above, the way there and back does not matter."""

OVERDUE = 1.5
"""A task that has taken this many times its estimate is expected to take half as long again as it has."""


MOST_SUSPENDED = 500
"""Tasks that may wait in one worker, each on top of the one before, which takes some kilobytes of a stack."""

START_S = 0.2
"""A worker is expected to take this long to start; one that has taken longer, half as long again as it has."""


class Fleet:
    """All devices, with one column entry each.

    `pending_s` is the estimated work accepted and not finished; `head_s` of it is the task that runs now,
    since `since_s`. When a device would end is worked out from the three at the moment a view is made.
    While a device takes no tasks, `since_s` is when it began to start, inf once it is gone.
    """

    def __init__(self) -> None:
        self.states: list[DeviceState] = []
        self.by_id: dict[str, DeviceState] = {}
        self.devices: tuple[Device, ...] = ()
        self.pending_s: NDArray[np.float64] = np.empty(0)
        self.head_s: NDArray[np.float64] = np.empty(0)
        self.since_s: NDArray[np.float64] = np.empty(0)
        self.busy_frac: NDArray[np.float64] = np.empty(0)
        self.ready: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)
        self.queued: Ints = np.empty(0, dtype=np.int64)
        self.rooms: Ints = np.empty(0, dtype=np.int64)
        self.offered: Ints = np.empty(0, dtype=np.int64)
        self.stacked: dict[int, DeviceState] = {}
        self.open = 0
        self.live = 0
        self.nodes: tuple[str, ...] = ()
        self.memory_nodes: list[str] = []
        self.own_nodes = False
        self.suspended = 0

    def add(self, device: Device, now_s: float) -> DeviceState:
        """Add a device whose worker is starting; a device that was there before starts again."""
        state = self.by_id.get(device.id)
        if state is not None:
            state.device, state.deaths = device, 0
            self.memory_nodes[state.index] = device.memory_node
            self.set_phase(state, DevicePhase.STARTING, now_s)
            self.devices = tuple(entry.device for entry in self.states)
            return state
        state = DeviceState(device, len(self.states))
        self.states.append(state)
        self.by_id[device.id] = state
        self.devices = (*self.devices, device)
        self.memory_nodes.append(device.memory_node)
        if device.memory_node not in self.nodes:
            self.nodes = (*self.nodes, device.memory_node)
        self.own_nodes = self.nodes != (HOST_NODE,)
        if state.index >= len(self.pending_s):
            self._grow(max(8, 2 * state.index + 2))
        self.set_phase(state, DevicePhase.STARTING, now_s)
        return state

    def _grow(self, size: int) -> None:
        for name in ("pending_s", "head_s", "since_s", "busy_frac", "ready", "queued", "rooms", "offered"):
            old = getattr(self, name)
            new = np.zeros(size, dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def set_phase(self, state: DeviceState, phase: DevicePhase, now_s: float) -> None:
        """Move a device to another phase."""
        was, now = state.phase is DevicePhase.READY, phase is DevicePhase.READY
        state.phase = phase
        self.since_s[state.index] = inf if phase is DevicePhase.GONE else now_s
        self.ready[state.index] = now
        self.live += now - was
        self.measure(state)

    def room(self, state: DeviceState) -> int:
        """Return how many more launches the device would be sent now: 0 or 1."""
        if state.phase is not DevicePhase.READY or state.held_by or state.stopping:
            return 0
        if state.suspended and (state.batches or state.suspended[-1].resumes):
            return 0
        if state.batches == 0 and not state.placed:
            return 1
        if state.batches == 1 and not state.placed:
            return int(state.device.memory_node != HOST_NODE or self.is_nearly_done(state))
        return 0

    def is_nearly_done(self, state: DeviceState) -> bool:
        """Return whether a busy device will soon want another task, as far as that is known."""
        pending_s = self.pending_s.item(state.index)
        if pending_s < LOOKAHEAD_S:
            return True
        first = self.first(state)
        return pending_s < AHEAD_S and first is not None and first.sure

    def measure(self, state: DeviceState) -> int:
        """Update the column of room for one device, and give it."""
        room = self.rooms[state.index] = self.room(state)
        return room

    def offer(self, state: DeviceState) -> None:
        """Offer a device's room, if it has any, to the policy."""
        room = self.rooms[state.index] = self.room(state)
        if room != self.offered.item(state.index):
            self.offered[state.index] = room
            self.open += 1 if room else -1

    def offer_all(self) -> None:
        """Offer all the room that there is."""
        self.offered[:] = self.rooms
        self.open = int(np.count_nonzero(self.offered))

    def close_all(self) -> None:
        """Offer nothing."""
        self.offered[:] = 0
        self.open = 0

    def first(self, state: DeviceState) -> TaskState | None:
        """Return the task that a device runs now, or will run first."""
        for task, _ in state.sent.values():
            return task
        return state.placed[0] if state.placed else None

    def accept(self, state: DeviceState, task: TaskState, now_s: float) -> None:
        """Count a task that was placed on a device."""
        index = state.index
        if not state.sent and not state.placed:
            self.since_s[index] = now_s
            self.head_s[index] = task.predicted_s
        self.pending_s[index] = self.pending_s.item(index) + task.predicted_s
        self.queued[index] = len(state.sent) + len(state.placed) + 1

    def send(self, state: DeviceState, task: TaskState, batch: Batch, now_s: float) -> None:
        """Count a task that leaves for the device's worker."""
        if not state.sent:
            state.started_s = now_s
            self.since_s[state.index] = now_s
            self.head_s[state.index] = task.predicted_s
        state.placed.remove(task)
        state.sent[task.task.id] = (task, batch)
        if batch.left == 0:
            state.batches += 1
            if state.batches > 1:
                self.stacked[state.index] = state
        batch.left += 1

    def send_lone(self, state: DeviceState, task: TaskState, now_s: float) -> None:
        """Count a task that goes straight to the worker of an idle device."""
        index, batch = state.index, Batch()
        batch.left = state.batches = 1
        state.sent[task.task.id] = (task, batch)
        state.started_s = now_s
        self.since_s[index] = now_s
        self.head_s[index] = self.pending_s[index] = task.predicted_s
        self.queued[index] = 1
        self.offer(state)

    def drop(self, state: DeviceState, task: TaskState, now_s: float) -> None:
        """Uncount a task that ended on a device or left its queue."""
        index = state.index
        was_first = self.first(state) is task
        sent = state.sent.pop(task.task.id, None)
        if sent is not None:
            batch = sent[1]
            batch.left -= 1
            if batch.left == 0:
                state.batches -= 1
                if state.batches < 2:
                    self.stacked.pop(state.index, None)
        else:
            state.placed.remove(task)
        queued = self.queued[index] = len(state.sent) + len(state.placed)
        if queued == 0:
            self.pending_s[index] = self.head_s[index] = 0.0
            return
        self.pending_s[index] = self.pending_s.item(index) - task.predicted_s
        head = self.first(state)
        if was_first and head is not None and self.ready[index]:
            state.started_s = now_s
            self.since_s[index] = now_s
            self.head_s[index] = head.predicted_s

    def suspend(self, state: DeviceState, task: TaskState, now_s: float) -> None:
        """Count a task that runs on a device as waiting there."""
        self.drop(state, task, now_s)
        state.suspended.append(task)
        self.suspended += 1

    def leave(self, state: DeviceState, task: TaskState) -> None:
        """Uncount a task that waits on a device."""
        state.suspended.remove(task)
        self.suspended -= 1

    def resume(self, state: DeviceState, task: TaskState, now_s: float) -> None:
        """Count a task that waited on a device as the one that runs there."""
        index, batch = state.index, Batch()
        self.leave(state, task)
        batch.left = 1
        state.batches += 1
        state.sent = {task.task.id: (task, batch), **state.sent}
        if state.batches > 1:
            self.stacked[index] = state
        state.started_s = now_s
        self.since_s[index] = now_s
        self.head_s[index] = task.predicted_s
        self.pending_s[index] += task.predicted_s
        self.queued[index] += 1

    @property
    def stalled(self) -> bool:
        """True when tasks wait for others at the devices, and nothing runs or is being stopped at any."""
        return self.suspended > 0 and not any(state.sent or state.stopping for state in self.states)

    @staticmethod
    def admits(state: DeviceState, task: TaskState, stalled: bool) -> bool:
        """Return whether a task may run on top of those that wait at a device.

        Parameters
        ----------
        stalled
            Whether nothing runs at any device, and nothing ready may run elsewhere.

        Notes
        -----
        One that is nested in the topmost of them may: it sees what that one has set for the process and the thread,
        as a call of its own would, and does not have to wait for locks of others. One whose class killed workers may
        not, so as to cost nobody else an attempt, nor be sent there before its parent waits. Where nothing would go
        on otherwise, all may: of the started tasks, the one started last has nothing on top of it and waits for a
        task that is ready.
        """
        if not state.suspended:
            return not task.is_deadly or not any(task.is_below(other) for other, _ in state.sent.values())
        if len(state.suspended) >= MOST_SUSPENDED:
            return False
        if stalled or task.stray:
            return True
        return not task.is_deadly and task.is_below(state.suspended[-1])

    def available_s(self, now_s: float) -> NDArray[np.float64]:
        """Return when each device's accepted work is estimated to end: shape (n_devices,), s.

        Notes
        -----
        remaining = max(head - elapsed, 0), and elapsed / 2 once elapsed > 1.5 head: a task that is late is
        expected to stay late in proportion. So is a worker that is starting; a device that is gone never ends.
        """
        n = len(self.states)
        busy = self.queued[:n] > 0
        elapsed = np.where(busy, now_s - self.since_s[:n], 0.0)
        head = self.head_s[:n]
        remaining = np.where(elapsed > OVERDUE * head, 0.5 * elapsed, np.maximum(head - elapsed, 0.0))
        result: NDArray[np.float64] = now_s + remaining + np.maximum(self.pending_s[:n] - head, 0.0)
        if self.live < n:
            starting_s = now_s - self.since_s[:n]
            left_s = np.maximum(START_S - starting_s, 0.5 * starting_s)
            left_s[self.since_s[:n] == inf] = inf
            result = np.where(self.ready[:n], result, now_s + left_s)
        return result

    def view(self, now_s: float, backlog: int, waiting: tuple[Waiting, ...]) -> View:
        """Make the view that a policy sees."""
        n = len(self.states)
        return View(
            now_s, self.devices, self.ready[:n], self.available_s(now_s), self.queued[:n], self.rooms[:n],
            self.busy_frac[:n], backlog, waiting, offered=self.offered[:n],
        )  # fmt: skip
