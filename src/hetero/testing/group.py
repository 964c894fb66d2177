"""The conformance kit of groups: every collective, every algorithm, several dtypes, checked against plain sums.

In: one member of a group; all members call the kit. Out: nothing, or AssertionError. It must not break the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["check_group"]

_SHAPES: tuple[tuple[int, ...], ...] = ((1,), (7,), (5, 40), (70_001,))
_DTYPES = ("float32", "float64", "int64", "uint8")


def check_group(group: object, algorithms: Sequence[str] = ("auto",)) -> None:
    """Check that a group does what `hetero.comm.group.Group` promises; every member calls it.

    Parameters
    ----------
    group
        Has `rank`, `world_size`, `all_reduce`, `start_all_reduce`, `broadcast`, `all_gather`, `reduce_scatter`.
    algorithms
        Those to be tried.
    """
    for algorithm in algorithms:
        for shape in _SHAPES:
            for dtype in _DTYPES:
                _check_sums(group, shape, dtype, algorithm)
                _check_parts(group, shape, dtype, algorithm)
        _check_same_bits(group, algorithm)
        _check_under_way(group, algorithm)


def _row(rank: int, shape: tuple[int, ...], dtype: str) -> Any:
    return ((np.arange(np.prod(shape)) + 3 * rank) % 11).astype(dtype).reshape(shape)


def _check_sums(group: Any, shape: tuple[int, ...], dtype: str, algorithm: str) -> None:
    rows = [_row(rank, shape, dtype) for rank in range(group.world_size)]
    where = f"of {dtype} {shape} by {algorithm}"
    for op, expected in (("sum", sum(rows)), ("max", np.max(rows, axis=0)), ("min", np.min(rows, axis=0))):
        row = rows[group.rank].copy()
        group.all_reduce(row, op, algorithm=algorithm)
        assert np.array_equal(row, expected), f"all_reduce, {op}, {where} is not the {op} of all rows"
    for src in {0, group.world_size - 1}:
        row = rows[group.rank].copy()
        group.broadcast(row, src, algorithm=algorithm)
        assert np.array_equal(row, rows[src]), f"broadcast {where} is not the row of rank {src}"


def _check_parts(group: Any, shape: tuple[int, ...], dtype: str, algorithm: str) -> None:
    size, rank = group.world_size, group.rank
    where = f"of {dtype} {shape} by {algorithm}"
    parts = np.zeros((size, *shape), dtype)
    parts[rank] = _row(rank, shape, dtype)
    group.all_gather(parts, algorithm=algorithm)
    for other in range(size):
        expected = _row(other, shape, dtype)
        assert np.array_equal(parts[other], expected), f"all_gather {where} has not the row of rank {other}"
    wholes = [_row(other, (size, *shape), dtype) for other in range(size)]
    own = wholes[rank].copy()
    group.reduce_scatter(own, algorithm=algorithm)
    assert np.array_equal(own[rank], sum(wholes)[rank]), f"reduce_scatter {where} is not the sum of all rows"


def _check_same_bits(group: Any, algorithm: str) -> None:
    row = np.random.default_rng(group.rank).standard_normal(20_001).astype(np.float32)
    group.all_reduce(row, algorithm=algorithm)
    bits = np.zeros((group.world_size, row.size), np.uint32)
    bits[group.rank] = row.view(np.uint32)
    group.all_gather(bits, algorithm=algorithm)
    assert (bits == bits[0]).all(), f"all_reduce by {algorithm} leaves members with different bits"


def _check_under_way(group: Any, algorithm: str) -> None:
    rows = [np.full(3000, float(group.rank + number)) for number in range(4)]
    under_way = [group.start_all_reduce(row, algorithm=algorithm) for row in rows]
    for work in reversed(under_way):
        work.wait()
        work.wait()
    for number, row in enumerate(rows):
        expected = sum(rank + number for rank in range(group.world_size))
        assert (row == expected).all(), f"sums by {algorithm} that are under way at once disturb each other"
