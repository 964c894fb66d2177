"""The topology as a picture: parts in rows by what they are, wires between them, the wider the thicker.

In: a fabric and a path. Out: a PNG file. It must not decide anything.
"""

from __future__ import annotations

from math import log10
from pathlib import Path

from hetero.floor.errors import BadValueError
from hetero.floor.extras import need
from hetero.floor.files import output_picture
from hetero.floor.units import format_rate
from hetero.model.fabric import Fabric, FabricPart

__all__ = ["draw"]

_ROWS = ("device", "switch", "numa", "host", "network")
"""From the bottom up; network cards stand beside devices, switches of NVLink below them."""

_COLOURS = {
    "nvlink": "#5a8f5a",
    "pcie": "#3b6ea5",
    "smp": "#c8743a",
    "memory": "#b39a2e",
    "network": "#a53b4d",
    "other": "#6b6b6b",
}


def _row(fabric: Fabric, part: FabricPart) -> int:
    kinds = {wire.kind for wire in fabric.wires if part.id in (wire.one, wire.other)}
    if part.kind == "switch" and kinds == {"nvlink"}:
        return -1
    return 0 if part.kind == "nic" else _ROWS.index(part.kind)


def _places(fabric: Fabric) -> dict[str, tuple[float, float]]:
    """Lay out the parts: devices side by side by NUMA node, the others centred over what they join."""
    rows: dict[int, list[FabricPart]] = {}
    for part in fabric.parts:
        rows.setdefault(_row(fabric, part), []).append(part)
    beside = {part.id: _neighbours(fabric, part.id) for part in fabric.parts}
    across: dict[str, float] = {}
    bottom = rows.get(0, [])
    bottom.sort(key=lambda part: (part.host, -1 if part.numa is None else part.numa, part.kind, part.id))
    across.update({part.id: 1.3 * at for at, part in enumerate(bottom)})
    for row in (-1, 1, 2, 3, 4):
        middles = {}
        for part in rows.get(row, []):
            known = [across[name] for name in beside[part.id] if name in across]
            middles[part.id] = sum(known) / len(known) if known else 0.0
        last = float("-inf")
        for name, middle in sorted(middles.items(), key=lambda pair: pair[1]):
            last = across[name] = max(middle, last + 1.3)
    return {part.id: (across[part.id], 1.6 * row) for row, parts in rows.items() for part in parts}


def _neighbours(fabric: Fabric, name: str) -> list[str]:
    pairs = ((wire.one, wire.other) for wire in fabric.wires)
    return [other if one == name else one for one, other in pairs if name in (one, other)]


def _curve(start: tuple[float, float], end: tuple[float, float]) -> tuple[list[float], list[float]]:
    """Return points of a line, or of an arc below where both ends stand in one row."""
    steps = [step / 20 for step in range(21)]
    depth = 0.28 * abs(end[0] - start[0]) if start[1] == end[1] else 0.0
    across = [start[0] + (end[0] - start[0]) * t for t in steps]
    return across, [start[1] + (end[1] - start[1]) * t - 4 * depth * t * (1 - t) for t in steps]


def _label(part: FabricPart) -> str:
    return f"{part.id}\n{part.name}" if part.name else part.id


def draw(fabric: Fabric, path: Path) -> None:
    """Draw a fabric.

    Raises
    ------
    BadValueError
        matplotlib is absent, or the file cannot be written.
    """
    need("matplotlib", "a picture")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(60.0, 4 + 1.3 * len(fabric.devices)), 8))
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    places = _places(fabric)
    told: set[str] = set()
    for wire in fabric.wires:
        width = max(0.6, 1.2 * (log10(wire.bytes_per_s) - 8.5))
        name = f"{wire.kind}, {format_rate(wire.bytes_per_s, 'B/s')}, {wire.origin}"
        style = "--" if wire.origin == "declared" else "-"
        across, up = _curve(places[wire.one], places[wire.other])
        label = "" if name in told else name
        axis.plot(across, up, style, color=_COLOURS[wire.kind], linewidth=width, label=label, zorder=1)
        told.add(name)
    for part in fabric.parts:
        x, y = places[part.id]
        box = {"boxstyle": "round", "facecolor": "#ffffff", "edgecolor": "#444444"}
        axis.text(x, y, _label(part), ha="center", va="center", fontsize=8, bbox=box, zorder=2)
    axis.margins(0.08)
    axis.set_axis_off()
    if told and len(told) <= 12:
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, fontsize=8, frameon=False)
    place, kind = output_picture(path, "png")
    try:
        figure.savefig(place, format=kind, dpi=100, bbox_inches="tight")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadValueError(f"{path} cannot be written: {why}", remedy="give a path that ends in .png") from error
