"""`hetero train` and `hetero infer` as a user types them."""

from __future__ import annotations

import gzip
import json
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hetero.errors import BadValueError, ConfigError, HeteroError
from hetero.recipes.mnist import load_digits, load_mnist, network, read_idx
from hetero.recipes.run import Watcher, carry_out
from hetero.recipes.training import read_recipe
from tests.needs import PROJECT, data_folder

torch = pytest.importorskip("torch")

RECIPE = PROJECT / "examples" / "mnist.yaml"


def hetero(*words: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hetero", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=cwd, check=False)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Train on the real files for two epochs; the document that the command printed, and where."""
    folder = tmp_path_factory.mktemp("train")
    found = hetero(
        *("train", str(RECIPE), "--devices", "1xcpu,1xcpu*0.5", "--json"),
        *("--set", f"data.path={data_folder() / 'mnist'}", "--set", "train.epochs=2"),
        cwd=folder,
    )
    return json.loads(found.stdout), folder


def test_training_prints_one_document_with_the_figures(run: tuple[dict[str, Any], Path]) -> None:
    document, folder = run
    assert {"test_accuracy", "epochs", "shares", "efficiency", "samples_per_s", "model"} <= set(document)
    assert document["epochs"] == len(document["history"]) == 2
    assert sum(document["shares"].values()) == 128
    assert set(document["shares"]) == {"cpu:0", "cpu:1"}
    assert document["test_accuracy"] > 0.9
    for file in ("model", "metrics", "trace"):
        assert (folder / document[file]).is_file()
    assert json.loads((folder / document["metrics"]).read_text())["epochs"] == 2


def test_the_saved_model_tells_the_digits_of_pictures(run: tuple[dict[str, Any], Path]) -> None:
    document, folder = run
    pictures = read_idx(data_folder() / "mnist" / "t10k-images-idx3-ubyte.gz")[8000:8040]
    labels = read_idx(data_folder() / "mnist" / "t10k-labels-idx1-ubyte.gz")[8000:8040]
    np.save(folder / "pictures.npy", pictures)
    found = hetero("infer", document["model"], "pictures.npy", "--devices", "1xcpu", "--json", cwd=folder)
    answers = json.loads(found.stdout)["answers"]
    assert [answer["image"] for answer in answers] == [f"pictures.npy[{index}]" for index in range(40)]
    assert sum(answer["label"] == label for answer, label in zip(answers, labels, strict=True)) >= 35


def test_without_data_the_five_steps_go_through_on_scikit_learns_digits(tmp_path: Path) -> None:
    found = hetero("train", str(RECIPE), "--devices", "1xcpu", "--set", "train.epochs=1", cwd=tmp_path)
    steps = [line for line in found.stdout.splitlines() if line[1:3] == "/5"]
    titles = ["initialise the compute resources", "assign tasks", "execute", "collect results", "save the model"]
    assert steps == [f"{number}/5 {title}" for number, title in enumerate(titles, 1)]
    assert "    epoch 1: loss " in found.stdout
    assert "\x1b" not in found.stdout
    assert (tmp_path / "mnist-run" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ("train.epoch=3", 3, "train.epoch: there is no such key; did you mean 'epochs'?"),
        ("train.optimizer=adm", 3, "train.optimizer: 'adm' is not allowed; did you mean 'adam'?"),
        ("train.epochs=0", 3, "give a whole number, 1 or more"),
        ("data.path=nowhere", 2, "data.path: nowhere is no folder"),
        ("data.download=true", 3, "give data.path"),
        ("train.shares={cpu:0: 100}", 2, "100 is 100, and the global batch is 128"),
        ("model=resnet", 2, "model: 'resnet' is not known"),
        ("devces=1xcpu", 3, "did you mean 'devices'?"),
        ("train.clip_norm=-1", 3, "train.clip_norm=-1 is not allowed; give a number above 0"),
        ("train.schedule=cosine", 3, "train.schedule='cosine' is not allowed; give a function, a dict"),
        ("train.schedule={CosinLR: {}}", 2, "schedule='CosinLR' is no scheduler of torch's"),
    ],
)
def test_a_mistake_in_a_recipe_is_one_line(setting: str, code: int, words: str, tmp_path: Path) -> None:
    found = hetero("train", str(RECIPE), "--devices", "1xcpu", "--set", setting, cwd=tmp_path, code=code)
    assert words in found.stderr
    assert found.stderr.startswith("hetero: ")
    assert found.stderr.count("\n") == 1


