"""Files by path or URL: which there are, what marks their content, and their bytes.

In: a path, a folder, a pattern, a URL of an object store or of the web. Out: files in a fixed order, bytes.
It must not know what is in a file; obstore is imported for URLs only.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from hetero.floor.errors import BadValueError, HeteroError, MissingPackageError
from hetero.stores.urls import BY_ENVIRONMENT, WEB, Storage, first_line, is_url, open_url, options_of

if TYPE_CHECKING:
    import obstore

__all__ = ["Blob", "arrow_files", "find", "is_folder", "look", "read_blob", "suffix_of"]

_WILD = frozenset("*?[")


class Blob(NamedTuple):
    """One file.

    Attributes
    ----------
    path
        As it is shown and opened: a path, or a URL.
    nbytes
        That it has.
    mark
        Changes with its content: time of change, or the store's tag.
    """

    path: str
    nbytes: int
    mark: str


def suffix_of(path: str | Path) -> str:
    """Return the suffix of a path or a URL, in small letters.

    Examples
    --------
    >>> suffix_of("a/b.PARQUET"), suffix_of("s3://bucket/photos/")
    ('.parquet', '')
    """
    text = str(path)
    return "" if text.endswith("/") else PurePosixPath(urlsplit(text).path if is_url(text) else text).suffix.lower()


def is_folder(path: str | Path) -> bool:
    """Return whether a path or a URL names more than one file: a folder, a bucket, a pattern."""
    text = str(path)
    if not _WILD.isdisjoint(text) or text.endswith("/"):
        return True
    return not suffix_of(text) if is_url(text) else Path(text).is_dir()


def find(
    given: str | Path | Sequence[str | Path],
    storage: Storage = BY_ENVIRONMENT,
    patterns: Iterable[str] = ("*",),
    without: Iterable[str] = (),
) -> tuple[Blob, ...]:
    """Return the files that paths and URLs name: folders with all below them, patterns, single files.

    Parameters
    ----------
    patterns
        Of the names of files in folders, in small letters for either case.
    without
        Names that are passed over in folders, as are those that begin with '.' or '_'.

    Raises
    ------
    BadValueError
        There is none, or a store refuses.
    """
    several = [given] if isinstance(given, str | Path) else list(given)
    wanted, unwanted = tuple(patterns), tuple(without)
    found: dict[str, Blob] = {}
    for one in several:
        text = str(one)
        here = _in_store(text, storage) if is_url(text) else _on_disk(text)
        chosen = [blob for blob in here if blob.path == text or _is_wanted(blob.path, text, wanted, unwanted)]
        if not chosen:
            kinds = "" if wanted == ("*",) else f" of {', '.join(wanted)}"
            raise BadValueError(
                f"{text} holds no file{kinds}", remedy="name a folder, a pattern or a file that is there"
            )
        found |= {blob.path: blob for blob in chosen}
    return tuple(found.values())


def _is_wanted(path: str, root: str, patterns: Sequence[str], without: Sequence[str]) -> bool:
    name = PurePosixPath(path).name
    below = path.removeprefix(re.split(r"[*?[]", root)[0]).strip("/").split("/")
    hidden = any(part.startswith((".", "_")) for part in below)
    fits = any(fnmatch.fnmatchcase(each, pattern) for pattern in patterns for each in (name, name.lower()))
    return fits and not hidden and name not in without


def look(path: str, storage: Storage = BY_ENVIRONMENT) -> Blob:
    """Return a file as it is now.

    Raises
    ------
    HeteroError
        It is gone.
    """
    if is_url(path):
        store, key = open_url(path, storage)
        with _Worded(path, storage):
            return _blob(path, store.head(key))
    with _Worded(path, storage):
        status = os.stat(path)
    return Blob(path, status.st_size, str(status.st_mtime_ns))


def read_blob(path: str, storage: Storage = BY_ENVIRONMENT) -> bytes:
    """Return the content of a file.

    Raises
    ------
    HeteroError
        It cannot be read.
    """
    with _Worded(path, storage):
        if not is_url(path):
            return Path(path).read_bytes()
        store, key = open_url(path, storage)
        return bytes(store.get(key).bytes())


def arrow_files(path: str, storage: Storage = BY_ENVIRONMENT) -> tuple[object, str]:
    """Return the file system that Arrow reads a file through, and the file's name in it."""
    from pyarrow import fs

    if not is_url(path):
        return fs.LocalFileSystem(), os.path.abspath(path)
    parts = urlsplit(path)
    if parts.scheme in WEB:
        return _handled(parts.scheme, storage), path
    return _handled(parts.scheme, storage), unquote(f"{parts.netloc}{parts.path}")


@functools.cache
def _handled(scheme: str, storage: Storage) -> object:
    from pyarrow import fs

    try:
        from obstore.fsspec import FsspecStore
    except ImportError as error:
        raise MissingPackageError(
            f"tables at {scheme}:// need the packages obstore and fsspec", remedy="pip install 'hetero-core[batch]'"
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(FsspecStore(scheme, **options_of(scheme, storage))))


def _on_disk(text: str) -> list[Blob]:
    if not _WILD.isdisjoint(text) and not Path(text).exists():
        paths = sorted(path for path in glob.glob(text, recursive=True) if not os.path.isdir(path))
    elif os.path.isdir(text):
        paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(text) for name in names)
    elif os.path.exists(text):
        paths = [text]
    else:
        raise BadValueError(f"there is no file or folder {text}", remedy="give the path of one")
    return [look(path) for path in paths]


def _in_store(url: str, storage: Storage) -> list[Blob]:
    """List an object store: one object, those below a prefix, or those that a pattern names."""
    root = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}/"
    store, key = open_url(url, storage)
    with _Worded(url, storage):
        if _WILD.isdisjoint(key):
            if key and not url.endswith("/"):
                try:
                    return [_blob(url, store.head(key))]
                except FileNotFoundError:
                    if urlsplit(url).scheme in WEB:
                        raise
            objects = [each for chunk in store.list(key or None) for each in chunk]
        else:
            fixed = list(PurePosixPath(key).parts)
            deep = next(place for place, part in enumerate(fixed) if not _WILD.isdisjoint(part))
            prefix = "/".join(fixed[:deep])
            objects = [each for chunk in store.list(prefix or None) for each in chunk if _fits(each["path"], key)]
    return [_blob(f"{root}{each['path']}", each) for each in sorted(objects, key=lambda each: str(each["path"]))]


def _fits(path: str, pattern: str) -> bool:
    parts, wanted = PurePosixPath(path).parts, PurePosixPath(pattern).parts
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _blob(path: str, found: obstore.ObjectMeta) -> Blob:
    return Blob(path, int(found["size"]), str(found.get("e_tag") or found["last_modified"]))


class _Worded:
    """Words what a file system or a store refuses."""

    def __init__(self, path: str, storage: Storage) -> None:
        self._path, self._storage = path, storage

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, HeteroError) or not isinstance(error, Exception):
            return
        if isinstance(error, FileNotFoundError):
            raise BadValueError(f"there is no file {self._path}", remedy="give the path of one") from error
        problem = f"{self._path} cannot be read: {first_line(error, self._storage)}"
        raise HeteroError(problem, remedy="see who may read it") from error
