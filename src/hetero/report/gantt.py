"""The timeline in a terminal: a line a device, a column a moment.

In: a `RunRecord` and a width. Out: lines of text, with colours as rich's markup objects. It must not print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hetero.floor.units import format_seconds
from hetero.report.intervals import Floats
from hetero.report.record import RunRecord

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["gantt"]

_COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "bright_yellow", "bright_magenta")
_OTHER = "white"
_BLOCKS = " ▁▂▃▄▅▆▇█"


def gantt(run: RunRecord, width: int = 100) -> list[Text]:
    """Draw a run; each cell is as high as the share of its time that the device ran something.

    Parameters
    ----------
    width : columns of the terminal
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
