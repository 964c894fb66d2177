"""Lines: ordered messages between a program and its members over TCP, both ends known by a shared key.

In: values that pickle. Out: the same values at the other end. It must not unpickle a byte before the key was shown.
"""

from __future__ import annotations

import hmac
import pickle
import secrets
import selectors
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from hetero.comm.errors import LineClosedError
from hetero.comm.rendezvous import LOOPBACK
from hetero.floor.clock import sleep
from hetero.floor.listening import Admit, Listening, Verdict

__all__ = ["Address", "Line", "LineServer", "Message", "end_when_cut"]

_HEAD = struct.Struct("!Q")
_KEY_CHARACTERS = 64
_LET_IN = b"+"
_BACKLOG = 128
_DIAL_S = 30.0
_TRIES = 4
_AGAIN_S = 0.1
_KEEP_ALIVE_S = 3.0

Message = tuple[Any, ...]
"""What travels at once: values that pickle."""


class Address(NamedTuple):
    """Where a hub is reached.

    Attributes
    ----------
    key
        That whoever dials in shows.
    authority
        Certificate of the authority that vouches for the hub, in PEM; '' where nothing is encrypted.
    """

    host: str
    port: int
    key: str
    authority: str = ""


class Line:
    """One end of a connection.

    Sending is safe from several threads; receiving belongs to one.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._address: Address | None = None
        self._closed = False

    @classmethod
    def dial(cls, address: Address) -> Line:
        """Connect to a hub.

        Raises
        ------
        LineClosedError
            Nobody listens there.
        """
        line = cls(_connected(address))
        line._address = address
        return line

    def dial_again(self) -> None:
        """Connect anew after the line was cut; what was not read is forgotten.

        Raises
        ------
        LineClosedError
            Nobody listens there, or this end was closed.
        """
        assert self._address is not None
        connection = _connected(self._address)
        with self._lock:
            self._connection.close()
            self._connection = connection
            self._buffer.clear()
            if self._closed:
                connection.close()
                raise LineClosedError("this end of the line was closed")

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._connection.fileno()

    def end_when_cut(self, silent_s: float) -> None:
        """Close the line when the other end's host has not answered for so long, s.

        A process that is stopped does not count: its host answers for it.
        """
        end_when_cut(self._connection, silent_s)

    def send(self, *message: object) -> None:
        """Send one message.

        Raises
        ------
        LineClosedError
            The other end is gone.
        """
        data = pickle.dumps(message, protocol=5)
        try:
            with self._lock:
                self._connection.sendall(_HEAD.pack(len(data)) + data)
        except OSError as error:
            raise LineClosedError(f"the line is closed: {error}") from error

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Wait for the next message; None when none came in time.

        Raises
        ------
        LineClosedError
            The other end is gone.
        """
        while (message := self._next()) is None:
            if not self._fill(timeout_s):
                return None
        return message

    def waiting(self) -> Iterator[Message]:
        """Yield the messages that are already here; raises LineClosedError when the other end is gone."""
        while (message := self.receive(0.0)) is not None:
            yield message

    def _next(self) -> Message | None:
        if len(self._buffer) < _HEAD.size:
            return None
        (length,) = _HEAD.unpack_from(self._buffer)
        end = _HEAD.size + length
        if len(self._buffer) < end:
            return None
        message: Message = pickle.loads(memoryview(self._buffer)[_HEAD.size : end])
        del self._buffer[:end]
        return message

    def _fill(self, timeout_s: float | None) -> bool:
        try:
            while (chunk := self._read()) is None:
                if not wait([self._connection], timeout_s):
                    return False
        except OSError as error:
            raise LineClosedError(f"the line is closed: {error}") from error
        if not chunk:
            raise LineClosedError("the other end of the line is gone")
        self._buffer += chunk
        return True

    def _read(self) -> bytes | None:
        """Take what has come, None for nothing; what is encrypted comes in whole records."""
        with self._lock:
            self._connection.settimeout(0.0)
            try:
                return self._connection.recv(1 << 18)
            except (BlockingIOError, ssl.SSLWantReadError):
                return None
            finally:
                with suppress(OSError):
                    self._connection.settimeout(None)

    def close(self) -> None:
        """Close this end; whoever waits on either end learns of it."""
        self._closed = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def end_when_cut(connection: socket.socket, silent_s: float) -> None:
    """Have a connection fail when the other end's host has not answered for so long, s."""
    every_s, probes = round(_KEEP_ALIVE_S), max(1, round(silent_s / _KEEP_ALIVE_S))
    options = {"TCP_KEEPIDLE": every_s, "TCP_KEEPINTVL": every_s, "TCP_KEEPCNT": probes}
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**options, "TCP_USER_TIMEOUT": round(silent_s * 1e3)}.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _connected(address: Address) -> socket.socket:
    """Connect and be let in; one who was pushed out by a crowd tries again."""
    for again in range(1, _TRIES + 1):
        try:
            return _dialled(address)
        except ConnectionError as error:
            if again == _TRIES:
                raise _unanswered(address, error) from error
            sleep(_AGAIN_S * again)
        except OSError as error:
            raise _unanswered(address, error) from error
    raise AssertionError


