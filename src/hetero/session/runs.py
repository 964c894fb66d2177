"""The runs of this process: the Contexts that are open, their traces, and what a run without a name leaves on disk.

In: Contexts. Out: keys of checkpoints, paths of traces. It must not touch the checkpoints of a run that has a name or
goes on.
"""

from __future__ import annotations

import atexit
import itertools
import os
import re
import uuid
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.drive.frame import current
from hetero.floor import settings
from hetero.floor.errors import BadValueError, HeteroError

if TYPE_CHECKING:
    from hetero.session.config import Config
    from hetero.session.context import Context

__all__ = [
    "forget_runs",
    "open_contexts",
    "opened",
    "refuse_inside_a_task",
    "trace_of",
    "unnamed_run",
    "with_own_trace",
]

_contexts: weakref.WeakSet[Context] = weakref.WeakSet()
_traced = itertools.count(1)
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
            remedy="submit from the program, or inside a task with hetero.current_context()",
        )


def opened(ctx: Context) -> None:
    """Record a Context, so that it is closed at the end of the program."""
    _contexts.add(ctx)


def open_contexts() -> tuple[Context, ...]:
    """Return the Contexts that are open in this process."""
    return tuple(ctx for ctx in _contexts if not ctx.closed)


def with_own_trace(config: Config) -> Config:
    """Return a configuration whose trace no other Context writes now.

    In its name `{pid}` stands for the process id, and `{n}` for the number of the Context in this process. A file
    that an open Context writes gets a number: `run.trace.jsonl` becomes `run-2.trace.jsonl`.
    """
    if config.trace is None:
        return config
    text = str(config.trace)
    number = next(_traced) if "{n}" in text else 0
    path = Path(text.replace("{n}", str(number)).replace("{pid}", str(os.getpid())))
    busy = {ctx.config.trace for ctx in open_contexts()}
    stem, dot, endings = path.name.partition(".")
    others = (path.with_name(f"{stem}-{number}{dot}{endings}") for number in itertools.count(2))
    return replace(config, trace=path if path not in busy else next(each for each in others if each not in busy))


@atexit.register
def _close_all() -> None:
    for ctx in open_contexts():
        ctx.close(wait=False)


def _forked() -> None:
    """Notify the Contexts inherited from the forking process of the fork, without taking their locks."""
    for ctx in open_contexts():
        problem = (
            f"this Context was opened by process {os.getppid()}; process {os.getpid()} was forked from that one and "
            "has neither its workers nor its threads"
        )
        ctx._leave_fork(HeteroError(problem, remedy="open another Context here, or start processes by 'spawn'"))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def unnamed_run() -> str:
    """Return a key for the checkpoints of a run without a name; it tells the process that it belongs to."""
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


def trace_of(run: Context | str | Path) -> str | Path:
    """Return the path of a run's trace.

    Parameters
    ----------
    run
        A Context that was opened with `trace=`, or the path of a trace.

    Raises
    ------
    BadValueError
        The Context writes no trace.
    """
    from hetero.session.context import Context

    if not isinstance(run, Context):
        return run
    if run.config.trace is None:
        raise BadValueError("this Context writes no trace", remedy="open it with hetero.Context(trace=FILE)")
    run.flush_trace()
    return run.config.trace
