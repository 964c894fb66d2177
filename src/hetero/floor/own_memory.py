"""The memory of this process: what it has, what it may have, what it keeps, and whom the system killed for it.

In: bytes. Out: limits that hold, counts. It must not know tasks or devices, nor fail where a system has no such thing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

from hetero.floor.contexts import transparent
from hetero.floor.platform import C_LIBRARY, FEATURES

__all__ = [
    "MemoryKills",
    "data_bytes",
    "data_room_bytes",
    "freed_memory_kept",
    "keep_freed_memory",
    "limit_data",
    "memory_kills",
    "memory_kills_file",
    "memory_limit_bytes",
]

_M_MMAP_THRESHOLD = -3
_MAPPED_BYTES = 1 << 20
_M_TRIM_THRESHOLD = -1
_M_ARENA_MAX = -8
_LARGEST_MAPPED_BYTES = 32 << 20
_KEPT_BYTES = 1 << 30
_USUALLY_KEPT_BYTES = 64 << 20
_USUAL_ARENAS = 8 * (os.cpu_count() or 1)


def data_bytes() -> int:
    """Return the bytes that `limit_data` would count for this process now, 0 where that is not known."""
    if sys.platform == "linux" and FEATURES.data_limit:
        with suppress(OSError), open("/proc/self/status", encoding="ascii") as lines:
            return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:")), 0)
    return 0


def limit_data(nbytes: int) -> bool:
    """Limit the private memory of this process to so many bytes; return False where that is not possible.

    Notes
    -----
    RLIMIT_DATA counts every private writable mapping: the heap, large arrays, stacks of threads, and copy-on-write
    mappings of files, but no shared ones. What goes beyond fails, and Python raises MemoryError. From then on glibc
    gives arrays of 1 MiB and more mappings of their own, so that what is freed does not count any more.
    """
    if sys.platform == "linux" and FEATURES.data_limit:
        import resource

        if hasattr(C_LIBRARY, "mallopt"):
            C_LIBRARY.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (nbytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
            return True
    return False


def data_room_bytes() -> float:
    """Return the bytes that this process may still take before `limit_data` stops it; inf where nothing does."""
    if sys.platform == "linux" and FEATURES.data_limit:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        return float("inf") if limit == resource.RLIM_INFINITY else max(0.0, float(limit - data_bytes()))
    return float("inf")


def keep_freed_memory() -> bool:
    """Keep up to 1 GiB of freed memory for reuse by this process; return False where that is not done.

    Notes
    -----
    A training step frees its activations and takes as much again. glibc hands such memory back to the system at the
    end of a heap, and every page of the next step is then a fault: a quarter of a step where it was measured. Threads
    that start from then on share one heap, since those of threads are given back whole. Where `limit_data` counts what
    is kept, nothing is.
    """
    keeps = sys.platform == "linux" and hasattr(C_LIBRARY, "mallopt") and data_room_bytes() == float("inf")
    if keeps:
        C_LIBRARY.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MAPPED_BYTES)
        C_LIBRARY.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        C_LIBRARY.mallopt(_M_ARENA_MAX, 1)
    return keeps


@transparent
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory in here, as `keep_freed_memory` does."""
    keeps = keep_freed_memory()
    try:
        yield
    finally:
        if keeps:
            C_LIBRARY.mallopt(_M_TRIM_THRESHOLD, _USUALLY_KEPT_BYTES)
            C_LIBRARY.mallopt(_M_ARENA_MAX, _USUAL_ARENAS)
            C_LIBRARY.malloc_trim(0)


def memory_kills_file() -> str:
    """Return the file in which the system counts the processes of this one's group that it killed for memory.

    Returns
    -------
    str
        '' where there is no such file.
    """
    with suppress(OSError), open("/proc/self/cgroup", encoding="ascii") as lines:
        for line in lines:
            _, kinds, path = line.rstrip("\n").split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            root = "/sys/fs/cgroup/memory" if kinds else "/sys/fs/cgroup"
            for folder in (root + path.rstrip("/"), root):
                file = f"{folder}/{'memory.oom_control' if kinds else 'memory.events'}"
                if os.path.exists(file):
                    return file
    return ""


def memory_kills(file: str) -> int:
    """Read the count of a file that `memory_kills_file` named, 0 where it cannot be read."""
    with suppress(OSError, ValueError), open(file, encoding="ascii") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    return 0


def memory_limit_bytes() -> int | None:
    """Return the address space that this process may have (ulimit -v), None where nothing bounds it."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


class MemoryKills:
    """Tells the processes of this one's group that the system killed for their memory from those that others killed."""

    def __init__(self) -> None:
        self._file = memory_kills_file()
        self._seen = memory_kills(self._file)

    def one_more(self, code: int) -> bool:
        """Return whether a process that ended with this exit code is one of them; each is counted once."""
        if code != -getattr(signal, "SIGKILL", 9) or memory_kills(self._file) <= self._seen:
            return False
        self._seen += 1
        return True
