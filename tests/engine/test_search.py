"""A search over real workers: what it finds, what it prunes, what it does with trials that fail, and its study."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hetero
from hetero.errors import BadValueError, NothingFitsError
from hetero.tune.space import Range
from hetero.tune.study import Study
from hetero.tune.trial import Trial, TrialResult
from hetero.tune.values import SearchError, SearchListener, SearchPlan, TrialReport

pytest.importorskip("optuna")

LINE = {"x": {"linear": [-5, 5]}}
GRID = {"x": {"whole": [0, 3]}}


@pytest.fixture(scope="module")
def two() -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu,1xcpu*0.5", history=False) as ctx:
        yield ctx


@pytest.fixture(scope="module")
def one() -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        yield ctx


def parabola(trial: Trial) -> float:
    return float((trial["x"] - 2) ** 2)


def in_steps(trial: Trial) -> float:
    value = parabola(trial)
    for step in range(4):
        trial.report(step, value + 4 - step)
    return value


def tried(found: Any) -> list[Any]:
    return [trial.params["x"] for trial in found.trials]


def test_a_grid_tries_every_point_once_and_finds_the_best(two: hetero.Context) -> None:
    space = {**GRID, "kind": {"choice": ["a", "b"]}}

    def objective(trial: Trial) -> float:
        return parabola(trial) + (trial["kind"] == "b")

    found = hetero.train.tune(objective, space, sampler="grid", devices=two)
    points = {(trial.params["x"], trial.params["kind"]) for trial in found.trials}
    assert points == {(x, kind) for x in range(4) for kind in "ab"}
    assert len(found.trials) == 8
    assert (found.best.params, found.best.value) == ({"x": 2, "kind": "a"}, 0.0)


def test_the_goal_decides_what_the_best_is(one: hetero.Context) -> None:
    found = hetero.train.tune(parabola, GRID, sampler="grid", goal="maximize", devices=one)
    assert found.best.params == {"x": 0}
    with pytest.warns(DeprecationWarning, match=r"tune\(goal='maximise'\) is deprecated: write goal=") as warned:
        again = hetero.train.tune(parabola, GRID, sampler="grid", goal="maximise", devices=one)
    assert (again.best.params, again.goal, warned[0].filename) == ({"x": 0}, "maximize", __file__)


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_the_same_seed_tries_the_same_values_on_one_device(one: hetero.Context, sampler: str) -> None:
    first, again, other = (
        tried(hetero.train.tune(in_steps, LINE, trials=5, sampler=sampler, seed=seed, devices=one))
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_bad_trial_is_pruned_by_what_it_reports(one: hetero.Context) -> None:
    found = hetero.train.tune(in_steps, LINE, trials=12, sampler="random", seed=0, devices=one)
    assert found.count("pruned") > 0
    assert found.count("pruned") + found.count("finished") == 12
    assert all(trial.value is not None for trial in found.trials)
    assert (
        hetero.train.tune(in_steps, LINE, trials=12, sampler="random", pruner="none", devices=one).count("pruned") == 0
    )


def test_an_objective_that_hides_its_pruning_is_pruned_all_the_same(one: hetero.Context) -> None:
    def stubborn(trial: Trial) -> float:
        try:
            return in_steps(trial)
        except Exception:  # noqa: BLE001  as such objectives do
            return -100.0

    found = hetero.train.tune(stubborn, LINE, trials=12, sampler="random", seed=0, devices=one)
    assert found.count("pruned") > 0
    assert (found.best.value or 0.0) >= 0.0


def test_a_device_that_is_free_more_often_gets_more_trials(tmp_path: Path) -> None:
    """A trial on the second device lasts as long as three on the first, by their count and not by a clock."""
    ended, begun = tmp_path / "ended on the first", tmp_path / "begun on the second"
    for each in (ended, begun):
        each.touch()

    def add_one(file: Path) -> int:
        with file.open("ab") as stream:
            stream.write(b".")
        return file.stat().st_size

    def counted(trial: Trial) -> float:
        if hetero.get_current_device().index == 0:
            add_one(ended)
            return parabola(trial)
        until = min(ended.stat().st_size + 3, 18 - add_one(begun))
        deadline_s = time.monotonic() + 60.0
        while ended.stat().st_size < until:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        return parabola(trial)

    found = hetero.train.tune(counted, LINE, trials=18, sampler="random", devices="2xcpu")
    assert found.by_device["cpu:0"] > found.by_device.get("cpu:1", 0)  # whose trials may be rescued, all of them
    assert sum(found.by_device.values()) == 18


def test_a_trial_that_fails_is_told_and_the_others_go_on(one: hetero.Context) -> None:
    def moody(trial: Trial) -> float:
        if trial["x"] == 1:
            raise ValueError("not this one")
        return math.nan if trial["x"] == 3 else parabola(trial)

    found = hetero.train.tune(moody, GRID, sampler="grid", devices=one)
    problems = {trial.params["x"]: trial.problem for trial in found.trials if trial.state == "failed"}
    assert problems[1] == "ValueError: not this one"
    assert "gave nan; let the objective give a finite number" in problems[3]
    assert found.best.params == {"x": 2}


def test_when_the_first_trials_all_fail_the_search_ends_with_their_cause(one: hetero.Context) -> None:
    def broken(trial: Trial) -> float:
        raise KeyError("nope")

    with pytest.raises(SearchError, match="every trial failed so far, the first: KeyError: 'nope'") as told:
        hetero.train.tune(broken, LINE, trials=50, devices=one)
    assert isinstance(told.value.__cause__, KeyError)


def test_a_worker_that_is_killed_has_its_trial_tried_again(tmp_path: Path) -> None:
    mark = tmp_path / "killed"

    def deadly(trial: Trial) -> float:
        if trial["x"] == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return parabola(trial)

    found = hetero.train.tune(deadly, GRID, sampler="grid", devices="1xcpu")
    assert mark.exists()
    assert (found.count("finished"), found.best.params) == (4, {"x": 2})


def test_a_listener_hears_of_starts_values_and_ends(one: hetero.Context) -> None:
    heard: list[Any] = []

    class Ear(SearchListener):
        def on_start(self, devices: Any, ended: int, trials: int) -> None:
            heard.append(("start", list(devices), ended, trials))

        def on_value(self, number: int, step: int, value: float) -> None:
            heard.append(("value", number, step))

        def on_trial(self, trial: TrialReport, best: TrialReport | None) -> None:
            heard.append(("trial", trial.number, best is not None))

    hetero.train.tune(in_steps, LINE, trials=1, devices=one, listener=Ear())
    assert heard == [("start", ["cpu:0"], 0, 1), *(("value", 0, step) for step in range(4)), ("trial", 0, True)]


@pytest.mark.usefixtures("no_leaks")
def test_a_search_gives_back_all_that_it_took(tmp_path: Path) -> None:
    hetero.train.tune(in_steps, LINE, trials=2, devices="1xcpu", storage=tmp_path / "study.sqlite3")


def test_devices_that_run_no_python_are_refused() -> None:
    with (
        hetero.Context(devices="1xnull", engine="inline", history=False) as ctx,
        pytest.raises(NothingFitsError, match="none of null:0 can run this objective"),
    ):
        hetero.train.tune(parabola, LINE, devices=ctx)


# --- the study ---------------------------------------------------------------------------------------------


def plan(trials: int = 6, **words: Any) -> SearchPlan:
    from hetero.tune.space import read_space

    return SearchPlan(
        **{"what": "demo", "space": read_space(LINE), "trials": trials, "sampler": "tpe", "seed": 5, **words}
    )


PLANE = {name: Range("linear", (-5.0, 5.0), 3) for name in ("x", "y")}


def work(study: Study, trials: int) -> list[float]:
    """End some trials; returns what was tried."""
    found = []
    for _ in range(trials):
        number, params = study.ask()
        found.append(params["x"])
        study.finish(number, TrialResult((params["x"] - 2) ** 2, False, "cpu:0", 0.1))
    return found


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_that_was_killed_tries_what_an_undisturbed_one_tries(tmp_path: Path, sampler: str) -> None:
    whole = Study(plan(14, sampler=sampler), None)
    expected = work(whole, 14)
    killed = Study(plan(14, sampler=sampler), tmp_path / "study.sqlite3")
    begun = work(killed, 11)
    unfinished = killed.ask()[1]["x"]
    killed.close()
    again = Study(plan(14, sampler=sampler), tmp_path / "study.sqlite3")
    assert (again.resumed, again.left) == (11, 3)
    rest = work(again, 3)
    assert again.left == 0
    again.close()
    assert rest[0] == unfinished
    assert begun + rest == expected


class _Killed(BaseException):
    pass


def killed_at(write: int, path: Path, sampler: str) -> None:
    """Ask for a trial, and be killed at the nth change of the study's file."""
    from sqlalchemy import event

    left = write

    def before(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        nonlocal left
        if not statement.lstrip().upper().startswith("SELECT"):
            left -= 1
            if left < 0:
                raise _Killed

    study = Study(plan(6, sampler=sampler, space=PLANE), path)
    event.listen(study._storage.engine, "before_cursor_execute", before)
    try:
        study.ask()
    except _Killed:
        pass
    finally:
        event.remove(study._storage.engine, "before_cursor_execute", before)
        study.close()


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_a_kill_while_a_trial_is_made_loses_and_changes_nothing(tmp_path: Path, sampler: str) -> None:
    whole = Study(plan(6, sampler=sampler, space=PLANE), None)
    number, first = whole.ask()
    whole.finish(number, TrialResult(1.0, False, "cpu:0", 0.1))
    expected = [first, *(whole.ask()[1] for _ in range(3))]
    before = Study(plan(6, sampler=sampler, space=PLANE), tmp_path / "before.sqlite3")
    number, first = before.ask()
    before.finish(number, TrialResult(1.0, False, "cpu:0", 0.1))
    before.close()
    for write in range(7):
        path = tmp_path / f"{write}.sqlite3"
        path.write_bytes((tmp_path / "before.sqlite3").read_bytes())
        killed_at(write, path, sampler)
        after = Study(plan(6, sampler=sampler, space=PLANE), path)
        assert (after.resumed, after.left) == (1, 5)
        assert [first, *(after.ask()[1] for _ in range(3))] == expected
        after.close()


def test_a_kill_between_the_two_writes_of_a_retry_doubles_nothing(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite3"
    first = Study(plan(), path)
    first.ask()
    first.close()
    second = Study(plan(), path)
    second.close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE trials SET state = 'RUNNING' WHERE number = 0")
    third = Study(plan(), path)
    work(third, third.left)
    assert third.left == 0
    third.close()
    assert sorted(report.number for report in third.reports) == [1, 2, 3, 4, 5, 6]


def test_more_trials_may_be_asked_for_later(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite3"
    assert len(hetero.train.tune(parabola, LINE, trials=2, devices="1xcpu", storage=path).trials) == 2
    found = hetero.train.tune(parabola, LINE, trials=3, devices="1xcpu", storage=path)
    assert (len(found.trials), found.resumed) == (3, 2)
    assert hetero.train.tune(parabola, LINE, trials=3, devices="no such device", storage=path).best == found.best


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"what": "other"}, "its objective is 'demo', and here 'other'"),
        ({"goal": "maximize"}, "its goal is 'minimize', and here 'maximize'"),
        ({"space": {}}, "its x is linear -5 … 5, and here not searched"),
    ],
)
def test_a_study_of_another_search_is_refused(tmp_path: Path, words: dict[str, Any], said: str) -> None:
    Study(plan(), tmp_path / "study.sqlite3").close()
    with pytest.raises(BadValueError) as told:
        Study(plan(**words), tmp_path / "study.sqlite3")
    assert said in str(told.value)


