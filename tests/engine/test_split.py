"""A model split over devices gives what the whole gives, in training too; what dies on the way is told or redone."""

from __future__ import annotations

import os
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest

import hetero
from hetero.errors import BadValueError, HeteroError, NothingFitsError

torch = pytest.importorskip("torch")
nn = torch.nn
loaded = pytest.importorskip("hetero.splitting.transport").loaded

PLACE = [("cpu:1", 3), ("cpu:0", 3)]
TURNED = [("cpu:0", 1), ("cpu:1", 5)]
ALONE = [("cpu:1", 6)]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def ctx(one_thread: None) -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu,1xcpu*0.5", history=False) as context:
        yield context


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.inner = nn.Linear(wide, wide)

    def forward(self, x: Any) -> Any:
        return x + torch.relu(self.inner(x))


def net(dropout: float = 0.0) -> Any:
    """Return a chain of six layers in float64; an in-place layer stands where stages may begin."""
    torch.manual_seed(0)
    parts = (
        nn.Linear(12, 16),
        Block(16),
        nn.Dropout(dropout),
        nn.ReLU(inplace=True),
        nn.Linear(16, 8),
        nn.Linear(8, 4),
    )
    return nn.Sequential(*parts).double()


def data(samples: int = 30) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(samples, 12, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 4, (samples,), generator=generator)


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.01)


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=1.0)


def trained(devices: Any, steps: int, place: Any, loss: Any = None, dropout: float = 0.0, rule: Any = adam) -> Any:
    """Train by stages; returns the model."""
    inputs, targets = data()
    options = {"loss": loss or nn.CrossEntropyLoss(), "optimizer": rule, "place": place}
    with hetero.train.split(net(dropout), devices, inputs[:8], **options) as network:
        for _ in range(steps):
            network.step(inputs, targets)
    return network.model


def plain(steps: int, loss: Any = None, rule: Any = adam) -> Any:
    model, (inputs, targets) = net(), data()
    optimizer, loss = rule(model.parameters()), loss or nn.CrossEntropyLoss()
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
    return model


def distance(one: Any, other: Any) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


# --- results -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 8, 30])
def test_the_outputs_are_those_of_the_whole_for_any_number_of_samples(ctx: Any, samples: int) -> None:
    model, (inputs, _) = net(), data(samples)
    with hetero.train.split(model, ctx, data()[0][:8], place=PLACE) as network:
        assert torch.equal(network(inputs), model(inputs))


def test_an_array_of_numpy_is_taken_as_a_tensor(ctx: Any) -> None:
    model, (inputs, _) = net(), data()
    with hetero.train.split(model, ctx, inputs[:8].numpy(), place=PLACE) as network:
        assert torch.equal(network(inputs.numpy()), model(inputs))


@pytest.mark.parametrize("place", [PLACE, TURNED, ALONE], ids=["halves", "turned", "alone"])
def test_the_gradients_are_those_of_the_whole_in_float64(ctx: Any, place: Any) -> None:
    assert distance(trained(ctx, 1, place, rule=sgd), plain(1, rule=sgd)) < 1e-14
    assert distance(plain(1, rule=sgd), net()) > 1e-3


def test_twenty_steps_of_adam_are_those_of_the_whole_in_float64(ctx: Any) -> None:
    assert distance(trained(ctx, 20, PLACE), plain(20)) < 1e-12


def test_a_loss_that_weights_classes_or_sums_is_that_of_the_whole(ctx: Any) -> None:
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    for loss in (nn.CrossEntropyLoss(weight=weights), nn.CrossEntropyLoss(reduction="sum", ignore_index=2)):
        assert distance(trained(ctx, 3, PLACE, loss), plain(3, loss)) < 1e-12


def test_dropout_does_not_depend_on_where_the_model_is_cut(ctx: Any) -> None:
    one, other = (trained(ctx, 3, place, dropout=0.5) for place in (PLACE, TURNED))
    assert distance(one, other) < 1e-12
    assert distance(one, trained(ctx, 3, PLACE)) > 1e-4


def test_a_model_that_is_given_in_eval_mode_trains_as_in_training_mode(ctx: Any) -> None:
    inputs, targets = data()
    options = {"loss": nn.CrossEntropyLoss(), "optimizer": adam, "place": PLACE}
    with hetero.train.split(net(0.5).eval(), ctx, inputs[:8], **options) as network:
        for _ in range(3):
            network.step(inputs, targets)
    assert distance(network.model, trained(ctx, 3, PLACE, dropout=0.5)) < 1e-12


def test_a_model_in_half_precision_passes_its_tensors_on(ctx: Any) -> None:
    model, inputs = net().bfloat16(), data()[0].bfloat16()
    with hetero.train.split(model, ctx, inputs[:8], place=PLACE) as network:
        assert network(inputs).dtype == torch.bfloat16


def test_layers_that_are_frozen_stay_as_they_are(ctx: Any) -> None:
    model, (inputs, targets) = net(), data()
    model[:3].requires_grad_(False)
    with hetero.train.split(
        model, ctx, inputs[:8], loss=nn.CrossEntropyLoss(), optimizer=adam, place=[("cpu:0", 2), ("cpu:1", 4)]
    ) as network:
        network.step(inputs, targets)
    assert torch.equal(model[0].weight, net()[0].weight)
    assert not torch.equal(model[4].weight, net()[4].weight)


