"""Programs sent to a cluster end as they would here, can be watched and stopped, and leave no worker behind."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hetero.engines.ray.job_package import pack, read_variables
from hetero.engines.ray.job_server import keep_ends
from hetero.errors import BadValueError

pytestmark = [pytest.mark.timeout(400), pytest.mark.servers]

HETERO = str(Path(sys.executable).with_name("hetero"))
PATIENCE_S = 180.0
PROGRAM = """
import os, sys
import hetero
import beside
with hetero.Context(history=False) as ctx:
    print(ctx.run(beside.seen))
print(sys.argv[1:], file=sys.stderr)
sys.exit(5)
"""
BESIDE = """
import os
import hetero
def seen():
    return hetero.get_current_device().id, os.environ["SIZE"]
"""


@dataclass(frozen=True)
class Head:
    """A cluster of this host alone."""

    folder: Path
    address: str

    def run(self, *words: str) -> tuple[int, str, str]:
        with self.start(*words) as running:
            said, wrong = running.communicate(timeout=PATIENCE_S)
        return running.returncode, said, wrong

    def start(self, *words: str) -> subprocess.Popen[str]:
        env = {**os.environ, "HETERO_HOME": str(self.folder / "home")}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [HETERO, *words], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=env
        )

    def written(self) -> dict[str, object]:
        return dict(json.loads((self.folder / "home" / "node.json").read_text()))

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
        return str(path)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    folder = tmp_path_factory.mktemp("jobs")
    bare = Head(folder, "")
    try:
        code, _, wrong = bare.run("cluster", "start", "--head", "--devices", "1xcpu", "--object-store-memory", "100MB")
        assert code == 0, wrong
        yield Head(folder, str(bare.written()["jobs"]))
    finally:
        bare.run("cluster", "stop")


@pytest.mark.slow
def test_a_program_ends_there_as_it_would_here_and_leaves_no_worker(head: Head) -> None:
    script = head.write("program/main.py", PROGRAM)
    head.write("program/beside.py", BESIDE)
    folder = str(head.folder / "program")
    code, said, wrong = head.run(
        "cluster", "submit", "--working-dir", folder, "--env", "SIZE=7", script, "--fast", "a b"
    )
    assert code == 5, wrong
    assert said.splitlines() == ["('h0/cpu:0', '7')", "['--fast', 'a b']"]
    assert "its program began after a cold start of" in wrong
    assert "failed after" in wrong
    assert "exit code 5" in wrong
    node = psutil.Process(int(str(head.written()["pid"])))
    deadline_s = time.monotonic() + PATIENCE_S
    while workers(node) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert workers(node) == []


def workers(node: psutil.Process) -> list[str]:
    titles = []
    for process in node.children(recursive=True):
        try:
            titles.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return [title for title in titles if title.startswith("ray::") and "Agent" not in title]


@pytest.mark.slow
def test_a_job_is_listed_read_and_cancelled(head: Head) -> None:
    script = head.write("long.py", "import time; print('begun', flush=True); time.sleep(600)")
    code, said, wrong = head.run("cluster", "submit", "--detach", script)
    assert code == 0, wrong
    job = said.strip()
    deadline_s = time.monotonic() + PATIENCE_S
    while head.run("cluster", "logs", job)[1] != "begun\n":
        assert time.monotonic() < deadline_s
    assert state(head, job) == ("running", None)
    assert head.run("cluster", "cancel", job)[0] == 0
    assert state(head, job) == ("cancelled", 130)
    assert head.run("cluster", "logs", "--follow", job)[:2] == (130, "begun\n")
    code, _, wrong = head.run("cluster", "logs", "long-nothing")
    assert (code, wrong) == (1, "hetero: there is no job 'long-nothing'; see 'hetero cluster jobs'\n")


def state(head: Head, job: str) -> tuple[str, int | None]:
    found = {row["job"]: row for row in json.loads(head.run("cluster", "jobs", "--json")[1])["jobs"]}
    return found[job]["state"], found[job]["exit_code"]


@pytest.mark.slow
def test_who_shows_another_token_or_no_request_is_sent_away_and_logged(head: Head) -> None:
    token = head.write("token", "another-token-than-the-head-has")
    code, _, wrong = head.run("cluster", "jobs", "--token-file", token)
    assert code == 1
    assert "the cluster refuses this token" in wrong
    host, _, port = head.address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as line:
        line.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"this is no request" in line.makefile("rb").readline()
    log = (Path(str(head.written()["folder"])) / "job_server.log").read_text()
    assert "refused 127.0.0.1: another token" in log
    assert "refused 127.0.0.1: no request" in log


@pytest.mark.slow
def test_what_cannot_be_reached_or_asked_is_told_in_one_line(head: Head, tmp_path: Path) -> None:
    script = head.write("short.py", "print(1)")
    cases = {
        ("cluster", "jobs", "--address", "127.0.0.1:1"): "no cluster takes jobs at 127.0.0.1:1: Connection refused",
        ("cluster", "jobs", "--address", str(head.written()["address"])): "is no job server of a cluster",
        ("cluster", "jobs", "--address", "10.9.9.9:1"): "is reached over a network, and nothing would be encrypted",
        ("cluster", "submit", str(tmp_path / "none.py")): "there is no such script",
        ("cluster", "start", "--head"): "runs on this host",
    }
    if importlib.util.find_spec("virtualenv") is None:
        cases["cluster", "submit", "--pip", "six", script] = "lacks virtualenv"
    for words, problem in cases.items():
        code, _, wrong = head.run(*words)
        assert code in (1, 2), words
        assert problem in wrong
        assert wrong.count("\n") == 1


SLOW = """
import pathlib, sys, time
for number in range(1000):
    print(number, flush=True)
    time.sleep(0.2)
    if pathlib.Path(sys.argv[1]).exists():
        sys.exit(9)
