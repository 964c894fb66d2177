"""What a step takes of memory, as it is foretold and as torch's allocator has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import hetero
from hetero.errors import BadValueError

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
nn = torch.nn


def dense() -> tuple[Any, Any, Any]:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))
    return model, torch.randn(512, 256), torch.randint(0, 10, (512,))


def convolutions() -> tuple[Any, Any, Any]:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Linear(16 * 16 * 16, 10),
    )
    return model, torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))


def attention() -> tuple[Any, Any, Any]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(32 * 16, 10))
    return model, torch.randn(32, 16, 32), torch.randint(0, 10, (32,))


def nbytes(*tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def measured(model: Any, optimizer: Any, inputs: Any, targets: Any) -> int:
    """Return the largest sum of bytes that torch's CPU allocator had out during a step that is not the first."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    whole = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    now = peak = nbytes(*whole, *states, inputs, targets)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return int(peak)


@pytest.mark.parametrize("make", [dense, convolutions, attention])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, lambda parameters: torch.optim.SGD(parameters, lr=0.1)])
def test_the_foretold_bytes_are_those_that_a_real_step_takes(make: Callable[[], Any], optimizer: Any) -> None:
    model, inputs, targets = make()
    foretold = hetero.plan.footprint(model, nn.CrossEntropyLoss(), optimizer, (inputs, targets))
    real = measured(model, optimizer(model.parameters()), inputs, targets)
    assert foretold.total_bytes == pytest.approx(real, rel=0.02)


def test_nothing_of_the_model_is_read_or_changed_so_that_it_may_lie_nowhere() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(30_000, 30_000), nn.Dropout(0.5), nn.Linear(30_000, 1))
    pair = torch.zeros(4, 30_000), torch.zeros(4, 1)
    generator = torch.get_rng_state()
    took = hetero.plan.footprint(model, nn.MSELoss(), torch.optim.Adam(model.parameters()), pair)
    assert took.parameters == 4 * sum(parameter.numel() for parameter in model.parameters())
    assert took.optimizer > 2 * took.parameters
    assert torch.equal(generator, torch.get_rng_state())
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_number_of_samples_can_be_another_than_that_of_the_batch() -> None:
    model, inputs, targets = dense()
    asked = (model, nn.CrossEntropyLoss(), torch.optim.Adam)
    whole = hetero.plan.footprint(*asked, (inputs, targets))
    assert hetero.plan.footprint(*asked, (inputs[:2].numpy(), targets[:2]), samples=512) == whole
    assert hetero.plan.footprint(*asked, (inputs, targets), samples=64).activations < whole.activations


def test_what_is_not_trained_has_neither_gradients_nor_state() -> None:
    model, inputs, targets = dense()
    model[0].requires_grad_(False)
    took = hetero.plan.footprint(
        model, nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters), (inputs, targets)
    )
    assert took.parameters == nbytes(*model.parameters())
    assert took.gradients == nbytes(*(p for p in model.parameters() if p.requires_grad))


def test_half_precision_and_recomputed_blocks_take_less() -> None:
    model, inputs, targets = attention()
    asked = (model, nn.CrossEntropyLoss(), torch.optim.Adam, (inputs, targets))
    whole, half = hetero.plan.footprint(*asked), hetero.plan.footprint(*asked, precision="bf16")
    again = hetero.plan.footprint(*asked, recompute="blocks")
    assert half.pass_bytes < 0.8 * whole.pass_bytes
    assert again.pass_bytes < 0.8 * whole.pass_bytes


def test_a_step_that_looks_at_its_numbers_is_refused() -> None:
    class Looks(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.inner(x) if x.sum() > 0 else x

    pair = torch.zeros(2, 4), torch.zeros(2, 4)
    with pytest.raises(BadValueError, match="Looks cannot be followed without computing"):
        hetero.plan.footprint(Looks(), nn.MSELoss(), torch.optim.SGD, pair)
