"""A run that is killed goes on where its newest complete checkpoint stands, to the same parameters."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.compression.files import pack as pack_compressed
from hetero.errors import BadValueError, HeteroError
from hetero.stores.files import FileStore
from hetero.testing.power import RecordingDisk, cuts
from hetero.train.checkpoints import Checkpoint, TrainingCheckpoints
from hetero.train.saving import read_model, save_model
from hetero.train.state import pack, unpack
from tests.engine.test_object_store import VARIABLES
from tests.flat_options import trainer_options
from tests.s3_server import s3_server

torch = pytest.importorskip("torch")

PROGRAM = """
import os, signal, sys
import numpy as np, torch
import hetero

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Dropout(0.4), torch.nn.Linear(16, 4))
rng = np.random.default_rng(3)
data = rng.standard_normal((96, 12)).astype(np.float32), rng.integers(0, 4, 96)

def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)

def die(report):
    if report.epoch == int(sys.argv[3]):
        os.kill(0, signal.SIGKILL)

trainer = hetero.Trainer(model, torch.nn.CrossEntropyLoss(), adam, data, global_batch=32, devices=sys.argv[2],
    exact="bitwise", shares="equal", checkpoint=sys.argv[1], checkpoint_every=2, callbacks=[die])
with trainer:
    done = trainer.resume()
    print("resumed at step", trainer.step, flush=True)
    trainer.fit(6 - done)
trainer.save(sys.argv[1] + "/model.safetensors")
"""


def run(folder: Path, devices: str, die_at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), devices, str(die_at)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, start_new_session=True, check=False)


@pytest.mark.servers
def test_a_program_that_is_killed_resumes_to_the_same_bits_over_other_devices(tmp_path: Path) -> None:
    killed = run(tmp_path / "a", "1xcpu,1xcpu*0.5", 3)
    assert killed.returncode == -signal.SIGKILL
    resumed = run(tmp_path / "a", "1xcpu", 0)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed at step 8" in resumed.stdout
    whole = run(tmp_path / "b", "1xcpu", 0)
    assert whole.returncode == 0, whole.stderr
    one, other = (read_model(tmp_path / name / "model.safetensors")[0] for name in "ab")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def ctx() -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu", history=False) as made:
        yield made


def trainer(ctx: hetero.Context, folder: Path | str, width: int = 16, **options: Any) -> hetero.Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, width), torch.nn.Linear(width, 4))
    data = np.zeros((96, 12), np.float32), np.zeros(96, np.int64)
    optimizer = torch.optim.Adam(model.parameters())
    options = {"global_batch": 32, "devices": ctx, "checkpoint": folder, **options}
    return hetero.Trainer(model, torch.nn.CrossEntropyLoss(), optimizer, data, **trainer_options(**options))


@pytest.fixture(scope="module")
def folder(ctx: hetero.Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the checkpoints of steps 3, 6 and 9."""
    path = tmp_path_factory.mktemp("kept") / "run"
    with trainer(ctx, path) as made:
        made.fit(4)
    return path


def test_the_newest_few_are_kept(folder: Path) -> None:
    assert TrainingCheckpoints(folder).steps() == (6, 9, 12)


def test_training_goes_on_from_a_checkpoint(ctx: hetero.Context, folder: Path) -> None:
    made = trainer(ctx, folder)
    assert made.resume() == 4
    assert made.step == 12


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(
    ctx: hetero.Context, folder: Path, tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "run")
    [state] = (tmp_path / "run" / "step-000000000012").glob("state*")
    state.write_bytes(state.read_bytes()[:-100])
    made = trainer(ctx, tmp_path / "run")
    assert made.resume() == 3
    assert any("step 12 is passed over" in note for note in made.notes)
    for path in (tmp_path / "run").glob("step-*/state*"):
        path.write_bytes(b"nothing")
    with pytest.raises(HeteroError, match=r"step 12 is passed over.*step 9 is passed over.*begin anew"):
        made.resume()


def test_a_checkpoint_of_another_model_or_run_is_refused(ctx: hetero.Context, folder: Path) -> None:
    with pytest.raises(HeteroError, match=r"the state is of another model: .*size mismatch"):
        trainer(ctx, folder, width=17).resume()
    with pytest.raises(BadValueError, match=r"has global_batch 32, and this run 48"):
        trainer(ctx, folder, global_batch=48).resume()
    with pytest.raises(BadValueError, match="give checkpoint=FOLDER"):
        trainer(ctx, folder, checkpoint=None).resume()


def test_a_run_without_checkpoints_begins_at_the_beginning(ctx: hetero.Context, tmp_path: Path) -> None:
    assert trainer(ctx, tmp_path / "nothing").resume() == 0


