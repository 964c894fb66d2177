"""Named bytes as files: temporary file, fsync, rename, directory fsync, checksum in the header.

In: keys and bytes. Out: the same bytes after any crash, or an error that names the damaged file.
It must not interpret what it keeps, and must not remove a file that it did not write.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hetero.floor.clock import wall_time_s
from hetero.floor.errors import BadValueError, HeteroError
from hetero.floor.files import local_path, sync_folder
from hetero.stores.base import Store

__all__ = ["Disk", "FileStore", "ForeignFileError", "check_key"]

_KEY = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_MAX_PART = 200
_MAGIC = b"hetero-store 1 "
_HEADER = re.compile(rb"hetero-store 1 ([0-9a-f]{64}) (\d+)\n")
_HEADER_MAX = 128
_SUFFIX = "="
"""Ends the name of every value's file: no part of a key has it, so that 'a' and 'a/b' live side by side."""
_SPARE = "=tmp"
_STALE_S = 3600.0
_TRIES = 1000
"""How often a name is tried again after other processes removed its folder, which was empty, in between."""


class Disk:
    """The operations on files that a store needs, one method a system call.

    A test hands in one that records them, to replay what a power cut would have left.
    """

    def make_folder(self, path: Path) -> None:
        """Make a folder whose parent exists; one that exists already is fine.

        Raises
        ------
        NotADirectoryError
            Something else has the name.
        """
        try:
            path.mkdir()
        except FileExistsError:
            if path.exists() and not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None

    def create(self, path: Path, *pieces: bytes) -> None:
        """Make a new file with this content."""
        with open(path, "xb", opener=_not_for_others) as file:
            for piece in pieces:
                file.write(piece)

    def sync(self, path: Path) -> None:
        """Wait until the content of a file is on the disk."""
        handle = os.open(path, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        sync_folder(path)

    def rename(self, src: Path, dst: Path) -> None:
        """Rename a file to its final name, in place of whatever had it."""
        os.replace(src, dst)

    def link(self, src: Path, dst: Path) -> None:
        """Link a file to a second name; raises FileExistsError when the name is taken."""
        os.link(src, dst)

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is fine."""
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> bool:
        """Remove an empty folder; False when it is not empty or not there."""
        try:
            path.rmdir()
        except OSError:
            return False
        return True


class ForeignFileError(HeteroError):
    """A value was written by another user, or another user may change it."""


class FileStore(Store):
    """Named bytes below one folder, one file a key.

    Parameters
    ----------
    root
        Folder; made by the first `put`.
    disk
        The file operations, replaced in tests of power cuts.
    own_only
        True to refuse values that another user wrote or may change, as where they are unpickled.

    Notes
    -----
    `put` writes a temporary file, waits for it (fsync), renames it, and waits for the folder. `put_if_absent`
    gives the temporary file its name by a hard link, which fails when the name is taken: exactly one of
    several writers wins, and its bytes are complete.

    Examples
    --------
    >>> import tempfile
    >>> store = FileStore(Path(tempfile.mkdtemp()))
    >>> store.put("run/1", b"state")
    >>> store.get("run/1"), store.get("run/2"), store.list()
    (b'state', None, ('run/1',))
    """

    def __init__(self, root: Path | str, disk: Disk | None = None, *, own_only: bool = False) -> None:
        self.root = local_path(root, "store")
        self._disk = disk or Disk()
        self._own_only = own_only
        self._ready: set[Path] = set()

    def put(self, key: str, data: bytes) -> None:
        """Write durably, in place of what was there.

        Raises
        ------
        BadValueError
            The key is not made of letters, digits, '.', '_', '-' and '/'.
        HeteroError
            The file system refuses.
        """
        path = self._path(key)
        with _worded(path):
            spare = self._spare(data)
            try:
                self._settle(lambda: self._disk.rename(spare, path), path)
            except OSError:
                self._disk.remove(spare)
                raise

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write unless something is there; True when written. Exactly one of several writers wins."""
        path = self._path(key)
        if path.exists():
            return False
        with _worded(path):
            spare = self._spare(data)
            try:
                self._settle(lambda: self._disk.link(spare, path), path)
            except FileExistsError:
                self._sync_up(path.parent)
                return False
            finally:
                self._disk.remove(spare)
        return True

    def get(self, key: str) -> bytes | None:
        """Return the bytes, or None when there are none.

        Raises
        ------
        ForeignFileError
            The store reads the user's own values only, and this is another's.
        HeteroError
            The bytes are damaged.
        """
        path = self._path(key)
        with _worded(path):
            try:
                with path.open("rb") as file:
                    status, content = os.fstat(file.fileno()), file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None
        if self._own_only:
            _refuse_foreign(path, status)
        header = _HEADER.match(content[:_HEADER_MAX])
        if header is not None:
            data = content[header.end() :]
            if len(data) == int(header[2]) and hashlib.sha256(data).hexdigest().encode() == header[1]:
                return data
        raise HeteroError(f"{path} is damaged: its bytes do not match their checksum", remedy="remove the file")

    def list(self, prefix: str = "") -> tuple[str, ...]:
        """Return all keys that begin with the prefix, sorted."""
        above = prefix.rpartition("/")[0]
        start = self._folder(above) if above else self.root
        keys = []
        for folder, folders, files in os.walk(start):
            if _SPARE in folders:
                folders.remove(_SPARE)
            parts = Path(folder).relative_to(self.root).parts
            keys += ["/".join((*parts, name[: -len(_SUFFIX)])) for name in files if name.endswith(_SUFFIX)]
        return tuple(sorted(key for key in keys if key.startswith(prefix)))

    def delete(self, key: str) -> None:
        """Remove; a missing key is fine. Folders that become empty go with it."""
        path = self._path(key)
        if not path.exists():
            return
        with _worded(path):
            self._disk.remove(path)
            folder = path.parent
            while folder != self.root and self._disk.remove_folder(folder):
                folder = folder.parent
            self._sync_up(path.parent)

    def _path(self, key: str) -> Path:
        above, _, last = key.rpartition("/")
        check_key(key)
        return (self._folder(above) if above else self.root) / f"{last}{_SUFFIX}"

    def _folder(self, key: str) -> Path:
        check_key(key)
        return self.root.joinpath(*key.split("/"))

    def _spare(self, data: bytes) -> Path:
        folder = self.root / _SPARE
        if folder not in self._ready:
            self._make_root(folder)
        path = folder / secrets.token_hex(8)
        header = _MAGIC + hashlib.sha256(data).hexdigest().encode() + b" %d\n" % len(data)
        try:
            self._disk.create(path, header, data)
            self._disk.sync(path)
        except OSError:
            self._disk.remove(path)
            raise
        return path

    def _make_root(self, folder: Path) -> None:
        """Make the root and the folder of temporary files durable; no store ever removes these two."""
        for each in reversed([folder, *folder.parents]):
            missing = not each.exists()
            if missing:
                self._disk.make_folder(each)
            if missing or each in (self.root, folder):
                self._disk.sync_folder(each.parent)
        self._drop_stale(folder)
        self._ready.add(folder)

    def _settle(self, name_it: Callable[[], None], path: Path) -> None:
        """Name a file whose bytes are on the disk, then wait for its name and for its folders' names.

        Notes
        -----
        Other processes remove folders that they find empty. Nothing slow stands between making the folders and
        the name, so few tries suffice; once the file is there, its folder is not empty and stays.
        """
        folders = [each for each in path.parents if self.root in each.parents]
        for left in reversed(range(_TRIES)):
            try:
                for folder in reversed(folders):
                    self._disk.make_folder(folder)
                name_it()
                break
            except FileNotFoundError:
                if not left:
                    raise
        self._sync_up(path.parent)

    def _sync_up(self, folder: Path) -> None:
        """Wait for the names in a folder and in those above it, up to the root; one that is gone has no names."""
        while True:
            with suppress(FileNotFoundError):
                self._disk.sync_folder(folder)
            if folder == self.root:
                return
            folder = folder.parent

    def _drop_stale(self, folder: Path) -> None:
        for left in folder.iterdir():
            with suppress(FileNotFoundError):
                if wall_time_s() - left.stat().st_mtime > _STALE_S:
                    self._disk.remove(left)


def check_key(key: str) -> None:
    """Refuse what is no key of a store.

    Raises
    ------
    BadValueError
        It is not made of letters, digits, '.', '_', '-' and '/'.
    """
    parts = key.split("/")
    if not _KEY.fullmatch(key) or any(part in (".", "..") or len(part) > _MAX_PART for part in parts):
        raise BadValueError(
            f"{key!r} is not a key",
            remedy=f"use parts of at most {_MAX_PART} letters, digits, '.', '_' and '-', joined by '/'",
        )


def _not_for_others(path: str, flags: int) -> int:
    """Open a new file that only its owner may change, whatever the umask."""
    return os.open(path, flags, 0o644)


def _refuse_foreign(path: Path, status: os.stat_result) -> None:
    """Refuse a file that another user than this one or root wrote, or may write."""
    if not hasattr(os, "geteuid"):
        return
    owner = status.st_uid
    if owner not in (0, os.geteuid()):
        problem, remedy = f"belongs to user {owner}, and this program runs as {os.geteuid()}", "remove it or its folder"
    elif status.st_mode & 0o022:
        problem, remedy = f"may be changed by others (mode {status.st_mode & 0o777:o})", "chmod go-w it if it is yours"
    else:
        return
    raise ForeignFileError(
        f"{path} {problem}, so it is not unpickled", remedy=f"{remedy}, or use a folder (HETERO_HOME) of your own"
    )


@contextmanager
def _worded(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"{path} cannot be used: {error.strerror or error}"
        raise HeteroError(problem, remedy="set HETERO_HOME to a folder that can be written") from error
