"""Durable files: a name in a folder that survives a power cut, a file that is there whole or not at all.

In: paths and bytes. Out: bytes on the disk. It must not know what is in them.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import select
import stat
import sys
from pathlib import Path
from typing import IO

from hetero.floor.errors import BadValueError
from hetero.floor.platform import FEATURES
from hetero.floor.text import single_line

__all__ = [
    "PIPE_S",
    "atomic_write",
    "local_path",
    "open_input",
    "output_file",
    "output_folder",
    "output_picture",
    "output_stream",
    "sync_folder",
]

PIPE_S = 10.0
"""Longest wait for the first byte of a pipe, s."""

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
            address = f"{scheme}://{'/' if scheme.lower() == 'file' else ''}{place}"
            address = str(path) if "://" in str(path) else address
            raise BadValueError(
                f"{what}: {address} is no path of this host, and nothing can be written there",
                remedy="give a local path, and copy what is written",
            )
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        who = "this user has no home folder" if parts[0] == "~" else "there is no such user"
        raise BadValueError(f"{what}: {path}: {who}", remedy="write the path in full") from error


def output_file(path: Path | str, what: str) -> Path:
    """Return the path of a file that is to be replaced as a whole, which is a regular one or not there yet.

    Parameters
    ----------
    what
        Names the option in the message.

    Raises
    ------
    BadValueError
        It is a folder, a pipe or a device, as /dev/null, in whose place a file would be put; in its folder nothing can
        be written; or it is no path of this host, see `local_path`.
    """
    found, mode = _looked_at(path, what)
    if mode and not stat.S_ISREG(mode):
        problem = f"{what}: {single_line(found)} is no file that can be replaced by another"
        raise BadValueError(problem, remedy="name a file")
    place = next((each for each in found.absolute().parents if os.path.lexists(each)), found)
    if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):
        why = "nothing can be written there" if os.path.isdir(place) else "that is no folder"
        problem = f"{what}: {single_line(found)} would lie in {single_line(place)}, and {why}"
        raise BadValueError(problem, remedy="name another folder")
    return found


def output_folder(path: Path | str, what: str) -> Path:
    """Return the path of a folder that can be written into; it is made where it is absent.

    Parameters
    ----------
    what
        Names the option in the message.

    Raises
    ------
    BadValueError
        It is a file, nothing can be made there, or it is no path of this host, see `local_path`.
    """
    found = local_path(path, what)
    try:
        found.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadValueError(f"{what}: {single_line(found)} is no folder", remedy="name another folder") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        problem = f"{what}: {single_line(found)} cannot be made: {why}"
        raise BadValueError(problem, remedy="name another folder") from error
    if not os.access(found, os.W_OK | os.X_OK):
        problem = f"{what}: nothing can be written in {single_line(found)}"
        raise BadValueError(problem, remedy="name another folder")
    return found


def output_stream(path: Path | str, what: str) -> Path:
    """Return the path of a file that is written into: also a device, and a pipe that somebody reads.

    Raises
    ------
    BadValueError
        It is a folder, or a pipe that would keep its writer waiting; or no path of this host, see `local_path`.
    """
    found, mode = _looked_at(path, what)
    if sys.platform != "win32" and stat.S_ISFIFO(mode):
        try:
            os.close(os.open(found, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            raise BadValueError(f"{what}: {found} is a pipe that nobody reads", remedy="name a file") from error
    return found


def output_picture(path: Path | str, what: str) -> tuple[Path, str]:
    """Return the path of a picture that is written into, and its format: that of its suffix, PNG where it has none.

    Raises
    ------
    BadValueError
        As `output_stream` does.
    """
    found = output_stream(path, what)
    return found, found.suffix.removeprefix(".").lower() or "png"


def _looked_at(path: Path | str, what: str) -> tuple[Path, int]:
    """Return a path with its mode, 0 where nothing is there yet; a folder is no file."""
    found = local_path(path, what)
    try:
        mode = found.stat().st_mode
    except FileNotFoundError:
        mode = 0
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        problem = f"{what}: {single_line(path)} cannot be written: {why}"
        raise BadValueError(problem, remedy="name another file") from error
    if stat.S_ISDIR(mode):
        problem = f"{what}: {single_line(found)} is a folder, and cannot be written as a file"
        raise BadValueError(problem, remedy="name a file")
    return found, mode


def open_input(path: Path) -> IO[bytes]:
    """Open a file to be read; a pipe into which nobody writes is waited for no longer than `PIPE_S`.

    Raises
    ------
    OSError
        It cannot be opened.
    """
    if sys.platform == "win32":
        return path.open("rb")
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if stat.S_ISFIFO(os.fstat(handle).st_mode) and not select.select([handle], [], [], PIPE_S)[0]:
            raise TimeoutError(errno.ETIMEDOUT, f"nothing was written into this pipe for {PIPE_S:g} s")
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


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
