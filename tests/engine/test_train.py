"""A model trained over unequal devices becomes the model that one device would have made."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.errors import BadValueError, HeteroError, NothingFitsError
from hetero.train.values import TrainOptions
from tests.flat_options import trainer_options

torch = pytest.importorskip("torch")
nn = torch.nn

ONE, TWO = "1xcpu", "1xcpu,1xcpu*0.5"
OPEN: dict[str, hetero.Context] = {}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def fleets() -> Iterator[None]:
    """Keep two fleets open for all tests: starting torch in a worker takes seconds."""
    with hetero.Context(devices=TWO, history=False) as two, hetero.Context(devices=ONE, history=False) as one:
        OPEN.update({TWO: two, ONE: one})
        for ctx in (two, one):  # a worker that comes up later looks like one that was left behind
            ctx.gather([ctx.submit(hetero.task(os.getpid, on=(device.id,))) for device in ctx.devices])
        yield
    OPEN.clear()


def net(dropout: float = 0.0, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4))


def data(samples: int = 96, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((samples, 12)).astype(dtype), rng.integers(0, 4, samples)


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.01)


def trained(model: Any, devices: str, *, epochs: int = 3, pair: Any = None, **options: Any) -> Any:
    options = {"global_batch": 32, "devices": OPEN.get(devices, devices), **options}
    with hetero.Trainer(
        model, options.pop("loss", nn.CrossEntropyLoss()), adam, pair or data(), **trainer_options(**options)
    ) as trainer:
        trainer.fit(epochs)
    return trainer


def plain(model: Any, pair: Any, loss: Callable[..., Any], epochs: int = 3, batch: int = 32) -> Any:
    """Train in a loop that knows nothing of hetero, in the order of the data."""
    inputs, targets = (torch.from_numpy(part) for part in pair)
    optimizer = adam(model.parameters())
    for _ in range(epochs):
        for begin in range(0, len(inputs), batch):
            optimizer.zero_grad()
            loss(model(inputs[begin : begin + batch]), targets[begin : begin + batch]).backward()
            optimizer.step()
    return model


def distance(one: Any, other: Any) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def same_bits(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.usefixtures("no_leaks")
def test_a_trainer_gives_back_all_that_it_took() -> None:
    with hetero.Trainer(net().double(), nn.CrossEntropyLoss(), adam, data(), global_batch=32, devices=TWO) as trainer:
        trainer.fit(1)


def test_unequal_shares_give_what_a_plain_loop_gives() -> None:
    model = net().double()
    expected = plain(copy.deepcopy(model), data(), nn.CrossEntropyLoss())
    trainer = trained(model, TWO, shares={"cpu:0": 24, "cpu:1": 8}, shuffle=False)
    assert distance(model, expected) < 1e-12
    assert trainer.reports[-1].shares == {"cpu:0": 24, "cpu:1": 8}


def test_a_last_batch_that_is_smaller_counts_as_much_as_in_a_plain_loop() -> None:
    model = net().double()
    expected = plain(copy.deepcopy(model), data(75), nn.CrossEntropyLoss())
    trained(model, TWO, pair=data(75), shares={"cpu:0": 21, "cpu:1": 11}, shuffle=False)
    assert distance(model, expected) < 1e-12


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)),
        nn.CrossEntropyLoss(ignore_index=2),
        torch.nn.functional.cross_entropy,
    ],
    ids=["class weights", "ignored class", "function"],
)
def test_the_mean_of_a_loss_is_that_of_the_whole_batch(loss: Any) -> None:
    model = net().double()
    expected = plain(copy.deepcopy(model), data(), loss, epochs=1)
    trained(model, TWO, epochs=1, loss=loss, shares={"cpu:0": 5, "cpu:1": 27}, shuffle=False)
    assert distance(model, expected) < 1e-12


def test_a_regression_is_averaged_over_elements_and_not_over_samples() -> None:
    inputs, _ = data()
    pair = (inputs, np.random.default_rng(0).standard_normal((96, 4)))
    model = net().double()
    expected = plain(copy.deepcopy(model), pair, nn.MSELoss())
    trained(model, TWO, pair=pair, loss=nn.MSELoss(), shares={"cpu:0": 20, "cpu:1": 12}, shuffle=False)
    assert distance(model, expected) < 1e-12


def test_dropout_does_not_depend_on_who_computes_a_sample() -> None:
    alone, shared = net(0.5).double(), net(0.5).double()
    trained(alone, ONE)
    trained(shared, TWO, shares={"cpu:0": 13, "cpu:1": 19})
    assert distance(alone, net(0.5).double()) > 1e-3
    assert distance(alone, shared) < 1e-12


def test_bitwise_gives_equal_bits_for_any_shares_and_devices() -> None:
    models = []
    for devices, shares in ((ONE, "auto"), (TWO, "equal"), (TWO, {"cpu:0": 28, "cpu:1": 4})):
        models.append(net(0.3))
        trained(models[-1], devices, pair=data(80, np.float32), exact="bitwise", shares=shares)
    assert same_bits(models[0], models[1])
    assert same_bits(models[0], models[2])


def test_bitwise_is_as_near_to_a_plain_loop_as_its_precision() -> None:
    model = net().double()
    expected = plain(copy.deepcopy(model), data(), nn.CrossEntropyLoss())
    trained(model, ONE, exact="bitwise", shuffle=False)
    assert distance(model, expected) < 1e-7


def test_passes_of_a_few_samples_give_what_one_pass_gives() -> None:
    model = net().double()
    expected = plain(copy.deepcopy(model), data(), nn.CrossEntropyLoss())
    trained(model, ONE, accumulate=3, micro_batch=5, shuffle=False)
    assert distance(model, expected) < 1e-12


def test_augmentation_in_a_dataset_belongs_to_the_sample() -> None:
    class Noisy(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            inputs, targets = data()
            return torch.from_numpy(inputs[index]) + torch.randn(12), int(targets[index])

    alone, shared = net().double(), net().double()
    trained(alone, ONE, pair=Noisy(), epochs=1)
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=4, shuffle=True)
    trained(shared, TWO, pair=loader, epochs=1, shares="equal")
    assert distance(alone, shared) < 1e-12


def test_a_parameter_that_is_not_used_has_no_gradient() -> None:
    class Part(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(12, 4), nn.Linear(12, 4)

        def forward(self, x: Any) -> Any:
            return self.used(x)

    def decaying(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1)

    model = Part().double()
    before = model.unused.weight.detach().clone()
    with hetero.Trainer(model, nn.CrossEntropyLoss(), decaying, data(), global_batch=32, devices=OPEN[TWO]) as trainer:
        trainer.fit(1)
    assert torch.equal(model.unused.weight, before)


def test_the_optimizer_that_a_program_made_goes_on_where_training_ended() -> None:
    model, expected = net().double(), net().double()
    plain(expected, data(), nn.CrossEntropyLoss(), epochs=2)
    optimizer = adam(model.parameters())
    loss = nn.CrossEntropyLoss()
    with hetero.Trainer(
        model, loss, optimizer, data(), options=TrainOptions(32, shuffle=False), devices=OPEN[ONE]
    ) as trainer:
        trainer.fit(1)
        trainer.fit(1)
    assert distance(model, expected) < 1e-12
    assert optimizer.state[model[0].weight]["step"] == 6


class Sequences(torch.utils.data.Dataset):  # type: ignore[misc]
    """Sequences of different length, the long ones first."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.lengths = [24] * 8 + [3] * 56
        self.rows = [torch.from_numpy(rng.standard_normal((length, 5))) for length in self.lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], index % 3


