"""Time and the trace as protocols, the one wall clock, and the clock of a worker's attempts.

In: nothing. Out: seconds since the start of a run. This is the only importer of `time` in the package.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from math import inf
from typing import NamedTuple, Protocol

__all__ = [
    "JOIN_S",
    "Clock",
    "TaskClock",
    "Times",
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


class Times(NamedTuple):
    """How long an attempt had its device, from being taken up until the next one could be, in parts.

    Attributes
    ----------
    load_s
        Seconds, reading the function and the arguments.
    run_s
        Seconds, running the function, waiting in it and throttling included.
    store_s
        Seconds, storing the result, or the exception, and cleaning up.
    wait_s
        Seconds, waiting for room in memory for the result.
    link_in_s, link_out_s
        Seconds, on an emulated link; these are transfers and no part of `seconds`.
    away_s
        Seconds for which it was suspended, while others had the device; no part of `seconds` or of `run_s`.
    below_s
        Seconds that the tasks which it submitted, and theirs, took of their devices; no part of `seconds`.
    """

    load_s: float = 0.0
    run_s: float = 0.0
    store_s: float = 0.0
    wait_s: float = 0.0
    link_in_s: float = 0.0
    link_out_s: float = 0.0
    away_s: float = 0.0
    below_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds that the attempt took of its device, without links."""
        return self.load_s + self.run_s + self.store_s + self.wait_s


class TaskClock:
    """Measures the attempts of one worker, one after the other: for every engine the same.

    Parameters
    ----------
    now_s
        The clock.

    Attributes
    ----------
    started_s, called_s, ran_s, ended_s
        Seconds, when the device was taken, the function was called, it returned or raised, and the device was free.
    loaded_s
        Seconds after the call in which the function read what it needs beside its arguments, as a program.
    wait_s, link_in_s, link_out_s, away_s, below_s
        Seconds, added up by the worker; see `Times`.

    Examples
    --------
    >>> seconds = iter([0.0, 2.0, 5.0, 6.0])
    >>> clock = TaskClock(lambda: next(seconds))
    >>> clock.start(); clock.call(); clock.ran()
    >>> clock.times()
    Times(load_s=2.0, run_s=3.0, store_s=1.0, wait_s=0.0, link_in_s=0.0, link_out_s=0.0, away_s=0.0, below_s=0.0)
    """

    __slots__ = (
        "_now_s",
        "away_s",
        "below_s",
        "called_s",
        "ended_s",
        "link_in_s",
        "link_out_s",
        "loaded_s",
        "ran_s",
        "started_s",
        "wait_s",
    )

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.started_s = self.called_s = self.ran_s = self.ended_s = inf
        self.wait_s = self.link_in_s = self.link_out_s = self.loaded_s = self.away_s = self.below_s = 0.0

    def start(self) -> None:
        """Begin an attempt: the device is taken."""
        self.started_s = self._now_s()
        self.called_s = self.ran_s = inf
        self.wait_s = self.link_in_s = self.link_out_s = self.loaded_s = self.away_s = self.below_s = 0.0

    def call(self) -> None:
        """Mark that the arguments are there and the function is called."""
        self.called_s = self._now_s()

    def loaded(self) -> None:
        """Mark that the function, which was called, has read what it needs: what it does from now on is its run."""
        self.loaded_s = self._now_s() - self.called_s

    def ran(self) -> None:
        """Mark that the function returned or raised."""
        self.ran_s = self._now_s()

    def times(self) -> Times:
        """Return the parts of the attempt, which ends now: the device is free."""
        now_s = self.ended_s = self._now_s()
        called_s = min(self.called_s, now_s)
        ran_s = min(self.ran_s, now_s)
        load_s = called_s + self.loaded_s - self.started_s - self.link_in_s
        store_s = now_s - ran_s - self.wait_s - self.link_out_s
        run_s = ran_s - called_s - self.loaded_s - self.away_s
        times = (load_s, run_s, store_s, self.wait_s, self.link_in_s, self.link_out_s, self.away_s, self.below_s)
        return Times(*times)
