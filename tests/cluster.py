"""A cluster on one host: `hetero cluster start` in namespaces that share no folder, with certificates and a token.

In: the speed of each host's link, its devices. Out: hosts in which programs are started; nothing of it is left.
It must not know Ray: it uses the commands that a user has.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from examples.netns import Fleet, fleet_of_namespaces
from hetero.engines.ray.certificates import make_certificates
from hetero.floor import settings
from hetero.floor.errors import HeteroError

__all__ = ["Cluster", "cluster_of_namespaces"]

_HETERO = str(Path(sys.executable).with_name("hetero"))
_PATIENCE_S = 240.0


@dataclass(frozen=True)
class Cluster:
    """Hosts that make a cluster; made by `cluster_of_namespaces`.

    Attributes
    ----------
    fleet : the namespaces; the first is the head
    folder : of everybody's files; each host has its own under this path, as it has /tmp and /dev/shm
    variables : environment of every program in it
    pinned : whether each host is bound to a CPU of its own
    """

    fleet: Fleet
    folder: Path
    variables: Mapping[str, str]
    pinned: bool = False

    @property
    def certificates(self) -> Path:
        """The folder of which every host has a copy."""
        return self.folder / "certificates"

    @property
    def token(self) -> Path:
        """The file with the head's token, of which every host has a copy."""
        return self.folder / "token"

    @property
    def home(self) -> Path:
        """HETERO_HOME of each host."""
        return self.folder / "home"

    @property
    def address(self) -> str:
        """Where the head is, 'host:port'."""
        return str(self.node(0)["address"])

    def node(self, index: int) -> dict[str, Any]:
        """Return what is written down of a host's node."""
        return dict(json.loads(self.path(index, self.home / "node.json").read_text(encoding="utf-8")))

    def path(self, index: int, path: Path) -> Path:
        """Return where a path of a host is seen from outside."""
        return self.fleet.path(index, path)

    def copy(self, index: int, *paths: Path) -> None:
        """Copy files or folders from outside to a host, where they have the same path."""
        for path in paths:
            there = self.path(index, path)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(path, there, dirs_exist_ok=True) if path.is_dir() else shutil.copy2(path, there)

    def start(self, index: int, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Start a program on a host, with pipes to it."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with settings.replaced({**self.variables, "HETERO_HOME": str(self.home), "TMPDIR": None}):
            return self.fleet.popen(index, command, text=True, **{**pipes, **options})

    def run(self, index: int, *command: str) -> tuple[int, str, str]:
        """Run a program on a host to its end; return its exit code and what it printed on either stream."""
        with self.start(index, *command) as process:
            said, wrong = process.communicate(timeout=_PATIENCE_S)
        return process.returncode, said, wrong

    def hetero(self, index: int, *words: str) -> tuple[int, str, str]:
        """Run a command of hetero on a host."""
        return self.run(index, _HETERO, *words)

    def start_node(self, index: int, devices: str) -> None:
        """Start the head, or have a host join it.

        Raises
        ------
        HeteroError
            It does not start.
        """
        role = ["--head"] if index == 0 else ["--join", self.address, "--token-file", str(self.token)]
        common = ["--host", self.fleet.hosts[index].address, "--certificates", str(self.certificates)]
        words = ("cluster", "start", *role, *common, "--devices", devices, "--object-store-memory", "150MB")
        code, _, wrong = self.run(index, *self._on_own_cpu(index), _HETERO, *words)
        if code != 0:
            raise HeteroError(f"host {index} is no part of the cluster: {wrong.strip()}")
        if index == 0:
            shutil.copy2(self.path(0, self.home / "node-token"), self.token)
            for host in range(len(self.fleet.hosts)):
                self.copy(host, self.token)

    def _on_own_cpu(self, index: int) -> tuple[str, ...]:
        cpus = sorted(os.sched_getaffinity(0))
        return ("taskset", "-c", str(cpus[index % len(cpus)])) if self.pinned else ()

    def kill_node(self, index: int) -> None:
        """Kill all processes of a host's node, as a power cut would."""
        node = psutil.Process(self.node(index)["pid"])
        for process in [node, *node.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def cluster_of_namespaces(
    folder: Path,
    bits_per_s: Sequence[float],
    devices: Sequence[str],
    variables: Mapping[str, str] | None = None,
    pinned: bool = False,
) -> Iterator[Cluster]:
    """Have a cluster for the time of a `with` block.

    Parameters
    ----------
    folder : empty; an absolute path
    bits_per_s : > 0, of each host's link
    devices : fleet of each host, as HETERO_DEVICES takes it; '' leaves a host out of the cluster for now
    variables : of every program, nodes included
    pinned : True binds each host to a CPU of its own; without it all hosts offer the same ones

    Raises
    ------
    HeteroError
        There is no right to make namespaces, or a node does not start.
    """
    private = dict.fromkeys((Path("/tmp"), Path("/dev/shm"), folder.resolve()))
    with fleet_of_namespaces(bits_per_s, tuple(private)) as fleet:
        cluster = Cluster(fleet, folder, dict(variables or {}), pinned)
        make_certificates(cluster.certificates, [host.address for host in fleet.hosts])
        for index in range(len(fleet.hosts)):
            cluster.copy(index, cluster.certificates)
        try:
            for index, fleet_of_host in enumerate(devices):
                if fleet_of_host:
                    cluster.start_node(index, fleet_of_host)
            yield cluster
        finally:
            for index in reversed(range(len(devices))):
                cluster.hetero(index, "cluster", "stop")
