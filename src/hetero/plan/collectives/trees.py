"""Trees along which members pass data on: paths, balanced trees, and trees that spare slow links.

In: the number of members, how many neighbours each may have. Out: `MemberTree`. It must not know what travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

__all__ = ["MemberTree", "balanced_tree", "capped_tree", "ring_path"]


@dataclass(frozen=True)
class MemberTree:
    """A rooted tree of members.

    Attributes
    ----------
    parents
        Each member's parent, -1 for the root.

    Examples
    --------
    >>> tree = MemberTree((-1, 0, 0, 1))
    >>> tree.children[0], tree.depths, tree.heights
    ((1, 2), (0, 1, 1, 2), (2, 1, 0, 0))
    """

    parents: tuple[int, ...]

    @cached_property
    def root(self) -> int:
        """The member without a parent."""
        return self.parents.index(-1)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Each member's children, in their order."""
        found: list[list[int]] = [[] for _ in self.parents]
        for member, parent in enumerate(self.parents):
            if parent >= 0:
                found[parent].append(member)
        return tuple(map(tuple, found))

    @cached_property
    def _downwards(self) -> tuple[int, ...]:
        """The members, parents before children."""
        order = [self.root]
        for member in order:
            order.extend(self.children[member])
        return tuple(order)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How many steps each member is away from the root."""
        depths = [0] * len(self.parents)
        for member in self._downwards[1:]:
            depths[member] = depths[self.parents[member]] + 1
        return tuple(depths)

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """How many steps each member is away from the deepest leaf below it."""
        heights = [0] * len(self.parents)
        for member in reversed(self._downwards[1:]):
            parent = self.parents[member]
            heights[parent] = max(heights[parent], heights[member] + 1)
        return tuple(heights)

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """How many neighbours each member has."""
        return tuple(len(below) + (parent >= 0) for below, parent in zip(self.children, self.parents, strict=True))

    def rerooted(self, root: int) -> MemberTree:
        """Return the tree of the same neighbours with another root.

        Examples
        --------
        >>> MemberTree((-1, 0, 1)).rerooted(2).parents
        (1, 2, -1)
        """
        parents = list(self.parents)
        member, parent = root, -1
        while member >= 0:
            parents[member], parent, member = parent, member, parents[member]
        return MemberTree(tuple(parents))


@lru_cache(maxsize=4096)
def ring_path(size: int, end: int) -> MemberTree:
    """Return the ring of all members, cut behind the member `end`, which is the root of the path.

    Examples
    --------
    >>> ring_path(4, 2).parents
    (1, 2, -1, 0)
    """
    return MemberTree(tuple(-1 if member == end else (member + 1) % size for member in range(size)))


def balanced_tree(size: int) -> MemberTree:
    """Return the binary tree in which every level but the last is full.

    Examples
    --------
    >>> balanced_tree(6).parents
    (-1, 0, 0, 1, 1, 2)
    """
    return MemberTree(tuple((member - 1) // 2 if member else -1 for member in range(size)))


def capped_tree(caps: Sequence[int], root: int | None = None) -> MemberTree | None:
    """Return a shallow tree in which no member has more neighbours than its cap; None where there is none.

    Members with large caps stand near the root, and those with a cap of 1 are leaves.

    Parameters
    ----------
    caps
        Most neighbours of each member, >= 1.
    root
        The member at the root; None for the one with the largest cap.

    Examples
    --------
    >>> capped_tree([2, 2, 2, 2, 2]).parents
    (-1, 0, 0, 1, 2)
    >>> capped_tree([1, 3, 1, 1]).parents
    (1, -1, 1, 1)
    """
    order = sorted(range(len(caps)), key=lambda member: (-caps[member], member))
    if root is not None:
        order.remove(root)
        order.insert(0, root)
    parents = [-1] * len(caps)
    free = [order[0]] * caps[order[0]]
    for member in order[1:]:
        if not free:
            return None
        parents[member] = free.pop(0)
        free += [member] * (caps[member] - 1)
    return MemberTree(tuple(parents))
