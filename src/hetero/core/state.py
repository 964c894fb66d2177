"""What the core remembers of each task and each device, and the queue of ready tasks.

In: changes by the rooms of the core. Out: plain attributes. It must not decide anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import IntEnum

from hetero.model.device import Device
from hetero.model.events import TaskFinished
from hetero.model.tasks import Task

__all__ = ["Batch", "DevicePhase", "DeviceState", "Phase", "ReadyQueue", "TaskState"]


class Phase(IntEnum):
    """Where a task stands; the usual path first."""

    SUBMITTED = 0
    READY = 1
    PLACED = 2
    RUNNING = 3
    FINISHED = 4
    FAILED = 5


class DevicePhase(IntEnum):
    """Where a device stands."""

    STARTING = 0
    READY = 1
    LOST = 2
    GONE = 3


class Batch:
    """How many launches of one `Run` are still out."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0


class TaskState:
    """One unfinished task (or one whose lost result is computed again)."""

    __slots__ = (
        "attempt",
        "crashes",
        "deadline_s",
        "dependents",
        "device",
        "devices",
        "excluded",
        "group_left",
        "missing",
        "node",
        "out_of_memory",
        "phase",
        "predicted_s",
        "recomputed",
        "reserved_bytes",
        "result",
        "retries",
        "row",
        "serial",
        "task",
        "waits_for",
    )

    def __init__(self, task: Task) -> None:
        self.task = task
        self.phase = Phase.SUBMITTED
        self.attempt = 0
        self.device = -1
        self.devices: tuple[int, ...] = ()
        self.group_left = 0
        self.row: object = None
        self.predicted_s = 0.0
        self.deadline_s = 0.0
        self.waits_for = 0
        self.dependents: list[TaskState] | None = None
        self.missing = 0
        self.node = ""
        self.reserved_bytes = 0
        self.crashes = 0
        self.retries = 0
        self.out_of_memory = 0
        self.excluded: frozenset[int] = frozenset()
        self.serial = 0
        self.recomputed = False
        self.result: TaskFinished | None = None


class DeviceState:
    """One device of the fleet.

    Attributes
    ----------
    sent : attempts at the worker in their order, each with the batch that it travelled in
    placed : tasks that wait in the core, for their inputs or for room
    batches : `Run` commands that are not answered in full
    held_by : id of the group that waits for this device, 0 for none
    stopping : attempts that were ordered to stop and have not answered
    starts : times that its worker was lost since it last finished a task
    started_s : when the first of `sent` became the first
    """

    __slots__ = (
        "batches",
        "device",
        "finished",
        "held_by",
        "index",
        "name",
        "phase",
        "placed",
        "sent",
        "started_s",
        "starts",
        "stopping",
    )

    def __init__(self, device: Device, index: int) -> None:
        self.device = device
        self.name = device.id
        self.index = index
        self.phase = DevicePhase.STARTING
        self.sent: dict[int, tuple[TaskState, Batch]] = {}
        self.placed: deque[TaskState] = deque()
        self.batches = 0
        self.held_by = 0
        self.finished = 0
        self.starts = 0
        self.started_s = 0.0
        self.stopping: dict[int, int] = {}


class ReadyQueue:
    """Ready tasks by priority (higher first), then in the order of their arrival; retried ones go first.

    Taking a task from the middle leaves a mark that is skipped later, so that every operation is O(1)
    amortised.
    """

    __slots__ = ("_lanes", "_order", "count")

    def __init__(self) -> None:
        self._lanes: dict[int, deque[tuple[TaskState, int]]] = {}
        self._order: list[int] = []
        self.count = 0

    def push(self, state: TaskState, *, first: bool = False) -> None:
        """Add a task whose phase becomes READY."""
        priority = state.task.request.priority
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = deque()
            self._order = sorted(self._lanes, reverse=True)
        state.phase = Phase.READY
        state.serial += 1
        (lane.appendleft if first else lane.append)((state, state.serial))
        self.count += 1

    def remove(self, state: TaskState, phase: Phase) -> None:
        """Take a task out; its phase becomes the one given."""
        state.phase = phase
        self.count -= 1

    def __iter__(self) -> Iterator[TaskState]:
        """Give the ready tasks in order."""
        for priority in self._order:
            lane = self._lanes[priority]
            while lane and (lane[0][0].phase is not Phase.READY or lane[0][0].serial != lane[0][1]):
                lane.popleft()
            for state, serial in lane:
                if state.phase is Phase.READY and state.serial == serial:
                    yield state
