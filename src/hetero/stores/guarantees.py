"""What a store keeps of what it is said to keep: tried on the store itself, not assumed.

In: a URL or a folder. Out: one row a guarantee, with what was seen and what is done where it does not hold.
It must leave nothing behind, and must not touch a name that it did not make.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from hetero.floor import settings
from hetero.floor.errors import BadValueError, HeteroError
from hetero.floor.files import local_path
from hetero.stores.files import Disk, FileStore
from hetero.stores.urls import BY_ENVIRONMENT, WEB, Storage, first_line, is_url, open_url

__all__ = ["Guarantee", "creates_once", "hides_dead_uploads", "probe_storage"]

_WRITERS = 8
_ROUNDS = 5
_NAMES = 40
_PART_BYTES = 5 * 2**20
_RENAMES = 300
_PAGE_BYTES = 2**16

_CREATE, _ONE_WRITER, _SIGNATURE = "create if absent", "one of eight writers", "wrong signature refused"
_LISTING, _DEAD_UPLOAD, _RENAME = "listing after a write", "dead upload invisible", "atomic rename"

_UNIQUE = "put_if_absent is refused; write under unique names, and a manifest last"
_INSTEAD = {
    _CREATE: _UNIQUE,
    _ONE_WRITER: _UNIQUE,
    _SIGNATURE: "let nobody else reach the store",
    _LISTING: "keep no checkpoints here: the newest may not be found",
    _DEAD_UPLOAD: "each value is written by one request",
    _RENAME: "keep nothing here that is replaced while others read it",
}


class Guarantee(NamedTuple):
    """One thing that a store may keep.

    Attributes
    ----------
    name
        What it is.
    holds
        Whether it was seen to hold, None where it was not tried.
    seen
        What was seen.
    instead
        What is done where it does not hold, '' where it does.
    """

    name: str
    holds: bool | None
    seen: str
    instead: str = ""


def probe_storage(url: str | Path, storage: Storage = BY_ENVIRONMENT) -> tuple[Guarantee, ...]:
    """Try what a store keeps, with a few small objects and one of 10 MiB, all of which are removed again.

    Parameters
    ----------
    url
        Of an object store, or a folder that is there.

    Raises
    ------
    HeteroError
        The store cannot be written to.

    Examples
    --------
    >>> import tempfile
    >>> {row.name: row.holds for row in probe_storage(tempfile.mkdtemp())}["atomic rename"]
    True
    """
    text = str(url)
    if text.lower().startswith("file://"):
        return _probe_folder(Path(urlsplit(text).path))
    return _probe_objects(text, storage) if is_url(text) else _probe_folder(local_path(url, "storage"))


@functools.cache
def creates_once(url: str, storage: Storage) -> Guarantee:
    """Return whether exactly one of several writers of a name wins, tried once in a process.

    Raises
    ------
    HeteroError
        The store cannot be written to.
    """
    with _Trial(url, storage) as trial:
        found = trial.create_if_absent()
        return trial.one_writer() if found.holds else found


@functools.cache
def hides_dead_uploads(url: str, storage: Storage) -> Guarantee:
    """Return whether nothing is seen of an upload in parts that does not come to its end, tried once in a process.

    Raises
    ------
    HeteroError
        The store cannot be written to.
    """
    with _Trial(url, storage) as trial:
        return trial.dead_upload()


def _row(name: str, holds: bool | None, seen: str) -> Guarantee:
    return Guarantee(name, holds, seen, _INSTEAD[name] if holds is False else "")


def _probe_objects(url: str, storage: Storage) -> tuple[Guarantee, ...]:
    with _Trial(url, storage) as trial:
        tries = (trial.create_if_absent, trial.one_writer, trial.wrong_signature, trial.listing, trial.dead_upload)
        return (*(each() for each in tries), _row(_RENAME, None, "objects have none: a value is one object"))


class _Trial:
    """A folder of an object store with a name of its own, which is emptied at the end."""

    def __init__(self, url: str, storage: Storage) -> None:
        if urlsplit(url).scheme.lower() in WEB and "blob.core." not in url:
            raise BadValueError(f"{url} can only be read", remedy="give s3://, gs:// or az://")
        self._url, self._storage = url, storage
        self._objects, prefix = open_url(url, storage)
        self._folder = f"{prefix.rstrip('/')}/=probe/{secrets.token_hex(8)}".lstrip("/")

    def __enter__(self) -> _Trial:
        try:
            self._objects.put(self._name("first"), b"first", use_multipart=False)
        except Exception as error:
            problem = f"{self._url} cannot be written to: {first_line(error, self._storage)}"
            raise HeteroError(problem, remedy="see that the bucket is there, and what the credentials allow") from error
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(Exception):
            for name in self._listed():
                self._objects.delete(name)
            self._objects.delete(self._name("first"))

    def _name(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _listed(self) -> list[str]:
        return [str(each["path"]) for chunk in self._objects.list(self._folder) for each in chunk]

    def _content(self, name: str) -> bytes:
        return bytes(self._objects.get(self._name(name)).bytes())

    def _creates(self, name: str, data: bytes) -> bool:
        """Create a name; False where the store says that it is there."""
        from obstore import exceptions

        try:
            self._objects.put(self._name(name), data, mode="create", use_multipart=False)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return False
        return True

    def create_if_absent(self) -> Guarantee:
        try:
            first, second = self._creates("once", b"1"), self._creates("once", b"2")
            kept = self._content("once")
        except _refusals() as error:
            return _row(_CREATE, False, f"refused: {first_line(error, self._storage)}")
        if first and not second and kept == b"1":
            return _row(_CREATE, True, "a second write of a name was refused")
        return _row(_CREATE, False, "a second write of a name was accepted" if second else "a first write was refused")

    def one_writer(self) -> Guarantee:
        """Create a name by eight threads at the same moment, several times.

        A writer whose request was repeated on its way may be told that the name is there: its bytes tell who won.
        """
        for turn in range(_ROUNDS):
            start, name = threading.Barrier(_WRITERS), f"race-{turn}"

            def write(me: int, start: threading.Barrier = start, name: str = name) -> bool:
                start.wait()
                return self._creates(name, b"%d" % me)

            with ThreadPoolExecutor(_WRITERS) as pool:
                try:
                    told = list(pool.map(write, range(_WRITERS)))
                    winners = {me for me in range(_WRITERS) if told[me]} | {int(self._content(name))}
                except _refusals() as error:
                    return _row(_ONE_WRITER, False, f"refused: {first_line(error, self._storage)}")
            if len(winners) != 1:
                return _row(_ONE_WRITER, False, f"{len(winners)} of {_WRITERS} writers were told that they won")
        return _row(_ONE_WRITER, True, f"exactly one of {_WRITERS} won, {_ROUNDS} times")

    def wrong_signature(self) -> Guarantee:
        from obstore import exceptions

        wrong = _wrongly_signed(self._url, self._storage)
        if wrong is None:
            return _row(_SIGNATURE, None, "not tried: its requests are not signed, or not with a key")
        try:
            objects, _ = open_url(self._url, wrong)
            objects.get(self._name("first")).bytes()
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
            return _row(_SIGNATURE, True, "a request signed with a wrong key was refused")
        except _refusals() as error:
            return _row(_SIGNATURE, None, f"not tried: {first_line(error, wrong)}")
        return _row(_SIGNATURE, False, "a request signed with a wrong key was answered")

    def listing(self) -> Guarantee:
        names = [self._name(f"listed/{number:02}") for number in range(_NAMES)]
        late = 0
        for name in names:
            self._objects.put(name, b"", use_multipart=False)
            late += name not in self._listed()
        for name in names[::2]:
            self._objects.delete(name)
            late += name in self._listed()
        if late:
            return _row(_LISTING, False, f"{late} of {_NAMES + _NAMES // 2} changes were not listed at once")
        return _row(_LISTING, True, f"{_NAMES} new names and {_NAMES // 2} deletions were listed at once")

    def dead_upload(self) -> Guarantee:
        """Upload in parts, look for the object when two are there, and die."""
        name = self._name("dead")
        visible: list[bool] = []
        ends: tuple[type[Exception], ...] = (*_refusals(), _DeadUploadError)

        def parts(pool: ThreadPoolExecutor) -> Iterator[bytes]:
            yield bytes(_PART_BYTES)
            yield bytes(_PART_BYTES)
            visible.append(pool.submit(self._is_visible, name).result())  # not in the thread that runs the upload
            raise _DeadUploadError

        with ThreadPoolExecutor(1) as pool:
            try:
                self._objects.put(name, parts(pool), use_multipart=True, chunk_size=_PART_BYTES, max_concurrency=1)
            except ends as error:
                if not visible:
                    return _row(_DEAD_UPLOAD, False, f"refused: {first_line(error, self._storage)}")
        if visible[0] or self._is_visible(name):
            return _row(_DEAD_UPLOAD, False, "an upload that died could be seen")
        return _row(_DEAD_UPLOAD, True, "an upload that died after two parts left no object")

    def _is_visible(self, name: str) -> bool:
        try:
            self._objects.head(name)
        except FileNotFoundError:
            return name in self._listed()
        return True


def _refusals() -> tuple[type[Exception], ...]:
    """Return what obstore raises."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError, ValueError)


