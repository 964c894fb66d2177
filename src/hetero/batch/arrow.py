"""Records of what Arrow has opened already: data sets, with their filters, and readers of batches.

In: a `pyarrow.dataset.Dataset` or a `pyarrow.RecordBatchReader`. Out: pieces that are Arrow tables.
It must not import pyarrow before the source is read: who has such a value has imported it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

from hetero.batch.base import Piece, Source
from hetero.floor.errors import HeteroError
from hetero.session.identity import value_identity

__all__ = ["DatasetSource", "ReaderSource", "is_dataset", "is_reader"]

_COUNTED = ("parquet", "ipc", "feather")
_PIECE_ROWS = 1 << 17


def is_dataset(value: object) -> bool:
    """Return whether a value is an Arrow data set."""
    return hasattr(value, "scanner") and hasattr(value, "schema")


def is_reader(value: object) -> bool:
    """Return whether a value gives Arrow record batches one after the other."""
    return hasattr(value, "read_next_batch")


class DatasetSource(Source):
    """Records in the rows of an Arrow data set, as it scans them.

    Parameters
    ----------
    dataset : of any format and file system, also one with a filter; its files must not change meanwhile

    Notes
    -----
    A run that is resumed scans what comes before its place once more; `hetero.Tables` passes over whole files.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        form = getattr(getattr(dataset, "format", None), "default_extname", "")
        self._length = int(dataset.count_rows()) if form in _COUNTED else None

    @property
    def length(self) -> int | None:
        """How many rows there are, None for text formats."""
        return self._length

    def identity(self) -> str:
        """Name the files with their sizes and times of change, and the columns by name and type."""
        files = list(getattr(self._dataset, "files", ()))
        looked = self._dataset.filesystem.get_file_info(files) if files else ()
        marks = [(info.path, info.size, info.mtime_ns) for info in looked]
        words = repr([marks, str(self._dataset.schema.remove_metadata()), self._length, self._taken(bool(files))])
        return f"data set of {len(files)} files, {hashlib.blake2b(words.encode(), digest_size=8).hexdigest()}"

    def _taken(self, of_files: bool) -> str:
        """Return what is taken of it: its filter, and all of its rows where they lie in memory."""
        scan = str(getattr(self._dataset, "_scan_options", ""))
        if of_files:
            return scan
        return f"{scan} {value_identity([piece.records for piece in self.read()])}"

    def read(self, begin: int = 0) -> Iterator[Piece]:
        """Yield the rows from one on."""
        file, row = "", 0
        for tagged in self._dataset.scanner(batch_size=_PIECE_ROWS).scan_batches():
            path, batch = getattr(tagged.fragment, "path", "items"), tagged.record_batch
            row = row if path == file else 0
            file = path
            gone = min(begin, batch.num_rows)
            begin -= gone
            if gone < batch.num_rows:
                yield Piece(_table(batch.slice(gone)), file, row + gone)
            row += batch.num_rows


class ReaderSource(Source):
    """Records in the rows that a reader of Arrow record batches gives, once.

    Parameters
    ----------
    reader : as a database or `pyarrow.dataset.Scanner.to_reader` gives it

    Raises
    ------
    HeteroError
        From `read`: the reader was read before, or the run is resumed.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._first: list[Any] = []
        self._spent = False

    @property
    def length(self) -> None:
        """Nobody knows how many rows there are."""
        return None

    def identity(self) -> str:
        """Name the columns by name and type."""
        return f"reader of {self._reader.schema.remove_metadata()}"

    def read(self, begin: int = 0) -> Iterator[Piece]:
        """Yield the rows, from the first one on."""
        if self._spent or begin:
            raise HeteroError(
                "a reader of record batches gives its rows once and cannot begin again",
                remedy="give the data set or the files that it reads",
            )
        self._spent = True
        row = 0
        for batch in itertools.chain(self._first, self._batches()):
            yield Piece(_table(batch), "items", row)
            row += batch.num_rows

    def peek(self) -> Piece | None:
        """Return the first rows, which are read again later."""
        if not self._first:
            self._first = list(itertools.islice(self._batches(), 1))
        return Piece(_table(self._first[0]), "items", 0) if self._first else None

    def _batches(self) -> Iterator[Any]:
        return (batch for batch in self._reader if batch.num_rows)


def _table(batch: Any) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches([batch])
