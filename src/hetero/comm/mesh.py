"""A mesh: one connection between any two members of a group, formed with keys and broken as one.

In: a way to exchange small values, an address. Out: sockets by rank. It must not carry what was not asked for.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, Queue

from hetero.comm.errors import GroupBrokenError
from hetero.floor import clock
from hetero.floor.listening import Admit, Listening, Verdict

__all__ = ["HEAD_BYTES", "Exchange", "Mesh"]

Exchange = Callable[[str, bytes, float], list[bytes]]
"""Tells the others a value under a word, and gives everybody's, by rank, within so many seconds."""

_KEY_BYTES = 32
_RANK_BYTES = 4
_LET_IN = b"+"
_AGAIN_S = 0.1
HEAD_BYTES = 96
"""What precedes the data of each collective on each connection: in words, what the sender takes part in."""
_LEAVES = b"leaves".ljust(HEAD_BYTES)


class Mesh:
    """The connections of one member.

    Attributes
    ----------
    rank, size : this member's number, and how many there are
    sockets : non-blocking, by rank of the member at the other end
    addresses : where each member is reached, by rank
    """

    def __init__(self, rank: int, sockets: dict[int, socket.socket], addresses: tuple[str, ...]) -> None:
        self.rank = rank
        self.size = len(addresses)
        self.sockets = sockets
        self.addresses = addresses
        for connection in sockets.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    @classmethod
    def form(cls, rank: int, address: str, exchange: Exchange, deadline_s: float, word: str = "mesh") -> Mesh:
        """Connect with every other member; all members call it.

        Parameters
        ----------
        address : of this member, on which the others reach it
        deadline_s : longest wait for the others, s
        word : under which addresses are exchanged; another one for each mesh of a group

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
        with Listening(listener, partial(_heard, key, came), _KEY_BYTES + _RANK_BYTES):
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
        """Say goodbye and close: the others may finish what needs nothing of this member any more."""
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


def _heard(key: bytes, came: Queue[tuple[int, socket.socket]], shown: bytes, _: str) -> Verdict:
    """Take in one connection; one that does not show the key is hung up on."""
    if len(shown) < _KEY_BYTES + _RANK_BYTES:
        return None
    if not hmac.compare_digest(shown[:_KEY_BYTES], key):
        return b""
    rank = int.from_bytes(shown[_KEY_BYTES:], "big")
    return Admit(lambda connection: came.put((rank, connection)), _LET_IN)


def _left_s(until_s: float) -> float:
    return max(until_s - clock.monotonic_s(), 0.001)
