"""Messages between the members of one group task: routing, chunks of large values, and a member's channel.

In: what a member sends, or that it ended. Out: the same at the others. Only a receiving member waits.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hetero.engines.shared import messages as msg
from hetero.engines.shared.memory_pool import MemoryPool, Payload
from hetero.engines.shared.wire import BufferPlace, Message, dump, load
from hetero.floor.errors import BadValueError, GroupError, SerialisationError

__all__ = [
    "Assembly",
    "Chunk",
    "GroupChannel",
    "GroupMember",
    "GroupMessages",
    "GroupTask",
    "Whole",
    "cut",
]


class GroupMember(Protocol):
    """A worker that takes part."""

    def recv(self, task: int, sender: int, content: Whole | Chunk) -> None:
        """Take a value from another member."""
        ...

    def peer_left(self, task: int, sender: int, reason: str) -> None:
        """Learn that another member left; the reason is '' when it finished."""
        ...


class GroupChannel:
    """How one member of a group talks; see `hetero.engines.base.Channel`.

    Parameters
    ----------
    send
        Sends a value to a rank.
    receive
        Waits for the next (SAY, sender, content) or (LEFT, sender, reason); a content is a `Whole` or a `Chunk`.
    copy
        Copies the data of a piece into a buffer.
    address
        As in `Channel`.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        send: Callable[[int, object], None],
        receive: Callable[[], Message],
        copy: Callable[[object, memoryview], None],
        address: str = "127.0.0.1",
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.address = address
        self._send = send
        self._receive = receive
        self._copy = copy
        self._inbox: list[deque[Whole | Chunk]] = [deque() for _ in range(world_size)]
        self._left: dict[int, str] = {}

    def send(self, value: object, rank: int) -> None:
        """Send a value to the member of this rank."""
        self._check(rank)
        self._send(rank, value)

    def recv(self, rank: int) -> object:
        """Wait for the next value from the member of this rank."""
        self._check(rank)
        assembly = Assembly(self._copy)
        while True:
            content = self._next(rank)
            if isinstance(content, Whole):
                return content.value
            if assembly.add(content):
                return assembly.value()

    def _next(self, rank: int) -> Whole | Chunk:
        while not self._inbox[rank]:
            failed = next((reason for reason in self._left.values() if reason), self._left.get(rank))
            if failed is not None:
                raise GroupError(failed or f"rank {rank} ended without sending what rank {self.rank} waits for")
            tag, sender, content = self._receive()
            if tag == msg.SEND:
                self._inbox[sender].append(content)
            else:
                self._left[sender] = content
        return self._inbox[rank].popleft()

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise BadValueError(f"there is no rank {rank!r}", remedy=f"ranks go from 0 to {self.world_size - 1}")


class GroupTask:
    """One attempt of one group task. Nothing is passed on before every member was told to run."""

    def __init__(self, task: int, members: Sequence[GroupMember]) -> None:
        self.task = task
        self._members = list(members)
        self._left: set[int] = set()
        self.lock = threading.RLock()

    @property
    def size(self) -> int:
        """Return the number of members."""
        return len(self._members)

    def send(self, sender: int, rank: int, content: Whole | Chunk) -> None:
        """Pass a value on."""
        with self.lock:
            if rank not in self._left:
                self._members[rank].recv(self.task, sender, content)

    def leave(self, rank: int, reason: str) -> None:
        """Notify the others that a member has ended; the reason is '' when it finished."""
        with self.lock:
            self._left.add(rank)
            for other, member in enumerate(self._members):
                if other not in self._left:
                    member.peer_left(self.task, rank, reason)


class Whole(NamedTuple):
    """A value on its way within one process."""

    value: object


class Chunk(NamedTuple):
    """A part of a value on its way.

    Attributes
    ----------
    head
        Of the first piece: the pickle and the bytes of each large buffer; None for the others. A pickle that is large
        itself is None there, and the first of the buffers.
    buffer, offset
        Which buffer it is a part of, and from which byte on.
    left
        Pieces of this value that follow.
    data
        The bytes, or what stands for them on the way.
    """

    head: tuple[bytes | None, tuple[int, ...]] | None
    buffer: int
    offset: int
    left: int
    data: Any


