"""Sources of records that the program holds: sequences, generators, arrays, memory maps, and what Arrow has opened.

In: such a value, or a `.npy` file. Out: pieces of it. It must not copy an array, nor import pyarrow before the source
is read: who has such a value has imported it.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hetero.batch.base import Piece, Source
from hetero.batch.records import count, cut, size_bytes
from hetero.floor.documents import read_array
from hetero.floor.errors import BadValueError, HeteroError
from hetero.session.identity import value_identity

if TYPE_CHECKING:
    import pyarrow.dataset
    import torch

__all__ = [
    "ArraySource",
    "DatasetSource",
    "GeneratorSource",
    "NpySource",
    "ReaderSource",
    "SequenceSource",
    "is_dataset",
    "is_reader",
]

_PIECE = 4096
_PIECE_BYTES = 1 << 20
_SAMPLED = 64
_PEEKED = 4

_COUNTED = ("parquet", "ipc", "feather")
_PIECE_ROWS = 1 << 17


class SequenceSource(Source):
    """Records in a list, a tuple, a range, or whatever else has a length and gives its records by their numbers.

    Parameters
    ----------
    records
        Not to be changed while it is read.
    """

    def __init__(self, records: Sequence[object]) -> None:
        self._records = records

    @property
    def length(self) -> int:
        """How many records there are."""
        return len(self._records)

    def identity(self) -> str:
        """Name the sequence by its length and its records; one that makes them by what it is, and some of them."""
        if isinstance(self._records, list | tuple | range):
            return f"sequence of {len(self._records)}, {value_identity(self._records)}"
        step = max(1, len(self._records) // _SAMPLED)
        some = [self._records[place] for place in range(0, len(self._records), step)]
        return f"sequence of {len(self._records)}, {value_identity([self._records, some])}"

    def read(self, begin: int = 0) -> Iterator[Piece]:
        """Yield the records from item `begin` on."""
        for place in range(begin, len(self._records), _PIECE):
            yield Piece(self._run(place, min(place + _PIECE, len(self._records))), "items", place)

    def _run(self, begin: int, end: int) -> list[object]:
        if isinstance(self._records, Sequence):
            return list(self._records[begin:end])
        return [self._records[place] for place in range(begin, end)]


class ArraySource(Source):
    """Records in an array's first axis, or in a dict of arrays, a tensor or an Arrow table.

    Parameters
    ----------
    records
        Not to be changed while it is read; a memory map is read as it is needed.
    name
        For the places of its records.
    """

    def __init__(self, records: object, name: str = "items") -> None:
        self._records = records
        self._name = name
        self._length = count(records)

    @property
    def length(self) -> int:
        """How many records there are."""
        return self._length

    def identity(self) -> str:
        """Name the array by its shape, its type and all of its records."""
        columns = self._records if isinstance(self._records, dict) else {"": self._records}
        words = [
            f"{name} {getattr(array, 'dtype', '')} {getattr(array, 'shape', '')}" for name, array in columns.items()
        ]
        return f"array {'; '.join(words)}, {value_identity(_mapped(self._records))}"

    def read(self, begin: int = 0) -> Iterator[Piece]:
        """Yield the records from item `begin` on, in one piece."""
        if begin < self._length:
            yield Piece(cut(self._records, begin, self._length), self._name, begin)


class NpySource(ArraySource):
    """Records in the first axis of a `.npy` file, mapped into memory and read as they are needed.

    Raises
    ------
    BadValueError
        The file is absent or is no array file.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__(read_array(path, BadValueError), str(path))
        self._path = Path(path)

    def identity(self) -> str:
        """Name the file by its path, size and time of change."""
        status = self._path.stat()
        return f"file {self._path} of {status.st_size} bytes at {status.st_mtime_ns}"


class GeneratorSource(Source):
    """Records that are made one after the other.

    Parameters
    ----------
    make
        An iterable, or a function that gives a fresh iterator each time, so that a run can be resumed.
    length
        How many there will be, None where unknown.
    name
        The same for the same records; a run is resumed under it.

    Raises
    ------
    HeteroError
        From `read`: a plain iterator is read a second time, or it ended before or after the length said.
    """

    def __init__(
        self, make: Iterable[object] | Callable[[], Iterable[object]], length: int | None = None, name: str = ""
    ) -> None:
        self._make = make
        self._length = length
        self._name = name or getattr(make, "__qualname__", type(make).__name__)
        self._named = bool(name)
        self._spent = False

    @property
    def length(self) -> int | None:
        """How many records there will be, None where unknown."""
        return self._length

    def identity(self) -> str:
        """Name the generator: as its user did, or by what makes it; one that nobody can tell is like no other."""
        told = f"generator {self._name} of {self._length}"
        if self._named:
            return told
        if callable(self._make):
            return f"{told}, {value_identity(self._make)}"
        return f"{told} without name=, {uuid.uuid4().hex[:16]}"

    def read(self, begin: int = 0) -> Iterator[Piece]:
        """Make the records from item `begin` on; those before are made and dropped."""
        records = self._fresh()
        place = sum(1 for _ in itertools.islice(records, begin))
        size = _PEEKED
        while found := list(itertools.islice(records, size)):
            if self._length is not None and place + len(found) > self._length:
                raise HeteroError(f"{self._name} gave more than the {self._length} records it said", remedy=_TELL)
            yield Piece(found, "items", place)
            place += len(found)
            size = max(1, min(2 * size, _PIECE, int(_PIECE_BYTES * len(found) / max(1, size_bytes(found)))))
        if self._length is not None and place < self._length:
            raise HeteroError(f"{self._name} ended after {place} of {self._length} records", remedy=_TELL)

    def peek(self) -> Piece | None:
        """Return the first records; a plain iterator still gives it afterwards."""
        if callable(self._make) or iter(self._make) is not self._make:
            return super().peek()
        found = list(itertools.islice(self._make, _PEEKED))
        self._make = itertools.chain(found, self._make)
        return Piece(found, "items", 0) if found else None

    def _fresh(self) -> Iterator[object]:
        if callable(self._make):
            return iter(self._make())
        records = iter(self._make)
        if self._spent and records is self._make:
            raise HeteroError(
                f"{self._name} was read before and cannot begin again", remedy="give a function that makes it"
            )
        self._spent = True
        return records


_TELL = "give the right length, or none"


def _mapped(records: object) -> object:
    """Return records whose arrays that are mapped from files are plain ones, which are read without a copy."""
    if isinstance(records, dict):
        return {name: _mapped(column) for name, column in records.items()}
    return records.view(np.ndarray) if isinstance(records, np.memmap) else records


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
    dataset
        Of any format and file system, also one with a filter; its files must not change meanwhile.

    Notes
    -----
    A run that is resumed scans what comes before its place once more; `hetero.batch.Tables` passes over whole files.
    """

    def __init__(self, dataset: torch.utils.data.Dataset) -> None:
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
    reader
        As a database or `pyarrow.dataset.Scanner.to_reader` gives it.

    Raises
    ------
    HeteroError
        From `read`: the reader was read before, or the run is resumed.
    """

    def __init__(self, reader: pyarrow.RecordBatchReader) -> None:
        self._reader = reader
        self._first: list[object] = []
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

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        return (batch for batch in self._reader if batch.num_rows)


def _table(batch: object) -> pyarrow.Table:
    import pyarrow as pa

    return pa.Table.from_batches([batch])
