"""Workers die, freeze, are cut off and come back while a model is trained; the model does not notice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import hetero
from hetero.train import lead, worker_deaths
from hetero.train.values import TrainingError
from tests.flat_options import trainer_options

torch = pytest.importorskip("torch")
nn = torch.nn

THREE = "2xcpu,1xcpu*0.5"
SAMPLES, BATCH, EPOCHS = 640, 32, 5


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4))


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((SAMPLES, 12)).astype(np.float32), rng.integers(0, 4, SAMPLES)


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.01)


class Cutting:
    """A loss that, where a file says so, once shuts every TCP connection of the worker that computes it."""

    def __init__(self, order: Path) -> None:
        self.order = order
        self.least = nn.CrossEntropyLoss(reduction="none")

    def __call__(self, outputs: Any, targets: Any) -> Any:
        import socket

        from hetero.session.task_api import get_current_device

        if self.order.exists() and get_current_device().short == "cpu:1":
            self.order.unlink()
            cut = 0
            for connection in psutil.Process().net_connections("tcp"):
                if connection.raddr:
                    with suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as copy:  # it may end meanwhile
                        copy.shutdown(socket.SHUT_RDWR)
                        cut += 1
            assert cut
        return self.least(outputs, targets)


def make(devices: Any, loss: Any = None, **options: Any) -> hetero.Trainer:
    usual = {"global_batch": BATCH, "exact": "bitwise", "shares": "equal", "devices": devices, **options}
    return hetero.Trainer(net(), loss or nn.CrossEntropyLoss(), adam, data(), **trainer_options(**usual))


def at(epoch: int, act: Callable[[], Any]) -> Callable[[Any], None]:
    """Return a callback that acts once, when this epoch is over."""

    def callback(report: Any) -> None:
        if report.epoch == epoch and not done:
            done.append(True)
            act()

    done: list[bool] = []
    return callback


@pytest.fixture(scope="module")
def ctx() -> Iterator[hetero.Context]:
    with hetero.Context(devices=THREE, history=False) as made:
        yield made


@pytest.fixture(scope="module")
def bits() -> Iterator[Callable[[int], list[Any]]]:
    """Yield a function that gives the parameters after so many undisturbed epochs on one device."""
    kept: dict[int, list[Any]] = {}
    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as alone:
        trainer = make(alone)

        def after(epochs: int) -> list[Any]:
            for epoch in range(len(kept) + 1, epochs + 1):
                trainer.fit(1)
                kept[epoch] = [parameter.detach().clone() for parameter in trainer.model.parameters()]
            return kept[epochs]

        yield after


def pid(ctx: Any, device: int) -> int:
    """Return the process of the worker of a device, the one that lives now."""
    found: dict[str, int] = dict(ctx.driver.engine.pids())
    return next(number for name, number in found.items() if name.endswith(f"cpu:{device}"))


def same_bits(trainer: hetero.Trainer, expected: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), expected, strict=True))


def team(log: Path, generation: int) -> set[str]:
    """Return the devices that handed in samples in a group."""
    return {
        device
        for step in hetero.train.read_sample_log(log)
        if step.generation == generation
        for device, ids in step.samples.items()
        if ids
    }


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_a_worker_that_is_killed_changes_no_bit_and_no_sample_is_lost_or_used_twice(
    bits: Callable[[int], list[Any]], tmp_path: Path
) -> None:
    trainer = make(THREE, sample_log=tmp_path)
    trainer.callbacks = (at(2, lambda: os.kill(pid(trainer.context, 0), signal.SIGKILL)),)
    with trainer:
        trainer.fit(EPOCHS)
    assert same_bits(trainer, bits(EPOCHS))
    assert [report.epoch for report in trainer.reports] == list(range(1, EPOCHS + 1))
    assert any("is lost" in note for note in trainer.notes)
    assert hetero.train.check_sample_log(tmp_path)[:2] == (EPOCHS * SAMPLES // BATCH, EPOCHS)
    assert team(tmp_path, 2) == {"cpu:1", "cpu:2"}


@pytest.mark.servers
@pytest.mark.slow
def test_a_worker_that_is_killed_within_a_step_costs_that_step_alone(
    ctx: hetero.Context, bits: Callable[[int], list[Any]], tmp_path: Path
) -> None:
    trainer = make(ctx, sample_log=tmp_path)
    shot = threading.Timer(0.1, lambda: os.kill(pid(ctx, 1), signal.SIGKILL))
    trainer.callbacks = (at(2, shot.start),)
    trainer.fit(EPOCHS)
    shot.join()
    assert same_bits(trainer, bits(EPOCHS))
    assert hetero.train.check_sample_log(tmp_path).epochs == EPOCHS


@pytest.mark.slow
def test_a_worker_that_is_frozen_is_given_up_and_joins_again_when_it_wakes(
    ctx: hetero.Context, bits: Callable[[int], list[Any]], tmp_path: Path
) -> None:
    frozen: list[int] = []

    def freeze() -> None:
        frozen.append(pid(ctx, 1))
        os.kill(frozen[0], signal.SIGSTOP)

    def wake_and_wait(report: Any) -> bool:
        if report.epoch == 4:
            assert not report.shares["cpu:1"]
            os.kill(frozen[0], signal.SIGCONT)
        return bool(report.epoch > 4 and report.shares["cpu:1"] > 0)

    trainer = make(ctx, sample_log=tmp_path, callbacks=(at(2, freeze), wake_and_wait))
    trainer.fit(3000)
    assert any("cpu:1 does not answer" in note for note in trainer.notes)
    assert any("cpu:1 is back and joins" in note for note in trainer.notes)
    assert same_bits(trainer, bits(trainer.reports[-1].epoch))
    assert hetero.train.check_sample_log(tmp_path).epochs == trainer.reports[-1].epoch


def test_a_worker_that_is_cut_off_dials_again_and_changes_no_bit(
    ctx: hetero.Context, bits: Callable[[int], list[Any]], tmp_path: Path
) -> None:
    order = tmp_path / "cut"
    trainer = make(ctx, Cutting(order), sample_log=tmp_path / "log", callbacks=(at(2, order.touch),))
    trainer.fit(EPOCHS)
    assert not order.exists()
    assert any("cpu:1 is lost" in note for note in trainer.notes)
    assert any("cpu:1 is back and joins" in note for note in trainer.notes)
    assert same_bits(trainer, bits(EPOCHS))
    assert hetero.train.check_sample_log(tmp_path / "log").epochs == EPOCHS


@pytest.mark.servers
@pytest.mark.slow
def test_a_worker_that_is_killed_comes_back_and_takes_part_again(ctx: hetero.Context, tmp_path: Path) -> None:
    away: list[int] = []

    def wait_until_back(report: Any) -> bool:
        if report.epoch > 2 and not report.shares["cpu:2"]:
            away.append(report.epoch)
        return bool(away) and report.shares["cpu:2"] > 0

    kill = at(2, lambda: os.kill(pid(ctx, 2), signal.SIGKILL))
    trainer = make(ctx, sample_log=tmp_path, callbacks=(kill, wait_until_back))
    trainer.fit(3000)
    assert any("cpu:2 is back and joins at the next step" in note for note in trainer.notes)
    assert hetero.train.check_sample_log(tmp_path).epochs == trainer.reports[-1].epoch
    assert team(tmp_path, 2) == {"cpu:0", "cpu:1"}


@pytest.mark.slow
def test_a_worker_that_is_not_up_at_the_beginning_joins_when_it_is(
    ctx: hetero.Context, bits: Callable[[int], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead, "_START_S", 0.5)
    late = pid(ctx, 1)
    os.kill(late, signal.SIGSTOP)

    def wait_until_there(report: Any) -> bool:
        if report.epoch == 1:
            assert not report.shares["cpu:1"]
            os.kill(late, signal.SIGCONT)
        return bool(report.shares["cpu:1"])

    trainer = make(ctx, callbacks=(wait_until_there,))
    trainer.fit(3000)
    assert any("cpu:1 is not up yet: training begins without it" in note for note in trainer.notes)
    assert any("cpu:1 is up and joins at the next step" in note for note in trainer.notes)
    assert same_bits(trainer, bits(trainer.reports[-1].epoch))


class Deadly(nn.Module):  # type: ignore[misc, name-defined]
    """A model whose forward pass ends the worker where it computes, and not in the program."""

    def __init__(self, program: int) -> None:
        super().__init__()
        self.inner, self.program = nn.Linear(12, 4), program

    def forward(self, inputs: Any) -> Any:
        if os.getpid() != self.program:
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.inner(inputs)


@pytest.mark.servers
@pytest.mark.slow
def test_a_model_that_ends_every_worker_fails_with_the_signal_and_harms_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_deaths, "_DEATHS", 2)  # each life begins with loading torch
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        model = Deadly(os.getpid())
        trainer = hetero.Trainer(model, nn.CrossEntropyLoss(), adam, data(), devices=ctx, global_batch=BATCH)
        with pytest.raises(TrainingError, match=r"died 2 times, no step being done between.*SIGSEGV"):
            trainer.fit(1)
        make(ctx).fit(1)


@pytest.mark.slow
@pytest.mark.servers
def test_a_device_whose_worker_is_killed_again_and_again_is_never_given_up(
    bits: Callable[[int], list[Any]], tmp_path: Path
) -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        trainer = make(ctx, checkpoint_every=SAMPLES // BATCH, checkpoint=tmp_path)
        trainer.callbacks = tuple(at(epoch, lambda: kill_all(ctx)) for epoch in range(1, 6))
        trainer.fit(6)
        assert same_bits(trainer, bits(6))


def kill_all(ctx: Any) -> None:
    for number in ctx.driver.engine.pids().values():
        os.kill(number, signal.SIGKILL)


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.parametrize("every", [7, None])
def test_when_all_workers_die_training_goes_on_from_the_newest_checkpoint_or_from_where_it_began(
    every: int | None, ctx: hetero.Context, bits: Callable[[int], list[Any]], tmp_path: Path
) -> None:
    kept = {"checkpoint": tmp_path / "kept", "checkpoint_every": every} if every else {}
    trainer = make(ctx, sample_log=tmp_path / "log", **kept)
    trainer.fit(1)
    heard: list[int] = []
    trainer.callbacks = (lambda report: heard.append(report.epoch), at(3, lambda: kill_all(ctx)))
    reports = trainer.fit(EPOCHS - 1)
    where = "from the checkpoint of step 56" if every else "from step 20"
    assert any(f"nobody is left who took part: training goes on {where}" in note for note in trainer.notes)
    assert heard == ([2, 3, 3, 4, 5] if every else [2, 3, 2, 3, 4, 5])
    assert [report.epoch for report in reports] == [2, 3, 4, 5]
    assert same_bits(trainer, bits(EPOCHS))
    assert hetero.train.check_sample_log(tmp_path / "log").epochs == EPOCHS


def rates_of(devices: Any, *further: Callable[[Any], Any], **options: Any) -> tuple[list[tuple[int, float]], Any]:
    """Return the learning rates after each epoch as two schedulers set them, and the parameters."""
    model, rates = net(), []
    optimizer = adam(model.parameters())
    steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2], 0.3)
    worse = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.5, patience=1)

    def step(report: Any) -> None:
        steps.step()
        worse.step(report.loss)
        rates.append((report.epoch, optimizer.param_groups[0]["lr"]))

    usual = {"global_batch": BATCH, "exact": "bitwise", "shares": "equal", "devices": devices, **options}
    trainer = hetero.Trainer(
        model, nn.CrossEntropyLoss(), optimizer, data(), callbacks=[step, *further], **trainer_options(**usual)
    )
    trainer.fit(4)
    return rates, list(model.parameters())


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("every", [7, None])
def test_schedulers_go_back_with_a_run_whose_workers_all_died(every: int | None, tmp_path: Path) -> None:
    kept = {"checkpoint": tmp_path / "kept", "checkpoint_every": every} if every else {}
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        expected, whole = rates_of(ctx)
        rates, parameters = rates_of(ctx, at(2, lambda: kill_all(ctx)), **kept)
    assert len({rate for _, rate in expected}) == 3
    assert [epoch for epoch, _ in rates] == ([1, 2, 2, 3, 4] if every else [1, 2, 1, 2, 3, 4])
    assert set(rates) == set(expected)
    assert all(torch.equal(one, other) for one, other in zip(parameters, whole, strict=True))


@pytest.mark.slow
def test_a_first_member_that_dies_before_its_state_has_arrived_is_replaced_by_the_next(
    ctx: hetero.Context, bits: Callable[[int], list[Any]]
) -> None:
    def kill_and_stop(report: Any) -> bool:
        if report.epoch == 2:
            os.kill(pid(ctx, 0), signal.SIGKILL)
        return bool(report.epoch == 2)

    trainer = make(ctx, callbacks=(kill_and_stop,))
    reports = trainer.fit(EPOCHS)
    assert [report.epoch for report in reports] == [1, 2]
    assert trainer.step == 2 * SAMPLES // BATCH
    assert same_bits(trainer, bits(2))
