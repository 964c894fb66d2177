"""How a foreign exception is worded in one line.

In: whatever a vendor's package raised. Out: text for people. It must not judge or raise.
"""

from __future__ import annotations

__all__ = ["one_line"]


def one_line(error: BaseException) -> str:
    r"""Word an exception in one line of at most 300 characters.

    Examples
    --------
    >>> one_line(ValueError("bad\nlog"))
    'ValueError: bad log'
    """
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300].rstrip(": ")
