"""Every loss of torch, reduced in every way: parts of a batch add up as its graph says, or in no way at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812  torch's own word

from hetero.train.launch.loss_terms import Meaning, Term, choices_of, meanings_of, terms_of  # noqa: E402

SAMPLES, FEATURES, CLASSES = 11, 4, 5
PARTS = ((0, 4), (4, 11))
Loss = Callable[[Any, int, int], Any]


def rows(*shape: int, seed: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


INPUTS = rows(SAMPLES, FEATURES, seed=1)
LABELS = torch.tensor([0, 1, 2, 3, 4, 0, 1, 1, 1, 2, 3])
TARGETS = rows(SAMPLES, CLASSES, seed=2)
WEIGHTS = torch.tensor([0.2, 1.0, 0.5, 2.0, 0.1], dtype=torch.float64)
SIGNS = TARGETS[:, 0].sign()


def given(reduction: str) -> Iterator[tuple[str, Callable[[Any, slice], Any]]]:
    how: dict[str, Any] = {"reduction": reduction}
    chances = TARGETS.softmax(1)
    yield "mse", lambda out, part: F.mse_loss(out, TARGETS[part], **how)
    yield "l1", lambda out, part: F.l1_loss(out, TARGETS[part], **how)
    yield "smooth_l1", lambda out, part: F.smooth_l1_loss(out, TARGETS[part], **how)
    yield "huber", lambda out, part: F.huber_loss(out, TARGETS[part], **how)
    yield "bce", lambda out, part: F.binary_cross_entropy(out.sigmoid(), chances[part], **how)
    yield "bce_weight", lambda out, part: F.binary_cross_entropy(out.sigmoid(), chances[part], WEIGHTS, **how)
    yield "bce_logits", lambda out, part: F.binary_cross_entropy_with_logits(out, chances[part], **how)
    positive: dict[str, Any] = {"pos_weight": WEIGHTS}
    yield "bce_positive", lambda out, part: F.binary_cross_entropy_with_logits(out, chances[part], **positive, **how)
    yield "entropy", lambda out, part: F.cross_entropy(out, LABELS[part], **how)
    yield "entropy_weight", lambda out, part: F.cross_entropy(out, LABELS[part], WEIGHTS, **how)
    yield "entropy_ignore", lambda out, part: F.cross_entropy(out, LABELS[part], WEIGHTS, ignore_index=1, **how)
    yield "entropy_smooth", lambda out, part: F.cross_entropy(out, LABELS[part], label_smoothing=0.1, **how)
    both: dict[str, Any] = {"label_smoothing": 0.1, "weight": WEIGHTS, "ignore_index": 2}
    yield "entropy_all", lambda out, part: F.cross_entropy(out, LABELS[part], **both, **how)
    yield "entropy_chances", lambda out, part: F.cross_entropy(out, chances[part], WEIGHTS, **how)
    yield "nll", lambda out, part: F.nll_loss(out.log_softmax(1), LABELS[part], WEIGHTS, **how)
    yield "kl", lambda out, part: F.kl_div(out.log_softmax(1), chances[part], **how)
    yield "poisson", lambda out, part: F.poisson_nll_loss(out, chances[part], **how)
    yield "gaussian", lambda out, part: F.gaussian_nll_loss(out, TARGETS[part], chances[part], **how)
    yield "margin", lambda out, part: F.multi_margin_loss(out, LABELS[part], weight=WEIGHTS, **how)
    yield "soft_margin", lambda out, part: F.soft_margin_loss(out, TARGETS[part].sign(), **how)
    yield "multilabel", lambda out, part: F.multilabel_soft_margin_loss(out, chances[part].round(), **how)
    yield "hinge", lambda out, part: F.hinge_embedding_loss(out, TARGETS[part].sign(), **how)
    yield "cosine", lambda out, part: F.cosine_embedding_loss(out, TARGETS[part], SIGNS[part], **how)
    yield "ranking", lambda out, part: F.margin_ranking_loss(out[:, 0], out[:, 1], SIGNS[part], **how)
    yield "triplet", lambda out, part: F.triplet_margin_loss(out, TARGETS[part], chances[part], **how)


def own() -> Iterator[tuple[str, Callable[[Any, slice], Any]]]:
    yield "mean of means", lambda out, part: (out - TARGETS[part]).pow(2).mean(1).mean()
    yield "mean of sums", lambda out, part: (out - TARGETS[part]).pow(2).sum(1).mean(0)
    yield "all dims", lambda out, part: out.exp().mean((0, 1))
    yield "scaled", lambda out, part: 3 * F.mse_loss(out, TARGETS[part]) / 4 - 0.1 * out.sigmoid().mean()
    yield "divided", lambda out, part: out.pow(2).sum() / len(out)
    yield "masked", lambda out, part: (out[:, 0] * (LABELS[part] > 0)).sum() / (LABELS[part] > 0).sum()
    yield "chosen", lambda out, part: out[LABELS[part] > 0].pow(2).mean()
    yield (
        "kl batchmean",
        lambda out, part: F.kl_div(out.log_softmax(1), TARGETS[part].softmax(1), reduction="batchmean"),
    )
    yield "two weights", lambda out, part: F.cross_entropy(out, LABELS[part], ignore_index=1) + out.square().mean()


def mixing() -> Iterator[tuple[str, Callable[[Any, slice], Any]]]:
    yield "root", lambda out, part: F.mse_loss(out, TARGETS[part]).sqrt()
    yield "centred", lambda out, part: (out - out.mean(0)).pow(2).mean()
    yield "contrast", lambda out, part: F.cross_entropy(out @ out.T, torch.arange(len(out)))
    yield "by its own spread", lambda out, part: (out * (TARGETS[part] / TARGETS[part].std())).mean()


def gradients(loss: Callable[[Any, slice], Any], weights: Any, part: slice, factors: Any = None) -> Any:
    """Return the gradient over a part, each term multiplied by its factor, as a process computes it."""
    total = loss(torch.tanh(INPUTS[part] @ weights), part)
    if factors is None:
        return torch.autograd.grad(total, weights)[0]
    for term, factor in zip(terms_of(total), factors, strict=True):
        term.node.register_prehook(lambda came, by=factor: tuple(one if one is None else one * by for one in came))
    return torch.autograd.grad(total, weights)[0]


def factor(meaning: Meaning, own_: Term, all_: list[Term], share: float) -> float:
    if meaning in ("mean", "divided"):
        return own_.counts(meaning) / sum(term.counts(meaning) for term in all_)
    return {"samples": share, "once": 1 / len(PARTS), "sum": 1.0}[meaning]


def added_up(loss: Callable[[Any, slice], Any], weights: Any, way: tuple[Meaning, ...]) -> Any:
    parts = [slice(*each) for each in PARTS]
    terms = [terms_of(loss(torch.tanh(INPUTS[part] @ weights), part)) for part in parts]
    found = torch.zeros_like(weights)
    for number, part in enumerate(parts):
        share = (part.stop - part.start) / SAMPLES
        own_ = terms[number]
        factors = [
            factor(meaning, own_[index], [each[index] for each in terms], share) for index, meaning in enumerate(way)
        ]
        found += gradients(loss, weights, part, factors)
    return found


def matching(loss: Callable[[Any, slice], Any]) -> tuple[Meaning, ...] | None:
    weights = rows(FEATURES, CLASSES, seed=3).requires_grad_()
    whole = gradients(loss, weights, slice(0, SAMPLES))
    terms = terms_of(loss(torch.tanh(INPUTS @ weights), slice(0, SAMPLES)))
    for way in meanings_of(terms):
        if torch.allclose(added_up(loss, weights, way), whole, rtol=1e-10, atol=1e-13):
            return way
    return None


LOSSES = [
    pytest.param(loss, id=f"{name}-{reduction}") for reduction in ("mean", "sum") for name, loss in given(reduction)
] + [pytest.param(loss, id=name) for name, loss in own()]


@pytest.mark.parametrize("loss", LOSSES)
def test_parts_of_a_batch_add_up_to_it(loss: Callable[[Any, slice], Any]) -> None:
    way = matching(loss)
    assert way is not None
    weights = rows(FEATURES, CLASSES, seed=3).requires_grad_()
    terms = terms_of(loss(torch.tanh(INPUTS @ weights), slice(0, SAMPLES)))
    if all(term.is_known for term in terms):
        assert way == tuple(term.meanings[0] for term in terms)  # without a comparison, the first one is taken


@pytest.mark.parametrize("loss", [pytest.param(loss, id=name) for name, loss in mixing()])
def test_no_weights_make_up_for_a_loss_that_mixes_samples(loss: Callable[[Any, slice], Any]) -> None:
    assert matching(loss) is None


def test_a_penalty_on_the_parameters_counts_once() -> None:
    penalised = lambda out, part: F.mse_loss(out, TARGETS[part]) + PENALISED.pow(2).sum()  # noqa: E731
    PENALISED.grad = None
    assert [
        term.meanings[0] for term in terms_of(penalised(INPUTS @ rows(FEATURES, CLASSES, seed=3), slice(None)))
    ] == ["sum"]
    weights = rows(FEATURES, CLASSES, seed=3).requires_grad_()
    loss = lambda out, part: F.mse_loss(out, TARGETS[part]) + weights.pow(2).sum()  # noqa: E731
    whole = torch.autograd.grad(loss(torch.tanh(INPUTS @ weights), slice(None)), weights)[0]
    ways = list(meanings_of(terms_of(loss(torch.tanh(INPUTS @ weights), slice(None)))))
    right = [way for way in ways if torch.allclose(added_up(loss, weights, way), whole, rtol=1e-10)]
    assert right[0] == ("mean", "once")


PENALISED = torch.ones(2, dtype=torch.float64, requires_grad=True)


def test_a_loss_of_very_many_terms_is_one_that_is_not_known() -> None:
    weights = torch.ones(3, requires_grad=True)
    (term,) = terms_of(sum(weights.mul(number).mean() for number in range(20)))
    assert not term.is_known
    assert math.isnan(term.weight)


@pytest.mark.parametrize(
    ("name", "choosing"),
    [
        ("abs", True),
        ("clamp", True),
        ("max", True),
        ("maximum", True),
        ("where", True),
        ("mean", False),
        ("sum", False),
    ],
)
def test_there_are_as_many_numbers_of_a_choice_for_parts_of_any_size(name: str, choosing: bool) -> None:
    makes: dict[str, Callable[[Any], Any]] = {
        "abs": lambda each: (each.mean() - 0.5).abs() + 0.5,
        "clamp": lambda each: each.mean().clamp(min=0.1),
        "max": lambda each: each.max(),
        "maximum": lambda each: torch.maximum(each.mean(), each.var()),
        "where": lambda each: torch.where(each.mean() > 0, each.mean(), each.var()),
        "mean": lambda each: each.mean(),
        "sum": lambda each: each.abs().sum() + each.clamp(min=0).mean(),
    }
    weights = torch.ones(200, dtype=torch.float64, requires_grad=True)
    found = [choices_of(terms_of(makes[name]((weights * rows(200, seed=3))[:part]))) for part in (3, 70, 200)]
    assert {len(each) for each in found} == {len(found[0])}
    assert bool(found[0]) is choosing
    assert (found[0] != found[1]) is choosing