def packed(samples: list[Any]) -> Any:
    rows = [row for row, _ in samples]
    return nn.utils.rnn.pack_sequence(rows, enforce_sorted=False), torch.tensor([label for _, label in samples])


class Recurrent(nn.Module):  # type: ignore[misc]
    """A small recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru, self.out = nn.GRU(5, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, sequences: Any) -> Any:
        return self.out(self.gru(sequences)[1][0])


def test_a_recurrent_network_trains_and_sequences_are_shared_by_length() -> None:
    samples, model = Sequences(), Recurrent().double()
    expected = Recurrent().double()
    optimizer = adam(expected.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        inputs, targets = packed([samples[index] for index in range(64)])
        nn.CrossEntropyLoss()(expected(inputs), targets).backward()
        optimizer.step()
    loader = torch.utils.data.DataLoader(samples, batch_size=64, collate_fn=packed)
    options = {"cost": samples.lengths, "global_batch": 64, "shares": "equal"}
    trainer = trained(model, TWO, pair=loader, epochs=2, shuffle=False, **options)
    assert distance(model, expected) < 1e-12
    assert trainer.reports[-1].samples_per_s > 0


class PaddedRecurrent(Recurrent):
    """The same network, fed with padded sequences and their lengths."""

    def forward(self, sequences: Any, lengths: Any) -> Any:
        rows = nn.utils.rnn.pack_padded_sequence(sequences, lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.gru(rows)[1][0])


def test_sequences_of_different_length_can_be_padded_pass_by_pass() -> None:
    samples, alone, shared = Sequences(), PaddedRecurrent().double(), PaddedRecurrent().double()
    loader = torch.utils.data.DataLoader(samples, batch_size=64, collate_fn=hetero.train.pad_samples)
    options = {"cost": samples.lengths, "global_batch": 64, "pair": loader}
    trained(alone, ONE, **options)
    trained(shared, TWO, shares="equal", **options)
    assert distance(alone, shared) < 1e-12


class Averages(nn.Module):  # type: ignore[misc]
    """Averages over a text; with its padding where it is not masked."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.masked = nn.Embedding(9, 4), masked

    def forward(self, words: Any) -> Any:
        there = (words > 0).double() if self.masked else torch.ones_like(words, dtype=torch.float64)
        return (self.table(words) * there[..., None]).sum(1) / there.sum(1, keepdim=True)


