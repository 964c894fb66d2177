"""The processes of `hetero launch` on one host: what each is told, starting, reading and ending them.

In: a command, who each process is. Out: what they write, and how each of them ends. It must not import torch, nor know
what the processes tell each other.
"""

from __future__ import annotations

import codecs
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import IO, NamedTuple

from hetero.backends.registry import kinds
from hetero.comm.lines import Address
from hetero.floor import clock, platform, settings
from hetero.model.device import Device

__all__ = [
    "CHECK",
    "END_S",
    "FROZEN_S",
    "LAUNCHED",
    "PRINTS",
    "RECORD",
    "HostCommand",
    "HostProcesses",
    "LaunchOptions",
    "LaunchedProcess",
    "ProcessEnded",
    "ProcessStopped",
    "device_environment",
    "in_child",
]

LAUNCHED = "HETERO_LAUNCHED"
"""Environment variable that tells a process of `hetero launch` who it is."""

RECORD = "record "
"""With what that variable begins where a script runs under plain Python and its steps are recorded."""

PRINTS = ("main", "all")
CHECK = "the check"
FROZEN_S = 30.0
"""How long a process may be stopped."""
_TERM_S = 5.0
_KILL_S = 5.0
END_S = _TERM_S + _KILL_S
"""Longest that `HostProcesses.end_all` takes, without the reading of what was written last."""
_LAST_WORDS_S = 1.0
_CHUNK_BYTES = 1 << 16
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How a script is run on several devices.

    Attributes
    ----------
    strict
        Refuse what would not be the result of one device; False: warn once and go on.
    check_steps
        Steps of each optimizer in which a further process computes the whole batch, and all compare; 0 for none.
    check_only
        End after these steps and print where the two ways part.
    shares
        'auto', 'equal', or samples by device.
    timeout_s
        Longest wait for another process between two steps, s.
    prints
        Whose standard output is shown: 'main' or 'all'.
    seed
        Of the random numbers that are keyed by sample.
    record
        How many steps the main process records, and in which folder, before all end: '3 FOLDER'; '' for none.
    trace
        File that the phases of each step of each process are written to; '' for none.
    """

    strict: bool = True
    check_steps: int = 2
    check_only: bool = False
    shares: str | Mapping[str, int] = "auto"
    timeout_s: float = 1800.0
    prints: str = "main"
    seed: int = 0
    record: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """What one process is told.

    Attributes
    ----------
    rank
        From 0; the checking process comes after the others.
    devices
        Short names of the devices of all ranks, without that of the checking process.
    kind, index, cores, throttle_frac
        Of the own device, as it is seen by this process.
    address
        Of the launching program.
    sees
        The variables by which devices are hidden, as they are set for this process.
    hosts
        Address of the host of each process, the checking one's last; empty where all are on one host.
    """

    rank: int
    devices: tuple[str, ...]
    kind: str
    index: int
    cores: int
    throttle_frac: float
    address: Address
    options: LaunchOptions = field(default_factory=LaunchOptions)
    sees: dict[str, str | None] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()

    @property
    def checks(self) -> bool:
        """Return whether this process computes whole batches, for comparison."""
        return self.rank == len(self.devices)

    @property
    def has_check(self) -> bool:
        """Return whether one of the processes does."""
        return self.options.check_steps > 0 and len(self.devices) > 1

    @property
    def name(self) -> str:
        """Return how people know it."""
        return CHECK if self.checks else self.devices[self.rank]

    def to_text(self) -> str:
        """Return it for an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> LaunchedProcess:
        """Return what `to_text` returned as an object again."""
        given = json.loads(text)
        given["devices"] = tuple(given["devices"])
        given["address"] = Address(*given["address"])
        given["options"] = LaunchOptions(**given["options"])
        given["hosts"] = tuple(given["hosts"])
        return cls(**given)


@dataclass(frozen=True, slots=True)
class HostCommand:
    """What every process of a host runs.

    Attributes
    ----------
    words
        Script and arguments.
    environment
        Variables of a process, without those that differ between them.
    folder
        In which it runs, None for that of this program.
    streams
        Whether the main process has the streams of this program for its own.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str | None = None
    streams: bool = True


class ProcessEnded(NamedTuple):
    """A process has ended.

    Attributes
    ----------
    code
        As of `subprocess.Popen`.
    last_line
        What it wrote last, where that is read.
    """

    rank: int
    code: int
    last_line: str


class ProcessStopped(NamedTuple):
    """A process has been stopped for long."""

    rank: int


Write = Callable[[int, int, str], None]
"""Takes the rank of a process, 1 or 2 for its standard output or error, and what it wrote there."""


class _Running:
    """A process that has not ended, as far as is known."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        self.rank = rank
        self.process = process
        self.relays: list[threading.Thread] = []
        self.last_line = ""
        self.moved_s = clock.monotonic_s()
        self.is_told_stopped = False


