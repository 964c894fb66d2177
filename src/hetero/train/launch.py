"""One process a device runs the user's own training script: starting them, introducing them to each other, ending them.

In: a script, devices. Out: an exit code. The processes find each other here, and here their ends are noticed.
It must not import torch, nor know what a script computes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TextIO

from hetero.backends.registry import kinds
from hetero.comm.lines import Address, Line, LineServer, Message
from hetero.floor import clock, platform, settings
from hetero.floor.errors import BadValueError, ExitCode, NothingFitsError
from hetero.floor.text import single_line
from hetero.model.device import Device
from hetero.plan.training.shares import given_shares

__all__ = ["LAUNCHED", "LaunchOptions", "LaunchedProcess", "launch"]

LAUNCHED = "HETERO_LAUNCHED"
"""Environment variable that tells a process of `hetero launch` who it is."""

PRINTS = ("main", "all")
_POLL_S = 0.2
_TERM_S = 5.0
_KILL_S = 5.0
_FROZEN_S = 30.0
_LEAVE_S = 15.0
_SILENT_S = 2.0
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
    """

    strict: bool = True
    check_steps: int = 2
    check_only: bool = False
    shares: str | Mapping[str, int] = "auto"
    timeout_s: float = 1800.0
    prints: str = "main"
    seed: int = 0


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

    @property
    def checks(self) -> bool:
        """Return whether this process computes whole batches, for comparison."""
        return self.rank == len(self.devices)

    @property
    def has_check(self) -> bool:
        """Return whether one of the processes does."""
        return self.options.check_steps > 0 and len(self.devices) > 1

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
        return cls(**given)


def launch(script: str, args: Sequence[str], devices: Sequence[Device], options: LaunchOptions) -> int:
    """Run a script in one process for each device, and wait until all have ended.

    Returns
    -------
    int
        The exit code: that of the first process that failed, 0 where none did.

    Raises
    ------
    BadValueError
        The script is no file, or a device is not one that a script can use.
    NothingFitsError
        There is no device.
    """
    if not os.path.isfile(script):
        raise BadValueError(f"{single_line(script)}: there is no such file", remedy="give a Python script")
    if not devices:
        raise NothingFitsError("no device is left to train on", remedy="`hetero devices` says why")
    for device in devices:
        if device.simulated or not kinds()[device.kind].torch_place(device.index):
            raise BadValueError(f"{device.short}: torch cannot use this device", remedy="choose others with --devices")
    if not isinstance(options.shares, str):
        shares = given_shares(options.shares, [device.short for device in devices], sum(options.shares.values()))
        if 0 in shares:
            raise BadValueError("--shares has a device without samples", remedy="leave it out with --devices")
    with LineServer() as server:
        return _Launcher(script, args, sorted(devices, key=_speed, reverse=True), options, server).run()


def _speed(device: Device) -> tuple[bool, float, float]:
    """Return what sorts devices by speed, as far as it is known: the main process is to have the fastest."""
    return not kinds()[device.kind].is_host, device.throttle_frac * (device.flop_per_s or 1.0), device.cores or 1


class _Started:
    """One process.

    Attributes
    ----------
    line
        To it, None before it has called `hetero.train.init`.
    dismissed
        Whether it said that its work is done before the script's end.
    leaves
        Whether it has closed the line, and is about to end.
    last_line
        What it has written last, where that is read.
    """

    def __init__(self, rank: int, name: str, process: subprocess.Popen[str]) -> None:
        self.rank = rank
        self.name = name
        self.process = process
        self.line: Line | None = None
        self.dismissed = False
        self.leaves = False
        self.last_line = ""
        self.moved_s = clock.monotonic_s()


