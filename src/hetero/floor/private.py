"""What is private to a user: sockets that are files, and whose a file is.

In: user ids. Out: sockets, names. Windows, which has neither here, gets None and numbers.
It must not know runs.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress

__all__ = ["file_socket", "user_id", "user_name"]


def file_socket() -> socket.socket | None:
    """Give a new socket whose address is a file, None where the system has none."""
    if sys.platform == "win32":
        return None
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def user_id() -> int:
    """Give the number of the user who runs this process."""
    if sys.platform == "win32":
        return 0
    return os.getuid()


def user_name(uid: int) -> str:
    """Give a user's name, or his number in words where nobody has it.

    Examples
    --------
    >>> user_name(4_000_000_000)
    'user 4000000000'
    """
    if sys.platform != "win32":
        import pwd

        with suppress(KeyError, OverflowError):
            return pwd.getpwuid(uid).pw_name
    return f"user {uid}"
