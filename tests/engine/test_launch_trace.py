"""`hetero launch --trace`: each process's whole time has a phase, and the report is about it."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from hetero.model.annotations import PhasesRun, TrainingStep
from hetero.report.findings import find
from hetero.report.record import RunRecord
from hetero.report.trace_reader import read_run
from tests.engine.test_launch import ENTROPY, LOOPS, MODEL, alone, launched, same_lines, written

COMPARED = ("import", "prepare", "read", "forward", "backward", "wait", "exchange", "comparison", "update", "end")


def traced(
    folder: Path, script: Path, *args: str, devices: str, options: tuple[str, ...] = ()
) -> tuple[RunRecord, str]:
    file = folder / "run.trace.jsonl.gz"
    found = launched(folder, script, *args, options=("--trace", str(file), *options), devices=devices)
    assert found.returncode == 0, found.stderr
    return read_run(file), found.stdout


def without_gap(run: RunRecord) -> dict[str, list[PhasesRun]]:
    told: dict[str, list[PhasesRun]] = defaultdict(list)
    for note in run.notes:
        if isinstance(note, PhasesRun):
            told[note.device].append(note)
    for notes in told.values():
        for one, other in pairwise(notes):
            assert other.started_s == pytest.approx(one.started_s + sum(one.seconds), abs=1e-4)
    assert run.problems == []
    assert not run.torn
    return told


@pytest.mark.servers
def test_every_step_of_every_process_has_its_phases(tmp_path: Path) -> None:
    script = written(tmp_path, MODEL.format(before="pass", loss=ENTROPY))
    run, _ = traced(tmp_path, script, devices="1xcpu,1xcpu*0.5", options=("--shares", "equal"))
    told = without_gap(run)
    assert sorted(told) == ["h0/cpu:0", "h0/cpu:1"]
    for notes in told.values():
        steps = [each for each in notes if "update" in each.names]
        assert [each.step for each in steps] == list(range(1, 9))
        assert set(COMPARED) <= {name for each in notes for name in each.names}
        assert ["comparison" in each.names for each in steps] == [True, True, *[False] * 6]  # --check-steps 2
        order = [name for name in steps[-1].names if name != "script"]
        assert order[:3] == ["read", "forward", "backward"]
        assert order[-1] == "update"
    found = find(run)
    assert [each.told_frac >= 0.98 for each in found.processes] == [True, True]
    seen = [each for each in run.notes if isinstance(each, TrainingStep)]
    assert {each.samples for each in seen} == {(4, 4)}
    assert all(0.0 < each.loss < 10.0 for each in seen)
    assert found.account.total_s("start-up") > 0.0
    assert found.account.total_s("idle") == 0.0


def test_one_device_has_phases_too(tmp_path: Path) -> None:
    script = written(tmp_path, MODEL.format(before="pass", loss=ENTROPY))
    run, _ = traced(tmp_path, script, devices="1xcpu")
    (notes,) = without_gap(run).values()
    steps = [each for each in notes if "update" in each.names]
    assert [each.names for each in steps] == [("read", "forward", "backward", "update", "script")] * 8
    assert "Training did 8 steps." in find(run).sentences


@pytest.mark.servers
@pytest.mark.slow
def test_a_device_that_is_left_out_ends_and_the_other_goes_on_telling(tmp_path: Path) -> None:
    loop = "epochs_whose_sums_are_those_of_all_devices"
    run, printed = traced(tmp_path, LOOPS, "surely_left_out", loop, devices="1xcpu*0.4,1xcpu")
    same_lines(printed, alone(tmp_path, LOOPS, loop))
    told = without_gap(run)
    main, other = told["h0/cpu:1"], told["h0/cpu:0"]
    assert other[-1].names[-1] == "end"
    after = [each for each in main if each.started_s > other[-1].started_s and "update" in each.names]
    assert after
    assert all({"read", "forward", "backward"} <= set(each.names) for each in after)
    assert not any("exchange" in each.names for each in after)
    sentences = find(run).sentences
    assert any("left out" in words for words in sentences)
    assert any(words.startswith("Training did 264 steps; the loss went") for words in sentences)


def test_a_trace_that_cannot_be_written_is_told_of_before_anything_starts(tmp_path: Path) -> None:
    script = written(tmp_path, "print('began')")
    found = launched(tmp_path, script, options=("--trace", str(tmp_path / "no" / "run.jsonl")))
    assert (found.returncode, found.stdout) == (2, "")
    assert "cannot be written" in found.stderr
    assert len(found.stderr.splitlines()) == 1
