"""One process a device runs the user's own training script: starting them, introducing them to each other, ending them.

In: a script, devices. Out: an exit code. The processes find each other here, and here their ends are noticed.
It must not import torch, nor know what a script computes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hetero.backends.registry import kinds
from hetero.comm.errors import LineClosedError
from hetero.comm.lines import Line, LineServer, Message
from hetero.floor import clock, platform
from hetero.floor.errors import BadValueError, ExitCode, NothingFitsError
from hetero.floor.text import single_line
from hetero.model.device import HOST_NODE, Device
from hetero.plan.training.shares import given_shares
from hetero.train.launch.host_processes import (
    END_S,
    LAUNCHED,
    PRINTS,
    HostCommand,
    HostProcesses,
    LaunchedProcess,
    LaunchOptions,
    ProcessEnded,
    ProcessStopped,
)
from hetero.train.launch.hosts import SILENT_S, OtherHost, ScriptPackage, package_of, started_on
from hetero.train.launch.trace import LaunchTrace

if TYPE_CHECKING:
    from hetero.engines.ray.cluster import Cluster

__all__ = ["LAUNCHED", "PRINTS", "LaunchOptions", "LaunchedProcess", "by_speed", "check_script", "launch"]

_POLL_S = 0.2
_LEAVE_S = 15.0
_SILENT_S = 2.0
_LAST_WORDS_S = 10.0
_OWN_HOST = HOST_NODE.partition("/")[0]
_NOT_THERE = ("FileNotFoundError", "ModuleNotFoundError")


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """What runs on other hosts.

    Attributes
    ----------
    addresses
        Of all hosts by name; empty where there is only this one.
    """

    addresses: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[OtherHost, ...] = ()
    package: ScriptPackage | None = None


def launch(
    script: str,
    args: Sequence[str],
    devices: Sequence[Device],
    options: LaunchOptions,
    cluster: Cluster | None = None,
    working_dir: Path | None = None,
    *,
    is_module: bool = False,
) -> int:
    """Run a script in one process for each device, and wait until all have ended.

    Parameters
    ----------
    cluster
        To which the hosts of the devices belong; None where all are this one's.
    working_dir
        Folder that travels to other hosts, the script in it; None for the script with the modules beside it.
    is_module
        Whether `script` is the name of a module, run as by ``python -m``.

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
    EngineError
        A host does not answer.
    """
    check_script(script, is_module=is_module)
    _check(devices, options)
    found = by_speed(devices)
    names = list(dict.fromkeys(device.host for device in devices if device.host != _OWN_HOST))
    if cluster is None or not names:
        if working_dir is not None:
            raise BadValueError("--working-dir: no device is on another host", remedy="leave it out")
        with LineServer() as server:
            words = ("-m", script, *args) if is_module else (script, *args)
            return _Launcher(script, words, found, options, server, _Elsewhere()).run()
    if is_module:
        raise BadValueError("-m: a module does not travel to other hosts", remedy="give the script's file")
    package, addresses = package_of(script, args, working_dir), cluster.addresses()
    hosts = [host for host in cluster.hosts() if host.name in names]
    with (
        LineServer(addresses[_OWN_HOST], cluster.certificates) as server,
        started_on(cluster, hosts, server.address) as others,
    ):
        elsewhere = _Elsewhere(addresses, others, package)
        return _Launcher(script, (script, *args), found, options, server, elsewhere).run()


def check_script(script: str, *, is_module: bool = False) -> None:
    """Refuse a script, or a module that is to be run as one, that is not there.

    Raises
    ------
    BadValueError
        It is no file, or no module that can be found from the working folder.
    """
    if is_module:
        if not _is_found(script):
            raise BadValueError(
                f"-m: there is no module {single_line(script)}", remedy="give its name, as for `python -m`"
            )
        return
    if not os.path.isfile(script):
        raise BadValueError(f"{single_line(script)}: there is no such file", remedy="give a Python script")


def _is_found(module: str) -> bool:
    """Return whether a module is there; as under `python -m` in the working folder, too."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path[:] = before


