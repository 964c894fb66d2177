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

from hetero.comm.errors import GroupBrokenError
from hetero.floor import clock

__all__ = ["HEAD_BYTES", "Exchange", "Mesh"]

Exchange = Callable[[str, bytes, float], list[bytes]]
"""Tells the others a value under a word, and gives everybody's, by rank, within so many seconds."""

_KEY_BYTES = 32
_RANK_BYTES = 4
_HELLO_S = 5.0
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
        with socket.create_server((address, 0), backlog=128) as listener:
            key = secrets.token_bytes(_KEY_BYTES)
            mine = json.dumps([address, listener.getsockname()[1], key.hex()]).encode()
            members = [json.loads(each) for each in exchange(word, mine, deadline_s)]
            sockets: dict[int, socket.socket] = {}
            try:
                for other in range(rank):
                    sockets[other] = _dial(rank, members[other], until_s)
                while len(sockets) < len(members) - 1:
                    _accept(listener, key, sockets, until_s)
            except OSError as error:
                for connection in sockets.values():
                    connection.close()
                raise GroupBrokenError(f"the group of {len(members)} did not come about: {error}") from error
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
    host, port, key = member
    connection = socket.create_connection((host, port), _left_s(until_s))
    connection.sendall(bytes.fromhex(key) + rank.to_bytes(_RANK_BYTES, "big"))
    return connection


def _accept(listener: socket.socket, key: bytes, sockets: dict[int, socket.socket], until_s: float) -> None:
    """Take in one connection; one that does not show the key is hung up on."""
    listener.settimeout(_left_s(until_s))
    connection, _ = listener.accept()
    connection.settimeout(min(_HELLO_S, _left_s(until_s)))
    shown = b""
    with suppress(OSError):
        while len(shown) < _KEY_BYTES + _RANK_BYTES and (
            more := connection.recv(_KEY_BYTES + _RANK_BYTES - len(shown))
        ):
            shown += more
    if hmac.compare_digest(shown[:_KEY_BYTES], key):
        sockets[int.from_bytes(shown[_KEY_BYTES:], "big")] = connection
    else:
        connection.close()


def _left_s(until_s: float) -> float:
    return max(until_s - clock.monotonic_s(), 0.001)
