"""Durable files: a name in a folder that survives a power cut, a file that is there whole or not at all.

In: paths and bytes. Out: bytes on the disk. It must not know what is in them.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from hetero.floor.platform import FEATURES

__all__ = ["atomic_write", "sync_folder"]


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
