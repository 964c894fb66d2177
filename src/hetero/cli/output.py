"""What every command says and how: tables for people, one JSON document for programs, one line for a mistake.

In: values and errors. Out: text on standard output or standard error. It must not decide anything.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from hetero.floor import settings
from hetero.floor.errors import HeteroError
from hetero.floor.terminal import console, say, show_any_character, styled

__all__ = ["console", "print_json", "say", "show_any_character", "styled", "tell_error"]

_MOST_MISTAKES = 40


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(value, indent=2, default=str))


def tell_error(error: HeteroError) -> int:
    """Print a mistake on standard error, each of several on its own line; gives the exit code.

    With HETERO_DEBUG of 1 or more the traceback stands before it.
    """
    if _wants_traceback():
        import traceback

        traceback.print_exception(error)
    mistakes = list(map(str, getattr(error, "mistakes", ())))
    if len(mistakes) > _MOST_MISTAKES:
        mistakes[_MOST_MISTAKES:] = [f"and {len(mistakes) - _MOST_MISTAKES:,} more mistakes"]
    for line in mistakes or [str(error)]:
        say(f"hetero: {line}", to=sys.stderr)
    return error.exit_code


def _wants_traceback() -> bool:
    try:
        return settings.debug_level() >= 1
    except HeteroError:
        return False