class _DeadUploadError(Exception):
    """Ends an upload in the middle."""


def _wrongly_signed(url: str, storage: Storage) -> Storage | None:
    """Return options by which requests are signed with a wrong key; None where none is known."""
    scheme = urlsplit(url).scheme.lower()
    public = {name: value for name, value in storage if value not in storage.secrets}
    if any("skip_signature" in name.lower() for name in public):
        return None
    if scheme in ("s3", "s3a"):
        if not any(name.lower().endswith("access_key_id") for name in public):
            public["access_key_id"] = settings.present(["AWS_ACCESS_KEY_ID"])["AWS_ACCESS_KEY_ID"] or "probe"
        public["secret_access_key"] = secrets.token_hex(20)
    elif scheme in ("az", "azure", "abfs", "abfss", "adl"):
        public["account_key"] = base64.b64encode(secrets.token_bytes(64)).decode()
    else:
        return None
    return Storage(sorted(public.items()))


# --- folders -------------------------------------------------------------------------------------------------------


def _probe_folder(folder: Path) -> tuple[Guarantee, ...]:
    """Try a folder by what a `FileStore` does there; other hosts of a network file system may see otherwise."""
    if not folder.is_dir():
        raise BadValueError(f"there is no folder {folder}", remedy="give the path of one, or a URL such as s3://bucket")
    place, disk = folder / f".hetero-probe-{secrets.token_hex(8)}", Disk()
    try:
        disk.make_folder(place)
        return (
            _links_once(place, disk), _one_link(place, disk), _row(_SIGNATURE, None, "files have none"),
            _lists_names(place, disk), _dead_file(place), _renames(place, disk),
        )  # fmt: skip
    except OSError as error:
        raise HeteroError(f"{folder} cannot be written to: {first_line(error)}", remedy="see who may write") from error
    finally:
        _remove(place)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


