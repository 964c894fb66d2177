"""Listening: visitors of a socket are heard in a thread of its own until they are known, or sent away.

In: a listening socket, and what reads a greeting. Out: connections that were let in. A visitor who is slow, silent or
one of many costs nothing beside that thread; it must not know what is said afterwards.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from hetero.floor.clock import JOIN_S, monotonic_s, sleep

__all__ = ["GREETING_S", "Admit", "Listening", "Verdict", "is_public", "is_wildcard"]

_log = logging.getLogger("hetero.listening")

GREETING_S = 2.0
"""Longest time, in all, from the connection until a visitor is known and has read what it is answered, s."""
_MOST_WAITING = 64
_LINGER_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_LOG_WINDOW_S = 10.0
_LOG_LINES = 20
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Admit(NamedTuple):
    """Accept a connection.

    Attributes
    ----------
    take
        Called with the connection, which blocks, in the listening thread; must be quick.
    reply
        Sent before.
    """

    take: Callable[[socket.socket], None]
    reply: bytes = b""


Verdict = Admit | bytes | None
"""What becomes of a visitor: let in, answered and hung up on, or heard further."""


@dataclass(slots=True, eq=False)
class _Visitor:
    connection: socket.socket
    peer: str
    deadline_s: float
    shaking: bool
    heard: bytearray = field(default_factory=bytearray)
    verdict: Verdict = None
    reply: bytes = b""
    lingered_bytes: int = -1


class Listening:
    """Hears whoever connects to a socket, without blocking on anybody.

    Parameters
    ----------
    listener
        A listening socket; closed at the end.
    read
        Called with all bytes that a visitor has sent so far and its address; gives the verdict.
    longest
        Bytes of the longest greeting; not one more is read from a visitor that is let in.
    encrypting
        Context of the TLS handshake that comes first, None for none.
    deadline_s
        Longest time in all for handshake, greeting and reply, s.
    most
        Visitors that may be heard at the same time; the one who came first makes room for the next.

    Notes
    -----
    The oldest visitor makes room, and not the newest, because one who knows what to say is done in a few round trips:
    a crowd that says nothing is pushed out by those that it would keep out.
    """

    def __init__(
        self,
        listener: socket.socket,
        read: Callable[[bytes, str], Verdict],
        longest: int,
        *,
        encrypting: ssl.SSLContext | None = None,
        deadline_s: float = GREETING_S,
        most: int = _MOST_WAITING,
    ) -> None:
        self._listener = listener
        self._read = read
        self._longest = longest
        self._encrypting = encrypting
        self._deadline_s = deadline_s
        self._most = most
        self._visitors: dict[_Visitor, None] = {}
        self._closed = False
        self._logged_s: list[float] = []
        self._untold = 0
        self._ears, self._mouth = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for end in (listener, self._ears):
            end.setblocking(False)
            self._selector.register(end, selectors.EVENT_READ)
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="hetero-listening", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._end()
            raise

    def close(self) -> None:
        """Hang up on everybody who was not let in, and listen no more; safe to call twice and from any thread."""
        self._closed = True
        with suppress(OSError):
            self._mouth.send(b"!")
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)
            self._thread = None  # what is closed keeps no thread object until it is collected

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while not self._closed:
                for key, _ in self._selector.select(self._wait_s()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data in self._visitors:
                        self._advance(key.data)
                self._expire()
        finally:
            self._end()

    def _end(self) -> None:
        for visitor in list(self._visitors):
            self._drop(visitor)
        self._selector.close()
        for end in (self._listener, self._ears, self._mouth):
            end.close()

    def _wait_s(self) -> float | None:
        first = next(iter(self._visitors), None)
        return None if first is None else max(0.0, first.deadline_s - monotonic_s())

    def _accept(self) -> None:
        for _ in range(self._most):
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                if error.errno in _SHORT_OF:
                    self._make_room()
                return
            if len(self._visitors) >= self._most:
                self._drop(next(iter(self._visitors)), "it was silent, and others wait")
            self._welcome(connection, str(address[0]) if isinstance(address, tuple) else "")

    def _make_room(self) -> None:
        """Drop one visitor for its descriptor, or wait a little where there is none."""
        if self._visitors:
            self._drop(next(iter(self._visitors)), "descriptors are scarce")
        else:
            sleep(0.05)

    def _welcome(self, connection: socket.socket, peer: str) -> None:
        connection.setblocking(False)
        try:
            if self._encrypting is not None:
                connection = self._encrypting.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            visitor = _Visitor(connection, peer, monotonic_s() + self._deadline_s, self._encrypting is not None)
            self._selector.register(connection, selectors.EVENT_READ, visitor)
        except (OSError, ValueError):
            connection.close()
            return
        self._visitors[visitor] = None

    def _expire(self) -> None:
        now_s = monotonic_s()
        for visitor in list(self._visitors):
            if visitor.deadline_s > now_s:
                break
            self._drop(visitor, "it was not known in time" if visitor.verdict is None else "")

    def _advance(self, visitor: _Visitor) -> None:
        """Go on with one visitor as far as its bytes reach."""
        waits_for = selectors.EVENT_READ
        try:
            if self._heard(visitor):
                waits_for = selectors.EVENT_WRITE
                self._answered(visitor)
                waits_for = selectors.EVENT_READ
                self._parted(visitor)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._selector.modify(visitor.connection, waits_for, visitor)
        except ssl.SSLWantWriteError:
            self._selector.modify(visitor.connection, selectors.EVENT_WRITE, visitor)
        except ssl.SSLError as error:
            self._misunderstood(visitor, error)
        except Exception as error:  # noqa: BLE001  no visitor ends the listening for the others
            self._drop(visitor, str(error))

    def _misunderstood(self, visitor: _Visitor, error: ssl.SSLError) -> None:
        """Send one away whose handshake failed, so that it reads the alert that tells why."""
        if visitor.verdict is not None:
            self._drop(visitor)
            return
        self.log_rejected(visitor.peer, str(error.reason or error))
        visitor.verdict, visitor.shaking = b"", False
        self._advance(visitor)

    def _heard(self, visitor: _Visitor) -> bool:
        """Read until there is a verdict; False where the visitor was sent away."""
        if visitor.shaking:
            visitor.connection.do_handshake()  # type: ignore[attr-defined]
            visitor.shaking = False
        while visitor.verdict is None:
            chunk = visitor.connection.recv(min(self._longest - len(visitor.heard), _CHUNK_BYTES))
            if not chunk:
                self._drop(visitor)
                return False
            visitor.heard += chunk
            visitor.verdict = self._read(bytes(visitor.heard), visitor.peer)
            if isinstance(visitor.verdict, Admit):
                visitor.reply = visitor.verdict.reply
            elif visitor.verdict is not None:
                visitor.reply = visitor.verdict
            elif len(visitor.heard) >= self._longest:
                self._drop(visitor, "it said too much")
                return False
        return True

    def _answered(self, visitor: _Visitor) -> None:
        while visitor.reply:
            visitor.reply = visitor.reply[visitor.connection.send(visitor.reply) :]

    def _parted(self, visitor: _Visitor) -> None:
        """Hand a visitor on, or read what it still says until it has hung up: else it might miss the answer."""
        if isinstance(visitor.verdict, Admit):
            self._forget(visitor)
            visitor.connection.settimeout(None)
            try:
                visitor.verdict.take(visitor.connection)
            except BaseException:
                visitor.connection.close()
                raise
            return
        if visitor.lingered_bytes < 0:
            visitor.lingered_bytes = 0
            visitor.connection.shutdown(socket.SHUT_WR)
        while (chunk := visitor.connection.recv(_CHUNK_BYTES)) and visitor.lingered_bytes < _LINGER_BYTES:
            visitor.lingered_bytes += len(chunk)
        self._drop(visitor)

    def _forget(self, visitor: _Visitor) -> None:
        self._visitors.pop(visitor, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(visitor.connection)

    def _drop(self, visitor: _Visitor, why: str = "") -> None:
        self._forget(visitor)
        visitor.connection.close()
        if why:
            self.log_rejected(visitor.peer, why)

    def log_rejected(self, peer: str, why: str) -> None:
        """Log who was sent away, from the listening thread; a crowd of them fills no disk."""
        now_s = monotonic_s()
        self._logged_s = [each for each in self._logged_s if each > now_s - _LOG_WINDOW_S]
        if len(self._logged_s) >= _LOG_LINES:
            self._untold += 1
            return
        more = f" ({self._untold} more since)" if self._untold else ""
        self._untold = 0
        self._logged_s.append(now_s)
        _log.info("refused %s: %s%s", peer or "a visitor", why, more)


def is_public(host: str) -> bool:
    """Return whether an IP address is one that the whole internet can reach; a name is not looked up.

    Examples
    --------
    >>> is_public("8.8.8.8"), is_public("10.0.0.7"), is_public("127.0.0.1"), is_public("node3")
    (True, False, False, False)
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_global
    return False


def is_wildcard(host: str) -> bool:
    """Return whether listening on an address means to listen on every interface.

    Examples
    --------
    >>> is_wildcard("0.0.0.0"), is_wildcard("::"), is_wildcard("10.0.0.7")
    (True, True, False)
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    return False
