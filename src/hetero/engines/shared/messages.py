"""The messages between the program and its worker processes.

In: values. Out: tuples for a socket, a number in the place of the class, and back; outcomes of attempts as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hetero.engines.shared.wire import BufferPlace, Message, WireValue
from hetero.engines.shared.worker_setup import WorkerSetup

if TYPE_CHECKING:
    from hetero.floor.logs import Levels
    from hetero.model.annotations import TaskNote
    from hetero.model.device import Device

__all__ = [
    "AttemptCall",
    "AttemptEnd",
    "AttemptResumed",
    "AttemptSuspended",
    "AttemptsEnded",
    "CancelAttempt",
    "CancelNested",
    "Cancelled",
    "CloseSegment",
    "CopyFailed",
    "DeviceOpened",
    "DropValue",
    "ExportValue",
    "FetchNested",
    "Hello",
    "ImportValue",
    "LeaseGranted",
    "LeaseWanted",
    "LogLevels",
    "LogRecord",
    "MapSegment",
    "MemberLeft",
    "Message",
    "NestedEnded",
    "NestedSubmitted",
    "NoRoomError",
    "NotesTaken",
    "PieceRead",
    "PieceSent",
    "Ping",
    "Pong",
    "ReleaseNested",
    "RunAttempts",
    "Transport",
    "UnserialisableError",
    "ValueExported",
    "ValueImported",
    "WakeWorker",
    "WithdrawAttempt",
    "WorkerBroken",
    "WorkerMessage",
    "WorkerReady",
    "WorkerUnusable",
    "granted",
    "packed",
    "unpacked",
]

# How an attempt ended: the first part of an answer.
VALUE, RESIDENT, FAILED, WITHDRAWN, CANCELLED = range(1, 6)
# What a member of a group learns of another one.
SEND, LEFT = range(2)

CUT_OFF = 113
"""Exit code of a worker that finds its connection gone without the program having closed it."""


class Hello(NamedTuple):
    """The first message to a worker.

    Attributes
    ----------
    running_slot
        Where in the pool the worker keeps the number of the attempt that it runs.
    fleet
        The devices to which tasks that its tasks submit may go; empty where these stay with it.
    """

    device: Device
    parent: int
    origin_s: float
    pool_fd: int
    pool_bytes: int
    running_slot: int
    stderr_fd: int
    features: dict[str, object]
    path: list[str]
    whole_path: bool
    transport: Transport
    setup: WorkerSetup
    authkey: bytes = b""
    fleet: tuple[Device, ...] = ()


class AttemptCall(NamedTuple):
    """One attempt on its way to a worker.

    Attributes
    ----------
    items
        Item id to its wire and None, or to None and the key under which the worker keeps it.
    group
        Rank and world size, None outside of groups.
    nest
        How it came to be, as in `hetero.engines.base.Nest`.
    """

    seq: int
    task: int
    attempt: int
    predicted_s: float
    key: str
    task_key: str
    wire: WireValue
    items: dict[int, tuple[WireValue | None, object]]
    group: tuple[int, int] | None
    nest: tuple[object, ...]


class AttemptEnd(NamedTuple):
    """How an attempt ended.

    Attributes
    ----------
    seq
        Its number at the worker.
    started_s
        When it began, 0 where it did not.
    parts
        Fields of `Times`, none where it did not begin.
    answer
        VALUE and fields of a `WireValue`, RESIDENT and the bytes kept, FAILED and what `failure_of` takes, or
        WITHDRAWN or CANCELLED alone.
    """

    seq: int
    started_s: float
    parts: tuple[float, ...]
    answer: Message


# --- to a worker, on the data socket -----------------------------------------------------------------------


class RunAttempts(NamedTuple):
    """Run these, in their order.

    Attributes
    ----------
    functions
        Key and pickle of what the worker lacks; of what it may forget the pickle is empty.
    attempts
        Fields of an `AttemptCall` each.
    drops
        How many kept values must have been dropped before; 0 for any number.
    leases
        By number of an attempt, room for its result.
    """

    functions: list[tuple[str, bytes]]
    attempts: list[Message]
    drops: int
    leases: dict[int, list[BufferPlace]]


class LeaseGranted(NamedTuple):
    """The room that was asked for, or why there is none; on the control socket, too."""

    answer: list[BufferPlace] | str


class LogLevels(NamedTuple):
    """The levels of the program's loggers have changed."""

    levels: Levels


