"""The steps of one member in all_reduce, broadcast, all_gather and reduce_scatter under a chosen algorithm.

In: a collective, a choice. Out: what a member sends, takes over and adds, and which step waits for which; remembered,
since a program asks for the same ones again and again. It must not send anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from hetero.plan.collectives.choose import AlgorithmChoice
from hetero.plan.collectives.trees import MemberTree, ring_path

__all__ = [
    "Collective",
    "CollectivePiece",
    "Step",
    "Word",
    "chunks",
    "owned_pieces",
    "plan_steps",
    "ring_pieces",
    "split",
    "steps_of",
    "tree_pieces",
]

Action = Literal["send", "copy", "add"]

Word = Literal["all_reduce", "broadcast", "all_gather", "reduce_scatter"]


class Step(NamedTuple):
    """One transfer, seen from one of its two ends.

    Steps with one peer and direction happen in the order of the list; otherwise a step only waits for `after`.

    Attributes
    ----------
    action
        Send a range to the peer; receive it and copy or add it.
    peer
        Rank at the other end.
    begin, end
        Range of elements.
    after
        Index of the step of the same member that must be done before, -1 for none.
    """

    action: Action
    peer: int
    begin: int
    end: int
    after: int


class CollectivePiece(NamedTuple):
    """A range of elements that travels as one.

    Attributes
    ----------
    begin, end
        Range of elements.
    tree
        It is added up towards the root, and handed out from there.
    tick
        When it sets out, counted in hops; orders the pieces of one connection.
    """

    begin: int
    end: int
    tree: MemberTree
    tick: int


def steps_of(rank: int, pieces: Sequence[CollectivePiece], *, reduce: bool, broadcast: bool) -> tuple[Step, ...]:
    """Return what one member does so that pieces are added up at their roots, handed out from there, or both.

    Notes
    -----
    A hop of a piece has a tick: that of the piece plus the hops before it. Both ends of a connection order its hops
    by (tick, piece), and a hop waits only for hops of smaller ticks or of earlier siblings: whatever the transport
    buffers, there is no cycle of waiting. Each piece is added up in one order on one member and copied from there,
    so that all members hold the same bits.

    Examples
    --------
    >>> path = MemberTree((-1, 0))
    >>> steps_of(1, [CollectivePiece(0, 8, path, 0)], reduce=True, broadcast=True)
    (Step(action='send', peer=0, begin=0, end=8, after=-1), Step(action='copy', peer=0, begin=0, end=8, after=-1))
    """
    hops: list[tuple[int, int, Action, int]] = []
    for number, piece in enumerate(pieces):
        if piece.begin == piece.end:
            continue
        if reduce:
            hops += _upwards(rank, number, piece)
        if broadcast:
            hops += _downwards(rank, number, piece, reduce)
    hops.sort(key=lambda hop: hop[:2])
    steps: list[Step] = []
    received: dict[int, int] = {}
    for _, number, action, peer in hops:
        piece = pieces[number]
        steps.append(Step(action, peer, piece.begin, piece.end, received.get(number, -1)))
        if action != "send":
            received[number] = len(steps) - 1
    return tuple(steps)


def _upwards(rank: int, number: int, piece: CollectivePiece) -> list[tuple[int, int, Action, int]]:
    tree, tick = piece.tree, piece.tick
    hops: list[tuple[int, int, Action, int]] = []
    for child in sorted(tree.children[rank], key=lambda each: (tree.heights[each], each)):
        hops.append((tick + tree.heights[child], number, "add", child))
    if tree.parents[rank] >= 0:
        hops.append((tick + tree.heights[rank], number, "send", tree.parents[rank]))
    return hops


def _downwards(rank: int, number: int, piece: CollectivePiece, reduced: bool) -> list[tuple[int, int, Action, int]]:
    tree = piece.tree
    tick = piece.tick + (tree.heights[tree.root] if reduced else 0)
    hops: list[tuple[int, int, Action, int]] = []
    if tree.parents[rank] >= 0:
        hops.append((tick + tree.depths[rank] - 1, number, "copy", tree.parents[rank]))
    for child in tree.children[rank]:
        hops.append((tick + tree.depths[rank], number, "send", child))
    return hops


class Collective(NamedTuple):
    """What all members do together.

    Attributes
    ----------
    word
        Which collective.
    size
        How many members.
    elements, itemsize
        Of the whole row, and bytes of each one.
    src
        Whose row is handed out; broadcast only.
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
    in_waves
        Whether each chunk of a part sets out one tick after the one before.
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