def pad_texts(batch: list[Any]) -> Any:
    words, targets = zip(*batch, strict=True)
    return nn.utils.rnn.pad_sequence(words, batch_first=True), torch.tensor(targets)


def test_padding_that_counts_is_found_when_the_first_sample_of_another_length_comes() -> None:
    torch.manual_seed(1)
    texts = [(torch.randint(1, 9, (9 if number == 151 else 6,)), number % 4) for number in range(200)]
    loader = torch.utils.data.DataLoader(texts, batch_size=20, shuffle=False, collate_fn=pad_texts)

    def run(masked: bool) -> Any:
        model = Averages(masked)
        options = {"global_batch": 20, "devices": "2xcpu", "shares": "equal"}
        with hetero.Trainer(model, nn.CrossEntropyLoss(), adam, loader, **trainer_options(**options)) as trainer:
            trainer.fit(1)
        return model

    with pytest.raises(HeteroError, match="depends on which samples are computed together"):
        run(masked=False)
    whole = Averages(masked=True)
    optimizer = adam(whole.parameters())
    for words, targets in loader:
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(whole(words), targets).backward()
        optimizer.step()
    assert distance(run(masked=True), whole) < 1e-6


def test_samples_of_different_shape_are_told_how_to_become_a_batch() -> None:
    with pytest.raises(BadValueError, match=r"the samples differ in shape: .*collate_fn=hetero\.train\.pad_samples"):
        trained(Recurrent().double(), ONE, pair=Sequences(), global_batch=64)


