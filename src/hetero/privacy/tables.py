"""Tables that are read piece by piece, and written whole or not at all: CSV and Parquet, a file or a folder of them.

In: paths. Out: pieces that devices read, and files that appear under their names when all is done. It must not know
what becomes of a column. The cells of CSV are text, so that '007' stays what it is.
"""

from __future__ import annotations

import csv
import io
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from hetero.floor.errors import BadValueError, FileError, HeteroError, did_you_mean
from hetero.floor.files import local_path, output_file, sync_folder
from hetero.floor.text import single_line

__all__ = ["InputTables", "OutputTables", "TablePiece", "check_not_read", "csv_bytes"]

_FORMS = {".csv": "csv", ".parquet": "parquet"}
_PIECE_ROWS = 1 << 18
_BLOCK_BYTES = 8 << 20
_GROUP_ROWS = 1 << 17
_RAGGED = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_LOOKED_AT = 1 << 20


class _InputFile(NamedTuple):
    """One file, with what changes when it is written to."""

    path: Path
    mark: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TablePiece:
    """Consecutive rows of one file.

    Attributes
    ----------
    file
        Number of the file.
    path
        Of the file, as it was given.
    place
        The same from the root on, since workers have folders of their own.
    groups
        Row groups of a Parquet file.
    columns
        To be read.
    coded
        Those of text that are read as dictionaries.
    table
        Rows that are read already.
    """

    file: int
    path: Path
    place: Path
    groups: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    coded: tuple[str, ...] = ()
    table: pa.Table | None = None

    def load(self) -> pa.Table:
        """Return the rows.

        Raises
        ------
        FileError
            The file cannot be read.
        """
        if self.table is not None:
            return self.table
        try:
            with pq.ParquetFile(self.place, read_dictionary=list(self.coded), page_checksum_verification=True) as file:
                return file.read_row_groups(list(self.groups), list(self.columns), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.path, "parquet") from error


class InputTables:
    """The tables that a path names, all of one format and with the same columns.

    Parameters
    ----------
    source
        A CSV or Parquet file, or a folder of such files.

    Raises
    ------
    BadValueError
        There is no such file, or the files differ in format or columns.
    """

    def __init__(self, source: str | Path) -> None:
        self.source = Path(source).expanduser()
        paths = _found(self.source)
        forms = {_form(path): path for path in paths}
        if len(forms) > 1:
            words = " and ".join(single_line(path) for path in forms.values())
            raise BadValueError(f"files of several formats: {words}", remedy="name those of one")
        self.form = next(iter(forms))
        self.files = tuple(_InputFile(path, _mark(path)) for path in paths)
        schemas = [_schema(path, self.form) for path in paths]
        for path, schema in zip(paths, schemas, strict=True):
            if not schema.equals(schemas[0]):
                raise BadValueError(
                    f"{single_line(path)} and {single_line(paths[0])} differ in their columns",
                    remedy="name files with the same columns and types",
                )
        self.schema = schemas[0]

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return list(self.schema.names)

    def pieces(self, columns: Sequence[str] | None = None, coded: Collection[str] = ()) -> Iterator[TablePiece]:
        """Yield the rows of all files in order; a file without rows gives one piece without rows.

        Parameters
        ----------
        columns
            To be read, None for all.
        coded
            Those that are best read as dictionaries.

        Raises
        ------
        FileError
            A file cannot be read, or has changed since it was first looked at.
        """
        names = tuple(columns or self.names)
        words = tuple(name for name in names if name in coded and _is_text(self.schema.field(name).type))
        for number, file in enumerate(self.files):
            piece = TablePiece(number, file.path, file.path.absolute(), (), names, words)
            none = True
            for each in self._groups(piece) if self.form == "parquet" else self._blocks(piece):
                none = False
                yield each
            if none:
                yield replace(piece, table=self.schema.empty_table().select(names))
            if _mark(file.path) != file.mark:
                raise FileError(
                    f"{file.path}: it changed while it was read", remedy="begin anew when nothing writes to it"
                )

    def _groups(self, piece: TablePiece) -> Iterator[TablePiece]:
        with pq.ParquetFile(piece.place) as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        begin = rows = 0
        for group, size in enumerate(sizes):
            rows += size
            if rows >= _PIECE_ROWS or group + 1 == len(sizes):
                yield replace(piece, groups=tuple(range(begin, group + 1)))
                begin, rows = group + 1, 0

    def _blocks(self, piece: TablePiece) -> Iterator[TablePiece]:
        try:
            with _csv_reader(piece.place, self.names, piece.columns) as reader:
                for batch in reader:
                    yield replace(piece, table=pa.Table.from_batches([batch]))
        except (pa.ArrowException, OSError) as error:
            raise _broken(piece.path, error) from None  # what Arrow says holds the row


