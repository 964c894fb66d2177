"""The throttle of a device that trains: it sleeps within each step, for its tasks end too late for that.

In: the share of its speed that a device was given. Out: seconds of a part of a step, sleep included.
It must not sleep for time in which the device only waited.
"""

from __future__ import annotations

from hetero.floor import clock

__all__ = ["Throttle"]

_MOST_AHEAD_S = 0.001


class Throttle:
    """Slows a device down to the share of its speed that it was given, step by step.

    Parameters
    ----------
    frac : of its speed, 0 < frac ≤ 1

    Attributes
    ----------
    seconds : s of the last part

    Notes
    -----
    A training loop is one long task, and a task is throttled at its end: too late for a step. So the loop runs in
    a thread of its own, whose time the task does not count. Where a part ends it sleeps (1/f − 1) × the CPU time
    that the thread had since it slept last, in this part and before it. What a sleep takes too long is taken off
    the next one.
    """

    def __init__(self, frac: float) -> None:
        self._idle_per_cpu_s = 1.0 / frac - 1.0
        self._begun_s = 0.0
        self._cpu_s = 0.0
        self._owed_s = 0.0
        self.seconds = 0.0
        self.restart()

    def restart(self) -> None:
        """Forget what was done until now."""
        self._owed_s = 0.0
        if self._idle_per_cpu_s:
            self._cpu_s = clock.thread_cpu_s()

    def __enter__(self) -> Throttle:
        self._begun_s = clock.monotonic_s()
        return self

    def __exit__(self, *_: object) -> None:
        now_s = clock.monotonic_s()
        if self._idle_per_cpu_s:
            now_s = self._sleep(now_s)
        self.seconds = now_s - self._begun_s

    def _sleep(self, now_s: float) -> float:
        cpu_s = clock.thread_cpu_s()
        self._owed_s += self._idle_per_cpu_s * (cpu_s - self._cpu_s)
        self._cpu_s = cpu_s
        if self._owed_s <= 0.0:
            return now_s
        clock.sleep(self._owed_s)
        awake_s = clock.monotonic_s()
        self._owed_s = max(-_MOST_AHEAD_S, self._owed_s - (awake_s - now_s))
        return awake_s
