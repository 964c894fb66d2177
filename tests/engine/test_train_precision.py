"""Half precision and recomputed blocks over unequal devices give what they give on one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hetero
from tests.flat_options import trainer_options

torch = pytest.importorskip("torch")
nn = torch.nn

SHARES = {"cpu:0": 20, "cpu:1": 12}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fleet() -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu,1xcpu*0.8", history=False) as ctx:
        yield ctx


def block(width: int) -> Any:
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.3))


def net(blocks: int = 0) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), *(nn.Sequential(*block(16)) for _ in range(blocks)), nn.Linear(16, 4))


def data(samples: int = 96) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((samples, 12)).astype(np.float32), rng.integers(0, 4, samples)


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


def trained(model: Any, fleet: Any, pair: Any = None, **options: Any) -> hetero.Trainer:
    options = {"global_batch": 32, "shares": SHARES, "shuffle": False, **options}
    trainer = hetero.Trainer(
        model, nn.CrossEntropyLoss(), sgd, pair or data(), devices=fleet, **trainer_options(**options)
    )
    trainer.fit(1)
    return trainer


def distance(one: Any, other: Any) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def plain(model: Any, half: Any, pair: Any, skipped: tuple[int, ...] = ()) -> Any:
    """Train an epoch in a loop that knows nothing of hetero, with torch's own narrow passes."""
    model = copy.deepcopy(model)
    optimizer = sgd(model.parameters())
    inputs, targets = map(torch.from_numpy, pair)
    for step in range(3):
        here = slice(32 * step, 32 * step + 32)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=half):
            loss = nn.functional.cross_entropy(model(inputs[here]), targets[here])
        loss.backward()
        if step not in skipped:
            optimizer.step()
    return model


@pytest.mark.parametrize(("precision", "near"), [("bf16", 4e-3), ("fp16", 1e-3)])
def test_half_precision_is_as_near_to_a_plain_loop_as_its_rounding(fleet: Any, precision: str, near: float) -> None:
    model = net()
    before = copy.deepcopy(model)
    expected = plain(model, torch.bfloat16 if precision == "bf16" else torch.float16, data())
    trained(model, fleet, precision=precision)
    assert distance(model, expected) < near < distance(before, expected)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_step_that_overflows_on_one_device_is_skipped_by_all_and_by_no_other_step(fleet: Any) -> None:
    inputs, targets = data()
    inputs[31] *= 3e4
    model = net()
    expected = plain(model, torch.float16, (inputs, targets), skipped=(0,))
    trained(model, fleet, (inputs, targets), precision="fp16", on_nan="skip")
    assert distance(model, expected) < 1e-3


def test_recomputed_blocks_change_no_bit_over_unequal_devices(fleet: Any) -> None:
    whole, again = net(blocks=2), net(blocks=2)
    trained(whole, fleet)
    trained(again, fleet, recompute="blocks", micro_batch=32)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


def test_a_layer_that_would_count_its_samples_twice_is_not_recomputed(fleet: Any) -> None:
    model = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(12, 4)), nn.BatchNorm1d(4)))
    with pytest.raises(hetero.errors.BadValueError, match="would count its samples twice where it is recomputed"):
        trained(model, fleet, recompute=("0",))
