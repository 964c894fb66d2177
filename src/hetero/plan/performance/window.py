"""Windows: the latest measured seconds of one signature on one device, ready to be asked millions of times.

In: one measured run after another. Out: a median with its spread, and whether the speed changed.
It must not know of devices or other signatures: `hetero.plan.performance.cost_model` connects the windows.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero.plan.performance.robust_statistics import NOISE_S, exponent, is_change, median, summary

__all__ = ["WINDOW", "Window"]

WINDOW = 32
"""The latest samples that count; a power of two."""

ENOUGH = 6
"""Samples from which a window of several sizes can tell whether the size explains the times."""

_EARLY = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_EVERY = 16


class Window:
    """A ring of the latest samples of one signature on one device.

    The median is worked out at 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 samples and then at every 16th, and whenever a
    sample is off. Where the sizes differ within the window and explain the times, it is that of seconds / size**b.

    Attributes
    ----------
    seconds, sizes
        The ring, s; at most `WINDOW` entries.
    count
        Samples taken since the last change.
    due
        The count at which the median is worked out next.
    b
        Exponent of the size, 0 where the size explains nothing.
    middle, low, high
        Median, 10th and 90th percentile of seconds / size**b.
    floor, ceil
        A sample of seconds / size**b outside of them is off.
    size
        The latest size.
    streak
        (size, seconds) of the samples that were off in a row, on one side; they are not in the ring yet.
    first
        True while the only sample is the first run of a signature on a device.
    factor
        The device's speed change up to which the samples are true.
    own
        True once the device itself ran it; before, the samples are those of its like.
    told, told_size
        The estimate when it was last said to have moved, s, and for which size.
    fresh
        Samples that were not handed out to be kept.
    """

    __slots__ = (
        "b",
        "ceil",
        "count",
        "due",
        "factor",
        "first",
        "floor",
        "fresh",
        "high",
        "low",
        "middle",
        "own",
        "seconds",
        "size",
        "sizes",
        "streak",
        "told",
        "told_size",
    )

    def __init__(self, factor: float = 1.0) -> None:
        self.seconds: list[float] = []
        self.sizes: list[float] = []
        self.count = 0
        self.due = 1
        self.b = 0.0
        self.middle = self.low = self.high = 0.0
        self.floor, self.ceil = 0.0, 0.0
        self.size = 0.0
        self.streak: list[tuple[float, float]] = []
        self.first = False
        self.factor = factor
        self.own = False
        self.told = 0.0
        self.told_size = 0.0
        self.fresh = 0

    def put(self, size: float, seconds: float) -> None:
        """Add a sample; the median is not worked out anew."""
        at = self.count & (WINDOW - 1)
        if at == len(self.seconds):
            self.seconds.append(seconds)
            self.sizes.append(size)
        else:
            self.seconds[at] = seconds
            self.sizes[at] = size
        self.count += 1
        self.fresh += 1
        self.size = size

    def latest(self, most: int) -> list[tuple[float, float]]:
        """Return the newest (size, seconds), oldest first."""
        held = len(self.seconds)
        newest = (at % held for at in range(self.count - min(most, held), self.count))
        return [(self.sizes[at], self.seconds[at]) for at in newest]

    def weigh(self) -> None:
        """Work out the median and what follows from it."""
        values: Sequence[float] = self.seconds
        if self.count >= max(self.due, ENOUGH) and min(self.sizes) != max(self.sizes):
            self._explain(values)
        unit = 1.0
        if self.b:
            values = [self.scaled(size, seconds) for size, seconds in zip(self.sizes, values, strict=True)]
            unit = max(median(self.sizes), 1.0) ** self.b
        self.middle, self.low, self.high, self.floor, self.ceil = summary(values, NOISE_S / unit)
        self.due = self.count + _EVERY
        for count in _EARLY:
            if count > self.count:
                self.due = count
                break

    def _explain(self, values: Sequence[float]) -> None:
        varies = max(values) > 1.3 * min(values) and max(values) - min(values) > 2.0 * NOISE_S
        self.b = exponent(self.sizes, values) if varies else 0.0

    def scaled(self, size: float, seconds: float) -> float:
        """Return seconds / size**b."""
        return seconds if self.b == 0.0 else float(seconds / max(size, 1.0) ** self.b)

    def at(self, size: float) -> float:
        """Return the median for a size, s."""
        return self.middle if self.b == 0.0 else float(self.middle * max(size, 1.0) ** self.b)

    def is_off(self, x: float) -> bool:
        """Return whether a sample of seconds / size**b is too far from the median to be chance."""
        return self.count > 0 and not self.floor < x < self.ceil

    def off(self, size: float, seconds: float) -> bool:
        """Take a sample that is off, outside of the ring until others show what it was; True when the speed changed."""
        sizes = [*self.sizes, *(other for other, _ in self.streak), size]
        if self.count < ENOUGH and max(sizes) > 1.1 * min(sizes):
            self.put(size, seconds)
            self.calm()
            return False
        slow = self.scaled(size, seconds) > self.middle
        if self.streak and (self.scaled(*self.streak[0]) > self.middle) is not slow:
            self.calm()
        self.streak.append((size, seconds))
        return is_change([self.scaled(*run) for run in self.streak], self.middle)

    def calm(self) -> None:
        """Take the samples that were off for what they were: spikes."""
        for size, seconds in self.streak:
            self.put(size, seconds)
        self.streak = []
        self.weigh()

    def restart(self) -> None:
        """Forget all but the samples that were off."""
        self.seconds, self.sizes, self.count = [], [], 0
        self.fresh = 0
        self.calm()

    def scale(self, ratio: float) -> None:
        """Multiply all samples."""
        self.seconds = [seconds * ratio for seconds in self.seconds]
        self.calm()

    def acknowledge_move(self) -> bool:
        """Record the estimate as known and return True where it moved by more than a tenth since it last was."""
        now = self.at(self.told_size)
        if self.told and (self.told / 1.1 <= now <= self.told * 1.1 or abs(now - self.told) < NOISE_S / 10.0):
            return False
        self.told_size = self.size
        self.told = self.at(self.size)
        return True
