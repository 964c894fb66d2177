"""Records in bulk: counting, cutting and joining lists, arrays, dicts of arrays, tensors, tables and frames alike.

In: records of one of these forms. Out: the same form. It must not import the packages that such records are of:
a table can only come from who has imported them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hetero.floor.errors import BadValueError

if TYPE_CHECKING:
    import pyarrow.dataset

__all__ = [
    "PackedTable",
    "Records",
    "count",
    "cut",
    "is_frame",
    "is_records",
    "is_table",
    "joined",
    "packed",
    "size_bytes",
    "unpacked",
    "without",
]

Records: TypeAlias = Any
"""Values with one entry a record: a list, an array, a dict of these by column, a table or a frame."""

_SAMPLED = 32


def is_records(value: object) -> bool:
    """Return whether a value can be counted, cut and joined.

    Examples
    --------
    >>> is_records([1, 2]), is_records(np.zeros(3)), is_records({"a": np.zeros(3)}), is_records(7)
    (True, True, True, False)
    """
    if isinstance(value, dict):
        return bool(value) and all(is_records(column) and not isinstance(column, dict) for column in value.values())
    return isinstance(value, list | tuple | range) or is_table(value) or bool(getattr(value, "shape", ()))


def count(records: Records) -> int:
    """Return how many records there are.

    Raises
    ------
    BadValueError
        The value is no run of records, or its columns differ in length.

    Examples
    --------
    >>> count([1, 2]), count(np.zeros((3, 5))), count({"a": np.zeros(4), "b": [1, 2, 3, 4]})
    (2, 3, 4)
    """
    if not is_records(records):
        raise BadValueError(
            f"a {type(records).__name__} is no batch of records",
            remedy="give a list, an array, a dict of arrays or an Arrow table, one entry a record",
        )
    if isinstance(records, dict):
        lengths = {name: len(column) for name, column in records.items()}
        if len(set(lengths.values())) > 1:
            raise BadValueError(f"the columns differ in length: {lengths}", remedy="give one entry a record in each")
        return next(iter(lengths.values()))
    return int(records.num_rows) if is_table(records) else len(records)


def cut(records: Records, begin: int, end: int) -> object:
    """Return some of the records in the same form; a view where the form has views.

    Examples
    --------
    >>> cut([1, 2, 3], 1, 3), cut({"a": np.arange(4)}, 0, 2)
    ([2, 3], {'a': array([0, 1])})
    """
    if isinstance(records, dict):
        return {name: column[begin:end] for name, column in records.items()}
    if is_table(records):
        return records.slice(begin, end - begin)
    return records.iloc[begin:end] if is_frame(records) else records[begin:end]


def without(records: object, places: Sequence[int]) -> object:
    """Return the records but those at some places.

    Examples
    --------
    >>> without([10, 11, 12, 13], [1, 2])
    [10, 13]
    """
    edges = [-1, *sorted(places), count(records)]
    kept = [cut(records, before + 1, at) for before, at in itertools.pairwise(edges) if at > before + 1]
    return joined(kept) if kept else cut(records, 0, 0)


def joined(runs: Sequence[Records]) -> Records:
    """Return several runs of records as one; a single run comes back as it is.

    Raises
    ------
    BadValueError
        There is none, they are of several forms, or their columns or shapes differ.

    Examples
    --------
    >>> joined([[1], [2, 3]]), joined([np.zeros(2), np.ones(1)])
    ([1, 2, 3], array([0., 0., 1.]))
    """
    if not runs:
        raise BadValueError("there are no records to join")
    first = runs[0]
    if len(runs) == 1:
        return first
    if isinstance(first, list | tuple | range) and all(isinstance(run, list | tuple | range) for run in runs):
        return [record for run in runs for record in run]
    if len({type(run) for run in runs}) > 1:
        words = ", ".join(sorted({type(run).__name__ for run in runs}))
        raise BadValueError(f"records of several forms: {words}", remedy="give the same form for each batch")
    try:
        return _joined_alike(first, runs)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise BadValueError(
            f"records do not go together: {' '.join(str(error).split())}", remedy="give the same columns and shapes"
        ) from error


def _joined_alike(first: object, runs: Sequence[Records]) -> object:
    if isinstance(first, dict):
        if any(run.keys() != first.keys() for run in runs):
            raise KeyError(f"columns {sorted({tuple(run) for run in runs})}")
        return {name: joined([run[name] for run in runs]) for name in first}
    if isinstance(first, np.ndarray):
        return np.concatenate(runs)
    home = type(first).__module__.partition(".")[0]
    if home == "pyarrow":
        arrow = sys.modules["pyarrow"]
        return arrow.Table.from_batches(runs) if isinstance(first, arrow.RecordBatch) else arrow.concat_tables(runs)
    if home == "pandas":
        return sys.modules["pandas"].concat(list(runs))
    if home == "torch":
        return sys.modules["torch"].cat(list(runs))
    raise TypeError(f"a {type(first).__name__} cannot be joined")


def size_bytes(records: object) -> int:
    """Return about how many bytes the records take; those of a list are told from some of them.

    Examples
    --------
    >>> size_bytes(np.zeros(10)), size_bytes([b"x" * 1000] * 100) >= 100_000
    (80, True)
    """
    if isinstance(records, dict):
        return sum(size_bytes(column) for column in records.values())
    nbytes = getattr(records, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(records, list | tuple) and records:
        some = records[:: max(1, len(records) // _SAMPLED)]
        return int(sum(map(_value_bytes, some)) / len(some) * len(records))
    return sys.getsizeof(records)


def _value_bytes(value: object) -> int:
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(_value_bytes, value.values()))
    if isinstance(value, list | tuple) and not isinstance(value, str):
        return sys.getsizeof(value) + size_bytes(value)
    return int(getattr(value, "nbytes", 0)) or sys.getsizeof(value)


def is_frame(value: object) -> bool:
    """Return whether a value is a pandas DataFrame or Series."""
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "iloc")


def is_table(value: object) -> bool:
    """Return whether a value is an Arrow table, or a batch of rows of one."""
    return hasattr(value, "num_rows") and hasattr(value, "slice")


class PackedTable(NamedTuple):
    """A table as a stream in Arrow's own format; pickling a slice of a table would take all that it was cut from."""

    stream: NDArray[np.uint8]


def packed(records: object) -> object:
    """Return records as they travel."""
    if not is_table(records) or "pyarrow" not in sys.modules:
        return records
    import pyarrow as pa

    counted = pa.MockOutputStream()
    _write(records, counted)
    stream = np.empty(counted.size(), np.uint8)
    _write(records, pa.FixedSizeBufferWriter(pa.py_buffer(stream)))
    return PackedTable(stream)


def unpacked(records: object) -> object:
    """Return records as they were, without a copy."""
    if not isinstance(records, PackedTable):
        return records
    import pyarrow as pa

    return pa.ipc.open_stream(pa.py_buffer(records.stream)).read_all()


def _write(table: pyarrow.Table, sink: object) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
