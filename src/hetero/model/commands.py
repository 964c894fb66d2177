"""Commands: orders in the imperative, the only thing that the core says.

In: the core makes them. Out: the driver hands some to the engine and carries out the others itself.
"""

from __future__ import annotations

from typing import NamedTuple

from hetero.model.tasks import Failure

__all__ = [
    "COMMANDS",
    "Cancel",
    "Command",
    "Commit",
    "Discard",
    "Fail",
    "Free",
    "Launch",
    "LeaseChanged",
    "Recommit",
    "Run",
    "RunGroup",
    "SetTimer",
    "Split",
    "StartWorker",
    "Transfer",
    "Warn",
    "Withdraw",
]


class Launch(NamedTuple):
    """One attempt of one task, inside a `Run`.

    Attributes
    ----------
    over
        The task that waits at the device and on top of which it may run, 0 for the one that submitted it; traces leave
        it out.
    """

    task: int
    attempt: int
    predicted_s: float
    over: int = 0


class Run(NamedTuple):
    """Engine: run these attempts on the device, one after the other, in this order."""

    device: str
    launches: tuple[Launch, ...]


class RunGroup(NamedTuple):
    """Engine: run one attempt on all these devices together; position in `devices` is the rank.

    Every member reports by itself; the result of rank 0 is the result of the task.
    """

    devices: tuple[str, ...]
    launch: Launch


class Withdraw(NamedTuple):
    """Engine: give this attempt back if it has not started; else do nothing."""

    device: str
    task: int
    attempt: int


class Cancel(NamedTuple):
    """Engine: stop this running attempt, by replacing the worker where nothing else helps."""

    device: str
    task: int
    attempt: int


class Transfer(NamedTuple):
    """Engine: copy a data item from one memory node to another."""

    item: int
    src: str
    dst: str
    nbytes: int


class Free(NamedTuple):
    """Engine: drop the replica of a data item on a memory node."""

    item: int
    node: str


class StartWorker(NamedTuple):
    """Engine: start a new worker for a device whose worker was lost."""

    device: str


class Discard(NamedTuple):
    """Engine: drop the result of an attempt that nobody wants any more."""

    device: str
    task: int
    attempt: int


class Commit(NamedTuple):
    """Driver: this attempt's result is the result of the task; said once per task."""

    task: int
    attempt: int
    device: str


class Recommit(NamedTuple):
    """Driver: the result of a committed task, lost with its device, is there again from this attempt."""

    task: int
    attempt: int
    device: str


class Fail(NamedTuple):
    """Driver: the task failed for good; said once per task."""

    task: int
    failure: Failure


class Split(NamedTuple):
    """Driver: cut the task into smaller ones and give their merged result as its result."""

    task: int


class LeaseChanged(NamedTuple):
    """Driver: tell who asked for a lease how it stands now."""

    lease: int
    phase: str
    devices: tuple[str, ...]
    granted_s: float
    expires_s: float
    reason: str


class SetTimer(NamedTuple):
    """Driver: send `TimerFired` at this time."""

    at_s: float


class Warn(NamedTuple):
    """Driver: tell the user."""

    text: str


Command = (
    Run
    | RunGroup
    | Withdraw
    | Cancel
    | Transfer
    | Free
    | StartWorker
    | Discard
    | Commit
    | Recommit
    | Fail
    | Split
    | LeaseChanged
    | SetTimer
    | Warn
)

COMMANDS: tuple[type, ...] = (
    Run,
    RunGroup,
    Withdraw,
    Cancel,
    Transfer,
    Free,
    StartWorker,
    Discard,
    Commit,
    Recommit,
    Fail,
    Split,
    LeaseChanged,
    SetTimer,
    Warn,
)
"""Every kind of command, in the order of the documentation."""
