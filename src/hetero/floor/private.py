"""What is private to a user: sockets that are files, folders that nobody else looks into, and whose a file is.

In: user ids, paths. Out: sockets, names, folders. Windows, which has none of that here, gets None and numbers.
It must not know runs.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from hetero.floor import settings
from hetero.floor.errors import BadValueError

__all__ = [
    "check_own",
    "check_secret",
    "file_socket",
    "own_home",
    "private_folder",
    "temporary_folder",
    "user_id",
    "user_name",
    "write_private",
]

_OVERFLOW = 65534
"""Owner of what belongs to nobody in a container, as its root folder."""


def file_socket() -> socket.socket | None:
    """Return a new socket whose address is a file, None where the system has none."""
    if sys.platform == "win32":
        return None
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def user_id() -> int:
    """Return the number of the user who runs this process."""
    if sys.platform == "win32":
        return 0
    return os.getuid()


def user_name(uid: int) -> str:
    """Return a user's name, or his number in words where nobody has it.

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


def temporary_folder(prefix: str, suffix: str = "") -> Path:
    """Make a folder in the temporary folder of this host that nobody else can look into or replace.

    Raises
    ------
    BadValueError
        Other users may rename what lies in the temporary folder.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix))
    try:
        return private_folder(folder)
    except BadValueError:
        folder.rmdir()
        raise


def private_folder(path: Path) -> Path:
    """Make a folder that nobody else can look into, or see that one which is there is such; return it.

    Raises
    ------
    BadValueError
        It is a link or no folder, belongs to another user, or one that may be replaced by others.
    OSError
        It cannot be made.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_own(path)
    if sys.platform != "win32":
        path.chmod(0o700)
        _check_above(path)
    return path


def own_home() -> Path:
    """Make HETERO_HOME, or see that only this user may write to it or replace it; return it.

    Raises
    ------
    BadValueError
        It belongs to another user, or others may write to it or to a folder above it, or laid a link on the way.
    OSError
        It cannot be made.
    """
    home = settings.home()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_own(home.resolve())
    if sys.platform != "win32":
        _check_above(home)
    return home


def check_own(path: Path) -> None:
    """Refuse a file or folder that another user owns or may write to, and a link.

    Raises
    ------
    BadValueError
        It is such.
    OSError
        It cannot be looked at.
    """
    if sys.platform == "win32":
        return
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise BadValueError(f"{path} is a link, which others may have laid", remedy="remove it")
    if status.st_uid != user_id():
        raise BadValueError(
            f"{path} belongs to {user_name(status.st_uid)}, and not to {user_name(user_id())}",
            remedy="set HETERO_HOME or TMPDIR to a folder of your own",
        )
    if status.st_mode & 0o022 and not stat.S_ISSOCK(status.st_mode) and not _is_own_group(path, status):
        raise BadValueError(f"others may write to {path}", remedy=f"chmod go-w {path}")


def _is_own_group(path: Path, status: os.stat_result) -> bool:
    """Return whether a group that may write is this user's own group, of which nobody else is a member."""
    if sys.platform == "win32":
        return True
    import grp
    import pwd

    if status.st_mode & 0o002 or status.st_gid != os.getgid():
        return False
    with suppress(KeyError):
        return grp.getgrgid(status.st_gid).gr_name == pwd.getpwuid(status.st_uid).pw_name
    return False


def _check_above(path: Path) -> None:
    """Refuse a path of which others may replace a part: as root, who owns it, decides anyway."""
    for folder in _on_the_way(path):
        status = folder.lstat()
        if status.st_uid not in (0, user_id(), _OVERFLOW):
            raise BadValueError(
                f"{folder} belongs to {user_name(status.st_uid)}, who may replace {path}",
                remedy="set HETERO_HOME or TMPDIR to a folder of your own",
            )
        if stat.S_ISLNK(status.st_mode):
            continue
        open_to_others = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if open_to_others and not _is_own_group(folder, status):
            raise BadValueError(
                f"others may write to {folder}, and replace {path}", remedy=f"chmod go-w {folder}, or chmod +t {folder}"
            )


def _on_the_way(path: Path) -> tuple[Path, ...]:
    """Return a path, the folders above it and the links on the way to it, with all that the links mean."""
    way: dict[Path, None] = {}
    left = [path.absolute()]
    while left:
        last = left.pop()
        new = [part for part in (last, *last.parents) if part not in way]
        way |= dict.fromkeys(new)
        left += [part.parent / part.readlink() for part in new if part.is_symlink()]
    return tuple(way)


def check_secret(path: Path) -> None:
    """Refuse a secret that everybody may read, or others than its owner may write.

    Raises
    ------
    BadValueError
        It is such.
    OSError
        It cannot be looked at.
    """
    if sys.platform != "win32" and path.stat().st_mode & 0o026:
        raise BadValueError(f"{path} is a secret, and others may read or write it", remedy=f"chmod 600 {path}")


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user reads; at no time is it there in part or for others.

    Raises
    ------
    OSError
        It cannot be written.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
