"""Files of graphs and plans: written all or not at all, read by the one reader with the errors of graphs.

In: a path. Out: text or a JSON document, or an error that begins with the path. It must not interpret a document.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from hetero.floor import documents
from hetero.floor.errors import BadValueError, GraphError
from hetero.floor.files import local_path, output_file

__all__ = ["AT_MOST_BYTES", "checked_output", "parse_json", "read_text", "write_text"]

AT_MOST_BYTES = documents.MOST_BYTES
"""The largest file that is read, unpacked."""


def read_text(path: Path) -> str:
    """Read a text file, unpacking it where it is compressed by gzip.

    Raises
    ------
    GraphError
        The file is not there, is no text, or is larger than `AT_MOST_BYTES`, packed or unpacked.
    """
    return documents.read_text(path, GraphError)


def parse_json(text: str, place: str) -> object:
    """Read a JSON document; NaN, infinities and a key given twice are mistakes.

    Raises
    ------
    GraphError
        The text is not JSON; the message gives line and column.
    """
    return documents.parse_json(text, place, GraphError)


def checked_output(path: Path) -> Path:
    """Return the path of a file that is to be written, in a folder that is there; asked before what takes long.

    Raises
    ------
    GraphError
        The file cannot be written.
    """
    found = local_path(path, "out")
    try:
        output_file(found, "out")
    except BadValueError as error:
        raise GraphError(error.problem, remedy=error.remedy) from error
    if not found.parent.is_dir():
        raise GraphError(f"{found} cannot be written: there is no folder {found.parent}", remedy="make it first")
    return found


def write_text(path: Path, text: str) -> None:
    """Write a file under a spare name, and give it its own when it is complete.

    Raises
    ------
    GraphError
        The file cannot be written.
    """
    path = checked_output(path)
    spare = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with spare.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        spare.replace(path)
    except OSError as error:
        with suppress(OSError):
            spare.unlink()
        raise GraphError(f"{path}: the file cannot be written: {error.strerror or error}") from error