def test_a_graph_network_trains() -> None:
    class Graph(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, nodes: Any, edges: Any) -> Any:
            hidden = torch.relu(edges @ self.first(nodes))
            return self.second((edges @ hidden).mean(1))

    rng = np.random.default_rng(0)
    nodes, edges = rng.standard_normal((48, 6, 4)), rng.integers(0, 2, (48, 6, 6)).astype(float)
    rows = [
        ((torch.from_numpy(a), torch.from_numpy(b)), i % 2) for i, (a, b) in enumerate(zip(nodes, edges, strict=True))
    ]
    alone, shared = Graph().double(), Graph().double()
    trained(alone, ONE, pair=rows, global_batch=16)
    trained(shared, TWO, pair=rows, global_batch=16, shares={"cpu:0": 11, "cpu:1": 5})
    assert distance(alone, shared) < 1e-12


# --- what a program changes between and within fits ----------------------------------------------------------


def fit_with(model: Any, optimizer: Any, devices: str, *epochs: Any, **options: Any) -> Any:
    """Train epoch by epoch, with something done in between; returns the Trainer."""
    options = {"global_batch": 32, "devices": OPEN[devices], "shuffle": False, "shares": "equal", **options}
    with hetero.Trainer(model, nn.CrossEntropyLoss(), optimizer, data(), **trainer_options(**options)) as trainer:
        for between in epochs:
            trainer.fit(1)
            between()
    return trainer


def test_weights_and_settings_that_change_between_fits_count() -> None:
    found = []
    for plainly in (True, False):
        model = net().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda mean, new, _: 0.5 * (mean + new))

        def averaged(model: Any = model, average: Any = average, scheduler: Any = scheduler) -> None:
            average.update_parameters(model)
            model.load_state_dict(average.module.state_dict())
            scheduler.step()

        def frozen(model: Any = model, optimizer: Any = optimizer) -> None:
            model[0].requires_grad_(False)
            optimizer.param_groups[0]["weight_decay"] = 0.1

        between = (averaged, averaged, frozen, averaged, lambda model=model: model[0].requires_grad_(True), averaged)
        if plainly:
            for change in between:
                plain_epoch(model, optimizer)
                change()
        else:
            fit_with(model, optimizer, TWO, *between)
        found.append(model)
    assert distance(*found) < 1e-12


def plain_epoch(model: Any, optimizer: Any) -> None:
    inputs, targets = (torch.from_numpy(part) for part in data())
    for begin in range(0, 96, 32):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(inputs[begin : begin + 32]), targets[begin : begin + 32]).backward()
        optimizer.step()


@pytest.mark.filterwarnings("error:Detected call of `lr_scheduler.step")
def test_a_scheduler_that_a_callback_steps_counts_from_the_next_step_on() -> None:
    found = []
    for plainly in (True, False):
        model = net().double()
        optimizer = torch.optim.Adam([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[3].parameters()}])
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda n: 0.5**n, lambda n: 1.0 / (1 + n)])
        if plainly:
            for _ in range(4):
                plain_epoch(model, optimizer)
                scheduler.step()
        else:
            options = {"devices": OPEN[TWO], "shuffle": False, "shares": {"cpu:0": 9, "cpu:1": 23}}
            callbacks = [lambda _, scheduler=scheduler: scheduler.step()]
            with hetero.Trainer(
                *(model, nn.CrossEntropyLoss(), optimizer, data()),
                callbacks=callbacks,
                **trainer_options(global_batch=32, **options),
            ) as trainer:
                trainer.fit(3)
                trainer.fit(1)
        found.append((model, [group["lr"] for group in optimizer.param_groups]))
    assert distance(found[0][0], found[1][0]) < 1e-12
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-12)


