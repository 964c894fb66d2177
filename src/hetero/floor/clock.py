"""Time and the trace as protocols, and the one wall clock.

In: nothing. Out: seconds since the start of a run. This is the only importer of `time` in the package.
"""

from __future__ import annotations

import sys
import time
from typing import Protocol

__all__ = [
    "JOIN_S",
    "Clock",
    "TraceSink",
    "WallClock",
    "cpu_seconds",
    "monotonic_s",
    "process_cpu_s",
    "sleep",
    "thread_cpu_s",
    "wall_time_s",
]

JOIN_S = 10.0
"""How long the end of a run waits for a thread of its own: a disk or a terminal that takes nothing may hold it."""


class Clock(Protocol):
    """Where time comes from: the wall or a simulation."""

    def now_s(self) -> float:
        """Return the seconds since this clock's start."""
        ...


class TraceSink(Protocol):
    """Where events and commands are written as they happen."""

    def write(self, record: tuple[object, ...]) -> None:
        """Take one event or command; must not block and must not raise."""
        ...


class WallClock:
    """Monotonic seconds since `origin_s`, a reading of the host's monotonic clock.

    All processes of one host share that clock, so workers started with the same origin agree.

    Examples
    --------
    >>> clock = WallClock()
    >>> clock.now_s() >= 0.0
    True
    """

    __slots__ = ("origin_s",)

    def __init__(self, origin_s: float | None = None) -> None:
        self.origin_s = time.monotonic() if origin_s is None else origin_s

    def now_s(self) -> float:
        """Return the seconds since the origin."""
        return time.monotonic() - self.origin_s


monotonic_s = time.perf_counter
thread_cpu_s = time.thread_time
cpu_seconds = time.process_time
wall_time_s = time.time
sleep = time.sleep


def process_cpu_s(pid: int) -> float:
    """Return the processor time that a process has taken so far, all its threads together; 0.0 where it is unknown.

    Notes
    -----
    Linux numbers the clock of a process as `clock_getcpuclockid` does: the id inverted, and 2 for scheduler time.
    """
    if sys.platform != "linux":
        return 0.0
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0
