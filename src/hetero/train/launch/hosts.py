"""Other hosts of `hetero launch`: a program on each, which Ray starts, has the processes there and tells what they do.

In: hosts of a cluster, a script. Out: lines to these programs; on their side processes, whose words and ends travel.
It must not import torch, nor know what the processes tell each other.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.comm.errors import LineClosedError
from hetero.comm.lines import Address, Line
from hetero.floor import clock, platform, settings
from hetero.floor.errors import EngineError, HeteroError
from hetero.floor.private import own_home, private_folder
from hetero.floor.text import single_line
from hetero.model.device import Device
from hetero.train.launch.host_processes import FROZEN_S, HostCommand, HostProcesses, LaunchedProcess

if TYPE_CHECKING:
    from hetero.engines.ray.cluster import Cluster, Host, HostCall

__all__ = [
    "SILENT_S",
    "OtherHost",
    "ScriptPackage",
    "carried",
    "check_versions",
    "differences",
    "package_of",
    "started_on",
]

SILENT_S = 15.0
"""After so long without an answer a host counts as gone, on both sides."""
_START_S = 120.0
_BEAT_S = 1.0
_POLL_S = 0.1
_CANCEL_S = 2.0
_STEM = 40

_OF_A_HOST = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "SHLVL", "HOSTNAME", "TMPDIR", "TEMP", "TMP", "TERM",
    "DISPLAY", "WAYLAND_DISPLAY", "MAIL", "EDITOR", "PAGER", "VIRTUAL_ENV", "INVOCATION_ID", "JOURNAL_STREAM", "_",
    "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONSTARTUP", "PYTHONEXECUTABLE", "PYTHONPYCACHEPREFIX",
    "PYTHONBREAKPOINT", "HETERO_HOME", "HETERO_CONFIG", "HETERO_TRACE", "HETERO_TEST_DATA", "HETERO_DEVICES",
    "HETERO_ENGINE", "HETERO_SET", "HETERO_LAUNCHED",
)  # fmt: skip
_OF_A_HOST_BEGINNINGS = ("RAY_", "LD_", "DYLD_", "XDG_", "SSH_", "DBUS_", "CONDA_", "SLURM_", "PYENV_", "SYSTEMD_")
_OF_RAY = ("RAY_", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONBREAKPOINT")
"""What Ray sets for its own workers, and a script must not have from them."""


def carried(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that travel with a script: all but those that belong to a host.

    Examples
    --------
    >>> carried({"LEARNING_RATE": "0.1", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0", "LD_PRELOAD": "x.so"})
    {'LEARNING_RATE': '0.1'}
    """
    found = {name: text for name, text in environment.items() if not settings.chooses_devices(name)}
    return {
        name: text
        for name, text in found.items()
        if name not in _OF_A_HOST and not name.startswith(_OF_A_HOST_BEGINNINGS)
    }


