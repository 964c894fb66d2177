"""`hetero launch` over hosts without Ray: what would run on another host runs here, in a home of its own."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

torch = pytest.importorskip("torch")

from hetero.comm.errors import GroupBrokenError  # noqa: E402
from hetero.comm.lines import Address  # noqa: E402
from hetero.engines.ray.cluster import Host  # noqa: E402
from hetero.errors import BadValueError, EngineError  # noqa: E402
from hetero.session.fleet import from_spec  # noqa: E402
from hetero.session.fleet_build import names_with_host  # noqa: E402
from hetero.session.hosts import named_devices  # noqa: E402
from hetero.train.launch import host_processes  # noqa: E402
from hetero.train.launch.host_processes import (  # noqa: E402
    HostCommand,
    HostProcesses,
    LaunchedProcess,
    LaunchOptions,
)
from hetero.train.launch.hosts import carried, check_versions, differences, package_of  # noqa: E402
from hetero.train.launch.launcher import launch  # noqa: E402
from hetero.train.reduction_groups import ByHost  # noqa: E402

HOSTS = (Host("h0", "0" * 8, "127.0.0.1"), Host("h1", "1" * 8, "127.0.0.2"))
PATIENCE_S = 240.0
TRAINS = """
import os, signal, sys, time, torch, hetero
from beside import WORD
fleet = hetero.train.init()
print(WORD, fleet.rank, os.getpid(), os.environ.get("LEARNING_RATE"), sys.argv[1:], os.getcwd(), flush=True)
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), 0.05)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
loader = torch.utils.data.DataLoader(data, 8, shuffle=True)
model, optimizer, loader = fleet.prepare(model, optimizer, loader)
with fleet.main_first():
    time.sleep(0.01)
for number in range(int(sys.argv[1])):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    if number == 1 and fleet.rank == 1:
        exec(sys.argv[2])