class Epochs(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples that depend on the epoch, which a callback sets."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return len(data()[0])

    def __getitem__(self, index: int) -> Any:
        inputs, targets = data()
        return inputs[index] * SCALE[0] * (1 + self.epoch), targets[index]


SCALE = [1.0]


class Scaled(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = net().double()

    def forward(self, inputs: Any) -> Any:
        return self.scaled(self.inner(inputs))

    def scaled(self, found: Any) -> Any:
        return found * SCALE[0]


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("inputs", "the inputs of the data"),
        ("tensors", "the inputs of the data"),
        ("epoch", "epoch of the data"),
        ("inside", "dataset of the data"),
        ("global", "something that the code of the data uses"),
        ("model", "something that its code uses"),
        ("test", "the targets of the test data"),
    ],
)
def test_data_and_what_code_reads_that_a_callback_changes_are_refused(
    what: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SCALE", [1.0])
    (inputs, targets), dataset = data(), Epochs()
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(inputs.copy()), torch.from_numpy(targets))
    test = data()
    changes: dict[str, Callable[[Any], object]] = {
        "inputs": lambda _: inputs.__imul__(2.0),
        "tensors": lambda _: tensors.tensors[0].mul_(2.0),
        "epoch": lambda _: setattr(dataset, "epoch", 1),
        "inside": lambda _: setattr(dataset, "epoch", 1),
        "global": lambda _: SCALE.__setitem__(0, 3.0),
        "model": lambda _: globals().__setitem__("SCALE", [3.0]),
        "test": lambda _: test[1].__imul__(0),
    }
    given = {"tensors": tensors, "epoch": dataset, "global": dataset}
    given["inside"] = torch.utils.data.Subset(dataset, range(64))
    model = Scaled() if what == "model" else net().double()
    with hetero.Trainer(
        model, nn.CrossEntropyLoss(), adam, given.get(what, (inputs, targets)),
        **trainer_options(global_batch=32, devices=OPEN[ONE], callbacks=[changes[what]]),
    ) as trainer, pytest.raises(BadValueError, match=rf"a callback changed {name}, .*fit\(1\) in a loop"):  # fmt: skip
        trainer.fit(2, test=test)


def test_a_loss_that_a_callback_changes_is_refused_and_data_changed_between_fits_are_seen() -> None:
    class Annealed(nn.Module):  # type: ignore[misc]
        beta = 0.0

        def forward(self, output: Any, target: Any) -> Any:
            return nn.functional.cross_entropy(output, target, reduction="none") + self.beta * output.pow(2).mean(1)

    loss = Annealed()
    with pytest.raises(BadValueError, match=r"a callback changed beta of the loss, .*change it between two calls"):
        trained(net().double(), ONE, epochs=2, loss=loss, callbacks=[lambda _: setattr(loss, "beta", 0.5)])
    model, (inputs, targets) = net().double(), data()
    options: dict[str, Any] = {"global_batch": 32, "devices": OPEN[ONE], "shuffle": False}
    expected = copy.deepcopy(model)
    with hetero.Trainer(
        model, nn.CrossEntropyLoss(), adam(model.parameters()), (inputs, targets), **trainer_options(**options)
    ) as trainer:
        trainer.fit(1)
        inputs *= 0.5
        trainer.fit(1)
    found, optimizer = inputs * 2.0, adam(expected.parameters())
    for epoch in (found, inputs):
        for begin in range(0, 96, 32):
            optimizer.zero_grad()
            rows = (torch.from_numpy(part[begin : begin + 32]) for part in (epoch, targets))
            nn.CrossEntropyLoss()(expected(next(rows)), next(rows)).backward()
            optimizer.step()
    assert distance(model, expected) < 1e-12


def test_other_data_for_a_trainer_are_refused() -> None:
    model = net().double()
    with hetero.Trainer(model, nn.CrossEntropyLoss(), adam, data(), global_batch=32, devices=OPEN[ONE]) as trainer:
        with pytest.raises(BadValueError, match="the data of a Trainer were given another value, tuple; make another"):
            trainer.data = data()
        assert len(trainer.data) == 96


def test_other_parameters_for_a_function_that_made_the_optimizer_are_refused() -> None:
    model = net().double()
    with hetero.Trainer(model, nn.CrossEntropyLoss(), adam, data(), global_batch=32, devices=OPEN[ONE]) as trainer:
        trainer.fit(1)
        model[0].requires_grad_(False)
        with pytest.raises(BadValueError, match="other parameters are trained than before"):
            trainer.fit(1)


