"""How fast the links between members are: pairs exchange a little, all at the same time, in a few rounds.

In: a mesh. Out: `Links`, the same on every member. It must not decide what they are used for.
"""

from __future__ import annotations

import numpy as np

from hetero.comm.carry import carry
from hetero.comm.mesh import Mesh
from hetero.comm.rows import row_of
from hetero.floor import clock
from hetero.plan.collectives.choose import Choice, Links
from hetero.plan.collectives.plan import Collective, plan_steps
from hetero.plan.collectives.steps import Step

__all__ = ["links_of", "partners"]

_ROUNDS = 7
_WARM_BYTES = 128 * 1024
_TIMED_BYTES = 256 * 1024
_TINY_BYTES = 8
_HANDING_OUT = Choice("ring", None, 1 << 20, 0.0)

_known: dict[tuple[str, ...], Links] = {}


def links_of(mesh: Mesh, deadline_s: float) -> Links:
    """Give the links of a mesh, measured once per process for the same addresses; all members call it.

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
    """Give with whom a member exchanges in a round; None for nobody.

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
    """Give what the first member knows."""
    row = np.zeros(mesh.size + 1)
    if known is not None:
        row[:] = [*known.bytes_per_s, known.latency_s]
    what = Collective("broadcast", mesh.size, row.size, row.itemsize)
    carry(mesh, plan_steps(what, mesh.rank, _HANDING_OUT), row_of(row), "known links", "sum", deadline_s)
    return _links(row) if row[0] else None


def _links(row: np.ndarray) -> Links:
    return Links(tuple(row[:-1].tolist()), float(row[-1]))


def _measure(mesh: Mesh, deadline_s: float) -> Links:
    """Measure, and give everybody the same.

    Notes
    -----
    What arrives at j from i has the speed min(up of i, down of j); over several partners, the fastest arrival shows
    the link of a member in each direction. The slower direction counts.
    """
    size = mesh.size
    table = np.zeros((size, size + 1))
    tiny_s = float("inf")
    for turn in range(min(_ROUNDS, size - 1 + size % 2)):
        peer = partners(mesh.rank, size, turn)
        if peer is None:
            continue
        _exchange_s(mesh, peer, _WARM_BYTES, deadline_s)
        table[mesh.rank, peer] = _TIMED_BYTES / _exchange_s(mesh, peer, _TIMED_BYTES, deadline_s)
        tiny_s = min(tiny_s, _exchange_s(mesh, peer, _TINY_BYTES, deadline_s))
    table[mesh.rank, size] = tiny_s
    what = Collective("all_gather", size, table.size, table.itemsize)
    carry(mesh, plan_steps(what, mesh.rank, _HANDING_OUT), row_of(table), "measured links", "sum", deadline_s)
    down, up = table[:, :size].max(axis=1), table[:, :size].max(axis=0)
    return Links(tuple(np.minimum(down, up).tolist()), float(table[:, size].max()))


def _exchange_s(mesh: Mesh, peer: int, nbytes: int, deadline_s: float) -> float:
    """Send and receive bytes at the same time; gives the seconds until they have come."""
    row = row_of(np.zeros(2 * nbytes, dtype=np.uint8))
    steps = (Step("send", peer, 0, nbytes, -1), Step("copy", peer, nbytes, 2 * nbytes, -1))
    begun_s = clock.monotonic_s()
    carry(mesh, steps, row, f"measuring {nbytes}", "sum", deadline_s)
    return clock.monotonic_s() - begun_s