fleet.print("loss", repr(loss.item()))
"""


class Call:
    """Stands in for a call on another host by Ray: a process here."""

    def __init__(self, host: Host, home: Path, told: tuple[object, ...]) -> None:
        self.host = host
        environment = {**os.environ, "HETERO_HOME": str(home), "RAY_OF_ITS_WORKERS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "hetero.train.launch.hosts"]
        self.program = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        assert self.program.stdin is not None
        with self.program.stdin as stdin:
            stdin.write(pickle.dumps((os.getpid(), *told)))

    @property
    def is_over(self) -> bool:
        return self.program.poll() is not None

    def answer(self, timeout_s: float) -> object:
        return self.program.wait(timeout_s) and "it has failed"

    def cancel(self) -> None:
        self.program.kill()


class Cluster:
    """Stands in for a Ray cluster of two hosts."""

    certificates = ""

    def __init__(self, folder: Path) -> None:
        self.calls: list[Call] = []
        self._home = folder / "home-of-h1"

    def hosts(self) -> tuple[Host, ...]:
        return HOSTS

    def addresses(self) -> dict[str, str]:
        return {host.name: host.address for host in HOSTS}

    def begin(self, host: Host, _: Callable[..., object], told: tuple[object, ...]) -> Call:
        self.calls.append(Call(host, self._home, told))
        return self.calls[-1]


def written(folder: Path) -> str:
    (folder / "beside.py").write_text("WORD = 'found'\n")
    (folder / "script.py").write_text(TRAINS)
    return str(folder / "script.py")


def devices(*specs: str) -> list[Any]:
    """Return devices: those of the first line are of this host, those of the second of the other."""
    found = []
    for host, spec in zip(HOSTS, specs, strict=False):
        for device in from_spec(spec) if spec else ():
            found.append(replace(device, id=device.id.replace("h0", host.name)))
    return found


def launched(cluster: Cluster, script: str, *args: str, over: Sequence[Any], **options: Any) -> int:
    given = LaunchOptions(prints="all", timeout_s=PATIENCE_S, **options)
    return launch(script, args, over, given, cluster)  # type: ignore[arg-type]


def said(capfd: pytest.CaptureFixture[str]) -> tuple[list[list[str]], list[str], str]:
    """Return the words of each process at its beginning, the other lines and the errors."""
    out, wrong = capfd.readouterr()
    lines = out.splitlines()
    begun = [line for line in lines if "found " in line]
    return [line.split() for line in begun], [line for line in lines if line not in begun], wrong


def gone(pid: str) -> bool:
    try:
        psutil.Process(int(pid)).wait(30.0)
    except psutil.NoSuchProcess:
        return True
    return not psutil.pid_exists(int(pid))


@pytest.mark.servers
@pytest.mark.slow
def test_three_processes_on_two_hosts_train_as_one_and_the_script_travels(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEARNING_RATE", "0.05")
    script, cluster = written(tmp_path), Cluster(tmp_path)
    assert launched(cluster, script, "3", "", over=devices("1xcpu", "1xcpu,1xcpu"), shares="equal") == 0
    words, lines, wrong = said(capfd)
    assert sorted(each[0] for each in words) == ["[cpu:0]", "[h1/cpu:0]", "[h1/cpu:1]"], wrong
    assert {each[4] for each in words} == {"0.05"}
    home = {each[-1] for each in words if each[0] != "[cpu:0]"}
    assert all(folder.startswith(f"{tmp_path}/home") and "launched" in folder for folder in home)
    alone = subprocess.run([sys.executable, script, "3", ""], capture_output=True, text=True, check=True)
    losses = [float(line.split()[-1]) for line in (lines[-1], alone.stdout.splitlines()[-1])]
    assert losses[0] == pytest.approx(losses[1], rel=1e-13)
    assert all(gone(each[3]) for each in words)
    assert all(call.is_over for call in cluster.calls)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "code", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "h1/cpu:0 was ended by SIGKILL"),
        ("os.kill(os.getppid(), signal.SIGKILL)", 1, "host h1 (127.0.0.2) is gone"),
        pytest.param(
            "open('nowhere.pt')",
            1,
            "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.pt'; hosts share no",
            marks=pytest.mark.servers,
        ),
    ],
    ids=["a process is killed", "what watches it is killed", "a file is not there"],
)
def test_what_ends_on_another_host_ends_all_on_all_of_them(
    does: str, code: int, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script, cluster = written(tmp_path), Cluster(tmp_path)
    over = devices("1xcpu", "1xcpu")
    assert launched(cluster, script, "100000", does, over=over, check_steps=0, shares="equal") == code
    pids, _, wrong = said(capfd)
    assert [line for line in wrong.splitlines() if line.startswith("hetero: ") and words in line], wrong
    assert len([line for line in wrong.splitlines() if line.startswith("hetero: ")]) == 1
    assert len(pids) == 2
    assert all(gone(each[3]) for each in pids)
    assert cluster.calls[0].program.wait(30.0) is not None


@pytest.mark.slow
def test_a_script_may_run_on_another_host_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script, cluster = written(tmp_path), Cluster(tmp_path)
    options = LaunchOptions(timeout_s=PATIENCE_S, check_steps=0)
    assert launch(script, ("1", "sys.exit(3)"), devices("", "1xcpu"), options, cluster) == 0  # type: ignore[arg-type]
    pids, lines, wrong = said(capfd)
    assert [each[:2] for each in pids] == [["found", "0"]]
    assert lines[-1].startswith("loss ")
    assert "hetero: the main process runs on host h1 (127.0.0.2), and what it writes stays there in" in wrong


@pytest.mark.slow
def test_a_host_on_which_nothing_can_be_laid_down_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script, cluster = written(tmp_path), Cluster(tmp_path)
    (tmp_path / "home-of-h1").write_text("no folder")
    assert launched(cluster, script, "3", "", over=devices("1xcpu", "1xcpu")) == 2
    assert "hetero: host h1: " in said(capfd)[2]


def test_a_folder_for_other_hosts_is_refused_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="no device is on another host"):
        launch(written(tmp_path), (), devices("1xcpu"), LaunchOptions(), None, tmp_path)


def test_what_belongs_to_a_host_does_not_travel_and_the_modules_beside_a_script_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LEARNING_RATE", "RAY_ADDRESS", "HETERO_HOME", "HETERO_SEED", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1")
    script = written(tmp_path)
    for inside in ("package/__init__.py", "package/deep/part.py", "package/data.bin", "data/table.csv", ".hidden/x.py"):
        (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / inside).write_text("")
    package = package_of(script, ("7",), None)
    assert package.words == ("script.py", "7")
    assert {name for name in ("LEARNING_RATE", "HETERO_SEED") if name in package.environment} == {
        "LEARNING_RATE", "HETERO_SEED"
    }  # fmt: skip
    assert not {"RAY_ADDRESS", "HETERO_HOME", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "PATH"} & set(package.environment)
    assert carried({"HETERO_SEED": "3", "PATH": "/bin"}) == {"HETERO_SEED": "3"}
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(package.archive)) as file:
        assert sorted(file.namelist()) == ["beside.py", "package/__init__.py", "package/deep/part.py", "script.py"]


def test_versions_that_differ_are_named_and_builds_of_one_version_do_not() -> None:
    own = {"Python": "3.11.7", "torch": "2.13.0+cpu", "hetero": "1.0"}
    assert differences(own, {**own, "torch": "2.13.0+cu128"}) == ""
    assert differences(own, {**own, "hetero": ""}) == "no hetero, and this host hetero 1.0"
    assert "torch 2.12.0" in differences(own, {**own, "torch": "2.12.0+cpu"})


def test_a_host_with_other_versions_is_refused_and_one_that_does_not_answer_too() -> None:
    class Asked(Cluster):
        def __init__(self, answer: object) -> None:
            self._answer = answer

        def ask(self, hosts: Sequence[Host], function: Callable[[], object], *_: object) -> list[tuple[Host, object]]:
            assert "<locals>" in function.__qualname__  # so that it travels by value
            given = {**function(), "torch": "1.0"} if self._answer == "older" else self._answer or function()
            return [(host, given) for host in hosts]

    with pytest.raises(EngineError, match=r"host h1 \(127.0.0.2\) has torch 1.0, and this host torch .*; install the"):
        check_versions(Asked("older"))  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="no hetero there"):
        check_versions(Asked(EngineError("no hetero there")))  # type: ignore[arg-type]
    check_versions(Asked(None))  # type: ignore[arg-type]


def test_a_process_that_is_stopped_is_told_once_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_processes, "FROZEN_S", 0.2)
    (tmp_path / "sleeps.py").write_text("import time; print('here', flush=True); time.sleep(600)")
    wrote: list[tuple[int, int, str]] = []
    command = HostCommand(("sleeps.py",), {**os.environ}, str(tmp_path), streams=False)
    processes = HostProcesses(command, lambda *words: wrote.append(words))
    (device,) = devices("1xcpu")
    address = Address("127.0.0.1", 1, "key")
    others = set(psutil.Process().children())
    processes.start(LaunchedProcess(0, ("cpu:0", "cpu:1"), "cpu", 0, 1, 1.0, address), device)
    (process,) = set(psutil.Process().children()) - others
    while "".join(text for _, _, text in wrote) != "here\n":
        assert processes.poll() == []
    process.suspend()
    said: list[object] = []
    while not said:
        said += processes.poll()
    assert said == [host_processes.ProcessStopped(0)]
    assert processes.poll() == []
    processes.end_all()
    assert processes.poll() == [host_processes.ProcessEnded(0, -signal.SIGTERM, "here")]
    assert {words[:2] for words in wrote} == {(0, 1)}


def test_devices_are_named_as_a_cluster_lists_them() -> None:
    found = devices("2xcpu", "1xcpu")
    assert [each.id for each in named_devices(found, names_with_host("h1/cpu:0,cpu:1"))] == ["h1/cpu:0", "h0/cpu:1"]
    assert names_with_host("1xcpu,2xcpu/4cores") == ()
    with pytest.raises(BadValueError, match=r"no host has h2/cpu:0; name them as .*: cpu:0, cpu:1, h1/cpu:0"):
        named_devices(found, ["cpu:0", "h2/cpu:0"])
    assert [each.id for each in from_spec("h0/cpu:0")] == ["h0/cpu:0"]
    for line, words in (
        ("cpu:0,h1/cpu:0", "h1/cpu:0 is on another host"),
        ("2xcpu,h1/cpu:0", "'2xcpu' beside devices"),
    ):
        with pytest.raises(BadValueError, match=words):
            from_spec(line)


def test_a_process_learns_the_hosts_of_all() -> None:
    (device,) = devices("1xcpu")
    told = LaunchedProcess(
        1, ("cpu:0", "h1/cpu:0"), "cpu", 0, 1, 1.0, ("127.0.0.1", 1, "key", ""), LaunchOptions(), {}, ("a", "b", "a")
    )  # type: ignore[arg-type]
    again = LaunchedProcess.from_text(told.to_text())
    assert (again.hosts, again.name, again.checks) == (("a", "b", "a"), "h1/cpu:0", False)
    assert replace(told, rank=2).name == "the check"
    assert device.short == "cpu:0"


class Meetings:
    """Where threads exchange values, as the launching program does for processes."""

    def __init__(self) -> None:
        self._said: dict[str, dict[int, bytes]] = {}
        self._came = threading.Condition()

    def meet(self, name: str, rank: int, world: int) -> Any:
        meetings = self

        class Here:
            library = "none"

            def exchange(self, word: str, mine: bytes, deadline_s: float) -> list[bytes]:
                with meetings._came:
                    said = meetings._said.setdefault(f"{name}/{word}", {})
                    said[rank] = mine
                    meetings._came.notify_all()
                    if not meetings._came.wait_for(lambda: len(said) == world, deadline_s):
                        raise GroupBrokenError("not all came")
                    return [said[each] for each in range(world)]

        return Here()


@contextmanager
def over_hosts(places: Sequence[str]) -> Iterator[Callable[[Callable[[ByHost], object]], list[Any]]]:
    """Yield what runs a function in each of the members of a group by hosts."""
    meetings = Meetings()
    groups = [ByHost(rank, places, meetings.meet, 20.0) for rank in range(len(places))]
    with ThreadPoolExecutor(len(places)) as threads:
        yield lambda function: list(threads.map(function, groups))
        for group in groups:
            group.close()


@pytest.mark.parametrize("places", [("a", "b", "a", "b", "b"), ("b", "a"), ("a", "a", "b")])
def test_a_sum_over_hosts_is_the_sum_and_the_same_bits_on_all(places: tuple[str, ...]) -> None:
    addresses = {"a": "127.0.0.1", "b": "127.0.0.2"}
    rows = [
        torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in range(len(places))
    ]
    with over_hosts([addresses[place] for place in places]) as run:

        def summed(group: ByHost) -> Any:
            row, whole, few = rows[group.rank].clone(), rows[group.rank].clone(), [float(group.rank)]
            group.all_reduce(row)
            group.broadcast(whole, len(places) - 1)
            most = torch.tensor(few)
            group.all_reduce(most, "max")
            return row, whole, float(most)

        found = run(summed)
    for row, whole, most in found:
        assert torch.equal(row, found[0][0])
        assert torch.allclose(row, torch.stack(rows).sum(0), rtol=1e-14, atol=1e-14)
        assert torch.equal(whole, rows[-1])
        assert most == len(places) - 1


def test_a_member_that_leaves_frees_those_of_all_hosts() -> None:
    with over_hosts(["127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2"]) as run:

        def leaves(group: ByHost) -> str:
            group.all_reduce(torch.ones(3))
            if group.rank == 3:
                group.abort()
                return "left"
            try:
                group.all_reduce(torch.ones(3))
            except GroupBrokenError:
                return "free"
            return "summed"

        assert run(leaves) == ["free", "free", "free", "left"]


def test_a_line_to_another_host_closes_when_that_does_not_answer() -> None:
    import socket

    from hetero.comm.lines import Line, LineServer

    with LineServer() as server:
        line = Line.dial(server.address)
        line.end_when_cut(15.0)
        connection = line._connection
        options: Mapping[int, int] = {socket.TCP_USER_TIMEOUT: 15000, socket.TCP_KEEPCNT: 5, socket.TCP_KEEPIDLE: 3}
        assert {name: connection.getsockopt(socket.IPPROTO_TCP, name) for name in options} == options
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        line.close()


def test_members_of_a_group_are_missed_when_their_host_does_not_answer() -> None:
    import socket

    from hetero.comm.mesh import Mesh

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        Mesh(0, {1: connection}, ("127.0.0.1", "127.0.0.1"))
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15000