def _csv_reader(path: Path, names: Sequence[str], columns: tuple[str, ...] | None = None) -> pa.RecordBatchReader:
    return pyarrow.csv.open_csv(
        path,
        pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
        pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            include_columns=columns,
        ),
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _found(source: Path) -> list[Path]:
    try:
        if source.is_dir():
            there = sorted(path for path in source.iterdir() if path.is_file() and not path.name.startswith((".", "_")))
            if not there:
                raise BadValueError(
                    f"{single_line(source)} holds no file", remedy="name a folder of CSV or Parquet files"
                )
            return there
        if source.is_file():
            return [source]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadValueError(f"{single_line(source)} cannot be read: {why}", remedy="name another file") from error
    raise BadValueError(f"there is no file or folder {single_line(source)}", remedy="give the path of one")


def _form(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in _FORMS:
        raise BadValueError(
            f"{single_line(path)} is no table{did_you_mean(suffix, _FORMS)}", remedy=f"known: {', '.join(_FORMS)}"
        )
    return _FORMS[suffix]


def _mark(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", remedy="check the path") from error
    return status.st_size, status.st_mtime_ns


def _schema(path: Path, form: str) -> pa.Schema:
    """Return the columns of a file, without what it says besides."""
    try:
        if form == "parquet":
            schema = pq.read_schema(path).remove_metadata()
            names = schema.names
        else:
            names = _header(path)
            _check_closed(path)
            schema = pa.schema([(name, pa.string()) for name in names])
            if names:
                with _csv_reader(path, names) as reader:
                    if reader.schema.names != names:
                        raise _broken(path, ValueError())
    except (pa.ArrowException, OSError) as error:
        raise (_unreadable(path, form) if form == "parquet" else _broken(path, error)) from None
    if not names:
        raise FileError(f"{path}: it has no column", remedy="give a table with a header")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FileError(f"{path}: the column {twice!r} is there twice", remedy="name each column once")
    return pa.schema([field.remove_metadata() for field in schema])


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            return next(csv.reader(io.StringIO(file.read(_LOOKED_AT), newline="")), [])
        except (UnicodeDecodeError, csv.Error):
            raise _broken(path, ValueError("UTF8")) from None


def _check_closed(path: Path) -> None:
    """Refuse a file in which a quotation mark is left open: all that follows would be read as one cell."""
    with path.open("rb") as file:
        if sum(block.count(b'"') for block in iter(partial(file.read, _BLOCK_BYTES), b"")) % 2:
            remedy = "close it, or write it twice in a cell between quotation marks"
            raise FileError(f"{path}: a quotation mark is not closed", remedy=remedy)


def _unreadable(path: Path, form: str) -> FileError:
    return FileError(f"{path} cannot be read as {form}", remedy="write it again")


def _broken(path: Path, error: BaseException) -> FileError:
    """Word what is wrong with a CSV file, without what stands in it."""
    found = _RAGGED.search(str(error))
    if found is None:
        word = "it is not UTF-8 text" if "UTF8" in str(error) else "it cannot be read as CSV"
        return FileError(f"{path}: {word}", remedy="save it as CSV in UTF-8")
    row = f"row {found[1]}" if found[1] else "a row"
    problem = f"{path}: {row} has {found[3]} cells, and there are {found[2]} columns"
    return FileError(problem, remedy="mend the row, or put quotation marks around a cell with a comma")


# --- writing ------------------------------------------------------------------------------------------------


def csv_bytes(table: pa.Table, header: bool = False) -> bytes:
    """Return rows as CSV."""
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(table, sink, pyarrow.csv.WriteOptions(include_header=header))
    found: bytes = sink.getvalue().to_pybytes()
    return found


class OutputTables:
    """The files that a run writes: under other names until `finish`, and gone after `abort`.

    Parameters
    ----------
    output
        A file for a file, a folder for a folder.
    inputs
        What is read.
    read
        Other files that are read, which must not be written over.

    Raises
    ------
    BadValueError
        It is what is read, cannot be written, or is a folder with files.
    """

    def __init__(self, output: str | Path, inputs: InputTables, read: Sequence[Path] = ()) -> None:
        self._many = inputs.source.is_dir()
        path = local_path(output, "output")
        self.path = path if self._many else output_file(path, "output")
        check_not_read(self.path, "output", inputs, read)
        if self._many:
            check_not_read(self.path.parent, "output", inputs, read)
        if not self.path.absolute().parent.is_dir():
            raise BadValueError(f"output: {single_line(self.path.parent)} is no folder", remedy="make it first")
        self.form = inputs.form if self._many else _form(self.path)
        if self._many:
            self._check_folder()
        self._spare = self.path.absolute().parent / f".{self.path.name}.{secrets.token_hex(8)}"
        self._names = [file.path.name for file in inputs.files]
        self._number = -1
        self._writer: _CsvFile | _ParquetFile | None = None

    def _check_folder(self) -> None:
        if os.path.lexists(self.path) and (not self.path.is_dir() or any(self.path.iterdir())):
            raise BadValueError(f"output: {single_line(self.path)} is no empty folder", remedy="name a new one")

    def write(self, file: int, rows: pa.Table | bytes, empty: pa.Table) -> None:
        """Write rows of a file, after those of the files before it.

        Parameters
        ----------
        file
            Its number.
        rows
            A table, or CSV without a header.
        empty
            A table without rows that has the columns.
        """
        try:
            if file != self._number:
                self._close_file()
                place = self._spare
                if self._many:
                    self._spare.mkdir(exist_ok=True)
                    place = self._spare / self._names[file]
                self._number = file
                self._writer = (_CsvFile if self.form == "csv" else _ParquetFile)(place, empty)
            assert self._writer is not None
            self._writer.write(rows)
        except OSError as error:
            raise self._refused(error) from error

    def finish(self) -> None:
        """Put the files under their names."""
        try:
            self._close_file()
            if self._many:
                sync_folder(self._spare)
                if self.path.is_dir():
                    self.path.rmdir()
            os.replace(self._spare, self.path)
            sync_folder(self.path.absolute().parent)
        except OSError as error:
            raise self._refused(error) from error

    def abort(self) -> None:
        """Remove what was written; nothing is left after `finish`."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._spare.is_dir():
            shutil.rmtree(self._spare, ignore_errors=True)
        self._spare.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close(whole=True)
            self._writer = None

    def _refused(self, error: OSError) -> HeteroError:
        return HeteroError(
            f"{single_line(self.path)} cannot be written: {error.strerror or error}",
            remedy="name a place that can be written and has room",
        )


class _CsvFile:
    """A CSV file that grows."""

    def __init__(self, path: Path, empty: pa.Table) -> None:
        self._file = path.open("xb")
        self._file.write(csv_bytes(empty, header=True))

    def write(self, rows: pa.Table | bytes) -> None:
        """Append rows."""
        self._file.write(rows)

    def close(self, whole: bool = False) -> None:
        """Close the file, its bytes on the disk where it is whole."""
        if whole:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()


class _ParquetFile:
    """A Parquet file that grows by row groups of one size, however its rows come."""

    def __init__(self, path: Path, empty: pa.Table) -> None:
        self._file = path.open("xb")
        repeating = [field.name for field in empty.schema if not pa.types.is_floating(field.type)]
        self._writer = pq.ParquetWriter(
            self._file, empty.schema, use_dictionary=repeating, store_schema=False, write_page_checksum=True
        )
        self._left: list[pa.Table] = []
        self._rows = 0

    def write(self, rows: pa.Table | bytes) -> None:
        """Append rows."""
        self._left.append(rows)
        self._rows += len(rows)
        if self._rows >= _GROUP_ROWS:
            self._write_groups(self._rows - self._rows % _GROUP_ROWS)

    def _write_groups(self, rows: int) -> None:
        table = pa.concat_tables(self._left)
        for begin in range(0, rows, _GROUP_ROWS):
            group = table.slice(begin, min(_GROUP_ROWS, rows - begin)).combine_chunks()
            self._writer.write_table(group, row_group_size=_GROUP_ROWS)
        self._left, self._rows = [table.slice(rows)], table.num_rows - rows

    def close(self, whole: bool = False) -> None:
        """Close the file, its last rows written and its bytes on the disk where it is whole."""
        if whole and self._rows:
            self._write_groups(self._rows)
        self._writer.close()
        if whole:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()


def check_not_read(path: Path, what: str, inputs: InputTables, read: Sequence[Path]) -> None:
    """Refuse to write over what is read.

    Parameters
    ----------
    path
        To be written.
    what
        Names the option in the message.
    inputs, read
        Tables and other files that are read.
    """
    if any(_same(path, other) for other in (*(file.path for file in inputs.files), inputs.source, *read)):
        raise BadValueError(f"{what}: {single_line(path)} is what is read", remedy="name another file or folder")


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.absolute() == other.absolute()