def differences(own: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return in words what two hosts have in different versions, '' where nothing differs.

    Notes
    -----
    What follows a plus sign says for which devices a version was built, and may differ.

    Examples
    --------
    >>> differences({"Python": "3.11.7", "torch": "2.13.0+cpu"}, {"Python": "3.11.7", "torch": "2.13.0+cu128"})
    ''
    >>> differences({"Python": "3.11.7", "torch": "2.13.0"}, {"Python": "3.11.9", "torch": ""})
    'Python 3.11.9 and no torch, and this host Python 3.11.7 and torch 2.13.0'
    """
    wrong = [name for name in own if own[name].partition("+")[0] != theirs.get(name, "").partition("+")[0]]
    if not wrong:
        return ""
    there, here = (
        [f"{name} {has[name]}" if has.get(name) else f"no {name}" for name in wrong] for has in (theirs, own)
    )
    return f"{' and '.join(there)}, and this host {' and '.join(here)}"


def _versions_of() -> Callable[[], dict[str, str]]:
    """Return a function that travels by value: the other host's hetero may be one that does not know it."""

    def versions() -> dict[str, str]:
        import importlib.metadata
        import platform

        found = {"Python": platform.python_version()}
        for name, package in (("torch", "torch"), ("hetero", "hetero-core")):
            try:
                found[name] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                found[name] = ""
        return found

    return versions


def check_versions(cluster: Cluster) -> None:
    """Refuse hosts with other versions than this one.

    Raises
    ------
    EngineError
        There is one, or one does not answer.
    """
    versions = _versions_of()
    for host, answer in cluster.ask(cluster.hosts()[1:], versions, (), _START_S):
        if isinstance(answer, HeteroError):
            raise answer
        if found := differences(versions(), answer):
            raise EngineError(
                f"host {host.name} ({host.address}) has {found}", remedy="install the same versions on every host"
            )


# --- what travels -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScriptPackage:
    """A script as it travels.

    Attributes
    ----------
    archive
        ZIP with the script and what it imports.
    words
        The script's path within it, and its arguments.
    folder
        Name of the folder in which it runs on another host, the same each time that it is launched.
    environment
        Variables that travel with it.
    """

    archive: bytes
    words: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]


def package_of(script: str, args: Sequence[str], working_dir: Path | None) -> ScriptPackage:
    """Pack a script with the modules beside it, or with a folder.

    Raises
    ------
    BadValueError
        It is not in that folder, or too large.
    """
    from hetero.engines.ray.job_package import pack, pack_modules

    path = Path(script)
    inside, archive = pack_modules(path) if working_dir is None else pack(path, working_dir)
    digest = hashlib.sha256(f"{socket.gethostname()}:{path.resolve()}".encode()).hexdigest()[:8]
    environment = carried(platform.environment())
    return ScriptPackage(archive, (inside, *args), f"{path.stem[:_STEM]}-{digest}", environment)


# --- the launching program's side ---------------------------------------------------------------------------


class OtherHost:
    """Another host; its methods belong to the thread that reads the lines.

    Attributes
    ----------
    name, title
        'h1', and the same with its address.
    line
        To the program there, None before it has answered.
    is_over
        Whether it has nothing of ours any more, or is gone.
    """

    def __init__(self, call: HostCall) -> None:
        self.name = call.host.name
        self.title = f"{call.host.name} ({call.host.address})"
        self.line: Line | None = None
        self.is_over = False
        self._call = call
        self._heard_s = clock.monotonic_s()

    def answered(self, line: Line) -> None:
        """Record that the program there has come."""
        self.line = line
        line.end_when_cut(SILENT_S)

    def heard(self) -> None:
        """Record that something came from there."""
        self._heard_s = clock.monotonic_s()

    @property
    def silent_s(self) -> float:
        """How long nothing has come, s."""
        return clock.monotonic_s() - self._heard_s

    def why_not_there(self) -> str:
        """Return why the program does not come, '' while it still may."""
        if self._call.is_over:
            answer = self._call.answer(1.0)
            return answer.problem if isinstance(answer, HeteroError) else f"host {self.title}: {answer}"
        return f"host {self.title} has not answered for {_START_S:g} s" if self.silent_s > _START_S else ""

    def why_gone(self) -> str:
        """Return why the line to it has closed."""
        if self.silent_s > SILENT_S / 2:
            return f"host {self.title} did not answer for {SILENT_S:g} s: it is down, or the link to it is cut"
        return f"host {self.title} is gone: what hetero had started there was ended from outside"

    @property
    def is_stopped(self) -> bool:
        """Return whether the program there does nothing, though its host answers."""
        return self.silent_s > FROZEN_S

    def send(self, *message: object) -> None:
        """Send a message to the program there, if it is still there."""
        if self.line is not None and not self.is_over:
            with suppress(LineClosedError):
                self.line.send(*message)

    def cancel(self) -> None:
        """End what Ray still runs for it."""
        until_s = clock.monotonic_s() + _CANCEL_S
        while not self._call.is_over:
            if not self.is_over or clock.monotonic_s() > until_s:
                self._call.cancel()
                return
            clock.sleep(_POLL_S)


