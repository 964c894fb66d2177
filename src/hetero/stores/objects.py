"""Named bytes in an object store: one object a value, with a checksum behind its bytes.

In: keys and bytes. Out: the same bytes, or an error that names the object.
It must not interpret what it keeps, nor rest on a guarantee that the store was not seen to keep.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hetero.floor.errors import BadValueError, HeteroError, SerialisationError
from hetero.stores.base import Store
from hetero.stores.files import FileStore, check_key
from hetero.stores.guarantees import creates_once, hides_dead_uploads
from hetero.stores.urls import WEB, first_line, is_url, open_url, storage_of

__all__ = ["UrlStore", "open_store"]

_MAGIC = b"hetero-object 1 "
_HEAD_BYTES = len(_MAGIC) + 17
"""Of what stands before a value: the magic, a mark of the write, and the end of the line."""
_CHECKSUM_BYTES = 32
_SUFFIX = "="
"""Ends the name of each value's object: no part of a key has it, so that other objects below the URL are left alone."""
_ONE_REQUEST_BYTES = 32 * 2**20
"""Longer values go up in parts, where the store was seen to show nothing of an upload that dies."""
_PART_BYTES = 8 * 2**20
_TRIES, _BULK = 5, "DeleteObjects request failed"
"""How often a name is removed again where the store refused it inside of a request that it answered: Ceph does so where
others remove the name too."""
_CONNECTIONS = 4
"""By which a long value is read."""
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)


class UrlStore(Store):
    """Named bytes below a URL of an object store.

    Parameters
    ----------
    url
        As 's3://bucket/folder', 'gs://…', 'az://…', or 'memory://' for tests.
    storage
        Options beyond those of the environment, such as the endpoint.

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
        name, head = self._name(key), _head()
        in_parts = len(data) > _ONE_REQUEST_BYTES and hides_dead_uploads(self.url, self._storage).holds
        with self._worded(key):
            if in_parts:
                self._objects.put(name, _parts(head, data), use_multipart=True, chunk_size=_PART_BYTES)
            else:
                self._objects.put(name, b"".join(_parts(head, data)), use_multipart=False)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write unless something is there; True when written. Exactly one of several writers wins.

        Raises
        ------
        HeteroError
            The store was not seen to keep that.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        name, head = self._name(key), _head()
        seen = creates_once(self.url, self._storage)
        if not seen.holds:
            raise HeteroError(
                f"{self.url}: put_if_absent rests on '{seen.name}', which does not hold here: {seen.seen}",
                remedy="use a bucket without versions, or another store ('hetero doctor storage URL' tries it)",
            )
        with self._worded(key):
            try:
                self._objects.put(name, b"".join(_parts(head, data)), mode="create", use_multipart=False)
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
                content = self._content(name)
            except FileNotFoundError as error:
                if _NO_BUCKET.search(str(error)):
                    raise
                return None
        if content is not None:
            return content
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

    def _content(self, name: str) -> bytes | None:
        """Return the bytes of a value, None where they are damaged; a long one comes over several connections."""
        from obstore.exceptions import PreconditionError

        for left in reversed(range(_TRIES)):
            found = self._objects.get(name)
            size, tag = int(found.meta["size"]), found.meta["e_tag"]
            if size <= _ONE_REQUEST_BYTES or tag is None:
                whole = memoryview(found.bytes())
                data, ends = whole[_HEAD_BYTES:-_CHECKSUM_BYTES], (whole[:_HEAD_BYTES], whole[-_CHECKSUM_BYTES:])
                return bytes(data) if _is_sound([data], *map(bytes, ends)) else None
            try:
                return self._in_ranges(name, size, tag)
            except PreconditionError:  # written anew meanwhile
                if not left:
                    raise
        return None

    def _in_ranges(self, name: str, size: int, tag: str) -> bytes | None:
        """Return the bytes of a long value, checked while they come; raises PreconditionError where it was replaced."""

        def part(begin: int, end: int) -> bytes:
            found = self._objects.get(name, options={"range": (begin, end), "if_match": tag})
            return bytes(found.bytes())

        end = size - _CHECKSUM_BYTES
        begins = range(_HEAD_BYTES, end, _PART_BYTES)
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            ends = [pool.submit(part, 0, _HEAD_BYTES), pool.submit(part, end, size)]
            coming = [pool.submit(part, begin, min(begin + _PART_BYTES, end)) for begin in begins]
            sound = _is_sound((each.result() for each in coming), *(each.result() for each in ends))
        return b"".join(each.result() for each in coming) if sound else None

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


def _is_sound(parts: Iterable[bytes | memoryview], head: bytes, checksum: bytes) -> bool:
    found = hashlib.sha256(head)
    for part in parts:
        found.update(part)
    return head.startswith(_MAGIC) and found.digest() == checksum


def _head() -> bytes:
    """Return what stands before a value: a mark that no other write has."""
    return _MAGIC + secrets.token_hex(8).encode() + b"\n"


def _parts(head: bytes, data: bytes) -> Iterator[bytes]:
    """Yield an object in parts, so that it is never in memory a second time, and its checksum as the last one."""
    checksum = hashlib.sha256(head)
    yield head
    for begin in range(0, len(data), _PART_BYTES):
        part = data[begin : begin + _PART_BYTES]
        checksum.update(part)
        yield part
    yield checksum.digest()


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
