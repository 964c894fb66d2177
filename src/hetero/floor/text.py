"""Text of others made safe to show: no character of it steers a terminal, hides, or turns the reading around.

In: text from files, traces, tasks and devices. Out: the same text, such characters written as escapes, or text that a
poor encoding can hold. It must not print, and imports nothing of hetero.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

__all__ = ["ENCODING_ERRORS", "exception_line", "has_control", "printable", "single_line"]

_CONTROL = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1, which begin every escape sequence
    r"\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # bidi, invisible
    r"\ud800-\udfff\U000e0000-\U000e0fff"  # halves of characters, which no encoding can write; tags
)
_LINES = re.compile(f"[{_CONTROL}]")
_FIELD = re.compile(f"[{_CONTROL}\t\n]")

ENCODING_ERRORS: Final = "hetero.plain"
"""Name of the handler of encoding errors: a character that the terminal lacks becomes one that looks like it."""

_ALIKE = str.maketrans(
    {
        **dict.fromkeys("─━═╌┄–—‐‑−", "-"),
        **dict.fromkeys("│┃║╎┆", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╷╵╶╴┏┓┗┛┡┩╇╞╪╡┠┨╔╗╚╝", "+"),
        **dict.fromkeys("█▉▊▋▓■▇▆", "#"),
        **dict.fromkeys("▌▍▎▏▐▒▅▄", "="),
        **dict.fromkeys("░▃▂▁·•…", "."),
        **dict.fromkeys("‘’", "'"),
        **dict.fromkeys("“”", '"'),
        **{"×": "x", "→": ">", "←": "<", "µ": "u", "μ": "u", "≈": "~", "\xa0": " "},
        **{"≥": ">=", "≤": "<=", "±": "+-", "°": " deg", "²": "2", "³": "3", "½": "1/2", "Δ": "d", "✓": "+", "✗": "x"},
    }
)


def printable(text: str) -> str:
    r"""Return text of any number of lines with escapes in place of what steers a terminal.

    Examples
    --------
    >>> print(printable("red: \x1b[31m, backwards: \u202e\nnext line"))
    red: \x1b[31m, backwards: \u202e
    next line
    """
    return text if text.isprintable() else _LINES.sub(_escape, text)


def single_line(text: object) -> str:
    r"""Return a field of a table or a name as one line that steers no terminal.

    Examples
    --------
    >>> print(single_line("a\nb\t\x9b1m"))
    a\nb\t\x9b1m
    """
    written = str(text)
    return written if written.isprintable() else _FIELD.sub(_escape, written)


def exception_line(error: BaseException) -> str:
    r"""Return what a vendor's package raised as one line of at most 300 characters.

    Examples
    --------
    >>> exception_line(ValueError("bad\nlog"))
    'ValueError: bad log'
    """
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300].rstrip(": ")


def has_control(text: str) -> bool:
    r"""Return whether a name holds a character that `single_line` would escape.

    Examples
    --------
    >>> has_control("größe 3"), has_control("a\n")
    (False, True)
    """
    return not text.isprintable() and _FIELD.search(text) is not None


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _alike(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end].translate(_ALIKE)
    return lost.encode("ascii", "replace").decode("ascii"), error.end


codecs.register_error(ENCODING_ERRORS, _alike)
