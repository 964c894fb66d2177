"""What people hang onto models, losses, optimizers and loaders: honoured to the last digits, or refused by name."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import random
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pandas
import pytest

from hetero.comm.group import Group
from hetero.errors import BadValueError, HeteroError

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from torch.utils.data import DataLoader, RandomSampler, TensorDataset  # noqa: E402

from hetero.drive.throttle import Throttle  # noqa: E402
from hetero.train import argument_checks  # noqa: E402
from hetero.train.additivity import verify  # noqa: E402
from hetero.train.compatibility import (  # noqa: E402
    changed_values,
    difference,
    dtype_held,
    fingerprint,
    group_values,
    in_process,
    model_hooks,
    process_settings,
    seen,
    set_values,
)
from hetero.train.data import Samples, as_samples, what_decides  # noqa: E402
from hetero.train.losses import SummedLoss  # noqa: E402
from hetero.train.membership import Membership  # noqa: E402
from hetero.train.memory import PassLimit  # noqa: E402
from hetero.train.probe import probe  # noqa: E402
from hetero.train.replica import Judge, ModelReplica, Parts, mixing_layers  # noqa: E402
from hetero.train.schedules import ScheduleHistory, load_schedulers, unstepped_scheduler  # noqa: E402
from hetero.train.state import load_state, pack, renewed  # noqa: E402
from hetero.train.trainer import Trainer  # noqa: E402
from hetero.train.values import TrainOptions  # noqa: E402
from tests.flat_options import trainer_options  # noqa: E402

BATCH = 16
SPLITS = ((16,), (5, 11), (1, 2, 13))


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_rng_state(state)
    torch.set_num_threads(threads)


def classes(*more: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return torch.from_numpy(rng.standard_normal((48, 6))), torch.from_numpy(rng.integers(0, 4, (48, *more)))


def numbers(inputs: int = 6, outputs: int = 4) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return torch.from_numpy(rng.standard_normal((48, inputs))), torch.from_numpy(rng.standard_normal((48, outputs)))


def odds() -> tuple[Any, Any]:
    inputs, targets = numbers()
    return inputs, torch.softmax(targets, 1)


def net(*last: Any) -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), *last).double()


def adam(model: Any) -> Any:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def in_parts(split: Sequence[int], model: Any, loss: Any, optimizer: Any, data: Any, steps: int = 3) -> Any:
    """Train as members would with these shares: gradients and weights are added up, then applied once."""
    samples = as_samples(data)
    parts = cloudpickle.dumps((model, loss, optimizer))
    replica = ModelReplica(parts, TrainOptions(BATCH), "cpu", 0)
    for step in range(steps):
        ids, sums = list(range(step * BATCH, (step + 1) * BATCH)), Parts()
        kept = None
        for begin, size in zip(np.cumsum([0, *split]), split, strict=False):
            done = replica.compute(samples, ids[begin : begin + size], BATCH)
            sums = Parts(*(a + b for a, b in zip(sums.header, done.header, strict=True)))
            rows = [row.exchange.row.clone() for row in replica.gradients._rows]
            kept = rows if kept is None else [a + b for a, b in zip(kept, rows, strict=True)]
        for row, total in zip(replica.gradients._rows, kept or [], strict=True):
            row.exchange.row.copy_(total)
        replica.gradients._used = [True] * len(replica.gradients.parameters)
        _, _ = replica.reduce(Group(0, 1), sums, [])
        replica.apply(sums, BATCH)
        replica.step += 1
    return replica.model


def plain(model: Any, loss: Any, optimizer: Any, data: Any, steps: int = 3) -> Any:
    """Train as a loop of torch's own would."""
    model, loss, optimizer = cloudpickle.loads(cloudpickle.dumps((model, loss, optimizer)))
    optimizer = optimizer if hasattr(optimizer, "param_groups") else optimizer(list(model.parameters()))
    for step in range(steps):
        piece = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        found = loss(model(data[0][piece]), data[1][piece])
        (found if found.dim() == 0 else found.mean()).backward()
        optimizer.step()
    return model


def distance(one: Any, other: Any) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).detach().abs().max()) for a, b in pairs)


def tried(model: Any, loss: Any, data: Any, *, cut: bool = True, collate: Any = None) -> str:
    samples = as_samples(data)
    if collate is not None:
        samples = Samples(dataset=TensorDataset(*data), collate=collate)
    return verify(cloudpickle.dumps((model, loss, None)), TrainOptions(BATCH), "cpu", samples, range(8), cut=cut)


# --- losses --------------------------------------------------------------------------------------------------

WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
LOSSES: dict[str, tuple[Any, Callable[[], Any]]] = {
    "class weights": (nn.CrossEntropyLoss(weight=WEIGHTS), classes),
    "class weights, ignored, smoothed": (nn.CrossEntropyLoss(WEIGHTS, ignore_index=2, label_smoothing=0.2), classes),
    "ignored, smoothed": (nn.CrossEntropyLoss(ignore_index=1, label_smoothing=0.1), classes),
    "soft classes with weights": (nn.CrossEntropyLoss(weight=WEIGHTS), odds),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), classes),
    "batchmean": (nn.KLDivLoss(reduction="batchmean"), odds),
    "mean of divergences": (nn.KLDivLoss(), odds),
    "log targets": (nn.KLDivLoss(reduction="batchmean", log_target=True), numbers),
    "weights of positives": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), odds),
    "huber": (nn.HuberLoss(delta=0.3), numbers),
    "margins": (nn.MultiMarginLoss(), classes),
    "poisson": (nn.PoissonNLLLoss(full=True), odds),
    "a function that sums": (lambda o, t, reduction="sum": F.mse_loss(o, t, reduction=reduction), numbers),
    "a loss a sample": (lambda o, t: ((o - t) ** 2).sum(1), numbers),
}