def _check(devices: Sequence[Device], options: LaunchOptions) -> None:
    if not devices:
        raise NothingFitsError("no device is left to train on", remedy="`hetero devices` says why")
    for device in devices:
        if device.simulated or not kinds()[device.kind].torch_place(device.index):
            raise BadValueError(f"{device.short}: torch cannot use this device", remedy="choose others with --devices")
    if not isinstance(options.shares, str):
        shares = given_shares(options.shares, [device.short for device in devices], sum(options.shares.values()))
        if 0 in shares:
            raise BadValueError("--shares has a device without samples", remedy="leave it out with --devices")


def by_speed(devices: Sequence[Device]) -> list[Device]:
    """Return devices, the fastest first: the main process is to have it."""
    return sorted(devices, key=_speed, reverse=True)


def _speed(device: Device) -> tuple[bool, float, float]:
    """Return what sorts devices by speed, as far as it is known."""
    return not kinds()[device.kind].is_host, device.throttle_frac * (device.flop_per_s or 1.0), device.cores or 1


_MEMBERS = re.compile(r"members \(([0-9, ]*)\)")
_NUMBER = re.compile("[0-9]+")


class _Missed(NamedTuple):
    """What a process that waits for another one in vain has said, and when, after how many steps."""

    words: str
    since_s: float
    steps: int


class _Started:
    """One process, on whichever host.

    Attributes
    ----------
    host
        None for this one.
    line
        To it, None before it has called `hetero.train.init`.
    code
        As of `subprocess.Popen`, None before its end.
    dismissed
        Whether it said that its work is done before the script's end.
    leaves
        Whether it has closed the line, and is about to end.
    recovers
        Whether it can go on without others, in `fleet.step`.
    is_lost
        Whether it was killed, and the others go on.
    last_line
        What it has written last, where that is read.
    is_cut_off
        Whether its end is not known, as its host does not answer.
    """

    def __init__(self, rank: int, name: str, host: OtherHost | None) -> None:
        self.rank = rank
        self.name = name
        self.host = host
        self.line: Line | None = None
        self.code: int | None = None
        self.dismissed = False
        self.leaves = self.recovers = self.is_lost = self.is_cut_off = False
        self.last_line = ""
        self.ended_s = 0.0


