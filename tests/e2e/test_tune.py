"""`hetero tune` as a user types it."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hetero.recipes.training import read_recipe
from tests.needs import PROJECT

pytest.importorskip("optuna")

RECIPE = PROJECT / "examples" / "tune.yaml"
TUNED = """
import time

def objective(trial):
    for step in range(3):
        time.sleep(0.05)
        trial.report(step, (trial["x"] - 2) ** 2)
    return (trial["x"] - 2) ** 2
"""
OF_FUNCTION = """
tune: {objective: tuned.py:objective, trials: 8, pruner: none}
space:
  x: {linear: [-5, 5]}
"""


def hetero(*words: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hetero", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=cwd, check=False)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_program(tmp_path)


def with_program(folder: Path) -> Path:
    (folder / "tuned.py").write_text(TUNED)
    (folder / "tuned.yaml").write_text(OF_FUNCTION)
    return folder


def tried(folder: Path) -> list[float]:
    found = json.loads((folder / "tuned-search" / "search.json").read_text())
    return [trial["params"]["x"] for trial in found["trials"]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Search without a disturbance; the lines that were printed, and where."""
    folder = with_program(tmp_path_factory.mktemp("whole"))
    return hetero("tune", "tuned.yaml", "--devices", "1xcpu", cwd=folder).stdout.splitlines(), folder


@pytest.mark.servers
def test_a_recipe_is_searched_and_the_best_trains_as_it_did_in_its_trial(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from hetero.recipes.run import Watcher, carry_out
    from hetero.recipes.tune import carry_out_search, read_search
    from hetero.tune.values import SearchListener

    settings = ["tune.trials=2", "train.epochs=1", "train.global_batch=256", f"output={tmp_path / 'out'}"]
    outcome = carry_out_search(read_search(RECIPE, settings), SearchListener(), devices="1xcpu")
    best = outcome.found.best
    assert outcome.found.count("finished") == 2
    assert best.value == max(trial.value or 0.0 for trial in outcome.found.trials) > 0.1
    recipe = read_recipe(tmp_path / "out" / "best.yaml")
    assert recipe.learning_rate == best.params["train.learning_rate"]
    trained = carry_out(recipe, Watcher(), devices="1xcpu")
    assert trained.reports[-1].test_accuracy == pytest.approx(best.value, abs=0.01)


def test_a_function_is_searched_with_a_line_a_trial(whole: tuple[list[str], Path]) -> None:
    lines, _ = whole
    assert lines[0].startswith("8 trials, over cpu:0 (")
    assert [line.split(" trial ")[0] for line in lines[1:9]] == [f"{ended}/8" for ended in range(1, 9)]
    assert lines[9].startswith("best of 8 trials: ")
    assert not any("\x1b" in line for line in lines)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_the_same_command_goes_on_with_a_search_that_was_stopped(
    folder: Path, stop: signal.Signals, whole: tuple[list[str], Path]
) -> None:
    command = [sys.executable, "-m", "hetero", "tune", "tuned.yaml", "--devices", "1xcpu"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        while not running.stdout.readline().startswith("3/8"):
            assert running.poll() is None
        running.send_signal(stop)
        said = running.stderr.read()
        assert running.wait(20) == (130 if stop == signal.SIGINT else -signal.SIGKILL)
    assert ("the same command goes on" in said) is (stop == signal.SIGINT)
    after = hetero("tune", "tuned.yaml", "--devices", "1xcpu", cwd=folder)
    assert "of them from before" in after.stdout
    assert tried(folder) == tried(whole[1])


def test_the_study_is_one_that_optunas_own_tools_read(whole: tuple[list[str], Path]) -> None:
    import optuna

    path = whole[1] / "tuned-search" / "study.sqlite3"
    study = optuna.load_study(study_name="hetero", storage=f"sqlite:///{path}")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 8
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ("tune.sampler=tpee", 3, "tune.sampler='tpee' is not known; did you mean 'tpe'?"),
        ("tune.trial=3", 3, "tune.trial: there is no such key; did you mean 'trials'?"),
        ("tune.metric=test_acuracy", 3, "did you mean 'test_accuracy'?"),
        ("train.learning_rate={log: []}", 3, "train.learning_rate: log: [] is empty or no list"),
        ("train.learning_rate={lgo: [1, 2]}", 3, "did you mean 'log'?"),
        ("train.learning_rate={linear: [-1, 1]}", 3, "train.learning_rate: -1.0 is not allowed"),
        ("train.optimizer={choice: [adam, adamm]}", 3, "'adamm' is not allowed; did you mean 'adam'?"),
        ("train.global_batch={choice: [64, 9999]}", 2, "train.global_batch: 9999 is more than the 1438 samples"),
        ("train.epoch={whole: [1, 2]}", 3, "train.epoch: there is no such key; did you mean 'epochs'?"),
        ("train.callbacks={early_stopping: {}}", 3, "train.callbacks: trials have none"),
        ("tune.objective=tuned", 3, "names no function; write 'file.py:function'"),
        ("tune.objective=absent.py:f", 3, "absent.py cannot be imported"),
    ],
)
def test_a_mistake_in_a_search_is_one_line(setting: str, code: int, words: str, tmp_path: Path) -> None:
    from hetero.floor.errors import HeteroError
    from hetero.recipes.tune import carry_out_search, read_search
    from hetero.tune.values import SearchListener

    settings = [setting, f"output={tmp_path / 'out'}"]
    if "objective" in setting:
        settings.append("space={x: {linear: [0, 1]}}")
    with pytest.raises(HeteroError) as told:
        carry_out_search(read_search(RECIPE, settings), SearchListener(), devices="1xcpu")
    assert words in str(told.value)
    assert told.value.exit_code == code
    assert "\n" not in str(told.value)


def test_a_recipe_without_ranges_is_told(tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump({"model": "mnist", "train": {"epochs": 1}}))
    found = hetero("tune", "plain.yaml", cwd=tmp_path, code=3)
    assert "nothing is left open to search; write a range" in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_study_of_another_space_is_refused_by_the_command(whole: tuple[list[str], Path]) -> None:
    found = hetero("tune", "tuned.yaml", "--set", "space.x={linear: [0, 1]}", cwd=whole[1], code=2)
    assert "is of another search: its x is linear -5 … 5, and here linear 0 … 1" in found.stderr