def test_a_run_does_not_begin_anew_beside_checkpoints_that_are_further(ctx: hetero.Context, folder: Path) -> None:
    with pytest.raises(BadValueError, match=r"a checkpoint of step 12 already, and this run stands at step 0; resume"):
        trainer(ctx, folder).fit(1)


def test_a_run_that_is_done_has_nothing_left_to_do(ctx: hetero.Context, folder: Path) -> None:
    with trainer(ctx, folder) as made:
        assert made.fit(4 - made.resume()) == []


def test_an_epoch_that_is_resumed_in_its_middle_reports_all_of_its_samples(ctx: hetero.Context, tmp_path: Path) -> None:
    with trainer(ctx, tmp_path / "whole", checkpoint_every=2) as made:
        [whole] = made.fit(1)
    for path in (tmp_path / "whole" / f"step-{3:012d}").iterdir():
        path.unlink()
    with trainer(ctx, tmp_path / "whole", checkpoint_every=2) as made:
        assert made.resume() == 0
        assert made.step == 2
        [resumed] = made.fit(1)
    assert (resumed.loss, resumed.accuracy) == (whole.loss, whole.accuracy)


@pytest.fixture(scope="module")
def written(ctx: hetero.Context, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Checkpoint]:
    """Return the checkpoints of every step of a run of two epochs."""
    path = tmp_path_factory.mktemp("every") / "run"
    with trainer(ctx, path, checkpoint_every=1, keep=100, exact="bitwise") as made:
        made.fit(2)
    kept = TrainingCheckpoints(path)
    return {step: Checkpoint(step, *kept.read(step)) for step in kept.steps()}


def test_a_kill_at_any_write_boundary_leaves_the_newest_complete_checkpoint_and_it_leads_to_the_same_bits(
    ctx: hetero.Context, written: dict[int, Checkpoint], tmp_path: Path
) -> None:
    disk = RecordingDisk(tmp_path / "store")
    kept = TrainingCheckpoints("", keep=2, store=FileStore(tmp_path / "store", disk))
    for step, whole in written.items():
        facts = {name: whole.facts[name] for name in whole.facts if name not in ("step", "sha256", "bytes")}
        disk.during(
            "newest", b"%d" % step, lambda step=step, whole=whole, facts=facts: kept.write(step, whole.state, facts)
        )  # type: ignore[misc]
    roots: dict[int, Path] = {}
    tried = 0
    for number, (allowed, build) in enumerate(cuts(disk.log)):
        root = tmp_path / str(number)
        build(root)
        found = TrainingCheckpoints(root).newest()
        assert (None if found is None else b"%d" % found.step) in allowed["newest"]
        assert found is None or found.state == written[found.step].state
        roots.setdefault(0 if found is None else found.step, root)
        tried += 1
    assert tried > 100
    assert sorted(roots) == [0, *written]
    for step, root in roots.items():
        with trainer(ctx, root, exact="bitwise", checkpoint_every=100) as made:
            assert made.resume() == step // 3
            made.fit(2 - step // 3)
        last, whole = unpack(TrainingCheckpoints(root).newest().state), unpack(written[6].state)  # type: ignore[union-attr]
        assert all(torch.equal(last[0][name], whole[0][name]) for name in whole[0])


def test_checkpoints_in_an_object_store_lead_to_the_same_bits(
    written: dict[int, Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server("runs") as options:
        for name, value in options.items():
            monkeypatch.setenv(VARIABLES[name], value)
        with hetero.Context(devices="1xcpu", history=False) as ctx:
            with trainer(ctx, "s3://runs/mine", exact="bitwise") as made:
                made.fit(1)
            with trainer(ctx, "s3://runs/mine", exact="bitwise") as made:
                assert made.resume() == 1
                made.fit(1)
        kept = TrainingCheckpoints("s3://runs/mine")
        assert kept.steps() == (3, 6)
        last, whole = unpack(kept.read(6)[0]), unpack(written[6].state)
        assert all(torch.equal(last[0][name], whole[0][name]) for name in whole[0])


def test_equal_models_are_equal_bytes(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    facts = {f"fact {number}": "zählt" for number in range(6)}
    saved = {save_model(model, tmp_path / "model.safetensors", facts).read_bytes() for _ in range(6)}
    assert len(saved) == len({pack_compressed(model, facts) for _ in range(6)}) == 1
    assert len({pack(model, optimizer, [3]) for _ in range(6)}) == 1
    tensors, words = read_model(tmp_path / "model.safetensors")
    assert torch.equal(tensors["weight"], model.weight)
    assert {name: words[name] for name in facts} == facts
