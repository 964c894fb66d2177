"""Sums through memory that the members of one host share: each adds up its part of the rows of all.

In: a mesh for signals, a meeting, rows of numbers. Out: sums, the same bits on every member, or GroupBrokenError.
It must not move a row through a socket: only words of five bytes travel.
"""

from __future__ import annotations

import json
import mmap
import secrets
import selectors
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from hetero.comm.errors import DisagreementError, GroupBrokenError
from hetero.comm.mesh import Exchange, Mesh
from hetero.comm.rows import Op, TensorRow
from hetero.floor import clock
from hetero.floor.errors import EngineError
from hetero.floor.platform import SharedMemory, open_shared, shared_memory, shared_path

__all__ = ["PendingSum", "SharedRow", "SharedSums"]

_BYTES = 1 << 27
_TOKEN_BYTES = 32
_LINE_BYTES = 64
_WORD_BYTES = 5
_HERE, _ADDED = b"ha"
_LOOK_S = 5e-5


@dataclass(slots=True)
class _SharedPeer:
    """What was received from one other member; `end` says how it left, '' while it is there."""

    rank: int
    end: str = ""
    here: deque[int] = field(default_factory=deque)
    here_count: int = 0
    added_count: int = 0
    rest: bytes = b""


class _Place(NamedTuple):
    """Where a sum lies: its number, counted from 1 and the same on every member, and the bytes from begin to end."""

    number: int
    begin: int
    end: int

    def overlaps(self, begin: int, end: int) -> bool:
        """Return whether it has bytes of another range."""
        return self.begin < end and begin < self.end


