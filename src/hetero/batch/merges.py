"""Merges: results combined on the devices first, then in the program, the same to the last bit each time.

In: results of runs of items. Out: states that go together in any order, and the value in the end.
It must not depend on how the items were cut into batches.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero.batch.records import Records, count
from hetero.floor.errors import BadValueError, did_you_mean

__all__ = ["Count", "Fold", "Histogram", "Mean", "Merge", "Sum", "TopK", "check_associative", "merge_of"]

Node = tuple[int, int]
Scored = tuple[Any, int, object]
"""The score of a result, minus its number, and the result."""

Nodes = dict[Node, tuple[object] | None]


class Merge(ABC):
    """How results become one value.

    Notes
    -----
    `start` runs on the device that computed the results, so that only a state travels. States are combined as
    they come; the value must not depend on that order, nor on where the batches were cut.
    """

    @abstractmethod
    def start(self, results: object, begin: int, end: int, missing: Sequence[int] = ()) -> object:
        """Return the state of some results.

        Parameters
        ----------
        results
            Of the items from `begin` to `end`, without those that are missing; None where all are.
        missing
            Numbers of items in between that have no result.
        """

    @abstractmethod
    def combine(self, one: Any, other: Any) -> object:
        """Return the state of two states' items together."""

    @abstractmethod
    def finish(self, state: Any) -> object:
        """Return the value of all items."""


class Fold(Merge):
    """Combines the items' results two by two in a tree whose shape depends on the items' numbers alone.

    Parameters
    ----------
    function
        Of two values, associative; it gets them in the order of the items.

    Notes
    -----
    A state holds the nodes (level, index) of the tree above the items it is of: node (l, i) is of the items
    from i·2^l to (i + 1)·2^l. Two neighbours become one as soon as both are there, so a state of n items has
    at most 2·log2(n) nodes, and floating-point sums come out the same whatever the batches were.

    Examples
    --------
    >>> fold = Fold(lambda a, b: a + b)
    >>> states = [fold.start(["a", "b", "c"], 0, 3), fold.start(["d", "e"], 3, 5)]
    >>> fold.finish(fold.combine(states[1], states[0]))
    'abcde'
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def start(self, results: Records, begin: int, end: int, missing: Sequence[int] = ()) -> Nodes:
        """Return the nodes above some items."""
        there = iter(results if results is not None else ())
        gone = set(missing) if results is not None else range(begin, end)
        values = [None if item in gone else (next(there),) for item in range(begin, end)]
        return _climbed(values, begin, self._pairs)

    def combine(self, one: Nodes, other: Nodes) -> Nodes:
        """Return the nodes of both, neighbours made one."""
        nodes = {**one, **other}
        for node in list(other):
            while node in nodes and (node[0], node[1] ^ 1) in nodes:
                level, index = node[0], node[1] & ~1
                left, right = nodes.pop((level, index)), nodes.pop((level, index + 1))
                node = (level + 1, index // 2)
                nodes[node] = self._pair(left, right)
        return nodes

    def finish(self, state: Nodes) -> Any:
        """Combine the nodes that are left, from the first item on; None where there was no result."""
        total: tuple[object] | None = None
        for node in sorted(state, key=lambda each: each[1] << each[0]):
            total = self._pair(total, state[node])
        return None if total is None else total[0]

    def _pair(self, left: tuple[object] | None, right: tuple[object] | None) -> tuple[object] | None:
        if left is None or right is None:
            return right if left is None else left
        return (self.function(left[0], right[0]),)

    def _pairs(self, values: Sequence[tuple[object] | None]) -> object:
        return [self._pair(left, right) for left, right in zip(values[0::2], values[1::2], strict=True)]


class Sum(Fold):
    """Adds the items' results: numbers, or arrays of one shape; whole numbers stay whole.

    Examples
    --------
    >>> total = Sum()
    >>> total.finish(total.start(np.array([0.5, 1.5, 2.0]), 0, 3))
    4.0
    """

    def __init__(self) -> None:
        super().__init__(np.add)

    def start(self, results: object, begin: int, end: int, missing: Sequence[int] = ()) -> Nodes:
        """Return the sums above some items."""
        if results is None:
            return super().start(results, begin, end, missing)
        found = np.asarray(results)
        kind = np.result_type(found.dtype, np.float64 if found.dtype.kind == "f" else np.int64)
        values = np.zeros((end - begin, *found.shape[1:]), dtype=kind)
        kept = np.ones(end - begin, dtype=bool)
        kept[[item - begin for item in missing]] = False
        values[kept] = found
        return {node: (value,) for node, value in _climbed(values, begin, lambda x: x[0::2] + x[1::2]).items()}

    def finish(self, state: Nodes) -> object:
        """Return the sum, as a Python number where it is one."""
        total = super().finish(state)
        return total.item() if total is not None and np.ndim(total) == 0 else total


class Mean(Sum):
    """The mean of the items' results, those without a result left out."""

    def start(self, results: object, begin: int, end: int, missing: Sequence[int] = ()) -> Any:
        """Return the sums above some items, and how many there are."""
        return super().start(results, begin, end, missing), 0 if results is None else count(results)

    def combine(self, one: Any, other: Any) -> Any:
        """Return the sums and counts of both."""
        return super().combine(one[0], other[0]), one[1] + other[1]

    def finish(self, state: Any) -> object:
        """Divide the sum by the count; None where there was no result."""
        return super().finish(state[0]) / state[1] if state[1] else None


