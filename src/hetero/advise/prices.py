"""What a device costs an hour: the user's own price, then live offers, then the catalog's hint, each with its age.

In: a file of prices, and gpuhunt where it is installed and asked for. Out: prices with where they come from. It must
not guess: a device without a price has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from hetero.catalog.load import find
from hetero.catalog.values import DeviceSpec
from hetero.floor.clock import wall_time_s
from hetero.floor.documents import blamed_on
from hetero.floor.errors import BadValueError, FileError
from hetero.floor.units import shown

__all__ = ["Paid", "Prices", "age_of", "own_price", "read_prices", "today"]


@dataclass(frozen=True, slots=True)
class Paid:
    """A price of one device.

    Attributes
    ----------
    usd_per_hour : > 0
    origin : 'yours', 'gpuhunt' with the provider, or 'catalog' with the source
    day : year-month or year-month-day that it was seen, '' where nobody says
    """

    usd_per_hour: float
    origin: str
    day: str = ""

    @property
    def said(self) -> str:
        """The price for people, with its age."""
        return f"${self.usd_per_hour:.2f} an hour ({self.origin}, {age_of(self.day)})"


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by name of the device, and what stood in the way of more.

    Attributes
    ----------
    own, live : by the catalog's name
    notes : lines for people
    """

    own: Mapping[str, Paid] = field(default_factory=dict)
    live: Mapping[str, Paid] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, device: DeviceSpec) -> Paid | None:
        """Return the price of a device, None where none is known."""
        found = self.own.get(device.name) or self.live.get(device.name)
        hint = device.price(per_hour=True)
        if found is None and hint is not None:
            found = Paid(hint.usd, f"catalog: {hint.source}", hint.month)
        return found


def today() -> date:
    """Return the day, UTC."""
    return datetime.fromtimestamp(wall_time_s(), UTC).date()


def age_of(day: str) -> str:
    """Return how old a price is.

    Examples
    --------
    >>> age_of("")
    'undated'
    """
    if not day:
        return "undated"
    year, month, *rest = (int(part) for part in day.split("-"))
    seen = date(year, month, rest[0] if rest else 1)
    days = max(0, (today() - seen).days)
    many = f"{days} days" if days < 60 else f"{days // 30} months"
    return f"of {day}, {'today' if days == 0 and rest else many + ' old'}"


def own_price(given: Any, where: str, day: Any = "") -> Paid:
    """Check a price that the user gives: a number above zero, and the day that it is of.

    Raises
    ------
    BadValueError
        The price is not above zero, or the day is no date.

    Examples
    --------
    >>> own_price(0, "my")
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: my: the price is 0; give dollars an hour above 0, or leave it out
    """
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not 0.0 < given < float("inf"):
        raise BadValueError(
            f"{where}: the price is {shown(given)}", remedy="give dollars an hour above 0, or leave it out"
        )
    return Paid(float(given), "yours", _day(day, where))


def _day(given: Any, where: str) -> str:
    if given in ("", None):
        return ""
    text = str(given)
    try:
        date.fromisoformat(text if len(text) > 7 else f"{text}-01")
    except ValueError as error:
        raise BadValueError(f"{where}: {shown(given)} is no day", remedy="write it like 2026-11-01") from error
    return text


def read_prices(file: Path) -> dict[str, Paid]:
    """Read the user's own prices: a mapping of devices to dollars an hour, or to {usd_per_hour: …, day: …}.

    Raises
    ------
    FileError
        The file cannot be read, or a device or a price in it is wrong.
    """
    from hetero.floor.yaml_tree import read_document

    document = read_document(file)
    if not isinstance(document, dict):
        raise FileError(f"{file} holds {shown(document)}", remedy="write lines like 'H100-SXM: 2.90'")
    with blamed_on(file):
        return dict(_price(name, given, str(file)) for name, given in document.items())


def _price(name: str, given: Any, file: str) -> tuple[str, Paid]:
    where = f"{file}: {shown(name)[1:-1]}"
    row = given if isinstance(given, dict) else {"usd_per_hour": given}
    if unknown := sorted(set(row) - {"usd_per_hour", "day"}):
        raise BadValueError(f"{where}: the key {shown(unknown[0])} is not known", remedy="allowed: usd_per_hour, day")
    return find(name).name, own_price(row.get("usd_per_hour"), where, row.get("day", ""))