class SharedSums:
    """One member's end of the memory that a group shares.

    Parameters
    ----------
    mesh
        Of connections that nobody else uses.
    memory, view
        What all members share, and where it is mapped.

    Notes
    -----
    Each sum that is under way has a place in the memory, with a row for every member. A member copies its row in and
    says so; when all have, it adds up its part of the rows, in the order of ranks, into the first of them, and says
    so; when all have, it copies the sum out. A place is taken again when every member has copied out what lay there,
    which each notes at the beginning of the memory. All members choose the same places, since they start and end the
    same sums in the same order.
    """

    def __init__(self, mesh: Mesh, memory: SharedMemory, view: mmap.mmap) -> None:
        self._mesh = mesh
        self._memory = memory
        self._map = view
        self._bytes = memoryview(view)
        self._begin = _padded(_TOKEN_BYTES + 8 * mesh.size)
        self._peers = {rank: _SharedPeer(rank) for rank in mesh.sockets}
        self._selector = selectors.DefaultSelector()
        for rank, connection in mesh.sockets.items():
            self._selector.register(connection, selectors.EVENT_READ, rank)
        self._started = 0
        self._open: deque[PendingSum] = deque()
        self._past: deque[_Place] = deque()

    @classmethod
    def form(cls, mesh: Mesh, exchange: Exchange, deadline_s: float) -> SharedSums | None:
        """Make the memory and let everybody find it; None on all members where one of them cannot.

        Parameters
        ----------
        exchange
            How the members tell each other where it is.
        deadline_s
            Longest wait for the others, s.

        Raises
        ------
        GroupBrokenError
            Not all members came.
        """
        memory, offer = _made() if mesh.rank == 0 else (None, b"")
        path, token = json.loads(exchange("shared", offer, deadline_s)[0] or b'["", ""]')
        if mesh.rank and path:
            memory = open_shared(path, _BYTES)
        view = None if memory is None else memory.map()
        found = view is not None and view[:_TOKEN_BYTES].hex() == token
        everywhere = all(exchange("shared found", b"1" if found else b"", deadline_s))
        if memory is not None and view is not None:
            if everywhere:
                return cls(mesh, memory, view)
            view.close()
            memory.close()
        mesh.leave()
        return None

    def has_room(self, nbytes: int) -> bool:
        """Return whether a sum of rows of so many bytes can start beside those under way, as on all members."""
        return self._place(nbytes) + _padded(nbytes) * self._mesh.size <= len(self._bytes)

    def _place(self, nbytes: int) -> int:
        """Return the first place that holds no sum under way, nor the one that ended last: others may still copy it."""
        need, begin = _padded(nbytes) * self._mesh.size, self._begin
        taken = [*(one.place for one in self._open), *list(self._past)[-1:]]
        for place in sorted(taken, key=lambda place: place.begin):
            if place.overlaps(begin, begin + need):
                begin = place.end
        return begin

    def start(self, row: TensorRow, words: str, op: Op, deadline_s: float) -> PendingSum:
        """Start to replace a row by the sum, maximum or minimum of all; there must be room.

        Parameters
        ----------
        words
            Says what this member takes part in; all members must say the same.

        Raises
        ------
        GroupBrokenError
            A member died, left, or did not come within the deadline.
        """
        one = self.reserve(row, words, op, deadline_s)
        one.slot(self._mesh.rank)[:] = row.data
        self.notify_here(one)
        return one

    def reserve(self, row: TensorRow, words: str, op: Op, deadline_s: float) -> PendingSum:
        """Take a place for rows as long as this one, which are written there: see `SharedRow`; there must be room.

        Raises
        ------
        GroupBrokenError
            A member is gone, or did not copy out in time what lay there.
        """
        begin = self._place(len(row.data))
        end = begin + _padded(len(row.data)) * self._mesh.size
        self._wait_until_free(begin, end, deadline_s)
        self._started += 1
        one = PendingSum(self, _Place(self._started, begin, end), row, words, op, deadline_s)
        self._open.append(one)
        return one

    def _wait_until_free(self, begin: int, end: int, deadline_s: float) -> None:
        """Wait until every member has copied out the sums that lay in a place."""
        last = max((place.number for place in self._past if place.overlaps(begin, end)), default=0)
        until_s = clock.monotonic_s() + deadline_s
        while any(self._copied_out(rank) < last for rank in self._peers):
            if clock.monotonic_s() > until_s or any(peer.end for peer in self._peers.values()):
                raise GroupBrokenError("a member is gone that has not taken its sum")
            self._receive(0.0)
            clock.sleep(_LOOK_S)
        while self._past and self._past[0].number <= last:
            self._past.popleft()

    def _copied_out(self, rank: int) -> int:
        at = _TOKEN_BYTES + 8 * rank
        return int.from_bytes(self._bytes[at : at + 8], "little")

    def end(self, one: PendingSum) -> None:
        """Wait for a sum that was started, and for those before it.

        Raises
        ------
        GroupBrokenError
            A member died, left, or did not come within the deadline.
        DisagreementError
            Another member takes part in something else.
        """
        while one in self._open:
            first = self._open[0]
            self.meet(first)
            self.add_up(first)
            first.row.data[:] = first.slot(0)
            self.release(first)

    def meet(self, one: PendingSum) -> None:
        """Wait until the rows of all are there, after what was started before; raises as `end` does."""
        while self._open[0] is not one:
            self.end(self._open[0])
        self._await(lambda peer: peer.here_count >= one.place.number, one.deadline_s)
        mine = crc32(one.words.encode())
        for peer in self._peers.values():
            if peer.here.popleft() != mine:
                raise DisagreementError(
                    f"rank {peer.rank} takes part in something else than {one.words}, which is what this rank does",
                    remedy="all members call the same collectives in the same order, with equal shapes and dtypes",
                )

    def notify_added(self) -> None:
        """Notify the others that this member has added up its part, or that nobody is to wait for it."""
        self._notify(_ADDED, 0)

    def add_up(self, one: PendingSum) -> None:
        """Put the sum of the rows, which are all there, into the first of them; raises as `end` does."""
        one.add_up(self._mesh.rank, self._mesh.size)
        self.notify_added()
        self._await(lambda peer: peer.added_count >= one.place.number, one.deadline_s)

    def notify_here(self, one: PendingSum) -> None:
        """Notify the others that this member's row is there, and what it takes part in."""
        self._notify(_HERE, crc32(one.words.encode()))

    def release(self, one: PendingSum) -> None:
        """Record that this member needs nothing of a place any more; it is the first of those under way."""
        at = _TOKEN_BYTES + 8 * self._mesh.rank
        self._bytes[at : at + 8] = one.place.number.to_bytes(8, "little")
        self._past.append(self._open.popleft().place)

    # --- signals -------------------------------------------------------------------------------------------

    def _notify(self, what: int, number: int) -> None:
        word = bytes([what]) + number.to_bytes(4, "big")
        for rank, connection in self._mesh.sockets.items():
            try:
                connection.sendall(word)
            except OSError as error:
                raise GroupBrokenError(f"rank {rank} is gone: {error}", rank=rank) from error

    def _await(self, said: Callable[[_SharedPeer], bool], deadline_s: float) -> None:
        """Receive from the others until each has sent something."""
        until_s = clock.monotonic_s() + deadline_s
        while missing := [peer for peer in self._peers.values() if not said(peer)]:
            left_s = until_s - clock.monotonic_s()
            rank = missing[0].rank
            for peer in missing:
                if peer.end:
                    raise GroupBrokenError(f"rank {peer.rank} {peer.end}", rank=peer.rank)
            if left_s <= 0.0:
                raise GroupBrokenError(f"nothing came from rank {rank} for {deadline_s:g} s", rank=rank)
            self._receive(left_s)

    def _receive(self, wait_s: float) -> None:
        """Take in what comes; what somebody said before it left still counts."""
        for key, _ in self._selector.select(wait_s):
            peer = self._peers[key.data]
            try:
                came = self._mesh.sockets[peer.rank].recv(4096)
            except BlockingIOError:
                continue
            except OSError as error:
                came, peer.end = b"", f"is gone: {error}"
            if not came:
                peer.end = peer.end or "is gone: it closed the connection"
                self._selector.unregister(key.fileobj)
            self._take_in(peer, peer.rest + came)

    def _take_in(self, peer: _SharedPeer, came: bytes) -> None:
        whole = len(came) - len(came) % _WORD_BYTES
        for begin in range(0, whole, _WORD_BYTES):
            if came[begin] == _HERE:
                peer.here_count += 1
                peer.here.append(int.from_bytes(came[begin + 1 : begin + _WORD_BYTES], "big"))
            elif came[begin] == _ADDED:
                peer.added_count += 1
            else:
                peer.end = "has left"
                return
        peer.rest = came[whole:]

    # --- its end -------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Free every member that waits here."""
        self._mesh.abort()

    def leave(self) -> None:
        """Announce the end and release the memory."""
        self._selector.close()
        self._mesh.leave()
        self._open.clear()
        self._past.clear()
        with suppress(BufferError):  # whoever still reads a `SharedRow` keeps the memory; it goes with the last view
            self._bytes.release()
            self._map.close()
        self._memory.close()


