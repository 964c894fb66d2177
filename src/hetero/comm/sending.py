"""What the operating system knows of a connection's sending: Linux keeps the books that a busy program cannot.

In: a TCP socket. Out: bytes that have arrived and the time it took, None where the system does not tell.
It must not send.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import NamedTuple

__all__ = ["Sending", "sending"]

_INFO_BYTES = 184
_ACKNOWLEDGED, _BUSY, _WINDOW_CLOSED = 120, 168, 176
"""Places of tcpi_bytes_acked, tcpi_busy_time and tcpi_rwnd_limited in struct tcp_info, Linux 4.10 and newer."""


class Sending(NamedTuple):
    """A connection's books.

    Attributes
    ----------
    acknowledged_bytes : that have arrived
    busy_s : time in which some were on their way and the receiver had room, s
    """

    acknowledged_bytes: int
    busy_s: float


def sending(connection: socket.socket) -> Sending | None:
    """Return the books of a connection.

    References
    ----------
    Linux, include/uapi/linux/tcp.h, struct tcp_info.
    """
    if sys.platform != "linux":
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None
    if len(info) < _INFO_BYTES:
        return None
    acknowledged, busy_us, closed_us = (
        struct.unpack_from("=Q", info, at)[0] for at in (_ACKNOWLEDGED, _BUSY, _WINDOW_CLOSED)
    )
    return Sending(acknowledged, (busy_us - closed_us) / 1e6)
