"""Records in tables: Parquet, Arrow, CSV and JSON lines, in files, folders and object stores, read as a stream.

In: paths and URLs. Out: pieces that are Arrow tables, each of one file. It must not load a whole file, nor import
pyarrow before a table is asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hetero.batch.base import Piece, Source
from hetero.batch.storage import Blob, arrow_files, find, look, suffix_of
from hetero.floor.errors import BadValueError, HeteroError, did_you_mean
from hetero.floor.extras import missing
from hetero.stores.urls import first_line, storage_of

if TYPE_CHECKING:
    import pyarrow.dataset

    from hetero.stores.urls import Storage

__all__ = ["FORMATS", "Tables"]

FORMATS: dict[str, str] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
"""The format of a file, by its suffix."""

OURS = ("manifest.json", "quarantine.jsonl")
"""What a run of bulk work writes beside its tables."""

_COUNTED = ("parquet", "arrow")
_PIECE_BYTES = 4 << 20
_PIECE_ROWS = 1 << 17
_AHEAD = 4
_FILES_AHEAD = 1


class _File(NamedTuple):
    """One file: itself, how Arrow reads it, and its rows where that can be told without reading it."""

    blob: Blob
    fragment: pyarrow.dataset.Fragment
    rows: int | None


class Tables(Source):
    """Records in the rows of tables; the function gets them as an Arrow table.

    Parameters
    ----------
    path
        Of a file, a folder, a pattern as in 'data/*.parquet', or a URL of one; or several of these.
    columns
        To be read, None for all.
    storage
        Options of an object store, as {'endpoint': 'http://…', 'region': '…'}; what is not given comes from the
        environment.

    Raises
    ------
    BadValueError
        There is no such file, it is of no known format, or the files differ in format or schema.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> with path.open("w") as file:
    ...     print("x,y", "1,2", "3,4", sep=chr(10), file=file)
    >>> next(Tables(path, columns=["y"]).read()).records.to_pydict()
    {'y': [2, 4]}
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        columns: Sequence[str] | None = None,
        storage: Mapping[str, object] | None = None,
    ) -> None:
        self._storage = storage_of(storage)
        blobs = find(path, self._storage, [f"*{suffix}" for suffix in FORMATS], OURS)
        self._form = _form(blobs)
        self._arrow_form = _arrow_form(self._form)
        self._files = [self._opened(blob) for blob in blobs]
        self._schema = _schema(self._files, self._form in _COUNTED, columns)

    @property
    def length(self) -> int | None:
        """How many rows there are, None for text formats."""
        return sum(file.rows or 0 for file in self._files) if self._form in _COUNTED else None

    def identity(self) -> str:
        r"""Name the files by path, size and mark, and the columns by name and type.

        Examples
        --------
        >>> import hetero, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
        >>> _ = path.write_text("x,y\n1,2\n3,4\n")
        >>> hetero.batch.Tables(path).identity() == hetero.batch.Tables(path, columns=["y"]).identity()
        False
        """
        words = repr([tuple(file.blob) for file in self._files] + [str(self._schema.remove_metadata())])
        rows = "" if self.length is None else f" with {self.length} rows"
        return f"{len(self._files)} files{rows}, {hashlib.blake2b(words.encode(), digest_size=8).hexdigest()}"

    def read(self, begin: int = 0) -> Iterator[Piece]:
        r"""Yield the rows from one on; whole files and row groups before it are passed over unread.

        Examples
        --------
        >>> import hetero, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
        >>> _ = path.write_text("x,y\n1,2\n3,4\n")
        >>> next(hetero.batch.Tables(path).read(1)).records.to_pylist()
        [{'x': 3, 'y': 4}]
        """
        import pyarrow as pa

        files, skip = list(self._files), begin
        while files and files[0].rows is not None and files[0].rows <= skip:
            skip -= files.pop(0).rows or 0
        if not files:
            return
        at = _Cursor(files, self._storage)
        fragments = [file.fragment for file in files]
        if self._form == "parquet":
            fragments[0], at.row = _from_row(fragments[0], skip)
            skip -= at.row
        try:
            for tagged in self._scanned(fragments):
                batch = tagged.record_batch
                row = at.reach(tagged.fragment.path, batch.num_rows)
                gone = min(skip, batch.num_rows)
                skip -= gone
                if gone < batch.num_rows:
                    yield Piece(pa.Table.from_batches([batch.slice(gone)]), at.path, row + gone)
            at.end()
        except (pa.ArrowException, OSError) as error:
            where, why = self._culprit(at, error)
            raise HeteroError(f"{where} cannot be read: {first_line(why)}", remedy="mend the file") from error

    def _culprit(self, at: _Cursor, error: Exception) -> tuple[str, Exception]:
        """Return the place that cannot be read, and why: a scan reads ahead and does not say where it failed."""
        import pyarrow as pa

        for file in at.left[: _FILES_AHEAD + 1]:
            rows = 0
            try:
                for part in file.fragment.split_by_row_group() if self._form == "parquet" else (file.fragment,):
                    for batch in part.scanner(self._schema, use_threads=False).scan_batches():
                        rows += batch.record_batch.num_rows
            except (pa.ArrowException, OSError) as why:
                return f"{file.blob.path} after row {rows}", why
        return str(at), error

    def _opened(self, blob: Blob) -> _File:
        import pyarrow as pa

        files, path = arrow_files(blob.path, self._storage)
        fragment = self._arrow_form.make_fragment(path, filesystem=files)
        try:
            _ = fragment.physical_schema
            return _File(blob, fragment, fragment.count_rows() if self._form in _COUNTED else None)
        except (pa.ArrowException, OSError) as error:
            raise BadValueError(
                f"{blob.path} cannot be read as {self._form}: {first_line(error)}", remedy="mend or remove the file"
            ) from error

    def _scanned(self, fragments: Sequence[pyarrow.dataset.Fragment]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow.dataset as ds

        data = ds.FileSystemDataset(fragments, self._schema, self._arrow_form, fragments[0].filesystem)
        scanner = data.scanner(
            batch_size=_piece_rows(fragments[0]),
            batch_readahead=_AHEAD,
            fragment_readahead=_FILES_AHEAD,
            # Arrow's reader of JSON waits in a thread of its pool for another one: with one thread, for ever.
            use_threads=self._form != "jsonl",
        )
        found: Iterator[object] = scanner.scan_batches()
        return found


class _Cursor:
    """Where a scan stands: sees that each file gave the rows that it said, and was not changed meanwhile."""

    def __init__(self, files: Sequence[_File], storage: Storage) -> None:
        self._files, self._storage = list(files), storage
        self.row = 0
        self._behind = 0

    @property
    def left(self) -> Sequence[_File]:
        """The file that is read and those after it."""
        return self._files

    @property
    def path(self) -> str:
        """Of the file that is read."""
        return self._files[0].blob.path

    def __str__(self) -> str:
        return f"{self.path} after row {self._behind}"

    def reach(self, opened: str, rows: int) -> int:
        """Go on by some rows of a file as Arrow names it; returns the first one's number."""
        while self._files[0].fragment.path != opened:
            self._close()
        row = self.row
        self.row += rows
        self._behind = self.row
        return row

    def end(self) -> None:
        """Close every file that is left."""
        while len(self._files) > 1:
            self._close()
        self._check()

    def _close(self) -> None:
        self._check()
        del self._files[0]
        self.row = self._behind = 0

    def _check(self) -> None:
        file = self._files[0]
        if look(file.blob.path, self._storage) != file.blob:
            raise HeteroError(f"{file.blob.path} changed while it was read", remedy="begin anew with overwrite")
        if file.rows is not None and self.row != file.rows:
            raise HeteroError(f"{file.blob.path} gave {self.row} of {file.rows} rows", remedy="mend the file")


def _form(blobs: Sequence[Blob]) -> str:
    """Return the one format of some files."""
    forms: dict[str, str] = {}
    for blob in blobs:
        suffix = suffix_of(blob.path)
        if suffix not in FORMATS:
            raise BadValueError(
                f"{blob.path} is no table{did_you_mean(suffix, FORMATS)}", remedy=f"known: {', '.join(FORMATS)}"
            )
        forms.setdefault(FORMATS[suffix], blob.path)
    if len(forms) > 1:
        raise BadValueError(f"files of several formats: {' and '.join(forms.values())}", remedy="name those of one")
    return next(iter(forms))


def _arrow_form(form: str) -> pyarrow.dataset.FileFormat:
    try:
        import pyarrow.csv
        import pyarrow.dataset as ds
    except ImportError as error:
        raise missing("pyarrow", "reading tables") from error
    if form in ("csv", "tsv"):
        return ds.CsvFileFormat(pyarrow.csv.ParseOptions(delimiter="\t" if form == "tsv" else ","))
    if form == "parquet":
        return ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        )
    return {"arrow": ds.IpcFileFormat, "jsonl": ds.JsonFileFormat}[form]()