class _Launcher:
    def __init__(
        self, script: str, args: Sequence[str], devices: Sequence[Device], options: LaunchOptions, server: LineServer
    ) -> None:
        self._command = [sys.executable, script, *args]
        self._script = script
        self._devices = devices
        self._options = options
        self._server = server
        self._started: list[_Started] = []
        self._said: dict[str, dict[int, tuple[Line, bytes]]] = {}
        self._failed = 0
        self._broken = ("", 0.0)
        self._relays: list[threading.Thread] = []

    def run(self) -> int:
        """Start, serve and wait."""
        before = {each: signal.signal(each, self._on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._start()
            while any(each.process.poll() is None for each in self._started):
                self._serve()
            self._serve()
            self._find_failed()
            return self._verdict()
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: object) -> None:
        self._failed = self._failed or 128 + number

    # --- starting ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        names = tuple(device.short for device in self._devices)
        told = [self._told(rank, device, names) for rank, device in enumerate(self._devices)]
        devices = list(self._devices)
        if told[0].has_check:
            fastest = max(devices, key=lambda device: (not kinds()[device.kind].is_host, device.throttle_frac))
            told.append(self._told(len(names), fastest, names))
            devices.append(fastest)
        for process, device in zip(told, devices, strict=True):
            self._start_one(process, device)

    def _told(self, rank: int, device: Device, names: tuple[str, ...]) -> LaunchedProcess:
        index = 0 if kinds()[device.kind].visible else device.index
        throttle = 1.0 if rank == len(names) else device.throttle_frac
        return LaunchedProcess(
            rank, names, device.kind, index, device.cores or 1, throttle, self._server.address, self._options,
            _visible(device),
        )  # fmt: skip

    def _start_one(self, told: LaunchedProcess, device: Device) -> None:
        shown = told.rank == 0
        every = self._options.prints == "all" and not told.checks
        with settings.replaced(_variables(told, device)):
            process = subprocess.Popen(
                self._command,
                stdin=None if shown else subprocess.DEVNULL,
                stdout=None if shown and not every else subprocess.PIPE if every else subprocess.DEVNULL,
                stderr=None if shown and not every else subprocess.PIPE,
                text=True,
                errors="replace",
                preexec_fn=None if sys.platform == "win32" else partial(_in_child, os.getpid(), device.cpus),
            )
        one = _Started(told.rank, "the check" if told.checks else device.short, process)
        self._started.append(one)
        for source, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if source is not None:
                relay = threading.Thread(target=_relay, args=(source, None if told.checks else sink, one), daemon=True)
                relay.start()
                self._relays.append(relay)

    # --- serving -------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Answer what the processes say, and look whether one has failed."""
        for line, message in self._server.poll(_POLL_S):
            if message is not None:
                self._answer(line, message)
            for each in self._started:
                each.leaves |= message is None and each.line is line
        self._find_failed()
        if self._broken[0] and not self._failed:
            self._find_who_left()
        if self._failed:
            self._end_all()

    def _answer(self, line: Line, message: Message) -> None:
        word, *rest = message
        if word == "arrived" and self._started[rest[0]].line is not None:
            self._fail(
                ExitCode.USAGE,
                f"{self._started[rest[0]].name}: the script starts several processes that call hetero.train.init()",
                "call it in one: `hetero launch` starts a process for each device",
            )
        elif word == "arrived":
            self._started[rest[0]].line = line
        elif word == "exchange":
            self._exchange(line, *rest)
        elif word == "done":
            self._started[rest[0]].dismissed = True
        elif word == "note":
            _tell(f"hetero: {single_line(rest[0])}")
        elif word == "report":
            sys.stdout.write(f"{rest[0]}\n")
            sys.stdout.flush()
        elif word == "refused":
            self._fail(ExitCode.USAGE, rest[1], "")
        elif word == "broken":
            self._broken = (
                self._broken if self._broken[0] else (f"{self._started[rest[0]].name}: {rest[1]}", clock.monotonic_s())
            )

    def _exchange(self, line: Line, word: str, rank: int, world: int, value: bytes) -> None:
        """Keep what a member says under a word; all are answered when all have said theirs."""
        said = self._said.setdefault(word, {})
        said[rank] = line, value
        if len(said) < world:
            return
        del self._said[word]
        for each, _ in said.values():
            with suppress(Exception):
                each.send("exchanged", word, [said[one][1] for one in range(world)])

    def _find_who_left(self) -> None:
        """Find the process for which another one waits in vain; to end may take that one a while."""
        words, since_s = self._broken
        members = [each for each in self._started if each.rank < len(self._devices) and not each.dismissed]
        ended = next((each for each in members if each.process.poll() == 0), None)
        if ended is not None:
            self._fail(ExitCode.FAILED, f"{ended.name} reached the end of the script, and others have steps left", "")
        elif clock.monotonic_s() - since_s > (_LEAVE_S if any(each.leaves for each in members) else _SILENT_S):
            self._fail(ExitCode.FAILED, words, "")

    def _find_failed(self) -> None:
        for each in self._started:
            code = each.process.poll()
            if not self._failed and code is not None and code and not each.dismissed:
                if each.rank == len(self._devices):
                    if self._may_say_it_themselves(each):
                        continue
                    words = f"the process that checks the first steps {_ended(code)}: {each.last_line}"
                    self._fail(
                        ExitCode.FAILED, words, "leave the check out with --check-steps 0, or run the script alone"
                    )
                else:
                    self._fail(code if code > 0 else 128 - code, f"{each.name} {_ended(code)}", "")
            elif code is None and not each.dismissed and self._is_frozen(each) and not self._failed:
                self._fail(ExitCode.FAILED, f"{each.name} is stopped, and was ended with the others", "")

    def _may_say_it_themselves(self, check: _Started) -> bool:
        """Return whether the others may meet the error that has just ended the process that checks."""
        runs = any(each.process.poll() is None for each in self._started)
        return runs and clock.monotonic_s() - check.moved_s < _SILENT_S

    def _is_frozen(self, each: _Started) -> bool:
        """Return whether a process is stopped, and for long."""
        now_s = clock.monotonic_s()
        if platform.process_state(each.process.pid) not in ("T", "t"):
            each.moved_s = now_s
        return now_s - each.moved_s > _FROZEN_S

    def _fail(self, code: int, words: str, remedy: str) -> None:
        if not self._failed:
            self._failed = code
            _tell(f"hetero: {single_line(words)}" + (f"; {remedy}" if remedy else ""))

    # --- ending --------------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """End what still runs, at first by asking."""
        running = [each for each in self._started if each.process.poll() is None]
        for end, wait_s in ((subprocess.Popen.terminate, _TERM_S), (subprocess.Popen.kill, _KILL_S)):
            for each in running:
                with suppress(ProcessLookupError):
                    if sys.platform != "win32":
                        each.process.send_signal(signal.SIGCONT)
                    end(each.process)
            until_s = clock.monotonic_s() + wait_s
            while running and clock.monotonic_s() < until_s:
                running = [each for each in running if each.process.poll() is None]
                clock.sleep(0.02)
        for relay in self._relays:
            relay.join(1.0)

    def _verdict(self) -> int:
        silent = [each for each in self._started if each.line is None]
        if not self._failed and len(silent) == len(self._started) and len(self._started) > 1:
            self._fail(
                ExitCode.USAGE,
                f"{self._script} did not call hetero.train.init(), so each of {len(self._devices)} processes "
                "did the whole of it",
                "call it at the beginning, and prepare model, optimizer and loader with what it returns",
            )
        return self._failed


def _variables(told: LaunchedProcess, device: Device) -> dict[str, str | None]:
    """Return what the environment of a process has that this one's has not: it sees no other device than its own."""
    variables: dict[str, str | None] = {LAUNCHED: told.to_text()}
    variables |= told.sees
    if kinds()[device.kind].is_host:
        variables |= dict.fromkeys(_THREADS, str(device.cores or 1))
    return variables


def _visible(device: Device) -> dict[str, str | None]:
    """Return the variables that hide all devices but one."""
    variables: dict[str, str | None] = {kind.visible: "" for kind in kinds().values() if kind.visible}
    own = kinds()[device.kind].visible
    if own:
        before = settings.present([own])[own]
        variables[own] = before.split(",")[device.index].strip() if before else str(device.index)
    return variables


def _in_child(parent: int, cpus: Sequence[int]) -> None:
    platform.die_with_parent(parent)
    if cpus:
        platform.bind_to_cpus(cpus)


def _relay(source: TextIO, sink: TextIO | None, one: _Started) -> None:
    """Show what a process writes, with its name; of the one that checks the last line is kept."""
    for line in source:
        one.last_line = line.strip() or one.last_line
        with suppress(OSError, ValueError):
            if sink is not None:
                sink.write(f"[{one.name}] {line}" if line.endswith("\n") else f"[{one.name}] {line}\n")
                sink.flush()


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
