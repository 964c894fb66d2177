"""The one timer of a live run: a thread that calls back at the time asked for, and twice a second in any case.

In: a time. Out: a call. It must not hold anybody up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf

from hetero.floor.clock import JOIN_S, Clock

__all__ = ["Timer"]

BEAT_S = 0.5
"""Chores that nobody asks a time for are done this often."""


class Timer:
    """Calls `tick(now_s, due)`: `due` is True when a time that was asked for has come.

    Parameters
    ----------
    clock : the time that `set` refers to
    tick : called from the timer's thread; must not raise
    """

    def __init__(self, clock: Clock, tick: Callable[[float, bool], None]) -> None:
        self._clock = clock
        self._tick = tick
        self._at_s = inf
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._loop, name="hetero-timer", daemon=True)
        self._thread.start()

    def set(self, at_s: float) -> None:
        """Ask for a call at this time, or at an earlier one asked for before."""
        with self._changed:
            if at_s < self._at_s:
                self._at_s = at_s
                self._changed.notify()

    def stop(self) -> None:
        """End the thread, unless it is the caller."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        thread, self._thread = self._thread, None  # what is closed keeps no thread object until it is collected
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)

    def _loop(self) -> None:
        while True:
            with self._changed:
                wait_s = min(self._at_s - self._clock.now_s(), BEAT_S)
                if wait_s > 0 and not self._stopping:
                    self._changed.wait(wait_s)
                if self._stopping:
                    return
                now_s = self._clock.now_s()
                due = now_s >= self._at_s
                if due:
                    self._at_s = inf
            self._tick(now_s, due)
