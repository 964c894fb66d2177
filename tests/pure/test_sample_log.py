"""The log of samples: what members wrote, read as one history, and the check that each sample was used once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hetero.train.sample_log import SampleLog, append_line, check_sample_log, next_run, read_sample_log
from hetero.train.values import TrainingError

SAMPLES, BATCH = 8, 4

Steps = Mapping[int, Mapping[str, Sequence[int]]]


def write(folder: Path, run: int, generation: int, after: int, steps: Steps, lost: Sequence[int] = ()) -> None:
    """Write what a group would: all its members compute, and apply what is not lost."""
    for device in sorted({device for split in steps.values() for device in split}):
        log = SampleLog(str(folder), run, device)
        log.begins(generation, after, device, SAMPLES, BATCH)
        for step, split in steps.items():
            log.computes(step, split.get(device, []))
            if step not in lost:
                log.applied(step)
        log.close()


WHOLE: Steps = {
    1: {"cpu:0": [3, 1, 0], "cpu:1": [2]},
    2: {"cpu:0": [4, 5], "cpu:1": [7, 6]},
    3: {"cpu:0": [0, 2, 5], "cpu:1": [7]},
}


def test_a_log_says_who_computed_what_and_adds_up(tmp_path: Path) -> None:
    write(tmp_path, 1, 1, 0, WHOLE)
    assert check_sample_log(tmp_path) == (3, 1, {"cpu:0": 8, "cpu:1": 4})
    [first, *_] = read_sample_log(tmp_path)
    assert first.samples == {"cpu:0": [3, 1, 0], "cpu:1": [2]}
    assert first.applied_s > 1e9


def test_a_step_that_was_broken_off_counts_where_it_was_done_anew(tmp_path: Path) -> None:
    write(tmp_path, 1, 1, 0, {1: WHOLE[1], 2: WHOLE[2]}, lost=[2])
    write(tmp_path, 1, 2, 1, {2: {"cpu:0": [4, 5, 6, 7]}})
    assert [step.generation for step in read_sample_log(tmp_path)] == [1, 2]
    assert check_sample_log(tmp_path).samples == {"cpu:0": 7, "cpu:1": 1}


def test_what_was_applied_after_the_checkpoint_of_a_later_run_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, 1, 1, 0, WHOLE)
    assert next_run(tmp_path) == 2
    write(tmp_path, 2, 1, 1, {2: {"cpu:0": [4, 5, 6, 7]}})
    assert [(step.step, step.run) for step in read_sample_log(tmp_path)] == [(1, 1), (2, 2)]


def test_a_line_that_was_torn_by_a_kill_spoils_no_other(tmp_path: Path) -> None:
    write(tmp_path, 1, 1, 0, {1: WHOLE[1]})
    for path in tmp_path.iterdir():
        with path.open("ab") as file:
            file.write(b'{"what":"computes","gener')
    write(tmp_path, 1, 2, 1, {2: WHOLE[2]})
    assert check_sample_log(tmp_path).steps == 2


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ({1: {"cpu:0": [0, 1, 2], "cpu:1": [2]}}, "sample 2 was used twice in an epoch: in step 1 by cpu:0"),
        ({1: {"cpu:0": [0, 1, 2]}}, "after step 1 the epoch has used 3 samples"),
        ({1: WHOLE[1], 2: {"cpu:0": [4, 5, 6, 3]}}, "sample 3 was used twice"),
        ({1: {"cpu:0": [0, 1, 2, 8]}}, "sample 8 in step 1 by cpu:0 is none of the 8"),
        ({1: WHOLE[1], 3: WHOLE[3]}, "step 2 is missing"),
    ],
)
def test_a_sample_too_many_or_too_few_is_named(tmp_path: Path, steps: Steps, said: str) -> None:
    write(tmp_path, 1, 1, 0, steps)
    with pytest.raises(TrainingError, match=said):
        check_sample_log(tmp_path)


def test_a_run_that_begins_after_steps_that_nobody_wrote_of_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1, 1, 5, {6: WHOLE[1]})
    with pytest.raises(TrainingError, match="run 1 begins after step 5, and 0 are known"):
        check_sample_log(tmp_path)


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="has no log of samples; give the Trainer sample_log=FOLDER"):
        check_sample_log(tmp_path)


def test_what_a_member_on_another_host_sends_makes_the_log_that_it_would_have_written(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    write(tmp_path / "here", 1, 1, 0, WHOLE)
    (tmp_path / "there").mkdir()
    folder = str(tmp_path / "there")
    for device in ("cpu:0", "cpu:1"):
        log = SampleLog(folder, 1, device, lambda line, name=device: append_line(folder, 1, name, line))
        log.begins(1, 0, device, SAMPLES, BATCH)
        for step, split in WHOLE.items():
            log.computes(step, split[device])
            log.applied(step)
        log.close()
    assert check_sample_log(tmp_path / "there") == check_sample_log(tmp_path / "here")
