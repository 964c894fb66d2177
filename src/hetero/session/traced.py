"""The trace of a run, for those who look at it while it goes or later.

In: a Context that writes a trace, or the trace's path. Out: the path, with all that happened so far in the file.
It must not read the trace.
"""

from __future__ import annotations

from pathlib import Path

from hetero.floor.errors import BadValueError
from hetero.session.context import Context

__all__ = ["trace_of"]


def trace_of(run: Context | str | Path) -> str | Path:
    """Return the path of a run's trace.

    Parameters
    ----------
    run : a Context that was opened with `trace=`, or the path of a trace

    Raises
    ------
    BadValueError
        The Context writes no trace.
    """
    if not isinstance(run, Context):
        return run
    if run.config.trace is None:
        raise BadValueError("this Context writes no trace", remedy="open it with hetero.Context(trace=FILE)")
    run.flush_trace()
    return run.config.trace
