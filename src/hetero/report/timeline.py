"""The timeline of a run: in a terminal, a line a device and a column a moment, and as a picture for documents.

In: a `RunRecord`, a width or a path. Out: lines of text with colours as rich's markup objects; a PNG (or SVG, PDF: by
the name's ending), which needs matplotlib. It must not print.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hetero.floor.errors import BadValueError
from hetero.floor.extras import need
from hetero.floor.files import output_picture
from hetero.floor.units import format_seconds
from hetero.report.intervals import Floats
from hetero.report.record import RunRecord

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["ENDINGS", "gantt", "write_picture"]

_COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "bright_yellow", "bright_magenta")
_OTHER = "white"
_BLOCKS = " ▁▂▃▄▅▆▇█"

ENDINGS = (".png", ".svg", ".pdf")
_PALETTE_RGB = ("#0072b2", "#ee7766", "#66eebb", "#aa8800", "#663355", "#aaccff", "#dddd55")
_OTHER_RGB, _WASTED_RGB = "#8a9199", "#9b2226"


def gantt(run: RunRecord, width: int = 100) -> list[Text]:
    """Draw a run; each cell is as high as the share of its time that the device ran something.

    Parameters
    ----------
    width
        Columns of the terminal.
    """
    from rich.text import Text

    if not run.attempts:
        return [Text("no task ran")]
    wide = max((len(device.short) for device in run.devices), default=0)
    cells = max(10, width - wide - 2)
    names = _names(run)
    colours = {name: _COLOURS[at] if at < len(_COLOURS) else _OTHER for at, name in enumerate(names)}
    lines = [_line(run, index, wide, cells, colours) for index in range(len(run.devices))]
    scale = Text(f"{'':{wide}}  0 s{format_seconds(run.span_s):>{cells - 3}}", style="dim")
    key = Text(f"{'':{wide}}  ")
    for name in names[: len(_COLOURS)]:
        key.append("█ ", style=colours[name])
        key.append(f"{_plain(name)[:30]}  ")
    if len(names) > len(_COLOURS):
        key.append("█ ", style=_OTHER)
        key.append("others  ")
    if any(each.outcome != "done" for each in run.attempts):
        key.append("█ ", style="red")
        key.append("did not count")
    return [*lines, scale, key]


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else "�" for each in text)


def _names(run: RunRecord) -> list[str]:
    taken: dict[str, float] = {}
    for each in run.attempts:
        name = run.tasks[each.task].name if each.task in run.tasks else "?"
        taken[name] = taken.get(name, 0.0) + each.end_s - each.start_s
    return sorted(taken, key=lambda name: (-taken[name], name))


def _line(run: RunRecord, device: int, wide: int, cells: int, colours: dict[str, str]) -> Text:
    from rich.text import Text

    share = np.zeros(cells)
    longest = np.zeros(cells)
    style = [""] * cells
    for each in run.attempts:
        if each.device == device:
            name = run.tasks[each.task].name if each.task in run.tasks else "?"
            colour = colours[name] if each.outcome == "done" else "red"
            _fill(run, each.start_s, each.end_s, share, longest, style, colour)
    line = Text(f"{run.devices[device].short:{wide}}  ")
    for part, colour in zip(share, style, strict=True):
        block = _BLOCKS[min(8, max(1, round(8 * part)) if part > 0 else 0)]
        line.append(block, style=colour or None)
    return line


def _fill(
    run: RunRecord, start_s: float, end_s: float, share: Floats, longest: Floats, style: list[str], colour: str
) -> None:
    """Add one attempt to the cells that it touches; the longest of a cell gives its colour."""
    per_s = (run.span_s or 1.0) / len(share)
    first = min(len(share) - 1, int((start_s - run.begin_s) / per_s))
    last = min(len(share) - 1, int((end_s - run.begin_s) / per_s))
    for cell in range(max(0, first), last + 1):
        begin_s = run.begin_s + cell * per_s
        part = max(0.0, min(end_s, begin_s + per_s) - max(start_s, begin_s)) / per_s
        share[cell] += part
        if part > longest[cell]:
            longest[cell] = part
            style[cell] = colour


def write_picture(run: RunRecord, path: Path) -> None:
    """Draw the timeline of all devices.

    Raises
    ------
    BadValueError
        matplotlib is missing, or the file has another ending or cannot be written.
    """
    if path.suffix not in ENDINGS:
        raise BadValueError(f"{path} is no picture that can be written", remedy=f"end its name in {', '.join(ENDINGS)}")
    need("matplotlib", "a picture")
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(10, 1.2 + 0.28 * max(1, len(run.devices))), layout="constrained")
    axes = figure.subplots()
    taken: dict[str, float] = {}
    for each in run.attempts:
        name = run.tasks[each.task].name if each.task in run.tasks else "?"
        taken[name] = taken.get(name, 0.0) + each.end_s - each.start_s
    names = sorted(taken, key=lambda name: (-taken[name], name))
    colours = {name: _PALETTE_RGB[at] if at < len(_PALETTE_RGB) else _OTHER_RGB for at, name in enumerate(names)}
    boxes, fills = [], []
    for each in run.attempts:
        left, right, row = each.start_s - run.begin_s, each.end_s - run.begin_s, each.device
        boxes.append([(left, row - 0.4), (left, row + 0.4), (right, row + 0.4), (right, row - 0.4)])
        name = run.tasks[each.task].name if each.task in run.tasks else "?"
        fills.append(colours[name] if each.outcome == "done" else _WASTED_RGB)
    axes.add_collection(PolyCollection(boxes, facecolors=fills, linewidths=0, rasterized=True))
    axes.set_xlim(0.0, run.span_s or 1.0)
    axes.set_ylim(len(run.devices) - 0.4, -0.6)
    axes.set_yticks(range(len(run.devices)), [device.short for device in run.devices])
    axes.set_xlabel("s")
    axes.spines[["top", "right"]].set_visible(False)
    shown = [Patch(color=colours[name], label=name[:30].replace("$", r"\$")) for name in names[: len(_PALETTE_RGB)]]
    shown += [Patch(color=_OTHER_RGB, label="others")] if len(names) > len(_PALETTE_RGB) else []
    shown += [Patch(color=_WASTED_RGB, label="did not count")] if _WASTED_RGB in fills else []
    figure.legend(handles=shown, loc="outside lower center", ncols=min(8, len(shown) or 1), frameon=False, fontsize=8)
    place, kind = output_picture(path, "png")
    try:
        figure.savefig(place, format=kind, dpi=160)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadValueError(f"{path} cannot be written: {why}", remedy="name a folder that exists") from error
