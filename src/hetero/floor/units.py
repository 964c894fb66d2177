"""Quantities with units: people's words in, SI out, and back.

In: '8GB', '25GiB/s', '1.5ms'. Out: bytes, bytes/s, seconds as numbers. Decimal prefixes are powers
of 1000, binary ones (KiB, MiB, …) powers of 1024. It must not guess: an unknown unit is an error.
"""

from __future__ import annotations

import math
import re

from hetero.floor.errors import BadValueError, did_you_mean

__all__ = [
    "exact",
    "format_bytes",
    "format_rate",
    "format_seconds",
    "parse_bandwidth",
    "parse_bytes",
    "parse_energy",
    "parse_seconds",
    "shown",
]

_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BYTES = {f"{prefix}B": factor for prefix, factor in _DECIMAL.items()} | {
    f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)
}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_JOULES = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6}
_BITS = {f"{prefix}b": factor / 8 for prefix, factor in _DECIMAL.items()}
_MOST = float(2**63)
_NUMBER = re.compile(r"\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*")


def _parse(given: object, units: dict[str, float], what: str, example: str, bare: float | None) -> float:
    remedy = f"write it like {example!r}"
    number, unit = _split(given, what, remedy)
    factor = bare if unit == "" and bare is not None else _lookup(unit, units)
    if factor is None:
        unknown = f"no known unit{_meant(unit, units)}" if unit else "no unit"
        raise BadValueError(f"{shown(given)} has {unknown}", remedy=f"allowed units: {', '.join(units)}")
    if not 0 <= number * factor < _MOST:
        why = "it is below zero" if number < 0 else "it is too large"
        raise BadValueError(f"{shown(given)} is not {what}: {why}", remedy=remedy)
    return number * factor


def _split(given: object, what: str, remedy: str) -> tuple[float, str]:
    if isinstance(given, bool) or not isinstance(given, str | int | float) or given != given:
        raise BadValueError(f"{shown(given)} is not {what}", remedy=remedy)
    if isinstance(given, int | float):
        return (float(given) if abs(given) < _MOST else math.inf * (1 if given > 0 else -1)), ""
    match = _NUMBER.fullmatch(given)
    if match is None:
        raise BadValueError(f"{shown(given)} is not {what}", remedy=remedy)
    return float(match[1]), match[2]


def _meant(unit: str, units: dict[str, float]) -> str:
    same = [name for name in units if name.casefold() == unit.casefold()]
    if not same:
        return did_you_mean(unit, units)
    return f"; did you mean {' or '.join(map(repr, same))} (b is a bit, B a byte)?"


def shown(given: object) -> str:
    """Write a wrong value for a message: its repr on one line, cut after 60 characters.

    Examples
    --------
    >>> shown("8GBB"), len(shown("x" * 1000))
    ("'8GBB'", 60)
    """
    try:
        text = repr(given)
    except (ValueError, RecursionError):
        text = f"<{type(given).__name__}>"
    return text if len(text) <= 60 else f"{text[:59]}…"


def _lookup(unit: str, units: dict[str, float]) -> float | None:
    if unit in units:
        return units[unit]
    same = {factor for name, factor in units.items() if name.casefold() == unit.casefold()}
    return same.pop() if len(same) == 1 else None


def parse_bytes(given: object) -> int:
    """Read an amount of memory.

    Parameters
    ----------
    given
        Text like '8GB', or a whole number of bytes.

    Returns
    -------
    int
        bytes

    Raises
    ------
    BadValueError
        The number or the unit cannot be read.

    Examples
    --------
    >>> parse_bytes("2GB"), parse_bytes("1 KiB"), parse_bytes(512)
    (2000000000, 1024, 512)
    >>> parse_bytes("8GBB")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: '8GBB' has no known unit; did you mean 'GB'?; allowed units: B, KB, ...
    """
    return int(_parse(given, {k: float(v) for k, v in _BYTES.items()}, "an amount of memory", "8GB", 1.0))


def parse_bandwidth(given: object) -> float:
    """Read a bandwidth, in bytes ('25GB/s') or bits ('100Gb/s', which is 12.5 GB/s).

    Returns
    -------
    float
        bytes/s, one direction

    Raises
    ------
    BadValueError
        The number or the unit cannot be read.

    Examples
    --------
    >>> parse_bandwidth("400Gb/s") / 1e9
    50.0
    """
    units = {f"{unit}/s": float(factor) for unit, factor in (_BYTES | _BITS).items()}
    return _parse(given, units, "a bandwidth", "25GB/s", None)


def parse_seconds(given: object) -> float:
    """Read a duration.

    Returns
    -------
    float
        s; a bare number is seconds

    Raises
    ------
    BadValueError
        The number or the unit cannot be read.

    Examples
    --------
    >>> parse_seconds("1.5ms"), parse_seconds(3)
    (0.0015, 3.0)
    """
    return _parse(given, _SECONDS, "a duration", "30s", 1.0)


def parse_energy(given: object) -> float:
    """Read an amount of energy.

    Returns
    -------
    float
        J

    Raises
    ------
    BadValueError
        The number or the unit cannot be read; a bare number has no unit and is refused.

    Examples
    --------
    >>> parse_energy("0.5kWh"), parse_energy("20 kJ")
    (1800000.0, 20000.0)
    """
    return _parse(given, _JOULES, "an amount of energy", "500Wh", None)


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for size, unit in steps:
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g} {unit}" if abs(value) / size < 999.5 else f"{value / size:.0f} {unit}"
    return f"{value / steps[-1][0]:.3g} {steps[-1][1]}"


def format_bytes(amount_bytes: float) -> str:
    """Write bytes for people.

    Examples
    --------
    >>> format_bytes(64_000_000), format_bytes(0)
    ('64 MB', '0 B')
    """
    return _scaled(amount_bytes, ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B")))


def format_rate(amount_per_s: float, unit: str) -> str:
    """Write a rate for people.

    Examples
    --------
    >>> format_rate(2.5e9, "FLOP/s")
    '2.5 GFLOP/s'
    """
    return _scaled(amount_per_s, tuple((factor, prefix + unit) for prefix, factor in reversed(_DECIMAL.items())))


def format_seconds(duration_s: float) -> str:
    """Write a duration for people.

    Examples
    --------
    >>> format_seconds(0.0123), format_seconds(125), format_seconds(0.99961)
    ('12.3 ms', '2.08 min', '1 s')
    """
    return _scaled(duration_s, ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")))


def exact(value: float, unit: str) -> str:
    """Write a quantity as a configuration takes it, with nothing rounded away.

    Parameters
    ----------
    value
        SI.
    unit
        'B', 'B/s' or 's'.

    Examples
    --------
    >>> exact(64_000_000, "B"), exact(2**30, "B"), exact(12.5e9, "B/s"), exact(0.0015, "s"), exact(1_234_567, "B")
    ('64MB', '1GiB', '12.5GB/s', '1.5ms', '1234567B')
    """
    steps = dict(_SECONDS) if unit == "s" else {f"{name}{unit[1:]}": float(size) for name, size in _BYTES.items()}
    texts = (
        f"{value / size:.4g}{name}" for name, size in sorted(steps.items(), key=lambda step: -step[1]) if value >= size
    )
    same = (text for text in texts if "e" not in text and _parse(text, steps, "", "", None) == value)
    return next(same, f"{value}{unit}")
