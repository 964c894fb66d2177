"""What a callback of `fit` sees and may do: the trained model, and no wait for the devices that train it."""

from __future__ import annotations

import copy
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.errors import BadValueError
from hetero.floor.errors import MissingPackageError
from hetero.train import additivity, member
from hetero.train.listener import Listener
from hetero.train.saving import read_model
from tests.flat_options import trainer_options
from tests.needs import need

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


def halve(model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "weights": halve,
    "loaded": lambda model, _: model.load_state_dict({name: 0.9 * one for name, one in model.state_dict().items()}),
    "cleared": lambda _, optimizer: optimizer.state.clear(),
    "zeroed": lambda _, optimizer: next(iter(optimizer.state.values()))["exp_avg"].zero_(),
    "counted": lambda _, optimizer: next(iter(optimizer.state.values())).update(step=torch.tensor(1.0)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_callback_writes_to_model_and_optimizer_is_trained_on(fleet: hetero.Context, name: str) -> None:
    model, change = net(), CHANGES[name]
    expected, optimizer = copy.deepcopy(model), adam(model)

    def write(report: Any) -> None:
        if report.epoch != 2:
            change(model, optimizer)

    with made(fleet, model, optimizer, write) as trainer:
        trainer.fit(2)
        trainer.fit(2)
    other = adam(expected)
    for epoch, _ in enumerate(plain_epochs(expected, other, 4), 1):
        if epoch != 2:
            change(expected, other)
    assert distance(model.state_dict(), expected.state_dict()) < 1e-12
    assert distance(model.state_dict(), net().state_dict()) > 1e-2


def pids(ctx: hetero.Context) -> list[int]:
    return [ctx.driver.engine.pids()[device.id] for device in ctx.devices]


@pytest.mark.parametrize("killed", [[0], [1], [0, 1]])
def test_what_a_callback_writes_stays_when_workers_are_lost_at_that_moment(
    fleet: hetero.Context, tmp_path: Path, killed: list[int]
) -> None:
    model = net()
    expected, optimizer = copy.deepcopy(model), adam(model)
    heard: list[int] = []

    def write(report: Any) -> None:
        heard.append(report.epoch)
        halve(model, optimizer)
        if report.epoch == 2 and heard.count(2) == 1:
            for number in killed:
                os.kill(pids(fleet)[number], signal.SIGKILL)

    with made(fleet, model, optimizer, write, checkpoint=tmp_path, checkpoint_every=2) as trainer:
        trainer.fit(4)
    for _ in plain_epochs(expected, adam(expected), 4):
        halve(expected, None)
    assert heard == ([1, 2, 2, 3, 4] if len(killed) == 2 else [1, 2, 3, 4])
    assert distance(model.state_dict(), expected.state_dict()) < 1e-12


def test_a_frozen_weight_that_a_callback_writes_is_refused_by_name(fleet: hetero.Context) -> None:
    model = net()
    model[0].weight.requires_grad_(False)
    sgd = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    said = r"a callback changed 0\.weight, a weight, which the devices would not see; .*fit\(1\) in a loop"
    with made(fleet, model, sgd, lambda _: halve(model, sgd)) as trainer, pytest.raises(BadValueError, match=said):
        trainer.fit(2)


def test_a_fit_after_which_only_weights_were_changed_makes_no_trial_and_no_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    for module, name in ((additivity, "verify"), (member, "probe")):
        real = getattr(module, name)
        note = lambda *args, name=name, real=real, **more: (asked.append(name), real(*args, **more))[1]  # noqa: E731
        monkeypatch.setattr(module, name, note)
    model = net()
    expected, optimizer = copy.deepcopy(model), adam(model)
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
        trainer = made(ctx, model, optimizer)
        for _ in range(3):
            trainer.fit(1)
            halve(model, optimizer)
        assert sorted(asked) == ["probe", "probe", "verify", "verify"]
        model[0].weight.requires_grad_(False)
        trainer.fit(1)
        assert len(asked) == 8
    other = adam(expected)
    for epoch, _ in enumerate(plain_epochs(expected, other, 4)):
        if epoch < 3:
            halve(expected, other)
        if epoch == 2:
            expected[0].weight.requires_grad_(False)
            expected[0].weight.grad = None
    assert distance(model.state_dict(), expected.state_dict()) < 1e-12


# --- metrics -------------------------------------------------------------------------------------------------


def confidence(outputs: Any, targets: Any) -> Any:
    return torch.softmax(outputs, 1)[torch.arange(len(targets)), targets].median()


def given_metrics() -> dict[str, Any]:
    torchmetrics = pytest.importorskip("torchmetrics")
    kinds = {"f1": torchmetrics.F1Score("multiclass", num_classes=3, average="macro")}
    kinds["area"] = torchmetrics.AUROC("multiclass", num_classes=3)
    kinds["both"] = torchmetrics.MetricCollection({"a": torchmetrics.Accuracy("multiclass", num_classes=3)})
    return {**kinds, "confidence": confidence, "per class": lambda outputs, targets: outputs.mean(0)}


@pytest.mark.parametrize("lost", [False, True])
def test_metrics_of_a_test_are_those_of_one_device_over_all_samples(fleet: hetero.Context, lost: bool) -> None:
    model, metrics = net(), given_metrics()
    test = tuple(part[:21] for part in data())
    found: list[dict[str, Any]] = []

    def compare(report: Any) -> None:
        outputs = model(test[0]).detach()
        for name in ("f1", "area"):
            assert report.metrics[name] == pytest.approx(float(given_metrics()[name](outputs, test[1])), rel=1e-12)
        assert report.metrics["both_a"] == pytest.approx(float((outputs.argmax(1) == test[1]).double().mean()))
        assert report.metrics["confidence"] == pytest.approx(float(confidence(outputs, test[1])), rel=1e-12)
        assert report.metrics["per class"] == pytest.approx(outputs.mean(0).tolist(), rel=1e-9)
        found.append(report.metrics)
        if lost and report.epoch == 1:
            os.kill(pids(fleet)[0], signal.SIGKILL)

    with made(fleet, model, adam(model), compare, metrics=metrics) as trainer:
        reports = trainer.fit(3, test=test)
        assert [report.metrics for report in reports] == found
        again = [trainer.evaluate(test).metrics for _ in range(2)]
    for tested in again:
        assert tested.keys() == found[-1].keys() == {"f1", "area", "both_a", "confidence", "per class"}
        assert tested.pop("per class") == pytest.approx(found[-1]["per class"], rel=1e-6)
        assert tested == pytest.approx({name: found[-1][name] for name in tested}, rel=1e-6)


def test_a_trainer_shows_what_it_was_given(fleet: hetero.Context) -> None:
    model = net()
    options = {"clip_norm": 1.0, "metrics": {"sure": confidence}, "shares": "auto"}
    text = repr(made(fleet, model, adam(model), hetero.train.EarlyStopping(), **options))
    assert text.startswith("<Trainer Sequential, CrossEntropyLoss, Adam, 24 samples, global_batch=8, shuffle=False")
    for part in ("clip_norm=1.0", "cpu:0, cpu:1", "callbacks=[EarlyStopping]", "metrics={sure}; step 0; nothing that"):
        assert part in text


def test_metrics_that_are_none_are_refused_by_name(fleet: hetero.Context) -> None:
    for odd in ([confidence], {"a": 3}, {3: confidence}, {"a": dict}):
        with pytest.raises(BadValueError, match=r"metrics=.* is not allowed; give a dict from names to objects of"):
            made(fleet, net(), adam(net()), metrics=odd)
    with pytest.raises(BadValueError, match="metrics has test_loss, which every report has already"):
        made(fleet, net(), adam(net()), metrics={"test_loss": confidence})
    with pytest.raises(BadValueError, match="give a list of functions of an EpochReport, or objects such as"):
        made(fleet, net(), adam(net()), hetero.train.EarlyStopping)
    model = net()
    with made(fleet, model, adam(model), metrics={"text": lambda *_: "high"}) as trainer:
        trainer.fit(1)
        assert "metrics are of what is tested: give fit test=DATA for those of every epoch" in trainer.notes
        with pytest.raises(BadValueError, match="the metric 'text' gave 'high', which is no number"):
            trainer.evaluate(data())


# --- objects -------------------------------------------------------------------------------------------------


class Worse(hetero.train.Callback):
    """Sets weights so that the loss of a test is as wanted: smaller for a smaller number."""

    def __init__(self, model: Any, numbers: list[float]) -> None:
        self.model, self.numbers = model, numbers

    def on_epoch(self, report: Any) -> None:
        with torch.no_grad():
            self.model[2].weight.zero_()
            self.model[2].bias.copy_(torch.tensor([self.numbers[report.epoch], 0.0, 0.0]).double())


TARGETS = torch.zeros(24, dtype=torch.int64)


def graded(ctx: hetero.Context, numbers: list[float], *further: Any, **options: Any) -> tuple[Any, Any]:
    """Return a model and a Trainer whose epochs are tested with the bias that the last one left: larger is better."""
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=1e-9)
    return model, made(ctx, model, sgd, *further, Worse(model, [*numbers, 0.0]), **options)


def test_training_stops_early_and_the_best_weights_come_back(fleet: hetero.Context) -> None:
    stopping, best = hetero.train.EarlyStopping(patience=2, min_delta=0.01), hetero.train.BestWeights()
    model, trainer = graded(fleet, [0.0, 1.0, 3.0, 2.0, 3.001, 9.0, 9.0], stopping, best)
    with trainer:
        reports = trainer.fit(6, test=(data()[0], TARGETS))
    # The test of an epoch is on what the epoch before has left: 1.0 after the first, and so on.
    assert [stopping.best_epoch, best.best_epoch, len(reports)] == [3, 5, 5]
    assert best.best == min(report.test_loss for report in reports)
    assert float(model[2].bias[0].detach()) == pytest.approx(3.001, abs=1e-6)


@pytest.mark.servers
@pytest.mark.parametrize("kept", [True, False])
def test_stopping_and_best_weights_go_on_over_a_checkpoint(fleet: hetero.Context, tmp_path: Path, kept: bool) -> None:
    numbers = [0.0, 3.0, 1.0, 2.0, 2.5, 2.0]
    test = (data()[0], TARGETS)

    def parts() -> tuple[Any, Any]:
        file = tmp_path / "best.safetensors" if kept else None
        return hetero.train.EarlyStopping(patience=3), hetero.train.BestWeights(file=file)

    options = {"checkpoint": tmp_path / "kept", "checkpoint_every": 3}
    with graded(fleet, numbers, *parts(), **options)[1] as trainer:
        trainer.fit(3, test=test)
    stopping, best = parts()
    model, trainer = graded(fleet, numbers, stopping, best, **options)
    with trainer:
        if not kept:
            with pytest.raises(BadValueError, match=r"of epoch 2, the best one, were kept in memory alone; give Best"):
                trainer.resume()
            return
        assert trainer.resume() == 3
        reports = trainer.fit(9, test=test)
    assert [report.epoch for report in reports] == [4, 5]
    assert [stopping.best_epoch, best.best_epoch] == [2, 2]
    assert float(model[2].bias[0].detach()) == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: hetero.train.EarlyStopping(mode="least"), "mode='least' is not allowed; give min, max"),
        (lambda: hetero.train.EarlyStopping(patience=0), "patience=0 is not allowed; give a whole number, 1 or more"),
        (lambda: hetero.train.EarlyStopping(min_delta=-1.0), r"min_delta=-1\.0 is not allowed"),
    ],
)
def test_a_setting_of_a_callback_that_means_nothing_is_refused(make: Any, said: str) -> None:
    with pytest.raises(BadValueError, match=said):
        make()


