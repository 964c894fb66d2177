"""What every command says and how: tables for people, one JSON document for programs, one line for a mistake.

In: values and errors. Out: text on standard output or standard error. It must not decide anything.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import TYPE_CHECKING

import typer

from hetero.floor import settings
from hetero.floor.errors import EngineError, ExitCode, HeteroError
from hetero.floor.extras import EXTRAS, missing
from hetero.floor.own_memory import memory_limit_bytes
from hetero.floor.script_runs import tell_error, wants_traceback
from hetero.floor.terminal import console, say, show_any_character, styled
from hetero.floor.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "be_quiet",
    "closed_pipe",
    "console",
    "fitted",
    "is_quiet",
    "note",
    "print_json",
    "run_command",
    "say",
    "styled",
    "tell_error",
]

_quiet = False


def be_quiet(wanted: bool = True) -> None:
    """From now on, print results and mistakes only: no progress, and no notes."""
    global _quiet
    _quiet = wanted
    if wanted:
        import logging

        settings.switch_on("HETERO_PROGRESS", "0")
        logging.getLogger("hetero").setLevel(logging.ERROR)


def is_quiet() -> bool:
    """Return whether --quiet was given."""
    return _quiet


def note(text: str) -> None:
    """Print a note on standard error, unless --quiet was given."""
    if not _quiet:
        say(text, to=sys.stderr)


def fitted(table: Table, out: Console, *spare: str) -> Table:
    """Return a table without the columns that a narrow terminal has no room for, the first named going first."""
    from rich.measure import Measurement

    for heading in spare:
        if Measurement.get(out, out.options.update(width=10_000), table).maximum <= out.width:
            break
        table.columns = [column for column in table.columns if column.header != heading]
        for place, column in enumerate(table.columns):
            column._index = place  # by which rich pads it
    return table


def closed_pipe() -> ExitCode:
    """Abandon standard output, which nobody reads any more; return what the command exits with."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return ExitCode.CLOSED_PIPE


def print_json(value: object) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(value, indent=2, default=str))


def run_command(app: typer.Typer, name: str) -> None:
    """Run the command line and end the process with the right exit code; no mistake ends in a traceback."""
    try:
        settings.debug_level()
        _check_memory()
        show_any_character()
        try:
            typer.main.get_command(app)(prog_name=name)
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # click's own words, as of --help
                raise end.__context__ from None
            raise
        finally:
            _flush()
    except BrokenPipeError:
        sys.exit(closed_pipe())
    except HeteroError as error:
        sys.exit(tell_error(error))
    except (ImportError, MemoryError, OSError) as error:
        known = _worded(error)
        if known is None or wants_traceback():
            raise
        sys.exit(tell_error(known))


def _flush() -> None:
    """Write what is left of standard output, where a script has not closed it."""
    if sys.stdout is None or sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        closed_pipe()
        raise EngineError(f"standard output cannot be written: {error.strerror}", remedy="write elsewhere") from error


_LEAST_BYTES = 250_000_000


def _check_memory() -> None:
    """Refuse to start where libraries would end the process in their own words."""
    most_bytes = memory_limit_bytes()
    if most_bytes is not None and most_bytes < _LEAST_BYTES:
        problem = f"this process may have {format_bytes(most_bytes)} of memory, which is too little to start"
        raise EngineError(problem, remedy=f"allow {format_bytes(_LEAST_BYTES)} or more (ulimit -v)")


def _worded(error: BaseException) -> HeteroError | None:
    """Word a failure of the system or a package that is absent; None for what is neither."""
    limit = memory_limit_bytes()
    scarce = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    if scarce or (limit is not None and isinstance(error, ImportError) and "failed to map" in str(error)):
        problem = "there is not enough memory for this"
        problem += f": this process may have {format_bytes(limit)}" if limit is not None else ""
        return EngineError(problem, remedy="raise the limit (ulimit -v), or do less at once")
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return missing(package, "this") if package in EXTRAS else None
