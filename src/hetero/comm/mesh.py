"""A mesh: one connection between any two members of a group, and the steps of a collective carried out over it.

In: a way to exchange small values, an address; a member's steps and a row of numbers. Out: sockets by rank; the row
after the last step. It does not choose what is sent.
"""

from __future__ import annotations

import hmac
import json
import secrets
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, Queue

from hetero.comm.errors import DisagreementError, GroupBrokenError
from hetero.comm.lines import end_when_cut
from hetero.comm.rows import Op, TensorRow
from hetero.floor import clock
from hetero.floor.listening import Admit, Listening, Verdict
from hetero.plan.collectives.steps import Step

__all__ = [
    "HEAD_BYTES",
    "Exchange",
    "Mesh",
    "run_steps",
]

Exchange = Callable[[str, bytes, float], list[bytes]]
"""Tells the others a value under a word, and gives everybody's, by rank, within so many seconds."""

_KEY_BYTES = 32
_RANK_BYTES = 4
_LET_IN = b"+"
_AGAIN_S = 0.1
_SILENT_S = 15.0
"""After so long without an answer the host of another member counts as gone; one that is stopped answers."""
HEAD_BYTES = 96
"""What precedes the data of each collective on each connection: in words, what the sender takes part in."""
_LEAVES = b"leaves".ljust(HEAD_BYTES)


class Mesh:
    """The connections of one member.

    Attributes
    ----------
    rank, size
        This member's number, and how many there are.
    sockets
        Non-blocking, by rank of the member at the other end.
    addresses
        Where each member is reached, by rank.
    """

    def __init__(self, rank: int, sockets: dict[int, socket.socket], addresses: tuple[str, ...]) -> None:
        self.rank = rank
        self.size = len(addresses)
        self.sockets = sockets
        self.addresses = addresses
        for connection in sockets.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end_when_cut(connection, _SILENT_S)
            connection.setblocking(False)

    @classmethod
    def form(cls, rank: int, address: str, exchange: Exchange, deadline_s: float, word: str = "mesh") -> Mesh:
        """Connect with every other member; all members call it.

        Parameters
        ----------
        address
            Of this member, on which the others reach it.
        deadline_s
            Longest wait for the others, s.
        word
            Under which addresses are exchanged; another one for each mesh of a group.

        Raises
        ------
        GroupBrokenError
            Not all of them came.
        """
        until_s = clock.monotonic_s() + deadline_s
        key = secrets.token_bytes(_KEY_BYTES)
        came: Queue[tuple[int, socket.socket]] = Queue()
        listener = socket.create_server((address, 0), backlog=128)
        mine = json.dumps([address, listener.getsockname()[1], key.hex()]).encode()
        sockets: dict[int, socket.socket] = {}
        with Listening(listener, partial(_check_key, key, came), _KEY_BYTES + _RANK_BYTES):
            members = [json.loads(each) for each in exchange(word, mine, deadline_s)]
            try:
                for other in range(rank):
                    sockets[other] = _dial(rank, members[other], until_s)
                while len(sockets) < len(members) - 1:
                    other, connection = came.get(timeout=_left_s(until_s))
                    sockets[other] = connection
            except (OSError, Empty) as error:
                for connection in (*sockets.values(), *[each for _, each in came.queue]):
                    connection.close()
                why = "not all members came in time" if isinstance(error, Empty) else error
                raise GroupBrokenError(f"the group of {len(members)} did not come about: {why}") from error
        return cls(rank, sockets, tuple(each[0] for each in members))

    def abort(self) -> None:
        """Shut all connections down, so that whoever waits on one of them is freed; safe from any thread."""
        for connection in self.sockets.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """Announce the end and close: the others may finish what needs nothing of this member any more."""
        for connection in self.sockets.values():
            with suppress(OSError):
                connection.send(_LEAVES)
            connection.close()
        self.sockets = {}


def _dial(rank: int, member: tuple[str, int, str], until_s: float) -> socket.socket:
    """Connect and be let in; one who was pushed out by a crowd tries again."""
    while True:
        try:
            return _let_in(rank, member, until_s)
        except (ConnectionResetError, BrokenPipeError):
            if clock.monotonic_s() + _AGAIN_S > until_s:
                raise
            clock.sleep(_AGAIN_S)