class NestedEnded(NamedTuple):
    """A nested task has ended, or its value has come.

    Attributes
    ----------
    number, task
        Its number at the worker, its id.
    seconds
        What it took, and what is nested in it, s.
    how
        VALUE, RESIDENT or FAILED.
    rest
        Of a value its wire, None for a kept one, and its key; of a failure what `failure_of` takes.
    """

    number: int
    task: int
    seconds: float
    how: int
    rest: Message


class WakeWorker(NamedTuple):
    """Look whether the attempt that waits was cancelled."""


# --- from a worker, on the data socket ---------------------------------------------------------------------


class DeviceOpened(NamedTuple):
    """The device is open; the worker initializes itself."""


class WorkerReady(NamedTuple):
    """It takes attempts; `python` is its version."""

    python: str


class WorkerBroken(NamedTuple):
    """It cannot work."""

    why: str


class WorkerUnusable(NamedTuple):
    """It ends, since a task left its device unusable."""

    task: int
    why: str


class AttemptsEnded(NamedTuple):
    """Fields of an `AttemptEnd` each."""

    rows: list[Message]


class LeaseWanted(NamedTuple):
    """Room in shared memory is wanted; on the control socket, too.

    Attributes
    ----------
    number
        Of the attempt, or of the order, below 0.
    sizes
        Bytes of each buffer.
    result
        True for the result of an attempt.
    """

    number: int
    sizes: list[int]
    result: bool


class NotesTaken(NamedTuple):
    """What attempts noted of their inside."""

    notes: list[TaskNote]


class LogRecord(NamedTuple):
    """A log record of a task, as `logs.Forwarder` makes it."""

    record: dict[str, object]


class NestedSubmitted(NamedTuple):
    """A task that an attempt submits.

    Attributes
    ----------
    seq
        Number of the attempt.
    number
        Of the task, at this worker.
    key, blob
        Of its function; the pickle is empty where the program has it.
    asked
        Fields of an `Asked`.
    wire
        Fields of a `WireValue`: its arguments.
    refs
        Numbers of the tasks whose results it is given.
    task_key
        Names its checkpoints.
    nest
        Fields of a `Nest`.
    """

    seq: int
    number: int
    key: str
    blob: bytes
    asked: Message
    wire: Message
    refs: tuple[int, ...]
    task_key: str
    nest: Message


class AttemptSuspended(NamedTuple):
    """An attempt waits for the nested task `awaits`, 0 for any of several."""

    seq: int
    since_s: float
    awaits: int


class AttemptResumed(NamedTuple):
    """An attempt goes on."""

    seq: int
    since_s: float


class FetchNested(NamedTuple):
    """The value of a nested task is wanted, which lies on another device."""

    number: int


class ReleaseNested(NamedTuple):
    """Nobody wants the results of these nested tasks any more."""

    numbers: list[int]


class CancelNested(NamedTuple):
    """A nested task is to be stopped."""

    number: int


# --- between the members of a group, both ways -------------------------------------------------------------


class PieceSent(NamedTuple):
    """A piece of a value from one member of a group to another.

    Attributes
    ----------
    seq
        Number of the attempt of this worker that is a member.
    rank
        Of the other one.
    piece
        Fields of a `Chunk`, its data as bytes or the fields of a `BufferPlace`.
    """

    seq: int
    rank: int
    piece: Message


class PieceRead(NamedTuple):
    """What lay at this place was copied; fields of a `BufferPlace`."""

    place: Message