def cut(value: object, piece_bytes: int) -> Iterator[Chunk]:
    """Cut a value into pieces whose data are parts of its own memory.

    Raises
    ------
    SerialisationError
        The value cannot be pickled.

    Examples
    --------
    >>> [piece.data.nbytes for piece in cut(np.zeros(125_000), 400_000)]
    [400000, 400000, 200000]
    >>> [(piece.left, piece.data) for piece in cut("a word", 1000)]
    [(0, b'')]
    """
    try:
        body, buffers = dump(value)
    except Exception as error:
        raise SerialisationError(
            f"what is sent to another member cannot be pickled: {error}", remedy="send plain values or arrays"
        ) from error
    head = (body, tuple([buffer.nbytes for buffer in buffers]))
    if not buffers:
        yield Chunk(head, 0, 0, 0, b"")
        return
    spans = [(number, at) for number, size in enumerate(head[1]) for at in range(0, size, piece_bytes)]
    for position, (number, at) in enumerate(spans, start=1):
        first = head if position == 1 else None
        yield Chunk(first, number, at, len(spans) - position, buffers[number][at : at + piece_bytes])


class Assembly:
    """Puts one value together.

    Parameters
    ----------
    copy
        Copies what stands for the data of a piece into a buffer.
    """

    def __init__(self, copy: Callable[[object, memoryview], None]) -> None:
        self._copy = copy
        self._body: bytes | None = b""
        self._buffers: list[memoryview] = []

    def add(self, piece: Chunk) -> bool:
        """Take the next piece; True when it was the last."""
        if piece.head is not None:
            self._body = piece.head[0]
            self._buffers = [np.empty(size, np.uint8).data for size in piece.head[1]]
        if self._buffers:
            self._copy(piece.data, self._buffers[piece.buffer][piece.offset :])
        return piece.left == 0

    def value(self) -> object:
        """Return the value; its arrays are writable and shared with nobody."""
        return load(self._body, self._buffers)


class GroupMessages:
    """Passes on to one worker what the groups tell it.

    Parameters
    ----------
    pool, transport
        Where large values lie on their way, and how they travel.
    counters
        Counts pieces, and pieces_in_pool.
    send
        Sends the worker a message.
    announce
        Called with what lies in shared memory, before the worker learns of it.
    """

    def __init__(
        self,
        pool: MemoryPool,
        transport: msg.Transport,
        counters: Counter[str],
        send: Callable[[msg.WorkerMessage], None],
        announce: Callable[[Payload], None],
    ) -> None:
        self._pool = pool
        self._transport = transport
        self._counters = counters
        self._send = send
        self._announce = announce
        self._attempts: dict[int, int] = {}
        self._unread: dict[BufferPlace, tuple[int, Payload]] = {}

    def join(self, task: int, seq: int) -> None:
        """Record that an attempt of the worker is a member of a group task."""
        self._attempts[task] = seq

    def leave(self, task: int, seq: int) -> None:
        """Record that it has ended: what it has not received yet, it never will."""
        self._attempts.pop(task, None)
        self._unread = {place: unread for place, unread in self._unread.items() if unread[0] != seq}

    def recv(self, task: int, sender: int, content: Whole | Chunk) -> None:
        """Pass on a value from another member."""
        seq = self._attempts.get(task)
        if seq is None:
            return
        most = self._transport.piece_bytes
        for piece in cut(content.value, most) if isinstance(content, Whole) else (content,):
            self._send(msg.PieceSent(seq, sender, self._placed(seq, piece)))

    def _placed(self, seq: int, piece: Chunk) -> tuple[object, ...]:
        """Return a piece as it travels to the worker: its data in the pool, kept until received, or as bytes."""
        counters, data = self._counters, piece.data
        counters["pieces"] += 1
        if isinstance(data, memoryview):
            data = Payload(b"", (self._pool.keep(data),)) if self._transport.pooled else bytes(data)
        if isinstance(data, Payload):
            counters["pieces_in_pool"] += 1
            place = data.blocks[0].place
            self._unread[place] = (seq, data)
            self._announce(data)
            data = tuple(place)
        return tuple(piece._replace(data=data))

    def received(self, place: BufferPlace) -> None:
        """Record that the worker has copied what lay there."""
        self._unread.pop(place, None)

    def peer_left(self, task: int, sender: int, reason: str) -> None:
        """Pass on that another member has ended."""
        seq = self._attempts.get(task)
        if seq is not None:
            self._send(msg.MemberLeft(seq, sender, reason))

    def clear(self) -> None:
        """Release everything: the worker is gone."""
        self._unread.clear()
