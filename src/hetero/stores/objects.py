"""Named bytes in an object store: one object a value, with a checksum before its bytes.

In: keys and bytes. Out: the same bytes, or an error that names the object.
It must not interpret what it keeps, nor rest on a guarantee that the store was not seen to keep.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hetero.floor.errors import BadValueError, HeteroError, SerialisationError
from hetero.stores.base import Store
from hetero.stores.files import FileStore, check_key
from hetero.stores.guarantees import creates_once, hides_dead_uploads
from hetero.stores.urls import WEB, first_line, is_url, open_url, storage_of

__all__ = ["UrlStore", "open_store"]

_HEADER = re.compile(rb"hetero-object 1 ([0-9a-f]{64}) (\d+) ([0-9a-f]{16})\n")
_HEADER_MAX = 160
_SUFFIX = "="
"""Ends the name of each value's object: no part of a key has it, so that other objects below the URL are left alone."""
_ONE_REQUEST_BYTES = 32 * 2**20
"""Longer values go up in parts, where the store was seen to show nothing of an upload that dies."""
_PART_BYTES = 8 * 2**20
_TRIES, _BULK = 5, "DeleteObjects request failed"
"""How often a name is removed again where the store refused it inside of a request that it answered: Ceph does so where
others remove the name too."""
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)


