"""Training loops as people write them, for tests/engine/test_launch.py: each prints what one device prints."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  torch's own word
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import hetero
from hetero.train import share_planner

torch.set_default_dtype(torch.float64)
fleet = hetero.train.init()


def classes(samples: int = 70) -> tuple[Any, Any]:
    return torch.randn(samples, 6), torch.randint(0, 3, (samples,))


def told(name: str, *values: Any) -> None:
    fleet.print(name, *(repr(float(torch.as_tensor(value).detach())) for value in values))


def size(model: nn.Module) -> float:
    return float(sum((p.detach() * torch.arange(1.0, p.numel() + 1).view(p.shape)).sum() for p in model.parameters()))


def dropout_schedule_and_clipping() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    loader = DataLoader(TensorDataset(*classes()), 16, shuffle=True)
    model, optimizer, loader, schedule = fleet.prepare(model, optimizer, loader, schedule)
    average = copy.deepcopy(model)
    for _ in range(3):
        total = 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            total += loss.item()
            with torch.no_grad():
                for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(now, 0.1)
        schedule.step()
        told("dropout", total, size(model), size(average), schedule.get_last_lr()[0])


def losses_of_every_kind() -> None:
    weights, rows = torch.rand(3) + 0.1, classes()
    kinds: dict[str, Any] = {
        "ignored": lambda out, y: F.cross_entropy(out, y, weight=weights, ignore_index=1),
        "smoothed": lambda out, y: F.cross_entropy(out, y, weight=weights, label_smoothing=0.1),
        "summed": lambda out, y: F.cross_entropy(out, y, reduction="sum") / 50,
        "batchmean": lambda out, y: F.kl_div(out.log_softmax(1), torch.eye(3)[y], reduction="batchmean"),
        "masked": lambda out, y: (F.cross_entropy(out, y, reduction="none") * (y > 0)).sum() / (y > 0).sum(),
        "two": lambda out, y: F.cross_entropy(out, y, ignore_index=2) + 0.3 * out.pow(2).mean(),
    }
    for name, given in kinds.items():
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        model, optimizer, loader = fleet.prepare(model, optimizer, DataLoader(TensorDataset(*rows), 20))
        for inputs, targets in loader:
            optimizer.zero_grad()
            out = model(inputs)
            fleet.backward(given(out, targets) + 1e-2 * sum(p.pow(2).sum() for p in model.parameters()))
            optimizer.step()
        told(name, size(model))


def folds_with_a_model_of_their_own() -> None:
    inputs, targets = classes(60)
    kinds: list[Any] = [
        lambda out, y: F.cross_entropy(out, y),
        lambda out, y: (F.cross_entropy(out, y, reduction="none") * (1.0 + y)).sum() / (1.0 + y).sum(),
        lambda out, y: F.cross_entropy(out, y, reduction="sum") / 50,
        lambda out, y: (out - F.one_hot(y, 3)).pow(2).sum() / len(y),
        lambda out, y: F.cross_entropy(out, y) + 0.1 * out.var(1).mean(),
    ]
    for fold, given in enumerate(kinds):
        model = nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        )
        optimizer = torch.optim.Adam(model.parameters(), 0.01 * (fold + 1))
        held = torch.arange(60) % 5 == fold
        workers: dict[str, Any] = {"num_workers": 1, "persistent_workers": True} if fold == 1 else {}
        loader = DataLoader(TensorDataset(inputs[~held], targets[~held]), 16, shuffle=True, **workers)
        model, optimizer, loader = fleet.prepare(model, optimizer, loader)
        for _ in range(2):
            model.train()
            for x, y in loader:
                optimizer.zero_grad()
                loss = given(model(x), y)
                loss.backward()
                optimizer.step()
            told("fold", fold, loss, size(model))
        model.eval()
        with torch.no_grad():
            told("held", F.cross_entropy(model(inputs[held]), targets[held]))


def losses_of_two_heads() -> None:
    body, one, other = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *one.parameters(), *other.parameters()], 0.05)
    loader = DataLoader(TensorDataset(*classes()), 16)
    body, one, other, optimizer, loader = fleet.prepare(body, one, other, optimizer, loader)
    for inputs, targets in loader:
        optimizer.zero_grad()
        hidden = body(inputs)
        entropy = F.cross_entropy(one(hidden), targets, ignore_index=1)
        error = F.mse_loss(other(hidden)[:, 0], inputs[:, 0])
        (entropy + 0.5 * error + 1e-2 * one.weight.pow(2).sum()).backward()
        told("heads", entropy, error)
        terms = {"entropy": F.cross_entropy(one(body(inputs)), targets), "error": other(body(inputs)).pow(2).mean()}
        sum(terms.values()).backward()
        told("terms", *terms.values())
        hidden = body(inputs)
        entropy, error = F.cross_entropy(one(hidden), targets), other(hidden).pow(2).mean()
        entropy.backward(retain_graph=True)
        error.backward()
        optimizer.step()
        told("apart", entropy, error)


def two_models_that_play_against_each_other() -> None:
    maker, judge = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    of_maker, of_judge = (torch.optim.Adam(each.parameters(), 0.01) for each in (maker, judge))
    maker, judge, of_maker, of_judge, loader = fleet.prepare(
        maker, judge, of_maker, of_judge, DataLoader(TensorDataset(*classes(48)), 16, shuffle=True)
    )
    for real, _ in loader:
        of_judge.zero_grad()
        F.binary_cross_entropy_with_logits(judge(real)[:, 0], torch.ones(len(real))).backward()
        made = maker(torch.randn(len(real), 4))
        F.binary_cross_entropy_with_logits(judge(made.detach())[:, 0], torch.zeros(len(real))).backward()
        of_judge.step()
        of_maker.zero_grad()
        F.binary_cross_entropy_with_logits(judge(made)[:, 0], torch.ones(len(real))).backward()
        of_maker.step()
    told("models", size(maker), size(judge))


def a_closure() -> None:
    model, (inputs, targets) = nn.Linear(6, 3), classes(30)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    model, optimizer = fleet.prepare(model, optimizer)
    inputs, targets = fleet.split(inputs, targets)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    told("closure", size(model))


def accumulated_with_hooks() -> None:
    for is_hooked in (True, False):
        model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 3))
        if is_hooked:
            model[1].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        model, optimizer = fleet.prepare(model, optimizer)
        for step in range(4):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            for part in range(3):
                inputs, targets = fleet.split(torch.randint(0, 11, (12, 5)), torch.randint(0, 3, (12, 5)))
                loss = F.cross_entropy(model(inputs).view(-1, 3), targets.reshape(-1))
                with fleet.no_sync() if part < 2 and step > 1 else nullcontext():
                    (loss / 3).backward()
                told("accumulating", loss)
            optimizer.step()
        told("accumulated", size(model))


def batch_norm_and_evaluation() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.randn(40, 1, 6, 6), torch.randint(0, 3, (40,)))
    model, optimizer, loader = fleet.prepare(model, optimizer, DataLoader(data, 10, shuffle=True, num_workers=1))
    for inputs, targets in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    right, rows = 0.0, []
    with torch.no_grad():
        for inputs, targets in loader:
            found = model(inputs)
            right += float(fleet.sum((found.argmax(1) == targets).sum()))
            rows.append(fleet.gather(found))
    told("norm", size(model), model[1].running_mean.sum(), model[1].running_var.sum(), right, torch.cat(rows).sum())


class Stream(IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(1)
        for _ in range(34):
            yield {"inputs": torch.randn(6, generator=generator), "target": torch.tensor(1)}


def a_stream_of_dicts_and_no_optimizer() -> None:
    model, loader = fleet.prepare(nn.Linear(6, 3), DataLoader(Stream(), 8))
    for batch in loader:
        model.zero_grad()
        F.cross_entropy(model(batch["inputs"]), batch["target"]).backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
    told("stream", size(model))


def padded(rows: list[Any]) -> dict[str, Any]:
    inputs = nn.utils.rnn.pad_sequence([row[0] for row in rows], batch_first=True)
    return {"inputs": inputs, "targets": torch.tensor([row[1] for row in rows])}


def padding_and_dropout() -> None:
    data = [(torch.randint(1, 9, (int(length),)), int(length) % 2) for length in torch.randint(2, 12, (30,))]
    words, head = nn.Sequential(nn.Embedding(9, 8), nn.Dropout(0.2)), nn.Linear(8, 2)
    optimizer = torch.optim.AdamW([*words.parameters(), *head.parameters()], 0.01)
    words, head, optimizer, loader = fleet.prepare(
        words, head, optimizer, DataLoader(data, 10, shuffle=True, collate_fn=padded)
    )
    for batch in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(head(words(batch["inputs"]).mean(1)), batch["targets"])
        loss.backward()
        optimizer.step()
        told("padded", loss)


def the_batch_in_the_second_dimension() -> None:
    model, thin = nn.Linear(8, 8), nn.Dropout(0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer = fleet.prepare(model, optimizer)
    for length in (7, 3, 5, 6):  # of 10 columns each process has 5, too
        inputs = fleet.split(torch.randn(length, 10, 8), dim=1)
        optimizer.zero_grad()
        loss = thin(model(inputs)).pow(2).mean()
        loss.backward()
        optimizer.step()
        told("columns", loss)


def recurrent_networks_with_dropout() -> None:
    data = [(torch.randn(int(length), 6), int(length) % 3) for length in torch.randint(2, 9, (26,))]

    def packed(rows: list[Any]) -> tuple[Any, Any]:
        sequences = nn.utils.rnn.pack_sequence([row[0] for row in rows], enforce_sorted=False)
        return sequences, torch.tensor([row[1] for row in rows])

    for kind, given in ((nn.LSTM, {"proj_size": 2}), (nn.GRU, {"bidirectional": True}), (nn.RNN, {})):
        model, head = kind(6, 4, 3, batch_first=True, dropout=0.4, **given), nn.LazyLinear(3)
        head(model(torch.randn(1, 1, 6))[0])
        optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], 0.02)
        loader = DataLoader(data, 10, shuffle=True, collate_fn=packed)
        model, head, optimizer, loader = fleet.prepare(model, head, optimizer, loader)
        for sequences, targets in loader:
            optimizer.zero_grad()
            padded, _ = nn.utils.rnn.pad_packed_sequence(model(sequences)[0], batch_first=True)
            again, _ = model(padded[:, :, :1].expand(-1, -1, 6))
            loss = F.cross_entropy(head(padded[:, 0] + again[:, -1]), targets)
            loss.backward()
            optimizer.step()
            told(kind.__name__, loss)


def surely_left_out() -> None:
    """Have a trial come for sure, and show that the main process is as fast alone, whatever else the machine does."""
    share_planner._WORTH_A_TRIAL = share_planner._WORTH_OTHERS_FRAC = 1e9


def one_of_three_goes() -> None:
    """Leave the second device out after its tenth step."""
    observed = share_planner.LearnedShares.observed

    def given(self: Any, counts: tuple[int, ...], *args: Any, **options: Any) -> Any:
        observed(self, counts, *args, **options)
        self.shared = counts
        return (9, 0, 7) if self._steps == 10 else None

    share_planner.LearnedShares.observed = given  # type: ignore[method-assign]
    epochs_whose_sums_are_those_of_all_devices()


def small() -> tuple[Any, Any]:
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))
    return model, torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)


def epoch(model: Any, optimizer: Any, loader: Any) -> tuple[Any, ...]:
    seen, right, rows = 0, torch.tensor(0), []
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        out = model(inputs)
        F.cross_entropy(out, targets).backward()
        optimizer.step()
        seen, right = seen + len(inputs), right + (out.argmax(1) == targets).sum()
        rows.append(targets)
    every = fleet.gather(torch.cat(rows))
    return fleet.sum(seen), fleet.sum(right), len(every), every.sum()


def evaluated(model: Any, loader: Any) -> Any:
    counted, seen = 0.0, 0
    model.eval()
    with torch.no_grad():
        for inputs, targets in loader:
            counted += float((model(inputs).argmax(1) == targets).sum())
            seen += len(inputs)
    return fleet.sum(counted), fleet.sum(seen)


def epochs_whose_sums_are_those_of_all_devices() -> None:
    data, few = TensorDataset(*classes(700)), TensorDataset(*classes(33))
    for _ in range(2):
        model, optimizer = small()
        loader, held_out = DataLoader(data, 16, shuffle=True), DataLoader(few, 16)
        model, optimizer, loader, held_out = fleet.prepare(model, optimizer, loader, held_out)
        for _ in range(3):
            told("epoch", *epoch(model, optimizer, loader), *evaluated(model, held_out), size(model))


class Meter:
    def __init__(self) -> None:
        self.total = self.rows = 0.0

    def update(self, value: float, rows: int) -> None:
        self.total += value * rows
        self.rows += rows


def epochs_counted_beside_the_loop() -> None:
    model, optimizer = small()
    data, few = TensorDataset(*classes(700)), TensorDataset(*classes(33))
    loader, held_out = DataLoader(data, 16, shuffle=True), DataLoader(few, 16)
    model, optimizer, loader, held_out = fleet.prepare(model, optimizer, loader, held_out)
    for _ in range(4):
        seen, meter = 0, Meter()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            seen += len(inputs)
            meter.update(float(targets.sum()), 1)
        told("beside", fleet.sum(seen), fleet.sum(meter.total), *evaluated(model, held_out), size(model))


def what_is_counted_from_the_beginning() -> None:
    model, optimizer = small()
    data = TensorDataset(*classes(700))
    model, optimizer, loader = fleet.prepare(model, optimizer, DataLoader(data, 16, shuffle=True))
    seen = 0
    for _ in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            seen += len(inputs)
        told("beginning", fleet.sum(seen), size(model))


def a_last_batch_of_one_row_and_normalised_positions() -> None:
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.randn(49, 2, 8), torch.randint(0, 3, (49,)))
    model, optimizer, loader = fleet.prepare(model, optimizer, DataLoader(data, 16))
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        told("one row", size(model), model[1].running_var.sum())


def penalties_beside_two_means() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(*classes(40)), 8)
    model, optimizer, loader = fleet.prepare(model, optimizer, loader)
    for inputs, targets in loader:
        optimizer.zero_grad()
        out = model(inputs)
        penalty = sum(p.pow(2).sum() for p in model.parameters())
        (F.cross_entropy(out, targets) + 1e-3 * penalty + 0.01 * out.pow(2).mean()).backward()
        optimizer.step()
    told("penalties", size(model))


def losses_of_which_a_multiple_goes_backward() -> None:
    model, optimizer = small()
    loader = DataLoader(TensorDataset(*classes(96)), 16, shuffle=True)
    model, optimizer, loader = fleet.prepare(model, optimizer, loader)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for number, (inputs, targets) in enumerate(loader):
        loss = F.cross_entropy(model(inputs), targets)
        if number % 2:
            scaler.scale(loss).backward()
        else:
            (loss / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
        told("scaled", loss)


class Noisy(nn.Linear):
    """A layer whose weights are drawn, as of a network that is uncertain of them."""

    def forward(self, x: Any) -> Any:
        return F.linear(x, self.weight + 0.1 * torch.randn(self.weight.shape), self.bias + 0.1 * torch.randn(8))


def numbers_drawn_for_no_rows() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), Noisy(8, 8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(*classes(170)), 16, shuffle=True)
    model, optimizer, loader = fleet.prepare(model, optimizer, loader)
    for _ in range(4):
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        told("noisy", size(model))


def embeddings_of_bounded_norm() -> None:
    """Each forward pass changes the rows of the table that it looks up."""
    table = nn.Embedding(30, 6, max_norm=1.0)
    bag, head = nn.EmbeddingBag(20, 6, max_norm=0.5, norm_type=1.0), nn.Linear(6, 3)
    every = nn.ModuleList([table, bag, head])
    data = TensorDataset(torch.randint(0, 30, (45, 4)), torch.randint(0, 3, (45,)))
    every, optimizer, loader = fleet.prepare(every, torch.optim.SGD(every.parameters(), 0.5), DataLoader(data, 7))
    for _ in range(2):
        for words, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(head(table(words).mean(1) + bag(words % 20)), targets).backward()
            optimizer.step()
        told("bounded", size(table), size(bag), size(head))


def batches_split_one_step_ahead() -> None:
    model, optimizer = small()
    model, optimizer = fleet.prepare(model, optimizer)
    data, wanted = classes(200)

    def fetched() -> Any:
        chosen = torch.randint(0, 200, (12,))
        return fleet.split(data[chosen], wanted[chosen])

    inputs, targets = fetched()
    for step in range(30):
        for _ in range(2):
            loss = F.cross_entropy(model(inputs), targets) / 2
            inputs, targets = fetched()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        told("ahead", step, size(model))


def what_nobody_divides() -> None:
    model, (inputs, targets) = nn.Linear(6, 3), classes(50)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    model, optimizer = fleet.prepare(model, optimizer)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(F.dropout(model(inputs), 0.1), targets).backward()
        optimizer.step()
    told("undivided", size(model))


def fetched_ahead_by_hand() -> None:
    model, optimizer = small()
    model, optimizer, loader = fleet.prepare(
        model, optimizer, DataLoader(TensorDataset(*classes(1000)), 16, shuffle=True)
    )
    batches = iter(loader)
    following, seen = next(batches), 0
    while following is not None:
        (inputs, targets), following = following, next(batches, None)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        seen += len(inputs)
    told("by hand", fleet.sum(seen), size(model))


def norms_penalties_and_overflow() -> None:
    """Spectral norms change in forward, a penalty differentiates twice, a checkpoint goes backwards on its way."""
    first = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Dropout(0.2), nn.Tanh())
    last, scaler = nn.Linear(8, 3), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    optimizer = torch.optim.SGD([{"params": first.parameters()}, {"params": last.parameters(), "lr": 0.2}], 0.1)
    first, last, optimizer, scaler, loader = fleet.prepare(
        first, last, optimizer, scaler, DataLoader(TensorDataset(*classes(64)), 16)
    )
    for number, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        inputs.requires_grad_()
        out = last(checkpoint(first, inputs, use_reentrant=False))
        (slope,) = torch.autograd.grad(last(first(inputs)).sum(), inputs, create_graph=True)
        reentrant = last(checkpoint(first, inputs, use_reentrant=True)).pow(2).mean()
        loss = F.cross_entropy(out, targets) + ((slope.norm(dim=1) - 1) ** 2).mean() + reentrant
        scaler.scale(loss * float("inf") if number == 2 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    told("norms", size(first), size(last), *(each.sum() for each in first.buffers()), scaler.get_scale())


class Record:
    def __init__(self, inputs: Any, targets: Any) -> None:
        self.inputs, self.targets = inputs, targets


def batches_of_every_form() -> None:
    def objects(rows: list[Any]) -> Record:
        return Record(torch.stack([row[0] for row in rows]), torch.tensor([row[1] for row in rows]))

    def ragged(rows: list[Any]) -> Any:
        inputs, targets = zip(*rows, strict=True)
        return tuple(each[: 2 + len(inputs) % 3] for each in inputs), targets

    def mixed(rows: list[Any]) -> dict[str, Any]:
        found, share = objects(rows), np.random.default_rng(3).random() + np.random.rand()
        inputs = found.inputs * share + found.inputs[torch.randperm(len(rows))]
        return {"names": ["a row"] * len(rows), "more": (inputs, found.targets)}

    rows = list(zip(*classes(38), strict=True))
    sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(rows), 8, drop_last=False)
    for collate in (objects, ragged, mixed):
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = DataLoader(rows, batch_sampler=sampler, collate_fn=collate)
        model, optimizer, loader = fleet.prepare(model, optimizer, loader)
        for batch in loader:
            optimizer.zero_grad()
            if isinstance(batch, Record):
                loss = F.cross_entropy(model(batch.inputs), batch.targets)
            elif isinstance(batch, dict):
                inputs, targets = batch["more"]
                assert len(batch["names"]) == len(inputs)
                loss = F.cross_entropy(model(inputs), targets)
            else:
                short = torch.stack([F.linear(each, model.weight[:, : len(each)]).sum() for each in batch[0]])
                loss = (short - torch.tensor(batch[1])).pow(2).mean()
            loss.backward()
            optimizer.step()
        told("forms", size(model))


def joined(rows: list[Any]) -> dict[str, Any]:
    """Return graphs as one: the nodes of all, to which graph each belongs, and a target for each graph."""
    return {
        "nodes": torch.cat([nodes for nodes, _ in rows]),
        "graph": torch.cat([torch.full((len(nodes),), number) for number, (nodes, _) in enumerate(rows)]),
        "target": torch.stack([target for _, target in rows]),
    }


def graphs_after_batches_of_a_split() -> None:
    inputs, targets = classes(48)
    for step in range(5):
        if not step:
            model = fleet.prepare(nn.Linear(6, 3))
            optimizer = fleet.prepare(torch.optim.SGD(model.parameters(), 0.1))
        chosen = torch.randint(0, 48, (12,))
        x, y = fleet.split(inputs[chosen], targets[chosen])
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    told("split", size(model))
    rows = [(torch.randn(2 + number % 3, 6), torch.tensor(number % 3)) for number in range(40)]
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(rows, 8, shuffle=True, collate_fn=joined)
    model, optimizer, loader = fleet.prepare(model, optimizer, loader)
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            sums = torch.zeros(len(batch["target"]), 3).index_add(0, batch["graph"], model(batch["nodes"]))
            loss = (sums - F.one_hot(batch["target"], 3)).pow(2).sum() / len(batch["target"])
            loss.backward()
            optimizer.step()
            told("graphs", loss)
    told("graphs", size(model))


def two_shuffled_loaders_at_once() -> None:
    """Two loaders whose orders are those of torch's own; statistics of instances are tracked."""
    norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    model = nn.Sequential(nn.Unflatten(1, (2, 3)), norm, nn.ReLU(), nn.Flatten(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    labelled, others = TensorDataset(*classes(40)), TensorDataset(torch.arange(90.0).view(90, 1) % 7 * torch.ones(6))
    loaders = DataLoader(labelled, 8, shuffle=True), DataLoader(others, 18, shuffle=True)
    state = torch.get_rng_state()
    expected = [(x, z) for (x, _), (z,) in zip(*loaders, strict=True)]
    model, optimizer, *prepared = fleet.prepare(model, optimizer, *loaders)
    torch.set_rng_state(state)
    for step, ((x, y), (z,)) in enumerate(zip(*prepared, strict=True)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        own = model(z).pow(2).mean()
        own.backward()
        optimizer.step()
        same = all(map(torch.equal, expected[step], (fleet.gather(x), fleet.gather(z))))
        told("two", loss, own, same)
        assert same
    model.eval()
    with torch.no_grad():
        told("tracked", model(expected[0][0]).sum(), norm.running_mean.sum(), norm.running_var.sum())


def rows_chosen_before_a_norm() -> None:
    """A mask leaves other numbers of rows in each process; a memory that all hold is normalised by itself."""
    words = nn.Embedding(12, 6, scale_grad_by_freq=True)
    model = nn.Sequential(words, nn.Flatten(), nn.BatchNorm1d(18), nn.ReLU(), nn.Linear(18, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.randint(0, 12, (66, 3)), torch.randint(-1, 3, (66,)))
    model, optimizer, loader = fleet.prepare(model, optimizer, DataLoader(data, 11, shuffle=True))
    memory = torch.randint(0, 12, (7, 3))
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            kept = y >= 0
            loss = F.cross_entropy(model(x[kept]), y[kept])
            loss.backward()
            optimizer.step()
            told("kept", loss)
        optimizer.zero_grad()
        loss = model(memory).pow(2).mean()
        loss.backward()
        optimizer.step()
        told("memory", loss, size(model), model[2].running_mean.sum(), model[2].running_var.sum())


def sums_of_data_that_nobody_cuts() -> None:
    """Steps on a memory of samples, before, between and after those on batches: of a sum of them, by one reduction."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.002)
    loader = DataLoader(TensorDataset(*classes()), 14)
    model, optimizer, loader = fleet.prepare(model, optimizer, loader)
    memory = classes(9)
    for epoch in range(3):
        for step, (inputs, targets) in enumerate(loader):
            if epoch and step % 2:
                loss = F.cross_entropy(model(memory[0] + 0), memory[1], reduction="sum")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                told("memory", loss)
            loss = F.cross_entropy(model(inputs * 2 if step % 3 else inputs), targets, reduction="sum")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            told("batch", loss)
        chosen = torch.randint(0, 3, (9,))
        loss = -(F.log_softmax(model(memory[0]), 1)[range(9), chosen] * memory[0][:, 0]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told("reward", loss, size(model))


torch.manual_seed(7)
np.random.seed(7)
for each in sys.argv[1:]:
    globals()[each]()
