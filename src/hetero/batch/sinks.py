"""Sinks: results collected in memory, handed to a function, or as numbered files in a folder with a manifest.

In: parts. Out: the joined results, calls, or `part-00000.*` (Parquet, NumPy or JSON lines), `quarantine.jsonl`, and
last of all `manifest.json`. Each file is there whole or not at all. It must not touch a file that it did not write.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from hetero.batch.base import BadRecord, Found, Job, Part, Place, Sink
from hetero.batch.records import Records, count, is_frame, is_table, joined
from hetero.floor.documents import JsonObject, read_record, record_of
from hetero.floor.errors import BadValueError, FileError, HeteroError, SerialisationError
from hetero.floor.extras import need
from hetero.floor.files import atomic_write, local_path, sync_folder
from hetero.floor.units import shown

if TYPE_CHECKING:
    import pyarrow.dataset

__all__ = [
    "MANIFEST",
    "QUARANTINE",
    "UNFINISHED",
    "CallSink",
    "CollectSink",
    "FolderSink",
    "JsonLinesSink",
    "NpySink",
    "ParquetSink",
]

MANIFEST = "manifest.json"
"""Written last: where it is, the run is complete."""

QUARANTINE = "quarantine.jsonl"
"""One line for each record that has no result."""

UNFINISHED = "_unfinished"
"""Holds what a run needs to go on; gone once it is complete."""

_JOB = "job.json"
_MOST_BYTES = 1_000_000_000
"""Of a manifest, which tells each bad record."""
_NOTE = {"part": int, "file": str, "begin": int, "end": int, "rows": int, "bytes": int, "sha256": str, "bad": list}
_PART = re.compile(r"part-[0-9]{5,12}\.[a-z0-9]{1,16}")


class FolderSink(Sink):
    """A folder of parts; a format writes `_write_file` only.

    Parameters
    ----------
    folder
        Made where it is absent; must be empty unless the run resumes or overwrites.

    Notes
    -----
    A part is written under another name, flushed, and renamed; then a note of it is written the same way, and
    only a part that has its note counts. The same records give the same bytes, however the run was cut or
    interrupted: nothing written depends on time, devices or batches.
    """

    durable = True
    suffix: ClassVar[str]
    manifest: ClassVar[str] = MANIFEST
    quarantine: ClassVar[str] = QUARANTINE

    def __init__(self, folder: Path | str) -> None:
        self.folder = local_path(folder, "output")
        self._unfinished = self.folder / UNFINISHED
        self._job: Job | None = None

    @abstractmethod
    def _write_file(self, path: Path, part: Part) -> int:
        """Write the results of a part to a new file and give how many rows they are.

        Raises
        ------
        SerialisationError
            A result does not go into this format; the message names the item.
        """

    @property
    def journal(self) -> Path:
        """Where batches are kept that make no whole part yet."""
        return self._unfinished / "batches"

    def open(self, job: Job, found: Found) -> dict[int, int]:
        """Make the folder, or see what an earlier run left in it."""
        self._job = job
        with _worded(self.folder):
            if found == "overwrite":
                self._clear()
            there = self._found()
            if there is None:
                self._unfinished.mkdir(parents=True, exist_ok=True)
                atomic_write(self._unfinished / _JOB, json.dumps(_head(job)).encode())
                return {}
        if found == "refuse":
            raise BadValueError(f"{self.folder} holds {there}", remedy="resume, overwrite, or name another folder")
        return self._resumed(job, there)

    def _found(self) -> str | None:
        """Return what is in the folder, None where it is empty or absent."""
        if (self.folder / self.manifest).exists():
            return "a complete run"
        if (self._unfinished / _JOB).exists():
            return "an unfinished run"
        others = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []
        others = [name for name in others if name != UNFINISHED]
        if self.folder.exists() and not self.folder.is_dir():
            raise BadValueError(f"{self.folder} is a file", remedy="name a folder for the results")
        return f"{len(others)} files of others, such as {others[0]}" if others else None

    def _resumed(self, job: Job, there: str) -> dict[int, int]:
        source = self.folder / self.manifest if (self.folder / self.manifest).exists() else self._unfinished / _JOB
        if not source.exists():
            raise BadValueError(
                f"{self.folder} holds {there} and no run", remedy="name another folder, or an empty one"
            )
        manifest = read_record(source, {"job": str, "source": str})
        if manifest["source"] != job.source:
            raise BadValueError(
                f"{self.folder} holds results of {manifest['source']}; the source is now {job.source}",
                remedy="give the source as it was, overwrite, or name another folder",
            )
        if manifest["job"] != job.key:
            raise BadValueError(
                f"{self.folder} holds the results of another function or other options",
                remedy="overwrite, or name another folder",
            )
        return {note["part"]: note["end"] for note in self._notes()}

    def _clear(self) -> None:
        """Remove what a run of ours left."""
        if (self.folder / self.manifest).exists() or (self._unfinished / _JOB).exists():
            for note in self._notes():
                if note["file"]:
                    (self.folder / note["file"]).unlink(missing_ok=True)
            for name in (self.manifest, self.quarantine):
                (self.folder / name).unlink(missing_ok=True)
            shutil.rmtree(self._unfinished, ignore_errors=True)

    def _notes(self) -> list[JsonObject]:
        manifest = self.folder / self.manifest
        if manifest.exists():
            parts = read_record(manifest, {"parts": list}, most=_MOST_BYTES)["parts"]
            return [_checked_note(note, f"{manifest}: parts.{place}") for place, note in enumerate(parts)]
        paths = sorted(self._unfinished.glob("part-*.json"))
        return [_checked_note(read_record(path, {}, most=_MOST_BYTES), str(path)) for path in paths]

    def bad(self) -> tuple[BadRecord, ...]:
        """Return the bad records of the parts that are there."""
        lines = [line for note in self._notes() for line in note["bad"]]
        return tuple(BadRecord(line["item"], Place(line["file"], line["row"]), line["reason"]) for line in lines)

    def write(self, part: Part) -> None:
        """Write a part and its note."""
        name = f"part-{part.number:05d}"
        spare = self._unfinished / f"{name}.tmp"
        with _worded(self.folder):
            try:
                rows = self._write_file(spare, part) if part.results else 0
                note = {"part": part.number, "file": f"{name}{self.suffix}" if part.results else ""}
                note |= {"begin": part.begin, "end": part.end, "rows": rows, **_checked(spare, bool(part.results))}
                if part.results:
                    os.replace(spare, self.folder / f"{name}{self.suffix}")
                    sync_folder(self.folder)
            finally:
                spare.unlink(missing_ok=True)
            note["bad"] = [record.as_dict() for record in part.bad]
            atomic_write(self._unfinished / f"{name}.json", json.dumps(note).encode())

    def close(self) -> Path:
        """Write the quarantine and the manifest, and give the folder."""
        assert self._job is not None, "a sink is opened before it is closed"
        notes = self._notes()
        with _worded(self.folder):
            if not (self.folder / self.manifest).exists():
                bad = [json.dumps(line, ensure_ascii=False) for note in notes for line in note["bad"]]
                if bad:
                    atomic_write(self.folder / self.quarantine, "".join(f"{line}\n" for line in bad).encode())
                rows = sum(note["rows"] for note in notes)
                whole = {**_head(self._job), "rows": rows, "bad": len(bad), "parts": notes}
                atomic_write(self.folder / self.manifest, (json.dumps(whole, indent=1) + "\n").encode())
            shutil.rmtree(self._unfinished, ignore_errors=True)
        return self.folder


class JsonLinesSink(FolderSink):
    """One JSON value a line, one line a result; the columns of a dict of arrays or a table become keys."""

    suffix = ".jsonl"

    def _write_file(self, path: Path, part: Part) -> int:
        rows = 0
        with path.open("w", encoding="utf-8") as file:
            for row in _rows(part):
                try:
                    text = json.dumps(row, ensure_ascii=False, default=_plain)
                except (TypeError, ValueError) as error:
                    raise SerialisationError(
                        f"result {rows} of items {part.begin} to {part.end} does not go into JSON: {error}",
                        remedy="return numbers, text, lists and dicts, or name another format",
                    ) from error
                file.write(f"{text}\n")
                rows += 1
            file.flush()
            os.fsync(file.fileno())
        return rows


class NpySink(FolderSink):
    """An array a part, in NumPy's own format; `numpy.load` reads each."""

    suffix = ".npy"

    def _write_file(self, path: Path, part: Part) -> int:
        array = _array(joined(list(part.results)))
        if array is None or array.dtype == object:
            raise SerialisationError(
                f"the results of items {part.begin} to {part.end} are no array of numbers or text",
                remedy="return arrays of one shape, or write JSON lines",
            )
        with path.open("wb") as file:
            np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        return len(array)


