"""Batch sizes: how long a batch of a size takes on a device, and how large the next one should be.

In: measured (size, seconds), records left, when each device is free. Out: sizes, and the end that they lead to.
It must not remember anything: what is learned in a run lives in `hetero.plan.batch.planner`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property

__all__ = ["Law", "finish_s", "guided_size", "packed", "soonest_s"]

_NEAR_BEST = 0.99
_STRETCH = 1.2
_ROUNDS = 14
_REACH = 4.0


class Law:
    """How long a batch takes on one device, over its size.

    Parameters
    ----------
    points
        (size, s) of sizes that were measured, at least one, sizes ascending and > 0.
    limit
        The largest size that is allowed.
    grows
        Whether the rate still grew at the last point.

    Notes
    -----
    Between two points it is a parabola through them and a neighbour, held between the two; above the last one
    the rate stays what it was there, or, where it still grew, the line of the last two goes on up to four times
    the size; below the first one the line of the first two goes on, but a smaller batch
    is never worth more a second than the first point.

    Examples
    --------
    >>> law = Law([(1, 0.11), (16, 0.26), (64, 1.0)])
    >>> law.best, law.seconds(16), round(law.seconds(8), 3), law.size_within(0.2)
    (64, 0.26, 0.175, 10)
    """

    def __init__(self, points: Iterable[tuple[float, float]], limit: float = math.inf, grows: bool = False) -> None:
        self.points: tuple[tuple[float, float], ...] = tuple(points)
        self.limit = limit
        self.grows = grows and len(self.points) > 1
        self._sizes = [size for size, _ in self.points]

    @cached_property
    def best(self) -> float:
        """The smallest measured size whose rate is within 1 % of the best one."""
        allowed = [point for point in self.points if point[0] <= self.limit]
        if not allowed:
            return self.limit
        top = max(size / seconds for size, seconds in allowed)
        return next(size for size, seconds in allowed if size / seconds >= _NEAR_BEST * top)

    @cached_property
    def most(self) -> float:
        """The largest size for a last batch: a little above the best one, where that was measured.

        Where the rate still grew it is four times the largest size that was measured, as for `seconds`.
        """
        last = self.points[-1][0]
        if self.grows:
            return min(self.limit, _REACH * last)
        return min(self.limit, max(self.best, min(last, _STRETCH * self.best)))

    @cached_property
    def best_s(self) -> float:
        """The seconds of a batch of the best size."""
        return self.seconds(self.best)

    @property
    def rate(self) -> float:
        """Records a second at the best size."""
        return self.best / self.best_s

    def seconds(self, size: float) -> float:
        """Return the seconds of a batch."""
        first, first_s = self.points[0]
        if size >= self.points[-1][0]:
            return self._above(size)
        if size >= first:
            return self._between(size)
        if len(self.points) == 1:
            return first_s * size / first
        return max(_on_line(self.points[0], self.points[1], size), first_s * size / first)

    def _above(self, size: float) -> float:
        last, last_s = self.points[-1]
        if not self.grows:
            return last_s * size / last
        far = min(size, _REACH * last)
        return max(last_s, min(last_s * far / last, _on_line(self.points[-2], self.points[-1], far))) * size / far

    def _between(self, size: float) -> float:
        """Return the seconds of a size between two points: on the parabola through them and a third one."""
        at = bisect_right(self._sizes, size)
        low, high = self.points[at - 1], self.points[at]
        line_s = _on_line(low, high, size)
        if len(self.points) == 2 or size == low[0]:
            return line_s
        third = self.points[at - 2] if at > 1 else self.points[at + 1]
        bend = (_on_line(low, high, third[0]) - third[1]) / ((third[0] - low[0]) * (third[0] - high[0]))
        bent_s = line_s - bend * (size - low[0]) * (size - high[0])
        return min(max(bent_s, min(low[1], high[1])), max(low[1], high[1]))

    def size_within(self, seconds: float) -> int:
        """Return the largest size, up to `most`, that is done within some seconds, 0 where not even 1 is."""
        low, high = 0, int(self.most)
        if seconds >= self.seconds(high):
            return high
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.seconds(middle) <= seconds else (low, middle - 1)
        return low

    def capacity(self, seconds: float) -> int:
        """Return how many records are done within some seconds, in batches of the best size and a smaller last one."""
        if seconds <= 0.0:
            return 0
        full = max(0, int(seconds / self.best_s) - 1)
        left_s = seconds - full * self.best_s
        last = self.size_within(left_s)
        if left_s >= self.best_s:
            last = max(last, int(self.best) + self.size_within(left_s - self.best_s))
        return full * int(self.best) + last


def _on_line(a: tuple[float, float], b: tuple[float, float], size: float) -> float:
    return a[1] + (b[1] - a[1]) * (size - a[0]) / (b[0] - a[0])


def finish_s(laws: Sequence[Law], free_s: Sequence[float], left: float) -> float:
    """Return the earliest time by which all devices together have done what is left.

    Parameters
    ----------
    laws
        Of the devices, at least one.
    free_s
        Seconds, when each has done what it was given.
    left
        Records that no device was given yet.

    Examples
    --------
    >>> one = Law([(10, 1.0)])
    >>> round(finish_s([one, one], [0.0, 1.0], 30), 3)
    2.0
    """
    low = soonest_s(laws, free_s, left)
    high = low + max(law.best_s for law, free in zip(laws, free_s, strict=True) if free <= low)
    for _ in range(_ROUNDS):
        middle = 0.5 * (low + high)
        done = sum(law.capacity(middle - free) for law, free in zip(laws, free_s, strict=True))
        low, high = (low, middle) if done >= left else (middle, high)
    return high


def soonest_s(laws: Sequence[Law], free_s: Sequence[float], left: float) -> float:
    """Return a bound below `finish_s`: every device at its best rate from when it is free, no batch too small.

    Examples
    --------
    >>> one = Law([(10, 1.0)])
    >>> soonest_s([one, one], [0.0, 1.0], 30), soonest_s([one, one], [0.0, 9.0], 30)
    (2.0, 3.0)
    """
    rates = done = 0.0
    end_s = min(free_s)
    for free, rate in sorted((free, law.rate) for law, free in zip(laws, free_s, strict=True)):
        if rates and done + rates * (free - end_s) >= left:
            break
        done += rates * (free - end_s)
        rates, end_s = rates + rate, free
    return end_s + max(0.0, left - done) / rates


def guided_size(laws: Sequence[Law], free_s: Sequence[float], left: float, device: int) -> int:
    """Return the size of a device's next batch so that all devices end together.

    Parameters
    ----------
    laws, free_s, left
        As for `finish_s`.
    device
        Index of the device that asks.

    Returns
    -------
    int
        The best size far from the end; near it the device's part of what is left, cut into equal batches;
        0 where the others are done before this one could do a single record.

    Examples
    --------
    >>> quick, slow = Law([(1, 0.02), (100, 1.0)]), Law([(1, 0.3), (4, 1.0)])
    >>> guided_size([quick, slow], [0.0, 0.0], 10_000, 0), guided_size([quick, slow], [0.0, 0.0], 150, 0)
    (100, 73)
    >>> guided_size([quick, slow], [0.0, 0.0], 10, 1)
    0
    """
    law, free = laws[device], free_s[device]
    end = finish_s(laws, free_s, left)
    part = min(left, law.capacity(end - free + 1e-9))
    if part < 1:
        return 0
    batches = math.ceil(part / (_STRETCH * law.best))
    return int(law.best) if batches > 3 else int(min(math.ceil(part / batches), law.most))


def packed(costs: Sequence[float], wanted: float) -> int:
    """Return how many of the next records make a batch of about this cost; at least one.

    Parameters
    ----------
    costs
        > 0, of the next records in their order.
    wanted
        Of the batch.

    Examples
    --------
    >>> packed([1.0, 1.0, 5.0, 1.0], 3.0), packed([9.0, 1.0], 3.0), packed([1.0, 1.0], 100.0)
    (2, 1, 2)
    """
    total = 0.0
    for number, cost in enumerate(costs):
        total += cost
        if total > wanted:
            return max(1, number)
    return len(costs)
