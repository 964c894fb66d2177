"""The messages between the program and its worker processes.

In: nothing. Out: tags and tuples that both sides agree on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hetero.engines.shared.wire import BufferPlace, Message, WireValue
from hetero.engines.shared.worker_setup import WorkerSetup

if TYPE_CHECKING:
    from hetero.model.device import Device

__all__ = ["AttemptCall", "Cancelled", "Hello", "Message", "NoRoomError", "Transport", "UnserialisableError", "granted"]

# On the data socket, in both directions.
READY, BROKEN, RUN, DONE, LEASE, SEND, LEFT, RECEIVED, NOTES, LOG, LEVELS, OPENED, RESTART = range(13)
# Of nested tasks, on the data socket too.
SUBMIT, SUSPENDED, RESUMED, RESULT, FETCH, RELEASE, UNWANT, WAKE = range(40, 48)
# On the control socket, in both directions.
WITHDRAW, CANCEL, IMPORT, EXPORT, DROP, SEGMENT, CLOSE, IMPORTED, EXPORTED, TROUBLE, PING, PONG = range(20, 32)
# How an attempt ended.
VALUE, RESIDENT, FAILED, WITHDRAWN, CANCELLED = range(1, 6)

CUT_OFF = 113
"""Exit code of a worker that finds its connection gone without the program having closed it."""

PREDICTED = 3
"""Position of `predicted_s` in a `AttemptCall`."""


class Hello(NamedTuple):
    """The first message to a worker.

    Attributes
    ----------
    running_slot : where in the pool the worker keeps the number of the attempt that it runs
    fleet : the devices to which tasks that its tasks submit may go; empty where these stay with it
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
    items : item id to its wire and None, or to None and the key under which the worker keeps it
    group : rank and world size, None outside of groups
    nest : how it came to be, as in `hetero.engines.base.Nest`
    """

    seq: int
    task: int
    attempt: int
    predicted_s: float
    key: str
    task_key: str
    wire: WireValue
    items: dict[int, tuple[WireValue | None, tuple[object, ...]]]
    group: tuple[int, int] | None
    nest: tuple[object, ...]


class Transport(NamedTuple):
    """How the members of a group exchange values.

    Attributes
    ----------
    pooled : True sends large arrays through the shared-memory pool, False everything inside messages
    piece_bytes : bytes; the most that one message carries of a large array
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
