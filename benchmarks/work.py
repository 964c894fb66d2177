"""The work that benchmarks hand out: no-ops, and a fixed amount of arithmetic, the same for every contestant.

In: seconds wanted. Out: functions without state. It must not know who runs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["calibrate", "nop", "spin", "throttled"]


def nop(*given: object) -> None:
    """Do nothing, whatever is given."""


def spin(rounds: int) -> int:
    """Do a fixed amount of arithmetic on one core; returns a number that depends on all of it.

    Examples
    --------
    >>> spin(3) == spin(3)
    True
    """
    value = 12345
    for _ in range(rounds):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    return value


def calibrate(seconds: float) -> int:
    """Return the rounds of `spin` that take about this many seconds of a free core here."""
    rounds, best_s = 100_000, float("inf")
    for _ in range(7):
        begin_s = time.thread_time()
        spin(rounds)
        best_s = min(best_s, time.thread_time() - begin_s)
    return max(1, round(rounds * seconds / best_s))


def throttled(function: Callable[..., object], share: float, *args: object) -> object:
    """Run a function and sleep (1/share - 1) × its CPU time afterwards, as hetero's `*f` does."""
    begin_s = time.thread_time()
    value = function(*args)
    time.sleep((1 / share - 1) * (time.thread_time() - begin_s))
    return value