@pytest.mark.parametrize("exact", ["sum", "bitwise"])
def test_small_class_weights_count_to_the_last_digits_in_any_order(exact: str) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.1, 2.0, 3.0, 0.5], dtype=torch.float64) * 1e-7)
    data, model = classes(), net()
    parts = cloudpickle.dumps((model, loss, torch.optim.SGD(model.parameters(), lr=0.1)))
    found = []
    for shares in ((16,), (5, 11), (11, 5)):
        replica = ModelReplica(parts, TrainOptions(BATCH, exact=exact), "cpu", 0)
        bounds = [0, *np.cumsum(shares)]
        pairs = list(itertools.pairwise(bounds))
        headers = [replica.compute(as_samples(data), range(a, b), BATCH).header for a, b in pairs]
        summed, _ = replica.reduce(Group(0, 1), Parts(*(sum(column) for column in zip(*headers, strict=True))), [])
        found.append((summed.weight, summed.loss))
    weight = float(loss.weight[data[1][:BATCH]].sum())
    value = float(loss(model(data[0][:BATCH]), data[1][:BATCH])) * weight
    for one in found:
        assert one == pytest.approx((weight, value), rel=1e-12)


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples with two targets each."""

    def __init__(self, pack: Callable[[Any, Any], Any]) -> None:
        self.pack, (self.inputs, self.classes) = pack, classes()

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.pack(self.classes[index], self.inputs[index, :4])


@pytest.mark.parametrize("table", [False, True])
def test_several_targets_a_sample_are_counted_by_sample(table: bool) -> None:
    one, two = ("c", "r") if table else (0, 1)

    def loss(output: Any, target: Any) -> Any:
        each = F.mse_loss(output, target[two], reduction="none").mean(1)
        return F.cross_entropy(output, target[one], reduction="none") + each

    dataset = Rows((lambda c, r: {"c": c, "r": r}) if table else (lambda c, r: (c, r)))
    inputs, targets = classes()
    whole = {one: targets[:BATCH], two: inputs[:BATCH, :4]}
    model = net()
    expected = plain(model, lambda o, _: loss(o, whole), adam(model), (inputs, targets), steps=1)
    assert (
        verify(
            cloudpickle.dumps((model, loss, None)), TrainOptions(BATCH), "cpu", as_samples(dataset), range(8), cut=True
        )
        == ""
    )
    for split in SPLITS:
        assert distance(in_parts(split, model, loss, adam(model), dataset, steps=1), expected) < 1e-12


def test_a_mean_over_elements_of_a_function_with_reduction_is_exact() -> None:
    def loss(output: Any, target: Any, reduction: str = "mean") -> Any:
        return F.cross_entropy(output.reshape(-1, 2), target.flatten() % 2, reduction=reduction)

    data, model = classes(2), net()
    expected = plain(model, loss, adam(model), data)
    assert tried(model, loss, data) == ""
    for split in SPLITS:
        assert distance(in_parts(split, model, loss, adam(model), data), expected) < 1e-12


def test_a_mean_that_leaves_out_elements_is_refused_where_the_first_of_them_comes() -> None:
    def loss(output: Any, target: Any, reduction: str = "mean") -> Any:
        return F.cross_entropy(output.reshape(-1, 2), target.flatten(), reduction=reduction)

    inputs, targets = classes(2)
    targets = targets % 2
    summed, output = SummedLoss(loss), net()(inputs)
    assert float(summed.sums(output, targets)[1]) == 96
    targets[40, 1] = -100
    with pytest.raises(BadValueError, match="is not that of its 96 values: it leaves some out"):
        summed.sums(output, targets)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_that_of_the_whole_batch_however_it_is_split(name: str) -> None:
    loss, make = LOSSES[name]
    data, model = make(), net(*([nn.LogSoftmax(1)] if "divergences" in name or "batch" in name else []))
    expected = plain(model, loss, adam(model), data)
    assert tried(model, loss, data) == ""
    for split in SPLITS:
        assert distance(in_parts(split, model, loss, adam(model), data), expected) < 1e-12


def test_an_ignored_class_beyond_the_weighted_ones_counts_nothing() -> None:
    targets = classes()[1].masked_fill(classes()[1] == 3, 255)
    loss = nn.CrossEntropyLoss(weight=WEIGHTS, ignore_index=255)
    data, model = (classes()[0], targets), net()
    assert distance(in_parts((3, 13), model, loss, adam(model), data), plain(model, loss, adam(model), data)) < 1e-12


class Focal(nn.Module):  # type: ignore[misc]
    """A loss of somebody's own: it has `reduction` and weighs its mean in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.reduction = "mean"

    def forward(self, output: Any, target: Any) -> Any:
        each = F.cross_entropy(output, target, reduction="none")
        return each if self.reduction == "none" else (each * target).sum() / target.sum()


def ranked(output: Any, target: Any) -> Any:
    """Weigh samples by their rank in the pass."""
    each = F.cross_entropy(output, target, reduction="none")
    return each * torch.argsort(torch.argsort(each.detach()))


def contrastive(output: Any, target: Any) -> Any:
    """Tell each sample from all others of the pass."""
    output = F.normalize(output, dim=1)
    return F.cross_entropy(output @ output.T / 0.1, torch.arange(len(output)), reduction="none")


class Counted(nn.Module):  # type: ignore[misc]
    """A loss that keeps a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, output: Any, target: Any) -> Any:
        each = F.cross_entropy(output, target, reduction="none")
        self.mean = 0.9 * self.mean + 0.1 * each.mean().detach()
        return each


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (Focal(), "values one by one"),
        (lambda o, t, reduction="mean": F.cross_entropy(o, t, ignore_index=0, reduction=reduction), "ignore_index"),
        (ranked, "^the loss depends on which samples"),
        (contrastive, "^the loss depends on which samples"),
        (lambda o, t: F.mse_loss(o[:, 0], t.double()), r"gave \(\) for 8 samples"),
        (Counted(), r"the loss\.mean, a buffer that would not come back"),
    ],
)
def test_a_loss_whose_parts_do_not_add_up_is_refused(loss: Any, words: str) -> None:
    with pytest.raises(BadValueError, match=words):
        tried(net(), loss, classes())


def test_a_loss_with_parameters_or_a_reduction_of_its_own_is_refused() -> None:
    with pytest.raises(BadValueError, match="the loss PReLU has parameters, which would not be trained"):
        SummedLoss(nn.PReLU())
    loss = nn.MSELoss()
    loss.reduction = "median"
    with pytest.raises(BadValueError, match="reduction='median' of the loss MSELoss is not known"):
        SummedLoss(loss)


# --- models --------------------------------------------------------------------------------------------------


class Step(nn.Module):  # type: ignore[misc]
    """Does something with what comes."""

    def __init__(self, work: Callable[[Any, Any], Any], **buffers: Any) -> None:
        super().__init__()
        self.work = work
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)
        self.table = nn.Parameter(torch.ones(3, 4))
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=name != "fleeting")

    def forward(self, x: Any) -> Any:
        return self.work(self, x)


def counts(module: Any, x: Any) -> Any:
    module.count += len(x)
    return x / module.count


def carries(module: Any, x: Any) -> Any:
    before, module.before = getattr(module, "before", 0.0), x.detach().mean()
    return x * (1.0 + before)


def follows(module: Any, x: Any) -> Any:
    module.scale.data = 0.9 * module.scale.data + 0.1
    module.scale.data[0] += 1.0
    return x


def keeps(module: Any, x: Any) -> Any:
    module.last = x.detach()
    return x


def fleets(module: Any, x: Any) -> Any:
    module.fleeting += 1
    return x


ACROSS: dict[str, Any] = {
    "mean": lambda _, x: x - x.mean(0),
    "normalised": lambda _, x: F.normalize(x, dim=0),
    "functional batch norm": lambda _, x: F.batch_norm(x, None, None, training=True),
    "attention over samples": lambda _, x: F.scaled_dot_product_attention(x[None], x[None], x[None])[0],
    "batch size": lambda _, x: x * len(x),
}


@pytest.mark.parametrize("name", ACROSS)
def test_a_model_that_looks_across_the_batch_is_named_and_stays_whole_on_one_device(name: str) -> None:
    model = net(Step(ACROSS[name]), nn.Linear(4, 4).double())
    with pytest.raises(BadValueError, match=r"the result of 3 \(Step\) depends on which samples .*train on one device"):
        tried(model, nn.CrossEntropyLoss(), classes())
    assert "3 (Step)" in tried(model, nn.CrossEntropyLoss(), classes(), cut=False)


@pytest.mark.parametrize(
    ("work", "buffers", "words"),
    [
        (counts, {"count": torch.zeros(())}, r"3\.count, a buffer that the forward pass changes, depends"),
        (
            fleets,
            {"fleeting": torch.zeros(())},
            r"3\.fleeting, a buffer that would not come back",
        ),
        (follows, {}, r"3\.scale, a parameter, is changed by the forward pass"),
        (carries, {}, "keeps something between passes"),
        (lambda module, x: x + F.embedding(torch.arange(8) % 3, module.table, max_norm=0.5), {}, "table, a parameter,"),
        (lambda _, x: x * random.random(), {}, "random numbers from NumPy or Python"),
        (lambda _, x: x * np.random.rand(), {}, "random numbers from NumPy or Python"),
        (lambda _, x: x * np.random.default_rng().random(), {}, "numbers that are not torch's"),
        (lambda _, x: x + torch.randint(0, 2, x.shape), {}, "randint cannot be keyed"),
    ],
)
def test_what_a_forward_pass_leaves_behind_or_draws_elsewhere_is_refused(work: Any, buffers: Any, words: str) -> None:
    with pytest.raises(HeteroError, match=words):
        tried(net(Step(work, **buffers)), nn.CrossEntropyLoss(), classes())


def test_running_statistics_are_fine_where_the_batch_stays_whole() -> None:
    model = net(nn.BatchNorm1d(4).double())
    assert "3.running_mean" in tried(model, nn.CrossEntropyLoss(), classes(), cut=False)
    model[3].eval()
    assert tried(model, nn.CrossEntropyLoss(), classes()) == ""


def tied() -> Any:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 4)).double()
    model[2].weight = model[0].weight
    return model


class Unused(nn.Module):  # type: ignore[misc]
    """Has a part that no output comes from, and one in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(6, 4), nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        self.seen = x
        return self.used(x.float())


