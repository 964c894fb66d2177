"""What every command says and how: tables for people, one JSON document for programs, one line for a mistake.

In: values and errors. Out: text on standard output or standard error. It must not decide anything.
"""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

from hetero.floor import settings
from hetero.floor.errors import HeteroError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "print_json", "show_any_character", "tell_error"]


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(value, indent=2, default=str))


def console() -> Console:
    """Give a console for standard output, 80 columns wide where nobody can tell."""
    from rich.console import Console

    show_any_character()
    return Console(highlight=False)


def show_any_character() -> None:
    """Let standard output show '?' for a character that the terminal's encoding lacks, and not fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def tell_error(error: HeteroError) -> int:
    """Print a mistake on standard error, each of several on its own line; gives the exit code.

    With HETERO_DEBUG of 1 or more the traceback stands before it.
    """
    if _wants_traceback():
        import traceback

        traceback.print_exception(error)
    text = "\nhetero: ".join(map(str, getattr(error, "mistakes", ()))) or str(error)
    print(f"hetero: {text}", file=sys.stderr)
    return error.exit_code


def _wants_traceback() -> bool:
    try:
        return settings.debug_level() >= 1
    except HeteroError:
        return False
