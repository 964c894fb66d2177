"""Training stays within the memory of each device: passes are sized, halved and remembered, and nothing is lost."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.errors import OutOfDeviceMemoryError
from hetero.floor import settings
from tests.cgroups import memory_group
from tests.flat_options import trainer_options
from tests.needs import need

torch = pytest.importorskip("torch")
nn = torch.nn

LIMITED = {"type": "cpu", "cores": 1, "memory_limit": "400MB"}
FREE = {"type": "cpu", "cores": 1}
WIDE = 40_000
SAMPLES = 512
LOSS = nn.MSELoss()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def limited() -> Iterator[hetero.Context]:
    with hetero.Context({"devices": [LIMITED]}, history=False) as ctx:
        yield ctx


class Wide(nn.Module):  # type: ignore[misc]
    """Few parameters and large activations: 160 kB a layer and sample."""

    def __init__(self, looks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out, self.looks = nn.Linear(4, WIDE), nn.Linear(WIDE, 1), looks

    def forward(self, x: Any) -> Any:
        if self.looks and not bool(torch.isfinite(x).all()):
            raise ValueError("the inputs are not finite")
        return self.out(torch.tanh(self.into(x)))


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((SAMPLES, 4)).astype(np.float32), rng.standard_normal((SAMPLES, 1)).astype(np.float32)


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=1e-4)


def trainer(model: Any, devices: Any, **options: Any) -> hetero.Trainer:
    options = {"global_batch": SAMPLES, "shuffle": False, **options}
    return hetero.Trainer(
        model, LOSS, options.pop("optimizer", sgd), data(), devices=devices, **trainer_options(**options)
    )


def one_step_of(model: Any, optimizer: Any = sgd) -> Any:
    """Do the step in a loop that knows nothing of hetero, in small passes so that it needs little memory."""
    expected = copy.deepcopy(model)
    inputs, targets = map(torch.from_numpy, data())
    stepper = optimizer(expected.parameters())
    for begin in range(0, SAMPLES, 64):
        part = nn.functional.mse_loss(expected(inputs[begin : begin + 64]), targets[begin : begin + 64])
        (part * 64 / SAMPLES).backward()
    stepper.step()
    return expected


def distance(one: Any, other: Any) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.slow
def test_running_out_of_memory_halves_the_passes_and_costs_neither_the_run_nor_a_sample(limited: Any) -> None:
    model = Wide(looks=True)
    expected = one_step_of(model)
    first = trainer(model, limited)
    first.fit(1)
    assert any("cpu:0 ran out of memory: its passes have at most" in note for note in first.notes)
    assert distance(model, expected) < 1e-6
    assert list((settings.home() / "passes").rglob("*"))
    again = trainer(Wide(looks=True), limited)
    again.fit(1)
    assert again.notes == []


def test_what_a_step_needs_is_known_before_so_that_memory_does_not_run_out(limited: Any) -> None:
    model = Wide()
    expected = one_step_of(model)
    run = trainer(model, limited)
    run.fit(1)
    assert run.notes == []
    assert distance(model, expected) < 1e-6


def test_predictions_that_do_not_fit_at_once_are_made_in_parts(limited: Any) -> None:
    class Hungry(Wide):
        def forward(self, x: Any) -> Any:
            return super().forward(x) + 0 * torch.ones(len(x), 4_000_000).sum(1, keepdim=True)

    model = Hungry()
    found = trainer(model, limited).predict(data()[0][:64])
    with torch.no_grad():
        expected = torch.cat([Wide.forward(model, torch.from_numpy(row)[None]) for row in data()[0][:64]])
    torch.testing.assert_close(found, expected)


def test_a_model_of_which_one_sample_does_not_fit_is_refused_with_the_numbers(limited: Any) -> None:
    large = nn.Sequential(nn.Linear(4, 5_000), nn.Linear(5_000, 5_000), nn.Linear(5_000, 1))
    with pytest.raises(OutOfDeviceMemoryError) as refused:
        trainer(large, limited, optimizer=lambda parameters: torch.optim.Adam(parameters)).fit(1)
    words = (
        "parameters 100 MB",
        "gradients 100 MB",
        "optimizer",
        "cpu:0: its memory_limit is 400 MB",
        "hetero.train.split",
    )
    assert [word for word in words if word not in str(refused.value)] == []


def test_a_device_that_runs_out_at_one_sample_says_so(limited: Any) -> None:
    class Greedy(Wide):
        def forward(self, x: Any) -> Any:
            found = super().forward(x)
            return found + 0 * torch.ones(200_000_000)[: len(x), None]

    with pytest.raises(OutOfDeviceMemoryError, match="cpu:0: memory ran out in a pass of one sample"):
        trainer(Greedy(looks=True), limited).fit(1)


def test_an_optimizer_that_runs_out_of_memory_says_so(limited: Any) -> None:
    class Fat(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            torch.ones(200_000_000)
            return super().step(closure)

    with pytest.raises(OutOfDeviceMemoryError, match="cpu:0: memory ran out in the optimizer's step"):
        trainer(Wide(looks=True), limited, optimizer=lambda parameters: Fat(parameters, lr=0.1)).fit(1)


def test_a_loss_that_does_not_fit_beside_the_model_says_so(limited: Any) -> None:
    class Bulky(nn.MSELoss):  # type: ignore[misc]
        def __setstate__(self, state: dict[str, Any]) -> None:
            super().__setstate__(state)
            self.table = torch.ones(200_000_000)

    run = trainer(Wide(looks=True), limited)
    run.loss = Bulky()
    with pytest.raises(OutOfDeviceMemoryError, match="cpu:0: memory ran out beside the passes"):
        run.fit(1)


def test_a_device_with_too_little_memory_is_left_out_and_the_others_train() -> None:
    small = {**LIMITED, "memory_limit": "100MB"}
    with hetero.Context({"devices": [small, FREE]}, history=False) as ctx:
        run = trainer(Wide(), ctx)
        assert run.fit(1)[-1].shares == {"cpu:0": 0, "cpu:1": SAMPLES}
    assert [note for note in run.notes if note.startswith("cpu:0 is left out: its memory_limit is 100 MB; one sample")]


@pytest.mark.servers
@pytest.mark.slow
def test_a_worker_that_the_system_kills_for_its_memory_comes_back_with_smaller_passes() -> None:
    need("cgroup")
    model = Wide()
    expected = one_step_of(model)
    with hetero.Context({"devices": [FREE]}, history=False) as ctx, memory_group(150_000_000) as group:
        ctx.run(torch.get_num_threads)
        for pid in dict(ctx.driver.engine.pids()).values():
            group.add(pid)
        run = trainer(model, ctx)
        run.fit(1)
    assert [note for note in run.notes if "cpu:0 is lost: the system killed it for its memory in a pass of" in note]
    assert distance(model, expected) < 1e-6


@pytest.mark.parametrize(("compression", "times"), [("bf16", 1.5), ("powersgd", 1.0)])
def test_what_compression_owes_counts(compression: str, times: float) -> None:
    from hetero.train.data import as_samples
    from hetero.train.memory import estimate
    from hetero.train.values import TrainOptions

    model = Wide()
    plain, packed = (
        estimate(model, LOSS, sgd, as_samples(data()), TrainOptions(32, compression=word))
        for word in ("none", compression)
    )
    assert plain is not None
    assert packed is not None
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    assert packed.least_bytes - plain.least_bytes == int(times * gradients)
