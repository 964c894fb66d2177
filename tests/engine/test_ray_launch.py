"""`hetero launch` over two hosts that share no folder: the numbers of one device, and all ends on all hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.cluster import Cluster, cluster_of_namespaces
from tests.needs import PROJECT, need

pytest.importorskip("torch")
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow, pytest.mark.servers]

LOOPS = Path(__file__).with_name("launched_loops.py")
PATIENCE_S = 300.0
LAUNCH = ("launch", "--engine", "ray", "--address", "auto")
KEPT = ("dropout_schedule_and_clipping", "losses_of_every_kind", "batch_norm_and_evaluation", "accumulated_with_hooks")
LEFT_OUT = ("surely_left_out", "epochs_whose_sums_are_those_of_all_devices")
GOES_ON = """
import os, torch, hetero
fleet = hetero.train.init()
print("process", os.getpid(), flush=True)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
model, optimizer, loader = fleet.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
step = 0
while True:
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        step += 1
        if step == 20:
            print("trains", flush=True)
"""
RECOVERS = """
def train(inputs):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()

step = alone = 0
while alone < 20:
    for (inputs,) in loader:
        fleet.step(train, inputs)
        step += 1
        alone += fleet.step(lambda: int(fleet.sum(1))) == 1
        if step == 20:
            print("trains", flush=True)
fleet.print("over")
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need("netns")
    with cluster_of_namespaces(tmp_path_factory.mktemp("hosts"), [1e9, 1e9], ["1xcpu*0.5", "1xcpu"]) as made:
        yield made


def numbers(text: str) -> list[tuple[str, list[float]]]:
    lines = [line.split() for line in text.splitlines()]
    return [(line[0], [float(word) for word in line[1:] if word[-1].isdigit()]) for line in lines]


@pytest.mark.parametrize("loops", [KEPT, LEFT_OUT], ids=["both train", "one is left out"])
def test_loops_over_two_hosts_print_what_one_device_prints(
    loops: Sequence[str], hosts: Cluster, tmp_path: Path
) -> None:
    """The faster device is the other host's, so that the main process is there."""
    script = tmp_path / LOOPS.name
    script.write_bytes(LOOPS.read_bytes())
    hosts.copy(0, script)
    check = ("--check-steps", "1000" if loops is KEPT else "2")
    code, found, wrong = hosts.hetero(0, *LAUNCH, *check, "--devices", "cpu:0,h1/cpu:0", str(script), *loops)
    assert code == 0, wrong
    assert "the main process runs on host h1 (10.77.0.2)" in wrong
    assert ("hetero: cpu:0 left out after" in wrong) == (loops is LEFT_OUT)
    alone = [sys.executable, str(script), *(loop for loop in loops if loop != "surely_left_out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HETERO_HOME": str(tmp_path)}
    wanted = subprocess.run(alone, env=environment, capture_output=True, text=True, check=True, cwd=PROJECT).stdout
    for (name, values), (like, expected) in zip(numbers(found), numbers(wanted), strict=True):
        assert name == like
        assert values == pytest.approx(expected, rel=1e-12), name


def test_what_no_host_has_is_named(hosts: Cluster) -> None:
    code, _, wrong = hosts.hetero(0, *LAUNCH, "--devices", "cpu:0,h2/cpu:0", str(LOOPS))
    assert (code, wrong.splitlines()[-1].partition(";")[0]) == (2, "hetero: devices: no host has h2/cpu:0"), wrong


def gone(pid: int) -> bool:
    try:
        psutil.Process(pid).wait(60.0)
    except psutil.NoSuchProcess:
        return True
    return not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("cut", "recovers"), [(False, False), (True, True), (True, False)], ids=["killed", "recovers", "cut off"]
)
def test_a_host_that_is_lost_ends_all_processes_on_both_or_is_done_without(
    cut: bool, recovers: bool, hosts: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "goes_on.py"
    script.write_text(GOES_ON.partition("step = 0")[0] + RECOVERS if recovers else GOES_ON)
    hosts.copy(0, script)
    words = (*LAUNCH, "--check-steps", "0", "--shares", "equal", "--prints", "all", str(script))
    with hosts.start(0, str(Path(sys.executable).with_name("hetero")), *words) as program:
        assert program.stdout is not None
        said: list[str] = []
        while sum("trains" in line for line in said) < 2:
            said.append(program.stdout.readline())
            assert said[-1], program.communicate()[1]
        pids = [int(line.split()[-1]) for line in said if " process " in line]
        if cut:
            hosts.fleet.connect(1, up=False)
        else:
            hosts.kill_node(1)
            hosts.start_node(1, "1xcpu")
        rest, wrong = program.communicate(timeout=PATIENCE_S)
    if cut:
        hosts.fleet.connect(1, up=True)
        hosts.kill_node(1)
        hosts.start_node(1, "1xcpu")
    assert program.returncode == (0 if recovers else 1), wrong
    assert ("over" in rest) == recovers
    assert ("hetero: h1/cpu:0 cannot be reached any more; cpu:0 goes on, without" in wrong) == recovers, wrong
    own = [line for line in wrong.splitlines() if line.startswith("hetero: host h1 (10.77.0.2) ")]
    assert ["did not answer for 15 s" in line for line in own] == [cut], wrong
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
