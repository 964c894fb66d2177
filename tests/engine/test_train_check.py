"""`hetero train check`: a script on one device and over two, step by step; what parts is named, rounding is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_launch import ENTROPY, INIT, LOOPS, MODEL, PATIENCE_S, environment

SEEDED = "torch.manual_seed(0)\n"


def checked(
    folder: Path, *words: str, steps: int = 3, devices: str = "1xcpu,1xcpu*0.5"
) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "hetero", "train", "check", *words[:1], "--steps", str(steps), "--devices", devices]
    return subprocess.run(
        [*line, "--json", *words[1:]], env=environment(folder), capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip


def compared(folder: Path, *words: str, steps: int = 3) -> dict[str, Any]:
    found = checked(folder, *words, steps=steps)
    assert found.returncode in (0, 1), found.stderr
    document: dict[str, Any] = json.loads(found.stdout)
    assert document["is_equal"] is (found.returncode == 0)
    assert (document["first"] is None) is document["is_equal"]
    return document


def written(folder: Path, text: str) -> str:
    script = folder / "script.py"
    script.write_text(text)
    return str(script)


@pytest.mark.servers
@pytest.mark.slow
def test_loops_that_do_what_one_device_does_are_equal_in_every_step(tmp_path: Path) -> None:
    """Two optimizers that take turns, closures of one, gradients of several passes, losses of every kind."""
    loops = ("two_models_that_play_against_each_other", "a_closure", "accumulated_with_hooks", "losses_of_every_kind")
    found = compared(tmp_path, str(LOOPS), "--check-steps", "100", *loops, steps=37)
    assert found["is_equal"], found["worst"]
    rows = found["differences"]
    assert {row["step"] for row in rows} == set(range(1, 38))
    assert {row["what"] for row in rows} == {"initial value", "loss", "gradient", "value"}
    first_steps = [row["step"] for row in rows if row["what"] == "initial value"]
    assert first_steps[0] == 1
    assert len(first_steps) >= 4  # one for each optimizer
    assert max(row["difference"] for row in rows) <= 1e-10


@pytest.mark.servers
@pytest.mark.slow
def test_what_mixes_samples_in_one_step_only_is_found_there_by_parameter(tmp_path: Path) -> None:
    before = "print('beside'); inputs = inputs - inputs.mean(0) if number == 1 else inputs"
    text = MODEL.format(before=before, loss=ENTROPY).replace("Linear(4, 2)", "Sequential(torch.nn.Linear(4, 2))")
    found = compared(tmp_path, written(tmp_path, INIT + SEEDED + text))
    first = found["first"]
    assert (first["step"], first["what"]) == (2, "gradient")
    assert {row["parameter"] for row in found["worst"]} == {"Sequential.0.weight", "Sequential.0.bias"}
    apart = [row["difference"] for row in found["worst"]]
    assert apart == sorted(apart, reverse=True)
    assert apart[0] > 0.01
    assert [row["parts"] for row in found["differences"] if row["step"] == 1] == [False] * 4


NORMALISED = """
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), 0.05)
"""


@pytest.mark.servers
@pytest.mark.slow
def test_what_adam_makes_of_rounding_is_allowed(tmp_path: Path) -> None:
    """The bias before a normalisation has a gradient of rounding alone, of which Adam makes steps of full length."""
    body = MODEL[MODEL.index("data =") :].format(before="pass", loss=ENTROPY)
    found = compared(tmp_path, written(tmp_path, INIT + SEEDED + NORMALISED + body))
    assert found["is_equal"], found["worst"]
    more = [row for row in found["differences"] if row["difference"] > 1e-4]
    assert "Sequential.0.bias" in {row["parameter"] for row in more}
    assert all(row["tolerance"] >= row["difference"] for row in more)


TRAINS = INIT + SEEDED + MODEL.format(before="pass", loss=ENTROPY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("print('alone')\n", 2, "did not call hetero.train.init()"),
        (INIT, 2, "on cpu:0 alone without a step of an optimizer of torch"),
        (TRAINS.replace("randn(64", "randn(16").replace("(64,)", "(16,)"), 2, "give --steps 2"),
        (f"{INIT}raise ValueError('no')\n", 1, "on cpu:0 alone, with 0 of 3 steps done: ended with exit code 1"),
        (
            TRAINS.replace("model, optimizer, loader = fleet.prepare(model, optimizer, loader)", ""),
            2,
            "backward() is called before anything is prepared",
        ),
        (
            TRAINS.replace("manual_seed(0)", "manual_seed(random.getrandbits(40))"),
            2,
            "random numbers that are not seeded",
        ),
    ],
    ids=["no init", "no steps", "too few", "fails", "unprepared", "unseeded"],
)
def test_a_script_that_cannot_be_compared_is_told_why_in_one_line(
    text: str, code: int, words: str, tmp_path: Path
) -> None:
    found = checked(tmp_path, written(tmp_path, text))
    assert (found.returncode, found.stdout) == (code, "")
    assert words in found.stderr.splitlines()[-1]
    assert sum(line.startswith("hetero: ") for line in found.stderr.splitlines()) == 1


def test_one_device_cannot_be_compared(tmp_path: Path) -> None:
    found = checked(tmp_path, __file__, devices="1xcpu")
    assert (found.returncode, found.stdout) == (2, "")
    assert "there is one device (cpu:0), and nothing to compare it with" in found.stderr


@pytest.mark.servers
@pytest.mark.slow
def test_people_get_a_table_and_what_a_script_prints_stands_apart(tmp_path: Path) -> None:
    script = written(tmp_path, TRAINS.replace("optimizer.zero_grad()", "print('beside', sys.argv[1:], flush=True)"))
    words = [sys.executable, "-m", "hetero", "train", "check", "--devices", "2xcpu", "--steps", "1", script, "5"]
    found = subprocess.run(
        words, env=environment(tmp_path), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert found.returncode == 0, found.stderr
    lines = [line.split() for line in found.stdout.splitlines()]
    assert lines[0] == ["step", "what", "difference", "allowed", "parameter"]
    assert [line[1] for line in lines[1:-1]] == ["initial", "loss", "gradient", "value"]
    assert "do what cpu:0 does alone, but for rounding" in found.stdout
    assert found.stderr.splitlines().count("beside ['5']") == 2
