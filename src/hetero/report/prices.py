"""What a run cost: the price of each device, and the money behind each loss.

In: devices, the user's prices, the catalog's. Out: USD, and where a price comes from. It must not guess a price: a
device of which nobody knows one has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

from hetero.catalog.load import find as in_catalog
from hetero.floor.errors import BadValueError, FileError, did_you_mean
from hetero.floor.units import shown
from hetero.model.device import Device
from hetero.report.account import Account

__all__ = ["YOURS", "applying", "format_usd", "lost_usd", "prices", "rates", "sentence"]

YOURS = "yours"
_LEAST_USD = 0.0001


def prices(given: list[str]) -> dict[str, float]:
    """Read prices like 'cuda=2.5', USD per hour by device id, label, name or kind, and files of lines 'cuda: 2.5'.

    Raises
    ------
    BadValueError
        One is not of that form.
    FileError
        A file cannot be read, or holds something else.

    Examples
    --------
    >>> prices(["cuda=2.5"])
    {'cuda': 2.5}
    """
    found: dict[str, float] = {}
    for text in given:
        name, sign, amount = text.partition("=")
        if not sign and Path(text).suffix in (".yaml", ".yml", ".json"):
            found |= _in_file(Path(text))
            continue
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = -1.0
        if not name or not 0.0 <= found[name] < inf:
            raise BadValueError(f"{text!r} is not a price", remedy="write it like 'cuda=2.5' (USD per hour)")
    return found


def _in_file(file: Path) -> dict[str, float]:
    from hetero.floor.yaml_tree import read_document

    document = read_document(file)
    if not isinstance(document, dict):
        raise FileError(f"{file} holds {shown(document)}", remedy="write lines like 'cuda: 2.5'")
    found = {}
    for name, row in document.items():
        usd = row.get("usd_per_hour") if isinstance(row, dict) else row
        if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0.0 <= usd < inf:
            raise FileError(f"{file}: the price of {shown(name)} is {shown(usd)}", remedy="give USD per hour")
        found[str(name)] = float(usd)
    return found


def rates(devices: Sequence[Device], usd_per_hour: Mapping[str, float]) -> tuple[tuple[float, str] | None, ...]:
    """Return for each device its USD per hour with where that comes from: the user, else the catalog; None without.

    Parameters
    ----------
    usd_per_hour
        Price per hour by device id, label, name or kind.

    Raises
    ------
    BadValueError
        A price is for a device that the run did not have.
    """
    known = {name: None for device in devices for name in _names(device) if name}
    for name in usd_per_hour:
        if name not in known:
            problem = f"no device of the run goes by {name!r}, for which a price is given{did_you_mean(name, known)}"
            raise BadValueError(problem, remedy=f"there are: {', '.join(list(known)[:20])}")
    return tuple(_rate(device, usd_per_hour) for device in devices)


def applying(usd_per_hour: Mapping[str, float], devices: Sequence[Device]) -> dict[str, float]:
    """Return the prices that are for one of these devices."""
    known = {name for device in devices for name in _names(device)}
    return {name: usd for name, usd in usd_per_hour.items() if name in known}


def _names(device: Device) -> tuple[str, ...]:
    return device.id, device.short, device.label, device.name, device.kind


def _rate(device: Device, usd_per_hour: Mapping[str, float]) -> tuple[float, str] | None:
    own = next((usd_per_hour[name] for name in _names(device) if name in usd_per_hour), None)
    if own is not None:
        return own, YOURS
    try:
        spec = in_catalog(device.name)
    except BadValueError:
        return None
    hint = spec.price(per_hour=True)
    return None if hint is None else (hint.usd, f"catalog: {hint.source} {hint.month}".rstrip())


def lost_usd(account: Account, usd: Sequence[float | None], category: str) -> float:
    """Return the money that went with one kind of time on the devices whose price is known."""
    rows = zip(account.seconds, usd, strict=True)
    return sum(price * took[category] / account.span_s for took, price in rows if price is not None and account.span_s)


def sentence(account: Account, usd: Sequence[float | None], origins: Sequence[str]) -> str:
    """Return what the run cost and how much of that computed nothing; '' where no price is known."""
    paid = [each for each in usd if each is not None]
    if not paid:
        return ""
    whole, useful = sum(paid), lost_usd(account, usd, "compute")
    of = "The devices" if len(paid) == len(usd) else f"{len(paid)} of {len(usd)} devices"
    told = sorted({each for each in origins if each and each != YOURS})
    source = f" (prices: {'; '.join(told)})" if told else ""
    share = f"{100.0 * (whole - useful) / whole:.0f} %" if whole else "0 %"
    lost = f"{format_usd(whole - useful)} ({share})" if whole - useful >= _LEAST_USD else share
    return f"{of} cost {format_usd(whole)} in this time, of which {lost} bought no computing{source}."


def format_usd(usd: float) -> str:
    """Write an amount of money for people.

    Examples
    --------
    >>> format_usd(1234.5), format_usd(0.03125), format_usd(4.5e-8), format_usd(0.0)
    ('1,234.50 USD', '0.031 USD', '< 0.0001 USD', '0 USD')
    """
    if usd >= 1.0:
        return f"{usd:,.2f} USD"
    if usd >= _LEAST_USD:
        return f"{usd:.2g} USD"
    return "< 0.0001 USD" if usd > 0.0 else "0 USD"
