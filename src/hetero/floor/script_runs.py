"""Scripts under `hetero run`: the Python process that runs one, and what hetero does there beside it.

In: a script and what was typed for it. Out: a command line of Python itself, so that the script finds all as under
`python SCRIPT`; in that process, how a mistake is told. It must not import what a script has not asked for.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import types
from pathlib import Path

from hetero.floor import settings
from hetero.floor.errors import HeteroError
from hetero.floor.settings import RUN_OPTION

__all__ = ["begin", "python_command", "tell_error", "typed_options", "wants_traceback"]

_MOST_MISTAKES = 40
_NOT_THEIRS = (str(Path(__file__).parent.parent), os.path.dirname(os.__file__), "<frozen")
"""Of files whose lines say nothing of a script: our own, and what comes with Python or was installed."""


def python_command(script: str, args: list[str], typed: dict[str, str] | None = None) -> list[str]:
    """Return the command line that runs a script, with the interpreter's options that this process has.

    Parameters
    ----------
    script
        File, folder or archive, or '-' for standard input.
    typed
        What was typed for the Contexts of the script, by setting; None where it is not one of `hetero run`.
    """
    flags = _interpreter_options(sys.orig_argv[1:])
    if typed is not None:
        flags += ["-X", f"{RUN_OPTION}={json.dumps(typed)}"]
    named = f"./{script}" if script.startswith("-") and script != "-" else script
    return [sys.executable, *flags, named, *args]


def _interpreter_options(words: list[str]) -> list[str]:
    """Return the options of Python itself on its command line: those before the script, -m or -c.

    Examples
    --------
    >>> _interpreter_options(["-OB", "-W", "error", "-Xutf8", "-um", "hetero", "run", "-q"])
    ['-O', '-B', '-W', 'error', '-Xutf8', '-u']
    """
    found: list[str] = []
    left = iter(words)
    for word in left:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):
            found += [word, next(left, "")]  # --check-hash-based-pycs, the only one that runs anything
            continue
        for at, letter in enumerate(word[1:], start=1):
            if letter in "cm":
                return found
            if letter in "WX":
                value = [word[at + 1 :]] if word[at + 1 :] else []
                given = value or [next(left, "")]
                if not given[0].startswith(RUN_OPTION):  # of the run that this one is part of
                    found += [f"-{letter}{given[0]}"] if value else [f"-{letter}", given[0]]
                break
            if letter not in "ix":  # which are about a prompt, and about the text of this program's script
                found.append(f"-{letter}")
    return found


def typed_options() -> dict[str, str]:
    """Return what was typed for the Contexts of this script, by setting; {} where it is not one of `hetero run`."""
    given = sys._xoptions.get(RUN_OPTION)
    return dict(json.loads(given)) if isinstance(given, str) else {}


def begin() -> None:
    """Set up that mistakes are told as commands do, and at the end which options no Context took."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _tell
    if typed_options():
        atexit.register(_tell_unheard)


def _tell(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Print what ended the script: a mistake in a line, with its place; all else as Python does."""
    if not isinstance(error, HeteroError):
        sys.__excepthook__(kind, error, trace)
        return
    from hetero.floor.terminal import say

    code, place = tell_error(error), ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_NOT_THEIRS):
            place = f"{file}, line {trace.tb_lineno}"
        trace = trace.tb_next
    if place:
        say(f"hetero: raised in {place}", to=sys.stderr)
    raise SystemExit(code)


def _tell_unheard() -> None:
    from hetero.floor.terminal import say

    config = sys.modules.get("hetero.session.config")
    options = typed_options()
    unheard = config.command_line.unheard() if config is not None else ", ".join(options.values())
    if unheard:
        text = f"{sys.argv[0]} opened no hetero.Context itself, so these had no effect on it"
        say(f"hetero: {text}: {unheard}", to=sys.stderr)


def tell_error(error: HeteroError) -> int:
    """Print a mistake on standard error, each of several on its own line; returns the exit code.

    With HETERO_DEBUG of 1 or more the traceback stands before it.
    """
    from hetero.floor.terminal import say

    if wants_traceback():
        import traceback

        traceback.print_exception(error)
    mistakes = list(map(str, getattr(error, "mistakes", ())))
    if len(mistakes) > _MOST_MISTAKES:
        mistakes[_MOST_MISTAKES:] = [f"and {len(mistakes) - _MOST_MISTAKES:,} more mistakes"]
    for line in mistakes or [str(error)]:
        say(f"hetero: {line}", to=sys.stderr)
    return error.exit_code


def wants_traceback() -> bool:
    """Return whether HETERO_DEBUG asks for tracebacks of mistakes."""
    try:
        return settings.debug_level() >= 1
    except HeteroError:
        return False
