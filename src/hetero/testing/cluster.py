"""A cluster on one host: `hetero node` in network namespaces, with certificates and a token as between real hosts.

In: the speed of each host's link, its devices. Out: hosts in which programs are started; nothing of it is left.
It must not know Ray: it uses the commands that a user has.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hetero.engines.ray.certificates import make_certificates
from hetero.floor import settings
from hetero.floor.errors import HeteroError
from hetero.floor.platform import available_cpus
from hetero.testing.netns import Fleet, fleet_of_namespaces

__all__ = ["Cluster", "cluster_of_namespaces"]

_HETERO = str(Path(sys.executable).with_name("hetero"))
_PATIENCE_S = 240.0


@dataclass(frozen=True)
class Cluster:
    """Hosts that make a cluster; made by `cluster_of_namespaces`.

    Attributes
    ----------
    fleet : the namespaces; the first is the head
    folder : of everybody's files
    variables : environment of every program in it
    pinned : whether each host is bound to a CPU of its own
    """

    fleet: Fleet
    folder: Path
    variables: Mapping[str, str]
    pinned: bool = False

    @property
    def certificates(self) -> Path:
        """The folder that all hosts share."""
        return self.folder / "certificates"

    @property
    def token(self) -> Path:
        """The file with the head's token."""
        return self.home(0) / "node-token"

    @property
    def address(self) -> str:
        """Where the head is, 'host:port'."""
        return str(self.node(0)["address"])

    def home(self, index: int) -> Path:
        """Give HETERO_HOME of a host."""
        return self.folder / f"home{index}"

    def node(self, index: int) -> dict[str, Any]:
        """Give what is written down of a host's node."""
        return dict(json.loads((self.home(index) / "node.json").read_text(encoding="utf-8")))

    def start(self, index: int, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Start a program on a host, with pipes to it."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with settings.replaced({**self.variables, "HETERO_HOME": str(self.home(index))}):
            return self.fleet.popen(index, command, text=True, **{**pipes, **options})

    def run(self, index: int, *command: str) -> tuple[int, str, str]:
        """Run a program on a host to its end; give its exit code and what it printed on either stream."""
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
        words = ("node", "start", *role, *common, "--devices", devices, "--memory", "150MB")
        code, _, wrong = self.run(index, *self._on_own_cpu(index), _HETERO, *words)
        if code != 0:
            raise HeteroError(f"host {index} is no part of the cluster: {wrong.strip()}")

    def _on_own_cpu(self, index: int) -> tuple[str, ...]:
        cpus = available_cpus()
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
    folder : empty
    bits_per_s : > 0, of each host's link
    devices : fleet of each host, as HETERO_DEVICES takes it; '' leaves a host out of the cluster for now
    variables : of every program, nodes included
    pinned : True binds each host to a CPU of its own; without it all hosts offer the same ones

    Raises
    ------
    HeteroError
        There is no right to make namespaces, or a node does not start.
    """
    with fleet_of_namespaces(bits_per_s) as fleet:
        cluster = Cluster(fleet, folder, dict(variables or {}), pinned)
        make_certificates(cluster.certificates, [host.address for host in fleet.hosts])
        try:
            for index, fleet_of_host in enumerate(devices):
                if fleet_of_host:
                    cluster.start_node(index, fleet_of_host)
            yield cluster
        finally:
            for index in reversed(range(len(devices))):
                cluster.hetero(index, "node", "stop")
