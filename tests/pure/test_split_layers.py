"""A model is cut where one value goes on, what belongs together stays together, and the rest is refused by reason."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest

from hetero.errors import BadValueError
from tests.needs import PROJECT

torch = pytest.importorskip("torch")
nn = torch.nn

from hetero.splitting.layers import chain_of, run_through  # noqa: E402  torch must be there first


class Residual(nn.Module):  # type: ignore[misc]
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.inner = nn.Linear(wide, wide)

    def forward(self, x: Any) -> Any:
        return x + torch.relu(self.inner(x))


class Net(nn.Module):  # type: ignore[misc]
    """A chain with a residual block, a parameter of its own, and functions between the parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.block = Residual(8)
        self.scale = nn.Parameter(torch.full((8,), 2.0))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = torch.flatten(self.first(x), 1)
        x = self.block(x) * self.scale
        return self.last(x)


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("resnet50", PROJECT / "examples" / "resnet50.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_traced_model_is_cut_around_its_residual_block() -> None:
    layers = chain_of(Net(), training=False)
    assert [(layer.name, layer.kind) for layer in layers] == [
        ("first", "Linear"),
        ("flatten", "flatten"),
        ("block.inner", "Linear"),
        ("mul", "several"),
        ("last", "Linear"),
    ]


def test_the_layers_one_after_the_other_are_the_model() -> None:
    model, x = Net(), torch.randn(4, 6)
    _, values = run_through(chain_of(model, training=False), x)
    assert torch.equal(values[-1], model(x))


def test_the_layers_have_the_models_own_parameters() -> None:
    model = Net()
    own = {id(parameter) for layer in chain_of(model, training=True) for parameter in layer.module.parameters()}
    assert own == {id(parameter) for parameter in model.parameters()}


def test_cutting_leaves_the_modes_of_a_model_alone() -> None:
    model = Net()
    chain_of(model, training=False)
    assert all(module.training for module in model.modules())


def test_a_sequential_is_cut_between_the_children_of_its_sequentials_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), Residual(2)), nn.Linear(2, 1))
    assert [layer.name for layer in chain_of(model, training=False)] == ["0", "1.0", "1.1", "2"]


def test_a_part_that_stands_twice_in_a_sequential_is_two_layers() -> None:
    relu, x = nn.ReLU(), torch.randn(2, 3)
    model = nn.Sequential(relu, nn.Linear(3, 3), relu)
    layers, values = run_through(chain_of(model, training=False), x)
    assert len(layers) == 3
    assert torch.equal(values[-1], model(x))


def test_layers_that_share_a_parameter_stay_together() -> None:
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.weight = one.weight
    model = nn.Sequential(nn.ReLU(), one, nn.Tanh(), other, nn.ReLU())
    assert [layer.name for layer in chain_of(model, training=False)] == ["0", "1…3", "4"]


def test_a_layer_that_gives_several_tensors_stays_with_the_next() -> None:
    class Pair(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x, x + 1

    class Sum(nn.Module):  # type: ignore[misc]
        def forward(self, pair: Any) -> Any:
            return pair[0] + pair[1]

    layers, values = run_through(chain_of(nn.Sequential(nn.ReLU(), Pair(), Sum(), nn.ReLU()), False), torch.ones(2))
    assert [layer.name for layer in layers] == ["0", "1…2", "3"]
    assert values[-1].tolist() == [3.0, 3.0]


def test_resnet50_has_the_published_number_of_parameters_and_is_cut_between_its_blocks() -> None:
    model = example().ResNet50()
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    names = [layer.name for layer in chain_of(model, training=False)]
    assert sum(name.count(".") == 1 for name in names) == 16
    assert names[-1] == "classifier"


class Data(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x


class Two(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any, y: Any) -> Any:
        return x + y


class Dropping(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return nn.functional.dropout(self.first(x), 0.5, training=self.training).relu()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Data(), "its forward cannot be traced"),
        (Two(), "takes 2 inputs"),
        (Residual(2), "more than one value goes on everywhere"),
        (nn.Sequential(nn.Linear(2, 2)), "it is one layer"),
        (Dropping(), "would drop out in every pass"),
    ],
    ids=["depends on data", "two inputs", "one residual block", "one layer", "dropout that is fixed"],
)
def test_a_model_that_cannot_be_cut_is_refused_with_the_reason(model: Any, reason: str) -> None:
    with pytest.raises(BadValueError, match=reason):
        chain_of(model, training=True)


def test_a_sample_that_does_not_fit_names_the_layer_and_what_it_got() -> None:
    layers = chain_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 2)), training=False)
    with pytest.raises(BadValueError, match=r"sample of shape \(3, 4\).*does not fit layer 1 \(Linear\).*\(3, 4\)"):
        run_through(layers, torch.ones(3, 4))


def test_a_model_that_gives_several_tensors_is_refused() -> None:
    layers = chain_of(nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 2)), training=False)
    with pytest.raises(BadValueError, match=r"layer 1 \(LSTM\) gives 2 values"):
        run_through(layers, torch.ones(3, 4))


def test_a_layer_that_computes_in_place_leaves_the_sample_alone() -> None:
    sample = -torch.ones(2, 2)
    run_through(chain_of(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2)), training=False), sample)
    assert torch.equal(sample, -torch.ones(2, 2))