def _array(results: object) -> NDArray[np.generic] | None:
    try:
        return np.asarray(results)
    except ValueError:
        return None


def _checked_note(note: object, place: str) -> dict[str, object]:
    """Return the note of a part once it is seen to name a file of this folder only."""
    checked = record_of(note, _NOTE, place)
    name = checked["file"]
    if name and _PART.fullmatch(name) is None:
        problem = f"{place}: {shown(name)} is no file that a run writes"
        raise FileError(problem, remedy="name another folder for the results")
    for bad in checked["bad"]:
        record_of(bad, {"item": int, "file": str, "row": int, "reason": str}, place)
    return checked


def _head(job: Job) -> dict[str, object]:
    return {"job": job.key, "source": job.source}


def _rows(part: Part) -> Iterator[object]:
    for results in part.results:
        if hasattr(results, "to_pylist"):
            yield from results.to_pylist()
        elif is_frame(results):
            yield from results.to_dict("records") if results.ndim > 1 else results.tolist()
        elif isinstance(results, dict):
            for place in range(count(results)):
                yield {name: column[place] for name, column in results.items()}
        else:
            yield from results


def _plain(value: object) -> object:
    """Return what JSON knows for NumPy's numbers and arrays."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")


def _checked(path: Path, there: bool) -> dict[str, object]:
    if not there:
        return {"bytes": 0, "sha256": ""}
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


@contextmanager
def _worded(folder: Path) -> Iterator[None]:
    """Word what a file system refuses."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full" if full else f"cannot be written: {error.strerror or error}"
        remedy = "make room and resume; what was written is kept" if full else "name a folder that can be written"
        raise HeteroError(f"{folder}: {why}", remedy=remedy) from error


