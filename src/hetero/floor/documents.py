"""The one reader of files that others wrote: whole, within limits, and refused in one line with the place.

In: a path. Out: bytes, text, a JSON document or the rows of a table. It must not interpret them; whatever the file
is, the only thing that it raises is the kind of error that the caller names, and that begins with the path.
YAML is read by `hetero.floor.yaml_tree`, on top of this.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hetero.floor.errors import BadValueError, FileError, HeteroError
from hetero.floor.files import open_input
from hetero.floor.text import single_line
from hetero.floor.units import format_bytes, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "MOST_BYTES",
    "MOST_DEPTH",
    "MOST_DIGITS",
    "MOST_ITEMS",
    "Fault",
    "JsonObject",
    "blamed_on",
    "parse_json",
    "read_array",
    "read_bytes",
    "read_json",
    "read_record",
    "read_table",
    "read_text",
    "record_of",
    "unpacked",
]

Fault = type[HeteroError]
"""The kind of error that a reader raises."""

JsonObject = dict[str, Any]
"""An object of a document; the fields that `record_of` was told of have their types."""


MOST_BYTES = 48_000_000
"""The largest file that is read, unpacked."""

MOST_DEPTH = 64
"""The most lists and objects inside one another."""

MOST_DIGITS = 40
"""The most digits of a whole number; no amount of bytes, operations or seconds has as many."""

MOST_ITEMS = 8_000_000
"""The most values of one document, and cells of one table."""

_CELL = 100_000
_STRING_OR_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|(-?Infinity|NaN)', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_FOREIGN = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def read_bytes(path: Path | str, fault: Fault = FileError, most: int = MOST_BYTES) -> bytes:
    """Read a file, unpacking it where gzip compressed it, whatever its name.

    Parameters
    ----------
    path
        The file; a leading '~' is the user's folder.
    fault
        What to raise.
    most
        The most bytes, packed and unpacked.

    Raises
    ------
    HeteroError
        Of the kind `fault`: the file is not there, cannot be read, is damaged or too large.
    """
    try:
        with open_input(Path(path).expanduser()) as file:
            facts = os.fstat(file.fileno())
            if stat.S_ISREG(facts.st_mode) and facts.st_size > most:
                raise _too_large(path, fault, most)
            data = file.read(most + 1)
        data = unpacked(data, most) if data[:2] == b"\x1f\x8b" else data
    except HeteroError:
        raise
    except OSError as error:
        problem = f"{single_line(path)} cannot be read: {error.strerror or error}"
        raise fault(problem, remedy="check the path") from error
    except (EOFError, zlib.error) as error:
        problem = f"{single_line(path)}: the compressed file is cut short or damaged ({error})"
        raise fault(problem, remedy="fetch or write it again") from error
    except MemoryError as error:
        raise _no_memory(path, fault) from error
    except (ValueError, RuntimeError) as error:  # a NUL in the name, a user who is not known
        raise fault(f"{shown(str(path))} cannot name a file: {error}", remedy="check the path") from error
    if len(data) > most:
        raise _too_large(path, fault, most)
    return data


def unpacked(packed: bytes, most: int = MOST_BYTES) -> bytes:
    """Unpack all members of a gzip file, as far as one byte more than `most`.

    Raises
    ------
    EOFError
        Its end is missing.
    zlib.error
        It is damaged.
    """
    found = b""
    while packed and len(found) <= most:
        stream = zlib.decompressobj(wbits=31)
        found += stream.decompress(packed, most + 1 - len(found))
        if not stream.eof and len(found) <= most:
            raise EOFError("its end is missing")
        packed = stream.unused_data.lstrip(b"\0")
    return found


def read_text(path: Path | str, fault: Fault = FileError, most: int = MOST_BYTES) -> str:
    """Read a file of UTF-8 text, with or without a byte order mark.

    Raises
    ------
    HeteroError
        Of the kind `fault`: as of `read_bytes`; or it is no text.
    """
    data = read_bytes(path, fault, most)
    for mark, name in _FOREIGN.items():
        if data.startswith(mark):
            raise fault(f"{path}:1: this is {name}, not UTF-8 text", remedy="save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise fault(f"{path}:{_line(data, error.start)}: this is not UTF-8 text", remedy="save it as UTF-8") from error
    at = data.find(b"\0")
    if at >= 0:
        raise fault(f"{path}:{_line(data, at)}: this is not text: it holds a NUL", remedy="give a text file")
    return text


def read_json(path: Path | str, fault: Fault = FileError, most: int = MOST_BYTES) -> Any:
    """Read a file that holds one JSON document; see `parse_json`."""
    return parse_json(read_text(path, fault, most), str(path), fault)


def parse_json(text: str, place: str, fault: Fault = FileError) -> Any:
    """Read a JSON document; NaN, infinities, endless nesting and a key given twice are mistakes.

    Raises
    ------
    HeteroError
        Of the kind `fault`: the text is not JSON or beyond a limit; the message gives line and column where it can.

    Examples
    --------
    >>> parse_json('{"a": [1, 2.5]}', "a.json")
    {'a': [1, 2.5]}
    >>> parse_json("[1, 1e999]", "a.json")
    Traceback (most recent call last):
    hetero.floor.errors.FileError: a.json: 1e999 is beyond all numbers; write a smaller one
    """
    if text.count(",") + text.count("[") + text.count("{") > MOST_ITEMS:
        raise fault(f"{place}: the document has more than {MOST_ITEMS:,} values", remedy="cut it up")
    try:
        found = json.loads(
            text,
            object_pairs_hook=lambda pairs: _once(pairs, place, fault),
            parse_constant=_refuse(text, place, fault),
            parse_int=lambda digits: _whole(digits, place, fault),
            parse_float=lambda digits: _finite(digits, place, fault),
        )
    except json.JSONDecodeError as error:
        problem = f"{place}:{error.lineno}:{error.colno}: this is not JSON: {error.msg}"
        raise fault(problem, remedy="correct it there, or fetch it again") from error
    except RecursionError as error:
        raise _too_deep(place, fault) from error
    except MemoryError as error:
        raise _no_memory(place, fault) from error
    _check_depth(found, place, fault)
    if _SURROGATE.search(text):
        _check_surrogates(found, place, fault)
    return found


def read_record(path: Path | str, kinds: Mapping[str, type], fault: Fault = FileError, most: int = MOST_BYTES) -> Any:
    """Read a file that holds one JSON object with these fields; see `record_of`."""
    if not stat.S_ISREG(_mode(path, fault)):  # a pipe would keep its reader waiting
        raise fault(f"{path} is no file", remedy="remove it")
    return record_of(read_json(path, fault, most), kinds, str(path), fault)


def record_of(found: object, kinds: Mapping[str, type], place: str, fault: Fault = FileError) -> JsonObject:
    """Return a JSON object as it is, once it is seen to have these fields of these types; others may be there, too.

    Raises
    ------
    HeteroError
        Of the kind `fault`: it is no object, lacks a field, or one is of another type. True is no whole number.

    Examples
    --------
    >>> record_of({"pid": 7}, {"pid": int}, "a.json")
    {'pid': 7}
    >>> record_of({"pid": "7"}, {"pid": int}, "a.json")
    Traceback (most recent call last):
    hetero.floor.errors.FileError: a.json: pid is '7', and not of the type int; write or fetch the file again
    """
    remedy = "write or fetch the file again"
    if not isinstance(found, dict):
        raise fault(f"{place}: {shown(found)} is no object with fields", remedy=remedy)
    for name, kind in kinds.items():
        if name not in found:
            raise fault(f"{place}: the field {name} is missing", remedy=remedy)
        told = found[name]
        if not isinstance(told, kind) or (isinstance(told, bool) and kind is not bool):
            raise fault(f"{place}: {name} is {shown(told)}, and not of the type {kind.__name__}", remedy=remedy)
    return found


def read_array(path: Path | str, fault: Fault = FileError) -> NDArray[Any]:
    """Map the array of a `.npy` file into memory, so that none of it is read or made room for before it is used.

    Raises
    ------
    HeteroError
        Of the kind `fault`: the file is not there, or holds no array of numbers, truth values or text.
    """
    import numpy as np

    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise fault(f"{path} cannot be read as an array: {error.strerror or error}", remedy="check the path") from error
    except Exception as error:  # a damaged head raises anything
        why = single_line(str(error))[:200]
        raise fault(f"{path} cannot be read as an array: {why}", remedy="give a .npy file") from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise fault(f"{path} is an archive of arrays", remedy="give a .npy file with one array")
    return found


def _mode(path: Path | str, fault: Fault) -> int:
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise fault(f"{path} cannot be read: {error}", remedy="check the path") from error


def read_table(path: Path | str, columns: Sequence[str], fault: Fault = FileError) -> list[dict[str, str]]:
    """Read the rows of a CSV file whose first line names its columns, each cell as text.

    Raises
    ------
    HeteroError
        Of the kind `fault`: as of `read_text`; or a column is missing or there twice, or a row has too many cells.
    """
    text = read_text(path, fault)
    if text.count(",") + text.count("\n") > MOST_ITEMS:
        raise fault(f"{path}: the table has more than {MOST_ITEMS:,} cells", remedy="cut it up")
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    before = csv.field_size_limit(_CELL)
    try:
        _check_columns(path, reader.fieldnames or (), columns, fault)
        found = []
        for row in reader:
            if None in row:
                problem = f"{path}:{reader.line_num}: the row has more cells than there are columns"
                raise fault(problem, remedy="put quotation marks around a cell with a comma")
            found.append({name: cell or "" for name, cell in row.items()})
        return found
    except csv.Error as error:
        raise fault(
            f"{path}:{reader.line_num}: this is no row of a table: {error}", remedy="give a CSV file"
        ) from error
    finally:
        csv.field_size_limit(before)


@contextmanager
def blamed_on(file: Path | str, fault: Fault = FileError) -> Iterator[None]:
    """Turn what is wrong with a value that a file gave into an error of the file, which names it.

    Examples
    --------
    >>> with blamed_on("a.yaml"):
    ...     raise BadValueError("batch is -1", remedy="it must be above 0")
    Traceback (most recent call last):
    hetero.floor.errors.FileError: a.yaml: batch is -1; it must be above 0
    """
    try:
        yield
    except BadValueError as error:
        if error.exit_code == fault.exit_code:
            raise
        problem = error.problem if error.problem.startswith(str(file)) else f"{file}: {error.problem}"
        raise fault(problem, remedy=error.remedy) from error
    except RecursionError as error:
        raise _too_deep(str(file), fault) from error
    except MemoryError as error:
        raise _no_memory(file, fault) from error


def _line(data: bytes, at: int) -> int:
    return data.count(b"\n", 0, at) + 1


def _too_large(path: Path | str, fault: Fault, most: int) -> HeteroError:
    return fault(f"{single_line(path)}: the file has more than {format_bytes(most)}", remedy="cut it up")


def _too_deep(place: str, fault: Fault) -> HeteroError:
    problem = f"{place}: this is nested deeper than {MOST_DEPTH} levels"
    return fault(problem, remedy="no file that hetero reads needs as many")


def _no_memory(path: Path | str, fault: Fault) -> HeteroError:
    problem = f"{path}: reading it takes more memory than this process may have"
    return fault(problem, remedy="raise the limit (ulimit -v), or cut the file up")


def _check_columns(path: Path | str, there: Sequence[str], columns: Sequence[str], fault: Fault) -> None:
    if missing := [name for name in columns if name not in there]:
        remedy = f"needed: {', '.join(columns)}"
        raise fault(f"{path}:1: the table lacks the columns {', '.join(missing)}", remedy=remedy)
    if twice := [name for name in columns if there.count(name) > 1]:
        raise fault(f"{path}:1: the column {twice[0]} is there twice", remedy="take one out")


def _once(pairs: list[tuple[str, object]], place: str, fault: Fault) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise fault(f"{place}: the key {shown(twice)} is given twice in one object", remedy="take one out")
    return made


def _whole(digits: str, place: str, fault: Fault) -> int:
    if len(digits) > MOST_DIGITS:
        problem = f"{place}: {shown(digits)[1:-1]} has more than {MOST_DIGITS} digits"
        raise fault(problem, remedy="write a smaller number")
    return int(digits)


def _finite(digits: str, place: str, fault: Fault) -> float:
    number = float(digits)
    if number - number != 0.0:
        raise fault(f"{place}: {shown(digits)[1:-1]} is beyond all numbers", remedy="write a smaller one")
    return number


def _refuse(text: str, place: str, fault: Fault) -> Callable[[str], NoReturn]:
    def refuse(word: str) -> NoReturn:
        at = next(found.start(1) for found in _STRING_OR_WORD.finditer(text) if found[1])
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        problem = f"{place}:{line}:{column}: {word} is not a number that JSON has"
        raise fault(problem, remedy="write a number, or leave it out")

    return refuse


def _check_depth(found: object, place: str, fault: Fault) -> None:
    level = [found]
    for _ in range(MOST_DEPTH + 1):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep(place, fault)


def _check_surrogates(found: object, place: str, fault: Fault) -> None:
    try:
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        given = shown(error.object[error.start : error.end])
        problem = f"{place}: the text {given} is half of a character"
        raise fault(problem, remedy="write the character itself") from error
