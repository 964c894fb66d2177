"""Hosts on one host: network namespaces on a bridge, each behind a link of a given speed.

In: the speed of each link, folders that they do not share. Out: a fleet in which programs are started; nothing of it is
left afterwards. Needs root, iproute2 and util-linux.
It must not touch the network or the mounts that the host itself uses.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero.floor.errors import BadValueError, HeteroError

__all__ = ["Counters", "Fleet", "Namespace", "fleet_of_namespaces"]

_PREFIX = "hetero-"
_BURST_BYTES = 64 * 1024
_QUEUE_MS = 50
_MOST = 200
_COMMAND_S = 60.0
_MOUNTS = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, target, kind, flags):
    if libc.mount(source.encode(), target.encode(), kind, flags, None):
        sys.exit(f"{target}: {os.strerror(ctypes.get_errno())}")
private, kept = json.loads(sys.argv[1])
handles = {path: os.open(path, os.O_RDONLY) for path in kept}
for path in private:
    os.makedirs(path, exist_ok=True)
    mount("tmpfs", path, b"tmpfs", 0)
    os.chmod(path, 0o1777)
for path, handle in handles.items():
    os.makedirs(path, exist_ok=True)
    mount(f"/proc/self/fd/{handle}", path, None, 0x1000 | 0x4000)
print("ready", flush=True)
sys.stdin.read()
"""
"""Run in a mount namespace of its own: empty folders over those of the machine, but for what the programs are made of.

It goes on until its standard input is closed, and keeps the namespace meanwhile.
"""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Namespace:
    """One host of the fleet.

    Attributes
    ----------
    name : as `ip netns` knows it
    address : on which the others reach it
    bits_per_s : of its link, in each direction
    """

    name: str
    address: str
    bits_per_s: float


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes that went over a link, headers included.

    Attributes
    ----------
    sent_bytes, received_bytes : as the host at its end sees them
    """

    sent_bytes: int
    received_bytes: int


class Fleet:
    """Namespaces that see each other; made by `fleet_of_namespaces`.

    Attributes
    ----------
    hosts : the namespaces, in the order of the speeds that were given
    """

    def __init__(self, hosts: tuple[Namespace, ...], keepers: tuple[subprocess.Popen[str], ...] = ()) -> None:
        self.hosts = hosts
        self._keepers = keepers

    def popen(self, index: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program on one host; options are those of `subprocess.Popen`, `cwd` being a folder of that host."""
        if not self._keepers:
            return subprocess.Popen(["ip", "netns", "exec", self.hosts[index].name, *command], **options)
        enter = ["nsenter", "--target", str(self._keepers[index].pid), "--net", "--mount"]
        return subprocess.Popen([*enter, "env", f"--chdir={options.pop('cwd', '/tmp')}", *command], **options)

    def path(self, index: int, path: Path) -> Path:
        """Return where a path of one host is seen from outside."""
        return Path(f"/proc/{self._keepers[index].pid}/root{path}") if self._keepers else path

    def connect(self, index: int, *, up: bool) -> None:
        """Cut the link of one host, or mend it."""
        switch = f"{self.hosts[index].name.rpartition('-')[0]}-switch"
        _ip([f"link set port{index} {'up' if up else 'down'}"], switch)

    def counters(self) -> list[Counters]:
        """Return what went over each link so far."""
        return [_counters(host) for host in self.hosts]


@contextmanager
def fleet_of_namespaces(bits_per_s: Sequence[float], private: Sequence[Path] = ()) -> Iterator[Fleet]:
    """Have hosts behind links of their own for the time of a `with` block.

    Every host has a pair of virtual Ethernet interfaces to a bridge in a namespace of its own; a token bucket at each
    end holds the speed in both directions.

    Parameters
    ----------
    bits_per_s : > 0, one a host
    private : folders of which every host has its own, empty at first

    Raises
    ------
    HeteroError
        This host does not let us: not root, or no `ip` and `tc`, or no `unshare`.
    BadValueError
        A speed that is none, or more hosts than a bridge has addresses for.
    """
    if not 0 < len(bits_per_s) <= _MOST or min(bits_per_s) <= 0:
        raise BadValueError(f"bits_per_s: {bits_per_s!r}", remedy=f"give 1 to {_MOST} speeds above 0")
    _remove([name for name in _ours() if not _is_alive(_owner(name))])
    own = f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
    hosts = tuple(Namespace(f"{own}-{index}", f"10.77.0.{index + 1}", speed) for index, speed in enumerate(bits_per_s))
    switch = f"{own}-switch"
    try:
        _build(switch, hosts)
        with ExitStack() as keepers:
            yield Fleet(hosts, tuple([keepers.enter_context(_apart(host, private)) for host in hosts if private]))
    finally:
        _remove([name for name in _ours() if name.startswith(f"{own}-")])