class HostProcesses:
    """The processes of this host.

    Parameters
    ----------
    command
        What they run.
    write
        Takes what they write where they have not the streams of this program; called from several threads.

    Notes
    -----
    The thread that starts them must outlive them; see `platform.die_with_parent`.
    """

    def __init__(self, command: HostCommand, write: Write) -> None:
        self._command = command
        self._write = write
        self._running: list[_Running] = []
        self._main = 0

    def start(self, told: LaunchedProcess, device: Device) -> None:
        """Start one process, which sees no other device than its own."""
        told = replace(told, sees=_visible(device))
        every = told.options.prints == "all" and not told.checks
        own = self._command.streams and told.rank == 0
        piped = not own and not told.checks  # another one may become the main process
        process = subprocess.Popen(
            [sys.executable, *self._command.words],
            stdin=None if own else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped or every else None if own else subprocess.DEVNULL,
            stderr=None if own and not every else subprocess.PIPE,
            env=_environment(self._command.environment, told, device),
            cwd=self._command.folder,
            preexec_fn=None if sys.platform == "win32" else partial(in_child, os.getpid(), device.cpus),
        )
        one = _Running(told.rank, process)
        self._running.append(one)
        by_line = every or told.rank > 0
        for which, source in ((1, process.stdout), (2, process.stderr)):
            if source is not None:
                shown = every or which == 2
                relay = threading.Thread(target=self._relay, args=(source, which, by_line, shown, one), daemon=True)
                relay.start()
                one.relays.append(relay)

    def _relay(self, source: IO[bytes], which: int, by_line: bool, shown: bool, one: _Running) -> None:
        for text in _lines(source) if by_line else _chunks(source):
            one.last_line = text.strip().rpartition("\n")[2] or one.last_line
            with suppress(OSError, ValueError):
                if shown or one.rank == self._main:
                    self._write(one.rank, which, text)

    def show(self, rank: int) -> None:
        """Show from now on what another process prints: it is the main one."""
        self._main = rank

    def kill(self, rank: int) -> None:
        """End a process at once."""
        for one in self._running:
            if one.rank == rank:
                with suppress(ProcessLookupError):
                    one.process.kill()

    def poll(self) -> list[ProcessEnded | ProcessStopped]:
        """Return what has become of the processes since the last call."""
        found: list[ProcessEnded | ProcessStopped] = []
        for one in list(self._running):
            code = one.process.poll()
            if code is not None:
                self._running.remove(one)
                for relay in one.relays:
                    relay.join(_LAST_WORDS_S)
                found.append(ProcessEnded(one.rank, code, one.last_line))
            elif _is_frozen(one) and not one.is_told_stopped:
                one.is_told_stopped = True
                found.append(ProcessStopped(one.rank))
        return found

    def end_all(self) -> None:
        """End what still runs, at first by asking."""
        running = [one.process for one in self._running if one.process.poll() is None]
        for end, wait_s in ((subprocess.Popen.terminate, _TERM_S), (subprocess.Popen.kill, _KILL_S)):
            for process in running:
                with suppress(ProcessLookupError):
                    if sys.platform != "win32":
                        process.send_signal(signal.SIGCONT)
                    end(process)
            until_s = clock.monotonic_s() + wait_s
            while running and clock.monotonic_s() < until_s:
                running = [process for process in running if process.poll() is None]
                clock.sleep(0.02)


def _environment(given: Mapping[str, str], told: LaunchedProcess, device: Device) -> dict[str, str]:
    """Return the environment of a process."""
    own = {LAUNCHED: told.to_text(), **device_environment(device), **told.sees}
    return {name: text for name, text in {**given, **own}.items() if text is not None}


def device_environment(device: Device) -> dict[str, str | None]:
    """Return the variables of a process that computes on one device, None for what is not set."""
    threads = _THREADS if kinds()[device.kind].is_host else ()
    return {**_visible(device), **dict.fromkeys(threads, str(device.cores or 1))}


def _visible(device: Device) -> dict[str, str | None]:
    """Return the variables that hide all devices but one."""
    variables: dict[str, str | None] = {kind.visible: "" for kind in kinds().values() if kind.visible}
    own = kinds()[device.kind].visible
    if own:
        before = settings.present([own])[own]
        variables[own] = before.split(",")[device.index].strip() if before else str(device.index)
    return variables


def in_child(parent: int, cpus: Sequence[int]) -> None:
    """Bind a process that begins to CPUs, and its life to that of the one that starts it."""
    platform.die_with_parent(parent)
    if cpus:
        platform.bind_to_cpus(cpus)


def _is_frozen(one: _Running) -> bool:
    """Return whether a process is stopped, and for long."""
    now_s = clock.monotonic_s()
    if platform.process_state(one.process.pid) not in ("T", "t"):
        one.moved_s = now_s
    return now_s - one.moved_s > FROZEN_S


def _lines(source: IO[bytes]) -> Iterator[str]:
    for line in source:
        yield line.decode(errors="replace").replace("\r\n", "\n")


def _chunks(source: IO[bytes]) -> Iterator[str]:
    """Yield what is there at once, as a bar of progress needs it."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    while data := os.read(source.fileno(), _CHUNK_BYTES):
        yield decode(data)
