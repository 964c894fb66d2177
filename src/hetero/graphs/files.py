"""Files of graphs and plans: read whole and within a limit, written all or not at all.

In: a path. Out: text or a JSON document, or an error that begins with the path. It must not interpret a document.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import zlib
from pathlib import Path
from typing import Any, NoReturn

from hetero.floor.errors import GraphError
from hetero.floor.units import format_bytes, shown

__all__ = ["AT_MOST_BYTES", "parse_json", "read_text", "write_text"]

AT_MOST_BYTES = 48_000_000
"""The largest file that is read, unpacked."""


_STRING_OR_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|(-?Infinity|NaN)')


def read_text(path: Path) -> str:
    """Read a text file, unpacking it where it is compressed by gzip.

    Raises
    ------
    GraphError
        The file is not there, is no text, or is larger than `AT_MOST_BYTES`, packed or unpacked.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > AT_MOST_BYTES:
                raise _too_large(path)
            packed = file.read(AT_MOST_BYTES + 1)
        data = _unpacked(packed) if packed[:2] == b"\x1f\x8b" else packed
        if len(data) > AT_MOST_BYTES:
            raise _too_large(path)
        return data.decode("utf-8")
    except OSError as error:
        raise GraphError(
            f"{path}: the file cannot be read: {error.strerror or error}", remedy="check the path"
        ) from error
    except (EOFError, zlib.error) as error:
        raise GraphError(f"{path}: the compressed file is cut short or damaged ({error})") from error
    except UnicodeDecodeError as error:
        raise GraphError(f"{path}: byte {error.start} is not UTF-8 text") from error


def _too_large(path: Path) -> GraphError:
    return GraphError(f"{path}: the file has more than {format_bytes(AT_MOST_BYTES)}", remedy="cut the graph up")


def _unpacked(packed: bytes) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    data = stream.decompress(packed, AT_MOST_BYTES + 1)
    if not stream.eof and len(data) <= AT_MOST_BYTES:
        raise EOFError("its end is missing")
    return data


def parse_json(text: str, place: str) -> Any:
    """Read a JSON document; NaN, infinities and a key given twice are mistakes.

    Raises
    ------
    GraphError
        The text is not JSON; the message gives line and column.
    """
    try:
        return json.loads(
            text, object_pairs_hook=lambda pairs: _once(pairs, place), parse_constant=_refuse(text, place)
        )
    except json.JSONDecodeError as error:
        raise GraphError(f"{place}:{error.lineno}:{error.colno}: this is not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(f"{place}: this is not JSON: {error}") from error


def _once(pairs: list[tuple[str, Any]], place: str) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise GraphError(f"{place}: the key {shown(twice)} is given twice in one object", remedy="take one out")
    return made


def _refuse(text: str, place: str) -> Any:
    def refuse(word: str) -> NoReturn:
        at = next(found.start(1) for found in _STRING_OR_WORD.finditer(text) if found[1])
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        raise GraphError(
            f"{place}:{line}:{column}: {word} is not a number that JSON has", remedy="leave out what cannot run"
        )

    return refuse


def write_text(path: Path, text: str) -> None:
    """Write a file under a spare name, and give it its own when it is complete.

    Raises
    ------
    GraphError
        The file cannot be written.
    """
    spare = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with spare.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        spare.replace(path)
    except OSError as error:
        spare.unlink(missing_ok=True)
        raise GraphError(f"{path}: the file cannot be written: {error.strerror or error}") from error