@contextmanager
def _apart(host: Namespace, private: Sequence[Path]) -> Iterator[subprocess.Popen[str]]:
    """Yield a host folders of its own for the time of a `with` block; what Python needs stays."""
    apart = [str(path) for path in private]
    words = json.dumps([apart, _needed(apart)])
    command = ["ip", "netns", "exec", host.name, "unshare", "--mount", "--propagation", "private"]
    command += [sys.executable, "-c", _MOUNTS, words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as keeper:  # type: ignore[call-overload]
        try:
            if keeper.stdout.readline() != "ready\n":
                said = keeper.stderr.read().strip() or "it ended"
                raise HeteroError(
                    f"{host.name} has no folders of its own: {said}", remedy="it needs root and util-linux"
                )
            yield keeper
        finally:
            keeper.stdin.close()
            keeper.kill()


def _needed(private: Sequence[str]) -> list[str]:
    """Return the folders of the interpreter and of its code that would be hidden."""
    code = [sys.prefix, sys.base_prefix, os.getcwd(), *[path for path in sys.path if os.path.isdir(path)]]
    found = {path for name in code for path in (os.path.abspath(name), os.path.realpath(name))}
    hidden = [path for path in sorted(found) if any(path.startswith(f"{each}/") for each in private)]
    return [path for path in hidden if not any(path.startswith(f"{other}/") for other in hidden)]


def _build(switch: str, hosts: Sequence[Namespace]) -> None:
    _ip([f"netns add {name}" for name in (switch, *(host.name for host in hosts))])
    _ip(["link add bridge type bridge", "link set bridge up"], switch)
    _ip([f"link add port{i} netns {switch} type veth peer name eth0 netns {h.name}" for i, h in enumerate(hosts)])
    for index in range(len(hosts)):
        _ip([f"link set port{index} master bridge", f"link set port{index} up"], switch)
    for index, host in enumerate(hosts):
        _ip(["link set lo up", f"addr add {host.address}/24 dev eth0", "link set eth0 up"], host.name)
        _limit(host.name, "eth0", host.bits_per_s)
        _limit(switch, f"port{index}", host.bits_per_s)


def _limit(namespace: str, interface: str, bits_per_s: float) -> None:
    bucket = f"rate {round(bits_per_s)}bit burst {_BURST_BYTES} latency {_QUEUE_MS}ms"
    _run(["tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf", *bucket.split()])


def _counters(host: Namespace) -> Counters:
    (link,) = json.loads(_run(["ip", "-n", host.name, "-s", "-j", "link", "show", "eth0"]))
    return Counters(link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"])


def _ours() -> list[str]:
    """Return the names of all namespaces that were made here, by whichever process."""
    names = [line.split()[0] for line in _run(["ip", "netns", "list"]).splitlines() if line]
    return [name for name in names if name.startswith(_PREFIX) and _owner(name)]


def _owner(name: str) -> int:
    """Return the id of the process that made a namespace, 0 for a name that is none of ours."""
    pid = name.removeprefix(_PREFIX).partition("-")[0]
    return int(pid) if pid.isdecimal() else 0


def _remove(names: Sequence[str]) -> None:
    for name in names:
        _run(["ip", "netns", "delete", name])


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _ip(lines: Sequence[str], namespace: str = "") -> None:
    where = ["-n", namespace] if namespace else []
    _run(["ip", *where, "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: Sequence[str], text: str = "") -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_COMMAND_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise HeteroError(f"{' '.join(command)}: {said[-1]}", remedy="it needs root, and Debian's iproute2") from error
    return done.stdout


if __name__ == "__main__":
    print(__doc__)