FINE: dict[str, Callable[[], Any]] = {
    "dropout": lambda: net(nn.Dropout(0.5)),
    "noise": lambda: net(Step(lambda _, x: x + 0.1 * torch.randn_like(x))),
    "layer norm": lambda: net(nn.LayerNorm(4).double()),
    "group norm": lambda: net(nn.GroupNorm(2, 4).double()),
    "tied": tied,
    "unused": Unused,
    "weight norm": lambda: nn.Sequential(nn.Linear(6, 4), torch.nn.utils.weight_norm(nn.Linear(4, 4))),
    "kept for a picture": lambda: net(Step(keeps)),
    "own double tensors": lambda: net(Step(lambda _, x: x @ torch.eye(4, dtype=torch.float64))),
    "own single tensors": lambda: nn.Sequential(nn.Linear(6, 4), Step(lambda _, x: x @ torch.eye(4, dtype=x.dtype))),
    "single precision inside": lambda: nn.Sequential(nn.Linear(6, 4), Step(lambda _, x: x.float() @ torch.ones(4, 4))),
    "checkpointed": lambda: net(
        Step(lambda _, x: torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=True))
    ),
    "gradient inside": lambda: net(Step(gradient_inside)),
}


def gradient_inside(_: Any, x: Any) -> Any:
    return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FINE)
def test_what_is_sound_is_not_refused(name: str) -> None:
    inputs, targets = classes()
    assert tried(FINE[name](), nn.CrossEntropyLoss(), (inputs.to(next(FINE[name]().parameters()).dtype), targets)) == ""


@pytest.mark.parametrize("name", ["layer norm", "tied", "gradient inside"])
def test_what_is_sound_is_exact(name: str) -> None:
    model = FINE[name]()
    expected = plain(model, nn.CrossEntropyLoss(), adam(model), classes())
    for split in SPLITS:
        assert distance(in_parts(split, model, nn.CrossEntropyLoss(), adam(model), classes()), expected) < 1e-12


def test_a_collate_function_that_looks_across_the_batch_is_refused() -> None:
    def centred(rows: list[Any]) -> Any:
        inputs = torch.stack([row[0] for row in rows])
        return inputs - inputs.mean(0), torch.stack([row[1] for row in rows])

    def mixed(rows: list[Any]) -> Any:
        inputs, targets = torch.utils.data.default_collate(rows)
        return inputs + torch.rand(()), targets

    for collate in (centred, mixed):
        with pytest.raises(BadValueError, match=r"the result of 0|the loss"):
            tried(net(), nn.CrossEntropyLoss(), classes(), collate=collate)