class UrlStore(Store):
    """Named bytes below a URL of an object store.

    Parameters
    ----------
    url : as 's3://bucket/folder', 'gs://…', 'az://…', or 'memory://' for tests
    storage : options beyond those of the environment, such as the endpoint

    Notes
    -----
    A value is one object, which a store shows whole or not at all. `put_if_absent` rests on the store's conditional
    write, and is refused where that was not seen to hold. Each object has a mark of its writer: one whose request was
    repeated on the way, and is told that the name is taken, knows its own bytes by it.

    A store that was opened with secrets is not pickled: give them by the environment.

    Examples
    --------
    >>> store = UrlStore("memory://")
    >>> store.put("run/1", b"state")
    >>> store.get("run/1"), store.get("run/2"), store.list()
    (b'state', None, ('run/1',))
    """

    def __init__(self, url: str, storage: Mapping[str, object] | None = None) -> None:
        if not is_url(url) or (urlsplit(url).scheme.lower() in WEB and "blob.core." not in url):
            raise BadValueError(f"{url} is no object store to write to", remedy="give s3://, gs:// or az://")
        self.url, self._storage = url, storage_of(storage)
        self._objects, prefix = open_url(url, self._storage)
        self._prefix = f"{prefix.rstrip('/')}/".lstrip("/")

    def __repr__(self) -> str:
        return f"UrlStore({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the address; raises SerialisationError where secrets were given, which are never pickled."""
        if self._storage.secrets:
            raise SerialisationError(
                f"{self.url} was opened with secrets, which are not sent", remedy="give them by the environment"
            )
        return UrlStore, (self.url, dict(self._storage))

    def put(self, key: str, data: bytes) -> None:
        """Write durably, in place of what was there.

        Raises
        ------
        BadValueError
            The key is not made of letters, digits, '.', '_', '-' and '/'.
        HeteroError
            The store refuses.
        """
        name, head = self._name(key), _header(data)
        in_parts = len(data) > _ONE_REQUEST_BYTES and hides_dead_uploads(self.url, self._storage).holds
        with self._worded(key):
            if in_parts:
                self._objects.put(name, _parts(head, data), use_multipart=True, chunk_size=_PART_BYTES)
            else:
                self._objects.put(name, head + data, use_multipart=False)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write unless something is there; True when written. Exactly one of several writers wins.

        Raises
        ------
        HeteroError
            The store was not seen to keep that.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        name, head = self._name(key), _header(data)
        seen = creates_once(self.url, self._storage)
        if not seen.holds:
            raise HeteroError(
                f"{self.url}: put_if_absent rests on '{seen.name}', which does not hold here: {seen.seen}",
                remedy="use a bucket without versions, or another store ('hetero doctor storage URL' tries it)",
            )
        with self._worded(key):
            try:
                self._objects.put(name, head + data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return self._begins_with(name, head)
            except Exception:
                with suppress(Exception):
                    if self._begins_with(name, head):
                        return True
                raise
        return True

    def get(self, key: str) -> bytes | None:
        """Return the bytes, or None when there are none.

        Raises
        ------
        HeteroError
            The bytes are damaged, or the store refuses.
        """
        name = self._name(key)
        with self._worded(key):
            try:
                content = memoryview(self._objects.get(name).bytes())
            except FileNotFoundError as error:
                if _NO_BUCKET.search(str(error)):
                    raise
                return None
        header = _HEADER.match(bytes(content[:_HEADER_MAX]))
        if header is not None:
            data = content[header.end() :]
            if len(data) == int(header[2]) and hashlib.sha256(data).hexdigest().encode() == header[1]:
                return bytes(data)
        where = f"{self.url} has a damaged value of {key!r}"
        raise HeteroError(f"{where}: its bytes do not match their checksum", remedy="remove the object")

    def list(self, prefix: str = "") -> tuple[str, ...]:
        """Return all keys that begin with the prefix, sorted."""
        above = prefix.rpartition("/")[0]
        if above:
            check_key(above)
        folder = f"{self._prefix}{above}".rstrip("/")
        with self._worded(prefix):
            names = [str(each["path"]) for chunk in self._objects.list(folder or None) for each in chunk]
        keys = (name[len(self._prefix) : -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX))
        return tuple(sorted(key for key in keys if key.startswith(prefix)))

    def delete(self, key: str) -> None:
        """Remove; a missing key is fine."""
        name = self._name(key)
        with self._worded(key), suppress(FileNotFoundError):
            for left in reversed(range(_TRIES)):
                try:
                    self._objects.delete(name)
                    return
                except Exception as error:
                    if _BULK not in str(error) or not left:
                        raise

    def _name(self, key: str) -> str:
        check_key(key)
        return f"{self._prefix}{key}{_SUFFIX}"

    def _begins_with(self, name: str, head: bytes) -> bool:
        """Return whether an object is the one with this header, which no other writer made."""
        try:
            return bytes(self._objects.get_range(name, start=0, length=len(head))) == head
        except FileNotFoundError:
            return False

    @contextmanager
    def _worded(self, key: str) -> Iterator[None]:
        try:
            yield
        except HeteroError:
            raise
        except Exception as error:
            problem = f"{self.url}: {key!r} cannot be used: {first_line(error, self._storage)}"
            raise HeteroError(problem, remedy="see that the bucket is there, and what the credentials allow") from error


def _header(data: bytes) -> bytes:
    """Return what stands before a value: its checksum, its length, and a mark of this write."""
    checksum = hashlib.sha256(data).hexdigest().encode()
    return b"hetero-object 1 %s %d %s\n" % (checksum, len(data), secrets.token_hex(8).encode())


def _parts(head: bytes, data: bytes) -> Iterator[bytes]:
    """Yield an object in parts, so that it is never in memory a second time."""
    yield head
    for begin in range(0, len(data), _PART_BYTES):
        yield data[begin : begin + _PART_BYTES]


def open_store(place: str | Path, storage: Mapping[str, object] | None = None) -> Store:
    """Return the store of a folder or a URL.

    Raises
    ------
    BadValueError
        No such store is known, or it has options that it cannot use.

    Examples
    --------
    >>> type(open_store("runs")).__name__, open_store("memory://runs")
    ('FileStore', UrlStore('memory://runs'))
    """
    text = str(place)
    local = text.lower().startswith("file://")
    if is_url(text) and not local:
        return UrlStore(text, storage)
    if storage:
        raise BadValueError(f"{text} is a folder, which has no options of a store", remedy="leave them out")
    return FileStore(unquote(urlsplit(text).path) if local else place)