@contextmanager
def started_on(cluster: Cluster, hosts: Iterable[Host], address: Address) -> Iterator[tuple[OtherHost, ...]]:
    """Start a program on each of some hosts, for the time of a `with` block."""
    others = tuple([OtherHost(cluster.begin(host, _serve, (address, host.name))) for host in hosts])
    try:
        yield others
    finally:
        for other in others:
            other.cancel()


# --- the other host's side ----------------------------------------------------------------------------------


def _serve(address: Address, name: str) -> str:
    """Run the program of a host, in a worker of Ray's; returns what was wrong with it."""
    told = pickle.dumps((os.getpid(), address, name))
    command = [sys.executable, "-m", "hetero.train.launch.hosts"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as program:
        said = program.communicate(told)[1].decode(errors="replace").strip()
    return said.rpartition("\n")[2] if program.returncode else ""


class _HostProgram:
    """What runs on another host for one launch.

    Parameters
    ----------
    line
        To the launching program.
    name
        Of this host.
    """

    def __init__(self, line: Line, name: str) -> None:
        self._line = line
        self._name = name
        self._processes: HostProcesses | None = None

    def run(self) -> None:
        """Serve until the launching program wants no more, or is gone; all processes have ended then."""
        try:
            self._line.send("host", self._name)
            self._serve()
            self._end()
            self._line.send("over", self._name)
        except LineClosedError:
            return
        finally:
            self._end()

    def _serve(self) -> None:
        told_s = clock.monotonic_s()
        while (message := self._line.receive(_POLL_S)) is None or message[0] != "end":
            if message is not None and message[0] == "start":
                self._start(*message[1:])
            elif message is not None and self._processes is not None:  # "show": the main process was lost
                self._processes.show(message[1])
            self._tell_changes()
            if clock.monotonic_s() - told_s > _BEAT_S:
                self._line.send("beat", self._name)
                told_s = clock.monotonic_s()

    def _start(self, package: ScriptPackage, starts: Sequence[tuple[LaunchedProcess, Device]]) -> None:
        try:
            folder = private_folder(own_home() / "launched" / package.folder)
            with zipfile.ZipFile(io.BytesIO(package.archive)) as file:
                file.extractall(folder)
            given = {**_own_environment(), **package.environment, "PYTHONUNBUFFERED": "1"}
            self._processes = HostProcesses(HostCommand(package.words, given, str(folder), streams=False), self._write)
            for told, device in starts:
                self._processes.start(told, device)
            self._line.send("folder", self._name, str(folder))
        except (HeteroError, OSError) as error:
            self._line.send("refused", -1, f"host {self._name}: {single_line(str(error))}")

    def _write(self, rank: int, which: int, text: str) -> None:
        with suppress(LineClosedError):
            self._line.send("wrote", self._name, rank, which, text)

    def _tell_changes(self) -> None:
        for change in self._processes.poll() if self._processes is not None else ():
            self._line.send("changed", self._name, change)

    def _end(self) -> None:
        if self._processes is not None:
            self._processes.end_all()
            with suppress(LineClosedError):
                self._tell_changes()


def _own_environment() -> dict[str, str]:
    """Return this host's variables, without those that Ray has set for its workers."""
    return {name: text for name, text in platform.environment().items() if not name.startswith(_OF_RAY)}


def main() -> None:
    """Serve the launching program that standard input names, as long as the worker that started this one lives."""
    parent, address, name = pickle.loads(sys.stdin.buffer.read())
    if not platform.die_with_parent(parent):
        return
    line = Line.dial(address)
    line.end_when_cut(SILENT_S)
    _HostProgram(line, name).run()


if __name__ == "__main__":
    main()
