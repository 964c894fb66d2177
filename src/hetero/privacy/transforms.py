"""What becomes of values: levels of generalisation, pseudonyms by a key, and noise for counts.

In: the distinct values of a column as text. Out: labels, one for each. It must not see a row, and names no column.
"""

from __future__ import annotations

import datetime
import hmac
import itertools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hetero.floor.errors import BadValueError
from hetero.floor.units import shown

__all__ = ["ALL", "DATE_STEPS", "Dates", "Generaliser", "Hierarchy", "Intervals", "Prefix", "WholeValue"]
__all__ += ["discrete_laplace", "nesting_fault", "pseudonyms"]

ALL = "*"
"""The label of the last level, under which all values lie."""

DATE_STEPS = {"day": 10, "month": 7, "year": 4, "decade": 3}
"""What a date may be cut to, from fine to coarse, with the characters of 'YYYY-MM-DD' that are left."""

_NUMBER = r"^\s*-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
_DATE = r"^\d{4}-\d{2}-\d{2}([T ].*)?$"
_PSEUDONYM_DIGITS = 32


class Generaliser(ABC):
    """Levels of generalisation of a column: 0 is the value itself, `height` is `ALL`, each holds the one before."""

    @property
    @abstractmethod
    def height(self) -> int:
        """Number of the last level."""

    def labels(self, values: pa.Array, level: int) -> pa.Array:
        """Return the label of each value at a level.

        Parameters
        ----------
        values
            Distinct, as text, none of them null.
        level
            0 to `height`.

        Raises
        ------
        BadValueError
            A value is of another kind, or a hierarchy lacks it.
        """
        if level == 0:
            return values
        return pa.repeat(ALL, len(values)) if level == self.height else self._labels(values, level)

    def places(self, values: pa.Array) -> NDArray[np.float64] | None:
        """Return where each value lies on a line, None where the values have no order; refuses what has no label."""
        return None

    @abstractmethod
    def _labels(self, values: pa.Array, level: int) -> pa.Array:
        """Return the labels at a level between the value itself and `ALL`."""

    @abstractmethod
    def described(self, level: int) -> str:
        """Describe a level between the value itself and `ALL`, without a value."""


@dataclass(frozen=True, slots=True)
class WholeValue(Generaliser):
    """The value itself, or nothing of it."""

    @property
    def height(self) -> int:
        """Number of the last level."""
        return 1

    def _labels(self, values: pa.Array, level: int) -> pa.Array:
        raise AssertionError("there is no level between")

    def described(self, level: int) -> str:
        """There is no level between."""
        return ""


