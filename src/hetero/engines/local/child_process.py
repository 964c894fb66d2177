"""The operating system's process of a worker: starting it, signs of life, and what is left of it when it ends.

In: a device and two sockets, or a process's state. Out: a running child, or a verdict. It does not read the sockets.
"""

from __future__ import annotations

import errno
import multiprocessing.process
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import hetero
from hetero.engines.local.context import LocalContext
from hetero.engines.shared.messages import Hello
from hetero.floor import platform
from hetero.model.device import Device

__all__ = [
    "LOOKS",
    "LOOK_S",
    "SILENCE_S",
    "Child",
    "Pulse",
]

STOP_S = 1.0

KILLED_S = 5.0
"""How long the end of a killed worker is waited for: one in an uninterruptible wait of the system outlasts it."""

_STDERR_TAIL = 2000
_LAUNCHER = (
    "import sys, importlib.util as u; "
    "s = u.spec_from_file_location('hetero', sys.argv[1] + '/__init__.py', submodule_search_locations=[sys.argv[1]]); "
    "m = u.module_from_spec(s); sys.modules['hetero'] = m; s.loader.exec_module(m); "
    "import runpy; sys.argv[0:2] = ['hetero']; runpy.run_module({module!r}, run_name='__main__')"
)


class Child:
    """One started worker process.

    What it writes to its standard error before it is ready goes to a file, for the message when it never is.
    """

    def __init__(self, context: LocalContext, device: Device, data_fd: int, control_fd: int) -> None:
        root, pool = Path(hetero.__file__).parent, context.pool.main.memory
        module = context.entry.module
        launch = [*platform.interpreter_options(), "-P", "-m", module]
        if device.python:
            launch = ["-c", _LAUNCHER.format(module=module), str(root)]
        threads = str(device.cores) if device.cpus or device.is_host else "0"
        cpus = ",".join(map(str, device.cpus))
        setup = context.entry.setup
        if setup.folder and not os.path.isdir(setup.folder):
            raise OSError(errno.ENOENT, f"the working folder {setup.folder!r} is gone")
        environment = (
            setup.environment if device.python else platform.child_environment(str(root.parent), setup.environment)
        )
        environment = {**environment, "PYTHONHASHSEED": setup.hash_seed}
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  read when the start fails
        stderr_fd = _copy_of_standard_error()
        try:
            self._process = subprocess.Popen(
                [device.python or sys.executable, *launch, str(data_fd), str(control_fd), threads, cpus],
                stdin=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[fd for fd in (data_fd, control_fd, pool.fd, stderr_fd) if fd >= 0],
                env=environment,
                cwd=setup.folder or None,
            )
        except OSError:
            self._stderr.close()
            raise
        finally:
            if stderr_fd >= 0:
                os.close(stderr_fd)
        self.pidfd = platform.open_process(self._process.pid)
        path = _own_path(setup.path) if device.python else list(setup.path)
        self.running_slot = context.pool.running_slot(device.id)
        context.pool.clear_running(self.running_slot)
        self.hello = Hello(
            device, os.getpid(), context.origin_s, pool.fd, pool.nbytes, self.running_slot, stderr_fd,
            asdict(platform.FEATURES), path, not device.python, context.transport, setup,
            bytes(multiprocessing.process.current_process().authkey), context.fleet,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def kill(self) -> None:
        """End it at once."""
        if self._process.returncode is None:
            platform.hard_kill(self._process.pid)

    def wait(self) -> int:
        """Wait for its end, and bring it about after `STOP_S`; return its exit code."""
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            platform.hard_kill(self._process.pid)
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(KILLED_S)
        return -9  # killed, and not seen to end

    def last_words(self) -> str:
        """Return the last line of what it wrote before it was ready, in brackets, or ''."""
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _STDERR_TAIL))
        lines = [line for line in self._stderr.read().decode(errors="replace").splitlines() if line.strip()]
        return f" ({lines[-1].strip()})" if lines else ""

    def close(self) -> None:
        """Close what this process still has open for it."""
        self._stderr.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def _copy_of_standard_error() -> int:
    try:
        return os.dup(2)
    except OSError:
        return -1


def _own_path(path: Sequence[str]) -> list[str]:
    """Return the folders of the user's own modules, for another Python: not this one's library."""
    library = (sys.prefix, sys.base_prefix, str(Path(hetero.__file__).parent.parent))
    return [entry for entry in path if not entry.startswith(library)]


LOOK_S = 1.25
"""How often a process is looked at."""

LOOKS = 8
"""So many looks in a row without a sign of life make a process frozen."""

SILENCE_S = LOOKS * LOOK_S

_STOPPED = ("T", "t")
_AT_WORK = ("R", "D")


@dataclass(slots=True)
class Pulse:
    """The signs of life of one process.

    Attributes
    ----------
    quiet
        Looks in a row without a sign of life.
    cpu_s
        Processor time at the last look.

    Notes
    -----
    A sign of life is any of: a message since the last look (a thread beside the task answers when it is asked),
    processor time taken since then, or a state of running or of waiting for a disk. The last two need no
    interpreter, so a task that computes in C code and holds Python's lock all the while is alive. So is one that
    waits there with the lock held: the thread that would answer asks for the lock two hundred times a second, and
    each time takes a little processor time.

    Looks are counted, not seconds: a program that was itself stopped, with its workers or alone, finds one look
    without a sign when it goes on, and not a worker that was silent for an hour.
    """

    quiet: int = 0
    cpu_s: float = 0.0

    def frozen(self, state: str, cpu_s: float, *, received: bool, answers: bool) -> bool:
        """Take in the signs since the last look; True once there were none for `LOOKS` looks.

        Parameters
        ----------
        state
            Letter of the process's state, '' where it is unknown.
        cpu_s
            Processor time that the process has taken so far.
        received
            Whether a message came since the last look.
        answers
            Whether it would answer now: it has started, and the thread that does is not busy with a copy, which may
            wait for the device without taking processor time. Where it would not, only one that is stopped is frozen.
        """
        took_s, self.cpu_s = cpu_s - self.cpu_s, cpu_s
        if received or took_s > 0.0 or state in _AT_WORK:
            self.quiet = 0
        else:
            self.quiet += 1
        return self.quiet >= LOOKS and (answers or state in _STOPPED)