@pytest.mark.parametrize("alike", [0, 8, 300])
def test_padding_that_counts_is_found_whichever_samples_come_first(alike: int) -> None:
    class Averages(nn.Module):  # type: ignore[misc]
        def __init__(self, masked: bool) -> None:
            super().__init__()
            self.table, self.masked = nn.Embedding(9, 4).double(), masked

        def forward(self, words: Any) -> Any:
            there = (words > 0).double() if self.masked else torch.ones_like(words, dtype=torch.float64)
            return (self.table(words) * there[..., None]).sum(1) / there.sum(1, keepdim=True)

    def padded(batch: Any) -> Any:
        words, targets = zip(*batch, strict=True)
        return nn.utils.rnn.pad_sequence(words, batch_first=True), torch.tensor(targets)

    lengths = [9, 4, 7, 3, 2, 9, 5, 1] if alike == 0 else [6] * alike + [3, 9, 2, 5] * (1 + alike // 8)
    texts = [(torch.randint(1, 9, (length,)), number % 4) for number, length in enumerate(lengths)]
    samples = Samples(dataset=texts, collate=padded)
    for masked in (True, False):
        parts = cloudpickle.dumps((Averages(masked), nn.CrossEntropyLoss(), None))
        if masked:
            assert verify(parts, TrainOptions(BATCH), "cpu", samples, range(8), cut=True) == ""
            continue
        with pytest.raises(BadValueError, match="depends on which samples are computed together"):
            verify(parts, TrainOptions(BATCH), "cpu", samples, range(8), cut=True)


class Recalls(nn.Module):  # type: ignore[misc]
    """Keeps its hidden state between batches, as recurrent models over long texts do."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.hidden = nn.GRU(6, 4, batch_first=True), None

    def forward(self, inputs: Any) -> Any:
        found, hidden = self.cell(inputs[:, None], self.hidden)
        self.hidden = hidden.detach()
        return found[:, -1]


def test_what_a_model_keeps_between_batches_is_refused_by_name_on_one_device_too() -> None:
    for cut in (False, True):
        with pytest.raises(BadValueError, match="the model keeps something between passes"):
            tried(Recalls().double(), nn.CrossEntropyLoss(), classes(), cut=cut)


def test_a_probe_of_a_batch_that_stays_whole_takes_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    computed = ModelReplica.compute

    def compute(self: Any, samples: Any, ids: Any, *rest: Any) -> Any:
        sizes.append(len(ids))
        return computed(self, samples, ids, *rest)

    monkeypatch.setattr(ModelReplica, "compute", compute)
    parts = cloudpickle.dumps((net(nn.BatchNorm1d(4).double()), nn.CrossEntropyLoss(), adam_of))
    job: Any = SimpleNamespace(parts=parts, options=TrainOptions(BATCH), names=("cpu:0",), need=None)
    device: Any = SimpleNamespace(kind="cpu", index=0)
    found = probe(job, device, as_samples(classes()), Throttle(1.0), PassLimit())
    assert set(sizes) == {BATCH}
    assert found.model.seconds(BATCH) > 0.0


def test_the_modes_that_a_program_gave_its_modules_are_those_that_train() -> None:
    model = net(nn.BatchNorm1d(4).double(), nn.Dropout(0.5))
    for change in (nn.Module.eval, nn.Module.train, lambda whole: whole[3].eval()):
        change(model)
        modes = [module.training for module in model.modules()]
        replica = ModelReplica(cloudpickle.dumps((model, nn.CrossEntropyLoss(), adam_of)), TrainOptions(16), "cpu", 0)
        replica.model.eval()
        replica._to_training()
        assert [module.training for module in replica.model.modules()] == modes
        assert bool(mixing_layers(model)) == model[3].training
    expected = plain(model.eval(), nn.CrossEntropyLoss(), adam(model), classes())
    found = in_parts((5, 11), model, nn.CrossEntropyLoss(), adam(model), classes())
    assert distance(found, expected) < 1e-12


def adam_of(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.01)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "checkpoint_every alone": ({"checkpoint_every": 5}, r"every=5 has no effect without a folder of checkpoints"),
    "keep alone": ({"keep": 9}, r"keep=9 has no effect without a folder of checkpoints"),
    "no steps": ({"checkpoint_every": 0, "checkpoint": "never"}, r"every=0 is not allowed"),
    "a word": ({"shuffle": "no"}, r"shuffle='no' is not allowed; give True or False"),
    "a number": ({"callbacks": 3}, r"callbacks=3 is not allowed; give a list"),
    "a number within": ({"callbacks": [3]}, r"callbacks=\[3\] is not allowed; give a list"),
    "a class": ({"optimizer": torch.optim.SGD}, r"SGD is a class, .*; give SGD\(model.parameters\(\), lr=0.01\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_argument_of_the_trainer_that_would_have_no_effect_is_refused(name: str) -> None:
    given, words = WRONG[name]
    options: dict[str, Any] = {"optimizer": adam_of, **given}
    optimizer = options.pop("optimizer")
    with pytest.raises(BadValueError, match=words):
        Trainer(
            net(),
            nn.CrossEntropyLoss(),
            optimizer,
            classes(),
            devices="1xcpu",
            **trainer_options(global_batch=16, **options),
        )


def test_predictions_that_are_not_one_row_a_sample_are_refused_by_name() -> None:
    class Returns(nn.Module):  # type: ignore[misc]
        def __init__(self, work: Any) -> None:
            super().__init__()
            self.work = work

        def forward(self, inputs: Any) -> Any:
            return self.work(inputs)

    samples = Samples(arrays=(classes()[0].numpy(),))
    for work, words in (
        (lambda x: x[x[:, 0] > 0], r"gives a Tensor of shape \(\d+, 6\) for 8 samples"),
        (lambda x: (x, x), r"gives a tuple that is no tensor for 8 samples"),
        (lambda x: x.sum(), r"gives a Tensor of shape \(\) for 8 samples"),
    ):
        with pytest.raises(BadValueError, match=words):
            Judge(Returns(work), None, TrainOptions(16), "cpu").predict(samples, range(8))
    assert Judge(Returns(lambda x: x[:, 0]), None, TrainOptions(16), "cpu").predict(samples, range(8)).shape == (8,)


def test_a_trial_leaves_the_settings_of_the_process_as_they_were() -> None:
    model = net(nn.Dropout(0.5))
    before = torch.get_rng_state(), random.getstate()
    tried(model, nn.CrossEntropyLoss(), classes())
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def refused(model: Any, optimizer: Any = None, *, epochs: int = 1, hearers: Sequence[Any] = ()) -> str:
    optimizer = adam(model) if optimizer is None else optimizer
    with pytest.raises(BadValueError) as found:
        argument_checks.supported(model, nn.CrossEntropyLoss(), optimizer, epochs, hearers)
    return str(found.value)


def test_hooks_of_parameters_are_refused_by_name() -> None:
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        model = net()
        getattr(model[2].weight, register)(lambda _: None)
        assert refused(model).startswith("2.weight has a hook on its gradient")


def test_parametrizations_scripts_and_state_that_is_no_tensor_are_refused_by_name() -> None:
    class Extra(nn.Linear):  # type: ignore[misc]
        def get_extra_state(self) -> Any:
            return {"a": 1}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(nn.Linear(6, 4))
    assert "0 has a parametrization" in refused(
        nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)))
    )
    assert "has _extra_state, which is no tensor" in refused(Extra(6, 4))
    assert "the model is a TorchScript module" in refused(script)
    assert "the model was compiled" in refused(torch.compile(nn.Linear(6, 4)))
    lazy = nn.LazyLinear(4)
    assert "weight has no shape yet" in refused(lazy, torch.optim.SGD(lazy.parameters(), lr=0.1))


def test_memory_that_two_parameters_share_is_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight.data = model[0].weight.data
    assert refused(model).startswith("1.weight and 0.weight share memory")


def test_hooks_of_all_modules_are_refused_and_those_of_one_are_noted() -> None:
    model = net()
    assert model_hooks(torch.nn.utils.weight_norm(nn.Linear(2, 2))) == []
    model[1].register_forward_hook(lambda *_: None)
    assert model_hooks(model) == ["1"]
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert "a hook for all objects of this process (forward_hooks)" in refused(model)
    finally:
        handle.remove()


# --- optimizers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "register",
    [
        "register_step_pre_hook",
        "register_step_post_hook",
        "register_state_dict_pre_hook",
        "register_state_dict_post_hook",
        "register_load_state_dict_pre_hook",
        "register_load_state_dict_post_hook",
    ],
)
def test_hooks_of_an_optimizer_are_refused_by_name(register: str) -> None:
    model = net()
    optimizer = adam(model)
    getattr(optimizer, register)(lambda *_: None)
    assert f"a hook of the Adam ({register}) would not travel" in refused(model, optimizer)


def clipping(parameters: Sequence[Any]) -> Any:
    """Make an optimizer that clips the norm of the summed gradients before each step."""
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(parameters, 0.05) and None)
    return optimizer


def test_hooks_that_the_function_registers_which_makes_the_optimizer_see_the_summed_gradients() -> None:
    model = net()
    expected = plain(model, nn.CrossEntropyLoss(), clipping, classes())
    for split in SPLITS:
        assert distance(in_parts(split, model, nn.CrossEntropyLoss(), clipping, classes()), expected) < 1e-12


def test_an_optimizer_that_would_lose_something_or_needs_more_than_gradients_is_refused() -> None:
    class Warming(torch.optim.SGD):  # type: ignore[misc]
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.1)
            self.warmed = 0

    model = net()
    assert "the Warming has warmed, which would not travel" in refused(model, Warming(model.parameters()))
    assert "computes the loss several times" in refused(model, torch.optim.LBFGS(model.parameters()))
    assert "a list of 2, and one steps" in refused(model, [adam(model), adam(model)])
    assert "3 parameters that the model has not" in refused(
        model, torch.optim.SGD([*model.parameters(), *net().parameters()][:7], lr=0.1)
    )
    replaced = adam(model)
    replaced.step = lambda: None
    assert "a step that was replaced" in refused(model, replaced)
    assert "lr of the Adam is a tensor" in refused(model, torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1)))
    assert "AdamW(fused=True)" in refused(model, torch.optim.AdamW(model.parameters(), fused=True))


def test_a_function_that_makes_an_optimizer_of_other_parameters_is_refused() -> None:
    def stray(parameters: Any) -> Any:
        return torch.optim.SGD([*parameters, nn.Parameter(torch.ones(2))], lr=0.1)

    with pytest.raises(BadValueError, match="1 parameters that the model has not"):
        in_parts((16,), net(), nn.CrossEntropyLoss(), stray, classes())


def test_a_scheduler_that_nothing_steps_is_refused() -> None:
    model = net()
    optimizer = adam(model)
    argument_checks.supported(model, nn.CrossEntropyLoss(), optimizer, 5, [])
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert "nothing would step it in 5 epochs; step it every epoch" in refused(model, optimizer, epochs=5)
    argument_checks.supported(model, nn.CrossEntropyLoss(), optimizer, 5, [print])
    argument_checks.supported(model, nn.CrossEntropyLoss(), optimizer, 1, [])


def test_a_scheduler_that_leaves_no_trace_on_its_optimizer_is_refused_where_nothing_steps_it() -> None:
    model = net()
    optimizer, other = adam(model), adam(model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    assert "nothing would step it in 3 epochs" in refused(model, optimizer, epochs=3)
    argument_checks.supported(model, nn.CrossEntropyLoss(), optimizer, 3, [scheduler.step])
    argument_checks.supported(model, nn.CrossEntropyLoss(), other, 3, [])
    del scheduler


class Logs:
    """A callback that logs, and one that has a scheduler among its attributes."""

    def __init__(self, *kept: Any) -> None:
        self.kept = {"kept": list(kept)}

    def __call__(self, report: Any) -> None:
        print(report)


def test_a_callback_that_cannot_step_the_scheduler_does_not_count() -> None:
    model = net()
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    def steps(report: Any) -> None:
        scheduler.step(report.loss)

    for silent in (print, Logs(), Logs(optimizer), lambda report: print(report), [].append):
        with pytest.raises(BadValueError) as caught:
            argument_checks.supported(model, nn.CrossEntropyLoss(), optimizer, 3, [silent])
        said = str(caught.value)
        assert "a ReduceLROnPlateau holds the optimizer, and nothing would step it in 3 epochs" in said
        assert "none of the 1 callbacks has it at hand; step it every epoch" in said
    indirect = functools.partial(lambda step, report: step(report), steps)
    for stepping in (steps, lambda report: steps(report), Logs(scheduler), Logs(steps), indirect, scheduler.step):
        argument_checks.supported(model, nn.CrossEntropyLoss(), optimizer, 3, [print, stepping])


class Held:
    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


class BoxedLR(torch.optim.lr_scheduler.StepLR):
    """One that keeps its optimizer inside another object."""

    optimizer = property(lambda self: vars(self)["box"].optimizer)  # type: ignore[assignment]

    @optimizer.setter
    def optimizer(self, value: Any) -> None:
        vars(self)["box"] = Held(value)


class HiddenLR(BoxedLR):
    """One that does not show it at all, once it is made."""

    def __init__(self, optimizer: Any, *given: Any) -> None:
        super().__init__(optimizer, *given)
        self.hidden = True

    def __getattribute__(self, name: str) -> Any:
        if name == "optimizer" and "hidden" in vars(self):
            raise RuntimeError("no")
        return super().__getattribute__(name)


class Lookahead(torch.optim.Optimizer):
    """An optimizer around another one, whose groups it has."""

    def __init__(self, inner: Any) -> None:
        super().__init__([torch.zeros(1)], {"lr": 1.0})
        self.inner = inner
        self.param_groups = inner.param_groups


class WarmUp:
    """A scheduler that knows torch's not at all."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.param_groups[0]["lr"] = 1.0


class OfGroups:
    """One that holds the groups alone."""

    __slots__ = ("groups",)

    def __init__(self, optimizer: Any) -> None:
        self.groups = optimizer.param_groups


class GroupScheduler(OfGroups):
    __slots__ = ()

    def step(self) -> None:
        self.groups[0]["lr"] = 1.0


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda optimizer: BoxedLR(optimizer, 1), "BoxedLR"),
        (lambda optimizer: HiddenLR(optimizer, 1), "HiddenLR"),
        (lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(Lookahead(optimizer)), "ReduceLROnPlateau"),
        (WarmUp, "WarmUp"),
        (GroupScheduler, "GroupScheduler"),
    ],
)
def test_a_scheduler_that_holds_its_optimizer_through_something_else_is_named_where_nothing_steps_it(
    make: Callable[[Any], Any], name: str
) -> None:
    optimizer, other = adam(net()), adam(net())
    scheduler = make(optimizer)
    assert unstepped_scheduler(optimizer, [print]) == name
    assert unstepped_scheduler(optimizer, [lambda report: scheduler.step()]) == ""
    assert unstepped_scheduler(optimizer, [Held(Held(scheduler))]) == ""
    assert unstepped_scheduler(other, [print]) == ""


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_holds_its_optimizer_through_something_else_goes_back_with_it() -> None:
    optimizer = adam(net())
    scheduler = BoxedLR(optimizer, 1, 0.5)
    history = ScheduleHistory(optimizer, 0, kept=False)
    for _ in range(2):
        history.again(10)
        scheduler.step()
        history.ended(10)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(scheduler.base_lrs[0] / 2)
    with pytest.raises(BadValueError, match="the state of the BoxedLR has a Held, which a checkpoint cannot keep"):
        ScheduleHistory(optimizer, 0, kept=True)


