"""The layout in which convolutions work changes how soon a pass ends, and nothing else."""

from __future__ import annotations

from typing import Any

import cloudpickle
import numpy as np
import pytest

import hetero
from hetero.errors import BadValueError

torch = pytest.importorskip("torch")
nn = torch.nn

from hetero.train.data import as_samples  # noqa: E402
from hetero.train.probe import _may_choose, _with_channels_last  # noqa: E402
from hetero.train.replica import ModelReplica  # noqa: E402
from hetero.train.values import TrainOptions  # noqa: E402

SAMPLES = 16


class Viewing(nn.Module):  # type: ignore[misc]
    """A model whose code expects channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.last = nn.Linear(4 * 6 * 6, 5)

    def forward(self, pictures: Any) -> Any:
        return self.last(self.convolution(pictures).view(len(pictures), -1))


def flat() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(36, 5)
    )


def replica(model: Any, **options: Any) -> ModelReplica:
    parts = cloudpickle.dumps((model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), fused=True)))
    return ModelReplica(parts, TrainOptions(SAMPLES, **options), "cpu", 0)


@pytest.fixture(scope="module")
def samples() -> Any:
    rng = np.random.default_rng(1)
    return as_samples((rng.standard_normal((SAMPLES, 3, 8, 8)).astype(np.float32), rng.integers(0, 5, SAMPLES)))


def gradients(made: ModelReplica, samples: Any) -> Any:
    made.compute(samples, range(SAMPLES), SAMPLES)
    return torch.cat([parameter.grad.reshape(-1) for parameter in made.model.parameters()])


@pytest.mark.parametrize("model", [flat, lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.Flatten())])
def test_channels_last_give_the_same_gradients_up_to_rounding(model: Any, samples: Any) -> None:
    torch.manual_seed(3)
    given = model()
    first, last = (replica(given, layout=layout) for layout in ("channels_first", "channels_last"))
    one, other = gradients(first, samples), gradients(last, samples)
    assert last.layout.channels_last
    assert float((one - other).norm() / one.norm()) < 1e-6


def test_parameters_lie_as_they_did(samples: Any) -> None:
    made = replica(flat(), layout="channels_last")
    done = made.compute(samples, range(SAMPLES), SAMPLES)
    made.apply(done, SAMPLES)
    assert all(parameter.is_contiguous() for parameter in made.model.parameters())


def test_a_model_that_cannot_have_channels_last_is_run_as_it_is(samples: Any) -> None:
    torch.manual_seed(3)
    given = Viewing()
    made = replica(given)
    made.layout.channels_last = True
    assert torch.equal(gradients(made, samples), gradients(replica(given, layout="channels_first"), samples))
    assert not made.layout.channels_last


def test_a_probe_does_not_choose_what_the_model_cannot_have(samples: Any) -> None:
    made = replica(Viewing())

    def timed() -> float:
        gradients(made, samples)
        return 1.0

    assert _may_choose(made)
    assert _with_channels_last(made, timed) == float("inf")


def test_a_layout_that_was_asked_for_is_not_given_up_in_silence(samples: Any) -> None:
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        gradients(replica(Viewing(), layout="channels_last"), samples)


@pytest.mark.parametrize(
    ("model", "options"),
    [(flat, {"exact": "bitwise"}), (flat, {"layout": "channels_first"}), (lambda: nn.Linear(3, 4), {})],
)
def test_the_layout_is_left_alone_where_bits_count_or_nothing_depends_on_it(model: Any, options: Any) -> None:
    assert not _may_choose(replica(model(), **options))


def test_deterministic_algorithms_of_torch_leave_the_layout_as_it_is() -> None:
    model, data = flat(), (np.zeros((8, 3, 8, 8), np.float32), np.zeros(8, np.int64))
    torch.use_deterministic_algorithms(True)
    try:
        made = hetero.Trainer(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters()), data, global_batch=8)
    finally:
        torch.use_deterministic_algorithms(False)
    assert made.options.layout == "channels_first"


def test_a_layout_that_is_none_is_refused() -> None:
    with pytest.raises(BadValueError, match="layout='channels-last' is not allowed; did you mean 'channels_last'"):
        TrainOptions(8, layout="channels-last")
