"""Encryption at rest: AES-256-GCM in chunks, each file with a key of its own that the user's key wraps.

In: bytes and a key. Out: encrypted bytes, and the same bytes again or an error; nothing of a damaged file is returned.
It must not keep a key anywhere, and invents no cryptography: `cryptography` computes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import re
import secrets
import shlex
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from hetero.floor import settings
from hetero.floor.errors import BadValueError, FileError, SerialisationError
from hetero.floor.extras import need
from hetero.floor.private import check_secret
from hetero.stores.base import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = [
    "CHUNK_BYTES",
    "HEADER_BYTES",
    "EncryptedFile",
    "EncryptedStore",
    "EncryptionKey",
    "decrypt",
    "encrypt",
    "read_key",
    "rekey",
]

CHUNK_BYTES = 2**16
"""Plain bytes of a chunk; the last one may have fewer."""

_MAGIC = b"hetero-crypt 1\n\0"
_HEAD = struct.Struct("<16sI16s16s")
"""Magic, plain bytes of a chunk, id of the file, id of the key that wraps the file's key."""
_PLACE = struct.Struct("<16sQ?")
"""What is authenticated beside a chunk: id of the file, number of the chunk, whether it is the last."""
_KEY_BYTES, _ID_BYTES, _NONCE_BYTES, _TAG_BYTES = 32, 16, 12, 16
_WRAPPED_BYTES = _NONCE_BYTES + _KEY_BYTES + _TAG_BYTES
HEADER_BYTES = _HEAD.size + _WRAPPED_BYTES
"""Bytes before the first chunk: the head, and the wrapped key of the file."""
_MOST_CHUNK_BYTES = 2**26
_COMMAND_S = 120.0
_HEX = re.compile(rb"[0-9a-fA-F]{64}")
_LENGTHS = "give 32 bytes as they are, as 64 hexadecimal digits or in base64: head -c 32 /dev/urandom > KEY"


class EncryptionKey:
    """A key of 256 bits that wraps the keys of files; it is never shown and never pickled.

    Parameters
    ----------
    secret
        32 random bytes.

    Attributes
    ----------
    id
        32 hexadecimal digits that name the key and do not reveal it.

    Examples
    --------
    >>> EncryptionKey(bytes(32))
    EncryptionKey(id='74cf0369698e1cbf5091e1893d64382b')
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _KEY_BYTES:
            raise BadValueError(f"a key has 32 bytes, and this one {len(secret)}", remedy=_LENGTHS)
        self._secret = secret
        self.id = hashlib.sha256(b"hetero key id 1\0" + secret).digest()[:_ID_BYTES].hex()

    def __repr__(self) -> str:
        return f"EncryptionKey(id={self.id!r})"

    def __reduce__(self) -> NoReturn:
        raise SerialisationError("a key is not pickled", remedy="read it where it is used")

    def wrap(self, file_key: bytes, head: bytes, name: bytes) -> bytes:
        """Return a file's key encrypted, with the head and the name of its file authenticated."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + _cipher(self._secret).encrypt(nonce, file_key, head + name)

    def unwrap(self, wrapped: bytes, head: bytes, name: bytes) -> bytes:
        """Return a file's key; raises cryptography's InvalidTag where anything was changed."""
        return _cipher(self._secret).decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], head + name)


def _cipher(key: bytes) -> AESGCM:
    need("cryptography", "encryption")
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


# --- where keys come from ------------------------------------------------------------------------------------------


def read_key(file: str | Path | None = None, variable: str | None = None, command: str | None = None) -> EncryptionKey:
    """Return a key from one of three places.

    Parameters
    ----------
    file
        Which others may not read.
    variable
        Name of an environment variable.
    command
        Is run without a shell, and prints the key; so a vault or an agent may hold it.

    Raises
    ------
    BadValueError
        Not exactly one place is given, others may read the file, the variable is not set, the command fails, or what
        is there is no key.
    """
    given = [each for each in (file, variable, command) if each is not None]
    if len(given) != 1:
        raise BadValueError(
            f"{len(given)} places of a key are given", remedy="give one: a file, an environment variable or a command"
        )
    if file is not None:
        return _key_of(_from_file(Path(file)), str(file))
    if variable is not None:
        return _key_of(_from_variable(variable), f"the variable {variable}")
    assert command is not None
    words = _words(command)
    return _key_of(_from_command(words), f"the output of {words[0]}")


