"""The phases of a launched script: all of each process's time has a phase, and each phase its category."""

from __future__ import annotations

import json
from math import isclose, nan
from pathlib import Path

import pytest

from hetero.floor import clock
from hetero.model.annotations import PhasesRun, TrainingNews, TrainingStep
from hetero.report.chrome import chrome_trace
from hetero.report.findings import find
from hetero.report.html import page
from hetero.report.phases import process_times
from hetero.report.record import RunRecord
from hetero.report.tables import process_table
from hetero.report.trace_reader import collect, read_run
from hetero.train.launch.trace import LaunchTrace
from tests.pure.test_report import CPU, EVIL, GPU, ready

STEP = (("read", 0.25), ("forward", 0.5), ("backward", 1.0), ("wait", 0.125), ("exchange", 0.25), ("update", 0.375))


def phases(device: str, step: int, from_s: float, *told: tuple[str, float]) -> tuple[float, object]:
    names, seconds = zip(*told, strict=True)
    end_s = from_s + sum(seconds)
    return end_s, PhasesRun(end_s, device, step, from_s, names, seconds)


def launched(last: str = "end") -> RunRecord:
    records = []
    for device, begin_s in ((CPU.id, 1.5), (GPU.id, 2.0)):
        records.append(phases(device, 1, 0.0, ("import", begin_s)))
        records.append(phases(device, 1, begin_s, ("prepare", 3.0 - begin_s)))
        records += [(3.0, record) for _, record in ready(CPU if device == CPU.id else GPU)]
        records += [phases(device, 1, 3.0, *STEP), phases(device, 2, 5.5, *STEP, ("comparison", 0.5))]
        records.append(phases(device, 3, 8.5, ("script", 0.5), (last, 1.0)))
    return collect([(at_s, _at(each, at_s)) for at_s, each in records], (CPU, GPU))


def _at(record: object, at_s: float) -> object:
    return record._replace(at_s=at_s) if hasattr(record, "_replace") else record


def test_every_phase_is_counted_in_its_category_and_all_of_the_time_is_accounted_for() -> None:
    run = launched()
    found = find(run)
    assert run.problems == []
    assert found.problems == ()
    assert found.span_s == 10.0
    for seconds in found.account.seconds:
        assert {name: took for name, took in seconds.items() if took} == {
            "start-up": 3.0,
            "loading": 0.5,
            "compute": 5.25,  # forward, backward, update, script and end
            "collective": 1.25,  # wait, exchange and comparison
        }


def test_the_phases_of_each_process_add_up_to_its_life() -> None:
    first, second = process_times(launched())
    assert (first.device, first.seconds, first.told_frac) == ("cpu:0", 10.0, 1.0)
    took = {each.phase: (each.seconds, each.times) for each in first.phases}
    assert list(took) == [
        "import", "prepare", "read", "forward", "backward", "wait", "exchange", "comparison", "update", "script", "end",
    ]  # fmt: skip
    assert took["backward"] == (2.0, 2)
    assert took["import"] == (1.5, 1)
    assert isclose(sum(seconds for seconds, _ in took.values()), first.seconds)
    assert [each.seconds for each in second.phases[:2]] == [2.0, 1.0]


def test_what_was_not_told_of_is_not_accounted_for() -> None:
    found = find(launched("untold"))
    assert [each.told_frac for each in found.processes] == [0.9, 0.9]
    assert "The phases account for 90.0 % of each or more." in " ".join(found.sentences)


def test_sentences_tables_and_json_tell_of_phases() -> None:
    found = find(launched())
    told = " ".join(found.sentences)
    assert "31 phases" not in told
    assert "The time of the 2 processes, 20 s in all: backward 20 %" in told
    assert "no placement needs" not in told
    lines = [line.split() for line in process_table(found).splitlines()]
    assert lines[0][:2] == ["phase", "cpu:0"]
    assert next(line for line in lines if line[0] == "backward")[:7] == ["backward", "2", "s", "20.0", "%", "1", "s"]
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["processes"][0]["phases"]["wait"] == {"seconds": 0.25, "times": 2}
    assert '<td class="text">exchange</td>' in page(launched(), found=found)