def test_a_figure_that_an_epoch_has_not_is_refused_with_those_that_it_has(fleet: hetero.Context) -> None:
    model = net()
    said = r"EarlyStopping monitors 'test_loss', and the epoch has loss, accuracy, seconds.*or give fit test=DATA"
    trainer = made(fleet, model, adam(model), hetero.train.EarlyStopping())
    with trainer, pytest.raises(BadValueError, match=said):
        trainer.fit(1)


class Steps(hetero.train.Callback):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.steps: list[Any] = []

    def on_fit_begin(self, trainer: Any) -> None:
        self.heard.append(f"begin {trainer.step}")

    def on_step(self, report: Any) -> None:
        self.heard.append(f"step {report.step}")
        self.steps.append(report)

    def on_epoch(self, report: Any) -> None:
        self.heard.append(f"epoch {report.epoch}")

    def on_fit_end(self, trainer: Any) -> None:
        self.heard.append(f"end {trainer.step}")

    def close(self) -> None:
        self.heard.append("close")


@pytest.mark.parametrize("lost", [None, 0, 1])
def test_every_step_is_told_once_and_in_order_whoever_is_lost(fleet: hetero.Context, lost: int | None) -> None:
    model, steps = net(), Steps()
    optimizer = adam(model)
    rate = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def kill(report: Any) -> None:
        rate.step()
        if report.epoch == 2 and lost is not None:
            os.kill(pids(fleet)[lost], signal.SIGKILL)

    with made(fleet, model, optimizer, steps, kill) as trainer:
        trainer.fit(2)
        trainer.fit(1)
    whole = [*(f"step {n}" for n in (1, 2, 3)), "epoch 1", *(f"step {n}" for n in (4, 5, 6)), "epoch 2"]
    more = [*(f"step {n}" for n in (7, 8, 9)), "epoch 3"]
    assert steps.heard == ["begin 0", *whole, "end 6", "begin 6", *more, "end 9", "close"]
    assert [each.learning_rates for each in steps.steps] == [(0.05 * 0.5 ** (n // 3),) for n in range(9)]
    expected, inputs, targets = net(), *data()
    other, losses = adam(expected), []
    for _ in range(3):
        for begin in range(0, 24, 8):
            other.zero_grad()
            loss = nn.CrossEntropyLoss()(expected(inputs[begin : begin + 8]), targets[begin : begin + 8])
            losses.append(float(loss.detach()))
            loss.backward()
            other.step()
        other.param_groups[0]["lr"] *= 0.5
    assert [each.loss for each in steps.steps] == pytest.approx(losses, rel=1e-12)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda model, _: model[0].weight.data.mul_(0.5), "wrote to the model or the optimizer in on_step"),
        (lambda _, optimizer: optimizer.param_groups[0].update(lr=0.1), "wrote to the model or the optimizer in"),
        (lambda *_: True, "returned True from on_step"),
    ],
)
def test_what_a_callback_does_in_a_step_that_no_device_would_see_is_refused(
    fleet: hetero.Context, write: Callable[[Any, Any], Any], words: str
) -> None:
    model = net()
    optimizer = adam(model)

    class Halving(hetero.train.Callback):
        def on_step(self, report: Any) -> Any:
            return write(model, optimizer)

    with made(fleet, model, optimizer, Halving()) as trainer, pytest.raises(BadValueError, match=f"Halving {words}"):
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


