"""Which parts of one region of memory are taken.

In: sizes. Out: offsets of blocks that never overlap. It touches no memory itself.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from hetero.engines.base import NodeUsage

__all__ = ["Allocator"]


class Allocator:
    """Best fit with coalescing over one region.

    Parameters
    ----------
    capacity_bytes : bytes of the region; what is left of a last page is not used
    page_bytes : every block begins at a multiple of this and takes a multiple of it

    Notes
    -----
    Free blocks are kept sorted by (size, offset), so the best fit is one bisection, and by both their ends,
    so a returned block finds its neighbours at once.

    Examples
    --------
    >>> pool = Allocator(3 * 4096)
    >>> one, two = pool.take(5000), pool.take(1)
    >>> one, two, pool.take(1)
    (0, 8192, None)
    >>> pool.give(one)
    >>> pool.usage().used_bytes
    4096
    """

    __slots__ = ("_by_end", "_by_size", "_by_start", "_capacity", "_page", "_peak", "_taken", "_used")

    def __init__(self, capacity_bytes: int, page_bytes: int = 4096) -> None:
        self._page = page_bytes
        self._capacity = capacity_bytes // page_bytes * page_bytes
        self._by_size: list[tuple[int, int]] = []
        self._by_start: dict[int, int] = {}
        self._by_end: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self._used = 0
        self._peak = 0
        if self._capacity:
            self._add(0, self._capacity)

    def take(self, nbytes: int) -> int | None:
        """Take a block; return its offset, or None when no free block is large enough."""
        size = max(1, -(-nbytes // self._page)) * self._page
        position = bisect_left(self._by_size, (size, 0))
        if position == len(self._by_size):
            return None
        found, offset = self._by_size[position]
        self._remove(offset, found)
        if found > size:
            self._add(offset + size, found - size)
        self._taken[offset] = size
        self._used += size
        self._peak = max(self._peak, self._used)
        return offset

    def give(self, offset: int) -> None:
        """Free a block."""
        size = self._taken.pop(offset)
        self._used -= size
        before = self._by_end.get(offset)
        if before is not None:
            length = self._by_start[before]
            self._remove(before, length)
            offset, size = before, length + size
        after = self._by_start.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        self._add(offset, size)

    def usage(self) -> NodeUsage:
        """Return capacity, use, peak and fragmentation."""
        free = self._capacity - self._used
        largest = self._by_size[-1][0] if self._by_size else 0
        return NodeUsage(self._capacity, self._used, self._peak, 1.0 - largest / free if free else 0.0)

    def taken(self) -> dict[int, int]:
        """Return the taken blocks, offset to bytes."""
        return dict(self._taken)

    def free(self) -> dict[int, int]:
        """Return the free blocks, offset to bytes."""
        return dict(self._by_start)

    def _add(self, offset: int, size: int) -> None:
        insort(self._by_size, (size, offset))
        self._by_start[offset] = size
        self._by_end[offset + size] = offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._by_start[offset]
        del self._by_end[offset + size]
