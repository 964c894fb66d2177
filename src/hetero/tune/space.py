"""What a search tries: ranges of values, as users write them.

In: mappings such as {"log": [1e-4, 1e-1]}. Out: checked ranges, their points on a grid, Optuna's distributions.
It must not draw a value: a sampler does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.units import shown

__all__ = [
    "KINDS",
    "Range",
    "RangeKind",
    "Space",
    "corners",
    "describe",
    "distributions",
    "grid",
    "is_range",
    "read_range",
    "read_space",
]

RangeKind: TypeAlias = Literal["log", "linear", "whole", "choice"]
KINDS: tuple[RangeKind, ...] = get_args(RangeKind)
_POINTS = 5
_MOST_POINTS = 100_000
_SCALARS = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Range:
    """The values that one name may take.

    Attributes
    ----------
    kind
        'log' or 'linear' for real numbers, 'whole' for whole ones, 'choice' for any of a list.
    values
        The least and the largest, or the choices.
    points
        How many of them a grid tries, 0 for the usual number.
    """

    kind: RangeKind
    values: tuple[Any, ...]
    points: int = 0

    def __str__(self) -> str:
        if self.kind == "choice":
            return f"choice of {', '.join(map(str, self.values))}"
        return f"{self.kind} {self.values[0]:g} … {self.values[1]:g}"

    @property
    def ends(self) -> tuple[object, ...]:
        """Values that are allowed if all are: both ends, or every choice."""
        return self.values

    def on_grid(self) -> list[object]:
        """Return the values that a grid tries.

        Examples
        --------
        >>> Range("log", (0.001, 0.1), 3).on_grid(), Range("whole", (1, 4)).on_grid()
        ([0.001, 0.01, 0.1], [1, 2, 3, 4])
        """
        if self.kind == "choice":
            return list(self.values)
        low, high = self.values
        if self.kind == "whole":
            every = range(low, high + 1)
            return list(every) if not self.points else [every[i] for i in _spread(len(every), self.points)]
        count = 1 if low == high else self.points or _POINTS
        return [self._between(index / max(1, count - 1)) for index in range(count)]

    def _between(self, frac: float) -> float:
        low, high = self.values
        if frac in (0.0, 1.0):
            return float(high if frac else low)
        if self.kind == "log":
            exponent = math.log10(low) + frac * (math.log10(high) - math.log10(low))
            return float(f"{10**exponent:.12g}")
        return float(low + frac * (high - low))


Space = Mapping[str, Range]


def _spread(length: int, points: int) -> list[int]:
    count = min(length, points)
    return sorted({round(index * (length - 1) / max(1, count - 1)) for index in range(count)})


def is_range(value: object) -> bool:
    """Return whether a value of a recipe is meant as a range.

    Examples
    --------
    >>> is_range({"log": [1, 10]}), is_range({"cpu:0": 96}), is_range(0.1)
    (True, False, False)
    """
    return isinstance(value, Mapping) and any(kind in value for kind in KINDS)


def read_space(given: object) -> dict[str, Range]:
    """Check a whole space.

    Raises
    ------
    BadValueError
        It is empty, or a range is wrong.
    """
    if not isinstance(given, Mapping) or not given:
        raise BadValueError("the space has no range", remedy='give at least one, as in {"lr": {"log": [1e-4, 1e-1]}}')
    return {str(name): read_range(str(name), value) for name, value in given.items()}


def read_range(name: str, given: object) -> Range:
    """Check one range.

    Raises
    ------
    BadValueError
        It is of no known kind, is empty, or its ends are no numbers.

    Examples
    --------
    >>> read_range("lr", {"log": ["1e-4", 0.1]})
    Range(kind='log', values=(0.0001, 0.1), points=0)
    >>> read_range("lr", {"lgo": [1, 2]})
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: lr: {'lgo': [1, 2]} is no range; did you mean 'log'?; write one of ...
    """
    words = dict(given) if isinstance(given, Mapping) else {}
    points = words.pop("points", 0)
    if len(words) != 1 or next(iter(words)) not in KINDS:
        hint = did_you_mean(next(iter(words)), KINDS) if words else ""
        raise BadValueError(
            f"{name}: {shown(given)} is no range{hint}",
            remedy="write one of {log: [a, b]}, {linear: [a, b]}, {whole: [a, b]}, {choice: [a, b, …]}",
        )
    if isinstance(points, bool) or not isinstance(points, int) or points < 0:
        raise BadValueError(f"{name}: points={shown(points)} is not allowed", remedy="give a whole number, 1 or more")
    kind, values = next(iter(words.items()))
    if not isinstance(values, Sequence) or isinstance(values, str) or not len(values):
        raise BadValueError(f"{name}: {kind}: {shown(values)} is empty or no list", remedy="give a list of values")
    if kind == "choice":
        return Range(kind, _choices(name, values))
    return Range(kind, _ends(name, kind, values), points)


def _choices(name: str, values: Sequence[object]) -> tuple[object, ...]:
    for value in values:
        if not isinstance(value, _SCALARS):
            raise BadValueError(f"{name}: {shown(value)} cannot be a choice", remedy="give words and numbers")
    if len({(type(value), value) for value in values}) < len(values):
        raise BadValueError(f"{name}: a choice stands there twice: {shown(list(values))}", remedy="name each once")
    return tuple(values)


def _ends(name: str, kind: str, values: Sequence[str | float]) -> tuple[object, ...]:
    try:
        low, high = (float(value) for value in values)
    except (TypeError, ValueError) as error:
        raise BadValueError(
            f"{name}: {kind}: {shown(list(values))} is no range", remedy="give two numbers, the least and the largest"
        ) from error
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise BadValueError(f"{name}: {kind}: {low:g} … {high:g} is empty", remedy="give the least number first")
    if kind == "log" and low <= 0:
        raise BadValueError(f"{name}: log: {low:g} is not above 0", remedy="give numbers above 0, or write linear")
    if kind != "whole":
        return low, high
    if low != int(low) or high != int(high):
        raise BadValueError(f"{name}: whole: {low:g} … {high:g} are no whole numbers", remedy="write linear")
    return int(low), int(high)


def describe(space: Space) -> dict[str, str]:
    """Return the space in words, by which a search is known again."""
    return {name: str(one) for name, one in space.items()}


def grid(space: Space) -> dict[str, list[object]]:
    """Return the values by name that a grid combines.

    Raises
    ------
    BadValueError
        There are too many combinations.
    """
    values = {name: one.on_grid() for name, one in space.items()}
    count = math.prod(map(len, values.values()))
    if count > _MOST_POINTS:
        raise BadValueError(f"the grid has {count} points, more than {_MOST_POINTS}", remedy="give fewer with points:")
    return values


def corners(space: Space) -> list[dict[str, object]]:
    """Return a few settings that hold every end and every choice at least once."""
    columns = [one.ends for one in space.values()]
    rows = itertools.zip_longest(*columns)
    return [
        {name: column[0] if value is None else value for name, column, value in zip(space, columns, row, strict=True)}
        for row in rows
    ]


def distributions(space: Space) -> dict[str, object]:
    """Return the space as Optuna has it."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    def made(one: Range) -> object:
        if one.kind == "choice":
            return CategoricalDistribution(one.values)
        if one.kind == "whole":
            return IntDistribution(*one.values)
        return FloatDistribution(*one.values, log=one.kind == "log")

    return {name: made(one) for name, one in space.items()}
