"""Hosts make a cluster, share arrays over the link once, and may die; who is not let in is told so."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetero.engines.ray.certificates import make_certificates
from hetero.errors import BadValueError
from tests.cluster import Cluster, cluster_of_namespaces
from tests.needs import need

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow, pytest.mark.servers]

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
    copies = ctx.driver.engine.counters["copies"]
print({answer[0] for answer in answers}, sorted({answer[1] for answer in answers}), copies)
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


JOINED = """
import time, hetero
def where(number):
    time.sleep(0.02)
    return number, hetero.get_current_device().host
with hetero.Context(engine="ray", address="auto", history=False) as ctx:
    print("alone", len(ctx.devices), flush=True)
    number, seen = 0, set()
    while seen != {"h0", "h1"}:
        answers = ctx.gather([ctx.submit(where, number + one) for one in range(20)])
        assert [answer[0] for answer in answers] == list(range(number, number + 20))
        number, seen = number + 20, {answer[1] for answer in answers}
    print("together", len(ctx.devices), flush=True)
    futures = [ctx.submit(where, number) for number in range(100)]
    print("leaving", flush=True)
    print(sorted(answer[0] for answer in ctx.gather(futures)) == list(range(100)))
"""
TOLD = """
import os, signal, sys
print(open("/tmp/which").read(), flush=True)
match sys.argv[1]:
    case "badly":
        1 / 0
    case "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    case "much":
        print("\\n".join(["x" * 99] * 30_000))
"""
FOLDER = """
import hetero, beside
on = [hetero.task(beside.seen, on=(f"{host}/cpu:0",)) for host in ("h0", "h1")]
with hetero.Context(history=False) as ctx:
    print(ctx.gather([ctx.submit(task) for task in on]))
"""
BESIDE = """
import os
import hetero
def seen():
    with open("data.txt") as file:
        return file.read(), os.environ["WORD"], hetero.get_current_device().host
"""
LISTEN = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as ear, open(sys.argv[1], "wb") as file:
    ear.bind(("eth0", 0))
    print("listening", flush=True)
    while b"the-last-packet" not in (packet := ear.recv(1 << 16)):
        file.write(packet)
"""
SPEAK = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mouth:
    for word in sys.argv[2:]:
        mouth.sendto(word.encode(), (sys.argv[1], 9))
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need("netns")
    folder = tmp_path_factory.mktemp("hosts")
    with cluster_of_namespaces(folder, [1e9, 1e9], ["1xcpu", "1xcpu*0.5"], {"HETERO_CHECK": "0"}) as made:
        yield made


def test_an_array_for_many_tasks_crosses_the_link_once(hosts: Cluster) -> None:
    with hosts.start(0, sys.executable, "-c", ARRAY) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        before = hosts.fleet.counters()[0].sent_bytes
        said, wrong = program.communicate("\n", timeout=PATIENCE_S)
    assert said.splitlines() == ["{8000000.0} ['h0', 'h1'] 1"], wrong  # one object, however many tasks bring it along
    sent_bytes = hosts.fleet.counters()[0].sent_bytes - before
    assert 64e6 < sent_bytes < 2.5 * 64e6  # Ray may send an object once more on a loaded machine, but not for each task


def test_a_program_on_a_host_that_is_no_part_of_the_cluster_is_refused(hosts: Cluster) -> None:
    joins = f"import hetero; hetero.Context(devices='1xcpu', engine='ray', address={hosts.address!r})"
    code, _, wrong = hosts.run(1, "env", f"HETERO_HOME={hosts.folder}/nobody", sys.executable, "-c", joins)
    assert code != 0
    assert "speaks only to hosts with its certificates; make this host part of it" in wrong