def _link(disk: Disk, source: Path, name: Path) -> bool:
    try:
        disk.link(source, name)
    except FileExistsError:
        return False
    return True


def _links_once(place: Path, disk: Disk) -> Guarantee:
    disk.create(place / "a", b"a")
    disk.create(place / "b", b"b")
    try:
        told = _link(disk, place / "a", place / "once"), _link(disk, place / "b", place / "once")
    except OSError as error:
        return _row(_CREATE, False, f"no hard links: {first_line(error)}")
    if told == (True, False) and (place / "once").read_bytes() == b"a":
        return _row(_CREATE, True, "a second file of a name was refused")
    return _row(_CREATE, False, "a second file of a name was accepted")


def _one_link(place: Path, disk: Disk) -> Guarantee:
    for turn in range(_ROUNDS):
        start, sources = threading.Barrier(_WRITERS), [place / f"writer-{turn}-{me}" for me in range(_WRITERS)]
        for source in sources:
            disk.create(source, b"")

        def write(source: Path, start: threading.Barrier = start, name: Path = place / f"race-{turn}") -> bool:
            start.wait()
            return _link(disk, source, name)

        with ThreadPoolExecutor(_WRITERS) as pool:
            try:
                winners = sum(pool.map(write, sources))
            except OSError as error:
                return _row(_ONE_WRITER, False, f"no hard links: {first_line(error)}")
        if winners != 1:
            return _row(_ONE_WRITER, False, f"{winners} of {_WRITERS} writers were told that they won")
    return _row(_ONE_WRITER, True, f"exactly one of {_WRITERS} won, {_ROUNDS} times, on this host")


def _lists_names(place: Path, disk: Disk) -> Guarantee:
    late = 0
    for number in range(_NAMES):
        disk.create(place / f"listed-{number}", b"")
        late += f"listed-{number}" not in os.listdir(place)
        if number % 2:
            disk.remove(place / f"listed-{number}")
            late += f"listed-{number}" in os.listdir(place)
    if late:
        return _row(_LISTING, False, f"{late} of {_NAMES + _NAMES // 2} changes were not listed at once")
    return _row(_LISTING, True, f"{_NAMES} new names and {_NAMES // 2} deletions were listed at once")


class _DyingDisk(Disk):
    """A writer that dies before it names what it wrote."""

    def rename(self, src: Path, dst: Path) -> None:
        raise OSError

    def remove(self, path: Path) -> None:
        """Leave the file, as a dead writer does."""


def _dead_file(place: Path) -> Guarantee:
    with contextlib.suppress(HeteroError):
        FileStore(place / "store", _DyingDisk()).put("dead", bytes(_PAGE_BYTES))
    if FileStore(place / "store").list() or FileStore(place / "store").get("dead") is not None:
        return _row(_DEAD_UPLOAD, False, "a file whose writer died could be seen")
    return _row(_DEAD_UPLOAD, True, "a file whose writer died has no name")


def _renames(place: Path, disk: Disk) -> Guarantee:
    """Replace a file by renaming while another thread reads it: it must be there, and whole, each time."""
    name, contents = place / "renamed", [bytes([number]) * _PAGE_BYTES for number in range(2)]
    disk.create(name, contents[0])
    ended, problems = threading.Event(), list[str]()

    def read() -> None:
        while not ended.is_set():
            try:
                if name.read_bytes() not in contents:
                    problems.append("a reader got a part of it")
            except OSError as error:
                problems.append(f"a reader got no file: {first_line(error)}")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(_RENAMES):
            disk.create(place / "next", contents[number % 2])
            disk.rename(place / "next", name)
    finally:
        ended.set()
        reader.join()
    if problems:
        return _row(_RENAME, False, f"while a file was replaced, {problems[0]}")
    return _row(_RENAME, True, f"a file was replaced {_RENAMES} times, and was whole each time it was read")
