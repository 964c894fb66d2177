"""Workers die, freeze and come back while a model is trained; the model does not notice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest

import hetero

torch = pytest.importorskip("torch")
nn = torch.nn

THREE = "cpu:1,cpu:1,cpu:1*0.5"


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4))


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((640, 12)).astype(np.float32), rng.integers(0, 4, 640)


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.01)


def workers() -> list[psutil.Process]:
    """Give the workers of this program, oldest first."""
    found = [child for child in psutil.Process().children() if "hetero.drive.worker" in " ".join(child.cmdline())]
    return sorted(found, key=lambda child: child.create_time())


def trained(devices: str, epochs: int, disturb: Callable[[Any], Any] | None = None) -> tuple[Any, Any]:
    """Train; what disturbs is called after every epoch."""
    model = net()
    callbacks = [] if disturb is None else [disturb]
    with hetero.Trainer(
        model,
        nn.CrossEntropyLoss(),
        adam,
        data(),
        global_batch=32,
        devices=devices,
        exact="bitwise",
        shares="equal",
        callbacks=callbacks,
    ) as trainer:
        trainer.fit(epochs)
    return model, trainer


@pytest.fixture(scope="module")
def undisturbed() -> Any:
    return trained("cpu:1", 8)[0]


def same_bits(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_killed_changes_no_bit_of_the_result(victim: int, undisturbed: Any) -> None:
    model, trainer = trained(THREE, 8, lambda report: workers()[victim].kill() if report.epoch == 2 else None)
    assert same_bits(model, undisturbed)
    assert [report.epoch for report in trainer.reports] == list(range(1, 9))
    assert any("is lost" in note for note in trainer.notes)


def test_a_worker_that_is_frozen_is_given_up_and_changes_no_bit(undisturbed: Any) -> None:
    def freeze(report: Any) -> None:
        if report.epoch == 2:
            os.kill(workers()[1].pid, signal.SIGSTOP)

    begun = time.monotonic()
    model, trainer = trained(THREE, 8, freeze)
    assert same_bits(model, undisturbed)
    assert any("does not answer" in note for note in trainer.notes)
    assert time.monotonic() - begun < 90


def test_a_worker_that_comes_back_takes_part_again() -> None:
    away: list[int] = []

    def kill_and_wait(report: Any) -> bool:
        if report.epoch == 2:
            workers()[1].kill()
        elif report.epoch > 2 and not report.shares["cpu:1"]:
            away.append(report.epoch)
        return bool(away) and report.shares["cpu:1"] > 0

    model, trainer = trained("cpu:1,cpu:1", 5000, kill_and_wait)
    assert any("joins at the next step" in note for note in trainer.notes)
    assert same_bits(model, trained("cpu:1", trainer.reports[-1].epoch)[0])
