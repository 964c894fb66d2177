"""The timeline as a picture for documents.

In: a `RunRecord` and a path. Out: a PNG (or SVG, PDF: by the name's ending). It needs matplotlib, imported here only.
"""

from __future__ import annotations

from pathlib import Path

from hetero.floor.errors import BadValueError, MissingPackageError
from hetero.floor.files import output_stream
from hetero.report.record import RunRecord

__all__ = ["ENDINGS", "write_picture"]

ENDINGS = (".png", ".svg", ".pdf")
_PALETTE = ("#0072b2", "#ee7766", "#66eebb", "#aa8800", "#663355", "#aaccff", "#dddd55")
_OTHER, _WASTED = "#8a9199", "#9b2226"


def write_picture(run: RunRecord, path: Path) -> None:
    """Draw the timeline of all devices.

    Raises
    ------
    BadValueError
        matplotlib is missing, or the file has another ending or cannot be written.
    """
    if path.suffix not in ENDINGS:
        raise BadValueError(f"{path} is no picture that can be written", remedy=f"end its name in {', '.join(ENDINGS)}")
    try:
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise MissingPackageError("pictures need matplotlib", remedy="pip install matplotlib") from error
    figure = Figure(figsize=(10, 1.2 + 0.28 * max(1, len(run.devices))), layout="constrained")
    axes = figure.subplots()
    taken: dict[str, float] = {}
    for each in run.attempts:
        name = run.tasks[each.task].name if each.task in run.tasks else "?"
        taken[name] = taken.get(name, 0.0) + each.end_s - each.start_s
    names = sorted(taken, key=lambda name: (-taken[name], name))
    colours = {name: _PALETTE[at] if at < len(_PALETTE) else _OTHER for at, name in enumerate(names)}
    boxes, fills = [], []
    for each in run.attempts:
        left, right, row = each.start_s - run.begin_s, each.end_s - run.begin_s, each.device
        boxes.append([(left, row - 0.4), (left, row + 0.4), (right, row + 0.4), (right, row - 0.4)])
        name = run.tasks[each.task].name if each.task in run.tasks else "?"
        fills.append(colours[name] if each.outcome == "done" else _WASTED)
    axes.add_collection(PolyCollection(boxes, facecolors=fills, linewidths=0, rasterized=True))
    axes.set_xlim(0.0, run.span_s or 1.0)
    axes.set_ylim(len(run.devices) - 0.4, -0.6)
    axes.set_yticks(range(len(run.devices)), [device.short for device in run.devices])
    axes.set_xlabel("s")
    axes.spines[["top", "right"]].set_visible(False)
    shown = [Patch(color=colours[name], label=name[:30].replace("$", r"\$")) for name in names[: len(_PALETTE)]]
    shown += [Patch(color=_OTHER, label="others")] if len(names) > len(_PALETTE) else []
    shown += [Patch(color=_WASTED, label="did not count")] if _WASTED in fills else []
    figure.legend(handles=shown, loc="outside lower center", ncols=min(8, len(shown) or 1), frameon=False, fontsize=8)
    try:
        figure.savefig(output_stream(path, "png"), dpi=160)
    except OSError as error:
        raise BadValueError(
            f"{path} cannot be written: {error.strerror}", remedy="name a folder that exists"
        ) from error
