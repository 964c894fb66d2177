"""The throttle of a device: a thread sleeps so long that the device has the share of its speed that it was given.

In: a share, the CPU time of this thread. Out: sleep, and the seconds of a part of the work, sleep included. It must not
sleep for time in which the device only waited.
"""

from __future__ import annotations

from hetero.floor import clock

__all__ = ["Stopwatch", "Throttle", "idle_s"]

_MOST_AHEAD_S = 0.001


def idle_s(frac: float, busy_s: float) -> float:
    """Return how long to sleep after so much work, for a share of the speed: (1/f − 1) × busy, s.

    Examples
    --------
    >>> idle_s(0.25, 2.0), idle_s(1.0, 2.0)
    (6.0, 0.0)
    """
    return (1.0 / frac - 1.0) * max(0.0, busy_s)


class Throttle:
    """Slows this thread down to a share of its device's speed, part by part.

    Parameters
    ----------
    frac
        Share of its speed, 0 < frac ≤ 1; with 1 it never sleeps.

    Attributes
    ----------
    seconds
        Time of the last part of a `with` block, sleep included, s.
    slept_for_s
        CPU time for which the last pause has slept, s.

    Notes
    -----
    idle = (1/f − 1) × CPU time. A task sleeps at its end, which is too late for the steps of a training loop or the
    micro-batches of a stage, each of which is waited for by others: so those sleep where a part ends, for the CPU time
    that the thread had since it slept last. What a sleep takes too long is taken off the next one.
    """

    def __init__(self, frac: float) -> None:
        self._frac = frac
        self.active = frac < 1.0
        self._begun_s = 0.0
        self._cpu_s = 0.0
        self._owed_s = 0.0
        self.seconds = self.slept_for_s = 0.0
        self.restart()

    def idle_s(self, cpu_s: float) -> float:
        """Return how long to sleep for so much CPU time, s."""
        return idle_s(self._frac, cpu_s)

    def restart(self, *_: object) -> None:
        """Forget what was done until now."""
        self._owed_s = 0.0
        if self.active:
            self._cpu_s = clock.thread_cpu_s()

    def pause(self, *_: object) -> None:
        """Sleep for the CPU time since the last pause or restart."""
        if self.active:
            self._sleep(clock.monotonic_s())

    def __enter__(self) -> Throttle:
        self._begun_s = clock.monotonic_s()
        return self

    def __exit__(self, *_: object) -> None:
        now_s = clock.monotonic_s()
        if self.active:
            now_s = self._sleep(now_s)
        self.seconds = now_s - self._begun_s

    def _sleep(self, now_s: float) -> float:
        cpu_s = clock.thread_cpu_s()
        self.slept_for_s = cpu_s - self._cpu_s
        self._owed_s += self.idle_s(self.slept_for_s)
        self._cpu_s = cpu_s
        if self._owed_s <= 0.0:
            return now_s
        clock.sleep(self._owed_s)
        awake_s = clock.monotonic_s()
        self._owed_s = max(-_MOST_AHEAD_S, self._owed_s - (awake_s - now_s))
        return awake_s


class Stopwatch:
    """Measures a part of a task from now on, with the sleep that the task's throttle adds for it at the end.

    Parameters
    ----------
    frac
        Share of the device's speed, 0 < frac ≤ 1.
    """

    def __init__(self, frac: float) -> None:
        self._throttle = Throttle(frac)
        self._begun_s, self._begun_cpu_s = clock.monotonic_s(), clock.thread_cpu_s()

    def seconds(self) -> float:
        """Return the time since the start, s."""
        idle_s = self._throttle.idle_s(clock.thread_cpu_s() - self._begun_cpu_s)
        return clock.monotonic_s() - self._begun_s + idle_s
