"""What differs between operating systems: shared memory, mappings, signals, CPU binding, open files that travel.

In: sizes, file descriptors, paths, process ids. Out: the same behaviour everywhere, faster where the system helps.
It must not know tasks or devices. Linux is where this ran; the other branches are the fall-backs that the tests
reach by switching off a flag of `FEATURES`.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hetero.floor.errors import EngineError
from hetero.floor.units import format_bytes

__all__ = [
    "CANCEL_SIGNAL",
    "C_LIBRARY",
    "FEATURES",
    "FORKS",
    "PAGE_BYTES",
    "Features",
    "Forks",
    "SharedMemory",
    "bind_to_cpus",
    "child_environment",
    "describe_exit",
    "die_with_parent",
    "environment",
    "fork",
    "free_bytes",
    "hard_kill",
    "hold_interrupt",
    "interrupt_main_thread",
    "leave_fork",
    "make_private",
    "make_private_at",
    "open_process",
    "open_shared",
    "private_view",
    "process_state",
    "receive_with_files",
    "same_bytes",
    "send_with_files",
    "set_environment",
    "shared_memory",
    "shared_path",
    "spill_file",
]

PAGE_BYTES = mmap.ALLOCATIONGRANULARITY
"""Blocks of shared memory begin at multiples of this."""

_PR_SET_PDEATHSIG = 1
_PROT_READ_WRITE = 0x03
_MAP_PRIVATE = 0x02
_MAP_FIXED = 0x10


@dataclass(slots=True)
class Features:
    """What this operating system can do; a flag set to False leads to the fall-back.

    Attributes
    ----------
    memfd
        Anonymous files in memory that need no room in `shm_dir`.
    parent_death_signal
        A child can ask to be killed when its parent dies.
    affinity
        A process can be bound to CPUs.
    private_mapping
        A part of a file can be mapped copy-on-write without a descriptor of its own.
    fork
        A process that uses threads of OpenMP can be forked, and go on with one thread.
    dir_fsync
        A folder can be flushed to disk.
    pidfd
        The death of a child can be waited for like input.
    fd_passing
        Sockets and open files can be handed to a child process.
    data_limit
        The memory of a process can be limited, shared memory left out.
    shm_dir
        Folder that lives in memory, '' where there is none.
    """

    memfd: bool = sys.platform == "linux"
    parent_death_signal: bool = sys.platform == "linux"
    affinity: bool = sys.platform == "linux"
    private_mapping: bool = sys.platform == "linux"
    fork: bool = sys.platform == "linux"
    dir_fsync: bool = sys.platform != "win32"
    pidfd: bool = sys.platform == "linux"
    fd_passing: bool = sys.platform != "win32"
    data_limit: bool = sys.platform == "linux"
    shm_dir: str = "/dev/shm" if sys.platform == "linux" else ""

    def adopt(self, flags: Mapping[str, object]) -> None:
        """Take over another process's flags."""
        for name, value in flags.items():
            setattr(self, name, value)


FEATURES = Features()
"""The flags of this process."""


@dataclass(slots=True)
class SharedMemory:
    """An open file without a name that several processes map.

    Attributes
    ----------
    fd
        File descriptor.
    nbytes
        Bytes.
    note
        '' for memory proper, else one line that says what it is instead, for the user.
    """

    fd: int
    nbytes: int
    note: str = ""

    def map(self) -> mmap.mmap:
        """Map all of it, shared: what one process writes, the others see."""
        try:
            return mmap.mmap(self.fd, self.nbytes)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            problem = f"{format_bytes(self.nbytes)} of shared memory cannot be had: {error}"
            remedy = "give a smaller memory_pool_size, or a higher limit (ulimit -v)"
            raise EngineError(problem, remedy=remedy) from error

    def close(self) -> None:
        """Close the file; mappings stay until they are closed themselves."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def free_bytes(folder: str | Path) -> int:
    """Return the bytes that a folder's file system has room for."""
    return shutil.disk_usage(folder).free


