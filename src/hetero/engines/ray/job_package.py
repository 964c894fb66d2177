"""A program as it travels to a cluster: its script, or a folder with it, in one ZIP archive.

In: a script, a folder, words of a command line. Out: bytes, and the command that runs them. It must not send anything.
"""

from __future__ import annotations

import io
import re
import shlex
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetero.floor.errors import BadValueError
from hetero.floor.units import format_bytes

__all__ = ["MOST_BYTES", "JobProgram", "pack", "pack_modules", "read_variables"]

MOST_BYTES = 100_000_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LEFT_OUT = ("__pycache__", "node_modules")


@dataclass(frozen=True, slots=True)
class JobProgram:
    """What is asked to be run.

    Attributes
    ----------
    script
        Path within the archive.
    arguments
        Of the script.
    variables
        Of its environment, and of its workers'.
    packages
        To be installed for it, as pip names them.
    """

    script: str
    arguments: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    packages: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The command as people know it."""
        return shlex.join([self.script, *self.arguments])

    def command(self, python: str) -> str:
        """Return the command line that runs it on the cluster, for a shell."""
        run = ("-m", "hetero", "run", "--submitted", "--engine", "ray", "--address", "auto", "--", self.script)
        return shlex.join([python, *run, *self.arguments])


def pack(script: Path, folder: Path | None = None) -> tuple[str, bytes]:
    """Return the script's path within an archive, and the archive.

    Parameters
    ----------
    script
        A Python file.
    folder
        Travels as a whole and has the script in it, but for what is hidden; None lets the script travel alone.

    Raises
    ------
    BadValueError
        There is no such script, it is not in the folder, or the archive is larger than `MOST_BYTES`.
    """
    if not script.is_file():
        raise BadValueError(f"{script}: there is no such script", remedy="check the path")
    return _packed(script, script.parent, (script,)) if folder is None else _packed(script, folder, _files(folder))


def pack_modules(script: Path) -> tuple[str, bytes]:
    """Return the same for a script with the modules and packages beside it, which it may import.

    Raises
    ------
    BadValueError
        There is no such script, or the archive is larger than `MOST_BYTES`.
    """
    if not script.is_file():
        raise BadValueError(f"{script}: there is no such script", remedy="check the path")
    beside = [path for path in script.parent.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    modules = [path for path in _files_of(beside) if path.suffix == ".py"]
    return _packed(script, script.parent, dict.fromkeys([script, *modules]))


def _packed(script: Path, base: Path, paths: Iterable[Path]) -> tuple[str, bytes]:
    if not script.resolve().is_relative_to(base.resolve()):
        raise BadValueError(f"{script} is not in the folder {base}", remedy="name a folder that has the script in it")
    inside = script.resolve().relative_to(base.resolve()).as_posix()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in paths:
            file.write(path, path.resolve().relative_to(base.resolve()).as_posix())
            if archive.tell() > MOST_BYTES:
                raise BadValueError(
                    f"{base} makes an archive of more than {format_bytes(MOST_BYTES)}",
                    remedy="keep data on a file system that all hosts see, and name a smaller folder",
                )
    return inside, archive.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    yield from _files_of(folder.iterdir())


def _files_of(paths: Iterable[Path]) -> Iterator[Path]:
    for path in sorted(paths):
        if path.name.startswith(".") or path.name in _LEFT_OUT or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def read_variables(words: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Read variables written as NAME=VALUE.

    Raises
    ------
    BadValueError
        One is not.

    Examples
    --------
    >>> read_variables(["SIZE=3", "NAME=a=b"])
    (('SIZE', '3'), ('NAME', 'a=b'))
    """
    pairs: Sequence[tuple[str, str, str]] = [word.partition("=") for word in words]
    for name, sign, _ in pairs:
        if not sign or not _NAME.fullmatch(name):
            raise BadValueError(f"--env {name!r} sets no variable", remedy="write NAME=VALUE, as in --env SIZE=3")
    return tuple([(name, value) for name, _, value in pairs])
