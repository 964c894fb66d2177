"""Memory cgroups for tests: a group that the system kills from when it takes more than a limit.

In: a limit. Out: a group that processes are put into, removed at the end. It needs root, and version 1 or 2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hetero.floor import own_memory

__all__ = ["MemoryGroup", "memory_group", "trouble"]


class MemoryGroup:
    """One group, below that of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int) -> None:
        """Put a process into it; what it had before does not count."""
        (self.folder / "cgroup.procs").write_text(str(pid))


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Make a group with a limit, and remove it."""
    folder = Path(own_memory.memory_kills_file()).parent / f"hetero-test-{os.getpid()}"
    folder.mkdir()
    try:
        old = folder / "memory.limit_in_bytes"
        (old if old.exists() else folder / "memory.max").write_text(str(limit_bytes))
        yield MemoryGroup(folder)
    finally:
        folder.rmdir()


def trouble() -> str:
    """Return why there can be no such groups here, '' where there can."""
    try:
        with memory_group(1 << 30):
            return ""
    except OSError as error:
        return str(error)
