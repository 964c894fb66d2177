"""Arrow tables on their way between processes: the rows that are meant and no more, in one buffer.

In: records or results. Out: the same, tables as one array of bytes, which travels through shared memory.
It must not import pyarrow where no table is: one can only come from who has imported it.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.batch.records import is_table

__all__ = ["Packed", "packed", "unpacked"]


class Packed(NamedTuple):
    """A table as a stream in Arrow's own format; pickling a slice of a table would take all that it was cut from."""

    stream: NDArray[np.uint8]


def packed(records: Any) -> Any:
    """Return records as they travel."""
    if not is_table(records) or "pyarrow" not in sys.modules:
        return records
    import pyarrow as pa

    counted = pa.MockOutputStream()
    _write(records, counted)
    stream = np.empty(counted.size(), np.uint8)
    _write(records, pa.FixedSizeBufferWriter(pa.py_buffer(stream)))
    return Packed(stream)


def unpacked(records: Any) -> Any:
    """Return records as they were, without a copy."""
    if not isinstance(records, Packed):
        return records
    import pyarrow as pa

    return pa.ipc.open_stream(pa.py_buffer(records.stream)).read_all()


def _write(table: Any, sink: Any) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
