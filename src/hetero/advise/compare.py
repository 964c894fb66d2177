"""Devices side by side: rates per dollar and per watt, memory for each unit of speed, what each is best for.

In: devices of the catalog and a precision. Out: rows and words. It must not fill a gap: what has no source stays empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hetero.catalog.values import DeviceSpec
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.extras import need
from hetero.floor.files import output_picture

__all__ = ["MEASURES", "ComparisonRow", "best_for", "chart", "compare"]

_FALLBACKS = {"bf16": ("bf16", "fp16"), "fp16": ("fp16", "bf16")}

MEASURES = {
    "tflop_per_s": "most arithmetic",
    "memory_gib": "most memory",
    "bandwidth_gb_per_s": "most memory bandwidth",
    "tflop_per_s_per_usd_hour": "most arithmetic for rented money",
    "tflop_per_s_per_1000_usd": "most arithmetic for bought money",
    "tflop_per_s_per_w": "most arithmetic for a watt",
    "memory_gib_per_tflop_per_s": "most memory for its arithmetic",
}
"""What is compared, and what the best of it is best for."""

_PANELS = (
    ("tflop_per_s", "TFLOP/s"),
    ("memory_gib", "memory, GiB"),
    ("bandwidth_gb_per_s", "memory bandwidth, GB/s"),
    ("tflop_per_s_per_w", "TFLOP/s per W"),
    ("tflop_per_s_per_usd_hour", "TFLOP/s per $/hour"),
    ("memory_gib_per_tflop_per_s", "GiB per TFLOP/s"),
)
_COLOURS = ("#3b6ea5", "#c8743a", "#5a8f5a", "#8a5a8f", "#a53b4d", "#6b6b6b", "#2f8f8f", "#b39a2e")


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One device's figures; None where the catalog has no source.

    Attributes
    ----------
    name
        Of the device.
    precision
        Of the rate, which may be the nearest known one.
    tflop_per_s
        Dense, 1e12 operations/s.
    memory_gib, bandwidth_gb_per_s
        2**30 bytes, 1e9 bytes/s.
    power_w
        Watts.
    usd, usd_per_hour
        Price hints, and the months they were printed for.
    tflop_per_s_per_usd_hour, tflop_per_s_per_1000_usd, tflop_per_s_per_w, memory_gib_per_tflop_per_s
        Ratios.
    uses
        What it is sold for.
    """

    name: str
    precision: str
    tflop_per_s: float | None
    memory_gib: float | None
    bandwidth_gb_per_s: float | None
    power_w: float | None
    usd: float | None
    usd_per_hour: float | None
    price_months: tuple[str, ...]
    tflop_per_s_per_usd_hour: float | None
    tflop_per_s_per_1000_usd: float | None
    tflop_per_s_per_w: float | None
    memory_gib_per_tflop_per_s: float | None
    uses: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name."""
        return asdict(self)


def _over(one: float | None, other: float | None, scale: float = 1.0) -> float | None:
    return one / other * scale if one is not None and other else None


def _row(spec: DeviceSpec, precision: str) -> ComparisonRow:
    tried = _FALLBACKS.get(precision, (precision,))
    used = next((name for name in tried if spec.rate(name) is not None), precision)
    rate = spec.rate(used)
    tera = rate / 1e12 if rate is not None else None
    memory = spec.memory_bytes / 2**30 if spec.memory_bytes is not None else None
    speed = spec.bandwidth_bytes_per_s / 1e9 if spec.bandwidth_bytes_per_s is not None else None
    bought, rented = spec.price(per_hour=False), spec.price(per_hour=True)
    usd, hourly = bought.usd if bought else None, rented.usd if rented else None
    return ComparisonRow(
        name=spec.name,
        precision=used,
        tflop_per_s=tera,
        memory_gib=memory,
        bandwidth_gb_per_s=speed,
        power_w=spec.power_w,
        usd=usd,
        usd_per_hour=hourly,
        price_months=tuple(price.month or "undated" for price in (bought, rented) if price),
        tflop_per_s_per_usd_hour=_over(tera, hourly),
        tflop_per_s_per_1000_usd=_over(tera, usd, 1000),
        tflop_per_s_per_w=_over(tera, spec.power_w),
        memory_gib_per_tflop_per_s=_over(memory, tera),
        uses=spec.uses,
    )


def compare(specs: Sequence[DeviceSpec], precision: str = "bf16") -> list[ComparisonRow]:
    """Return a row for each device.

    Parameters
    ----------
    precision
        'bf16' and 'fp16' stand in for one another; others are as asked.

    Raises
    ------
    BadValueError
        No device of the catalog has a rate of that name.

    Examples
    --------
    >>> a = DeviceSpec("a", "v", "cuda", power_w=100, flop_per_s={"bf16": 2e14})
    >>> compare([a])[0].tflop_per_s_per_w
    2.0
    """
    known = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4", "fp16_acc16", "fp16_vector")
    if precision not in known:
        remedy = did_you_mean(precision, known).removeprefix("; ") or f"known: {', '.join(known)}"
        raise BadValueError(f"no rate is kept for the precision {precision!r}", remedy=remedy)
    return [_row(spec, precision) for spec in specs]


def best_for(rows: Sequence[ComparisonRow]) -> dict[str, list[str]]:
    """Return for each device what it is the best of these for; a measure that fewer than two have names nobody.

    Examples
    --------
    >>> a = DeviceSpec("a", "v", "cuda", memory_bytes=10**10)
    >>> b = DeviceSpec("b", "v", "cuda", memory_bytes=2 * 10**10)
    >>> best_for(compare([a, b]))
    {'a': [], 'b': ['most memory']}
    """
    found: dict[str, list[str]] = {row.name: [] for row in rows}
    for measure, words in MEASURES.items():
        known = [(value, row.name) for row in rows if (value := getattr(row, measure)) is not None]
        if len(known) > 1:
            most = max(value for value, _ in known)
            for value, name in known:
                if value == most:
                    found[name].append(words)
    return found


def _written(value: float | None) -> str:
    if value is None:
        return "no source"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def chart(rows: Sequence[ComparisonRow], path: Path) -> None:
    """Draw one panel a measure, one bar a device; what has no source is written instead of drawn.

    Raises
    ------
    BadValueError
        matplotlib is absent, or the file cannot be written.
    """
    need("matplotlib", "a chart")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 1.6 + 0.9 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3, squeeze=False).ravel()
    names = [row.name for row in rows]
    colours = [_COLOURS[place % len(_COLOURS)] for place in range(len(rows))]
    for axis, (measure, title) in zip(axes, _PANELS, strict=True):
        values = [getattr(row, measure) for row in rows]
        axis.barh(names, [value or 0 for value in values], color=colours)
        for place, value in enumerate(values):
            axis.annotate(
                _written(value),
                (value or 0, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                color="#888888" if value is None else "#222222",
            )
        axis.set_title(title, fontsize=10)
        axis.invert_yaxis()
        axis.margins(x=0.22)
        axis.spines[["top", "right"]].set_visible(False)
    precisions = ", ".join(sorted({row.precision for row in rows}))
    title = f"dense {precisions}; prices are hints of the months that the table names"
    figure.suptitle(title, fontsize=9, color="#555555")
    target, kind = output_picture(path, "png")
    try:
        figure.savefig(target, format=kind, dpi=110)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadValueError(f"{path} cannot be written: {why}", remedy="give a path that ends in .png") from error