# --- the choice --------------------------------------------------------------------------------------------


class Waiting(nn.Module):  # type: ignore[misc]
    """Takes its time on one device, as a layer that this device is bad at."""

    def __init__(self, bad: str) -> None:
        super().__init__()
        self.bad = bad

    def forward(self, x: Any) -> Any:
        if hetero.get_current_device().short == self.bad:
            time.sleep(0.02)
        return x * 1.0


def test_every_layer_goes_where_it_is_fast_and_the_prediction_says_by_how_much(ctx: Any) -> None:
    model = nn.Sequential(*(Waiting(bad) for bad in ("cpu:0", "cpu:0", "cpu:1", "cpu:1")))
    inputs, _ = data()
    with hetero.train.split(model, ctx, inputs[:8]) as network:
        network(inputs)
        report = network.report()
    assert [(stage.device, stage.count) for stage in report.stages] == [("cpu:1", 2), ("cpu:0", 2)]
    assert report.alone_samples_per_s is not None
    assert report.predicted_samples_per_s > 1.5 * report.alone_samples_per_s
    assert report.measured_samples_per_s is not None


def test_a_split_that_is_predicted_to_be_slower_is_not_made_and_the_report_says_so(ctx: Any) -> None:
    inputs, _ = data()
    with hetero.train.split(net(), ctx, inputs[:8]) as network:
        assert torch.equal(network(inputs), network.model(inputs))
        report = network.report()
    assert [stage.device for stage in report.stages] == ["cpu:0"]
    assert "not split: no split is predicted to be faster than cpu:0 alone" in str(report)


def test_a_device_that_is_slow_on_purpose_is_shown_as_that(ctx: Any) -> None:
    inputs, _ = data()
    with hetero.train.split(net(), ctx, inputs[:8], slow={"cpu:1": {"Linear": 0.1}}, place=PLACE) as network:
        assert "cpu:1 (throttled to 0.5; emulated: Linear at 0.1 of its speed)" in str(network)


def test_layers_that_are_slow_on_purpose_train_to_the_same_parameters(ctx: Any) -> None:
    inputs, targets = data()
    options = {"loss": nn.CrossEntropyLoss(), "optimizer": adam, "slow": {"cpu:0": {"Linear": 0.5}}}
    with hetero.train.split(net(), ctx, inputs[:8], place=PLACE, **options) as network:
        network.step(inputs, targets)
    assert distance(network.model, plain(1)) < 1e-12


def test_a_model_that_fits_on_no_device_alone_is_split_by_memory() -> None:
    devices = [{"type": "CPU", "cores": 1, "memory_limit": "2GB"}, {"type": "CPU", "cores": 1, "memory_limit": "2GB"}]
    sample = torch.zeros(1, 4)
    model = nn.Sequential(*(Heavy(1_200_000_000) for _ in range(2)))
    with hetero.train.split(model, devices, sample) as network:
        assert torch.equal(network(sample), sample)
        assert len(network.report().stages) == 2
        assert "fits on none of the devices alone" in str(network)
        with pytest.raises(
            NothingFitsError, match=r"the model needs 4\.8 GB .* cpu:0 holds 2 GB, cpu:1 holds 2 GB; name more"
        ):
            hetero.train.split(nn.Sequential(*(Heavy(1_200_000_000) for _ in range(4))), network.context, sample)


class Heavy(nn.Module):  # type: ignore[misc]
    """Says that it holds so many bytes, and holds one."""

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(1, dtype=torch.uint8).expand(nbytes))

    def forward(self, x: Any) -> Any:
        return x * 1.0


# --- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"place": [("cpu:0", 2), ("cpu:1", 3)]}, "place: 2 . 3 is 5, and the model has 6 layers"),
        ({"place": [("cpu:0", 2), ("cpu:7", 4)]}, "place: 'cpu:7' is no device of this split"),
        ({"place": "best"}, "place='best' is not allowed"),
        ({"slow": {"cpu:0": {"Linaer": 0.5}}}, "no 'Linaer'; did you mean 'Linear'"),
        ({"slow": {"cpu:0": {"Linear": 0}}}, "slow: Linear at 0; give a share of speed above 0"),
        ({"slow": {"cpu:0": 0.5}}, "slow: cpu:0 has 0.5; give shares of speed by class"),
        ({"place": ["cpu:0", "cpu:1"]}, r"give 'auto', or \[\(device, layers\)"),
        ({"micro_batches": 0}, "micro_batches=0 is not allowed"),
        ({"loss": nn.CrossEntropyLoss()}, "there is no optimizer"),
        ({"loss": nn.CrossEntropyLoss(), "optimizer": 3}, "int is no function of parameters"),
    ],
)
def test_a_mistake_is_told_in_one_line(ctx: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValueError, match=message):
        hetero.train.split(net(), ctx, data()[0][:8], **options)


