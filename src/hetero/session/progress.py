"""The progress view: tasks done on each device, live on a terminal, plain lines elsewhere.

In: counts. Out: text on standard error. It must not slow the run: it looks at the counts a few times a second.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hetero.floor.clock import JOIN_S
from hetero.floor.terminal import console, say
from hetero.model.device import Device
from hetero.session.debug_log import TaskCounts

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["ProgressView", "plain_line"]

_LOOK_S = 0.2
_LINE_S = 5.0


def plain_line(counts: TaskCounts, devices: Sequence[Device]) -> str:
    """Return the counts in one line.

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> plain_line(TaskCounts(), [Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu")])
    'hetero: 0 of 0 tasks done; cpu:0 0'
    """
    each = ", ".join(f"{device.short} {counts.done[device.id]}" for device in devices)
    failed = f", {counts.failed} failed" if counts.failed else ""
    return f"hetero: {counts.done.total()} of {counts.submitted} tasks done{failed}; {each}"


class ProgressView:
    """Shows the counts from a thread of its own until it is closed.

    Parameters
    ----------
    counts, devices
        What is shown.
    short
        True also tells of a run, without a terminal, that ends before its first line is due.
    """

    def __init__(self, counts: TaskCounts, devices: Sequence[Device], short: bool = True) -> None:
        self._short = short
        self._counts = counts
        self._devices = devices
        self._closing = threading.Event()
        self._work = self._show_live if sys.stderr.isatty() else self._show_lines
        self._thread = threading.Thread(target=self._work, name="hetero-progress", daemon=True)
        self._thread.start()

    def close(self, lines: Sequence[str] = ()) -> None:
        """Show the last counts, then these lines, and end."""
        self._closing.set()
        self._thread.join(JOIN_S)
        for line in lines:
            _show(f"hetero: {line}")

    def _show_lines(self) -> None:
        shown = ""
        while not self._closing.wait(_LINE_S):
            line = plain_line(self._counts, self._devices)
            if line != shown:
                _show(line)
                shown = line
        if shown or self._short:
            _show(plain_line(self._counts, self._devices))

    def _show_live(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        words = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}")
        columns = (*words, TimeElapsedColumn())
        with Progress(*columns, console=console(stderr=True)) as bars:
            names = ["tasks", *(device.short for device in self._devices)]
            rows = [bars.add_task(name, total=None) for name in names]
            while not self._closing.wait(_LOOK_S):
                self._update(bars, rows)
            self._update(bars, rows)

    def _update(self, bars: Progress, rows: Sequence[object]) -> None:
        done = self._counts.done
        figures = [done.total(), *(done[device.id] for device in self._devices)]
        for row, figure in zip(rows, figures, strict=True):
            bars.update(row, completed=figure, total=self._counts.submitted or None)  # type: ignore[arg-type]


def _show(line: str) -> None:
    say(line, to=sys.stderr, flush=True)
