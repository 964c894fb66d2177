"""How a step changes the weights: clipping, schedules and averages are those of a plain loop, whoever is lost."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.errors import BadValueError
from hetero.train import TrainOptions

torch = pytest.importorskip("torch")
nn = torch.nn
schedulers = torch.optim.lr_scheduler

EPOCHS, STEPS = 4, 4
SHARES = {"cpu:0": 5, "cpu:1": 3}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fleet() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        ctx.gather([ctx.submit(hetero.task(os.getpid, on=(device.id,))) for device in ctx.devices])
        yield ctx


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    return torch.from_numpy(rng.standard_normal((8 * STEPS, 6))), torch.from_numpy(rng.integers(0, 3, 8 * STEPS))


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def adam(model: Any) -> Any:
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}]
    return torch.optim.AdamW(groups, lr=0.05, weight_decay=0.1)


def warm_cosine(optimizer: Any) -> Any:
    warm = schedulers.LinearLR(optimizer, 0.1, total_iters=5)
    return schedulers.SequentialLR(optimizer, [warm, schedulers.CosineAnnealingLR(optimizer, 11)], [5])


WARM_COSINE = {
    "SequentialLR": {
        "schedulers": [{"LinearLR": {"start_factor": 0.1, "total_iters": 5}}, {"CosineAnnealingLR": {"T_max": 11}}],
        "milestones": [5],
    }
}
RULES: dict[str, dict[str, Any]] = {
    "norm": {"clip_norm": 0.05},
    "value": {"clip_value": 0.01},
    "warm-up and cosine": {"schedule": warm_cosine},
    "the same by name": {"schedule": WARM_COSINE},
    "one cycle": {"schedule": lambda optimizer: schedulers.OneCycleLR(optimizer, [0.2, 0.1], STEPS * EPOCHS)},
    "each epoch": {"schedule": lambda one: schedulers.StepLR(one, 1, 0.5), "schedule_each": "epoch"},
    "averages": {"ema_decay": 0.8},
    "all": {"clip_norm": 0.05, "schedule": warm_cosine, "ema_decay": 0.8},
}


def plain(clip_norm: Any = None, clip_value: Any = None, schedule: Any = None, **more: Any) -> tuple[Any, Any, Any]:
    """Train in a loop that knows nothing of hetero; returns the model, the averages and the learning rates."""
    model, (inputs, targets) = net(), data()
    optimizer = adam(model)
    rule = None if schedule is None else (schedule if callable(schedule) else warm_cosine)(optimizer)
    each, decay = more.get("schedule_each", "step"), more.get("ema_decay", 0.5)
    swa = torch.optim.swa_utils
    averages = swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(decay))
    for _ in range(EPOCHS):
        for begin in range(0, len(inputs), 8):
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(model(inputs[begin : begin + 8]), targets[begin : begin + 8]).backward()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            if clip_value is not None:
                nn.utils.clip_grad_value_(model.parameters(), clip_value)
            optimizer.step()
            averages.update_parameters(model)
            if rule is not None and each == "step":
                rule.step()
        if rule is not None and each == "epoch":
            rule.step()
    return model, averages.module, [group["lr"] for group in optimizer.param_groups]


def made(ctx: Any, callbacks: Any = (), checkpoint: Any = None, **rule: Any) -> Any:
    options = TrainOptions(8, shares=SHARES, shuffle=False, **rule)
    model = net()
    return hetero.Trainer(
        *(model, nn.CrossEntropyLoss(), adam(model), data()),
        devices=ctx, options=options, callbacks=callbacks, checkpoint=checkpoint,
    )  # fmt: skip


def distance(one: Any, other: Any) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def compare(trainer: Any, rule: dict[str, Any]) -> None:
    model, averages, rates = plain(**rule)
    assert distance(trainer.model, model) < 1e-12
    assert [group["lr"] for group in trainer.optimizer.param_groups] == pytest.approx(rates, rel=1e-12)
    if "ema_decay" in rule:
        assert distance(trainer.ema_model, averages) < 1e-12
        assert distance(trainer.model, averages) > 1e-3


@pytest.mark.parametrize("name", RULES)
def test_each_rule_is_that_of_a_plain_loop(name: str, fleet: hetero.Context) -> None:
    with made(fleet, **RULES[name]) as trainer:
        trainer.fit(1)
        trainer.fit(EPOCHS - 1)
    compare(trainer, RULES[name])


@pytest.mark.parametrize("name", ["all", "each epoch"])
def test_a_run_that_resumes_or_loses_a_worker_goes_on_with_schedule_and_averages(
    name: str, fleet: hetero.Context, tmp_path: Path
) -> None:
    rule = RULES[name]

    def kill(report: Any) -> None:
        if report.epoch == 2:
            os.kill(fleet.driver.engine.pids()[fleet.devices[0].id], signal.SIGKILL)

    kept = hetero.train.CheckpointOptions(tmp_path, every=3)
    with made(fleet, checkpoint=kept, **rule) as trainer:
        trainer.fit(1)
    with made(fleet, [kill], checkpoint=kept, **rule) as trainer:
        trainer.fit(EPOCHS - trainer.resume())
    assert any("is lost" in note for note in trainer.notes)
    compare(trainer, rule)


def test_the_averages_are_tested_predicted_and_saved_where_they_are_asked_for(
    fleet: hetero.Context, tmp_path: Path
) -> None:
    rule = RULES["averages"]
    with made(fleet, **rule) as trainer:
        trainer.fit(EPOCHS)
        inputs, targets = data()
        _, averages, _ = plain(**rule)
        expected = averages(inputs).detach()
        assert float((trainer.predict(inputs, ema=True) - expected).abs().max()) < 1e-6
        assert trainer.evaluate((inputs, targets), ema=True).loss == pytest.approx(
            float(nn.CrossEntropyLoss()(expected, targets)), rel=1e-12
        )
        assert trainer.evaluate((inputs, targets)).loss != trainer.evaluate((inputs, targets), ema=True).loss
    again = net()
    hetero.train.load_parameters(again, trainer.save(tmp_path / "averages.safetensors", ema=True))
    assert distance(again, averages) < 1e-12


def test_averages_that_nobody_asked_for_are_refused() -> None:
    trainer = made("1xcpu")
    for ask in (lambda: trainer.ema_model, lambda: trainer.evaluate(data(), ema=True)):
        with pytest.raises(BadValueError, match=r"keeps no averages.*ema_decay=0\.999"):
            ask()


ELSEWHERE = adam(net())
ODD: dict[str, tuple[Any, str]] = {
    "none": (lambda optimizer: None, r"returned None, which is no scheduler of torch's; return torch\.optim"),
    "plateau": (schedulers.ReduceLROnPlateau, r"ReduceLROnPlateau.*callbacks=\[lambda report: plateau.step"),
    "another": (lambda _: schedulers.StepLR(ELSEWHERE, 3), "the scheduler of another optimizer"),
    "unknown": ({"StepRL": {"step_size": 3}}, "schedule='StepRL' is no sched.*mean 'StepLR'.*give .*OneCycleLR"),
    "arguments": ({"StepLR": {"step": 3}}, "schedule='StepLR': .*step.*; give the arguments of torch.*StepLR"),
    "inside": ({"ChainedScheduler": {"schedulers": ["StepLR"]}}, "schedule='StepLR' names no scheduler; write"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_schedule_that_is_none_is_refused_by_name(name: str, fleet: hetero.Context) -> None:
    schedule, said = ODD[name]
    with made(fleet, schedule=schedule) as trainer, pytest.raises(BadValueError, match=said):
        trainer.fit(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clip_norm": 0.0}, r"clip_norm=0\.0 is not allowed; give a number above 0"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, "clip_norm=1 and clip_value=1 clip the same gradients; leave one"),
        ({"ema_decay": 1.0}, r"ema_decay=1\.0 is not allowed; give a number from 0 to below 1"),
        ({"schedule_each": "epoch"}, "schedule_each='epoch' has no effect without a schedule; give schedule="),
        ({"schedule": warm_cosine, "schedule_each": "batch"}, "schedule_each='batch' is not allowed.*give step, epoch"),
        ({"schedule": {}}, "names 0 schedulers; give one"),
        ({"schedule": "cosine"}, "schedule='cosine' is not allowed; give a function"),
    ],
)
def test_options_of_a_step_that_mean_nothing_are_refused(given: Any, said: str) -> None:
    with pytest.raises(BadValueError, match=said):
        TrainOptions(8, **given)


def test_a_checkpoint_of_other_rules_is_refused(fleet: hetero.Context, tmp_path: Path) -> None:
    with made(fleet, checkpoint=tmp_path, schedule=warm_cosine) as trainer:
        trainer.fit(1)
    asks: list[tuple[dict[str, Any], Callable[[Any], Any], str]] = [
        ({"schedule": warm_cosine, "clip_norm": 1.0}, lambda one: one.resume(), "has clip_norm None, and this run 1.0"),
        ({"schedule": warm_cosine, "ema_decay": 0.9}, lambda one: one.resume(), "has ema_decay None, and this run 0.9"),
        ({}, lambda one: one.fit(one.resume()), "kept with SequentialLR, and this run has no schedule"),
        (
            {"schedule": {"StepLR": {"step_size": 2}}},
            lambda one: one.fit(one.resume()),
            "kept with SequentialLR, and this run has StepLR; give the schedule that was used",
        ),
    ]
    for rule, ask, said in asks:
        with made(fleet, checkpoint=tmp_path, **rule) as trainer, pytest.raises(BadValueError, match=said):
            ask(trainer)


def test_other_trained_parameters_than_those_averaged_are_refused(fleet: hetero.Context) -> None:
    with made(fleet, ema_decay=0.9) as trainer:
        trainer.fit(1)
        trainer.model[0].weight.requires_grad_(False)
        with pytest.raises(BadValueError, match="of which there are no averages"):
            trainer.fit(1)


def test_bitwise_sums_keep_schedule_and_averages_equal_for_any_shares(fleet: hetero.Context) -> None:
    found = []
    for shares in ({"cpu:0": 5, "cpu:1": 3}, {"cpu:0": 2, "cpu:1": 6}):
        with made(fleet) as trainer:
            pass
        options = TrainOptions(8, shares=shares, exact="bitwise", **RULES["all"])
        model = net()
        trainer = hetero.Trainer(model, nn.CrossEntropyLoss(), adam(model), data(), devices=fleet, options=options)
        trainer.fit(2)
        found.append((copy.deepcopy(model), trainer.ema_model))
    assert distance(found[0][0], found[1][0]) == distance(found[0][1], found[1][1]) == 0.0
