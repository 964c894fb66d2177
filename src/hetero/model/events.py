"""Events: facts in the past tense, the only thing that the core is told.

In: engines, sessions and timers make them. Out: the core reads them, the trace keeps them.
They are tuples and not dataclasses because every task makes several: building a NamedTuple takes about a
third of the time of a frozen dataclass. `at_s` is the time at which the event was handed to the core.
"""

from __future__ import annotations

from typing import NamedTuple

from hetero.model.device import Device
from hetero.model.leases import LeaseRequest
from hetero.model.tasks import Failure, Task

__all__ = [
    "EVENTS",
    "CancelRequested",
    "DeviceAdded",
    "DeviceLost",
    "DeviceReady",
    "Event",
    "ItemPut",
    "ItemReleased",
    "LeaseAsked",
    "LeaseRefused",
    "LeaseReleased",
    "LeaseRenewed",
    "LoneTasks",
    "TaskFailed",
    "TaskFinished",
    "TaskResumed",
    "TaskSubmitted",
    "TaskSuspended",
    "TaskWithdrawn",
    "TimerFired",
    "TransferFailed",
    "TransferFinished",
    "UtilisationReported",
]


class TaskSubmitted(NamedTuple):
    """A task was handed in."""

    at_s: float
    task: Task


class CancelRequested(NamedTuple):
    """The user no longer wants a task; `waiting_only` lets it go on where it runs."""

    at_s: float
    task: int
    waiting_only: bool = False


class TaskFinished(NamedTuple):
    """An attempt finished; `nbytes` of result lie on memory node `node`.

    Attributes
    ----------
    started_s
        Seconds, when the device was taken for it.
    seconds
        Seconds that it took of the device until that was free again: loading, running, storing, waiting for memory;
        without emulated links, which are transfers, and without the time for which it was suspended.
    """

    at_s: float
    task: int
    attempt: int
    device: str
    started_s: float
    seconds: float
    nbytes: int
    node: str


class TaskFailed(NamedTuple):
    """An attempt failed; `started_s` and `seconds` are as in `TaskFinished`."""

    at_s: float
    task: int
    attempt: int
    device: str
    started_s: float
    seconds: float
    failure: Failure


class TaskWithdrawn(NamedTuple):
    """An engine gave back an attempt that it had not started."""

    at_s: float
    task: int
    attempt: int
    device: str


class TaskSuspended(NamedTuple):
    """A running attempt waits for tasks that it submitted: its device is free for others, which run on top of it.

    Attributes
    ----------
    since_s
        Seconds, when it gave its device up.
    awaits
        The task whose end lets it go on, 0 where more than one may.
    """

    at_s: float
    task: int
    attempt: int
    device: str
    since_s: float
    awaits: int


class TaskResumed(NamedTuple):
    """An attempt that was suspended has its device again, since `since_s`."""

    at_s: float
    task: int
    attempt: int
    device: str
    since_s: float


class DeviceAdded(NamedTuple):
    """A device belongs to the fleet from now on; its worker is starting."""

    at_s: float
    device: Device


class DeviceReady(NamedTuple):
    """A device's worker takes tasks."""

    at_s: float
    device: str


class DeviceLost(NamedTuple):
    """A device's worker went away; what it held is gone. A `permanent` loss is never started again.

    `task` is the one that ran as the worker died, 0 for none, -1 where the engine cannot tell.
    """

    at_s: float
    device: str
    reason: str
    permanent: bool
    task: int = -1


class UtilisationReported(NamedTuple):
    """A device is busy with others' work for this fraction of its time."""

    at_s: float
    device: str
    busy_frac: float


class ItemPut(NamedTuple):
    """A value of the user's was placed on a memory node as a data item."""

    at_s: float
    item: int
    nbytes: int
    node: str


class ItemReleased(NamedTuple):
    """Nobody outside holds a data item any more."""

    at_s: float
    item: int


class TransferFinished(NamedTuple):
    """A data item was copied from one memory node to another."""

    at_s: float
    item: int
    src: str
    dst: str
    nbytes: int
    started_s: float
    seconds: float


class TransferFailed(NamedTuple):
    """A copy did not happen."""

    at_s: float
    item: int
    src: str
    dst: str
    reason: str


class LeaseAsked(NamedTuple):
    """Devices are wanted together for a time; the number is the asker's, and never used again."""

    at_s: float
    lease: int
    wish: LeaseRequest


class LeaseRenewed(NamedTuple):
    """A lease shall run its time again from now."""

    at_s: float
    lease: int


class LeaseRefused(NamedTuple):
    """A device of a lease could not be had after all: the lease is rolled back, and waits for others."""

    at_s: float
    lease: int
    device: str
    reason: str


class LeaseReleased(NamedTuple):
    """A lease is given back; it ends once its open tasks have."""

    at_s: float
    lease: int


class TimerFired(NamedTuple):
    """A time that the core had asked for has come."""

    at_s: float


class LoneTasks(NamedTuple):
    """Tasks were sent one by one, each where the core said when it was asked, which hears of all of them now.

    No trace has it: where one is kept, every fact reaches the core by itself.

    Attributes
    ----------
    ended
        Tasks with how they finished, in their order.
    running
        The last one, which has not ended: when it was handed in, the task, its device.
    """

    at_s: float
    ended: tuple[tuple[Task, TaskFinished], ...]
    running: tuple[float, Task, str] | None


Event = (
    TaskSubmitted
    | CancelRequested
    | TaskFinished
    | TaskFailed
    | TaskWithdrawn
    | TaskSuspended
    | TaskResumed
    | DeviceAdded
    | DeviceReady
    | DeviceLost
    | UtilisationReported
    | ItemPut
    | ItemReleased
    | TransferFinished
    | TransferFailed
    | LeaseAsked
    | LeaseRenewed
    | LeaseRefused
    | LeaseReleased
    | TimerFired
    | LoneTasks
)

EVENTS: tuple[type, ...] = (
    TaskSubmitted,
    CancelRequested,
    TaskFinished,
    TaskFailed,
    TaskWithdrawn,
    TaskSuspended,
    TaskResumed,
    DeviceAdded,
    DeviceReady,
    DeviceLost,
    UtilisationReported,
    ItemPut,
    ItemReleased,
    TransferFinished,
    TransferFailed,
    LeaseAsked,
    LeaseRenewed,
    LeaseRefused,
    LeaseReleased,
    TimerFired,
)
"""Every kind of event that a trace may hold, in the order of the documentation."""
