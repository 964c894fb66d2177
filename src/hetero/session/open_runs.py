"""Inspect running programs from another process: which there are, and what one of them is doing.

In: the descriptors in HETERO_HOME/run. Out: runs, snapshots. What dead programs left behind is taken away.
It must not trust a descriptor of somebody else, who could put any socket behind it.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from hetero.floor.documents import parse_json, record_of
from hetero.floor.errors import BadValueError, ExitCode, FileError, HeteroError, did_you_mean
from hetero.floor.private import file_socket, user_id, user_name
from hetero.floor.units import shown
from hetero.session.run_server import PATIENCE_S, answers, read_descriptor, run_folder, sweep
from hetero.session.snapshot import Snapshot

__all__ = ["OpenRun", "RunGoneError", "ask", "find", "open_runs"]


_MOST_ANSWER_BYTES = 50_000_000
"""Of an answer; a fleet of a thousand devices takes a few hundred kilobytes."""


class RunGoneError(HeteroError):
    """A run has ended, or does not answer."""

    exit_code = ExitCode.FAILED


@dataclass(frozen=True, slots=True)
class OpenRun:
    """One open Context.

    Attributes
    ----------
    name : the run's name, that of its script where it has none
    pid, host, began : its process, its machine and its beginning, ISO 8601
    user : name of the owner where that is somebody else, else ''
    socket, token : how to ask it; '' where it is somebody else's
    """

    name: str
    pid: int
    host: str
    began: str
    user: str
    socket: str
    token: str

    def as_dict(self) -> dict[str, object]:
        """Return what may be shown."""
        return {"name": self.name, "pid": self.pid, "host": self.host, "began": self.began, "user": self.user}

    def __repr__(self) -> str:
        return f"<{self.name}, process {self.pid}>"


def open_runs() -> tuple[OpenRun, ...]:
    """Return the runs that are going on, in the order of their beginning.

    Raises
    ------
    BadValueError
        The folder belongs to somebody who lets nobody look.
    """
    folder = run_folder()
    try:
        paths = [folder / name for name in os.listdir(folder) if name.endswith(".json")]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except PermissionError as error:
        raise _foreign(_owner(folder)) from error
    sweep()
    found = [run for path in paths if (run := _read(path)) is not None]
    return tuple(sorted(found, key=lambda run: (run.began, run.pid, run.socket)))


def find(name: str, runs: tuple[OpenRun, ...]) -> tuple[OpenRun, ...]:
    """Return the runs of a name, or of a process id.

    Raises
    ------
    BadValueError
        There is none, or it is somebody else's.
    """
    found = tuple(run for run in runs if name in (run.name, str(run.pid)))
    if not found:
        known = [run.name for run in runs]
        here = f"going on: {', '.join(dict.fromkeys(known))}" if known else "no run is going on"
        raise BadValueError(f"no run is named {name!r}{did_you_mean(name, known)}", remedy=here)
    own = tuple(run for run in found if not run.user)
    if not own:
        raise _foreign(found[0].user)
    return own


def ask(run: OpenRun) -> Snapshot:
    """Ask a run what it is doing now.

    Raises
    ------
    RunGoneError
        It has ended, does not answer, or refuses the token.
    """
    try:
        with _line() as line:
            line.settimeout(4.0 * PATIENCE_S)
            line.connect(run.socket)
            line.sendall(f"{run.token}\n".encode())
            with line.makefile("rb") as told:
                answer = told.readline(_MOST_ANSWER_BYTES)
    except OSError as error:
        raise RunGoneError(f"run {run.name!r} does not answer: {error.strerror or error}") from error
    if not answer:
        raise RunGoneError(f"run {run.name!r} has ended")
    place = f"the answer of run {run.name!r}"
    values = record_of(parse_json(answer.decode("utf-8", "replace"), place, RunGoneError), {}, place, RunGoneError)
    if "error" in values:
        raise RunGoneError(f"run {run.name!r} gives no answer: {shown(values['error'])[1:-1]}")
    try:
        return Snapshot.of_dict(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunGoneError(f"{place} is none of this version of hetero", remedy="look with the same version") from error


def _line() -> socket.socket:
    line = file_socket()
    assert line is not None, "there are no runs to ask on a system without such sockets"
    return line


def _foreign(user: str) -> BadValueError:
    return BadValueError(f"the run belongs to {user}, and only its owner may look", remedy=f"look as {user}")


def _owner(path: Path) -> str:
    """Name the owner of a file, or of the nearest folder above it that can be seen."""
    try:
        return user_name(path.stat().st_uid)
    except PermissionError:
        return _owner(path.parent)


def _read(path: Path) -> OpenRun | None:
    """Read a descriptor; None where it is damaged, or its program is dead or on another machine."""
    try:
        if path.stat().st_uid != user_id():
            name, pid, _ = path.stem.rsplit("-", 2)
            return OpenRun(name, int(pid), "", "", _owner(path), "", "")
        about = read_descriptor(path)
        run = OpenRun(about["name"], about["pid"], about["host"], about["began"], "", about["socket"], about["token"])
    except (OSError, ValueError, FileError):
        return None
    return run if run.host == socket.gethostname() and answers(run.socket) else None