def test_a_loader_that_drops_the_last_batch_makes_an_epoch_shorter() -> None:
    model = net().double()
    expected = plain(copy.deepcopy(model), tuple(part[:64] for part in data(75)), nn.CrossEntropyLoss())
    pairs = torch.utils.data.TensorDataset(*(torch.from_numpy(part) for part in data(75)))
    loader = torch.utils.data.DataLoader(pairs, 32, drop_last=True)
    trainer = trained(model, TWO, pair=loader, shares="equal")
    assert distance(model, expected) < 1e-12
    assert trainer.step == 6


class Centred(nn.Module):  # type: ignore[misc]
    """Takes the mean over the batch away."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net().double()

    def forward(self, x: Any) -> Any:
        return self.inner(x - x.mean(0))


def test_a_model_that_looks_across_the_batch_trains_on_one_device_and_is_refused_on_two() -> None:
    model = Centred()
    expected = plain(copy.deepcopy(model), data(), nn.CrossEntropyLoss(), epochs=1)
    trained(model, ONE, epochs=1, shuffle=False)
    assert distance(model, expected) < 1e-12
    with pytest.raises(BadValueError, match=r"the result of inner\.0 \(Linear\) depends on which samples"):
        trained(Centred(), TWO, epochs=1)


class Wide(nn.Module):  # type: ignore[misc]
    """Makes a tensor in the precision of the process."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(12, 4)

    def forward(self, x: Any) -> Any:
        return self.inner(x @ (0.1 * torch.ones(12, 12)))


def test_the_precision_that_torch_makes_tensors_in_reaches_the_devices() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        model = Wide()
        expected = plain(copy.deepcopy(model), data(), nn.CrossEntropyLoss(), epochs=1)
        trainer = trained(model, ONE, epochs=1, shuffle=False)
        assert trainer.predict(data()[0][:3]).shape == (3, 4)
    finally:
        torch.set_default_dtype(torch.float32)
    assert distance(model, expected) < 1e-12
    with pytest.raises(BadValueError, match=r"torch\.autocast is on around"), torch.autocast("cpu"):
        trained(net(), ONE)


# --- what is refused -----------------------------------------------------------------------------------------


def test_batch_normalisation_over_several_devices_is_refused_with_the_remedy() -> None:
    model = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4))
    with pytest.raises(BadValueError, match=r"1 \(BatchNorm1d\) takes its statistics .*GroupNorm, put these layers"):
        trained(model.double(), TWO)


def test_batch_normalisation_that_is_frozen_or_on_one_device_trains() -> None:
    model = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4)).double()
    trained(model, ONE, epochs=1)
    model[1].eval()
    mean = model[1].running_mean.clone()
    trained(model, TWO, epochs=1)
    assert torch.equal(model[1].running_mean, mean)


