"""The thread in which users' callbacks run, so that they may wait without holding up a driver.

In: functions without arguments. Out: their calls, one after the other, in order.
It must not start before there is something to call.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Callable

__all__ = ["Callbacks"]

PATIENCE_S = 30.0
"""How long the end of a Context waits for a callback of the user's that does not return."""

_log = logging.getLogger("hetero")


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
        self._stuck = False
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
            _call(function)

    @property
    def is_own_thread(self) -> bool:
        """Return whether this is called from the thread that calls the functions."""
        return self._thread is threading.current_thread()

    def settle(self) -> None:
        """Wait until everything that was handed in has been called, for `PATIENCE_S` at most."""
        if self._thread is not None and self._thread is not threading.current_thread():
            called = threading.Event()
            self.call_soon(called.set)
            if not called.wait(0.0 if self._stuck else PATIENCE_S):
                self._give_up()

    def close(self) -> None:
        """Call what is waiting, then end the thread; one that a callback holds for `PATIENCE_S` is left behind."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._waiting.put(None)
            if thread is not threading.current_thread():
                thread.join(0.0 if self._stuck else PATIENCE_S)
                if thread.is_alive():
                    self._give_up()

    def _give_up(self) -> None:
        if not self._stuck:
            self._stuck = True
            _log.warning(
                "a callback of a future has not returned for %g s: the Context closes without it and those behind it",
                PATIENCE_S,
            )

    def _work(self) -> None:
        while (function := self._waiting.get()) is not None:
            _call(function)


def _call(function: Callable[[], object]) -> None:
    try:
        function()
    except BaseException:  # noqa: BLE001  a user's callback ends neither the others nor one of our threads
        sys.excepthook(*sys.exc_info())
