from __future__ import annotations

import json
from math import nan
from pathlib import Path

import pytest

from hetero.drive.trace import TraceWriter
from hetero.model.annotations import CheckpointWritten, DeviceSampled, TrainingEpoch, TrainingNews, TrainingStep
from hetero.report.findings import find
from hetero.report.html import curves, page
from hetero.report.record import RunRecord
from hetero.report.tables import epoch_table, member_table
from hetero.report.trace_reader import collect, read_run
from hetero.report.training import drawn, training
from tests.pure.test_report import CPU, EVIL, GPU, ran, ready, submitted

TEAM = ("cpu:0", "cuda:0")


def step(number: int, loss: float, devices: tuple[str, ...] = TEAM) -> TrainingStep:
    samples, busy_s = ((32, 96), (0.08, 0.06)) if len(devices) == 2 else ((128,), (0.09,))
    return TrainingStep(number / 10, number, loss, 0.1, 0.01, devices, samples, busy_s)


def notes(steps: int = 20, text: str = "cpu:0 is lost") -> list[tuple[float, object]]:
    told: list[tuple[object, ...]] = [step(number, 2.0 - number / 16) for number in range(1, steps + 1)]
    told.append(TrainingEpoch(2.0, 1, steps, 0.25, 0.75, 2.0, 1280.0, TEAM, (32, 96), (400.0, 1200.0), nan, nan))
    told.append(CheckpointWritten(2.1, steps, 1_000_000, 0.05))
    told.append(TrainingNews(2.2, text))
    told.append(TrainingEpoch(4.0, 2, 2 * steps, 0.125, nan, 2.0, 1280.0, TEAM, (32, 96), (400.0, 1200.0), 0.5, 0.875))
    return [(each[0], each) for each in told]  # type: ignore[misc]


def trained(text: str = "cpu:0 is lost", steps: int = 20) -> RunRecord:
    members = [each for at, name in enumerate((CPU.id, GPU.id), 1) for each in ran(at, name, 0.0, 0.0, 5.0)]
    records = [*ready(CPU, GPU), (0.0, submitted(0.0, 1, "train")), (0.0, submitted(0.0, 2, "train")), *members]
    return collect([*records, *notes(steps, text)], (CPU, GPU))


def test_sentences_tell_of_loss_speed_shares_checkpoints_and_losses() -> None:
    told = " ".join(find(trained()).sentences)
    assert (
        "Training did 40 steps in 2 epochs; the loss went from 1.938 to 0.125, and 87.5 % of what was held back" in told
    )
    assert "1,280 samples/s: 80 % of all devices' own speeds together, 1.07 × the fastest one alone" in told
    assert "A step took 100 ms, of which 10.0 % was the exchange of gradients" in told
    assert "cpu:0 32 (25 %), cuda:0 96 (75 %)" in told
    assert "1 checkpoint of 1 MB took 50 ms in all." in told
    assert "What became of devices: cpu:0 is lost." in told


def test_a_run_that_did_not_train_tells_nothing_of_training() -> None:
    run = collect([*ready(CPU), (0.0, submitted(0.0, 1)), *ran(1, CPU.id, 0.0, 0.0, 1.0)], (CPU,))
    assert training(run) is None
    assert find(run).as_dict()["training"] is None
    assert 'id="training"' not in page(run)


def test_a_device_that_took_no_part_is_listed_without_a_time() -> None:
    alone = [step(1, 1.0, ("cpu:0",)), notes()[20][1]]
    found = training(RunRecord(notes=alone))
    assert found is not None
    last = member_table(found).splitlines()[-1].split()
    assert last == ["cuda:0", "0", "–", "–", "1,200"]


def test_figures_are_plain_json_also_where_they_are_unknown() -> None:
    found = training(trained())
    assert found is not None
    plain = json.loads(json.dumps(drawn(found)), parse_constant=pytest.fail)
    assert plain["epochs"] == [[20, 0.25, None], [40, 0.125, 0.5]]
    assert plain["samples"] == [[32] * 20, [96] * 20]
    assert "–" in epoch_table(found)


def test_what_is_drawn_of_a_long_training_is_bounded() -> None:
    found = training(RunRecord(notes=[step(number, 1.0) for number in range(1, 100_001)]))
    assert found is not None
    assert len((drawn(found) or {})["steps"]) <= 3000


def test_training_comes_back_from_a_trace_as_it_was_told(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a.jsonl.gz")
    for record in notes():
        writer.write(record)
    writer.close()
    found = read_run(tmp_path / "a.jsonl.gz").notes
    assert found[:20] == [each for _, each in notes()[:20]]
    assert (found[20].accuracy, str(found[20].test_loss)) == (0.75, "nan")


def test_news_of_training_never_become_markup() -> None:
    assert "<img" not in page(trained(EVIL))


def test_what_devices_told_is_drawn_from_each_sample_to_the_next() -> None:
    told = [DeviceSampled(at_s, "h0/cuda:0", busy, nan, 60.0, nan) for at_s, busy in ((1.0, 0.25), (3.0, 0.75))]
    run = trained()
    run.notes = [*run.notes, *told]
    found = {each.group: each.values for each in curves(run) if each.name == "h0/cuda:0"}
    assert set(found) == {"busy", "temperature"}
    assert (found["busy"][len(found["busy"]) // 2 - 2], found["busy"][-1]) == (0.25, 0.75)