class MemberLeft(NamedTuple):
    """Another member of a group has ended; `reason` is '' where it finished."""

    seq: int
    rank: int
    reason: str


# --- on the control socket ---------------------------------------------------------------------------------


class WithdrawAttempt(NamedTuple):
    """Return an attempt that has not begun."""

    seq: int


class CancelAttempt(NamedTuple):
    """Stop an attempt."""

    seq: int


class ImportValue(NamedTuple):
    """Copy a value to the device; `wire` has the fields of a `WireValue`."""

    order: int
    key: object
    wire: Message


class ExportValue(NamedTuple):
    """Copy a kept value to the host."""

    order: int
    key: object


class DropValue(NamedTuple):
    """Forget a kept value."""

    key: object


class MapSegment(NamedTuple):
    """A file of shared memory, whose descriptor comes with this message."""

    number: int
    nbytes: int


class CloseSegment(NamedTuple):
    """A file of shared memory is not used any more."""

    number: int


class Ping(NamedTuple):
    """Say that you are there."""


class Pong(NamedTuple):
    """It is there."""


class ValueImported(NamedTuple):
    """A value was copied to the device."""

    order: int
    started_s: float
    seconds: float


class ValueExported(NamedTuple):
    """A value was copied to the host; `wire` has the fields of a `WireValue`."""

    order: int
    started_s: float
    seconds: float
    wire: Message


class CopyFailed(NamedTuple):
    """An order to copy a value failed."""

    order: int
    why: str


WorkerMessage: TypeAlias = (
    Hello
    | RunAttempts
    | LeaseGranted
    | LogLevels
    | NestedEnded
    | WakeWorker
    | DeviceOpened
    | WorkerReady
    | WorkerBroken
    | WorkerUnusable
    | AttemptsEnded
    | LeaseWanted
    | NotesTaken
    | LogRecord
    | NestedSubmitted
    | AttemptSuspended
    | AttemptResumed
    | FetchNested
    | ReleaseNested
    | CancelNested
    | PieceSent
    | PieceRead
    | MemberLeft
    | WithdrawAttempt
    | CancelAttempt
    | ImportValue
    | ExportValue
    | DropValue
    | MapSegment
    | CloseSegment
    | Ping
    | Pong
    | ValueImported
    | ValueExported
    | CopyFailed
)

KINDS: tuple[type[WorkerMessage], ...] = WorkerMessage.__args__
"""The classes of messages; on the socket the place in here stands for the class."""

_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
_MAKERS = tuple(kind._make for kind in KINDS)


def packed(message: WorkerMessage) -> Message:
    """Return a message as it travels: pickle would name the class of a NamedTuple in each.

    Examples
    --------
    >>> unpacked(packed(WithdrawAttempt(7)))
    WithdrawAttempt(seq=7)
    """
    return (_NUMBERS[type(message)], *message)


def unpacked(came: Message) -> WorkerMessage:
    """Return the message that came as a tuple; raises anything where it is none."""
    return _MAKERS[came[0]](came[1:])


class Transport(NamedTuple):
    """How the members of a group exchange values.

    Attributes
    ----------
    pooled
        True sends large arrays through the shared-memory pool, False everything inside messages.
    piece_bytes
        Bytes; the most that one message carries of a large array.
    """

    pooled: bool = True
    piece_bytes: int = 4_000_000


class Cancelled(BaseException):
    """Raised inside a task to stop it; no `Exception`, so that a task does not catch it by mistake."""


class UnserialisableError(Exception):
    """A result cannot be pickled."""


class NoRoomError(Exception):
    """Neither the pool nor the disk has room."""


def granted(answer: str | Sequence[BufferPlace]) -> list[BufferPlace]:
    """Return the places that were granted, or raise what stands in the way."""
    if isinstance(answer, str):
        raise NoRoomError(answer)
    return [BufferPlace(*place) for place in answer]
