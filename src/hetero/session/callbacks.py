"""The thread in which users' callbacks run, so that they may wait without holding up a driver.

In: functions without arguments. Out: their calls, one after the other, in order.
It must not start before there is something to call.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable

__all__ = ["Callbacks"]


class Callbacks:
    """Calls functions in a thread of its own, in the order in which they were handed in.

    Examples
    --------
    >>> callbacks, called = Callbacks(), threading.Event()
    >>> callbacks.call_soon(called.set)
    >>> called.wait(5)
    True
    >>> callbacks.close()
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function from the thread; once closed, from here."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._waiting.put(function)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="hetero-callbacks", daemon=True)
                    self._thread.start()
        if closed:
            function()

    def settle(self) -> None:
        """Wait until everything that was handed in has been called."""
        if self._thread is not None and self._thread is not threading.current_thread():
            called = threading.Event()
            self.call_soon(called.set)
            called.wait()

    def close(self) -> None:
        """Call what is waiting, then end the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._waiting.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def _work(self) -> None:
        while (function := self._waiting.get()) is not None:
            try:
                function()
            except Exception:  # noqa: BLE001  a user's callback must not end the others
                sys.excepthook(*sys.exc_info())
