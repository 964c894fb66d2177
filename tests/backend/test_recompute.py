"""Blocks that are computed twice: less memory, the same gradients to the bit, also where numbers are drawn."""

from __future__ import annotations

import copy
from typing import Any

import cloudpickle
import pytest

from hetero.errors import BadValueError

torch = pytest.importorskip("torch")
nn = torch.nn

from hetero.train.activation_checkpointing import blocks  # noqa: E402
from hetero.train.data import Samples, as_samples  # noqa: E402
from hetero.train.replica import ModelReplica  # noqa: E402
from hetero.train.values import TrainOptions  # noqa: E402

WIDTH, LENGTH, SAMPLES = 32, 16, 24


class Classifier(nn.Module):  # type: ignore[misc]
    """A small transformer with every kind of dropout that it can have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, 0.3, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 4), nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        noisy = x + 0.1 * torch.rand_like(x)
        return self.out(nn.functional.dropout(self.encoder(noisy), 0.2, self.training).mean(1))


def samples() -> Samples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, LENGTH, WIDTH, generator=generator)
    return as_samples((inputs, torch.randint(0, 3, (SAMPLES,), generator=generator)))


def replica(recompute: Any, model: Any = None) -> ModelReplica:
    parts = cloudpickle.dumps((model or Classifier(), nn.CrossEntropyLoss(), torch.optim.SGD))
    return ModelReplica(parts, TrainOptions(SAMPLES, recompute=recompute), "cpu", 0)


def gradients(one: ModelReplica, steps: int = 2) -> list[Any]:
    """Return the gradients of some steps; the first one is where it shows where the model draws numbers."""
    found = []
    for step in range(steps):
        one.step = step
        one.compute(samples(), range(SAMPLES), SAMPLES)
        found += [parameter.grad.clone() for parameter in one.model.parameters()]
    return found


def peak_bytes(one: ModelReplica) -> int:
    one.compute(samples(), range(SAMPLES), SAMPLES)
    now = peak = 0
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        one.compute(samples(), range(SAMPLES), SAMPLES)
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


@pytest.mark.parametrize("recompute", ["blocks", ("encoder",), ("encoder.layers.1", "encoder.layers.3")])
def test_gradients_are_the_same_bits_though_the_blocks_draw_numbers(recompute: Any) -> None:
    expected, found = gradients(replica("none")), gradients(replica(recompute))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_recomputed_blocks_need_less_memory() -> None:
    assert peak_bytes(replica("blocks")) < 0.6 * peak_bytes(replica("none"))


def test_a_recomputed_block_within_a_recomputed_module_draws_what_it_drew() -> None:
    expected, found = gradients(replica("none")), gradients(replica(("encoder", "encoder.layers.2")))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_a_model_that_is_only_asked_is_not_computed_twice() -> None:
    one = replica("blocks")
    other = copy.deepcopy(one.model)
    calls: list[int] = []
    one.model.encoder.layers[0].linear1.register_forward_hook(lambda *_: calls.append(1))
    one.evaluate(samples(), range(SAMPLES), SAMPLES)
    assert len(calls) == 1
    assert set(one.model.state_dict()) == set(other.state_dict())


def test_the_blocks_are_what_lists_hold_and_plain_layers_are_none() -> None:
    assert blocks(Classifier()) == [f"encoder.layers.{number}" for number in range(4)]
    with pytest.raises(BadValueError, match="recompute='blocks': Sequential has no ModuleList or Sequential of"):
        blocks(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_a_name_that_the_model_does_not_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadValueError, match=r"no module 'encoder.layer.1'; did you mean 'encoder.layers.1'"):
        replica(("encoder.layer.1",))
    with pytest.raises(BadValueError, match="no module 'block'; did you mean 'blocks'"):
        replica("block")
