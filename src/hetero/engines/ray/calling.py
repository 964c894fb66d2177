"""A knock at the door of a cluster, before Ray is let in: Ray itself waits long, or ends the process.

In: an address. Out: nothing, or an EngineError that says who answered, and what to do.
"""

from __future__ import annotations

import socket
from contextlib import closing

from hetero.floor.errors import EngineError

__all__ = ["KNOCK_S", "knock"]

KNOCK_S = 3.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS = 4


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
