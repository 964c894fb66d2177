"""The steps of one member in all_reduce, broadcast, all_gather and reduce_scatter under a chosen algorithm.

In: a collective, a choice. Out: steps, remembered, since a program asks for the same ones again and again.
It must not choose or send.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from hetero.plan.collectives.choose import Choice
from hetero.plan.collectives.pieces import owned_pieces, ring_pieces, tree_pieces
from hetero.plan.collectives.steps import Piece, Step, steps_of
from hetero.plan.collectives.trees import Tree, ring_path

__all__ = ["Collective", "Word", "plan_steps"]

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
def plan_steps(what: Collective, rank: int, choice: Choice) -> tuple[Step, ...]:
    """Return the steps of one member.

    Examples
    --------
    >>> choice = Choice("ring", None, 4096, 0.0)
    >>> [(step.action, step.peer) for step in plan_steps(Collective("all_gather", 3, 6, 8), 0, choice)]
    [('send', 2), ('copy', 1), ('send', 2), ('copy', 1)]
    """
    chunk = max(1, min(choice.chunk_bytes // what.itemsize, what.elements))
    reduce = what.word in ("all_reduce", "reduce_scatter")
    broadcast = what.word != "reduce_scatter"
    return steps_of(rank, _pieces(what, choice.tree, chunk), reduce=reduce, broadcast=broadcast)


def _pieces(what: Collective, tree: Tree | None, chunk: int) -> list[Piece]:
    if what.word == "broadcast":
        way = ring_path(what.size, what.src) if tree is None else tree.rerooted(what.src)
        return tree_pieces(what.elements, chunk, way)
    if tree is None:
        return ring_pieces(what.elements, what.size, chunk)
    if what.word == "all_reduce":
        return tree_pieces(what.elements, chunk, tree)
    return owned_pieces(what.elements, what.size, chunk, tree.rerooted, in_waves=True)
