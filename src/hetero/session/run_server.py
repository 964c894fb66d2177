"""Showing a run to others: a private socket for each Context, on which it answers what it is doing; and how others ask.

In: an open Context, or the descriptors in HETERO_HOME/run. Out: a descriptor, and a snapshot for each question. It must
not trust a descriptor of somebody else, who could put any socket behind it, nor keep what dead programs left behind. It
must not cost anything while nobody asks, and never stop a run: where it cannot be, the run goes on without.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import re
import socket
import sys
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, get_type_hints

from hetero.floor import settings
from hetero.floor.clock import wall_time_s
from hetero.floor.documents import parse_json, read_record, record_of
from hetero.floor.errors import BadValueError, ExitCode, FileError, HeteroError, did_you_mean
from hetero.floor.listening import Listening, Verdict
from hetero.floor.private import file_socket, private_folder, user_id, user_name, write_private
from hetero.floor.units import shown

if TYPE_CHECKING:
    from hetero.session.context import Context
    from hetero.session.snapshot import Snapshot

__all__ = [
    "PATIENCE_S",
    "TOKEN_BYTES",
    "OpenRun",
    "Publication",
    "RunGoneError",
    "answers",
    "ask",
    "find",
    "open_runs",
    "publish",
    "read_descriptor",
    "run_folder",
    "sweep",
]

PATIENCE_S = 5.0
"""One who asks and then says nothing is given up after this time."""
TOKEN_BYTES = 16

_log = logging.getLogger("hetero")
_numbers = itertools.count(1)
_SOCKET, _PREFIX = "run", "hetero-"
_MOST_BYTES = 100_000
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")


class _Descriptor(TypedDict):
    """What the file of an open Context says of it."""

    name: str
    pid: int
    host: str
    began: str
    socket: str
    token: str


def run_folder() -> Path:
    """Return the folder of the descriptors of open runs."""
    return settings.home() / "run"


def publish(ctx: Context) -> Publication | None:
    """Publish a Context to other processes; None where there are no such sockets or the folder cannot be written."""
    listener = file_socket()
    if listener is None:
        return None
    try:
        sweep()
        return Publication(ctx, listener)
    except (OSError, RuntimeError, HeteroError) as error:
        listener.close()
        _log.debug("this run cannot be seen by hetero top: %s", error)
        return None


def answers(address: str) -> bool:
    """Return whether somebody listens at a socket, also one who is too busy to answer now."""
    line = file_socket()
    if line is None:
        return False
    with line:
        line.settimeout(PATIENCE_S)
        return line.connect_ex(address) not in (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTDIR)


def sweep() -> None:
    """Take away what programs that were killed left behind on this machine."""
    folder = run_folder()
    for path in folder.glob("*.json") if folder.is_dir() else ():
        with suppress(OSError, FileError):
            if path.stat().st_uid != user_id():
                continue
            about = read_descriptor(path)
            if about["host"] == socket.gethostname() and not answers(about["socket"]):
                path.unlink(missing_ok=True)
                _remove(about["socket"])


def read_descriptor(path: Path) -> _Descriptor:
    """Read the descriptor of an open Context.

    Raises
    ------
    FileError
        It is damaged, or its socket is none that a Context makes.
    """
    about: _Descriptor = read_record(path, get_type_hints(_Descriptor), most=_MOST_BYTES)
    place = Path(about["socket"])
    if place.name != _SOCKET or not place.parent.name.startswith(_PREFIX) or "\0" in str(place):
        raise FileError(f"{path}: {shown(about['socket'])} is no socket of a run", remedy="remove the file")
    return about


def _remove(address: str) -> None:
    with suppress(OSError):
        os.unlink(address)
    with suppress(OSError):
        os.rmdir(os.path.dirname(address))


class Publication:
    """The socket and the descriptor of one Context.

    Parameters
    ----------
    listener
        A new socket whose address is a file; closed at the end.

    Attributes
    ----------
    descriptor
        JSON file, mode 0600: name, pid, host, began, script, socket, token.

    Raises
    ------
    OSError, RuntimeError
        The socket, the file or the thread cannot be made.

    Notes
    -----
    Whoever connects sends the token and a line end, and gets one line: a snapshot as JSON, or `{"error": …}`. The
    socket has mode 0600 and lies in a folder of mode 0700.
    """

    def __init__(self, ctx: Context, listener: socket.socket) -> None:
        self._ctx = weakref.ref(ctx)
        self._token = os.urandom(TOKEN_BYTES).hex()
        self._closed = False
        folder = run_folder()
        private_folder(folder)
        self._address = os.path.join(tempfile.mkdtemp(prefix=_PREFIX), _SOCKET)
        try:
            listener.bind(self._address)
            os.chmod(self._address, 0o600)
            listener.listen()
            self._listening = Listening(listener, self._answer, 4 * TOKEN_BYTES, deadline_s=PATIENCE_S)
        except (OSError, RuntimeError):
            _remove(self._address)
            raise
        try:
            self.descriptor = self._describe(ctx, folder)
        except OSError:
            self._listening.close()
            _remove(self._address)
            raise

    def close(self) -> None:
        """End the answering and take the files away; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self.descriptor.unlink(missing_ok=True)
        _remove(self._address)
        self._listening.close()

    def _describe(self, ctx: Context, folder: Path) -> Path:
        script = Path(sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-", "-c") else "python").stem
        name = ctx.name or script
        about = {
            "name": name,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "began": datetime.fromtimestamp(wall_time_s(), UTC).isoformat(timespec="seconds"),
            "socket": self._address,
            "token": self._token,
        }
        path = folder / f"{_UNFIT.sub('_', name)[:60]}-{os.getpid()}-{next(_numbers)}.json"
        write_private(path, json.dumps(about).encode())
        return path

    def _answer(self, said: bytes, _: str) -> Verdict:
        import hmac

        given, end, _rest = said.partition(b"\n")
        if not end:
            return None
        known = hmac.compare_digest(given.strip(), self._token.encode())
        answer = self._snapshot() if known else {"error": "the token is wrong"}
        return json.dumps(answer).encode() + b"\n"

    def _snapshot(self) -> dict[str, object]:
        from hetero.session.snapshot import snapshot

        ctx = self._ctx()
        if ctx is None or ctx.closed:
            return {"error": "the run has ended"}
        try:
            return snapshot(ctx).as_dict()
        except Exception as error:  # noqa: BLE001  the run must not suffer from being looked at
            return {"error": f"{type(error).__name__}: {error}"}


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
    name
        The run's name, that of its script where it has none.
    pid, host, began
        Its process, its machine and its beginning, ISO 8601.
    user
        Name of the owner where that is somebody else, else ''.
    socket, token
        How to ask it; '' where it is somebody else's.
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
    from hetero.session.snapshot import Snapshot

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
