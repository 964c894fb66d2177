"""What a device costs an hour: the user's own price, then live offers, then the catalog's hint, each with its age.

In: a file of prices, and gpuhunt where it is installed and asked for. Out: prices with where they come from. It must
not guess: a device without a price has none.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

from hetero.catalog.load import find
from hetero.catalog.values import DeviceSpec
from hetero.floor.clock import wall_time_s
from hetero.floor.documents import blamed_on
from hetero.floor.errors import BadValueError, FileError
from hetero.floor.units import shown

__all__ = ["Paid", "Prices", "age_of", "live_prices", "named_prices", "own_price", "read_prices", "today"]

_ANSWER_S = 8.0
"""A server that is silent for so long is given up …"""

_ALL_S = 25.0
"""… and all of them together are waited for so long."""


@dataclass(frozen=True, slots=True)
class Paid:
    """A price of one device.

    Attributes
    ----------
    usd_per_hour
        > 0.
    origin
        'yours', 'gpuhunt' with the provider, or 'catalog' with the source.
    day
        Year-month or year-month-day that it was seen, '' where nobody says.
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
    own, live
        By the catalog's name.
    notes
        Lines for people.
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


def own_price(given: object, where: str, day: object = "") -> Paid:
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
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0.0 < given < float("inf"):
        raise BadValueError(
            f"{where}: the price is {shown(given)}", remedy="give dollars an hour above 0, or leave it out"
        )
    return Paid(float(given), "yours", _day(day, where))


def _day(given: object, where: str) -> str:
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


def named_prices(words: Sequence[str]) -> dict[str, Paid]:
    """Read the user's own prices: each word is a file of `read_prices`, or a device and dollars an hour, 'T4=0.35'.

    Raises
    ------
    BadValueError
        A file cannot be read, or a device or a price is wrong.

    Examples
    --------
    >>> named_prices(["T4=0.35"])["T4"].usd_per_hour
    0.35
    """
    found: dict[str, Paid] = {}
    for word in words:
        name, given, amount = word.rpartition("=")
        if not given or Path(word).exists():
            found |= read_prices(Path(word))
            continue
        try:
            usd: object = float(amount)
        except ValueError:
            usd = amount
        found[find(name).name] = own_price(usd, word)
    return found


def _price(name: str, given: object, file: str) -> tuple[str, Paid]:
    where = f"{file}: {shown(name)[1:-1]}"
    row = given if isinstance(given, dict) else {"usd_per_hour": given}
    if unknown := sorted(set(row) - {"usd_per_hour", "day"}):
        raise BadValueError(f"{where}: the key {shown(unknown[0])} is not known", remedy="allowed: usd_per_hour, day")
    return find(name).name, own_price(row.get("usd_per_hour"), where, row.get("day", ""))


def live_prices(devices: Sequence[DeviceSpec]) -> tuple[dict[str, Paid], str]:
    """Ask gpuhunt for the cheapest offer on demand of each device; returns prices, and a note where that cannot be.

    Notes
    -----
    The providers whose catalogs gpuhunt publishes are asked, which needs no account; those that it would ask one by one
    are not. An offer is taken for a device of the same name and memory; offers do not tell SXM from PCIe, so one price
    then stands for both. gpuhunt is under the MPL-2.0, with copyleft for its own files; hetero does not include it.
    """
    try:
        gpuhunt = import_module("gpuhunt")
    except ImportError:
        return {}, "live prices need gpuhunt, which is not installed: pip install 'hetero-core[prices]'"
    answer: list[tuple[list[_Offer], str]] = []
    asking = threading.Thread(target=lambda: answer.append(_asked(gpuhunt)), daemon=True)
    asking.start()
    asking.join(_ALL_S)
    offers, note = answer[0] if answer else ([], f"gpuhunt gave no prices within {_ALL_S:g} s")
    found: dict[str, Paid] = {}
    for spec in devices:
        fitting = [offer for offer in offers if _is_offer_of(offer, spec)]
        if fitting:
            best = min(fitting, key=lambda offer: offer.price / offer.gpu_count)
            found[spec.name] = Paid(best.price / best.gpu_count, f"gpuhunt: {best.provider}", today().isoformat())
    return found, note


class _Offer(Protocol):
    provider: str
    price: float
    gpu_count: int
    gpu_name: str | None
    gpu_memory: float | None


def _asked(gpuhunt: ModuleType) -> tuple[list[_Offer], str]:
    """Return the offers of the providers that could be read, and what to say of the others."""
    try:
        with _quiet():
            catalog = gpuhunt.Catalog()
            catalog.load()
            return catalog.query(provider=list(catalog.catalog), min_gpu_count=1, spot=False), ""
    except Exception as error:  # noqa: BLE001  a network that does not answer, in whatever words
        cause = error.__cause__ or error
        told = " ".join(str(cause).split())[:160]
        return [], f"gpuhunt gave no prices: {type(cause).__name__}: {told}; give your own with --prices"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep gpuhunt from printing a traceback for each provider, and from waiting for ever."""
    logger, before_s = logging.getLogger("gpuhunt"), socket.getdefaulttimeout()
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    socket.setdefaulttimeout(_ANSWER_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before_s)
        logger.setLevel(level)


def _is_offer_of(offer: _Offer, spec: DeviceSpec) -> bool:
    """Compare names without marks and blanks, and memory within a tenth."""
    if not offer.gpu_name or not offer.gpu_count or not offer.price or spec.memory_bytes is None:
        return False
    ours = "".join(filter(str.isalnum, spec.name.casefold()))
    theirs = "".join(filter(str.isalnum, str(offer.gpu_name).casefold()))
    size = (offer.gpu_memory or 0.0) * 2**30
    return ours.startswith(theirs) and abs(size / spec.memory_bytes - 1.0) < 0.1
