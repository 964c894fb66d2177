"""The pieces of each collective under each algorithm: how a row is cut, and along which tree each part travels.

In: members, elements, the size of a chunk, a tree. Out: pieces for `steps_of`. It must not choose the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from hetero.plan.collectives.steps import Piece
from hetero.plan.collectives.trees import Tree, ring_path

__all__ = ["chunks", "owned_pieces", "ring_pieces", "split", "tree_pieces"]


def split(count: int, parts: int) -> list[tuple[int, int]]:
    """Cut a range into parts that differ by one element at most.

    Examples
    --------
    >>> split(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    size, more = divmod(count, parts)
    ends = [part * size + min(part, more) for part in range(parts + 1)]
    return list(pairwise(ends))


def chunks(begin: int, end: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Cut a range into chunks of a given number of elements, the last one shorter.

    Examples
    --------
    >>> list(chunks(2, 9, 3))
    [(2, 5), (5, 8), (8, 9)]
    """
    for first in range(begin, end, chunk):
        yield first, min(first + chunk, end)


def ring_pieces(count: int, size: int, chunk: int) -> list[Piece]:
    """Cut a row into one part a member; each part goes once around the ring to its owner.

    Notes
    -----
    Adding up and handing out, every member sends 2(n-1)/n of the row: no algorithm over equal links can do with less
    time.

    References
    ----------
    P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal of Parallel
    and Distributed Computing 69 (2009), 117-124.
    """
    return owned_pieces(count, size, chunk, lambda owner: ring_path(size, owner), in_waves=False)


def owned_pieces(count: int, size: int, chunk: int, tree_of: Callable[[int], Tree], *, in_waves: bool) -> list[Piece]:
    """Cut a row into one part a member, each in chunks that travel along the tree of their owner.

    Parameters
    ----------
    in_waves : whether each chunk of a part sets out one tick after the one before
    """
    return [
        Piece(first, last, tree_of(owner), number if in_waves else 0)
        for owner, (begin, end) in enumerate(split(count, size))
        for number, (first, last) in enumerate(chunks(begin, end, chunk))
    ]


def tree_pieces(count: int, chunk: int, tree: Tree) -> list[Piece]:
    """Cut a row into chunks that follow each other along one tree, so that its levels work at the same time.

    Notes
    -----
    Sums on their way up and results on their way down use the two directions of a link at the same time.
    """
    return [Piece(first, last, tree, number) for number, (first, last) in enumerate(chunks(0, count, chunk))]