def test_a_scheduler_of_schedulers_steps_those_within() -> None:
    model = net()
    optimizer = adam(model)
    inner = [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]
    outer = torch.optim.lr_scheduler.SequentialLR(optimizer, inner, [2])
    argument_checks.supported(model, nn.CrossEntropyLoss(), optimizer, 3, [lambda report: outer.step()])
    with pytest.raises(BadValueError, match="nothing would step it"):
        argument_checks.supported(model, nn.CrossEntropyLoss(), optimizer, 3, [lambda report: inner[0].step()])


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "steps": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
    "milestones": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3, 3], 0.1),
    "plateau": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    "a function": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 / (1 + n)),
    "one after the other": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])],
        [2],
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_back_before_an_epoch_that_comes_again_and_no_other(name: str, kept: bool) -> None:
    optimizer = adam(net())
    scheduler = SCHEDULERS[name](optimizer)
    history = ScheduleHistory(optimizer, 0, kept=kept)

    def rates(epochs: range) -> list[float]:
        found = []
        for epoch in epochs:
            history.again(10 * epoch)
            scheduler.step(*([1.0 + epoch] if name == "plateau" else []))
            history.ended(10 * epoch)
            found.append(optimizer.param_groups[0]["lr"])
        return found

    before = rates(range(1, 4))
    assert rates(range(3, 6))[0] == before[2] if kept else True
    assert rates(range(1, 4)) == before
    assert rates(range(4, 6)) == rates(range(4, 6)) if kept else True


