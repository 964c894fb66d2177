"""The steps of one member in a collective: what it sends, takes over and adds, and which step waits for which.

In: pieces of a row of numbers, each with the tree along which it travels. Out: the member's steps in order.
It must not send; a real transport and a simulated one carry the same steps out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from hetero.plan.collectives.trees import MemberTree

__all__ = ["CollectivePiece", "Step", "steps_of"]

Action = Literal["send", "copy", "add"]


class Step(NamedTuple):
    """One transfer, seen from one of its two ends.

    Steps with one peer and direction happen in the order of the list; otherwise a step only waits for `after`.

    Attributes
    ----------
    action : send a range to the peer; receive it and copy or add it
    peer : rank at the other end
    begin, end : range of elements
    after : index of the step of the same member that must be done before, -1 for none
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
    begin, end : range of elements
    tree : it is added up towards the root, and handed out from there
    tick : when it sets out, counted in hops; orders the pieces of one connection
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