@dataclass(slots=True, eq=False)
class PendingSum:
    """A sum that has been started and not ended.

    Attributes
    ----------
    place
        Where it lies.
    row
        This member's.
    words, op, deadline_s
        As given to `SharedSums.start`.
    """

    _sums: SharedSums
    place: _Place
    row: TensorRow
    words: str
    op: Op
    deadline_s: float

    def wait(self) -> None:
        """Return when the row holds the sum; raises as `SharedSums.end` does."""
        self._sums.end(self)

    def slot(self, rank: int) -> memoryview:
        """Return where the row of a member lies."""
        nbytes = len(self.row.data)
        begin = self.place.begin + rank * _padded(nbytes)
        return self._sums._bytes[begin : begin + nbytes]

    def add_up(self, part: int, parts: int) -> None:
        """Put one part of the sum of all rows into the first of them, in the order of ranks."""
        begin, end = (self.row.count * edge // parts for edge in (part, part + 1))
        if begin == end:
            return
        size = self.row.itemsize
        total = self.row.over(self.slot(0))
        for rank in range(1, parts):
            total.combine(begin, end, self.slot(rank)[begin * size : end * size], self.op)


class SharedRow:
    """A row that lies in the memory of a group beside those of the others: neither copied in nor out.

    A member writes `mine`, sends it, meets the others and reads; a row is released before or after others, in the
    order in which they were made.

    Parameters
    ----------
    breaking
        In what a failure frees the other members.

    Attributes
    ----------
    mine
        The bytes of this member's row.
    """

    def __init__(
        self,
        sums: SharedSums,
        one: PendingSum,
        rank: int,
        size: int,
        breaking: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._sums, self._one, self._size, self._breaking = sums, one, size, breaking
        self._is_met = self._is_added = False
        self.mine = one.slot(rank)

    def send(self) -> None:
        """Show the others this member's row."""
        with self._breaking():
            self._sums.notify_here(self._one)

    def meet(self) -> list[memoryview]:
        """Return the rows of all members, in the order of ranks, when all have sent theirs."""
        if not self._is_met:
            with self._breaking():
                self._sums.meet(self._one)
        self._is_met = True
        return [self._one.slot(rank) for rank in range(self._size)]

    def total(self) -> memoryview:
        """Return the sum of all rows, after `meet`; each member adds up its part, so all must call it, or none.

        It lies where the first row lay: others may begin to write there as soon as they have met.
        """
        if not self._is_added:
            with self._breaking():
                self._sums.add_up(self._one)
        self._is_added = True
        return self._one.slot(0)

    def release(self) -> None:
        """Record that this member reads the rows no more: others may write there.

        A member that has left after it read them all is not missed; whoever needs it again notices then.
        """
        if not self._is_added:
            with suppress(GroupBrokenError):
                self._sums.notify_added()
        self._sums.release(self._one)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _LINE_BYTES) * _LINE_BYTES


def _made() -> tuple[SharedMemory | None, bytes]:
    """Make memory with a token at its beginning, and say where the others find it."""
    try:
        memory = shared_memory(_BYTES)
    except EngineError:
        return None, b""
    token = secrets.token_bytes(_TOKEN_BYTES)
    with memory.map() as view:
        view[:_TOKEN_BYTES] = token
    return memory, json.dumps([shared_path(memory), token.hex()]).encode()
