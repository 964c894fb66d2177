"""`hetero data`: files encrypted at rest, decrypted, given a new key, and verified.

In: files, and where their key is. Out: files that are there whole or not at all, or one line on what is wrong.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson
from hetero.cli.output import note, print_json, say
from hetero.floor.errors import BadValueError, ExitCode, FileError
from hetero.floor.files import atomic_write, open_input, output_file, sync_folder
from hetero.floor.units import format_bytes

if TYPE_CHECKING:
    from hetero.stores.encryption import EncryptionKey

__all__ = ["decrypt", "encrypt", "rekey", "verify"]

KeyFile = Annotated[Path | None, typer.Option("--key-file", help="File of the key, which others may not read.")]
KeyVariable = Annotated[str | None, typer.Option("--key-env", help="Environment variable that has the key.")]
KeyCommand = Annotated[str | None, typer.Option("--key-command", help="Program that prints the key.")]
NewKeyFile = Annotated[Path | None, typer.Option("--new-key-file", help="File of the key from now on.")]
NewKeyVariable = Annotated[str | None, typer.Option("--new-key-env", help="Environment variable of that key.")]
NewKeyCommand = Annotated[str | None, typer.Option("--new-key-command", help="Program that prints that key.")]
Input = Annotated[Path, typer.Argument(metavar="IN", help="File to read.")]
Target = Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")]
Encrypted = Annotated[list[Path], typer.Argument(metavar="FILE", help="Encrypted files.")]


def encrypt(
    source: Input,
    target: Target,
    key_file: KeyFile = None,
    key_env: KeyVariable = None,
    key_command: KeyCommand = None,
    json: AsJson = False,
) -> None:
    """Encrypt a file: AES-256-GCM in chunks, with a key of its own that yours wraps."""
    from hetero.stores import encryption

    key = _key(key_file, key_env, key_command)
    with _reading(source) as plain, _written(target) as hidden:
        nbytes = encryption.encrypt(plain, hidden, key)
    if json:
        print_json({"output": str(target), "bytes": nbytes, "key": key.id})
    else:
        say(f"{target}: {format_bytes(nbytes)} encrypted with the key {key.id}")


def decrypt(
    source: Input,
    target: Target,
    key_file: KeyFile = None,
    key_env: KeyVariable = None,
    key_command: KeyCommand = None,
    json: AsJson = False,
) -> None:
    """Decrypt a file; one that is damaged anywhere is refused, and nothing is written."""
    from hetero.stores import encryption

    key = _key(key_file, key_env, key_command)
    with _reading(source) as hidden, _written(target) as plain:
        nbytes = encryption.decrypt(hidden, plain, [key], str(source))
    if json:
        print_json({"output": str(target), "bytes": nbytes, "key": key.id})
    else:
        say(f"{target}: {format_bytes(nbytes)} decrypted")


def rekey(
    files: Encrypted,
    key_file: KeyFile = None,
    key_env: KeyVariable = None,
    key_command: KeyCommand = None,
    new_key_file: NewKeyFile = None,
    new_key_env: NewKeyVariable = None,
    new_key_command: NewKeyCommand = None,
    json: AsJson = False,
) -> None:
    """Change the key of encrypted files: their headers are written anew, and none of their data."""
    from hetero.stores import encryption

    old, new = _key(key_file, key_env, key_command), _key(new_key_file, new_key_env, new_key_command, "the new key: ")
    for path in files:
        try:
            with _reading(path, "r+b") as file, _kept_beside(path, file.read(encryption.HEADER_BYTES)):
                encryption.rekey(file, [old], new, str(path))
                os.fsync(file.fileno())
        except OSError as error:
            why = error.strerror or error
            raise FileError(f"{path} cannot be written: {why}", remedy="see that the disk is sound") from error
        if not json:
            say(f"{path}: encrypted with the key {new.id}")
    if json:
        print_json({"files": [str(path) for path in files], "key": new.id})


def verify(
    files: Encrypted,
    key_file: KeyFile = None,
    key_env: KeyVariable = None,
    key_command: KeyCommand = None,
    json: AsJson = False,
) -> None:
    """Check every byte of encrypted files by their key; exits 1 when one is damaged."""
    from hetero.stores import encryption

    key, rows = _key(key_file, key_env, key_command), []
    for path in files:
        with _reading(path) as file:
            try:
                nbytes, problem = encryption.decrypt(file, None, [key], str(path)), ""
            except FileError as error:
                nbytes, problem = 0, str(error)
        rows.append({"file": str(path), "sound": not problem, "bytes": nbytes, "problem": problem})
        if not json:
            say(problem or f"{path}: sound, {format_bytes(nbytes)}")
    if json:
        print_json({"files": rows, "key": key.id})
    if not all(row["sound"] for row in rows):
        note("hetero: not every file is sound")
        raise typer.Exit(ExitCode.FAILED)


def _key(file: Path | None, variable: str | None, command: str | None, what: str = "") -> EncryptionKey:
    """Return the key that the options name, of which there must be one."""
    from hetero.stores.encryption import read_key

    if sum(each is not None for each in (file, variable, command)) != 1:
        new = "new-" if what else ""
        remedy = f"give --{new}key-file, --{new}key-env or --{new}key-command"
        raise BadValueError(f"{what or 'the key: '}one place is needed", remedy=remedy)
    return read_key(file, variable, command)


@contextmanager
def _reading(path: Path, mode: str = "rb") -> Iterator[IO[bytes]]:
    try:
        file: IO[bytes] = open_input(path) if mode == "rb" else path.open(mode)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}", remedy="name a file") from error
    with file:
        yield file


@contextmanager
def _kept_beside(path: Path, header: bytes) -> Iterator[None]:
    """Keep the header of a file in one beside it until the block has ended: a crash may leave it half written."""
    beside = path.with_name(f".{path.name}.header")
    if beside.exists():
        raise FileError(
            f"{beside} is there: a change of the key of {path} did not come to its end",
            remedy=f"verify {path} with both keys; put the header back if neither fits, then remove it",
        )
    try:
        atomic_write(beside, header)
    except OSError as error:
        raise FileError(f"{beside} cannot be written: {error.strerror or error}", remedy="name another file") from error
    try:
        yield
    except FileError:  # before anything was written
        beside.unlink()
        raise
    beside.unlink()


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file beside the one that is to be written, in whose place it comes when all went well."""
    path = output_file(path, "OUT")
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(handle)
            os.replace(beside, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}", remedy="name another file") from error
