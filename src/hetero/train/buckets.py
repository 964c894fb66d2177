"""Buckets: which gradients travel together, so that the first leave while the last are still being computed.

In: sizes and kinds of gradients, the order in which they come about. Out: groups of them, in the order of leaving.
It must not see a tensor.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

__all__ = ["Bucket", "bucket_bytes", "cut"]

_LEAST_BYTES = 1 << 20
_MOST_BYTES = 4 << 20
_AIM = 8
_LITTLE = 8


class Bucket(NamedTuple):
    """Gradients of one kind that travel together.

    Attributes
    ----------
    kind : what they have in common, a dtype
    indices : of the parameters, in the order in which their gradients come about
    """

    kind: Hashable
    indices: tuple[int, ...]


def bucket_bytes(total_bytes: int) -> int:
    """Return the size that buckets aim at: about eight of them, of 1 to 4 MiB each.

    Examples
    --------
    >>> [bucket_bytes(mib << 20) >> 20 for mib in (1, 16, 400)]
    [1, 2, 4]
    """
    return min(_MOST_BYTES, max(_LEAST_BYTES, total_bytes // _AIM))


def cut(nbytes: Sequence[int], kinds: Sequence[Hashable], order: Sequence[int]) -> tuple[Bucket, ...]:
    """Cut gradients into buckets.

    Parameters
    ----------
    nbytes, kinds : of each gradient; what is of one kind may share a bucket
    order : the indices in the order in which the gradients come about

    Returns
    -------
    tuple of Bucket
        In the order in which they are complete; every index once.

    Notes
    -----
    The last bucket is what a step waits for when all is computed, so buckets are filled from the end: what the
    sizes leave over makes the first one small, and the last one aims at 1 MiB at most. A bucket that is less than
    an eighth full takes the next gradient in, however large.

    Examples
    --------
    >>> mib = 1 << 20
    >>> [bucket.indices for bucket in cut([mib, mib // 2, mib // 2, mib], ["f4"] * 4, [3, 2, 1, 0])]
    [(3,), (2, 1), (0,)]
    """
    limit = bucket_bytes(sum(nbytes))
    open_: dict[Hashable, list[int]] = {}
    closed: list[Bucket] = []
    for index in reversed(order):
        kind = kinds[index]
        held = open_.setdefault(kind, [])
        room = limit if any(bucket.kind == kind for bucket in closed) else _LEAST_BYTES
        filled = sum(nbytes[one] for one in held)
        if filled >= room // _LITTLE and filled + nbytes[index] > room:
            closed.append(Bucket(kind, tuple(reversed(held))))
            held.clear()
        held.append(index)
    closed += [Bucket(kind, tuple(reversed(held))) for kind, held in open_.items()]
    place = {index: position for position, index in enumerate(order)}
    return tuple(sorted(closed, key=lambda bucket: place[bucket.indices[-1]]))
