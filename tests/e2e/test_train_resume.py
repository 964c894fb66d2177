"""`hetero train` that is killed goes on where its newest checkpoint stands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hetero
from tests.needs import PROJECT

pytest.importorskip("torch")

COMMAND = [
    sys.executable,
    "-m",
    "hetero",
    "train",
    str(PROJECT / "examples" / "mnist.yaml"),
    "--devices",
    "2xcpu",
]
KEPT = ["--set", "train.checkpoint=kept", "--set", "train.checkpoint_every=5", "--set", "train.sample_log=log"]


def train(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=folder, check=False)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was killed within an epoch, some checkpoints after its beginning."""
    folder = tmp_path_factory.mktemp("killed")
    program = subprocess.Popen(
        [*COMMAND, *KEPT, "--set", "train.epochs=500"], stdout=subprocess.DEVNULL, cwd=folder, start_new_session=True
    )
    while not (folder / "kept" / f"step-{15:012d}" / "manifest=").exists():
        assert program.poll() is None
        time.sleep(0.05)
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    return folder


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.timeout(900)  # four programs, each with a limit of its own
def test_a_run_that_was_killed_goes_on_after_its_newest_whole_checkpoint(killed: Path) -> None:
    newest = sorted((killed / "kept").glob("step-*"))[-1]
    step = int(newest.name.removeprefix("step-"))
    for path in newest.glob("state*"):
        path.write_bytes(path.read_bytes()[:100])
    epochs = step // 12 + 2
    found = train(killed, *KEPT, "--set", f"train.epochs={epochs}", "--resume")
    assert f"note: the checkpoint of step {step} is passed over" in found.stdout
    assert f"goes on after step {step - 5}" in found.stdout
    assert hetero.train.check_sample_log(killed / "log")[:2] == (12 * epochs, epochs)

    again = json.loads(train(killed, *KEPT, "--set", f"train.epochs={epochs}", "--resume", "--json").stdout)
    assert (again["epochs"], again["resumed_after"], again["history"]) == (epochs, epochs, [])
    assert again["test_accuracy"] > 0.5

    refused = train(killed, *KEPT, code=2)
    assert f"there is a checkpoint of step {12 * epochs} already, and this run stands at step 0" in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resume"], "train.resume: True is not allowed; give train.checkpoint"),
        (["--set", "train.resume=maybe"], "train.resume: 'maybe' is not allowed; write true or false"),
        ([*KEPT, "--set", "train.checkpoint_every=0"], "train.checkpoint_every: 0 is not allowed"),
        (["--set", "train.checkpoints=kept"], "there is no such key; did you mean 'checkpoint'?"),
    ],
)
def test_a_mistake_in_the_keys_of_checkpoints_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    found = train(tmp_path, *words, code=3)
    assert said in found.stderr
    assert found.stderr.count("\n") == 1
