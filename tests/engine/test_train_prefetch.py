"""What is read and augmented ahead is what the device would have read itself, whoever trains on it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import hetero
from hetero.errors import BadValueError

torch = pytest.importorskip("torch")
nn = torch.nn

from hetero.train import prefetch  # noqa: E402  it needs torch
from hetero.train.data import Samples  # noqa: E402
from tests.flat_options import trainer_options  # noqa: E402

TWO = "1xcpu,1xcpu*0.5"
SHARES = {"cpu:0": 9, "cpu:1": 7}
INPUTS = np.random.default_rng(1).standard_normal((64, 6))
TARGETS = np.random.default_rng(2).integers(0, 3, 64)


@pytest.fixture(scope="module")
def fleet() -> Iterator[hetero.Context]:
    """Keep two devices open for all tests."""
    with hetero.Context(devices=TWO, history=False) as ctx:
        yield ctx


def noisy(inputs: Any) -> Any:
    """Augment with all three generators that people use."""
    noise = np.random.standard_normal(6) + random.random()
    return inputs + torch.randn(6, dtype=torch.float64) + torch.from_numpy(noise)


class Rows:
    """A dataset whose reading draws random numbers, and tells where it happened."""

    def __init__(self, folder: Path | None = None, wait_s: float = 0.0) -> None:
        self.folder, self.wait_s = folder, wait_s

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.wait_s)
        if self.folder is not None:
            (self.folder / str(os.getpid())).touch()
        return noisy(torch.from_numpy(INPUTS[index])), int(TARGETS[index])


def trained(fleet: Any, data: Any, epochs: int = 3, **options: Any) -> tuple[Any, int]:
    """Train; returns the model, and how many epochs there were."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    options = {"global_batch": 16, "devices": fleet, **options}
    with hetero.Trainer(
        model, nn.CrossEntropyLoss(), lambda p: torch.optim.SGD(p, 0.1), data, **trainer_options(**options)
    ) as trainer:
        return model, len(trainer.fit(epochs))


def distance(one: Any, other: Any) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def reading(folder: Path) -> list[int]:
    """Return the processes beside the workers that have read."""
    ids = [int(found.name) for found in folder.iterdir()]
    return [pid for pid in ids if psutil.pid_exists(pid) and _is_reader(pid)]


def _is_reader(pid: int) -> bool:
    return "hetero.train.prefetch_worker" in " ".join(psutil.Process(pid).cmdline())


def test_augmented_arrays_train_alike_however_they_are_shared(fleet: hetero.Context) -> None:
    runs: list[dict[str, Any]] = [{"shares": {"cpu:0": 16}}, {"shares": {"cpu:0": 5, "cpu:1": 11}}]
    one, other = (trained(fleet, (INPUTS, TARGETS), augment=noisy, readers=0, **run)[0] for run in runs)
    assert distance(one, other) < 1e-12
    assert distance(one, trained(fleet, (INPUTS, TARGETS))[0]) > 1e-3


@pytest.mark.slow
def test_processes_beside_the_devices_read_the_same_and_are_gone_afterwards(
    fleet: hetero.Context, tmp_path: Path
) -> None:
    seen: list[int] = []

    def enough(_: Any) -> bool:
        seen[:] = reading(tmp_path)
        return len(seen) == 2

    shared, epochs = trained(fleet, Rows(tmp_path, 0.001), 4000, readers=1, shares=SHARES, callbacks=[enough])
    assert len(seen) == 2
    assert not reading(tmp_path)
    assert distance(shared, trained(fleet, Rows(), epochs, readers=0, shares=SHARES)[0]) < 1e-12


@pytest.mark.slow
def test_a_reader_comes_by_itself_where_reading_holds_the_device_up(fleet: hetero.Context, tmp_path: Path) -> None:
    def there(_: Any) -> bool:
        return bool(reading(tmp_path))

    assert trained(fleet, Rows(tmp_path, 0.005), 1000, shares={"cpu:0": 16}, callbacks=[there])[1] < 1000


@pytest.mark.slow
def test_a_reader_that_is_killed_costs_no_sample(fleet: hetero.Context, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(report: Any) -> bool:
        if killed:
            return report.epoch > killed[0] + 1
        for pid in reading(tmp_path):
            os.kill(pid, signal.SIGKILL)
            killed.append(report.epoch)
        return False

    shared, epochs = trained(fleet, Rows(tmp_path, 0.001), 4000, readers=1, shares=SHARES, callbacks=[kill])
    assert killed
    assert distance(shared, trained(fleet, Rows(), epochs, readers=0, shares=SHARES)[0]) < 1e-12


def test_a_reader_that_freezes_is_ended_and_its_batch_read_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prefetch, "LOOK_S", 0.05)
    reads = prefetch.PrefetchingSamples(Samples(dataset=Rows(tmp_path), readers=1), 0)
    try:
        (reader,) = reads._readers
        while not reader.is_up:
            time.sleep(0.05)
        os.kill(reader._process.pid, signal.SIGSTOP)
        reads.look_ahead(0, 3, lambda step: [[step]])
        assert 1 in reads._under_way
        inputs, targets = reads.batch([1], 0, 1)
        assert (inputs.shape, targets.tolist()) == ((1, 6), [TARGETS[1]])
        assert reader._process.returncode == -signal.SIGKILL
    finally:
        reads.close()


class Broken(Rows):
    """A dataset that fails at one sample."""

    def __getitem__(self, index: int) -> Any:
        if index == 40:
            raise KeyError("sample 40 is not there")
        time.sleep(0.01)
        return super().__getitem__(index)


def test_an_error_in_a_dataset_is_its_own(fleet: hetero.Context) -> None:
    with pytest.raises(KeyError, match="sample 40 is not there"):
        trained(fleet, Broken(), 30, readers=1)


def test_what_cannot_augment_or_read_is_refused_at_once() -> None:
    for options, words in (({"augment": 3}, "augment=3 is not allowed; give"), ({"readers": -1}, "readers=-1")):
        with pytest.raises(BadValueError, match=words):
            trained(None, (INPUTS, TARGETS), **options)
