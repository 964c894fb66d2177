"""Hosts make a cluster, share arrays over the link once, and may die; who is not let in is told so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hetero.engines.ray.certificates import make_certificates
from hetero.errors import BadValueError
from hetero.testing.netns import Fleet, fleet_of_namespaces
from tests.needs import need

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

HETERO = str(Path(sys.executable).with_name("hetero"))
PATIENCE_S = 180.0
ARRAY = """
import numpy as np, hetero
@hetero.task
def total(array):
    return float(array.sum()), hetero.get_current_device().host
on = [total.options(on=(f"{host}/cpu:0",)) for host in ("h0", "h1")]
with hetero.Context(engine="ray", address="auto", history=False) as ctx:
    ctx.gather([ctx.submit(task, np.ones(3)) for task in on])
    print("ready", flush=True)
    input()
    array = np.ones(8_000_000)
    answers = ctx.gather([ctx.submit(on[number % 2], array) for number in range(8)])
print({answer[0] for answer in answers}, sorted({answer[1] for answer in answers}))
"""
KILLED = """
import collections, time, hetero
def where(number):
    time.sleep(0.05)
    return number, hetero.get_current_device().host
with hetero.Context(engine="ray", address="auto", history=False) as ctx:
    while len({host for _, host in ctx.gather([ctx.submit(where, number) for number in range(8)])}) < 2:
        pass
    futures = [ctx.submit(where, number) for number in range(100)]
    print("running", flush=True)
    answers = ctx.gather(futures)
print(sorted(number for number, _ in answers) == list(range(100)), answers[-1][1])
"""


@dataclass(frozen=True)
class Hosts:
    """Two hosts with a cluster over them."""

    fleet: Fleet
    folder: Path
    address: str

    def start(self, index: int, *command: str) -> subprocess.Popen[str]:
        env = {**os.environ, "HETERO_HOME": str(self.folder / f"home{index}"), "HETERO_CHECK": "0"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return self.fleet.popen(index, command, env=env, text=True, **pipes)

    def run(self, index: int, *command: str) -> tuple[int, str, str]:
        with self.start(index, *command) as process:
            said, wrong = process.communicate(timeout=PATIENCE_S)
        return process.returncode, said, wrong

    def node(self, index: int, *options: str) -> str:
        host = self.fleet.hosts[index].address
        common = ("--host", host, "--certificates", str(self.folder / "certificates"), "--memory", "150MB")
        code, said, wrong = self.run(index, HETERO, "node", "start", *options, *common)
        assert code == 0, wrong
        return said

    def kill_processes(self, index: int) -> None:
        pid = json.loads((self.folder / f"home{index}" / "node.json").read_text())["pid"]
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    with fleet_of_namespaces([1e9, 1e9]) as fleet:
        make_certificates(folder / "certificates", [host.address for host in fleet.hosts])
        hosts = Hosts(fleet, folder, "")
        try:
            said = hosts.node(0, "--head", "--devices", "cpu:1")
            address = said.partition("cluster ")[2].partition(",")[0]
            token = str(folder / "home0" / "node-token")
            hosts.node(1, "--join", address, "--token-file", token, "--devices", "cpu:1*0.5")
            yield Hosts(fleet, folder, address)
        finally:
            for index in (1, 0):
                hosts.run(index, HETERO, "node", "stop")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    need("netns")
    with two_hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def test_an_array_for_many_tasks_crosses_the_link_once(hosts: Hosts) -> None:
    with hosts.start(0, sys.executable, "-c", ARRAY) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        before = hosts.fleet.counters()[0].sent_bytes
        said, wrong = program.communicate("\n", timeout=PATIENCE_S)
    assert said.splitlines() == ["{8000000.0} ['h0', 'h1']"], wrong
    assert 64e6 < hosts.fleet.counters()[0].sent_bytes - before < 1.5 * 64e6


def test_a_program_on_a_host_that_is_no_part_of_the_cluster_is_refused(hosts: Hosts) -> None:
    joins = f"import hetero; hetero.Context(devices='cpu:1', engine='ray', address={hosts.address!r})"
    code, _, wrong = hosts.run(1, "env", f"HETERO_HOME={hosts.folder}/nobody", sys.executable, "-c", joins)
    assert code != 0
    assert "speaks only to hosts with its certificates; make this host part of it" in wrong


def test_a_host_with_another_token_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("another-token-than-the-head-has")
    certificates = str(hosts.folder / "certificates")
    code, _, wrong = joined(hosts, tmp_path, "--token-file", str(token), "--certificates", certificates)
    assert code == 1
    assert "refuses this program: its token is missing or another one" in wrong


def joined(hosts: Hosts, home: Path, *options: str) -> tuple[int, str, str]:
    command = [HETERO, "node", "start", "--join", hosts.address, "--host", hosts.fleet.hosts[1].address, *options]
    return hosts.run(1, "env", f"HETERO_HOME={home}", *command)


def test_a_host_with_certificates_of_another_authority_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    make_certificates(tmp_path / "foreign", [host.address for host in hosts.fleet.hosts])
    token = str(hosts.folder / "home0" / "node-token")
    code, _, wrong = joined(hosts, tmp_path, "--token-file", token, "--certificates", str(tmp_path / "foreign"))
    assert code == 1
    assert "shows no certificate of this cluster's authority" in wrong


def test_tasks_of_a_host_whose_processes_are_killed_are_done_elsewhere(hosts: Hosts) -> None:
    with hosts.start(0, sys.executable, "-c", KILLED) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        hosts.kill_processes(1)
        said, wrong = program.communicate(timeout=PATIENCE_S)
    assert said.splitlines()[-1] == "True h0", wrong


def test_certificates_need_a_host_and_a_new_folder(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="certificates without a host"):
        make_certificates(tmp_path / "none", [])
    made = make_certificates(tmp_path / "some", ["10.0.0.1"])
    assert sorted(path.name for path in made) == sorted(path.name for path in (tmp_path / "some").iterdir())
    with pytest.raises(BadValueError, match="already has certificates"):
        make_certificates(tmp_path / "some", ["10.0.0.1"])
