"""A model is trained over the devices of two hosts as on one: with the same bits, and one host may be lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, cluster_of_namespaces
from tests.needs import PROJECT, need

pytest.importorskip("torch")
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow, pytest.mark.servers]

PATIENCE_S = 400.0
TRAINS = """
import json, sys, time
from pathlib import Path
import hetero
from tests.engine.test_train_deaths import make, same_bits

folder = Path(sys.argv[1])
stages = [("both hosts train", True), ("one host trains", False)]
def told(report):
    takes = report.shares["h1/cpu:0"] > 0
    if not stages:
        time.sleep(0.0 if takes else 1.0)
        return takes
    if takes == stages[0][1]:
        print(stages.pop(0)[0], flush=True)
        input()
on_ray = {"config": {"engine": "ray", "address": "auto"}, "callbacks": [told]}
with make(None, **on_ray, sample_log=folder / "log", checkpoint=folder / "checkpoints") as trainer:
    trainer.fit(5000)
epochs = len(trainer.reports)
with make("1xcpu") as alone:
    alone.fit(epochs)
found = {
    "same bits": same_bits(trainer, list(alone.model.parameters())),
    "samples each once": hetero.train.check_sample_log(folder / "log").epochs == epochs,
    "shares": trainer.reports[-1].shares,
    "notes": [word for word in ("is lost", "is back") if any(f"h1/cpu:0 {word}" in note for note in trainer.notes)],
    "checkpoints": len(list((folder / "checkpoints").glob("step-*"))),
}
(folder / "found").write_text(json.dumps(found))
"""
GROUP = """
import json
import numpy as np, hetero
@hetero.task(devices=2)
def total():
    number = np.full(300_000, float(hetero.collectives.rank() + 1))
    sums = [hetero.collectives.all_reduce(number, algorithm=word) for word in ("auto", "ring", "library")]
    hosts = hetero.collectives.all_gather(np.frombuffer(hetero.get_current_device().host.encode(), np.uint8))
    return [float(sum[0]) for sum in sums], sorted(bytes(host).decode() for host in hosts)
with hetero.Context(engine="ray", address="auto", history=False) as ctx:
    print(json.dumps(ctx.run(total)))
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need("netns")
    with cluster_of_namespaces(tmp_path_factory.mktemp("hosts"), [1e9, 1e9], ["1xcpu", "1xcpu"]) as made:
        yield made


def test_collectives_of_a_group_task_go_between_hosts(hosts: Cluster) -> None:
    with hosts.start(0, sys.executable, "-c", GROUP) as program:
        said, wrong = program.communicate(timeout=PATIENCE_S)
    assert '[[3.0, 3.0, 3.0], ["h0", "h1"]]' in said.splitlines(), wrong


def said_in_time(program: subprocess.Popen[str], words: str) -> bool:
    """Read what a program says up to some words: Ray says things in between."""
    assert program.stdout is not None
    return any(line == f"{words}\n" for line in iter(program.stdout.readline, ""))


def go_on(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()


def test_training_over_two_hosts_gives_the_bits_of_one_device_though_a_host_is_lost_and_returns(
    hosts: Cluster, tmp_path: Path
) -> None:
    hosts.path(0, tmp_path).mkdir(parents=True)
    with hosts.start(0, sys.executable, "-c", TRAINS, str(tmp_path), cwd=PROJECT) as program:
        assert said_in_time(program, "both hosts train"), program.communicate()[1]
        hosts.kill_node(1)
        go_on(program)
        assert said_in_time(program, "one host trains"), program.communicate()[1]
        hosts.start_node(1, "1xcpu")
        _, wrong = program.communicate("\n", timeout=PATIENCE_S)
    assert program.returncode == 0, wrong
    assert json.loads(hosts.path(0, tmp_path / "found").read_text()) == {
        "same bits": True,
        "samples each once": True,
        "shares": {"cpu:0": 16, "h1/cpu:0": 16},
        "notes": ["is lost", "is back"],
        "checkpoints": 3,
    }
