"""Pruning and quantisation: what a compressed model computes, and what its file holds."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.errors import BadValueError

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
nn = torch.nn

from hetero.compression.files import (  # noqa: E402
    load_parameters,
    pack,
    restore,
)
from hetero.compression.pruning import drop_channels, make_permanent, zero_weights, zeros_frac  # noqa: E402
from hetero.compression.quantisation import quantise  # noqa: E402
from hetero.train.saving import read_model  # noqa: E402


@pytest.fixture(scope="module")
def ctx() -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu,1xcpu*0.5", history=False) as opened:
        yield opened


def pictures(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(8, 12, 3), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(12 * 3 * 3, 32),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(32, 4),
    ).eval()


def rows(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).eval()


def separable(samples: int = 256) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 4, samples)
    return (rng.standard_normal((samples, 16)) + 3 * np.eye(4, 16)[classes]).astype(np.float32), classes


def outputs(model: Any, shape: tuple[int, ...] = (6, 1, 12, 12)) -> Any:
    with torch.no_grad():
        return model.eval()(torch.from_numpy(np.random.default_rng(1).standard_normal(shape).astype(np.float32)))


def through_a_file(model: Any, fresh: Any, tmp_path: Path, quantised: str | None = None) -> Any:
    (tmp_path / "model.safetensors").write_bytes(pack(model, {"hetero.model": "demo"}, quantised))
    assert load_parameters(fresh, tmp_path / "model.safetensors")["hetero.model"] == "demo"
    return fresh


def test_the_smallest_weights_become_zero_and_the_others_stay() -> None:
    model = rows()
    before = torch.cat([model[place].weight.detach().abs().flatten() for place in (0, 2)])
    zero_weights(model, 0.75)
    make_permanent(model)
    after = torch.cat([model[place].weight.detach().abs().flatten() for place in (0, 2)])
    assert zeros_frac(model) == pytest.approx(0.75, abs=0.001)
    limit = before.sort().values[int(0.75 * len(before)) - 1]
    assert torch.equal(after, torch.where(before <= limit, 0.0, before))


def test_a_channel_that_gives_nothing_can_go_without_a_change() -> None:
    model = pictures()
    with torch.no_grad():
        for layer in (model[0], model[4][0], model[6]):
            for dead in range(0, len(layer.weight), 2):
                layer.weight[dead] = 0
                layer.bias[dead] = 0
    narrow = copy.deepcopy(model)
    drop_channels(narrow, 0.5)
    assert [tuple(narrow[place].weight.shape) for place in (0, 6, 9)] == [(4, 1, 3, 3), (16, 54), (4, 16)]
    assert narrow[1].num_features == 4
    torch.testing.assert_close(outputs(narrow), outputs(model))


def test_a_model_whose_channels_cannot_be_followed_is_refused_by_name() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

    with pytest.raises(BadValueError, match=r"the channels of 1 \(Own\) cannot be followed"):
        drop_channels(nn.Sequential(nn.Linear(4, 4), Own()), 0.5)
    with pytest.raises(BadValueError, match=r"the channels of 1 \(Conv2d\) cannot be followed"):
        drop_channels(nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, groups=2)), 0.5)


@pytest.mark.parametrize("word", ["int8", "int8-weights"])
def test_a_quantised_model_answers_almost_as_before(word: str) -> None:
    pytest.importorskip("torchao")
    model = rows()
    small = copy.deepcopy(model)
    assert quantise(small, word) == ["0", "2"]
    expected, found = outputs(model, (32, 16)), outputs(small, (32, 16))
    assert not torch.equal(found, expected)
    assert float((found - expected).abs().max()) < 0.05 * float(expected.abs().max())


@pytest.mark.parametrize("word", [None, "int8", "int8-weights"])
@pytest.mark.parametrize("pruning", ["none", "zeros", "channels"])
def test_a_compressed_model_comes_back_from_its_file_to_the_bit(tmp_path: Path, word: str | None, pruning: str) -> None:
    if word is not None:
        pytest.importorskip("torchao")
    model = pictures()
    if pruning == "zeros":
        zero_weights(model, 0.8)
        make_permanent(model)
    if pruning == "channels":
        drop_channels(model, 0.5)
    if word is not None:
        quantise(model, word)
    again = through_a_file(model, pictures(seed=9), tmp_path, word)
    assert torch.equal(outputs(again), outputs(model))


def test_zeros_take_one_bit_each() -> None:
    model = nn.Sequential(nn.Linear(1000, 100, bias=False))
    dense = len(pack(model, {}))
    zero_weights(model, 0.9)
    make_permanent(model)
    sparse = len(pack(model, {}))
    assert sparse < dense * (0.1 + 1 / 32) + 1000


def test_a_compressed_file_of_another_model_is_told(tmp_path: Path) -> None:
    model = pictures()
    zero_weights(model, 0.8)
    make_permanent(model)
    with pytest.raises(BadValueError, match="belongs to another model"):
        through_a_file(model, rows(), tmp_path)


def test_a_damaged_word_in_a_compressed_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pack(rows(), {}))
    tensors, facts = read_model(tmp_path / "a")
    whole = json.loads(facts["hetero.compressed"])
    odd = [{"sparse": {"0.weight": [3]}}, {"quantise": "int3"}, {"shapes": {"0.weight": [1, 1]}}, {"sparse": 3}]
    for damaged in ("", "[]", "{}", *(json.dumps({**whole, **change}) for change in odd)):
        with pytest.raises((RuntimeError, BadValueError)):
            restore(rows(), tensors, {**facts, "hetero.compressed": damaged})


def trained(model: Any, pair: tuple[np.ndarray, np.ndarray]) -> Any:
    inputs, targets = map(torch.from_numpy, pair)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return model


def loss_of(model: Any, pair: tuple[np.ndarray, np.ndarray]) -> float:
    inputs, targets = map(torch.from_numpy, pair)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(inputs), targets))


def test_fine_tuning_keeps_zeros_and_lowers_the_loss(ctx: hetero.Context) -> None:
    pair = separable()
    model = trained(rows(), pair)
    before = copy.deepcopy(model.state_dict())
    plain = copy.deepcopy(model)
    zero_weights(plain, 0.9)
    tuned = hetero.train.compress(model, prune=0.9, data=pair, fine_tune=2, global_batch=64, devices=ctx)
    assert tuned.after.zeros_frac == pytest.approx(0.9, abs=0.01)
    assert loss_of(tuned.model, pair) < loss_of(plain, pair)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.servers
def test_both_models_are_measured_on_every_device(ctx: hetero.Context, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    made = hetero.train.compress(rows(), prune=0.5, structured=True, quantize="int8", test=separable(), devices=ctx)
    for figures in (made.before, made.after):
        assert set(figures.samples_per_s) == {"cpu:0", "cpu:1"}
        assert min(figures.samples_per_s.values()) > 0
        assert 0 <= (figures.accuracy or 0.0) <= 1
    assert made.after.size_bytes < made.before.size_bytes
    assert made.after.parameters < made.before.parameters
    assert made.save(tmp_path / "small.safetensors").stat().st_size == made.after.size_bytes


def test_a_convolution_alone_is_not_quantised() -> None:
    with pytest.raises(BadValueError, match="no linear layer, and others are not quantised"):
        hetero.train.compress(nn.Sequential(nn.Conv2d(1, 2, 3)), quantize="int8", devices="1xcpu")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "nothing to do; give prune=0.5, or quantize='int8'"),
        ({"prune": 1.0}, "prune=1.0 is not allowed"),
        ({"prune": -0.1}, "prune=-0.1 is not allowed"),
        ({"prune": True}, "prune=True is not allowed"),
        ({"quantize": "int9"}, "quantize='int9' is not known; did you mean 'int8'?"),
        ({"prune": 0.5, "fine_tune": 1}, "give prune= and data= to train on"),
        ({"prune": 0.5, "fine_tune": -1}, "fine_tune=-1 is not allowed"),
    ],
)
def test_a_wish_that_cannot_be_met_is_told(words: dict[str, Any], said: str) -> None:
    with pytest.raises(BadValueError) as told:
        hetero.train.compress(rows(), **words)
    assert said in str(told.value)


def test_something_that_is_no_model_is_told() -> None:
    with pytest.raises(BadValueError, match="dict is no model"):
        hetero.train.compress({}, prune=0.5)