def _let_in(rank: int, member: tuple[str, int, str], until_s: float) -> socket.socket:
    host, port, key = member
    connection = socket.create_connection((host, port), _left_s(until_s))
    try:
        connection.settimeout(_left_s(until_s))
        connection.sendall(bytes.fromhex(key) + rank.to_bytes(_RANK_BYTES, "big"))
        if connection.recv(len(_LET_IN)) != _LET_IN:
            raise ConnectionResetError("a member hung up")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_key(key: bytes, came: Queue[tuple[int, socket.socket]], shown: bytes, _: str) -> Verdict:
    """Take in one connection; one that does not show the key is hung up on."""
    if len(shown) < _KEY_BYTES + _RANK_BYTES:
        return None
    if not hmac.compare_digest(shown[:_KEY_BYTES], key):
        return b""
    rank = int.from_bytes(shown[_KEY_BYTES:], "big")
    return Admit(lambda connection: came.put((rank, connection)), _LET_IN)


def _left_s(until_s: float) -> float:
    return max(until_s - clock.monotonic_s(), 0.001)


_LOOK_S = 0.1
_WAKE_BYTES = 64 * 1024


def run_steps(mesh: Mesh, steps: Sequence[Step], row: TensorRow, words: str, op: Op, deadline_s: float) -> None:
    """Do one member's steps.

    Parameters
    ----------
    words
        Says what this member takes part in; all members must say the same.
    op
        How received numbers are combined with the member's own.
    deadline_s
        Longest time in which no byte moves, s.

    Raises
    ------
    GroupBrokenError
        A member died, left, or nothing came within the deadline.
    DisagreementError
        Another member takes part in something else.
    """
    if not steps:
        return
    with selectors.DefaultSelector() as selector:
        run = _Run(mesh, steps, row, words, op, selector)
        moved_s = clock.monotonic_s()
        while run.left:
            ready = selector.select(_LOOK_S)
            for key, events in ready:
                run.handle(key.data, events)
            if not ready:
                run.poll()
            now_s = clock.monotonic_s()
            if run.moved:
                run.moved, moved_s = False, now_s
            elif now_s - moved_s > deadline_s:
                raise GroupBrokenError(f"nothing came from {run.awaited()} for {deadline_s:g} s")


