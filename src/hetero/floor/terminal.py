"""The one place where words for people go out: no text steers the terminal, none is too good for its encoding.

In: lines, and what rich draws. Out: text on standard output or standard error. Texts are never markup; what is to be
bold or coloured says so by a style. It must not word anything.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

from hetero.floor.text import ENCODING_ERRORS, printable, single_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

__all__ = ["console", "say", "show_any_character", "styled"]


def say(text: str = "", *, to: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    r"""Print lines for people, on standard output where nothing else is named.

    Examples
    --------
    >>> say("a task named \x1b[31mred")
    a task named \x1b[31mred
    """
    print(printable(text), file=_Alike(to if to is not None else sys.stdout), end=end, flush=flush)


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console of rich, on which no text is markup and none steers the terminal."""
    file = _Alike(sys.stderr if stderr else sys.stdout)
    made: Console = _kind()(highlight=False, markup=False, emoji=False, file=file, width=width, safe_box=True)
    return made


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return one line of plain text and of texts with a style, as in `styled(("note:", "yellow"), " short")`."""
    from rich.text import Text

    plain = ((single_line(each), "") if isinstance(each, str) else (single_line(each[0]), each[1]) for each in parts)
    return Text.assemble(*plain)


class _Alike:
    """A stream that writes something alike for a character that its encoding lacks, and stays as it is itself.

    It may be that of a program in which hetero is a library, which prints its own words as it likes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        encoding = getattr(self._stream, "encoding", None)
        if encoding and not text.isascii():
            text = text.encode(encoding, ENCODING_ERRORS).decode(encoding)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def show_any_character() -> None:
    """Make the standard streams show something alike for a character that their encoding lacks: a command's own."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != ENCODING_ERRORS:
            stream.reconfigure(errors=ENCODING_ERRORS)


@cache
def _kind() -> Any:
    """Make the class of the console, once rich is wanted."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """A console whose texts are printable, in cells as in lines."""

        def on_broken_pipe(self) -> None:
            raise

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for part in super().render(renderable, options):
                yield part if part.control else Segment(printable(part.text), part.style)

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text), **how)

    return SafeConsole