class Draws(nn.Module):  # type: ignore[misc]
    """Draws numbers that cannot be keyed."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner, self.draw = net().double(), draw

    def forward(self, x: Any) -> Any:
        return self.inner(x) + 0 * self.draw(x)


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda x: torch.randint(0, 3, (len(x), 4)), "randint"),
        (lambda x: x.new_zeros(len(x), 4).bernoulli_(0.5), "bernoulli_"),
        (lambda x: nn.functional.dropout(x[:, :4].T, 0.5).T, "dropout draws"),
        (lambda x: torch.rand(()), "rand draws"),
        (lambda x: torch.distributions.Beta(1.0, 1.0).sample((len(x), 1)), "the model draws|_sample_dirichlet"),
    ],
)
def test_a_random_operation_that_cannot_be_keyed_is_refused_by_name(draw: Any, name: str) -> None:
    with pytest.raises(HeteroError, match=name):
        trained(Draws(draw), TWO, epochs=1)


def test_shares_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(BadValueError, match="24 \\+ 9 is 33, and the global batch is 32"):
        trained(net().double(), TWO, shares={"cpu:0": 24, "cpu:1": 9})
    with pytest.raises(BadValueError, match="'cpu:7' is no device of this run; did you mean"):
        trained(net().double(), TWO, shares={"cpu:0": 24, "cpu:7": 8})


def test_a_fleet_without_a_device_that_torch_knows_is_refused() -> None:
    with pytest.raises(NothingFitsError, match="torch can train on none of null:0"):
        trained(net().double(), "1xnull")


def test_a_loss_that_is_not_a_number_names_the_step_and_the_samples() -> None:
    inputs, targets = data()
    inputs[70] = np.nan
    with pytest.raises(HeteroError, match=r"not a number at step 2; samples 70; .*on_nan='skip'"):
        trained(net().double(), TWO, pair=(inputs, targets), shuffle=False)


def test_a_loss_that_is_not_a_number_can_be_skipped() -> None:
    inputs, targets = data()
    inputs[70] = np.nan
    model = net().double()
    expected = plain(copy.deepcopy(model), (inputs[:64], targets[:64]), nn.CrossEntropyLoss(), epochs=1)
    trained(model, TWO, pair=(inputs, targets), shuffle=False, on_nan="skip", epochs=1)
    assert distance(model, expected) < 1e-12


def test_labels_out_of_range_are_the_losss_own_error() -> None:
    inputs, targets = data()
    targets[5] = 9
    with pytest.raises(IndexError, match="out of bounds"):
        trained(net().double(), TWO, pair=(inputs, targets))


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"global_batch": 0}, "global_batch=0 is not allowed"),
        ({"global_batch": 97}, "more than the 96 samples"),
        ({"shares": "eqal"}, "did you mean 'equal'"),
        ({"precision": "fp8"}, "give fp32, bf16, fp16"),
        ({"exact": "yes"}, "give sum, bitwise"),
        ({"cost": [1.0]}, "1 numbers for 96 samples"),
    ],
)
def test_an_option_that_is_wrong_is_told_before_anything_starts(option: dict[str, Any], words: str) -> None:
    with pytest.raises(BadValueError, match=words):
        trained(net(), TWO, **option)


# --- who takes part ------------------------------------------------------------------------------------------


def test_a_useless_device_is_left_out_and_the_run_says_so() -> None:
    trainer = trained(net().double(), "1xcpu,1xcpu*0.01", epochs=2)
    assert trainer.reports[-1].shares == {"cpu:0": 32, "cpu:1": 0}
    assert [note for note in trainer.notes if note.startswith("cpu:1 is left out: ")]


def test_a_callback_that_gives_true_ends_the_training() -> None:
    trainer = trained(net().double(), TWO, epochs=5, callbacks=[lambda report: report.epoch == 2])
    assert [report.epoch for report in trainer.reports] == [1, 2]


def test_half_precision_trains() -> None:
    for precision in ("bf16", "fp16"):
        model = net()
        trainer = trained(model, TWO, pair=data(96, np.float32), precision=precision, epochs=4)
        assert trainer.reports[-1].loss < trainer.reports[0].loss
        assert model[0].weight.dtype == torch.float32


# --- the trained model ---------------------------------------------------------------------------------------


def test_predictions_of_all_devices_come_in_order_and_are_the_models() -> None:
    model = net(0.5)
    inputs, targets = data(700, np.float32)
    with hetero.Trainer(
        model, nn.CrossEntropyLoss(), adam, (inputs, targets), global_batch=32, devices=OPEN[TWO]
    ) as trainer:
        found = trainer.predict(inputs)
        tested = trainer.evaluate((inputs, targets))
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(inputs))
    torch.testing.assert_close(found, expected)
    assert tested.samples == 700
    assert tested.accuracy == pytest.approx(float((expected.argmax(1) == torch.from_numpy(targets)).float().mean()))
    assert tested.loss == pytest.approx(float(nn.CrossEntropyLoss()(expected, torch.from_numpy(targets))), rel=1e-5)