class _Peer:
    """What is still to be exchanged with one other member."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank = rank
        self.connection = connection
        self.sends: deque[int] = deque()
        self.receives: deque[int] = deque()
        self.out = memoryview(b"")
        self.sending = -1
        self.into = memoryview(b"")
        self.head: bytearray | None = bytearray(HEAD_BYTES)
        self.early = False
        self.interest = 0
        self._woken_at = 0

    def wake_at(self, nbytes: int) -> None:
        """Ask to be told only when so much has come, where the system can do that."""
        if nbytes != self._woken_at:
            self._woken_at = nbytes
            with suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)


class _Run:
    def __init__(
        self, mesh: Mesh, steps: Sequence[Step], row: TensorRow, words: str, op: Op, selector: selectors.BaseSelector
    ) -> None:
        self._steps = steps
        self._row = row
        self._op = op
        self._words = words.encode()[:HEAD_BYTES].ljust(HEAD_BYTES)
        self._selector = selector
        self._done = bytearray(len(steps))
        self._waiting: dict[int, list[_Peer]] = {}
        self._peers = {rank: _Peer(rank, connection) for rank, connection in mesh.sockets.items()}
        self.left = len(steps)
        self.moved = False
        most_bytes = 0
        for index, step in enumerate(steps):
            peer = self._peers[step.peer]
            (peer.sends if step.action == "send" else peer.receives).append(index)
            if step.after >= 0:
                self._waiting.setdefault(step.after, []).append(peer)
            if step.action == "add":
                most_bytes = max(most_bytes, (step.end - step.begin) * row.itemsize)
        self._scratch = {rank: bytearray(most_bytes) for rank in {s.peer for s in steps if s.action == "add"}}
        for peer in self._peers.values():
            peer.out = memoryview(self._words) if peer.sends else peer.out
            self._watch(peer)

    def awaited(self) -> str:
        """Name the members of whom something is missing."""
        ranks = [str(peer.rank) for peer in self._peers.values() if peer.receives or peer.sends]
        return f"rank {', '.join(ranks)}"

    def handle(self, peer: _Peer, events: int) -> None:
        """Move what can be moved on one connection."""
        try:
            if events & selectors.EVENT_READ:
                with suppress(BlockingIOError):
                    self._receive(peer)
            if events & selectors.EVENT_WRITE:
                with suppress(BlockingIOError):
                    self._send(peer)
        except OSError as error:
            raise GroupBrokenError(f"rank {peer.rank} is gone: {error}", rank=peer.rank) from error
        self._watch(peer)

    def poll(self) -> None:
        """Take in what is too little to be told of."""
        for peer in self._peers.values():
            self.handle(peer, selectors.EVENT_READ)

    def _is_ready(self, queue: deque[int]) -> bool:
        after = self._steps[queue[0]].after if queue else -1
        return bool(queue) and (after < 0 or bool(self._done[after]))

    def _watch(self, peer: _Peer) -> None:
        """Wait for what this connection can do next; an idle one is watched too, for its end."""
        interest = 0
        if self._is_ready(peer.receives):
            interest |= selectors.EVENT_READ
            peer.wake_at(min(self._place_bytes(peer), _WAKE_BYTES))
        elif not peer.early:
            interest |= selectors.EVENT_READ
        if peer.out or self._is_ready(peer.sends):
            interest |= selectors.EVENT_WRITE
        if interest == peer.interest:
            return
        if not peer.interest:
            self._selector.register(peer.connection, interest, peer)
        elif not interest:
            self._selector.unregister(peer.connection)
        else:
            self._selector.modify(peer.connection, interest, peer)
        peer.interest = interest

    # --- sending -------------------------------------------------------------------------------------------

    def _send(self, peer: _Peer) -> None:
        while True:
            if not peer.out:
                if peer.sending >= 0:
                    index, peer.sending = peer.sending, -1
                    peer.sends.popleft()
                    self._finish(index)
                if not self._is_ready(peer.sends):
                    return
                peer.sending = peer.sends[0]
                peer.out = self._range(peer.sending)
            sent = peer.connection.send(peer.out)
            peer.out = peer.out[sent:]
            self.moved = True

    def _range(self, index: int) -> memoryview:
        step, size = self._steps[index], self._row.itemsize
        return self._row.data[step.begin * size : step.end * size]

    # --- receiving -----------------------------------------------------------------------------------------

    def _receive(self, peer: _Peer) -> None:
        if not self._is_ready(peer.receives):
            peer.early = True
            if not peer.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionError("it closed the connection")
            return
        peer.early = False
        while self._is_ready(peer.receives):
            if not peer.into:
                peer.into = self._place(peer)
            got = peer.connection.recv_into(peer.into)
            if not got:
                raise ConnectionError("it closed the connection")
            peer.into = peer.into[got:]
            self.moved = True
            if not peer.into:
                self._received(peer)

    def _place(self, peer: _Peer) -> memoryview:
        """Return where the next bytes of this connection belong."""
        if peer.head is not None:
            return memoryview(peer.head)
        step = self._steps[peer.receives[0]]
        if step.action == "copy":
            return self._range(peer.receives[0])
        return memoryview(self._scratch[peer.rank])[: (step.end - step.begin) * self._row.itemsize]

    def _place_bytes(self, peer: _Peer) -> int:
        """Return how many bytes are missing there."""
        if peer.into:
            return len(peer.into)
        if peer.head is not None:
            return HEAD_BYTES
        step = self._steps[peer.receives[0]]
        return (step.end - step.begin) * self._row.itemsize

    def _received(self, peer: _Peer) -> None:
        if peer.head is not None:
            self._compare(peer.rank, bytes(peer.head))
            peer.head = None
            return
        index = peer.receives.popleft()
        step = self._steps[index]
        if step.action == "add":
            nbytes = (step.end - step.begin) * self._row.itemsize
            self._row.combine(step.begin, step.end, memoryview(self._scratch[peer.rank])[:nbytes], self._op)
        self._finish(index)

    def _compare(self, rank: int, head: bytes) -> None:
        if head == self._words:
            return
        theirs, mine = head.decode(errors="replace").strip(), self._words.decode(errors="replace").strip()
        if theirs == "leaves":
            raise GroupBrokenError(f"rank {rank} has left before {mine}", rank=rank)
        raise DisagreementError(
            f"rank {rank} takes part in {theirs}, and this rank in {mine}",
            remedy="all members call the same collectives in the same order, with equal shapes and dtypes",
        )

    def _finish(self, index: int) -> None:
        self._done[index] = 1
        self.left -= 1
        for peer in self._waiting.get(index, ()):
            self._watch(peer)