def _memfd(nbytes: int) -> SharedMemory | None:
    if sys.platform != "linux" or not FEATURES.memfd:
        return None
    try:
        fd = os.memfd_create("hetero", os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
    except OSError:
        return None
    return SharedMemory(fd, nbytes)


def _unlinked(folder: str, nbytes: int, note: str) -> SharedMemory:
    fd, path = tempfile.mkstemp(prefix="hetero-", dir=folder)
    os.unlink(path) if sys.platform != "win32" else None
    os.ftruncate(fd, nbytes)
    return SharedMemory(fd, nbytes, note)


def shared_memory(nbytes: int) -> SharedMemory:
    """Make memory that child processes can share; nothing is left of it when the last of them ends.

    Parameters
    ----------
    nbytes
        Bytes, > 0.

    Raises
    ------
    EngineError
        Neither memory nor the temporary folder has room.

    Notes
    -----
    In order: an anonymous memory file; an unlinked file in `FEATURES.shm_dir` where that has room (containers
    often give it 64 MB, and writing past the end kills the process); an unlinked file in the temporary folder.
    """
    memory = _memfd(nbytes)
    if memory is not None:
        return memory
    shm = FEATURES.shm_dir
    if shm and Path(shm).is_dir() and free_bytes(shm) >= nbytes:
        return _unlinked(shm, nbytes, "")
    folder = tempfile.gettempdir()
    there = shm and Path(shm).is_dir()
    room = f"{shm} has room for {free_bytes(shm)} bytes" if there else "there is no folder in memory"
    if free_bytes(folder) < nbytes:
        raise EngineError(
            f"no room for a memory pool of {nbytes} bytes: {room}, {folder} has room for {free_bytes(folder)} bytes",
            remedy="make memory_pool_size smaller",
        )
    return _unlinked(folder, nbytes, f"the memory pool of {nbytes} bytes lies in a file under {folder}, because {room}")


def shared_path(memory: SharedMemory) -> str:
    """Return the path under which another process of this user can open shared memory, '' where there is none."""
    return f"/proc/{os.getpid()}/fd/{memory.fd}" if sys.platform == "linux" and FEATURES.memfd else ""


def open_shared(path: str, nbytes: int) -> SharedMemory | None:
    """Open another process's shared memory; None where it cannot be reached or is of another size."""
    try:
        fd = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
    if os.fstat(fd).st_size == nbytes:
        return SharedMemory(fd, nbytes)
    os.close(fd)
    return None


def spill_file(nbytes: int) -> SharedMemory:
    """Make an unlinked file of this size with its room taken on the disk.

    Raises
    ------
    EngineError
        The disk has no room.
    """
    folder = tempfile.gettempdir()
    if free_bytes(folder) < nbytes:
        raise EngineError(f"no room for {nbytes} bytes under {folder}", remedy="make memory_pool_size larger")
    memory = _unlinked(folder, nbytes, "")
    if sys.platform == "linux":
        try:
            os.posix_fallocate(memory.fd, 0, nbytes)
        except OSError as error:
            memory.close()
            raise EngineError(f"no room for {nbytes} bytes under {folder}: {error.strerror}") from error
    return memory


def _c_library() -> ctypes.CDLL:
    library = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None, use_errno=True)
    library.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    library.memcmp.restype = ctypes.c_int
    if sys.platform != "win32":
        library.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t,
        )  # fmt: skip
        library.mmap.restype = ctypes.c_void_p
        library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        library.munmap.restype = ctypes.c_int
    return library


C_LIBRARY = _c_library()
"""The functions of the C library that Python does not offer."""


def _unmap(address: int, nbytes: int, keep: object) -> None:
    C_LIBRARY.munmap(address, nbytes)


