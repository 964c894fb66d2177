"""Timing of short calls on a device.

In: calls that start work, and a call that waits for it. Out: seconds. It knows nothing of what is computed.
"""

from __future__ import annotations

from collections.abc import Callable

from hetero.floor.clock import monotonic_s

__all__ = ["best_s", "grow"]

LONG_ENOUGH_S = 0.004
BUDGET_S = 0.020


def best_s(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the shortest of up to ten timed calls, or of as many as fit into 20 ms, after one that warms up.

    Returns
    -------
    float
        s, > 0
    """
    call()
    wait()
    best, begun = float("inf"), monotonic_s()
    for _ in range(10):
        start = monotonic_s()
        call()
        wait()
        end = monotonic_s()
        best = min(best, end - start)
        if end - begun > BUDGET_S:
            break
    return max(best, 1e-9)


def grow(
    prepare: Callable[[int], Callable[[], object]], wait: Callable[[], object], size: int, most: int
) -> tuple[int, float]:
    """Double a size until one call takes 4 ms or the size is the largest allowed.

    Parameters
    ----------
    prepare : gives the call for a size
    wait : waits until the call's work has ended
    size, most : first and largest size

    Returns
    -------
    tuple
        the size, and the seconds of its best call
    """
    seconds = best_s(prepare(size), wait)
    while seconds < LONG_ENOUGH_S and size < most:
        size *= 2
        seconds = best_s(prepare(size), wait)
    return size, seconds