@dataclass(frozen=True, slots=True)
class Intervals(Generaliser):
    """Intervals [a, a + width) of numbers.

    Attributes
    ----------
    widths
        By level, each a multiple of the one before.
    origin
        Where an interval begins.

    Examples
    --------
    >>> Intervals((Fraction(5), Fraction(20)), Fraction(0)).labels(pa.array(["34", "-1"]), 2).to_pylist()
    ['[20, 40)', '[-20, 0)']
    """

    widths: tuple[Fraction, ...]
    origin: Fraction

    @property
    def height(self) -> int:
        """Number of the last level."""
        return len(self.widths) + 1

    def places(self, values: pa.Array) -> NDArray[np.float64]:
        """Return the numbers."""
        wrong = pc.invert(pc.match_substring_regex(values, _NUMBER))
        if pc.any(wrong).as_py():
            raise BadValueError(
                f"{shown(_first(values, wrong))} is no number", remedy="mend it, or suppress the column"
            )
        numbers: NDArray[np.float64] = pc.utf8_trim_whitespace(values).cast(pa.float64()).to_numpy(zero_copy_only=False)
        if not np.isfinite(numbers).all() or (np.abs(numbers) > 2**53 * float(self.widths[0])).any():
            raise BadValueError("a number is beyond all intervals", remedy="mend it, or suppress the column")
        return numbers

    def _labels(self, values: pa.Array, level: int) -> pa.Array:
        width = self.widths[level - 1]
        parts = int(width / self.widths[0])
        offsets = (self.places(values) - float(self.origin)) / float(self.widths[0])
        numbers, inverse = np.unique(np.floor(offsets).astype(np.int64) // parts, return_inverse=True)
        lows = [self.origin + int(number) * width for number in numbers]
        words = [f"[{_written(low)}, {_written(low + width)})" for low in lows]
        return pa.array(words, pa.string()).take(pa.array(inverse))

    def described(self, level: int) -> str:
        """Describe a level."""
        return f"intervals of {_written(self.widths[level - 1])}"


@dataclass(frozen=True, slots=True)
class Dates(Generaliser):
    """Dates as 'YYYY-MM-DD', with or without a time, cut to less.

    Attributes
    ----------
    steps
        By level, of `DATE_STEPS`, from fine to coarse.

    Examples
    --------
    >>> Dates(("month", "decade")).labels(pa.array(["1987-03-05"]), 1).to_pylist()
    ['1987-03']
    """

    steps: tuple[str, ...]

    @property
    def height(self) -> int:
        """Number of the last level."""
        return len(self.steps) + 1

    def places(self, values: pa.Array) -> NDArray[np.float64]:
        """Return the days since 1970."""
        wrong = pc.invert(pc.match_substring_regex(values, _DATE))
        if not pc.any(wrong).as_py():
            days = pc.utf8_slice_codeunits(values, 0, DATE_STEPS["day"])
            try:
                found: NDArray[np.float64] = days.cast(pa.date32()).cast(pa.int32()).to_numpy().astype(np.float64)
                return found
            except pa.ArrowInvalid:
                wrong = pa.array([not _is_date(day) for day in days.to_pylist()])
        raise BadValueError(
            f"{shown(_first(values, wrong))} is no date", remedy="write dates as 2026-11-23, or suppress the column"
        )

    def _labels(self, values: pa.Array, level: int) -> pa.Array:
        self.places(values)
        step = self.steps[level - 1]
        cut = pc.utf8_slice_codeunits(values, 0, DATE_STEPS[step])
        return pc.binary_join_element_wise(cut, "0s", "") if step == "decade" else cut

    def described(self, level: int) -> str:
        """Describe a level."""
        return f"dates to the {self.steps[level - 1]}"


@dataclass(frozen=True, slots=True)
class Prefix(Generaliser):
    """The first characters of a code, as of a postcode.

    Attributes
    ----------
    kept
        Characters by level, each fewer than the one before.

    Examples
    --------
    >>> Prefix((3, 1)).labels(pa.array(["28013", "2"]), 1).to_pylist()
    ['280*', '2*']
    """

    kept: tuple[int, ...]

    @property
    def height(self) -> int:
        """Number of the last level."""
        return len(self.kept) + 1

    def _labels(self, values: pa.Array, level: int) -> pa.Array:
        return pc.binary_join_element_wise(pc.utf8_slice_codeunits(values, 0, self.kept[level - 1]), ALL, "")

    def described(self, level: int) -> str:
        """Describe a level."""
        return f"the first {self.kept[level - 1]} characters"


@dataclass(frozen=True, slots=True)
class Hierarchy(Generaliser):
    """Labels that a table lists.

    Attributes
    ----------
    values
        That it covers, each once.
    table
        By level above the value itself, the label of each value.
    place
        Of the table, for messages.

    Examples
    --------
    >>> Hierarchy(("oak", "rose"), (("tree", "flower"),), "a.csv").labels(pa.array(["rose"]), 1).to_pylist()
    ['flower']
    """

    values: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    place: str

    @property
    def height(self) -> int:
        """Number of the last level."""
        return len(self.table) + (len(set(self.table[-1])) > 1)

    def places(self, values: pa.Array) -> None:
        """Check that each value is covered; they have no order."""
        self._labels(values, 1)

    def _labels(self, values: pa.Array, level: int) -> pa.Array:
        found = pc.index_in(values, value_set=pa.array(self.values, pa.string()))
        if found.null_count:
            lacks = found.is_null()
            more = f" and {found.null_count - 1} more" if found.null_count > 1 else ""
            raise BadValueError(
                f"{self.place} does not cover {shown(_first(values, lacks))}{more}", remedy="add a row for each value"
            )
        return pa.array(self.table[level - 1], pa.string()).take(found)

    def described(self, level: int) -> str:
        """Describe a level."""
        return f"level {level} of its hierarchy"


def nesting_fault(levels: Sequence[Sequence[str]]) -> tuple[int, str, str, str] | None:
    """Return a label that lies under two labels of the next level, as (level, label, one, other); None for none.

    Examples
    --------
    >>> nesting_fault([["a", "b", "a"], ["x", "x", "y"]])
    (1, 'a', 'x', 'y')
    """
    for number, (below, above) in enumerate(itertools.pairwise(levels), 1):
        over: dict[str, str] = {}
        for label, parent in zip(below, above, strict=True):
            if over.setdefault(label, parent) != parent:
                return number, label, over[label], parent
    return None


def _first(values: pa.Array, wanted: pa.Array) -> str:
    return str(values.filter(wanted)[0].as_py())


def _is_date(day: str) -> bool:
    try:
        datetime.date.fromisoformat(day)
    except ValueError:
        return False
    return True


def _written(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else f"{float(number):.10g}"


# --- pseudonyms ---------------------------------------------------------------------------------------------


def pseudonyms(values: pa.Array, key: bytes, domain: str) -> pa.Array:
    """Return a pseudonym for each value: the same for the same value, key and domain, in every table.

    Parameters
    ----------
    values
        Distinct, as text, none of them null.
    key
        Secret: who has it can try values.
    domain
        Columns of one domain have common pseudonyms, so that tables can still be joined by them.

    Notes
    -----
    The first 128 bits of HMAC-SHA-256 (RFC 2104) of the domain with its length, and the value.

    Examples
    --------
    >>> one, other = (pseudonyms(pa.array(["Ada"]), key * 32, "")[0].as_py() for key in (b"a", b"b"))
    >>> len(one), one == other
    (32, False)
    """
    head = f"{len(domain)}:{domain}:".encode()
    digests = [hmac.digest(key, head + value.encode(), "sha256") for value in values.to_pylist()]
    return pa.array([digest.hex()[:_PSEUDONYM_DIGITS] for digest in digests], pa.string())


# --- noise --------------------------------------------------------------------------------------------------

Below = Callable[[int], int]
"""A function that returns a uniform whole number from 0 and below its argument."""


def discrete_laplace(epsilon: Fraction, below: Below = secrets.randbelow) -> int:
    """Return noise that makes a count differentially private.

    Parameters
    ----------
    epsilon
        Above 0; one row more or less changes the probability of any result by a factor of at most exp(epsilon).
    below
        Where chance comes from.

    Notes
    -----
    P(z) = (1 - a) / (1 + a) · a^|z| with a = exp(-epsilon), the two-sided geometric distribution of Ghosh, Roughgarden
    and Sundararajan, 2009; drawn exactly, in whole numbers alone, by Algorithm 2 of Canonne, Kamath and Steinke, 2020,
    so that no rounding of floating-point numbers tells of the count (Mironov, 2012).

    Examples
    --------
    >>> abs(discrete_laplace(Fraction(1000)))
    0
    """
    numerator, denominator = epsilon.numerator, epsilon.denominator
    while True:
        part = below(denominator)
        if not _happens_exp(part, denominator, below):
            continue
        whole = 0
        while _happens_exp(1, 1, below):
            whole += 1
        size = (part + denominator * whole) // numerator
        negative = below(2) == 1
        if size or not negative:
            return -size if negative else size


def _happens_exp(numerator: int, denominator: int, below: Below) -> bool:
    """Return True with probability exp(-numerator / denominator), which is at most 1 (ibid., Algorithm 1)."""
    turn = 1
    while below(denominator * turn) < numerator:
        turn += 1
    return turn % 2 == 1