def _from_file(path: Path) -> bytes:
    try:
        check_secret(path)
        with path.open("rb") as file:
            return file.read(1024)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}", remedy="name the file of a key") from error


def _from_variable(name: str) -> bytes:
    value = settings.present([name])[name]
    if not value:
        raise BadValueError(f"the environment variable {name} is not set", remedy="set it to a key in base64")
    return value.encode(errors="surrogateescape")


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadValueError(f"a command of a key cannot be read: {error}", remedy="quote it as for a shell") from error
    if not words:
        raise BadValueError("a command of a key is empty", remedy="name a program that prints the key")
    return words


def _from_command(words: list[str]) -> bytes:
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, timeout=_COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"took longer than {_COMMAND_S:g} s" if not isinstance(error, OSError) else error.strerror
        raise BadValueError(f"{words[0]} printed no key: {why}", remedy="name a program that prints it") from error
    if done.returncode != 0:
        raise BadValueError(f"{words[0]} printed no key: it ended with {done.returncode}", remedy="see what it says")
    return done.stdout


def _key_of(text: bytes, place: str) -> EncryptionKey:
    """Read a key: raw bytes, hexadecimal digits or base64."""
    if len(text) == _KEY_BYTES:
        return EncryptionKey(text)
    word = text.strip()
    if _HEX.fullmatch(word):
        return EncryptionKey(bytes.fromhex(word.decode()))
    try:
        raw = base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != _KEY_BYTES:
        raise FileError(f"{place} has no key of 32 bytes", remedy=_LENGTHS)
    return EncryptionKey(raw)


# --- the format ----------------------------------------------------------------------------------------------------


class _Chunks:
    """Encrypts and decrypts the chunks of one file, each by its number.

    Notes
    -----
    The file's key is used for this file alone, and a chunk is written once: the nonce is the chunk's number with the
    mark of the last one, so no nonce comes twice under a key.
    """

    def __init__(self, file_key: bytes, file_id: bytes, chunk_bytes: int) -> None:
        self._cipher, self._file_id, self.chunk_bytes = _cipher(file_key), file_id, chunk_bytes

    def seal(self, number: int, plain: bytes, last: bool) -> bytes:
        return self._cipher.encrypt(_nonce(number, last), plain, _PLACE.pack(self._file_id, number, last))

    def open(self, number: int, sealed: bytes, last: bool, place: str) -> bytes:
        """Return the plain bytes of a chunk; raises FileError where they are not exactly these."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(_nonce(number, last), sealed, _PLACE.pack(self._file_id, number, last))
        except (InvalidTag, ValueError) as error:
            raise FileError(
                f"{place} is damaged from byte {number * self.chunk_bytes} on: chunk {number} is changed, cut or not "
                "in its place",
                remedy="restore the file",
            ) from error


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(_NONCE_BYTES - 1, "big") + bytes([last])


def _opened(header: bytes, keys: Sequence[EncryptionKey], place: str, name: bytes) -> tuple[_Chunks, bytes]:
    """Read a header; returns what decrypts the chunks, and the file's key."""
    from cryptography.exceptions import InvalidTag

    if len(header) < HEADER_BYTES or not header.startswith(_MAGIC):
        raise FileError(f"{place} is not encrypted by hetero, or cut", remedy="name an encrypted file")
    head, wrapped = header[: _HEAD.size], header[_HEAD.size : HEADER_BYTES]
    _, chunk_bytes, file_id, key_id = _HEAD.unpack(head)
    key = next((each for each in keys if each.id == key_id.hex()), None)
    if key is None:
        given = ", ".join(each.id for each in keys)
        problem = f"{place} is encrypted with the key {key_id.hex()}, and given is {given}"
        raise FileError(problem, remedy="give its key")
    try:
        file_key = key.unwrap(wrapped, head, name)
    except InvalidTag as error:
        problem = f"{place} is damaged: its header is changed, or is that of another file"
        raise FileError(problem, remedy="restore the file") from error
    if not 0 < chunk_bytes <= _MOST_CHUNK_BYTES:
        raise FileError(f"{place} has chunks of {chunk_bytes} bytes", remedy="use the version that wrote it")
    return _Chunks(file_key, file_id, chunk_bytes), file_key


