"""How fast the links between members are: pairs exchange a little, all at the same time, in a few rounds.

In: a mesh. Out: `Links`, the same on every member. It does not decide what they are used for.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import NamedTuple

import numpy as np

from hetero.comm.mesh import Mesh, run_steps
from hetero.comm.rows import row_of
from hetero.floor import clock
from hetero.plan.collectives.choose import AlgorithmChoice, Links
from hetero.plan.collectives.steps import Collective, Step, plan_steps

__all__ = [
    "Sending",
    "links_of",
    "partners",
    "sending",
]

_INFO_BYTES = 184
_ACKNOWLEDGED, _BUSY, _WINDOW_CLOSED = 120, 168, 176
"""Places of tcpi_bytes_acked, tcpi_busy_time and tcpi_rwnd_limited in struct tcp_info, Linux 4.10 and newer."""


class Sending(NamedTuple):
    """A connection's books.

    Attributes
    ----------
    acknowledged_bytes
        That have arrived.
    busy_s
        Time in which some were on their way and the receiver had room, s.
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


_ROUNDS = 7
_WARM_BYTES = 128 * 1024
_MOST_BYTES = 4 * 1024 * 1024
_LEAST_BYTES = 512 * 1024
_AIM_S, _MOST_S = 0.1, 0.5
_MANY = 5
_HANDING_OUT = AlgorithmChoice("ring", None, 1 << 20, 0.0)

_known: dict[tuple[str, ...], Links] = {}


def links_of(mesh: Mesh, deadline_s: float) -> Links:
    """Return the links of a mesh, measured once per process for the same addresses; all members call it.

    Members of one address share a link that is no bottleneck between them, and are not measured.

    Raises
    ------
    GroupBrokenError
        A member died, or did not come within the deadline.
    """
    if len(set(mesh.addresses)) == 1:
        return Links((1.0,) * mesh.size, 0.0)
    known = _handed_out(mesh, _known.get(mesh.addresses), deadline_s)
    if known is None:
        known = _measure(mesh, deadline_s)
    _known[mesh.addresses] = known
    return known


def partners(rank: int, size: int, turn: int) -> int | None:
    """Return with whom a member exchanges in a round; None for nobody.

    Everybody sits on a circle, the last member in its middle when there is an even number of them.

    Examples
    --------
    >>> [partners(rank, 4, 0) for rank in range(4)]
    [3, 2, 1, 0]
    >>> [partners(rank, 3, 1) for rank in range(3)]
    [2, None, 0]
    """
    circle = size - 1 if size % 2 == 0 else size
    if rank == circle:
        return turn % circle
    other = (2 * turn - rank) % circle
    if other != rank:
        return other
    return circle if circle < size else None


def _handed_out(mesh: Mesh, known: Links | None, deadline_s: float) -> Links | None:
    """Return what the first member knows."""
    row = np.zeros(mesh.size + 1)
    if known is not None:
        row[:] = [*known.bytes_per_s, known.latency_s]
    what = Collective("broadcast", mesh.size, row.size, row.itemsize)
    run_steps(mesh, plan_steps(what, mesh.rank, _HANDING_OUT), row_of(row), "known links", "sum", deadline_s)
    return _links(row) if row[0] else None


def _links(row: np.ndarray) -> Links:
    return Links(tuple(row[:-1].tolist()), float(row[-1]))


def _measure(mesh: Mesh, deadline_s: float) -> Links:
    """Measure, and give everybody the same.

    Notes
    -----
    A pair is as fast as the slowest of its four directions: the slower reading of its two ends is taken. Over several
    partners, the fastest pairs show a member's link; where there are many, the very fastest is left out, since it may
    be an error.
    """
    size = mesh.size
    table = np.zeros((size, size + 1))
    latency_s = float("inf")
    for turn in range(min(_ROUNDS, size - 1 + size % 2)):
        peer = partners(mesh.rank, size, turn)
        if peer is not None:
            table[mesh.rank, peer], tiny_s = _pair(mesh, peer, deadline_s)
            latency_s = min(latency_s, tiny_s)
    table[mesh.rank, size] = latency_s
    what = Collective("all_gather", size, table.size, table.itemsize)
    run_steps(mesh, plan_steps(what, mesh.rank, _HANDING_OUT), row_of(table), "measured links", "sum", deadline_s)
    pairs = np.sort(np.minimum(table[:, :size], table[:, :size].T), axis=1)
    best = pairs[:, -2] if size > _MANY else pairs[:, -1]
    return Links(tuple(best.tolist()), float(table[:, size].max()))


def _pair(mesh: Mesh, peer: int, deadline_s: float) -> tuple[float, float]:
    """Measure one pair; returns the bytes/s at which this member's own arrive, and the seconds of a small message.

    The first exchange empties the reserves that links may have; the second tells how fast the first was, so that
    both ends take the same number of bytes for the third, which counts.
    """
    figure = np.zeros(2)
    figure[0], _ = _exchange(mesh, peer, np.zeros(2 * _WARM_BYTES, np.uint8), deadline_s)
    _, tiny_s = _exchange(mesh, peer, figure, deadline_s)
    bytes_per_s = figure.min()
    nbytes = int(min(max(bytes_per_s * _AIM_S, min(_LEAST_BYTES, bytes_per_s * _MOST_S)), _MOST_BYTES))
    bytes_per_s, _ = _exchange(mesh, peer, np.zeros(2 * nbytes, np.uint8), deadline_s)
    return bytes_per_s, tiny_s


def _exchange(mesh: Mesh, peer: int, row: np.ndarray, deadline_s: float) -> tuple[float, float]:
    """Send the first half of a row, and receive the partner's into the second; returns bytes/s, and seconds in all."""
    half = len(row) // 2
    steps = (Step("send", peer, 0, half, -1), Step("copy", peer, half, 2 * half, -1))
    receipt = (Step("send", peer, 0, 1, -1), Step("copy", peer, 1, 2, -1))
    connection = mesh.sockets[peer]
    before, begun_s = sending(connection), clock.monotonic_s()
    run_steps(mesh, steps, row_of(row), "measuring", "sum", deadline_s)
    seconds = clock.monotonic_s() - begun_s
    run_steps(mesh, receipt, row_of(np.zeros(2, np.uint8)), "measured", "sum", deadline_s)
    after = sending(connection)
    if before is None or after is None or after.busy_s <= before.busy_s:
        return half * row.itemsize / seconds, seconds
    return (after.acknowledged_bytes - before.acknowledged_bytes) / (after.busy_s - before.busy_s), seconds
