"""What a callback of `fit` sees and may do: the trained model, and no wait for the devices that train it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.errors import BadValueError
from hetero.train.listener import Listener
from hetero.train.saving import read_model
from tests.flat_options import trainer_options

torch = pytest.importorskip("torch")
nn = torch.nn

DEVICES = "1xcpu,1xcpu"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fleet() -> Iterator[hetero.Context]:
    with hetero.Context(devices=DEVICES, history=False) as ctx:
        ctx.gather([ctx.submit(hetero.task(os.getpid, on=(device.id,))) for device in ctx.devices])
        yield ctx


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    return torch.from_numpy(rng.standard_normal((24, 6))), torch.from_numpy(rng.integers(0, 3, 24))


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def adam(model: Any) -> Any:
    return torch.optim.Adam(model.parameters(), lr=0.05)


def made(ctx: hetero.Context, model: Any, optimizer: Any, *callbacks: Callable[[Any], Any], **options: Any) -> Any:
    options = {"global_batch": 8, "devices": ctx, "shares": {"cpu:0": 5, "cpu:1": 3}, "shuffle": False, **options}
    return hetero.Trainer(
        model, nn.CrossEntropyLoss(), optimizer, data(), callbacks=callbacks, **trainer_options(**options)
    )


def plain_epochs(model: Any, optimizer: Any, epochs: int) -> Iterator[None]:
    """Train in a loop that knows nothing of hetero; stops after every epoch."""
    inputs, targets = data()
    for _ in range(epochs):
        for begin in range(0, 24, 8):
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(model(inputs[begin : begin + 8]), targets[begin : begin + 8]).backward()
            optimizer.step()
        yield


def distance(one: Any, other: Any) -> float:
    return max(float((one[name] - other[name]).detach().abs().max()) for name in one)


WAITS: dict[str, Callable[[Any], Any]] = {
    "evaluate": lambda trainer: trainer.evaluate(data()),
    "predict": lambda trainer: trainer.predict(data()[0]),
    "fit": lambda trainer: trainer.fit(1),
    "resume": lambda trainer: trainer.resume(),
    "close": lambda trainer: trainer.close(),
    "wait for task": lambda trainer: trainer.context.run(sum, [1, 2]),
    "wait for  task": lambda trainer: trainer.context.submit(sum, [1, 2]).result(),
    "wait for   task": lambda trainer: list(trainer.context.map(abs, [1, 2])),
    "close the Context": lambda trainer: trainer.context.close(),
}


def test_what_would_wait_for_the_devices_in_a_callback_is_refused_at_once_by_name(fleet: hetero.Context) -> None:
    model, said = net(), {}

    def ask(report: Any) -> None:
        for name, wait in WAITS.items() if report.epoch == 1 else ():
            try:
                wait(trainer)
            except BadValueError as error:
                said[name] = str(error)

    with made(fleet, model, adam(model), ask) as trainer:
        assert len(trainer.fit(2)) == 2
    assert said.keys() == WAITS.keys()
    for name, text in said.items():
        assert " ".join(name.split()) in text
        assert "fit" in text
        assert "; " in text
    assert fleet.run(sum, [1, 2]) == 3


def test_callbacks_see_the_model_and_the_optimizer_as_they_are_trained(fleet: hetero.Context, tmp_path: Path) -> None:
    model = net()
    expected, optimizer = copy.deepcopy(model), adam(model)
    averages = [torch.optim.swa_utils.AveragedModel(each) for each in (model, expected)]
    seen: list[tuple[Any, ...]] = []

    def keep(report: Any) -> None:
        averages[0].update_parameters(model)
        saved = trainer.save(tmp_path / f"{report.epoch}.safetensors")
        moments = [optimizer.state[p]["exp_avg"].clone() for p in model.parameters()]
        seen.append((copy.deepcopy(model.state_dict()), read_model(saved)[0], moments, trainer.step))

    with made(fleet, model, optimizer, keep) as trainer:
        trainer.fit(3)
    other = adam(expected)
    for epoch, _ in enumerate(plain_epochs(expected, other, 3)):
        averages[1].update_parameters(expected)
        state, saved, moments, step = seen[epoch]
        assert distance(state, expected.state_dict()) < 1e-12
        assert distance(saved, expected.state_dict()) < 1e-12
        for mine, parameter in zip(moments, expected.parameters(), strict=True):
            assert float((mine - other.state[parameter]["exp_avg"]).abs().max()) < 1e-12
        assert step == 3 * (epoch + 1)
    assert distance(dict(averages[0].named_parameters()), dict(averages[1].named_parameters())) < 1e-12


def test_a_fit_that_a_callback_ends_by_an_error_goes_on_from_the_epoch_that_it_saw(fleet: hetero.Context) -> None:
    model = net()
    expected, optimizer = copy.deepcopy(model), adam(model)
    group = optimizer.param_groups[0]

    def fail(report: Any) -> None:
        group["lr"] *= 0.5  # of the group that it took before training
        if report.epoch == 2:
            raise OSError("the disk is full")

    with made(fleet, model, optimizer, fail) as trainer:
        with pytest.raises(OSError, match="the disk is full"):
            trainer.fit(4)
        assert [trainer.step, *(report.epoch for report in trainer.reports)] == [6, 1, 2]
        trainer.fit(1)
    assert group is optimizer.param_groups[0]
    assert group["betas"] == (0.9, 0.999)
    other = adam(expected)
    for _ in plain_epochs(expected, other, 3):
        other.param_groups[0]["lr"] *= 0.5
    assert distance(model.state_dict(), expected.state_dict()) < 1e-12


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer: optimizer.state.clear(),
        lambda optimizer: next(iter(optimizer.state.values()))["exp_avg"].zero_(),
        lambda optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
        lambda optimizer: next(iter(optimizer.state.values())).update(step=torch.tensor(1.0)),
    ],
)
def test_state_of_the_optimizer_that_a_callback_changes_is_refused_by_name(fleet: hetero.Context, change: Any) -> None:
    model = net()
    optimizer = adam(model)

    def changes(report: Any) -> None:
        if report.epoch == 2:
            change(optimizer)

    said = r"a callback changed \w+ of [02]\.(weight|bias), the optimizer's state, .*fit\(1\) in a loop"
    with made(fleet, model, optimizer, changes) as trainer, pytest.raises(BadValueError, match=said):
        trainer.fit(3)
    changed = torch.optim.Adam(model.parameters(), lr=0.05)
    with made(fleet, model, changed) as trainer:
        trainer.fit(1)
        changed.state.clear()
        trainer.fit(1)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_mode_that_a_callback_leaves_is_set_back_and_a_note_tells(fleet: hetero.Context, mode: str) -> None:
    model = net().train(mode == "eval")
    with made(fleet, model, adam(model), lambda report: model.train(mode == "train") and None) as trainer:
        trainer.fit(1)
    assert model.training is (mode == "eval")
    assert any(
        f"a callback left the model in {mode} mode: training goes on in the mode" in text for text in trainer.notes
    )


def test_a_listener_sees_the_trained_model_too(fleet: hetero.Context) -> None:
    model = net()
    begun, seen = copy.deepcopy(model.state_dict()), []

    class Looks(Listener):
        def on_epoch(self, report: Any) -> bool:
            seen.append(distance(model.state_dict(), begun))
            model.eval()
            return False

    with made(fleet, model, adam(model)) as trainer:
        trainer.fit(2, listener=Looks())
    assert 0.0 < seen[0] < seen[1]


def by_epoch(optimizer: Any) -> Callable[[Any], Any]:
    return lambda report: optimizer.param_groups[0].update(lr=0.05 * 0.5**report.epoch)


def by_milestones(optimizer: Any) -> Callable[[Any], Any]:
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3], 0.1)
    return lambda report: scheduler.step()


@pytest.mark.parametrize("rule", [by_epoch, by_milestones])
def test_a_run_that_goes_on_has_what_callbacks_set(fleet: hetero.Context, tmp_path: Path, rule: Any) -> None:
    found = []
    for parts in ((4,), (2, 4)):
        for upto in parts:
            model = net()
            optimizer = adam(model)
            folder = tmp_path / f"{len(parts)}"
            with made(fleet, model, optimizer, rule(optimizer), checkpoint=folder, checkpoint_every=2) as trainer:
                trainer.fit(upto - trainer.resume())
        found.append((model.state_dict(), optimizer.param_groups[0]["lr"]))
    assert distance(found[0][0], found[1][0]) == 0.0
    assert found[0][1] == found[1][1]


class Growing(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples of which there are more as time goes on."""

    def __init__(self) -> None:
        self.samples = 8

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), torch.zeros(1)


def test_data_that_have_grown_between_two_fits_are_refused(fleet: hetero.Context) -> None:
    data, model = Growing(), nn.Linear(4, 1)
    with hetero.Trainer(model, nn.MSELoss(), adam(model), data, global_batch=4, devices=fleet) as trainer:
        trainer.fit(1)
        data.samples = 16
        with pytest.raises(BadValueError, match="the data have 16 samples, and had 8 when the Trainer was made"):
            trainer.fit(1)


def test_a_context_whose_tasks_run_in_the_program_is_refused_rather_than_waited_for() -> None:
    inputs = torch.ones(8, 4)
    with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        model = nn.Linear(4, 1)
        trainer = hetero.Trainer(model, nn.MSELoss(), adam(model), (inputs, inputs[:, :1]), global_batch=4, devices=ctx)
        with pytest.raises(BadValueError, match=r"engine='inline'.*isolation='thread'"):
            trainer.fit(1)