def test_a_recipe_clips_schedules_and_averages_as_the_options_of_the_same_names(tmp_path: Path) -> None:
    given = {"clip_norm": 1.0, "schedule": {"OneCycleLR": {"max_lr": 0.01, "total_steps": 24}}, "ema_decay": 0.9}
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    recipe["train"] |= {**given, "epochs": 2}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    settings = ["train.epochs=2", *(f"train.{key}={json.dumps(value)}" for key, value in given.items())]
    laid = read_recipe(RECIPE, settings)
    assert laid.options == read_recipe(tmp_path / "run.yaml").options
    assert {key: getattr(laid.options, key) for key in given} == given
    outcome = carry_out(replace(laid, output=tmp_path / "out"), Watcher(), devices="1xcpu")
    assert outcome.tested.accuracy > 0.5
    assert outcome.tested.loss != outcome.reports[-1].test_loss  # the averages are tested and saved
    from hetero.train import Trainer, load_parameters

    model, digits = network(), load_digits()
    load_parameters(model, outcome.model)
    sgd = torch.optim.SGD(model.parameters())
    with Trainer(model, torch.nn.CrossEntropyLoss(), sgd, digits.train, global_batch=8, devices="1xcpu") as trainer:
        assert trainer.evaluate(digits.test).loss == pytest.approx(outcome.tested.loss, rel=1e-5)


@pytest.mark.parametrize(
    ("callbacks", "words"),
    [
        ("early", "train.callbacks: 'early' is not allowed; give a mapping of names"),
        ("{early_stoping: {}}", "did you mean 'early_stopping'?"),
        ("{early_stopping: {patients: 2}}", "patients: there is no such key; did you mean 'patience'?"),
        ("{early_stopping: {patience: 0}}", "train.callbacks.early_stopping.patience=0 is not allowed"),
        ("{early_stopping: 3}", "train.callbacks.early_stopping: 3 is not a mapping"),
        ("{tensorboard: {}}", "train.callbacks.tensorboard: missing a required argument: 'folder'"),
    ],
)
def test_a_mistake_in_the_callbacks_of_a_recipe_is_told_with_its_place(callbacks: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as told:
        read_recipe(RECIPE, [f"train.callbacks={callbacks}"])
    assert "train.callbacks" in str(told.value)


def test_a_recipe_stops_early_and_saves_the_best_weights(tmp_path: Path) -> None:
    callbacks = {
        "early_stopping": {"monitor": "test_loss", "patience": 1, "min_delta": 100.0},
        "best_weights": {"monitor": "test_loss", "mode": "max"},
    }
    recipe = read_recipe(RECIPE, ["train.epochs=6", f"train.callbacks={json.dumps(callbacks)}"])
    outcome = carry_out(replace(recipe, output=tmp_path / "out"), Watcher(), devices="1xcpu")
    assert len(outcome.reports) == 2  # nothing is better by 100
    losses = [report.test_loss for report in outcome.reports]
    assert losses[0] != losses[1]
    assert outcome.tested.loss == pytest.approx(max(losses), rel=1e-6)


def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"\x10\0\0\0")
    found = hetero("infer", "broken.safetensors", "x.png", cwd=tmp_path, code=2)
    assert "broken.safetensors is no whole safetensors file" in found.stderr


def test_the_mnist_files_that_people_have_load(tmp_path: Path) -> None:
    digits = load_mnist(data_folder() / "mnist")
    assert (len(digits.train[0]), len(digits.test[0])) == (8000, 2000)
    assert digits.train[0].shape[1:] == (1, 28, 28)
    pictures, labels = (
        read_idx(data_folder() / "mnist" / f"t10k-{part}-ubyte.gz") for part in ("images-idx3", "labels-idx1")
    )
    for which, count in (("train", 60), ("t10k", 10)):
        write_idx(tmp_path / f"{which}-images-idx3-ubyte", pictures[:count])
        write_idx(tmp_path / f"{which}-labels-idx1-ubyte", labels[:count])
    own = load_mnist(tmp_path)
    assert (len(own.train[0]), len(own.test[0])) == (60, 10)
    np.testing.assert_array_equal(own.train[0], digits.train[0][:60])


def write_idx(path: Path, array: np.ndarray) -> None:
    path.write_bytes(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


@pytest.mark.parametrize("length", [0, 3, 4, 12, 100, -1])
def test_a_truncated_idx_file_is_told(length: int, tmp_path: Path) -> None:
    write_idx(tmp_path / "images", np.zeros((3, 28, 28), np.uint8))
    content = (tmp_path / "images").read_bytes()[:length]
    (tmp_path / "images").write_bytes(content)
    with pytest.raises(BadValueError, match="images"):
        read_idx(tmp_path / "images")
    (tmp_path / "images.gz").write_bytes(gzip.compress(content * 9)[:-10])
    with pytest.raises(BadValueError, match=r"images\.gz"):
        read_idx(tmp_path / "images.gz")


def test_labels_that_are_no_digits_are_told(tmp_path: Path) -> None:
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((3, 28, 28), np.uint8))
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.array([1, 2, 10], np.uint8))
    with pytest.raises(HeteroError, match="has the label 10; labels go from 0 to 9"):
        load_mnist(tmp_path)


def test_the_digits_are_enlarged_to_the_size_of_mnist() -> None:
    digits = load_digits()
    assert digits.train[0].shape == (1438, 1, 28, 28)
    assert digits.test[0].dtype == np.float32
