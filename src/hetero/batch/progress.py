"""The progress of a run: records done, the rate of each device, when the whole will end.

In: a run that goes on. Out: text on standard error. It must not slow the run: it looks a few times a second.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import TYPE_CHECKING

from hetero.floor.clock import JOIN_S
from hetero.floor.units import format_seconds

if TYPE_CHECKING:
    from hetero.batch.run import BatchRun

__all__ = ["BatchProgress", "progress_line"]

_LOOK_S = 0.2
_LINE_S = 5.0


def progress_line(run: BatchRun) -> str:
    """Return one line: records done, of how many, the rate of each device, and what is left."""
    length, left_s = run.source.length, run.end_s()
    total = f" of {length:,}" if length is not None else ""
    each = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in run.rates().items())
    left = f"; {format_seconds(left_s)} left" if 1.0 <= left_s < math.inf else ""
    return f"{run.items():,}{total} records done; {each}{left}"


class BatchProgress:
    """Shows a run from a thread of its own until it is closed: a live line on a terminal, plain lines elsewhere."""

    def __init__(self, run: BatchRun) -> None:
        self._run = run
        self._closing = threading.Event()
        self._live = sys.stderr.isatty()
        self._thread = threading.Thread(target=self._show, name="hetero-batch-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show the last line and end."""
        self._closing.set()
        self._thread.join(JOIN_S)

    def _show(self) -> None:
        while not self._closing.wait(_LOOK_S if self._live else _LINE_S):
            self._write("" if self._live else "\n")
        self._write("\n")

    def _write(self, end: str) -> None:
        begin = "\r\x1b[K" if self._live else ""
        sys.stderr.write(f"{begin}hetero: {progress_line(self._run)}{end}")
        sys.stderr.flush()