@pytest.mark.servers
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


# --- loggers -------------------------------------------------------------------------------------------------

LOGGED = {"step_loss", "learning_rate", "epoch", "loss", "accuracy", "test_loss", "test_accuracy", "share"}


def logged(fleet: hetero.Context, logger: Any) -> list[Any]:
    model = net()
    metrics = {"share": lambda outputs, targets: (outputs.argmax(1) == targets).double().mean()}
    with made(fleet, model, adam(model), logger, metrics=metrics) as trainer:
        trainer.fit(1, test=data())
        trainer.fit(1, test=data())
    return trainer.reports


def test_tensorboard_has_every_step_and_epoch(fleet: hetero.Context, tmp_path: Path) -> None:
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reports = logged(fleet, hetero.train.TensorBoardLogger(tmp_path))
    found = EventAccumulator(str(tmp_path)).Reload()
    assert set(found.Tags()["scalars"]) >= LOGGED
    assert [each.step for each in found.Scalars("step_loss")] == [1, 2, 3, 4, 5, 6]
    assert [each.step for each in found.Scalars("share")] == [3, 6]
    assert [each.value for each in found.Scalars("test_loss")] == pytest.approx([one.test_loss for one in reports])


def test_mlflow_has_every_step_and_epoch(
    fleet: hetero.Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    need("mlflow")
    import mlflow

    logger = hetero.train.MLflowLogger("digits", name="first", tracking_uri=f"file:{tmp_path}")
    reports = logged(fleet, logger)
    client = mlflow.MlflowClient(f"file:{tmp_path}")
    run = client.get_run(logger.run_id)
    assert set(run.data.metrics) >= LOGGED
    assert (run.info.status, run.data.params["global_batch"]) == ("FINISHED", "8")
    assert [each.step for each in client.get_metric_history(logger.run_id, "step_loss")] == [1, 2, 3, 4, 5, 6]
    found = [each.value for each in client.get_metric_history(logger.run_id, "test_loss")]
    assert found == [one.test_loss for one in reports]


def test_wandb_has_every_step_and_epoch(fleet: hetero.Context, tmp_path: Path) -> None:
    need("wandb")
    import wandb

    logged_values: list[dict[str, Any]] = []

    class Seen(hetero.train.WandbLogger):
        def _log(self, values: Any, step: int) -> None:
            super()._log(values, step)
            logged_values.append({**wandb.run.summary})

    reports = logged(fleet, Seen("digits", mode="offline", folder=tmp_path))
    assert logged_values[-1]["step"] == 6
    assert logged_values[-1]["test_loss"] == pytest.approx(reports[-1].test_loss)
    assert set(logged_values[-1]) >= LOGGED
    assert len(logged_values) == 8
    assert wandb.run is None
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.parametrize("kind", ["TensorBoardLogger", "MLflowLogger", "WandbLogger"])
def test_a_logger_whose_package_is_absent_names_the_extra(
    fleet: hetero.Context, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = getattr(hetero.train, kind).package
    monkeypatch.setitem(sys.modules, package, None)
    model, logger = net(), getattr(hetero.train, kind)("here")
    said = rf"{kind} needs {package}, which is not installed; pip install 'hetero-core\[{package}\]'"
    with made(fleet, model, adam(model), logger) as trainer, pytest.raises(MissingPackageError, match=said):
        trainer.fit(1)
