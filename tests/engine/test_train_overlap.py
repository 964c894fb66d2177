"""Models of several rows train exactly with overlap, converge with compression, and lose nothing to a death."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import hetero
from hetero.errors import BadValueError
from hetero.recipes.training import read_recipe
from hetero.train.values import TrainOptions
from tests.flat_options import trainer_options
from tests.needs import need

torch = pytest.importorskip("torch")
nn = torch.nn

WIDTH = 300


@pytest.fixture(scope="module")
def fleet() -> Iterator[Any]:
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        yield ctx


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def wide() -> Any:
    """Create a model of about 4 MiB in float64, so that its gradients are several rows."""
    torch.manual_seed(0)
    layers = [nn.Linear(12, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(5)), nn.Linear(WIDTH, 4)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())][:-1]).double()


def data(samples: int = 256) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((samples, 12)), rng.integers(0, 4, samples)


def momentum(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def trained(model: Any, devices: Any, epochs: int = 2, **options: Any) -> Any:
    options = {"global_batch": 32, "shuffle": False, "shares": "equal", **options}
    with hetero.Trainer(
        model, nn.CrossEntropyLoss(), momentum, data(), devices=devices, **trainer_options(**options)
    ) as trainer:
        trainer.fit(epochs)
    return trainer


def plain(epochs: int) -> Any:
    """Train in a loop that knows nothing of hetero."""
    model = wide()
    inputs, targets = (torch.from_numpy(part) for part in data())
    optimizer = momentum(model.parameters())
    for _ in range(epochs):
        for begin in range(0, len(inputs), 32):
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(model(inputs[begin : begin + 32]), targets[begin : begin + 32]).backward()
            optimizer.step()
    return model


@pytest.fixture(scope="module")
def expected() -> Any:
    return plain(2)


def distance(one: Any, other: Any) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("options", [{"overlap": "always"}, {"overlap": "always", "accumulate": 3}, {}])
def test_overlap_gives_what_a_plain_loop_gives(fleet: Any, expected: Any, options: dict[str, Any]) -> None:
    model = wide()
    trained(model, fleet, **options)
    assert distance(model, expected) < 1e-12


@pytest.mark.slow
def test_a_worker_that_is_killed_within_an_overlapped_step_changes_nothing() -> None:
    def kill_soon(report: Any) -> None:
        if report.epoch == 1:
            living = [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]
            workers = [c for c in living if "hetero.drive.worker" in " ".join(c.cmdline())]
            threading.Timer(0.05, max(workers, key=lambda child: child.create_time()).kill).start()

    model = wide()
    trainer = trained(model, "2xcpu", 6, overlap="always", callbacks=[kill_soon])
    assert any("is lost" in note for note in trainer.notes)
    assert distance(model, plain(6)) < 1e-12


@pytest.mark.parametrize("kind", ["fp16", "bf16", "powersgd"])
def test_a_compressed_training_learns_the_digits(fleet: Any, kind: str) -> None:
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    inputs, targets = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    with hetero.Trainer(
        model,
        nn.CrossEntropyLoss(),
        momentum,
        (inputs[:1500], targets[:1500]),
        options=TrainOptions(50, shares="equal", compression=kind, compression_rank=2, overlap="always"),
        devices=fleet,
    ) as trainer:
        reports = trainer.fit(4, test=(inputs[1500:], targets[1500:]))
    assert reports[-1].test_accuracy > 0.93


def test_compression_goes_with_loss_scaling(fleet: Any) -> None:
    model = wide().float()
    inputs, targets = data()
    with hetero.Trainer(
        model,
        nn.CrossEntropyLoss(),
        momentum,
        (inputs.astype(np.float32), targets),
        options=TrainOptions(32, precision="fp16", compression="powersgd"),
        devices=fleet,
    ) as trainer:
        reports = trainer.fit(6)
    assert reports[-1].loss < reports[0].loss


@pytest.mark.slow
def test_gradients_are_summed_on_an_opencl_device_of_the_fleet(expected: Any) -> None:
    need("opencl")
    model, reference = wide().float(), copy.deepcopy(expected)
    with hetero.Context(devices=["2xcpu", "1xopencl"], history=False) as ctx:
        inputs, targets = data()
        with hetero.Trainer(
            model,
            nn.CrossEntropyLoss(),
            momentum,
            (inputs.astype(np.float32), targets),
            options=TrainOptions(32, shuffle=False, shares="equal", sum_on="opencl:0"),
            devices=ctx,
        ) as trainer:
            trainer.fit(2)
            assert not [note for note in trainer.notes if "opencl" in note]
    assert distance(model.double(), reference) < 1e-5


def test_a_device_that_is_not_there_cannot_add_up(fleet: Any) -> None:
    with pytest.raises(BadValueError, match=r"sum_on='opencl:7' is no device of this fleet; give one of cpu:0, cpu:1"):
        trained(wide(), fleet, sum_on="opencl:7")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"compression": "fp8"}, "give none, fp16, bf16, powersgd"),
        ({"compression": "bf16", "exact": "bitwise"}, "compression='bf16' rounds what exact='bitwise' keeps"),
        ({"sum_on": "cpu:0", "exact": "bitwise"}, "sum_on='cpu:0' rounds what exact='bitwise' keeps"),
        ({"compression": "powersgd", "compression_rank": 0}, "compression_rank=0 is not allowed"),
        ({"overlap": "yes"}, "give auto, always, never"),
    ],
)
def test_an_option_that_cannot_be_is_told_before_anything_starts(
    fleet: Any, option: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadValueError, match=words):
        trained(wide(), fleet, **option)


def test_a_recipe_says_how_gradients_travel(tmp_path: Path) -> None:
    recipe = tmp_path / "run.yaml"
    recipe.write_text("train: {global_batch: 8, compression: powersgd, compression_rank: 2}\n", encoding="utf-8")
    options = read_recipe(recipe, ["train.overlap=never", "train.sum_on=cpu:0"]).options
    words = {"compression": "powersgd", "compression_rank": 2, "overlap": "never", "sum_on": "cpu:0"}
    assert options == TrainOptions(8, **words)
