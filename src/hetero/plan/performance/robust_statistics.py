"""History: what a list of measured seconds says, robustly.

In: measured seconds and sizes. Out: medians, quantiles, signs of a change, curves over sizes.
It must not remember anything: the windows live in `hetero.plan.performance.cost_model`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from math import ceil
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CHANGE_RATIO",
    "NOISE_S",
    "SURE_RATIO",
    "SizeCurve",
    "Summary",
    "curve",
    "exponent",
    "is_change",
    "median",
    "quantile",
    "summary",
]

CHANGE_RATIO = 1.4
"""A sample is off when it is this many times above or below the median, and outside the fences of the window."""

SURE_RATIO = 2.0
"""Two samples in a row that are off by more than this, and agree, are a change; below it takes three."""

NOISE_S = 20e-6
"""Differences below this are the clock's and the dispatcher's, not the device's (s)."""

_BENDS = 32
"""At most so many sizes bend a curve; more are grouped."""

_BEYOND = math.log(4.0)
"""How far beyond the sizes measured a bend goes on, as a logarithm of sizes."""

_RANKS = (0.1, 0.25, 0.5, 0.75, 0.9)

CurveKind = Literal["constant", "power", "affine"]


def median(values: Sequence[float]) -> float:
    """Return the middle value; of an even number the lower of the two in the middle.

    Notes
    -----
    The lower one, because what disturbs a run makes it slower: the half-way point between a sound run and
    a disturbed one is a mean, and as wrong as one.

    Examples
    --------
    >>> median([1.0, 100.0]), median([3.0, 1.0, 2.0])
    (1.0, 2.0)
    """
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def quantile(values: Sequence[float], frac: float) -> float:
    """Return the smallest value that at least this fraction of the values does not exceed (nearest rank).

    Parameters
    ----------
    values
        At least one.
    frac
        0..1.

    Examples
    --------
    >>> quantile([4.0, 1.0, 2.0, 3.0], 0.9), quantile([4.0, 1.0, 2.0, 3.0], 0.1)
    (4.0, 1.0)
    """
    ordered = sorted(values)
    return ordered[max(0, ceil(frac * len(ordered) - 1e-9) - 1)]


class Summary(NamedTuple):
    """What a window says.

    Attributes
    ----------
    median, low, high
        Seconds; the 50th, 10th and 90th percentile, the last two spread out for few samples.
    floor, ceil
        Seconds; a sample that is not between them is off.
    """

    median: float
    low: float
    high: float
    floor: float
    ceil: float


def summary(values: Sequence[float], noise: float = NOISE_S) -> Summary:
    """Summarise a window.

    Parameters
    ----------
    values
        At least one, > 0.
    noise
        In the unit of the values; a sample nearer to the median than this is never off.

    Notes
    -----
    The fences are Tukey's on logarithms: 1.5 times the distance of the quartiles beyond them.

    References
    ----------
    J. W. Tukey, "Exploratory Data Analysis", Addison-Wesley 1977, chapter 2.

    Examples
    --------
    >>> summary([0.1] * 40).median, round(summary([0.1] * 40).ceil, 5)
    (0.1, 0.14002)
    """
    ordered = sorted(values)
    last = len(ordered)
    tenth, quarter, middle, upper, most = (ordered[max(0, ceil(frac * last - 1e-9) - 1)] for frac in _RANKS)
    few = 1.0 + 0.5 / last
    fence = (upper / quarter) ** 1.5
    return Summary(
        middle,
        min(tenth, middle / few),
        max(most, middle * few),
        min(quarter / fence, middle / CHANGE_RATIO) - noise,
        max(upper * fence, middle * CHANGE_RATIO) + noise,
    )


def is_change(streak: Sequence[float], middle: float) -> bool:
    """Return whether samples that were off in a row, all on one side of the median, mean a new speed.

    Parameters
    ----------
    streak
        The samples that were off, oldest first.
    middle
        The median before them.

    Examples
    --------
    >>> is_change([3.0], 1.0), is_change([3.0, 3.1], 1.0), is_change([1.5, 1.5], 1.0), is_change([1.5] * 3, 1.0)
    (False, True, False, True)
    """
    if len(streak) >= 3:
        return True
    if len(streak) < 2:
        return False
    least, most = min(streak), max(streak)
    sure = least > middle * SURE_RATIO or most < middle / SURE_RATIO
    return sure and most < least * CHANGE_RATIO


class SizeCurve(NamedTuple):
    """Seconds as a function of size.

    Attributes
    ----------
    kind
        'constant' a; 'power' a * size**b; 'affine' a + b * size.
    a, b
        The coefficients.
    spread
        >= 1; the 90th percentile of how many times a point lies above or below the curve.
    least, most
        The sizes between which it was measured.
    bends
        (log size, log of times above the law) at the sizes measured, ascending; empty for none.
    """

    kind: CurveKind
    a: float
    b: float
    spread: float
    least: float
    most: float
    bends: tuple[tuple[float, float], ...] = ()

    def seconds(self, size: float) -> float:
        """Return the seconds at a size: what the law says, bent to the sizes next to it.

        Examples
        --------
        >>> SizeCurve("power", 2.0, 0.5, 1.0, 1.0, 100.0).seconds(16.0)
        8.0
        """
        if self.kind == "constant":
            return self.a
        bent = math.exp(_between(self.bends, math.log(max(size, 1.0)))) if self.bends else 1.0
        if self.kind == "power":
            return bent * self.a * math.pow(max(size, 1.0), self.b)
        return bent * (self.a + self.b * max(size, 0.0))

    def spread_at(self, size: float) -> float:
        """Return the spread at a size, wider the farther it lies outside of what was measured."""
        size = max(size, 1.0)
        outside = max(self.least / size, size / max(self.most, 1.0), 1.0)
        return self.spread * math.pow(outside, 0.3)


