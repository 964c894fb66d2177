"""Durable files: a name in a folder that survives a power cut, a file that is there whole or not at all.

In: paths and bytes. Out: bytes on the disk. It must not know what is in them.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from hetero.floor.errors import BadValueError
from hetero.floor.platform import FEATURES

__all__ = ["atomic_write", "local_path", "sync_folder"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_STORES: tuple[str, ...] = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hdfs", "memory")
_STORES += ("file", "http", "https", "ftp", "sftp")


def local_path(path: Path | str, what: str) -> Path:
    """Return a path to be written to, which must be one of this host's file systems: `~` is the user's home.

    Parameters
    ----------
    what
        Names the option in the message.

    Raises
    ------
    BadValueError
        It is the address of an object store, as 's3://bucket/key', for which a folder 's3:' would be made.

    Examples
    --------
    >>> local_path("out/part", "out").parts
    ('out', 'part')
    >>> local_path(Path("s3://bucket/key"), "out")
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: out: s3://bucket/key is no path of this host, and nothing can be written there; \
give a local path, and copy what is written
    """
    parts = Path(path).parts
    for number, part in enumerate(parts):
        scheme, _, rest = part.partition(":")
        inner = number + 1 < len(parts) and _SCHEME.fullmatch(part)
        if inner or (_SCHEME.match(part) and scheme.lower() in _STORES):
            place = "/".join((rest, *parts[number + 1 :])).removeprefix("/")
            raise BadValueError(
                f"{what}: {scheme}://{place} is no path of this host, and nothing can be written there",
                remedy="give a local path, and copy what is written",
            )
    return Path(path).expanduser()


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a new name in it survives a power cut."""
    if not FEATURES.dir_fsync:
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file durably: afterwards it holds all of the data, and at no time a part of it.

    Notes
    -----
    Temporary file in the same folder, fsync, rename over the old file, fsync of the folder. A new file has the
    mode that the user's umask gives.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
