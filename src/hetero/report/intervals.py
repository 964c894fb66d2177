"""Sets of intervals of time, as two sorted columns of starts and ends.

In: pairs of times, s. Out: unions, intersections, differences, lengths. It must not know what the time was used for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EMPTY",
    "Floats",
    "Ints",
    "Spans",
    "by_owner",
    "column",
    "common",
    "cut",
    "length_s",
    "pairs",
    "union",
    "without",
]

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Spans: TypeAlias = tuple[Floats, Floats]
"""Starts and ends, disjoint and ascending."""

_NONE: Floats = np.empty(0)
EMPTY: Spans = (_NONE, _NONE)


def pairs(given: Iterable[tuple[float, float]], begin_s: float = -np.inf, end_s: float = np.inf) -> Spans:
    """Return the columns of some pairs, cut to a window, in the order of their starts; they may overlap.

    Examples
    --------
    >>> pairs([(3.0, 9.0), (1.0, 2.0)], end_s=5.0)
    (array([1., 3.]), array([2., 5.]))
    """
    table = np.asarray(list(given), dtype=float).reshape(-1, 2)
    return cut(table[:, 0], table[:, 1], begin_s, end_s)


def cut(starts: Floats, ends: Floats, begin_s: float = -np.inf, end_s: float = np.inf) -> Spans:
    """Return what lies in a window of some intervals, in the order of their starts; they may overlap.

    Examples
    --------
    >>> cut(np.array([3.0, 1.0]), np.array([9.0, 2.0]), end_s=5.0)
    (array([1., 3.]), array([2., 5.]))
    """
    starts, ends = starts.clip(begin_s, end_s), ends.clip(begin_s, end_s)
    kept = ends > starts
    starts, ends = starts[kept], ends[kept]
    order = np.lexsort((ends, starts))
    return starts[order], ends[order]


def column(rows: Sequence[object], name: str) -> Floats:
    """Return one attribute of many values as numbers.

    Examples
    --------
    >>> column([1 + 2j, 3 + 4j], "imag")
    array([2., 4.])
    """
    return np.fromiter(map(attrgetter(name), rows), float, len(rows))


def by_owner(owners: Ints, spans: Spans, count: int) -> list[Spans]:
    """Return the intervals of each of `count` owners; each keeps their order.

    Examples
    --------
    >>> by_owner(np.array([1, 0]), (np.array([2.0, 5.0]), np.array([3.0, 6.0])), 2)
    [(array([5.]), array([6.])), (array([2.]), array([3.]))]
    """
    order = np.argsort(owners, kind="stable")
    edges = np.searchsorted(owners[order], np.arange(count + 1))
    starts, ends = spans[0][order], spans[1][order]
    return [(starts[a:b], ends[a:b]) for a, b in pairwise(edges)]


def union(*given: Spans) -> Spans:
    """Return what at least one of the sets covers; their intervals may overlap.

    Examples
    --------
    >>> union(pairs([(0, 2), (1, 3)]), pairs([(5, 6)]))
    (array([0., 5.]), array([3., 6.]))
    """
    starts = np.concatenate([each[0] for each in given]) if given else _NONE
    if not len(starts):
        return EMPTY
    ends = np.concatenate([each[1] for each in given])
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return starts[first], reach[last]


def without(one: Spans, other: Spans) -> Spans:
    """Return what the first set covers and the second does not.

    Examples
    --------
    >>> without(pairs([(0, 4)]), pairs([(1, 2)]))
    (array([0., 2.]), array([1., 4.]))
    """
    if not len(one[0]) or not len(other[0]):
        return one
    gaps = (np.concatenate(([-np.inf], other[1])), np.concatenate((other[0], [np.inf])))
    return common(one, gaps)


def common(one: Spans, other: Spans) -> Spans:
    """Return what both sets cover.

    Examples
    --------
    >>> common(pairs([(0, 4), (6, 9)]), pairs([(1, 2), (3, 7)]))
    (array([1., 3., 6.]), array([2., 4., 7.]))
    """
    if not len(one[0]) or not len(other[0]):
        return EMPTY
    first = np.searchsorted(other[1], one[0], side="right")
    last = np.searchsorted(other[0], one[1], side="left")
    counts = np.maximum(last - first, 0)
    mine = np.repeat(np.arange(len(counts)), counts)
    theirs = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    starts = np.maximum(one[0][mine], other[0][theirs])
    ends = np.minimum(one[1][mine], other[1][theirs])
    kept = ends > starts
    return starts[kept], ends[kept]


def length_s(given: Spans) -> float:
    """Return the sum of the lengths; what overlaps counts as often as it is covered.

    Examples
    --------
    >>> length_s(pairs([(0, 2), (1, 3)]))
    4.0
    """
    return float((given[1] - given[0]).sum())