class _Launcher:
    def __init__(
        self,
        script: str,
        words: tuple[str, ...],
        devices: Sequence[Device],
        options: LaunchOptions,
        server: LineServer,
        elsewhere: _Elsewhere,
    ) -> None:
        self._script = script
        self._devices = devices
        self._options = options
        self._server = server
        self._elsewhere = elsewhere
        self._here = HostProcesses(HostCommand(words, platform.environment()), self._write)
        self._started: list[_Started] = []
        self._said: dict[str, dict[int, tuple[Line, bytes]]] = {}
        self._failed = 0
        self._broken: _Missed | None = None
        self._has_lost = False
        self._main = 0
        self._lost_main = ""
        self._asking: dict[int, tuple[Line, object, _Missed]] = {}
        self._trace = LaunchTrace(Path(options.trace), script, devices) if options.trace else None

    def run(self) -> int:
        """Start, serve and wait."""
        before = {each: signal.signal(each, self._on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._reach_hosts()
            if not self._failed:
                self._start()
            while any(each.code is None for each in self._started):
                self._serve()
            self._serve()
            self._find_failed()
            return self._verdict()
        finally:
            self._end_all()
            if self._trace is not None:
                self._trace.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: object) -> None:
        self._failed = self._failed or 128 + number

    # --- starting ------------------------------------------------------------------------------------------

    def _reach_hosts(self) -> None:
        """Wait for the programs of the other hosts."""
        while not self._failed and (absent := [each for each in self._elsewhere.hosts if each.line is None]):
            self._receive()
            for host in absent:
                if host.line is None and (why := host.why_not_there()):
                    host.is_over = True
                    self._fail(ExitCode.FAILED, why, "")

    def _start(self) -> None:
        names = tuple(device.short for device in self._devices)
        devices = list(self._devices)
        if self._options.check_steps > 0 and len(devices) > 1:
            devices.append(max(devices, key=lambda device: (not kinds()[device.kind].is_host, device.throttle_frac)))
        of_hosts = {each.name: each for each in self._elsewhere.hosts}
        places = tuple(self._elsewhere.addresses.get(device.host, "") for device in devices)
        hosts = places if len(set(places)) > 1 else ()
        starts: dict[str, list[tuple[LaunchedProcess, Device]]] = {}
        for rank, device in enumerate(devices):
            told = self._told(rank, device, names, hosts)
            starts.setdefault(device.host, []).append((told, device))
            if self._trace is not None and not told.checks:
                self._trace.started(rank)
            self._started.append(_Started(rank, told.name, of_hosts.get(device.host)))
        for name, host in of_hosts.items():
            host.send("start", self._elsewhere.package, starts[name])
        for told, device in starts.get(_OWN_HOST, ()):
            self._here.start(told, device)

    def _told(self, rank: int, device: Device, names: tuple[str, ...], hosts: tuple[str, ...]) -> LaunchedProcess:
        index = 0 if kinds()[device.kind].visible else device.index
        throttle = 1.0 if rank == len(names) else device.throttle_frac
        return LaunchedProcess(
            rank, names, device.kind, index, device.cores or 1, throttle, self._server.address, self._options,
            hosts=hosts,
        )  # fmt: skip

    # --- serving -------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Answer what the processes say, and look whether one has failed."""
        self._receive()
        self._find_failed()
        if not self._failed:
            self._find_who_is_missed()
        if self._asking and not self._failed:
            self._regroup()
        if self._failed:
            self._end_all()

    def _receive(self) -> None:
        """Receive what processes and hosts send, and what has become of them."""
        for line, message in self._server.poll(_POLL_S):
            if message is not None:
                self._answer(line, message)
                continue
            for each in self._started:
                each.leaves |= each.line is line
            for host in self._elsewhere.hosts:
                if host.line is line and not host.is_over:
                    self._lost(host, host.why_gone())
        for change in self._here.poll():
            self._changed(change)
        for host in self._elsewhere.hosts:
            if host.line is not None and not host.is_over and host.is_stopped:
                self._lost(host, f"host {host.title} answers, but what hetero had started there does nothing")

    def _lost(self, host: OtherHost, why: str) -> None:
        """Record that a host is lost; what has started its processes ends them when the line is cut."""
        gone = [each for each in self._started if each.host is host and each.code is None and not each.dismissed]
        if not all(self._may_lose(each) for each in gone):
            self._fail(ExitCode.FAILED, why, "")
        elif gone:
            _tell(f"hetero: {single_line(why)}")
        self._over(host)

    def _over(self, host: OtherHost) -> None:
        """Record that nothing is to be heard of a host any more."""
        host.is_over = True
        for each in self._started:
            if each.host is host and each.code is None:
                each.code, each.is_cut_off = -getattr(signal, "SIGKILL", 9), True

    def _changed(self, change: ProcessEnded | ProcessStopped) -> None:
        each = self._started[change.rank]
        if isinstance(change, ProcessEnded):
            each.code, each.last_line, each.ended_s = change.code, change.last_line, clock.monotonic_s()
            if self._trace is not None:
                self._trace.ended(each.rank, change.code)
        elif each.host is None and self._may_lose(each):
            self._here.kill(each.rank)
        elif not each.dismissed:
            self._fail(ExitCode.FAILED, f"{each.name} is stopped, and was ended with the others", "")

    def _answer(self, line: Line, message: Message) -> None:
        word, *rest = message
        if word in ("host", "beat", "wrote", "changed", "folder", "over"):
            self._answer_host(line, message)
        elif word == "arrived" and self._started[rest[0]].line is not None:
            self._fail(
                ExitCode.USAGE,
                f"{self._started[rest[0]].name}: the script starts several processes that call hetero.train.init()",
                "call it in one: `hetero launch` starts a process for each device",
            )
        elif word == "arrived":
            self._started[rest[0]].line = line
            line.end_when_cut(SILENT_S)
        elif word == "exchange":
            self._exchange(line, *rest)
        elif word == "recovers":
            self._started[rest[0]].recovers = True
        elif word == "regroup":
            rank, position, words, steps = rest
            missed = _Missed(f"{self._started[rank].name}: {words}", clock.monotonic_s(), steps)
            self._asking[rank] = line, position, missed
        elif word == "done":
            self._started[rest[0]].dismissed = True
        elif word == "note":
            _tell(f"hetero: {single_line(rest[0])}")
            if self._trace is not None:
                self._trace.news(single_line(rest[0]))
        elif word == "phases" and self._trace is not None:
            rank, day_s, steps = rest
            self._trace.told(rank, day_s, steps, is_here=self._started[rank].host is None)
        elif word == "report":
            sys.stdout.write(f"{rest[0]}\n")
            sys.stdout.flush()
        elif word == "refused":
            self._fail(ExitCode.USAGE, rest[1], "")
        elif word == "broken":
            rank, words, steps = rest
            missed = _Missed(f"{self._started[rank].name}: {words}", clock.monotonic_s(), steps)
            self._broken = self._broken or missed

    def _answer_host(self, line: Line, message: Message) -> None:
        """Handle what the program of another host sends."""
        word, name, *rest = message
        host = next(each for each in self._elsewhere.hosts if each.name == name)
        host.heard()
        if word == "host":
            host.answered(line)
        elif word == "wrote":
            self._write(*rest)
        elif word == "changed":
            self._changed(*rest)
        elif word == "folder" and self._started[0].host is host:
            words = f"the main process runs on host {host.title}, and what it writes stays there in {rest[0]}"
            _tell(f"hetero: {single_line(words)}")
        elif word == "over":
            self._over(host)

    def _write(self, rank: int, which: int, text: str) -> None:
        """Show what a process writes, with its name where several do; of the one that checks nothing is shown."""
        if rank == len(self._devices):
            return
        sink = sys.stdout if which == 1 else sys.stderr
        if rank != self._main or self._options.prints == "all":
            text = f"[{self._started[rank].name}] {text}" + ("" if text.endswith("\n") else "\n")
        with suppress(OSError, ValueError):
            sink.write(text)
            sink.flush()

    def _exchange(self, line: Line, word: str, rank: int, world: int, value: bytes) -> None:
        """Keep what a member says under a word; all are answered when all have said theirs."""
        if self._is_over(word):
            with suppress(LineClosedError):
                line.send("lost", word)
            return
        said = self._said.setdefault(word, {})
        said[rank] = line, value
        if len(said) < world:
            return
        del self._said[word]
        for each, _ in said.values():
            with suppress(Exception):
                each.send("exchanged", word, [said[one][1] for one in range(world)])

    # --- losing a process ----------------------------------------------------------------------------------

    def _members(self) -> list[_Started]:
        """Return those that train and are not lost, by rank."""
        every = self._started[: len(self._devices)]
        return [each for each in every if not each.dismissed and not each.is_lost]

    def _may_lose(self, one: _Started) -> bool:
        """Return whether the others can go on without a process."""
        others = [each for each in self._members() if each is not one]
        return one in self._members() and bool(others) and all(each.recovers for each in others)

    def _lose(self, one: _Started) -> None:
        """Have the others go on without a process; those that wait for it are told."""
        one.is_lost = self._has_lost = True
        members = self._members()
        left = ", ".join(each.name for each in members)
        is_main = members[0].rank != self._main
        missing = ", without what it still had to write" if is_main else ""
        _tell(f"hetero: {one.name} {_ended(one)}; {left} {'goes' if len(members) == 1 else 'go'} on{missing}")
        if is_main:
            self._lost_main = one.name
            self._main = members[0].rank
            if members[0].host is None:
                self._here.show(self._main)
            else:
                members[0].host.send("show", self._main)
        for word in [each for each in self._said if self._is_over(each)]:
            for line, _ in self._said.pop(word).values():
                with suppress(LineClosedError):
                    line.send("lost", word)

    def _is_over(self, word: str) -> bool:
        """Return whether processes meet under a word of which one is lost."""
        found = _MEMBERS.match(word)
        return found is not None and any(self._started[int(rank)].is_lost for rank in _NUMBER.findall(found[1]))

    def _regroup(self) -> None:
        """Notify those that are left of who is, when all of them ask; they ask because somebody is lost."""
        ranks = [each.rank for each in self._members()]
        if self._has_lost and all(rank in self._asking for rank in ranks):
            asking, self._asking, self._has_lost = self._asking, {}, False
            for rank in ranks:
                with suppress(LineClosedError):
                    asking[rank][0].send("regrouped", ranks, [asking[each][1] for each in ranks])

    def _find_who_is_missed(self) -> None:
        """Find the process for which another one waits in vain; to end may take that one a while."""
        missed = self._broken or next((each for _, _, each in self._asking.values()), None)
        left = [each for each in self._started if not each.dismissed and (each.leaves or each.line is None)]
        ended = next((each for each in left if each.code == 0), None)
        if ended is not None and (missed or self._said):
            after = f" after {missed.steps} steps" if missed and missed.steps else ""
            words = f"{ended.name} ended by itself with exit code 0{after}, and others have steps left"
            self._fail(ExitCode.FAILED, words, "have all processes reach the end of the script together")
        elif (
            missed
            and (self._broken or not self._has_lost)
            and clock.monotonic_s() - missed.since_s > self._patience_s()
        ):
            self._fail(ExitCode.FAILED, missed.words, "")

    def _patience_s(self) -> float:
        """Return how long to wait for a better reason than that a member is missed, s."""
        if any(each.leaves for each in self._members()):
            return _LEAVE_S
        silent_s = max((host.silent_s for host in self._elsewhere.hosts if not host.is_over), default=0.0)
        return _SILENT_S if silent_s < _SILENT_S else SILENT_S + _SILENT_S

    def _find_failed(self) -> None:
        for each in self._started:
            if self._failed or not each.code or each.dismissed or each.is_lost:
                continue
            if each.code < 0 and self._may_lose(each):
                self._lose(each)
                continue
            if each.rank == len(self._devices):
                if self._may_say_it_themselves(each):
                    continue
                words = f"the process that checks the first steps {_ended(each)}: {each.last_line}"
                self._fail(ExitCode.FAILED, words, "leave the check out with --check-steps 0, or run the script alone")
            else:
                code, (what, remedy) = each.code if each.code > 0 else 128 - each.code, _missing(each)
                self._fail(code, f"{each.name} {_ended(each)}{what}", remedy)

    def _may_say_it_themselves(self, check: _Started) -> bool:
        """Return whether the others may meet the error that has just ended the process that checks."""
        runs = any(each.code is None for each in self._started)
        return runs and clock.monotonic_s() - check.ended_s < _SILENT_S

    def _fail(self, code: int, words: str, remedy: str) -> None:
        if not self._failed:
            self._failed = code
            _tell(f"hetero: {single_line(words)}" + (f"; {remedy}" if remedy else ""))

    # --- ending --------------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """End what still runs on all hosts, and wait until they say that it has."""
        for host in self._elsewhere.hosts:
            host.send("end")
        self._here.end_all()
        until_s = clock.monotonic_s() + END_S + _LAST_WORDS_S
        while any(host.line is not None and not host.is_over for host in self._elsewhere.hosts):
            self._receive()
            if clock.monotonic_s() > until_s:
                break
        for change in self._here.poll():
            self._changed(change)

    def _verdict(self) -> int:
        silent = [each for each in self._started if each.line is None]
        if not self._failed and len(silent) == len(self._started) and len(self._started) > 1:
            self._fail(
                ExitCode.USAGE,
                f"{self._script} did not call hetero.train.init(), so each of {len(self._devices)} processes "
                "did the whole of it",
                "call it at the beginning, and prepare model, optimizer and loader with what it returns",
            )
        if not self._failed and self._has_lost and self._lost_main:
            self._fail(
                ExitCode.FAILED,
                f"{self._lost_main} was the main process, and was lost after the last step: what it had still to write "
                "is missing",
                "save in a function that ends with fleet.wait(), by fleet.step(save)",
            )
        return self._failed


def _missing(each: _Started) -> tuple[str, str]:
    """Return what a process on another host lacked, and what to do, '' twice where it is not known to be that."""
    kind = each.last_line.partition(":")[0]
    if each.host is None or kind not in _NOT_THERE:
        return "", ""
    return f": {each.last_line}", (
        f"hosts share no folder: put it on {each.host.name}, too, or launch with --working-dir FOLDER"
    )


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _ended(one: _Started) -> str:
    code = one.code or 0
    if one.is_cut_off:
        return "cannot be reached any more"
    if code >= 0:
        return f"ended with exit status {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
