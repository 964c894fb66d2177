"""How far estimates lie from measured speeds, as data sheets and priors give them, and after a few own measurements.

In: measured runs. Out: each with what would have been said of it, and figures of merit. It must not fit anything on
the run that it judges, nor on another of the same model.
"""

from __future__ import annotations

import statistics
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from hetero.advise.known_efficiency import borrowed, prior_of
from hetero.advise.measurements import Measurement
from hetero.model.figure import Figure
from hetero.plan.sizing.efficiency import Efficiency, MeasuredRun, learn

__all__ = ["Judged", "Merit", "leave_one_model_out", "merits", "ordered", "uncalibrated"]

POINTS = 12
"""Own measurements a device and engine."""

_TIE_FRAC = 0.05
"""Pairs that differ by no more than this are not asked for their order."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A measured run and what was said of it.

    Attributes
    ----------
    row
        As measured.
    said_s
        The time that was said, of the run or of a token.
    """

    row: Measurement
    said_s: Figure

    @property
    def error_frac(self) -> float:
        """How far what was said lies from the value that was printed, a time or a rate."""
        ratio = self.said_s.value / self.row.sample.seconds
        return abs((1 / ratio if self.row.per_second else ratio) - 1)

    @property
    def held(self) -> bool:
        """Return whether the interval holds the measured value."""
        return self.said_s.low <= self.row.sample.seconds <= self.said_s.high

    @property
    def width(self) -> float:
        """The interval's upper end over its lower."""
        return self.said_s.high / self.said_s.low


def _judged(row: Measurement, known: Efficiency) -> Judged:
    return Judged(row, known.figure(row.sample.amounts, row.sample.place))


def uncalibrated(rows: Iterable[Measurement]) -> list[Judged]:
    """Predict every run from priors alone."""
    return [_judged(row, prior_of(row.device, row.engine)) for row in rows]


def _drawn(rows: Sequence[Measurement], points: int, draw: int) -> list[Measurement]:
    """Return so many runs by chance that depends on nothing but what was run: the same for every device and engine."""

    def ticket(row: Measurement) -> int:
        work = row.work
        what = (draw, work.model.name, work.batch, work.chunk, work.context, row.count)
        return zlib.crc32(repr(what).encode())

    return sorted(rows, key=ticket)[:points]


def leave_one_model_out(rows: Iterable[Measurement], points: int = POINTS, draw: int = 0) -> list[Judged]:
    """Predict every run from priors and a few measurements of other models by the same engine on each device.

    Parameters
    ----------
    points
        Own measurements a device and engine, at most.
    draw
        Which ones: another number draws others.
    """
    groups: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for row in rows:
        groups[row.device.name, row.framework].append(row)
    found = []
    for name, group in groups.items():
        prior = prior_of(group[0].device, group[0].engine)
        kin = [other for key, other in groups.items() if key != name and other[0].engine == group[0].engine]
        for model in sorted({row.work.model.name for row in group}):
            elsewhere = [sample for other in kin for sample in _without(model, other, points, draw)]
            near = borrowed(prior, elsewhere, "own measurements on other devices")
            own = _without(model, group, points, draw)
            known = learn(near, own, "measured", f"{len(own)} own measurements")
            found += [_judged(row, known) for row in group if row.work.model.name == model]
    return found


def _without(model: str, rows: Sequence[Measurement], points: int, draw: int) -> list[MeasuredRun]:
    return [row.sample for row in _drawn([row for row in rows if row.work.model.name != model], points, draw)]


def ordered(items: Iterable[Judged], single: bool = False) -> tuple[int, int]:
    """Return how many pairs of devices were ordered right, and of how many that differ enough.

    Parameters
    ----------
    single
        True for pairs of one device each only.
    """
    same: dict[tuple[object, ...], list[Judged]] = defaultdict(list)
    for item in items:
        work = item.row.work
        if item.row.count == 1 or not single:
            same[work.model.name, work.weights, item.row.kind, work.chunk or work.batch, work.context].append(item)
    right = asked = 0
    for group in same.values():
        for one, other in combinations(group, 2):
            ratio = one.row.sample.seconds / other.row.sample.seconds
            if max(ratio, 1 / ratio) > 1 + _TIE_FRAC:
                asked += 1
                right += (ratio > 1) == (one.said_s.value > other.said_s.value)
    return right, asked


@dataclass(frozen=True, slots=True)
class Merit:
    """How good a set of estimates is.

    Attributes
    ----------
    rows
        How many.
    error_frac
        Median of the absolute relative error.
    held_frac
        Share of the intervals that held.
    width
        Mean of upper over lower end.
    """

    rows: int
    error_frac: float
    held_frac: float
    width: float

    @classmethod
    def of(cls, items: Sequence[Judged]) -> Merit:
        """Sum up."""
        return cls(
            len(items),
            statistics.median(item.error_frac for item in items),
            statistics.fmean(item.held for item in items),
            statistics.fmean(item.width for item in items),
        )


def merits(items: Iterable[Judged], key: Callable[[Judged], str]) -> Mapping[str, Merit]:
    """Return the merit of each group of estimates, by name."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return {name: Merit.of(groups[name]) for name in sorted(groups)}
