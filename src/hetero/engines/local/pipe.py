"""One socket to a worker process, as the program uses it.

In: messages, from any thread. Out: bytes, sent at once or when the worker reads. It never makes the sender wait.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hetero.engines.local.house import House
from hetero.engines.local.messages import PING
from hetero.engines.local.wire import frame
from hetero.floor.platform import send_with_files

__all__ = ["Pipe"]


class Pipe:
    """A socket to the worker that never makes the sender wait."""

    def __init__(self, house: House, end: socket.socket, handler: Callable[[int], None]) -> None:
        end.setblocking(False)
        self.socket = end
        self._hub = house.hub
        self._counters = house.counters
        self._backlog: deque[tuple[memoryview, list[int]]] = deque()
        self._handler = handler
        self._lock = threading.Lock()

    def send(self, message: tuple[Any, ...], fds: Sequence[int] = ()) -> None:
        """Send a message now, or as soon as the worker reads."""
        data = memoryview(frame(message))
        with self._lock:
            self._counters["messages"] += message[0] != PING
            self._backlog.append((data, list(fds)))
            if len(self._backlog) == 1:
                self._push()
            if self._backlog:
                self._hub.call(self._watch)

    def on_ready(self, mask: int) -> None:
        """Go on sending, and read."""
        if mask & selectors.EVENT_WRITE:
            with self._lock:
                self._push()
            self._watch()
        if mask & selectors.EVENT_READ:
            self._handler(mask)

    def close(self) -> None:
        """Close the socket."""
        if self.socket.fileno() >= 0:
            self._hub.unwatch(self.socket.fileno())
            with self._lock:
                self._backlog.clear()
                self.socket.close()

    def _watch(self) -> None:
        if self.socket.fileno() >= 0:
            self._hub.watch(self.socket.fileno(), self.on_ready, writing=bool(self._backlog))

    def _push(self) -> None:
        while self._backlog:
            data, fds = self._backlog[0]
            try:
                sent = send_with_files(self.socket, data, fds) if fds else self.socket.send(data)
            except BlockingIOError:
                return
            except OSError:
                self._backlog.clear()
                return
            if sent == len(data):
                self._backlog.popleft()
            else:
                self._backlog[0] = (data[sent:], [])