def curve(sizes: Sequence[float], seconds: Sequence[float]) -> SizeCurve | None:
    """Fit seconds over sizes: a constant, a power or an affine function, whichever explains the points.

    Parameters
    ----------
    sizes
        >= 0.
    seconds
        > 0, s, as many.

    Returns
    -------
    Curve or None
        None when there are fewer than three different sizes.

    Notes
    -----
    Lines are fitted by the median of the slopes of all pairs, so a few wild points change nothing. Sizes that
    explain nothing (an index that is only a number) give the constant: another curve has to halve the 75th
    percentile of the distances (of logarithms) to be believed. The exponent is held between 0 and 4.

    No one law holds from a tile in the first cache to one in main memory. So the law is bent towards what was
    measured next to a size: by the line between the distances of its two neighbours, after each distance that lies
    outside of both its neighbours' has been replaced by the nearer one; beyond the ends the line goes on for a while.
    Three sizes bend nothing.

    References
    ----------
    J. W. Tukey, "Exploratory Data Analysis", Addison-Wesley 1977, chapter 7: running medians of three, and ends.
    P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63 (1968), 1379-1389.

    Examples
    --------
    >>> made = curve([1e4, 4e4, 16e4], [1.0, 8.0, 64.0])
    >>> made.kind, round(made.b, 3), round(made.seconds(64e4), 1)
    ('power', 1.5, 512.0)
    """
    if len(set(sizes)) < 3:
        return None
    x = np.maximum(np.asarray(sizes, dtype=np.float64), 1.0)
    y = np.asarray(seconds, dtype=np.float64)
    found = [_constant(y), _power(x, y), _affine(x, y)]
    best = min(range(1, 3), key=lambda index: (found[index][2], index))
    best = best if found[best][2] < 0.5 * found[0][2] else 0
    kinds: tuple[CurveKind, ...] = ("constant", "power", "affine")
    a, b, _, spread = found[best]
    law = SizeCurve(kinds[best], a, b, spread, float(x.min()), float(x.max()))
    if best == 0:
        return law
    off = np.log(y) - np.log([law.seconds(size) for size in x.tolist()])
    return law._replace(bends=_bends(np.log(x), off))


def _bends(log_x: NDArray[np.float64], off: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """Return the distances from a law by size, few and smooth; none for fewer than four sizes."""
    places, sizes = np.unique(log_x, return_inverse=True)
    groups = np.array_split(np.arange(len(places)), min(len(places), _BENDS))
    knots = [
        (median(places[group].tolist()), median(off[np.isin(sizes, group)].tolist())) for group in groups if len(group)
    ]
    values = [value for _, value in knots]
    inner = [median(values[at - 1 : at + 2]) for at in range(1, len(values) - 1)]
    if len(inner) < 2:
        return ()
    first = median([values[0], inner[0], 3.0 * inner[0] - 2.0 * inner[1]])
    last = median([values[-1], inner[-1], 3.0 * inner[-1] - 2.0 * inner[-2]])
    return tuple((place, value) for (place, _), value in zip(knots, [first, *inner, last], strict=True))


def _between(knots: tuple[tuple[float, float], ...], place: float) -> float:
    """Return the value of the line through knots; beyond the ends it goes on for `_BEYOND`, then stays."""
    at = min(max(bisect_left(knots, (place, -math.inf)), 1), len(knots) - 1)
    (left, low), (right, high) = knots[at - 1], knots[at]
    place = min(max(place, left - _BEYOND), right + _BEYOND)
    return low + (high - low) * (place - left) / (right - left)


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the b with which seconds / size**b is nearly constant; 0 where the size explains nothing.

    Told from `curve` by two sizes being enough, and by being asked about one signature only.

    Examples
    --------
    >>> round(exponent([10.0, 100.0, 1000.0], [0.1, 1.0, 10.0]), 6), exponent([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    (1.0, 0.0)
    """
    if len(set(sizes)) < 2:
        return 0.0
    x = np.maximum(np.asarray(sizes, dtype=np.float64), 1.0)
    y = np.asarray(seconds, dtype=np.float64)
    _, b, distance, _ = _power(x, y)
    return b if distance < 0.5 * _constant(y)[2] else 0.0


def _constant(y: NDArray[np.float64]) -> tuple[float, float, float, float]:
    a = median(y.tolist())
    return (a, 0.0, *_distances(np.full_like(y, a), y))


def _power(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float, float, float]:
    log_x, log_y = np.log(x), np.log(y)
    b = min(max(_slope(log_x, log_y), 0.0), 4.0)
    a = math.exp(float(np.median(log_y - b * log_x)))
    return (a, b, *_distances(a * x**b, y))


def _affine(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float, float, float]:
    b = max(_slope(x, y), 0.0)
    a = float(np.median(y - b * x))
    if a <= 0.0:
        return (0.0, 0.0, math.inf, math.inf)
    return (a, b, *_distances(a + b * x, y))


def _slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    first, second = np.triu_indices(len(x), 1)
    across = x[second] - x[first]
    differ = across != 0.0
    if not differ.any():
        return 0.0
    return float(np.median((y[second] - y[first])[differ] / across[differ]))


def _distances(fitted: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    off = np.abs(np.log(y / fitted)).tolist()
    return quantile(off, 0.75), math.exp(min(quantile(off, 0.9), 50.0))
