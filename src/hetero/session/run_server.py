"""Showing a run to others: a private socket for each Context, on which it answers what it is doing.

In: an open Context. Out: a descriptor in HETERO_HOME/run, and a snapshot for each question.
It must not cost anything while nobody asks, and never stop a run: where it cannot be, the run goes on without.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, get_type_hints

from hetero.floor import settings
from hetero.floor.clock import wall_time_s
from hetero.floor.documents import read_record
from hetero.floor.errors import FileError, HeteroError
from hetero.floor.listening import Listening, Verdict
from hetero.floor.private import file_socket, private_folder, user_id, write_private
from hetero.floor.units import shown

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = [
    "PATIENCE_S",
    "TOKEN_BYTES",
    "Publication",
    "answers",
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
    listener : a new socket whose address is a file; closed at the end

    Attributes
    ----------
    descriptor : JSON file, mode 0600: name, pid, host, began, script, socket, token

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