def test_a_scheduler_is_found_also_where_the_program_froze_its_objects() -> None:
    optimizer = adam(net())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    gc.freeze()
    try:
        assert unstepped_scheduler(optimizer, []) == "StepLR"
        assert [*ScheduleHistory(optimizer, 0, kept=True).at(0)] == ["StepLR"]
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
    assert scheduler.last_epoch == 0


def test_a_scheduler_that_cannot_be_copied_is_named_where_it_would_go_back() -> None:
    optimizer = adam(net())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scheduler.lock = threading.Lock()
    history = ScheduleHistory(optimizer, 0, kept=False)
    history.again(10)
    history.ended(10)
    with pytest.raises(BadValueError, match=r"all workers died, and the StepLR cannot go back: .*lock"):
        history.again(10)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_from_its_state_in_a_checkpoint(name: str) -> None:
    def rates(optimizer: Any, scheduler: Any, epochs: range) -> list[float]:
        found = []
        for epoch in epochs:
            scheduler.step(*([1.0 + epoch] if name == "plateau" else []))
            found.append(optimizer.param_groups[0]["lr"])
        return found

    model = net()
    optimizer = adam(model)
    scheduler = SCHEDULERS[name](optimizer)
    rates(optimizer, scheduler, range(2))
    kept = json.loads(json.dumps(ScheduleHistory(optimizer, 2, kept=True).at(2), allow_nan=False))
    other = adam(model)
    with pytest.raises(BadValueError, match=rf"kept with a {type(scheduler).__name__}, and no .* resume\(\)"):
        load_schedulers(other, kept)
    again = SCHEDULERS[name](other)
    other.load_state_dict(optimizer.state_dict())
    load_schedulers(other, kept)
    assert rates(other, again, range(2, 6)) == rates(optimizer, scheduler, range(2, 6))
    twin = SCHEDULERS[name](other)
    with pytest.raises(BadValueError, match=r"2 \w+ hold the optimizer, .*ChainedScheduler"):
        ScheduleHistory(other, 2, kept=True)
    del twin


def test_complex_parameters_are_refused_by_name() -> None:
    model = nn.Linear(6, 4, dtype=torch.complex64)
    assert refused(model).startswith("weight is complex, and gradients are summed as real numbers")


def test_a_state_of_another_optimizer_is_refused_by_the_names_of_both() -> None:
    model = net()
    state = pack(model, torch.optim.SGD(model.parameters(), lr=0.1), [3])
    for kind in (torch.optim.Adam, torch.optim.RMSprop):
        with pytest.raises(HeteroError, match=f"kept of SGD, and this run has {kind.__name__}"):
            load_state(state, model, kind(model.parameters()))
    kept = pack(model, torch.optim.Adam(model.parameters()), [3])
    with pytest.raises(HeteroError, match="kept of Adam, and this run has RMSprop"):
        load_state(renewed(kept, model, adam), model, torch.optim.RMSprop(model.parameters()))
    assert load_state(kept, model, torch.optim.Adam(model.parameters())).numbers == [3]


# --- what a program changes while training goes on -----------------------------------------------------------


class Scaled(nn.Module):  # type: ignore[misc]
    """A loss and a model with settings that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.beta, self.table = 0.0, {"a": [1.0, 2.0]}
        self.part = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))
        self.register_buffer("kept", torch.ones(2))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "beta": lambda m: setattr(m, "beta", 0.5),
    "table": lambda m: m.table["a"].__setitem__(1, 3.0),
    "part.1.p": lambda m: setattr(m.part[1], "p", 0.1),
    "kept, a buffer,": lambda m: m.kept.fill_(2.0),
    "part.0.weight, a weight,": lambda m: m.part[0].weight.data.mul_(2.0),
    "requires_grad of part.0.bias": lambda m: m.part[0].bias.requires_grad_(False),
    "the training mode": lambda m: m.part[1].eval(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_in_a_model_or_a_loss_during_a_fit_is_found_by_name(name: str) -> None:
    model, loss = Scaled(), Scaled()
    before = seen(model, loss)
    assert difference(before, seen(model, loss)) == ""
    model.eval()
    assert difference(before, seen(model, loss)) == ""
    model.train()
    CHANGES[name](model)
    assert difference(before, seen(model, loss)) == name
    before = seen(model, loss)
    CHANGES[name](loss)
    assert "of the loss" in difference(before, seen(model, loss))


def test_what_a_function_reads_is_a_part_of_it() -> None:
    beta, table, notes = 0.0, {"gamma": 1.0}, [1]

    class Own:
        scale = 1.0

        def __init__(self) -> None:
            self.scale, self.history = 1.0, [0]

        def loss(self, output: Any, target: Any) -> Any:
            return output * target * self.scale

    def loss(output: Any, target: Any) -> Any:
        return output * beta + target * table["gamma"]

    own = Own()
    partial = functools.partial(loss, table)
    known = [fingerprint(loss), fingerprint(own.loss), fingerprint(partial)]
    notes.append(2)
    own.history.append(1)
    assert known == [fingerprint(loss), fingerprint(own.loss), fingerprint(partial)]
    beta, table["gamma"], own.scale = 0.5, 1.0, 2.0
    assert known[0] != fingerprint(loss)
    assert known[1] != fingerprint(own.loss)
    known = [fingerprint(loss)]
    table["gamma"] = 3.0
    assert known[0] != fingerprint(loss)


def test_data_that_change_in_place_have_another_fingerprint() -> None:
    rows, plain = torch.arange(12.0).reshape(3, 4), np.arange(12)
    for data, change in (
        ((rows, rows), lambda: rows.mul_(2)),
        (DataLoader(TensorDataset(rows.t(), rows.t())), lambda: rows.data.add_(1)),
        ([(rows, 1)], lambda: rows.copy_(rows.flip(0))),
        ((plain, plain), lambda: plain.__setitem__(slice(0, 2), plain[1::-1].copy())),
    ):
        before = fingerprint(data)
        assert before == fingerprint(data)
        change()
        assert before != fingerprint(data)


_scale = {"by": 1.0}


class Readings(torch.utils.data.Dataset):  # type: ignore[misc]
    """A dataset that keeps what it reads in every way that a program's own class may."""

    factor = 1.0

    class Slotted:
        __slots__ = ("by",)

        def __init__(self) -> None:
            self.by = 1.0

    def __init__(self) -> None:
        self.rows, self.raw, self.inner = deque([1.0]), bytearray(b"ab"), self.Slotted()
        self.named = type("Named", (list,), {})([1.0])
        self.named.unit = 1.0

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.scaled([index])

    def scaled(self, values: list[int]) -> list[float]:
        return [value * self.own() for value in values]

    @staticmethod
    def own() -> float:
        return sum(_scale["by"] for _ in range(1))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("factor of the data", lambda data: setattr(Readings, "factor", 0.5)),
        ("rows of the data", lambda data: data.rows.append(2.0)),
        ("raw of the data", lambda data: data.raw.extend(b"c")),
        ("inner of the data", lambda data: setattr(data.inner, "by", 0.5)),
        ("named of the data", lambda data: setattr(data.named, "unit", 0.5)),
        ("something that the code of the data uses", lambda data: _scale.update(by=0.5)),
    ],
)
def test_whatever_a_dataset_keeps_or_reads_is_looked_at(
    name: str, change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Readings, "factor", 1.0)
    monkeypatch.setitem(_scale, "by", 1.0)
    data = Readings()

    def found() -> dict[str, object]:
        return {part: fingerprint(value) for part, value in what_decides(data, "the data").items()}

    before = found()
    assert difference(before, found()) == ""
    change(data)
    assert difference(before, found()) == name