def private_view(memory: SharedMemory, offset: int, nbytes: int, keep: object = None) -> ctypes.Array[ctypes.c_char]:
    """Return a writable buffer with the bytes of a part of shared memory; writing to it changes no other's.

    Parameters
    ----------
    memory
        The shared memory.
    offset
        Bytes, a multiple of `PAGE_BYTES`.
    nbytes
        Bytes, > 0.
    keep
        Kept alive as long as the buffer.

    Notes
    -----
    Where the system can, this is a copy-on-write mapping: nothing is copied until it is written to. Until then
    it shows what is in the shared memory, so `keep` must hold the part back from its next user, or
    `make_private` be called. Elsewhere it is a copy.
    """
    if FEATURES.private_mapping:
        address = C_LIBRARY.mmap(None, nbytes, _PROT_READ_WRITE, _MAP_PRIVATE, memory.fd, offset)
        if address not in (None, ctypes.c_void_p(-1).value):
            view = (ctypes.c_char * nbytes).from_address(address)
            weakref.finalize(view, _unmap, address, nbytes, keep).atexit = False
            return view
    with mmap.mmap(memory.fd, nbytes, access=mmap.ACCESS_READ, offset=offset) as source:
        return (ctypes.c_char * nbytes).from_buffer_copy(source)


def make_private(view: ctypes.Array[ctypes.c_char]) -> None:
    """Copy what a buffer of `private_view` still shares, so that it outlives its part of the shared memory."""
    pages = memoryview(view).cast("B")[:: mmap.PAGESIZE]
    pages[:] = bytes(pages)


def make_private_at(memory: SharedMemory, offset: int, view: ctypes.Array[ctypes.c_char]) -> None:
    """Turn a part of a shared mapping into a private copy of what it shows, for those who look at it.

    Parameters
    ----------
    memory
        What is mapped.
    offset
        Bytes, a multiple of `PAGE_BYTES`; where the part begins in it.
    view
        The part.
    """
    address, nbytes = ctypes.addressof(view), ctypes.sizeof(view)
    flags = _MAP_PRIVATE | _MAP_FIXED
    if C_LIBRARY.mmap(address, nbytes, _PROT_READ_WRITE, flags, memory.fd, offset) != address:
        raise EngineError(f"{format_bytes(nbytes)} cannot be mapped", remedy="give a higher limit (ulimit -v)")
    make_private(view)


def same_bytes(address: int, other: int, nbytes: int) -> bool:
    """Compare two parts of this process's memory."""
    return bool(C_LIBRARY.memcmp(address, other, nbytes) == 0)


def die_with_parent(parent: int) -> bool:
    """Ask to be killed when the parent dies; False when the parent is gone already.

    Notes
    -----
    Linux sends the signal when the thread ends that started this process, so that thread must live as long
    as the program. Elsewhere the end of the socket to the parent is the only sign.
    """
    if sys.platform == "linux" and FEATURES.parent_death_signal:
        C_LIBRARY.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    return os.getppid() == parent


def bind_to_cpus(cpus: Iterable[int]) -> bool:
    """Bind the calling thread, and what it starts later, to these CPUs; False where that is not possible."""
    if sys.platform == "linux" and FEATURES.affinity:
        with suppress(OSError):
            os.sched_setaffinity(0, set(cpus))
            return True
    return False


class Forks:
    """How many forks lie between this process and the one that loaded this module."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def forked(self) -> None:
        """Count a fork, in the process that came of it."""
        self.count += 1


FORKS = Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=FORKS.forked)


def fork() -> int:
    """Fork this process, whose threads, as those of OpenMP, are not in the new one; returns 0 in that."""
    if sys.platform == "win32":
        raise EngineError("Windows cannot fork a process")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def leave_fork(error: BaseException | None) -> NoReturn:
    """End a process that was forked while a function ran which has now returned, or raised `error`, in it.

    Whatever called the function belongs to the other process: nothing of it may go on in this one, exit handlers
    neither.
    """
    code: object = 0
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
    elif error is not None:
        with suppress(BaseException):
            traceback.print_exception(error)
        code = 1
    if not isinstance(code, int):
        with suppress(BaseException):
            sys.stderr.write(f"{code}\n")
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)


def set_environment(values: Mapping[str, str]) -> None:
    """Set environment variables of this process that are not set yet."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