def _read(source: IO[bytes], length: int) -> bytes:
    """Read so many bytes, fewer at the end only."""
    parts = []
    while length > 0:
        part = source.read(length)
        if not part:
            break
        parts.append(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def encrypt(
    source: IO[bytes], target: IO[bytes], key: EncryptionKey, name: bytes = b"", chunk_bytes: int = CHUNK_BYTES
) -> int:
    """Encrypt a stream, two chunks in memory at a time; returns the number of its bytes.

    Parameters
    ----------
    name
        Is authenticated too, for values that must not be taken for one another.

    Examples
    --------
    >>> key, hidden, shown = EncryptionKey(bytes(range(32))), io.BytesIO(), io.BytesIO()
    >>> encrypt(io.BytesIO(b"secret"), hidden, key), b"secret" in hidden.getvalue()
    (6, False)
    >>> _ = hidden.seek(0)
    >>> decrypt(hidden, shown, [key]), shown.getvalue()
    (6, b'secret')
    """
    file_key, file_id = secrets.token_bytes(_KEY_BYTES), secrets.token_bytes(_ID_BYTES)
    head = _HEAD.pack(_MAGIC, chunk_bytes, file_id, bytes.fromhex(key.id))
    target.write(head + key.wrap(file_key, head, name))
    chunks, total, number = _Chunks(file_key, file_id, chunk_bytes), 0, 0
    plain = _read(source, chunk_bytes)
    while True:
        following = _read(source, chunk_bytes) if len(plain) == chunk_bytes else b""
        target.write(chunks.seal(number, plain, last=not following))
        total += len(plain)
        if not following:
            return total
        number, plain = number + 1, following


def decrypt(
    source: IO[bytes], target: IO[bytes] | None, keys: Sequence[EncryptionKey], place: str = "the file",
    name: bytes = b"",
) -> int:  # fmt: skip
    """Decrypt a stream, two chunks in memory at a time; returns the number of its bytes.

    Parameters
    ----------
    target
        None to verify only; a caller must throw away what it holds where this raises.
    keys
        That may have been used.
    place
        Names the file in errors.

    Raises
    ------
    FileError
        The file is damaged in any way, is another one, or is encrypted with another key.
    """
    chunks, _ = _opened(_read(source, HEADER_BYTES), keys, place, name)
    sealed_bytes, total, number = chunks.chunk_bytes + _TAG_BYTES, 0, 0
    sealed = _read(source, sealed_bytes)
    while True:
        following = _read(source, sealed_bytes)
        plain = chunks.open(number, sealed, not following, place)
        if target is not None:
            target.write(plain)
        total += len(plain)
        if not following:
            return total
        number, sealed = number + 1, following


def rekey(file: IO[bytes], old: Sequence[EncryptionKey], new: EncryptionKey, place: str = "the file") -> None:
    """Wrap the key of a file anew: its header is written, and none of its data.

    Parameters
    ----------
    file
        Opened for reading and writing, at any place.

    Raises
    ------
    FileError
        The header is damaged, or is of another key.
    """
    file.seek(0)
    header = _read(file, HEADER_BYTES)
    _, file_key = _opened(header, old, place, b"")
    magic, chunk_bytes, file_id, _ = _HEAD.unpack(header[: _HEAD.size])
    head = _HEAD.pack(magic, chunk_bytes, file_id, bytes.fromhex(new.id))
    file.seek(0)
    file.write(head + new.wrap(file_key, head, b""))
    file.flush()


class EncryptedFile:
    r"""An encrypted file of which any part is read, by the chunks that hold it.

    Parameters
    ----------
    file
        Opened for reading, and seekable.
    keys
        That may have been used.

    Attributes
    ----------
    nbytes
        Plain bytes that it has; the last chunk, which alone bears the mark of the last, was authenticated.

    Raises
    ------
    FileError
        The file is cut, damaged, or encrypted with another key.

    Examples
    --------
    >>> key, hidden = EncryptionKey(bytes(range(32))), io.BytesIO()
    >>> _ = encrypt(io.BytesIO(bytes(range(100))), hidden, key, chunk_bytes=16)
    >>> file = EncryptedFile(hidden, [key])
    >>> file.nbytes, file.read(30, 4)
    (100, b'\x1e\x1f !')
    """

    def __init__(self, file: IO[bytes], keys: Sequence[EncryptionKey], place: str = "the file") -> None:
        self._file, self._place = file, place
        file.seek(0)
        self._chunks, _ = _opened(_read(file, HEADER_BYTES), keys, place, b"")
        self._sealed_bytes = self._chunks.chunk_bytes + _TAG_BYTES
        sealed = file.seek(0, os.SEEK_END) - HEADER_BYTES
        self._count = max(1, -(-sealed // self._sealed_bytes))
        self.nbytes = (self._count - 1) * self._chunks.chunk_bytes + len(self._chunk(self._count - 1))

    def read(self, start: int, length: int) -> bytes:
        """Return part of the plain bytes, fewer at the end.

        Raises
        ------
        BadValueError
            The place is negative.
        FileError
            A chunk is damaged.
        """
        if start < 0 or length < 0:
            raise BadValueError(f"bytes {start} to {start + length} are no part of a file", remedy="count from 0")
        end, size = min(start + length, self.nbytes), self._chunks.chunk_bytes
        if end <= start:
            return b""
        first = start // size
        plain = b"".join(self._chunk(number) for number in range(first, (end - 1) // size + 1))
        return plain[start - first * size : end - first * size]

    def _chunk(self, number: int) -> bytes:
        self._file.seek(HEADER_BYTES + number * self._sealed_bytes)
        sealed = _read(self._file, self._sealed_bytes)
        return self._chunks.open(number, sealed, number == self._count - 1, self._place)


class EncryptedStore(Store):
    """Any store, with its values encrypted; its keys stay readable.

    Parameters
    ----------
    store
        That keeps the encrypted values.
    key
        Encrypts what is written.
    older
        Keys that earlier values may be encrypted with.

    Notes
    -----
    The name of a value is authenticated with it: a value that was put in the place of another is refused. An older
    value of the same name is not: a store that is set back as a whole is not noticed.

    Examples
    --------
    >>> import tempfile
    >>> from hetero.stores.files import FileStore
    >>> plain = FileStore(tempfile.mkdtemp())
    >>> store = EncryptedStore(plain, EncryptionKey(bytes(range(32))))
    >>> store.put("run/1", b"state")
    >>> store.get("run/1"), b"state" in plain.get("run/1")
    (b'state', False)
    """

    def __init__(self, store: Store, key: EncryptionKey, older: Sequence[EncryptionKey] = ()) -> None:
        self._store, self._key, self._keys = store, key, (key, *older)

    def put(self, key: str, data: bytes) -> None:
        """Write durably, in place of what was there."""
        self._store.put(key, self._encrypted(key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write unless something is there; True when written. Exactly one of several writers wins."""
        return self._store.put_if_absent(key, self._encrypted(key, data))

    def get(self, key: str) -> bytes | None:
        """Return the bytes, or None when there are none.

        Raises
        ------
        FileError
            The value is damaged, is another one's, is not encrypted, or is encrypted with another key.
        """
        data = self._store.get(key)
        if data is None:
            return None
        plain = io.BytesIO()
        decrypt(io.BytesIO(data), plain, self._keys, f"the value of {key!r}", key.encode())
        return plain.getvalue()

    def list(self, prefix: str = "") -> tuple[str, ...]:
        """Return all keys that begin with the prefix, sorted."""
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        """Remove; a missing key is fine."""
        self._store.delete(key)

    def _encrypted(self, key: str, data: bytes) -> bytes:
        hidden = io.BytesIO()
        encrypt(io.BytesIO(data), hidden, self._key, key.encode(errors="surrogatepass"))
        return hidden.getvalue()
