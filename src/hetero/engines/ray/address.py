"""Addresses of Ray clusters, and a knock at the door before Ray is let in: Ray waits long, or ends the process.

In: an address. Out: nothing, or an error that says what is wrong with it, or who answered there.
It must not import Ray.
"""

from __future__ import annotations

import socket
from contextlib import closing

from hetero.floor.errors import BadValueError, EngineError

__all__ = ["KNOCK_S", "check_address", "knock"]

KNOCK_S = 3.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS = 4


def check_address(address: str) -> None:
    """Refuse what is no address.

    Raises
    ------
    BadValueError
        It is none.

    Examples
    --------
    >>> check_address("local"), check_address("10.0.0.1:6379")
    (None, None)
    """
    if address in ("local", "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadValueError(
            f"{address!r} is no address of a Ray cluster", remedy="write 'local', 'auto' or 'host:port', as in 'h:6379'"
        )


def knock(address: str) -> None:
    """Find out whether a gRPC server answers at 'host:port'; 'auto' is for Ray to find.

    Raises
    ------
    EngineError
        Nobody answers in `KNOCK_S`, or something else does.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    remedy = "start it with 'hetero node start --head', and give the address that this prints"
    try:
        with closing(socket.create_connection((host, int(port)), KNOCK_S)) as line:
            line.settimeout(KNOCK_S)
            line.sendall(_PREFACE)
            answer = line.recv(9)
    except (OSError, ValueError) as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or error
        raise EngineError(f"no Ray cluster answers at {address}: {why}", remedy=remedy) from error
    if len(answer) < 4 or answer[3] != _SETTINGS:
        raise EngineError(f"what answers at {address} is no Ray cluster", remedy=remedy)