TRAVELLING_PROGRAM = """
import types
import numpy as np
import torch
from hetero.train.compatibility import fingerprint
from hetero.train.data import what_decides
scale = 1.0
class Kept:
    value = 1.0
    def __get__(self, instance, owner):
        return self.value
    def __set__(self, instance, value):
        self.value = value
class Meta(type):
    factor = 1.0
class Base(torch.utils.data.Dataset, metaclass=Meta):
    def __getitem__(self, index):
        return index * scale
class Readings(Base):
    scaled, kept = property(lambda self: scale), Kept()
    def __init__(self):
        self.table = {"by": 1.0}
        self.seen, self.many = types.MappingProxyType(self.table), dict.fromkeys(range(20_000), 1.0)
        self.objects = np.array([{"by": 1.0}, None], dtype=object)
        self.sparse = torch.eye(6).to_sparse()
        self.chain = self.leaf = {}
        for _ in range(80):
            self.chain = {"next": self.chain}
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return super().__getitem__(index)
def rescale():
    global scale
    scale = 0.5
changes = {
    "a global that a property or a method of the base reads": lambda data: rescale(),
    "a property": lambda data: setattr(Readings, "scaled", property(lambda self: 0.2)),
    "a descriptor": lambda data: setattr(data, "kept", 0.5),
    "a view of a dict": lambda data: data.table.update(by=0.5),
    "a large dict": lambda data: data.many.update({7: 2.0}),
    "an object in an array": lambda data: data.objects[0].update(by=0.5),
    "the values of a sparse tensor": lambda data: data.sparse.values().mul_(2),
    "a long chain": lambda data: data.leaf.update(value=1),
    "code": lambda data: setattr(Base.__getitem__, "__code__", (lambda self, index: 0).__code__),
    "a metaclass": lambda data: setattr(Meta, "factor", 0.5),
}
if __name__ == "__main__":
    data = Readings()
    def found():
        return {part: fingerprint(value) for part, value in what_decides(data, "the data").items()}
    for name, change in changes.items():
        before = found()
        assert before == found(), name
        change(data)
        assert before != found(), name
"""


def test_whatever_travels_of_a_dataset_of_the_program_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(TRAVELLING_PROGRAM)
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_table_that_is_only_read_is_no_change() -> None:
    table = pandas.DataFrame({"number": [1.0, 2.0], "name": ["a", "b"]})
    before = fingerprint(table)
    assert table.iloc[1]["name"] == "b"
    assert table["number"].mean() == 1.5
    assert before == fingerprint(table)
    table.loc[1, "name"] = "c"
    assert before != fingerprint(table)


def test_what_a_path_remembers_of_itself_is_no_change() -> None:
    folder = Path("data")
    before = fingerprint([folder])
    assert str(folder)
    assert before == fingerprint([folder])


def test_a_loader_that_drops_its_last_batch_from_now_on_is_another_one() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(5, 1), torch.zeros(5)), 2)
    before = {part: fingerprint(value) for part, value in what_decides(loader, "the data").items()}
    loader.batch_sampler.drop_last = True
    after = {part: fingerprint(value) for part, value in what_decides(loader, "the data").items()}
    assert difference(before, after) == "drop_last of the batch sampler of the data"


def test_settings_that_changed_are_found_and_set() -> None:
    model = net()
    one, other = adam(model), adam(model)
    before = group_values(one)
    one.param_groups[0]["lr"], one.param_groups[0]["betas"] = 0.5, (0.5, 0.9)
    changes = changed_values(before, group_values(one))
    assert changes == {0: {"lr": 0.5, "betas": (0.5, 0.9)}}
    set_values(other, changes)
    assert group_values(other) == group_values(one)
    one.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(BadValueError, match="parameter groups from 1 to 2"):
        changed_values(before, group_values(one))


# --- loaders -------------------------------------------------------------------------------------------------


def dataset() -> Any:
    return TensorDataset(torch.arange(10.0)[:, None], torch.arange(10))


def drawn(loader: Any, batch: int = 4, epoch: int = 0) -> list[int]:
    samples = as_samples(loader)
    return samples.order(TrainOptions(batch, shuffle=samples.draw.shuffle), epoch)


def test_a_loaders_order_and_number_of_samples_are_kept() -> None:
    assert drawn(DataLoader(dataset(), 4)) == list(range(10))
    assert drawn(DataLoader(dataset(), 4, drop_last=True)) == list(range(8))
    assert sorted(drawn(DataLoader(dataset(), shuffle=True))) == list(range(10))
    assert drawn(DataLoader(dataset(), shuffle=True)) != drawn(DataLoader(dataset(), shuffle=True), epoch=1)
    shuffled = DataLoader(dataset(), 4, shuffle=True, drop_last=True)
    left = {frozenset(range(10)) - set(drawn(shuffled, epoch=epoch)) for epoch in range(8)}
    assert len(left) > 1
    assert {len(one) for one in left} == {2}
    few = drawn(DataLoader(dataset(), sampler=RandomSampler(dataset(), num_samples=7)))
    assert (len(few), len(set(few))) == (7, 7)
    many = drawn(DataLoader(dataset(), sampler=RandomSampler(dataset(), num_samples=25)))
    assert sorted(many[:10]) == sorted(many[10:20]) == list(range(10))
    assert len(many) == 25
    again = drawn(DataLoader(dataset(), sampler=RandomSampler(dataset(), replacement=True, num_samples=400)))
    assert len(again) == 400
    assert len(set(again[:10])) < 10


class Even(torch.utils.data.BatchSampler):  # type: ignore[misc]
    """Forms batches in its own way."""


class Chosen(RandomSampler):  # type: ignore[misc]
    """Chooses samples in its own way."""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_sampler": Even(range(10), 2, False)}, "has a Even, and the Trainer forms batches itself"),
        ({"batch_size": None}, "has batch_size=None"),
        ({"sampler": Chosen(dataset())}, "the loader's Chosen chooses samples itself"),
        (
            {"sampler": torch.utils.data.SubsetRandomSampler([1, 2])},
            r"SubsetRandomSampler .*torch\.utils\.data\.Subset",
        ),
        ({"sampler": torch.utils.data.WeightedRandomSampler([1.0] * 10, 10)}, "weight the loss of each sample"),
        ({"shuffle": True, "generator": torch.Generator()}, "generator would not be used; leave it out .*seed="),
        ({"sampler": torch.utils.data.SequentialSampler(range(4))}, r"is of 4 samples, its dataset has 10; .*Subset"),
        ({"sampler": RandomSampler(range(4))}, "is of 4 samples, its dataset has 10"),
        ({"worker_init_fn": print}, "worker_init_fn would not be called"),
    ],
)
def test_a_loader_that_chooses_in_its_own_way_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadValueError, match=words):
        as_samples(DataLoader(dataset(), **options))


