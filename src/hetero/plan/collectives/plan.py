"""The steps of one member in all_reduce, broadcast, all_gather and reduce_scatter under a chosen algorithm.

In: a collective, a choice. Out: steps, remembered, since a program asks for the same ones again and again.
It must not choose or send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from hetero.plan.collectives.choose import AlgorithmChoice
from hetero.plan.collectives.steps import CollectivePiece, Step, steps_of
from hetero.plan.collectives.trees import MemberTree, ring_path

__all__ = ["Collective", "Word", "chunks", "owned_pieces", "plan_steps", "ring_pieces", "split", "tree_pieces"]

Word = Literal["all_reduce", "broadcast", "all_gather", "reduce_scatter"]


class Collective(NamedTuple):
    """What all members do together.

    Attributes
    ----------
    word : which collective
    size : how many members
    elements, itemsize : of the whole row, and bytes of each one
    src : whose row is handed out; broadcast only
    """

    word: Word
    size: int
    elements: int
    itemsize: int
    src: int = 0


@lru_cache(maxsize=256)
def plan_steps(what: Collective, rank: int, choice: AlgorithmChoice) -> tuple[Step, ...]:
    """Return the steps of one member.

    Examples
    --------
    >>> choice = AlgorithmChoice("ring", None, 4096, 0.0)
    >>> [(step.action, step.peer) for step in plan_steps(Collective("all_gather", 3, 6, 8), 0, choice)]
    [('send', 2), ('copy', 1), ('send', 2), ('copy', 1)]
    """
    chunk = max(1, min(choice.chunk_bytes // what.itemsize, what.elements))
    reduce = what.word in ("all_reduce", "reduce_scatter")
    broadcast = what.word != "reduce_scatter"
    return steps_of(rank, _pieces(what, choice.tree, chunk), reduce=reduce, broadcast=broadcast)


def _pieces(what: Collective, tree: MemberTree | None, chunk: int) -> list[CollectivePiece]:
    if what.word == "broadcast":
        way = ring_path(what.size, what.src) if tree is None else tree.rerooted(what.src)
        return tree_pieces(what.elements, chunk, way)
    if tree is None:
        return ring_pieces(what.elements, what.size, chunk)
    if what.word == "all_reduce":
        return tree_pieces(what.elements, chunk, tree)
    return owned_pieces(what.elements, what.size, chunk, tree.rerooted, in_waves=True)


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


def ring_pieces(count: int, size: int, chunk: int) -> list[CollectivePiece]:
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


def owned_pieces(
    count: int, size: int, chunk: int, tree_of: Callable[[int], MemberTree], *, in_waves: bool
) -> list[CollectivePiece]:
    """Cut a row into one part a member, each in chunks that travel along the tree of their owner.

    Parameters
    ----------
    in_waves : whether each chunk of a part sets out one tick after the one before
    """
    return [
        CollectivePiece(first, last, tree_of(owner), number if in_waves else 0)
        for owner, (begin, end) in enumerate(split(count, size))
        for number, (first, last) in enumerate(chunks(begin, end, chunk))
    ]


def tree_pieces(count: int, chunk: int, tree: MemberTree) -> list[CollectivePiece]:
    """Cut a row into chunks that follow each other along one tree, so that its levels work at the same time.

    Notes
    -----
    Sums on their way up and results on their way down use the two directions of a link at the same time.
    """
    return [CollectivePiece(first, last, tree, number) for number, (first, last) in enumerate(chunks(0, count, chunk))]