def test_a_study_whose_goal_has_its_former_word_is_gone_on_with(tmp_path: Path) -> None:
    made = Study(plan(), tmp_path / "study.sqlite3")
    about = json.loads(made._study.user_attrs["hetero.about"])
    made._study.set_user_attr("hetero.about", json.dumps({**about, "goal": "minimise"}))
    made.close()
    Study(plan(), tmp_path / "study.sqlite3").close()


def test_a_study_that_another_process_works_on_is_refused(tmp_path: Path) -> None:
    import json
    import subprocess
    import sys

    import psutil

    path = tmp_path / "study.sqlite3"
    Study(plan(), path).close()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        owner = json.dumps([other.pid, psutil.Process(other.pid).create_time()])
        with sqlite3.connect(path) as database:
            database.execute("UPDATE study_user_attributes SET value_json = ? WHERE key = 'hetero.owner'", (owner,))
        with pytest.raises(BadValueError, match=f"is being worked on by process {other.pid}"):
            Study(plan(), path)
        other.communicate(b"\n")
    Study(plan(), path).close()


def test_a_file_that_is_no_study_is_told(tmp_path: Path) -> None:
    (tmp_path / "study.sqlite3").write_text("these are only words")
    with pytest.raises(BadValueError, match=r"study\.sqlite3 is no study that can be read"):
        Study(plan(), tmp_path / "study.sqlite3")
