"""Results as Parquet files in a folder: tables, dicts of columns, arrays, or rows as dicts.

In: parts. Out: `part-00000.parquet` and so on, all of one schema. It must not import pyarrow before a part is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hetero.batch.base import Found, Job, Part
from hetero.batch.records import Records, is_frame, is_table, joined
from hetero.batch.sinks import MANIFEST, QUARANTINE, FolderSink
from hetero.floor.errors import MissingPackageError, SerialisationError

if TYPE_CHECKING:
    import pyarrow.dataset

__all__ = ["ParquetSink"]

_COLUMN = "value"


class ParquetSink(FolderSink):
    """A Parquet file a part; results that are neither tables nor dicts become one column, 'value'.

    Parameters
    ----------
    folder : made where it is absent; must be empty unless the run resumes or overwrites

    Notes
    -----
    Manifest and quarantine begin with '_', so that whoever reads the folder as one table passes them over.

    Raises
    ------
    HeteroError
        From `write`: the results of a part have another schema than those before.
    """

    suffix = ".parquet"
    manifest = f"_{MANIFEST}"
    quarantine = f"_{QUARANTINE}"
    part_bytes = 32 << 20

    def __init__(self, folder: Path | str) -> None:
        try:
            import pyarrow.parquet  # noqa: F401  asked for before any work is done
        except ImportError as error:
            raise MissingPackageError(
                "Parquet files need the package pyarrow", remedy="pip install 'hetero-core[batch]'"
            ) from error
        super().__init__(folder)
        self._schema: pyarrow.Schema | None = None

    def open(self, job: Job, found: Found) -> dict[int, int]:
        """Make the folder, or see what an earlier run left in it, and of which schema that is."""
        import pyarrow.parquet as pq

        there = super().open(job, found)
        first = next((note["file"] for note in self._notes() if note["file"]), "") if there else ""
        self._schema = pq.read_schema(self.folder / first) if first else None
        return there

    def _write_file(self, path: Path, part: Part) -> int:
        import pyarrow.parquet as pq

        table = joined([_table(results, part) for results in part.results]).combine_chunks()
        if self._schema is None:
            self._schema = table.schema
        if not table.schema.equals(self._schema):
            raise SerialisationError(
                f"the results of items {part.begin} to {part.end} have the columns {_words(table.schema)}; "
                f"those before had {_words(self._schema)}",
                remedy="return the same columns and types for each batch",
            )
        with path.open("wb") as file:
            repeating = [path for field in table.schema for path in _repeating(field)]
            pq.write_table(table, file, use_dictionary=repeating, write_page_checksum=True)
            file.flush()
            os.fsync(file.fileno())
        return int(table.num_rows)


def _table(results: Records, part: Part) -> object:
    import pyarrow as pa

    if is_table(results):
        return results if isinstance(results, pa.Table) else pa.Table.from_batches([results])
    try:
        if is_frame(results) and results.ndim > 1:
            return pa.Table.from_pandas(results, preserve_index=False).replace_schema_metadata()
        if isinstance(results, Mapping):
            return pa.table({name: _column(column) for name, column in results.items()})
        if isinstance(results, list | tuple) and results and isinstance(results[0], Mapping):
            return pa.Table.from_pylist(list(results))
        return pa.table({_COLUMN: _column(results)})
    except (pa.ArrowException, TypeError) as error:
        raise SerialisationError(
            f"the results of items {part.begin} to {part.end} make no table: {str(error).splitlines()[0]}",
            remedy="return a table, a dict of columns, arrays, or dicts of numbers and text",
        ) from error


def _column(values: object) -> object:
    """Return a column; an array of more than one dimension becomes lists of fixed size."""
    import pyarrow as pa

    array = np.asarray(values) if hasattr(values, "shape") else None
    if array is None or array.ndim == 1:
        return pa.array(values if array is None else array)
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in array.shape[:0:-1]:
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _repeating(field: pyarrow.Field, above: str = "") -> Iterator[str]:
    """Yield the paths of columns whose values may repeat: a dictionary of floating-point numbers only takes time."""
    import pyarrow as pa

    path, kind = f"{above}{field.name}", field.type
    if pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            yield from _repeating(kind.field(place), f"{path}.")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _repeating(kind.value_field.with_name("element"), f"{path}.list.")
    elif not pa.types.is_floating(kind):
        yield path


def _words(schema: pyarrow.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
