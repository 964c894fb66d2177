"""The messages between the program and its worker processes, and the channel of a group's member.

In: nothing. Out: tags and tuples that both sides agree on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from hetero.engines.local.pieces import Assembly, Piece, Talk, Whole
from hetero.engines.local.wire import Place, Wire
from hetero.engines.setup import WorkerSetup
from hetero.floor.errors import BadValueError, GroupError

__all__ = ["Cancelled", "GroupChannel", "Hello", "Job", "NoRoomError", "UnserialisableError", "granted"]

# On the data socket, in both directions.
HELLO, READY, BROKEN, RUN, DONE, ROOM, SAY, LEFT, HEARD, NOTES, LOG, LEVELS, OPENED = range(13)
# Of nested tasks, on the data socket too.
SUBMIT, SUSPENDED, RESUMED, RESULT, FETCH, RELEASE, UNWANT, WAKE = range(40, 48)
# On the control socket, in both directions.
WITHDRAW, CANCEL, IMPORT, EXPORT, DROP, SEGMENT, CLOSE, IMPORTED, EXPORTED, TROUBLE, PING, PONG = range(20, 32)
# How an attempt ended.
VALUE, RESIDENT, FAILED, WITHDRAWN, CANCELLED = range(1, 6)

CUT_OFF = 113
"""Exit code of a worker that finds its connection gone without the program having closed it."""

PREDICTED = 3
"""Position of `predicted_s` in a `Job`."""


class Hello(NamedTuple):
    """The first message to a worker.

    Attributes
    ----------
    running_slot : where in the pool the worker keeps the number of the attempt that it runs
    fleet : the devices to which tasks that its tasks submit may go; empty where these stay with it
    """

    device: Any
    parent: int
    origin_s: float
    pool_fd: int
    pool_bytes: int
    running_slot: int
    stderr_fd: int
    features: dict[str, Any]
    path: list[str]
    whole_path: bool
    talk: Talk
    setup: WorkerSetup
    authkey: bytes = b""
    fleet: tuple[Any, ...] = ()


class Job(NamedTuple):
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
    wire: Wire
    items: dict[int, Any]
    group: tuple[int, int] | None
    nest: tuple[Any, ...]


class Cancelled(BaseException):
    """Raised inside a task to stop it; no `Exception`, so that a task does not catch it by mistake."""


class UnserialisableError(Exception):
    """A result cannot be pickled."""


class NoRoomError(Exception):
    """Neither the pool nor the disk has room."""


def granted(answer: Any) -> list[Place]:
    """Return the places that were granted, or raise what stands in the way."""
    if isinstance(answer, str):
        raise NoRoomError(answer)
    return [Place(*place) for place in answer]


class GroupChannel:
    """How one member of a group talks; see `hetero.engines.base.Channel`.

    Parameters
    ----------
    send : sends a value to a rank
    receive : waits for the next (SAY, sender, content) or (LEFT, sender, reason); a content is a `Whole` or a `Piece`
    copy : copies the data of a piece into a buffer
    address : as in `Channel`
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        send: Callable[[int, Any], None],
        receive: Callable[[], Any],
        copy: Callable[[Any, memoryview], None],
        address: str = "127.0.0.1",
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.address = address
        self._send = send
        self._receive = receive
        self._copy = copy
        self._inbox: list[deque[Whole | Piece]] = [deque() for _ in range(world_size)]
        self._left: dict[int, str] = {}

    def send(self, value: Any, rank: int) -> None:
        """Send a value to the member of this rank."""
        self._check(rank)
        self._send(rank, value)

    def recv(self, rank: int) -> Any:
        """Wait for the next value from the member of this rank."""
        self._check(rank)
        assembly = Assembly(self._copy)
        while True:
            content = self._next(rank)
            if isinstance(content, Whole):
                return content.value
            if assembly.add(content):
                return assembly.value()

    def _next(self, rank: int) -> Whole | Piece:
        while not self._inbox[rank]:
            failed = next((reason for reason in self._left.values() if reason), self._left.get(rank))
            if failed is not None:
                raise GroupError(failed or f"rank {rank} ended without sending what rank {self.rank} waits for")
            tag, sender, content = self._receive()
            if tag == SAY:
                self._inbox[sender].append(content)
            else:
                self._left[sender] = content
        return self._inbox[rank].popleft()

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise BadValueError(f"there is no rank {rank!r}", remedy=f"ranks go from 0 to {self.world_size - 1}")