"""


@pytest.mark.slow
def test_a_job_outlives_the_job_server_and_is_found_again_with_its_exit_code(head: Head) -> None:
    end = head.folder / "end"
    script = head.write("slow.py", SLOW)
    with head.start("cluster", "submit", script, str(end)) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "0\n"
        os.kill(int(str(head.written()["job_server_pid"])), signal.SIGKILL)
        _, wrong = following.communicate(timeout=PATIENCE_S)
    job = wrong.partition("job ")[2].partition(" ")[0]
    assert job.startswith("slow-")
    assert following.returncode == 1
    assert "the connection to the job server" in wrong
    assert f"see 'hetero cluster logs --follow {job}'" in wrong
    code, _, wrong = head.run("cluster", "jobs")
    assert code == 1
    assert "has ended; the jobs of this head go on; start it again with 'hetero cluster serve'" in wrong
    code, said, wrong = head.run("cluster", "serve")
    assert (code, said) == (0, f"jobs are taken at {head.address}\n"), wrong
    assert head.run("cluster", "serve")[0] == 1
    assert state(head, job) == ("running", None)
    end.touch()
    code, said, wrong = head.run("cluster", "logs", "--follow", job)
    assert (code, said.startswith("0\n1\n")) == (9, True), wrong
    assert state(head, job) == ("failed", 9)


def test_a_port_in_use_and_a_token_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--port", "--jobs-port"):
            code, _, wrong = Head(tmp_path, "").run("cluster", "start", "--head", option, port)
            assert code == 1
            assert f"127.0.0.1:{port} cannot be used: Address already in use; give another {option}" in wrong
    autoscaling = ("--autoscaling", str(tmp_path / "none.yaml"))
    code, _, wrong = Head(tmp_path, "").run("cluster", "start", "--head", *autoscaling)
    assert (code, "there is no such file" in wrong) == (2, True)
    code, _, wrong = Head(tmp_path, "").run(
        "cluster", "start", "--join", "127.0.0.1:1", "--token-file", str(tmp_path / "no")
    )
    assert (code, "the token cannot be read" in wrong) == (2, True)


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("--port", "70000"), 2, "--port 70000 is no port; give 1 to 65535, or 0 for any"),
        (("--port", "-3"), 2, "--port -3 is no port"),
        (("--jobs-port", "99999"), 2, "--jobs-port 99999 is no port"),
        (
            ("--object-store-memory", "0"),
            2,
            "--object-store-memory 0 B is no size of an object store on this host; give 80 MB to",
        ),
        (
            ("--object-store-memory", "999PB"),
            2,
            "--object-store-memory 999 PB is no size of an object store on this host",
        ),
        (("--devices", "5xnope"), 3, "'nope' is no kind of device"),
        (("--devices", "9xfpga"), 2, "'9xfpga' is absent"),
    ],
)
def test_an_option_of_a_node_that_cannot_be_honoured_is_refused_by_name(
    words: tuple[str, str], code: int, problem: str, tmp_path: Path
) -> None:
    given, _, wrong = Head(tmp_path, "").run("cluster", "start", "--head", *words)
    assert (given, wrong.count("\n")) == (code, 1), wrong
    assert problem in wrong


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "nonsense", "auto", ":7", "127.0.0.1:"])
def test_an_address_that_is_none_cannot_be_joined(address: str, tmp_path: Path) -> None:
    code, _, wrong = Head(tmp_path, "").run("cluster", "start", "--join", address)
    assert (code, wrong.count("\n")) == (2, 1)
    assert address in wrong


def test_a_folder_travels_without_what_is_hidden_and_has_the_script_in_it(tmp_path: Path) -> None:
    for name in ("main.py", "part/more.py", ".git/config", "part/__pycache__/more.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    inside, archive = pack(tmp_path / "part" / "more.py", tmp_path)
    assert inside == "part/more.py"
    assert (archive.count(b"main.py"), archive.count(b"config"), archive.count(b".pyc")) == (2, 0, 0)
    (tmp_path / "alone").mkdir()
    with pytest.raises(BadValueError, match="is not in the folder"):
        pack(tmp_path / "main.py", tmp_path / "alone")
    with pytest.raises(BadValueError, match="sets no variable"):
        read_variables(["2SIZE=3"])


class OneJob:
    """What Ray knows of jobs, of which there is one."""

    def __init__(self, over: bool) -> None:
        self.over = over
        self.put: list[str] = []

    async def get_info(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(status=SimpleNamespace(is_terminal=lambda: self.over))

    async def put_status(self, job: str, status: str) -> None:
        self.put.append(f"{job} {status}")


@pytest.mark.parametrize(("over", "put"), [(False, ["a FAILED"]), (True, [])])
def test_a_job_that_is_over_stays_as_it_ended(over: bool, put: list[str]) -> None:
    client = OneJob(over)
    keep_ends(client)
    asyncio.run(client.put_status("a", "FAILED"))
    assert client.put == put
