"""A chart of devices side by side, as a PNG.

In: rows of a comparison. Out: a file. It needs matplotlib, and says so where that is absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hetero.advise.compare import Row
from hetero.floor.errors import BadValueError, MissingPackageError
from hetero.floor.files import output_stream

__all__ = ["chart"]

_PANELS = (
    ("tflop_per_s", "TFLOP/s"),
    ("memory_gib", "memory, GiB"),
    ("bandwidth_gb_per_s", "memory bandwidth, GB/s"),
    ("tflop_per_s_per_w", "TFLOP/s per W"),
    ("tflop_per_s_per_usd_hour", "TFLOP/s per $/hour"),
    ("memory_gib_per_tflop_per_s", "GiB per TFLOP/s"),
)
_COLOURS = ("#3b6ea5", "#c8743a", "#5a8f5a", "#8a5a8f", "#a53b4d", "#6b6b6b", "#2f8f8f", "#b39a2e")


def _written(value: float | None) -> str:
    if value is None:
        return "no source"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def chart(rows: Sequence[Row], path: Path) -> None:
    """Draw one panel a measure, one bar a device; what has no source is written instead of drawn.

    Raises
    ------
    BadValueError
        matplotlib is absent, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "a chart needs matplotlib, which is not installed",
            remedy="pip install 'hetero-core[plot]', or leave --png out",
        ) from error
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
    try:
        figure.savefig(output_stream(path, "png"), dpi=110)
    except (OSError, ValueError) as error:
        raise BadValueError(f"{path} cannot be written: {error}", remedy="give a path that ends in .png") from error