class CollectSink(Sink):
    """Keeps all results and gives them joined: a list of lists, an array of arrays, a table of tables."""

    def __init__(self) -> None:
        self._parts: dict[int, list[object]] = {}

    def open(self, job: Job, found: Found) -> dict[int, int]:
        """Prepare; nothing is there before."""
        return {}

    def write(self, part: Part) -> None:
        """Keep a part."""
        self._parts[part.number] = list(part.results)

    def close(self) -> object:
        """Return the results in the order of the items; an empty list where there are none."""
        results = [result for number in sorted(self._parts) for result in self._parts[number]]
        return joined(results) if results else []


class CallSink(Sink):
    """Hands the results of each part to a function.

    Parameters
    ----------
    function
        Of the results of some consecutive items, joined.
    part_bytes
        How much of the source one call is about.
    """

    def __init__(self, function: Callable[..., object], part_bytes: int = 1 << 20) -> None:
        self._function = function
        self.part_bytes = part_bytes

    def open(self, job: Job, found: Found) -> dict[int, int]:
        """Prepare; what the function did in an earlier run is not known."""
        return {}

    def write(self, part: Part) -> None:
        """Call the function."""
        if part.results:
            self._function(joined(list(part.results)))

    def close(self) -> None:
        """Finish; there is nothing to give."""


_COLUMN = "value"


class ParquetSink(FolderSink):
    """A Parquet file a part; results that are neither tables nor dicts become one column, 'value'.

    Parameters
    ----------
    folder
        Made where it is absent; must be empty unless the run resumes or overwrites.

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
        need("pyarrow", "a folder of Parquet files")
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
