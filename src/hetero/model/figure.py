"""A figure that was not measured: its value, how sure it is, and where it comes from.

In: a value, a spread, an origin. Out: a frozen value. It must not compute anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Literal

__all__ = ["Figure", "Origin"]

Origin = Literal["spec", "prior", "borrowed", "measured"]
"""'measured' here or by the user, on this device with this engine; 'borrowed' from measurements of the engine on other
devices; 'prior' from published measurements of this device; 'spec' from the data sheet alone."""

_NORMAL_80 = 1.2816
"""Standard deviations on each side that hold 80 % of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with its 80 % interval.

    Attributes
    ----------
    value
        The median of what is expected.
    low, high
        Four of five such values should lie between them.
    origin
        Where it comes from.

    Examples
    --------
    >>> Figure.around(2.0, 0.1, "prior").overlaps(Figure.around(2.2, 0.1, "prior"))
    True
    """

    value: float
    low: float
    high: float
    origin: Origin

    @classmethod
    def around(cls, value: float, spread: float, origin: Origin) -> Figure:
        """Return a figure whose logarithm has this standard deviation."""
        width = exp(_NORMAL_80 * spread)
        return cls(value, value / width, value * width, origin)

    def over(self, amount: float) -> Figure:
        """Return `amount` over this figure, as in tokens over seconds."""
        return Figure(amount / self.value, amount / self.high, amount / self.low, self.origin)

    def times(self, factor: float) -> Figure:
        """Return this figure a number of times."""
        return Figure(self.value * factor, self.low * factor, self.high * factor, self.origin)

    def overlaps(self, other: Figure) -> bool:
        """Return whether the two intervals share a value, so that no order of the two is certain."""
        return self.low <= other.high and other.low <= self.high

    def as_dict(self) -> dict[str, float | str]:
        """Return what a program would read."""
        return {"value": self.value, "low": self.low, "high": self.high, "origin": self.origin}