def test_one_device_is_refused() -> None:
    with pytest.raises(BadValueError, match="a split takes two devices or more that torch can use, and here is cpu:0"):
        hetero.train.split(net(), "1xcpu", data()[0][:8])


def test_batch_normalisation_in_training_is_refused(ctx: Any) -> None:
    model = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).double()
    with pytest.raises(BadValueError, match="takes its statistics from the samples of a micro-batch"):
        hetero.train.split(model, ctx, data()[0][:8], loss=nn.CrossEntropyLoss(), optimizer=adam)


def test_inputs_of_another_form_are_refused(ctx: Any) -> None:
    inputs, targets = data()
    with hetero.train.split(net(), ctx, inputs[:8], place=PLACE) as network:
        with pytest.raises(BadValueError, match=r"float32 of shape \(…, 12\), and the split was made for float64"):
            network(inputs.float())
        with pytest.raises(BadValueError, match="this split has no loss"):
            network.step(inputs, targets)


def test_a_loss_that_is_not_a_number_moves_nothing(ctx: Any) -> None:
    inputs, targets = data()
    options = {"loss": nn.CrossEntropyLoss(), "optimizer": adam, "place": PLACE}
    with hetero.train.split(net(), ctx, inputs[:8], **options) as network:
        with pytest.raises(HeteroError, match="the loss is not a number at step 0"):
            network.step(inputs * float("nan"), targets)
        network.step(inputs, targets)
    assert distance(network.model, plain(1)) < 1e-12


# --- deaths ------------------------------------------------------------------------------------------------


class Sleeping(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        time.sleep(0.03)
        return x * 1.0


@pytest.fixture(scope="module")
def mortal(one_thread: None) -> Iterator[tuple[hetero.Context, set[int]]]:
    """Yield a fleet whose workers may be harmed, and the workers that may not."""
    others = {worker.pid for worker in workers()}
    with hetero.Context(devices="2xcpu", history=False) as context:
        yield context, others


def slow_net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8), Sleeping(), nn.Linear(8, 4)).double()


def workers() -> list[psutil.Process]:
    """Return this process's workers, the youngest last; a child that has ended and was not waited for is none."""
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    found = [child for child in living if "hetero.drive.worker" in " ".join(child.cmdline())]
    return sorted(found, key=lambda child: child.create_time())


def disturbed(harm: Callable[[int], None], others: set[int], call: Callable[[], Any]) -> Any:
    """Do harm to a worker of this test's own while a call runs."""
    own = [worker.pid for worker in workers() if worker.pid not in others]
    timer = threading.Timer(0.15, lambda: harm(own[-1]))
    timer.start()
    try:
        return call()
    finally:
        timer.join()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


@pytest.mark.servers
@pytest.mark.slow
def test_a_killed_worker_costs_an_attempt_and_a_frozen_one_the_deadline(mortal: Any) -> None:
    fleet, others = mortal
    model, (inputs, _) = slow_net(), data(64)
    place = [("cpu:0", 2), ("cpu:1", 1)]
    with hetero.train.split(model, fleet, inputs[:8], place=place, patience="100s") as network:
        assert torch.equal(disturbed(kill, others, lambda: network(inputs)), model(inputs))
    with hetero.train.split(model, fleet, inputs[:8], place=place, patience="1s") as network:
        freeze(next(worker.pid for worker in reversed(workers()) if worker.pid not in others))
        with pytest.raises(HeteroError, match="ran longer than its limit"):
            network(inputs)
    with hetero.train.split(model, fleet, inputs[:8], place=place, patience="100s") as network:
        assert torch.equal(network(inputs), model(inputs))


@pytest.mark.servers
@pytest.mark.slow
def test_a_worker_that_dies_in_training_is_told_and_the_split_goes_back_to_the_last_gather(mortal: Any) -> None:
    fleet, others = mortal
    model, (inputs, targets) = slow_net(), data(64)
    options = {"loss": nn.CrossEntropyLoss(), "optimizer": adam, "place": [("cpu:0", 2), ("cpu:1", 1)]}
    with hetero.train.split(model, fleet, inputs[:8], **options) as network:
        network.step(inputs, targets)
        network.gather()
        again = network.step(inputs, targets)
        with pytest.raises(HeteroError, match=r"step 2 is lost: .*; the split is back at step 1"):
            disturbed(kill, others, lambda: network.step(inputs, targets))
        assert network.step(inputs, targets) == again


def test_a_layer_is_unpickled_from_what_a_device_holds_as_its_own_array() -> None:
    """A device with memory of its own holds the bytes as a tensor there: reading them one by one takes for ever."""

    class OwnArray:
        def __init__(self, data: np.ndarray) -> None:
            self.data = data

    class Backend:
        def owns(self, value: Any) -> bool:
            return isinstance(value, OwnArray)

        def copy_out(self, value: Any) -> np.ndarray:
            return value.data

    frame = types.SimpleNamespace(backend=Backend())
    content = np.frombuffer(cloudpickle.dumps({"weight": [1, 2]}), np.uint8)
    assert loaded(content, frame) == loaded(OwnArray(content), frame) == {"weight": [1, 2]}