if sys.platform == "win32":
    CANCEL_SIGNAL = signal.SIGBREAK
else:
    CANCEL_SIGNAL = signal.SIGUSR2


def interrupt_main_thread() -> None:
    """Make the main thread run its handler of `CANCEL_SIGNAL`, also out of a system call that waits."""
    if sys.platform == "win32":
        signal.raise_signal(CANCEL_SIGNAL)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, CANCEL_SIGNAL)


def hold_interrupt(hold: bool) -> None:
    """Hold Ctrl-C back from the calling thread and the processes that it starts, or let it through again."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK if hold else signal.SIG_UNBLOCK, {signal.SIGINT})


def environment() -> dict[str, str]:
    """Return this process's environment variables, as they are now."""
    return dict(os.environ)


def child_environment(folder: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a child, with a folder in front of where Python looks for modules."""
    path = variables.get("PYTHONPATH", "")
    return {**variables, "PYTHONPATH": f"{folder}{os.pathsep}{path}" if path else folder}


def interpreter_options() -> list[str]:
    """Return the options of this interpreter for a child, without those that hide modules or variables from it."""
    hiding = ("-E", "-I", "-s", "-S", "-P")
    return [option for option in subprocess._args_from_interpreter_flags() if option not in hiding]  # type: ignore[attr-defined]


@functools.cache
def hash_seed() -> str:
    """Return the seed by which the children of this process hash strings: its own where that is known, else any."""
    own = os.environ.get("PYTHONHASHSEED", "")
    return own if own.isdecimal() else str(random.SystemRandom().randrange(1, 1 << 32))


def restore_hash_seed(variables: Mapping[str, str]) -> None:
    """Set the variable of the seed, which this process was started with, to what these variables say."""
    os.environ.pop("PYTHONHASHSEED", None)
    if "PYTHONHASHSEED" in variables:
        os.environ["PYTHONHASHSEED"] = variables["PYTHONHASHSEED"]


def send_with_files(end: socket.socket, data: memoryview, fds: list[int]) -> int:
    """Send bytes with open files; return how many bytes went."""
    if sys.platform == "win32":
        raise EngineError("this system hands no open files to other processes", remedy="use isolation: thread")
    return socket.send_fds(end, [data], fds)


def receive_with_files(end: socket.socket, nbytes: int) -> tuple[bytes, list[int]]:
    """Wait for bytes, and the open files that came with them."""
    if sys.platform == "win32":
        return end.recv(nbytes), []
    data, fds, _, _ = socket.recv_fds(end, nbytes, 16)
    return data, fds


def open_process(pid: int) -> int:
    """Return a descriptor that becomes readable when the child ends, or -1 where there is none."""
    if sys.platform == "linux" and FEATURES.pidfd:
        try:
            return os.pidfd_open(pid)
        except OSError:
            return -1
    return -1


def process_state(pid: int) -> str:
    """Return the letter by which Linux names the state of a process ('R', 'S', 'D', 'T', ...), '' where unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return chr(file.read().rpartition(b")")[2].split(None, 1)[0][0])
    except (OSError, IndexError):
        return ""


def hard_kill(pid: int) -> None:
    """End a child at once; one that has ended is fine."""
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            os.kill(pid, signal.SIGTERM)
        else:
            os.kill(pid, signal.SIGKILL)


def describe_exit(code: int | None) -> str:
    """Return how a process ended.

    Examples
    --------
    >>> describe_exit(-9), describe_exit(3), describe_exit(0), describe_exit(None)
    ('was killed by SIGKILL', 'ended with exit code 3', 'ended by itself', 'closed its connection')
    """
    if code is None or code == 0:
        return "ended by itself" if code == 0 else "closed its connection"
    if code > 0:
        return f"ended with exit code {code}"
    known = {int(one): one.name for one in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"
