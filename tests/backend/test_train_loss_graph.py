"""What a loss is made of, and whether its graph is one that was compared: what may mix rows is seen."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812  torch's own word

from hetero.train.loss_graph import ComparedGraphs  # noqa: E402
from hetero.train.loss_terms import common_factor, meanings_of, terms_of  # noqa: E402

ROWS = 5
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def look(loss: torch.Tensor, graphs: ComparedGraphs) -> tuple[str, ...]:
    found: tuple[str, ...] = graphs.strange(loss, ROWS, [term.node for term in terms_of(loss)]).mixing
    return found


def given() -> tuple[torch.Tensor, torch.Tensor]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return model(torch.randn(ROWS, 4)), torch.randint(0, 3, (ROWS,))


def plain(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out, targets)


MIXING: dict[str, Loss] = {
    "centred": lambda out, y: F.cross_entropy(out - out.mean(0), y),
    "deviation": lambda out, y: F.cross_entropy(out, y) + out.var(0).mean(),
    "contrastive": lambda out, y: F.cross_entropy(out, y) + (out @ out.T).logsumexp(1).mean(),
    "correlation": lambda out, y: F.cross_entropy(out, y) + (out.T @ out).pow(2).sum(),
    "hardest rows": lambda out, y: F.cross_entropy(out, y, reduction="none").topk(2).values.mean(),
    "flipped": lambda out, y: F.cross_entropy(out + out.flip(0), y),
    "shuffled": lambda out, y: F.cross_entropy(out[torch.randperm(ROWS)], y),
    "root": lambda out, y: F.mse_loss(out, F.one_hot(y, 3).float()).sqrt(),
    "dice": lambda out, y: 1 - (out * F.one_hot(y, 3)).sum() / (out.sum() + 1),
    "over the batch": lambda out, y: (out.softmax(0) * out).mean(),
    "in order": lambda out, y: out.sort(0).values[:, 0].mean() + out.cumsum(0).mean(),
}
HARMLESS: dict[str, Loss] = {
    "scaled": lambda out, y: 0.5 * F.cross_entropy(out, y),
    "over classes": lambda out, y: F.cross_entropy(out.softmax(1), y) + out.pow(2).mean(),
    "normalised rows": lambda out, y: F.cross_entropy(F.normalize(out, dim=1), y),
    "smoothed": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
    "of columns": lambda out, y: F.cross_entropy(out - out.mean(1, keepdim=True), y) + out[:, 0].mean(),
    "summed": lambda out, y: F.cross_entropy(out, y, reduction="sum") / 32,
}


@pytest.mark.parametrize("loss", MIXING.values(), ids=MIXING)
def test_what_begins_to_mix_rows_after_the_first_steps_is_seen(loss: Loss) -> None:
    graphs = ComparedGraphs()
    graphs.learn(plain(*given()))
    assert look(loss(*given()), graphs)


@pytest.mark.parametrize("loss", MIXING.values(), ids=MIXING)
def test_what_was_compared_is_not_strange(loss: Loss) -> None:
    graphs = ComparedGraphs()
    graphs.learn(loss(*given()))
    found = graphs.strange(loss(*given()), ROWS, ())
    assert (found.mixing, found.other) == ((), ())


@pytest.mark.parametrize("loss", HARMLESS.values(), ids=HARMLESS)
def test_what_keeps_rows_apart_does_not_mix_them(loss: Loss) -> None:
    graphs = ComparedGraphs()
    graphs.learn(plain(*given()))
    assert look(loss(*given()), graphs) == ()


def test_graphs_are_looked_at_often_at_first_and_when_something_is_prepared() -> None:
    graphs = ComparedGraphs()
    assert not graphs.is_due()
    graphs.learn(plain(*given()))
    due = [graphs.is_due() for _ in range(200)]
    assert all(due[:63])
    assert 5 <= sum(due[64:]) <= 10
    graphs.watch()
    assert all(graphs.is_due() for _ in range(10))


def test_a_mean_and_penalties_make_a_whole_loss_of_the_parts() -> None:
    """Σ fᵢ (meanᵢ + penalty) is what one device prints."""
    weights = torch.ones(3, requires_grad=True)
    rows = torch.arange(18.0).view(6, 3)

    def loss(part: torch.Tensor) -> torch.Tensor:
        return (part @ weights).pow(2).mean() + 0.1 * weights.pow(2).sum()

    parts, total = (rows[:4], rows[4:]), 0.0
    for part in parts:
        terms = terms_of(loss(part))
        way = next(way for way in meanings_of(terms) if way == ("mean", "once"))
        factor = common_factor([terms[0].weight / 6, 0.5], way)
        assert factor is not None
        total += factor * float(loss(part))
    assert math.isclose(total, float(loss(rows)), rel_tol=1e-6)
    assert common_factor([0.25, 0.5], ("mean", "mean")) is None
    assert common_factor([1.0, 0.5], ("sum", "once")) is None


def test_a_mean_of_valid_numbers_is_divided_by_how_many_they_are() -> None:
    values = torch.ones(4, requires_grad=True)
    (term,) = terms_of(torch.nanmean(torch.where(torch.tensor([True, False, True, False]), values, torch.nan)))
    assert (term.divisor, term.meanings[:2]) == (2.0, ("sum", "divided"))
    nothing = F.cross_entropy(torch.stack([values, values], 1), torch.full((4,), -100))
    (term,) = terms_of(torch.nan_to_num(nothing))
    assert (term.weight, term.meanings[0]) == (0.0, "mean")