class Count(Merge):
    """How many results there are; of results that are true or false, how many are true."""

    def start(self, results: Records, begin: int, end: int, missing: Sequence[int] = ()) -> int:
        """Count."""
        if results is None:
            return 0
        truths = isinstance(results, np.ndarray) and results.dtype == bool
        return int(results.sum()) if truths else count(results)

    def combine(self, one: int, other: int) -> int:
        """Add."""
        return one + other

    def finish(self, state: int) -> int:
        """Return the number."""
        return state


class TopK(Merge):
    """The k results with the highest scores, the highest first; of equal ones the earlier item.

    Parameters
    ----------
    k
        >= 1.
    key
        Score of a result, the result itself by default.
    """

    def __init__(self, k: int, key: Callable[..., object] | None = None) -> None:
        if k < 1:
            raise BadValueError(f"the {k} best are none", remedy="give a whole number from 1")
        self.k = k
        self.key = key

    def start(self, results: Records, begin: int, end: int, missing: Sequence[int] = ()) -> list[Scored]:
        """Return the best of some results."""
        gone = set(missing)
        items = (item for item in range(begin, end) if item not in gone)
        rows = results if results is not None else ()
        return self._best(
            (self.key(row) if self.key else row, -item, row) for item, row in zip(items, rows, strict=False)
        )

    def combine(self, one: list[Scored], other: list[Scored]) -> list[Scored]:
        """Return the best of both."""
        return self._best([*one, *other])

    def finish(self, state: list[Scored]) -> list[tuple[int, object]]:
        """Return (item, result), the best first."""
        return [(-item, row) for _, item, row in state]

    def _best(self, found: Iterable[Scored]) -> list[Scored]:
        return heapq.nlargest(self.k, found, key=lambda each: each[:2])


class Histogram(Merge):
    """How many results lie between each two edges, as `numpy.histogram` counts.

    Parameters
    ----------
    edges
        Ascending.
    """

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = np.asarray(edges, dtype=np.float64)
        if self.edges.ndim != 1 or len(self.edges) < 2 or np.any(np.diff(self.edges) <= 0):
            raise BadValueError("a histogram needs ascending edges", remedy="give two edges or more")

    def start(self, results: object, begin: int, end: int, missing: Sequence[int] = ()) -> object:
        """Count some results."""
        values = np.zeros(0) if results is None else np.asarray(results)
        return np.histogram(values, self.edges)[0].astype(np.int64)

    def combine(self, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add the counts."""
        return one + other

    def finish(self, state: object) -> object:
        """Return the counts."""
        return state


_MERGES: Mapping[str, Callable[[], Merge]] = {"sum": Sum, "mean": Mean, "count": Count}


def merge_of(given: object) -> Merge | None:
    """Return the merge that a value stands for: a word, a function of two values, a `Merge`; None for none.

    Raises
    ------
    BadValueError
        The word is unknown.
    """
    if given is None or given == "concatenate" or isinstance(given, Merge):
        return given if isinstance(given, Merge) else None
    if isinstance(given, str) and given in _MERGES:
        return _MERGES[given]()
    if callable(given):
        return Fold(given)
    raise BadValueError(
        f"merge={given!r} is not allowed{did_you_mean(given, (*_MERGES, 'concatenate'))}",
        remedy="give 'concatenate', 'sum', 'mean', 'count', a function of two values, TopK(k) or Histogram(edges)",
    )


def check_associative(function: Callable[..., Any], a: object, b: object, c: object) -> None:
    """Refuse a function whose result depends on which of three values are combined first.

    Raises
    ------
    BadValueError
        It differs by more than rounding does.
    """
    one, other = function(function(a, b), c), function(a, function(b, c))
    try:
        same = bool(np.allclose(one, other, rtol=1e-6, atol=0.0, equal_nan=True))
    except TypeError:
        same = bool(one == other)
    if not same:
        raise BadValueError(
            f"the merge is not associative: (a·b)·c gives {one!r}, a·(b·c) gives {other!r}",
            remedy="give a function for which both are the same",
        )


def _climbed(values: Any, begin: int, pairs: Callable[..., object]) -> Nodes:
    """Return the nodes above the values of consecutive items."""
    nodes: Nodes = {}
    level = 0
    while len(values):
        if begin % 2:
            nodes[level, begin] = values[0]
            values, begin = values[1:], begin + 1
        if len(values) % 2:
            nodes[level, begin + len(values) - 1] = values[-1]
            values = values[:-1]
        values, begin, level = pairs(values) if len(values) else values, begin // 2, level + 1
    return nodes
