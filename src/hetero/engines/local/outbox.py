"""How a worker's answers leave it: together where tasks are short, at once where they are long.

In: answers. Out: lists of answers. It must not know what an answer is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Outbox"]


class Outbox:
    """Gathers answers so that many small tasks need few messages, and none waits behind a long task.

    Parameters
    ----------
    send : called with the answers, from the thread that adds them or from the outbox's own
    sleep, now_s : the clock's

    Notes
    -----
    An answer leaves at once when no task follows, or when the next one is expected to take longer than
    `WINDOW_S` or an unknown time; else with others, `WINDOW_S` after the first of them at the latest. Only a
    task that was expected to be short, and holds the interpreter's lock all the time, holds them up.
    """

    WINDOW_S = 1e-3

    def __init__(
        self, send: Callable[[list[Any]], None], sleep: Callable[[float], None], now_s: Callable[[], float]
    ) -> None:
        self._send = send
        self._sleep = sleep
        self._now_s = now_s
        self._rows: list[Any] = []
        self._lock = threading.Lock()
        self._waiting = threading.Event()
        self._thread: threading.Thread | None = None
        self._flushed_s = 0.0
        self._open = True

    def add(self, row: Any, next_s: float | None) -> None:
        """Take an answer; `next_s` is the expected time of the task that follows, None when none does."""
        if next_s is None and not self._rows:
            self._send([row])
            return
        with self._lock:
            self._rows.append(row)
        long = next_s is None or not 0.0 < next_s <= self.WINDOW_S
        if long or self._now_s() - self._flushed_s > self.WINDOW_S:
            self.flush()
        elif not self._waiting.is_set():
            self._arm()

    def flush(self) -> None:
        """Send what was gathered."""
        with self._lock:
            rows, self._rows = self._rows, []
        if rows:
            self._flushed_s = self._now_s()
            self._send(rows)

    def _arm(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._late, name="hetero-outbox", daemon=True)
            self._thread.start()
        self._waiting.set()

    def close(self) -> None:
        """Send what was gathered and end the thread."""
        self.flush()
        if self._thread is not None:
            self._open = False
            self._waiting.set()
            self._thread.join(1.0)

    def _late(self) -> None:
        while self._open:
            self._waiting.wait()
            self._sleep(self.WINDOW_S)
            self._waiting.clear()
            self.flush()
