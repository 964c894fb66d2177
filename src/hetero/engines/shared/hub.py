"""One event loop in a thread of its own for all workers of an engine: input, timers, reporting events, and sockets.

In: file descriptors, functions to call, messages for workers. Out: events, a list at a time. The loop waits for nothing
but input, and a sender never waits.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from hetero.engines.base import Report
from hetero.engines.shared.messages import Ping, WorkerMessage, packed
from hetero.engines.shared.wire import frame
from hetero.floor import clock, platform
from hetero.floor.errors import DeviceLostError
from hetero.floor.platform import send_with_files
from hetero.model.events import Event

__all__ = [
    "Hub",
    "Pipe",
]

_PATIENCE_S = 1.0


class Hub:
    """Waits for input on many descriptors and calls their handlers.

    Methods other than `call`, `at` and `wait` belong to handlers.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._events: list[Event] = []
        self._open = True
        self._thread: threading.Thread | None = None
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._woken)
        self._watched = {self._wake_out.fileno()}

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="hetero-hub", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the hub's thread, soon."""
        self._calls.append(function)
        if threading.current_thread() is not self._thread:
            self._wake()

    def at(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call a function in the hub's thread after a while."""
        due_s = clock.monotonic_s() + delay_s
        self.call(lambda: heapq.heappush(self._timers, (due_s, next(self._numbers), function)))

    def emit(self, event: Event) -> None:
        """Report an event with the others of this round."""
        self._events.append(event)

    def watch(self, fd: int, handler: Callable[[int], None], writing: bool = False) -> None:
        """Call the handler with a mask of selector events whenever a descriptor is ready."""
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        if fd in self._watched:
            self._selector.modify(fd, mask, handler)
        else:
            self._selector.register(fd, mask, handler)
            self._watched.add(fd)

    def unwatch(self, fd: int) -> None:
        """Stop calling a descriptor's handler."""
        if fd in self._watched:
            self._watched.remove(fd)
            with suppress(KeyError, ValueError):
                self._selector.unregister(fd)

    def wait(self, done: threading.Event) -> None:
        """Wait until something is done that the hub's thread does; in that thread, do it meanwhile."""
        if threading.current_thread() is not self._thread:
            while not done.wait(_PATIENCE_S):
                self._refuse_when_ended()
            return
        while not done.is_set():
            self._refuse_when_ended()
            self._step()

    def _refuse_when_ended(self) -> None:
        if not self._open:
            raise DeviceLostError("the Context was closed while a copy from a device was waited for")

    def stop(self) -> None:
        """End the thread; what was to be told is dropped."""
        self._open = False
        self._wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)
            self._thread = None  # what is closed keeps no thread object until it is collected
        self._selector.close()
        self._wake_out.close()
        self._wake_in.close()

    def _run(self) -> None:
        platform.hold_interrupt(True)
        while self._open:
            self._step()
            while self._events and self._open:
                events, self._events = self._events, []
                self._report(events)

    def _step(self) -> None:
        for key, mask in self._selector.select(self._patience()):
            if key.fd in self._watched:  # a handler before it in this round may have ended it
                key.data(mask)
        while self._timers and self._timers[0][0] <= clock.monotonic_s():
            heapq.heappop(self._timers)[2]()
        while self._calls:
            self._calls.popleft()()

    def _patience(self) -> float | None:
        if self._calls or self._events:
            return 0.0
        return max(0.0, self._timers[0][0] - clock.monotonic_s()) if self._timers else None

    def _wake(self) -> None:
        with suppress(OSError):
            self._wake_in.send(b"!")

    def _woken(self, mask: int) -> None:
        with suppress(BlockingIOError):
            self._wake_out.recv(1 << 16)


class Pipe:
    """A socket to the worker that never makes the sender wait."""

    def __init__(self, hub: Hub, counters: Counter[str], end: socket.socket, handler: Callable[[int], None]) -> None:
        end.setblocking(False)
        self.socket = end
        self._hub = hub
        self._counters = counters
        self._backlog: deque[tuple[memoryview, list[int]]] = deque()
        self._handler = handler
        self._lock = threading.Lock()

    def send(self, message: WorkerMessage, fds: Sequence[int] = ()) -> None:
        """Send a message now, or as soon as the worker reads."""
        data = memoryview(frame(packed(message)))
        with self._lock:
            self._counters["messages"] += type(message) is not Ping
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
