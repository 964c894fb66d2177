"""What a loss is made of, and whether its graph is one that was compared: what may mix rows is seen."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812  torch's own word

from hetero.train.launch.loss_graph import ComparedGraphs  # noqa: E402
from hetero.train.launch.loss_terms import common_factor, meanings_of, terms_of  # noqa: E402

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


@pytest.mark.parametrize("loss", MIXING.values(), ids=MIXING)
def test_a_graph_that_is_made_otherwise_is_noticed_at_once_however_late(loss: Loss) -> None:
    graphs = ComparedGraphs()
    assert not graphs.is_new(plain(*given()))
    graphs.learn(plain(*given()))
    assert not any(graphs.is_new(plain(*given())) for _ in range(100))
    assert graphs.is_new(loss(*given()))
    assert not graphs.is_new(loss(*given()))


def test_graphs_of_the_same_functions_over_other_dimensions_are_told_apart() -> None:
    graphs = ComparedGraphs()
    for make in (lambda out, dim: out.sum(dim).exp().sum(), lambda out, dim: out.softmax(dim).exp().sum()):
        graphs.learn(make(given()[0], 1))
        assert not graphs.is_new(make(given()[0], 1))
        assert graphs.is_new(make(given()[0], 0))
    graphs.learn(given()[0][:, torch.tensor([1, 0])].exp().sum())
    assert graphs.is_new(given()[0][torch.tensor([1, 0])].exp().sum())


BY_CHANCE: dict[str, Loss] = {
    "decay": lambda out, y: F.cross_entropy(out, y) + torch.ones(ROWS, 3, requires_grad=True).pow(2).sum().sqrt(),
    "centred weights": lambda out, y: F.cross_entropy(out, y) + (W - W.mean(0)).abs().amax(0).sum(),
    "orthogonal": lambda out, y: F.cross_entropy(out, y) + (W @ W.T - torch.eye(ROWS)).pow(2).sum(),
    "scaled": lambda out, y: F.cross_entropy(out, y) + (W * torch.rand(3)).softmax(0).mean(),
}
W = torch.rand(ROWS, 3, requires_grad=True)
OF_DATA: dict[str, Loss] = {
    "added": lambda out, y: F.cross_entropy(out, y) + (W[0] + torch.rand(ROWS, 3)).softmax(0).exp().mean(),
    "multiplied": lambda out, y: F.cross_entropy(out, y) + (W.mean() * torch.rand(ROWS, 3)).softmax(0).exp().mean(),
    "product": lambda out, y: F.cross_entropy(out, y) + (torch.rand(ROWS, 5) @ W).softmax(0).exp().mean(),
    "looked up": lambda out, y: F.cross_entropy(out, y) + F.embedding(y, W).softmax(0).exp().mean(),
}


@pytest.mark.parametrize("loss", BY_CHANCE.values(), ids=BY_CHANCE)
def test_parameters_with_as_many_rows_by_chance_do_not_mix_those_of_a_batch(loss: Loss) -> None:
    graphs = ComparedGraphs()
    graphs.learn(plain(*given()))
    assert look(loss(*given()), graphs) == ()


@pytest.mark.parametrize("loss", OF_DATA.values(), ids=OF_DATA)
def test_what_parameters_make_of_data_may_mix_its_rows(loss: Loss) -> None:
    graphs = ComparedGraphs()
    graphs.learn(plain(*given()))
    assert look(loss(*given()), graphs)


@pytest.mark.parametrize("choose", [lambda x: x[1:3], lambda x: x.index_select(0, torch.tensor([2, 0]))])
def test_rows_that_are_chosen_by_number_are_named_and_not_refused(choose: Loss) -> None:
    """Packed sequences of unequal lengths choose them so."""
    graphs, (out, y) = ComparedGraphs(), given()
    graphs.learn(plain(out, y))
    found = graphs.strange(choose(out).tanh().sum(), ROWS, [])
    assert any("over dimension 0" in each for each in found.other)
    assert not any(each.startswith(("Slice", "IndexSelect")) for each in found.mixing)


def test_what_goes_over_the_first_dimension_is_named_whatever_its_size() -> None:
    """By that a process knows whether another one, with another number of rows, has seen the same."""
    out, y = given()
    for rows in (ROWS, ROWS + 1):
        graphs = ComparedGraphs()
        graphs.learn(plain(out, y))
        found = graphs.strange(out.softmax(0).exp().sum(1).mean(), rows, ())
        assert "Softmax over dimension 0" in found.over
        assert ("Softmax over dimension 0" in found.mixing) == (rows == ROWS)


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
