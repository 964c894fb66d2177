"""What a run learns of one device's batch sizes, and which size it should try next.

In: (size, seconds) of batches, and sizes that did not fit. Out: a `Law`, the next size.
It must not know a clock or another device.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from hetero.plan.batch.time_model import Law
from hetero.plan.performance.robust_statistics import CHANGE_RATIO, median

__all__ = ["Sizes"]

_KEPT = 5
_SURE = 3
_GROWS = 1.03
_STEEP = 2.5
_MAYBE = 0.8
_BUCKETS = 4
_STEP = 1.8
_SHORT_S = 0.02
_NOISE_S = 2e-3
_FAR = 4.0


class Sizes:
    """The batch sizes of one device.

    Parameters
    ----------
    fixed
        The size that the user asked for, None to find the best one.
    limit
        The largest size that is allowed.
    known
        (size, s) of an earlier run.

    Attributes
    ----------
    limit
        The largest size that is allowed; falls when one did not fit.

    Notes
    -----
    Sizes grow while the rate does: four-fold while four times as many records take less than 1.6 times as
    long, else two-fold, until a step wins less than 3 %. A step that seems to lose a little is tried once more;
    where a batch takes less than 20 ms, it is measured three times, and a little loss does not end the growth.
    Three samples in a row that are 1.4 times off, all on one side, are a change of speed, and scale all that
    was learned; what an earlier run learned is forgotten then, and so is what was scaled more than four-fold since
    it was measured. Sizes within a quarter of an octave count as one.

    Examples
    --------
    >>> sizes = Sizes()
    >>> for _ in range(9):
    ...     size = sizes.wanted()
    ...     sizes.add(size, 0.05 + 7e-4 * size + 7.6e-7 * size * size)
    >>> sizes.law.best, sizes.probing
    (256.0, False)
    """

    def __init__(
        self, fixed: int | None = None, limit: float = math.inf, known: Iterable[tuple[float, float]] = ()
    ) -> None:
        self.fixed = fixed
        self.limit = limit
        self._samples: dict[int, deque[tuple[float, float]]] = {}
        self._off: list[tuple[float, float, float]] = []
        self._off_side = 0
        self._scaled: dict[int, float] = {}
        self._cold: tuple[float, float] | None = None
        self._law: Law | None = None
        self._unconfirmed = False
        for size, seconds in known:
            self._unconfirmed = True
            self._bucket(size).extend([(size, seconds)] * _SURE)

    @property
    def law(self) -> Law | None:
        """What is known of this device, None before its first batch."""
        if self._law is None:
            points = self.points() or ((self._cold,) if self._cold is not None else ())
            self._law = Law(points, min(self.limit, self.fixed or math.inf), self.probing) if points else None
        return self._law

    @property
    def probing(self) -> bool:
        """Return whether the next size is to learn from."""
        return self.fixed is None and self._next_probe() is not None

    def points(self) -> tuple[tuple[float, float], ...]:
        """Return (size, s) of what was measured, sizes ascending."""
        return tuple(_point(self._samples[key]) for key in sorted(self._samples))

    def wanted(self) -> int:
        """Return the size of the next batch, as far as this device alone is concerned."""
        if self.fixed is not None:
            return int(min(self.fixed, self.limit))
        probe = self._next_probe()
        if probe is not None:
            return int(probe)
        law = self.law
        assert law is not None, "a device without samples is probed"
        return int(law.best)

    def add(self, size: float, seconds: float, cold: bool = False) -> None:
        """Record a batch.

        Parameters
        ----------
        size
            > 0.
        seconds
            Seconds.
        cold
            True for the first one of a worker, which is believed only until there is another.
        """
        seconds = max(seconds, 1e-7)
        self._law = None
        if cold:
            self._cold = (size, seconds)
            return
        expected_s = self._expected(size, seconds)
        ratio = seconds / expected_s
        side = (ratio > CHANGE_RATIO) - (ratio < 1.0 / CHANGE_RATIO) if abs(seconds - expected_s) > _NOISE_S else 0
        if self._off and side != self._off_side:
            self._settle()
        if side:
            self._off_side = side
            self._off.append((size, seconds, ratio))
            if len(self._off) < _SURE:
                return
            if self._unconfirmed:
                self._forget()
                return
            self._scale(median([each for _, _, each in self._off]))
            return
        self._unconfirmed = False
        self._bucket(size).append((size, seconds))

    def too_large(self, size: float) -> None:
        """Record that a batch did not fit into memory: half of it is the most from now on."""
        self.limit = max(1, min(self.limit, size // 2))
        self._law = None

    def _bucket(self, size: float) -> deque[tuple[float, float]]:
        self._scaled.pop(_key(size), None)
        return self._samples.setdefault(_key(size), deque(maxlen=_KEPT))

    def _expected(self, size: float, otherwise: float) -> float:
        """Return the seconds that samples of about this size took before."""
        bucket = self._samples.get(_key(size))
        if not bucket:
            return otherwise
        known, seconds = _point(bucket)
        return seconds * size / known

    def _settle(self) -> None:
        """Take samples that were off as what they are: spikes."""
        for size, seconds, _ in self._off:
            self._bucket(size).append((size, seconds))
        self._off.clear()

    def _forget(self) -> None:
        """Begin anew with the samples that were off: what an earlier run learned is of no use here."""
        self._samples.clear()
        self._unconfirmed = False
        self._settle()

    def _scale(self, by: float) -> None:
        """Scale all that is known, and forget what was scaled too far since it was measured."""
        for key, bucket in list(self._samples.items()):
            self._scaled[key] = self._scaled.get(key, 1.0) * by
            scaled = [(size, seconds * by) for size, seconds in bucket]
            bucket.clear()
            bucket.extend(scaled)
            if not 1.0 / _FAR <= self._scaled[key] <= _FAR:
                del self._samples[key], self._scaled[key]
        self._settle()

    def _next_probe(self) -> float | None:
        """Return the size to learn from next, None where the best one is known."""
        points = self.points()
        if not points:
            return 1
        top, top_s = points[-1]
        size, seconds = next((point for point in reversed(points) if point[0] <= top / _STEP), points[0])
        gain = math.inf if len(points) == 1 else top * seconds / (top_s * size)
        short = top_s < _SHORT_S
        if gain > (_MAYBE if short else _GROWS):
            larger = 2.0 ** math.floor(math.log2(top) + 1e-9) * (4 if gain > _STEEP else 2)
            return min(larger, self.limit) if top < self.limit else None
        tries = _SURE if short else 2 if gain > _MAYBE else 1
        again = len(self._samples[max(self._samples)]) < tries
        return min(round(top), self.limit) if again else None


def _key(size: float) -> int:
    return round(_BUCKETS * math.log2(size))


def _point(samples: Iterable[tuple[float, float]]) -> tuple[float, float]:
    sizes, seconds = zip(*samples, strict=True)
    size = sum(sizes) / len(sizes)
    return size, median([each_s * size / each for each, each_s in zip(sizes, seconds, strict=True)])