def _schema(files: Sequence[_File], typed: bool, columns: Sequence[str] | None) -> pyarrow.Schema:
    """Return the one schema of some files; text files may differ in what their numbers look like."""
    import pyarrow as pa

    schemas = [_chosen(file, columns) for file in files]
    first = schemas[0]
    for file, schema in zip(files, schemas, strict=True):
        if schema.names != first.names or (typed and not schema.equals(first)):
            differing = [field for field in schema if field not in first] or list(schema)
            raise BadValueError(
                f"{file.blob.path} has the columns {_words(schema)}; {files[0].blob.path} has {_words(first)}"
                if schema.names != first.names
                else f"{file.blob.path} has {_words(differing)}; {files[0].blob.path} has "
                f"{_words([first.field(field.name) for field in differing])}",
                remedy="name files of one schema, or the columns that they share",
            )
    if typed:
        return first
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise BadValueError(
            f"the files do not go together: {first_line(error)}", remedy="name files of one schema"
        ) from error


def _chosen(file: _File, columns: Sequence[str] | None) -> pyarrow.Schema:
    import pyarrow as pa

    schema = file.fragment.physical_schema.remove_metadata()
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise BadValueError(
                f"{file.blob.path} has no column {name!r}{did_you_mean(name, schema.names)}",
                remedy=f"it has {', '.join(schema.names)}",
            )
    return pa.schema([schema.field(name) for name in columns])


def _words(fields: Iterable[pyarrow.Field]) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in fields)


def _from_row(fragment: pyarrow.dataset.Fragment, row: int) -> tuple[pyarrow.dataset.Fragment, int]:
    """Return the row groups of a Parquet file from the one that holds a row on, and the first row of these."""
    at, groups = 0, fragment.row_groups
    for number, group in enumerate(groups):
        if at + group.num_rows > row:
            return (fragment.subset(row_group_ids=range(number, len(groups))) if number else fragment), at
        at += group.num_rows
    return fragment, 0


def _piece_rows(fragment: object) -> int:
    """Return the rows of a piece of bounded size, as far as the file's footer tells how large a row is."""
    groups = getattr(fragment, "row_groups", None)
    if not groups or not groups[0].num_rows:
        return _PIECE_ROWS
    row_bytes = max(1, groups[0].total_byte_size // groups[0].num_rows)
    return int(max(1, min(_PIECE_ROWS, _PIECE_BYTES // row_bytes)))