def test_a_host_with_another_token_is_refused(hosts: Cluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("another-token-than-the-head-has")
    token.chmod(0o600)
    hosts.copy(1, token)
    certificates = str(hosts.certificates)
    code, _, wrong = joined(hosts, tmp_path, "--token-file", str(token), "--certificates", certificates)
    assert code == 1
    assert "refuses this program: its token is missing or another one" in wrong


def joined(hosts: Cluster, home: Path, *options: str) -> tuple[int, str, str]:
    command = [HETERO, "cluster", "start", "--join", hosts.address, "--host", hosts.fleet.hosts[1].address, *options]
    return hosts.run(1, "env", f"HETERO_HOME={home}", *command)


def test_a_host_with_certificates_of_another_authority_is_refused(hosts: Cluster, tmp_path: Path) -> None:
    make_certificates(tmp_path / "foreign", [host.address for host in hosts.fleet.hosts])
    hosts.copy(1, tmp_path / "foreign")
    token = str(hosts.token)
    code, _, wrong = joined(hosts, tmp_path, "--token-file", token, "--certificates", str(tmp_path / "foreign"))
    assert code == 1
    assert "shows no certificate of this cluster's authority" in wrong


def test_neither_token_nor_script_of_a_submitted_program_can_be_read_on_the_way(hosts: Cluster, tmp_path: Path) -> None:
    script, heard = tmp_path / "secret.py", tmp_path / "heard"
    script.write_text("import os; print('secret-answer', os.environ['WORD'])  # secret-script")
    hosts.copy(1, script)
    submit = (
        "cluster",
        "submit",
        "--address",
        hosts.node(0)["jobs"],
        "--env",
        "WORD=secret-word",
        str(script),
        "secret-argument",
    )
    head = hosts.fleet.hosts[0].address
    with hosts.start(1, sys.executable, "-c", LISTEN, str(heard)) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        code, said, wrong = hosts.hetero(1, *submit)
        hosts.run(1, sys.executable, "-c", SPEAK, head, "spoken-openly", "the-last-packet")
        listening.communicate(timeout=PATIENCE_S)
    assert (code, said) == (0, "secret-answer secret-word\n"), wrong
    packets = hosts.path(1, heard).read_bytes()
    assert b"spoken-openly" in packets
    token = hosts.token.read_bytes().strip()
    secrets = [token, b"secret-script", b"secret.py", b"secret-word", b"secret-answer", b"secret-argument"]
    assert [secret for secret in secrets if secret in packets] == []


def test_a_program_with_no_certificate_or_a_foreign_one_is_refused_by_the_job_server_and_logged(
    hosts: Cluster, tmp_path: Path
) -> None:
    make_certificates(tmp_path / "foreign", [host.address for host in hosts.fleet.hosts])
    hosts.copy(1, tmp_path / "foreign")
    node = hosts.node(0)
    token = ("--address", node["jobs"], "--token-file", str(hosts.token))
    nobody = ("env", f"HETERO_HOME={tmp_path}", HETERO, "cluster", "jobs", *token)
    code, _, wrong = hosts.run(1, *nobody)
    assert code == 2
    assert "is reached over a network, and nothing would be encrypted" in wrong
    code, _, wrong = hosts.run(1, *nobody, "--certificates", str(tmp_path / "foreign"))
    assert code == 1
    assert "is no job server of a cluster with these certificates" in wrong
    log = hosts.path(0, Path(node["folder"]) / "job_server.log")
    assert f"refused {hosts.fleet.hosts[1].address}" in log.read_text()


def test_every_program_runs_on_the_head_and_all_that_it_prints_reaches_who_sent_it(
    hosts: Cluster, tmp_path: Path
) -> None:
    """Also the last megabytes, a traceback, and the end by a signal; the hosts share no folder."""
    for index in range(2):
        hosts.path(index, Path("/tmp/which")).write_text(f"host {index}")
    script = tmp_path / "told.py"
    script.write_text(TOLD)
    hosts.copy(1, script)
    address = ("--address", hosts.node(0)["jobs"])
    sent = {}
    for how in ("well", "badly", "killed", "much", "once", "more"):
        code, job, wrong = hosts.hetero(1, "cluster", "submit", "--detach", *address, str(script), how)
        assert code == 0, wrong
        sent[how] = job.strip()
    ends = {how: hosts.hetero(1, "cluster", "logs", "--follow", *address, job) for how, job in sent.items()}
    codes = {how: code for how, (code, _, _) in ends.items()}
    assert codes == {**dict.fromkeys(ends, 0), "badly": 1, "killed": 137}, ends
    assert {said.splitlines()[0] for _, said, _ in ends.values()} == {"host 0"}
    assert "ZeroDivisionError: division by zero" in ends["badly"][1]
    assert ends["much"][1].splitlines()[1:] == ["x" * 99] * 30_000
    assert "failed after" in ends["killed"][2]
    assert hosts.hetero(1, "cluster", "logs", *address, sent["much"])[1] == ends["much"][1]
    listed = json.loads(hosts.hetero(1, "cluster", "jobs", "--json", *address)[1])["jobs"]
    states = {each["job"]: each["state"] for each in listed}
    assert {how: states[job] for how, job in sent.items()} == {
        **dict.fromkeys(sent, "finished"), "badly": "failed", "killed": "failed"
    }  # fmt: skip


def test_a_folder_travels_to_every_host_that_has_a_task_of_the_program(hosts: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "main.py").write_text(FOLDER)
    (folder / "beside.py").write_text(BESIDE)
    (folder / "data.txt").write_text("travelled")
    hosts.copy(1, folder)
    words = ("--working-dir", str(folder), "--env", "WORD=here", str(folder / "main.py"))
    code, said, wrong = hosts.hetero(1, "cluster", "submit", "--address", hosts.node(0)["jobs"], *words)
    assert code == 0, wrong + said
    assert "[('travelled', 'here', 'h0'), ('travelled', 'here', 'h1')]\n" in said


def test_tasks_of_a_host_whose_processes_are_killed_are_done_elsewhere(hosts: Cluster) -> None:
    with hosts.start(0, sys.executable, "-c", KILLED) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        hosts.kill_node(1)
        said, wrong = program.communicate(timeout=PATIENCE_S)
    assert said.splitlines()[-1] == "True h0", wrong


def test_a_host_that_joins_is_used_by_a_program_that_runs_and_one_that_leaves_costs_no_task(hosts: Cluster) -> None:
    hosts.hetero(1, "cluster", "stop")
    with hosts.start(0, sys.executable, "-c", JOINED) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "alone 1\n", program.stderr and program.stderr.read()
        hosts.start_node(1, "1xcpu*0.5")
        assert "together 2\n" in (program.stdout.readline(), program.stdout.readline())
        hosts.hetero(1, "cluster", "stop")
        said, wrong = program.communicate(timeout=PATIENCE_S)
    assert "True" in said.splitlines(), wrong  # Ray may say after it that workers of the other host are gone


def test_certificates_need_a_host_and_a_new_folder(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="certificates without a host"):
        make_certificates(tmp_path / "none", [])
    made = make_certificates(tmp_path / "some", ["10.0.0.1"])
    assert sorted(path.name for path in made) == sorted(path.name for path in (tmp_path / "some").iterdir())
    with pytest.raises(BadValueError, match="already has certificates"):
        make_certificates(tmp_path / "some", ["10.0.0.1"])