class Tripled(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        inputs, target = super().__getitem__(index)
        return 3 * inputs, target


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_workers": 1, "timeout": 5}, "timeout=5 would have no effect; leave it out"),
        ({"num_workers": 1, "prefetch_factor": 8}, "prefetch_factor=8 would have no effect; give num_workers="),
        ({"num_workers": 1, "multiprocessing_context": "spawn"}, "multiprocessing_context=.* would have no effect"),
        ({"in_order": False}, "in_order=False would have no effect"),
    ],
)
def test_a_setting_of_a_loader_without_effect_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadValueError, match=f"data: the loader's {words}"):
        as_samples(torch.utils.data.DataLoader(dataset(), batch_size=4, **options))


def test_settings_of_a_loader_that_change_how_it_is_read_alone_are_taken() -> None:
    loader = torch.utils.data.DataLoader(dataset(), batch_size=4, num_workers=2, persistent_workers=True)
    assert as_samples(loader).readers == 2


def test_a_dataset_with_a_class_of_its_own_is_read_as_that_reads_it() -> None:
    for given in (Tripled(*dataset().tensors), DataLoader(Tripled(*dataset().tensors), 4)):
        inputs, _ = as_samples(given).batch([1, 2], 0, 0)
        assert inputs.tolist() == [[3.0], [6.0]]


class AtOnce(TensorDataset):
    factor = 1.0

    def __getitems__(self, ids: Any) -> list[Any]:
        return [(self.factor * inputs, target) for inputs, target in map(self.__getitem__, ids)]


class Doubled(AtOnce):
    factor = 2.0


def test_a_dataset_that_reads_several_samples_otherwise_than_each_of_them_is_refused() -> None:
    assert len(as_samples(DataLoader(AtOnce(*dataset().tensors), 4))) == 10
    assert len(as_samples(torch.utils.data.Subset(AtOnce(*dataset().tensors), [1, 2]))) == 2
    for given in (Doubled(*dataset().tensors), DataLoader(Doubled(*dataset().tensors), 4)):
        with pytest.raises(BadValueError, match=r"__getitems__ of Doubled gives other samples than \[i\]"):
            as_samples(given)


class Twice(DataLoader):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return ((2 * inputs, target) for inputs, target in super().__iter__())


class Short(DataLoader):  # type: ignore[misc]
    def __len__(self) -> int:
        return 1


class Collating(DataLoader):  # type: ignore[misc]
    collate_fn = property(lambda self: list, lambda self, value: None)


class Below(Twice):
    """Nothing of its own, and below a class that has."""


class Preset(DataLoader):  # type: ignore[misc]
    """A loader whose class only chooses what torch's is given."""

    note = "mine"

    def __init__(self, data: Any) -> None:
        super().__init__(data, 4, collate_fn=list)

    def describe(self) -> str:
        return self.note


@pytest.mark.parametrize(
    ("kind", "name"), [(Twice, "__iter__"), (Short, "__len__"), (Collating, "collate_fn"), (Below, "__iter__")]
)
def test_a_loader_whose_class_does_something_of_its_own_with_batches_is_refused(kind: Any, name: str) -> None:
    with pytest.raises(BadValueError, match=f"the loader's class \\w+ has {name} of its own, which would not be used"):
        as_samples(kind(dataset(), 4))
    assert as_samples(Preset(dataset())).collate is list


def test_data_that_are_tested_have_all_their_samples() -> None:
    assert len(as_samples(DataLoader(dataset(), 5, drop_last=True), "test")) == 10
    with pytest.raises(BadValueError, match="drop_last would leave 2 samples untested"):
        as_samples(DataLoader(dataset(), 4, drop_last=True), "test")
    with pytest.raises(BadValueError, match="leaves samples out"):
        as_samples(DataLoader(dataset(), sampler=RandomSampler(dataset(), num_samples=3)), "test")


def test_samples_that_require_a_gradient_or_cannot_be_read_by_id_are_refused() -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[Any]:
            return iter(())

    inputs, targets = classes()
    with pytest.raises(BadValueError, match="requires a gradient, which nobody would see"):
        as_samples((inputs.requires_grad_(), targets))
    with pytest.raises(BadValueError, match="require a gradient"):
        tried(net(), nn.CrossEntropyLoss(), [(row, int(one)) for row, one in zip(inputs, targets, strict=True)])
    for data in (Stream(), DataLoader(Stream())):
        with pytest.raises(BadValueError, match="an IterableDataset cannot be read by id"):
            as_samples(data)


def test_options_that_contradict_a_loader_are_refused() -> None:
    samples = as_samples(DataLoader(dataset(), sampler=RandomSampler(dataset(), num_samples=7)))
    with pytest.raises(BadValueError, match="draws at random"):
        argument_checks.sampling(samples, TrainOptions(4, shuffle=False), logged=False)
    with pytest.raises(BadValueError, match="sample_log checks"):
        argument_checks.sampling(samples, TrainOptions(4), logged=True)
    with pytest.raises(BadValueError, match="global_batch=8 is more than the 7 samples"):
        argument_checks.sampling(samples, TrainOptions(8), logged=False)


def test_a_thread_that_switches_the_default_dtype_waits_for_the_trial_of_another() -> None:
    entered = threading.Event()
    found = []

    def settings() -> None:
        entered.set()
        with in_process(process_settings() | {"dtype": "float32"}):
            found.append(torch.get_default_dtype())

    with dtype_held():
        torch.set_default_dtype(torch.float64)
        other = threading.Thread(target=settings)
        other.start()
        entered.wait(60)
        other.join(0.05)
        assert found == []
        torch.set_default_dtype(torch.float32)
    other.join(60)
    assert (found, torch.get_default_dtype()) == ([torch.float32], torch.float32)


def test_what_members_exchange_to_measure_their_link_has_one_dtype_whatever_the_default_is() -> None:
    sent: list[Any] = []
    group = SimpleNamespace(all_reduce=lambda tensor, *_: sent.append(tensor.dtype))
    gradients = SimpleNamespace(nbytes=8)
    member = SimpleNamespace(team=("a", "b"), group=group, replica=SimpleNamespace(gradients=gradients))
    usual = torch.get_default_dtype()
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            Membership._measure_link(member)  # type: ignore[arg-type]
        finally:
            torch.set_default_dtype(usual)
    assert sent[:9] == sent[9:]


def test_a_function_that_returns_no_optimizer_is_refused_by_name() -> None:
    parts = cloudpickle.dumps((net(), nn.CrossEntropyLoss(), lambda parameters: 3))
    with pytest.raises(BadValueError, match="the optimizer's function returned 3, which is no optimizer; return torch"):
        ModelReplica(parts, TrainOptions(BATCH), "cpu", 1)


def test_a_loop_on_the_host_runs_under_no_mode_which_would_cost_every_call_of_torch() -> None:
    modes = torch._C._len_torch_function_stack
    with in_process({}):
        assert modes() == 0
    with torch.device("meta"), in_process({}):
        assert modes() == 2
        assert torch.empty(1).device.type == "cpu"


def test_settings_that_are_as_they_were_are_not_set_for_which_torch_would_load_its_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[bool, bool]] = []
    monkeypatch.setattr(
        torch, "use_deterministic_algorithms", lambda mode, *, warn_only=False: given.append((mode, warn_only))
    )
    settings = process_settings()
    with in_process(settings):
        assert given == []
    with in_process({**settings, "deterministic": (True, True)}):
        assert given == [(True, True)]