def test_a_phase_with_a_hostile_name_is_text() -> None:
    run = collect([phases(CPU.id, 1, 0.0, (EVIL, 1.0))], (CPU,))
    assert EVIL not in page(run)
    assert process_times(run)[0].phases[0].phase == EVIL


def test_other_runs_have_no_phases() -> None:
    run = collect(ready(CPU), (CPU,))
    assert process_times(run) == ()
    assert process_table(find(run)) == ""
    assert find(run).as_dict()["processes"] == []


def test_perfetto_gets_a_slice_for_each_phase() -> None:
    events = chrome_trace(launched())["traceEvents"]
    names = [each["name"] for each in events if each["ph"] == "X" and each["cat"] == "done"]  # type: ignore[attr-defined]
    assert names.count("backward") == 4
    assert names.count("import") == 2


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return what the clocks show, which the test sets: they stand still."""
    shown = [100.0]
    monkeypatch.setattr(clock, "monotonic_s", lambda: shown[0])
    monkeypatch.setattr(clock, "wall_time_s", lambda: 5000.0 + shown[0])
    return shown


def told(trace: LaunchTrace, rank: int, began_s: float, samples: int, *, is_here: bool = True) -> None:
    """Record a step of 1 s; the clock of another host is 50 s ahead of this one's."""
    step = (began_s, ("prepare", "read", "backward", "exchange"), (0.25, 0.25, 0.25, 0.25), samples, 0.5, (0.5, 0.25))
    trace.told(rank, 5000.0 if is_here else 4950.0, [step], is_here=is_here)


def test_a_launch_writes_what_its_processes_tell(tmp_path: Path, now: list[float]) -> None:
    path = tmp_path / "run.trace.jsonl"
    trace = LaunchTrace(path, "script.py", (CPU, GPU))
    trace.started(0)
    trace.started(1)
    told(trace, 0, now[0] + 1.0, 6)
    told(trace, 1, now[0] + 50.0 + 2.0, 2, is_here=False)
    trace.news("cpu:1 left out")
    trace.close()
    run = read_run(path)
    steps = [each for each in run.notes if isinstance(each, TrainingStep)]
    assert [(each.step, each.samples, each.busy_s, each.exchange_s, each.loss) for each in steps] == [
        (1, (6, 2), (0.5, 0.25), 0.25, 0.5)
    ]
    assert [each.text for each in run.notes if isinstance(each, TrainingNews)] == ["cpu:1 left out"]
    first, second = process_times(run)
    assert [each.phases[0][:2] for each in (first, second)] == [("import", 1.0), ("import", 2.0)]
    assert [spans[0][0] - run.begin_s for spans in run.up] == [1.25, 2.25]
    assert run.problems == []


def test_a_process_that_was_killed_is_lost_and_what_it_did_last_is_untold(tmp_path: Path, now: list[float]) -> None:
    path = tmp_path / "run.trace.jsonl"
    trace = LaunchTrace(path, "script.py", (CPU, GPU))
    trace.started(0)
    trace.started(1)
    told(trace, 0, now[0] + 1.0, 1)
    now[0] += 5.0
    trace.ended(0, -9)
    trace.ended(1, 0)
    trace.ended(2, 0)  # the one that checks
    trace.close()
    run = read_run(path)
    first, second = process_times(run)
    assert first.phases[-1][:2] == ("untold", 3.0)
    assert [each[:2] for each in second.phases] == [("import", 5.0)]
    assert [reason for _, reason in run.lost[0]] == ["its process was killed"]
    assert run.lost[1] == []


def test_a_loss_that_is_not_known_is_not_told_of() -> None:
    note = TrainingStep(1.0, 1, nan, 1.0, 0.0, ("cpu:0",), (4,), (0.5,))
    told_of = " ".join(find(collect([phases(CPU.id, 1, 0.0, *STEP), (1.0, note)], (CPU,))).sentences)
    assert "Training did 1 steps." in told_of
    assert "nan" not in told_of
