"""The runs of this process: the Contexts that are open, and what a run without a name leaves on disk.

In: Contexts. Out: keys of checkpoints. It must not touch the checkpoints of a run that has a name or goes on.
"""

from __future__ import annotations

import atexit
import os
import re
import uuid
import weakref
from typing import TYPE_CHECKING

from hetero.drive.frame import current
from hetero.floor import settings
from hetero.floor.errors import BadValueError

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["forget_runs", "open_contexts", "opened", "refuse_inside_a_task", "unnamed_run"]

_contexts: weakref.WeakSet[Context] = weakref.WeakSet()
_UNNAMED = re.compile(r"unnamed-(\d+)-[0-9a-f]{8}")


def refuse_inside_a_task() -> None:
    """Refuse to open a Context in a task.

    Raises
    ------
    BadValueError
        This thread runs a task.
    """
    frame = current()
    if frame is not None:
        raise BadValueError(
            f"task {frame.task} opens a Context, which would compete for the devices with the one that runs it",
            remedy="submit all tasks from the program, and give each what it needs as arguments",
        )


def opened(ctx: Context) -> None:
    """Take note of a Context, so that it is closed at the end of the program."""
    _contexts.add(ctx)


def open_contexts() -> tuple[Context, ...]:
    """Give the Contexts that are open in this process."""
    return tuple(ctx for ctx in _contexts if not ctx.closed)


@atexit.register
def _close_all() -> None:
    for ctx in open_contexts():
        ctx.close(wait=False)


def unnamed_run() -> str:
    """Give a key for the checkpoints of a run without a name; it tells the process that it belongs to."""
    return f"unnamed-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def forget_runs(own: str) -> None:
    """Drop the checkpoints of a run without a name, and those that killed programs left behind."""
    import psutil

    folder = settings.home() / "checkpoints"
    for key in os.listdir(folder) if folder.is_dir() else ():
        match = _UNNAMED.fullmatch(key)
        if key == own or (match is not None and not psutil.pid_exists(int(match[1]))):
            from hetero.drive.checkpoints import clear

            clear(key)