def _unanswered(address: Address, error: OSError) -> LineClosedError:
    return LineClosedError(f"the program at {address.host}:{address.port} does not answer: {error}")


def _dialled(address: Address) -> socket.socket:
    connection = socket.create_connection((address.host, address.port), _DIAL_S)
    try:
        if address.authority:
            context = ssl.create_default_context(cadata=address.authority)
            context.check_hostname = False
            connection = context.wrap_socket(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(address.key.encode())
        if connection.recv(len(_LET_IN)) != _LET_IN:
            raise ConnectionResetError("it hung up")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


class LineServer:
    """Where members connect; belongs to the thread that calls `poll`.

    Handshakes and keys are read in a thread of their own: who does not know the key costs that thread nothing.

    Parameters
    ----------
    host
        Address of this host, on which the members reach it.
    certificates
        Folder of ca.crt, node.crt and node.key, '' to encrypt nothing.

    Examples
    --------
    >>> with LineServer() as hub:
    ...     line = Line.dial(hub.address)
    ...     line.send("hello", 1)
    ...     found = [message for _ in range(3) for _, message in hub.poll(1.0)]
    ...     line.close()
    >>> found
    [('hello', 1)]
    """

    def __init__(self, host: str = LOOPBACK, certificates: str = "") -> None:
        encrypting = _encrypting(Path(certificates)) if certificates else None
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._key = secrets.token_hex(_KEY_CHARACTERS // 2)
        authority = Path(certificates, "ca.crt").read_text(encoding="ascii") if certificates else ""
        self._let_in: deque[socket.socket] = deque()
        listener = socket.create_server((host, 0), backlog=_BACKLOG)
        self.address = Address(host, listener.getsockname()[1], self._key, authority)
        self._listening = Listening(listener, self._check_key, _KEY_CHARACTERS, encrypting=encrypting)

    def poll(self, timeout_s: float) -> list[tuple[Line, Message | None]]:
        """Wait for messages; a line that has closed gives None once.

        Returns
        -------
        list of (line, message)
            Empty when nothing came in time, when somebody only dialled in, or called `wake`.
        """
        found: list[tuple[Line, Message | None]] = []
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._wake_out:
                with suppress(BlockingIOError):
                    self._wake_out.recv(1 << 12)
                self._read_all()
                continue
            line: Line = key.data
            try:
                for message in line.waiting():
                    found.append((line, message))
            except LineClosedError:
                self.drop(line)
                found.append((line, None))
        return found

    def wake(self) -> None:
        """Wake `poll`; any thread may call it, also when the hub is closed."""
        with suppress(OSError):
            self._wake_in.send(b"!")

    def _check_key(self, shown: bytes, _: str) -> Verdict:
        if len(shown) < _KEY_CHARACTERS:
            return None
        return Admit(self._admit, _LET_IN) if hmac.compare_digest(shown, self._key.encode()) else b""

    def _admit(self, connection: socket.socket) -> None:
        """Leave a connection for the thread that polls; the listening thread calls it."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._let_in.append(connection)
        self.wake()

    def _read_all(self) -> None:
        while self._let_in:
            line = Line(self._let_in.popleft())
            self._selector.register(line, selectors.EVENT_READ, line)

    def drop(self, line: Line) -> None:
        """Hang up on one member."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(line)
        line.close()

    def close(self) -> None:
        """Hang up on everybody."""
        self._listening.close()
        while self._let_in:
            self._let_in.popleft().close()
        for key in list((self._selector.get_map() or {}).values()):
            if key.data is not None:
                self.drop(key.data)
        self._selector.close()
        for end in (self._wake_out, self._wake_in):
            end.close()

    def __enter__(self) -> LineServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _encrypting(certificates: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "node.crt", certificates / "node.key")
    return context
