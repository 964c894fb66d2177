"""`hetero compress` as a user types it, and the file that it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.errors import BadValueError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.servers

from hetero.compression.files import load_parameters  # noqa: E402
from hetero.recipes.mnist import load_digits, network  # noqa: E402
from hetero.recipes.saved_models import (  # noqa: E402
    compress_file,
    infer,
    read_pictures,
)
from hetero.train.saving import save_model  # noqa: E402


def compress(*words: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hetero", "compress", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=cwd, check=False)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the network of the worked example a little, in a plain loop, and save it as `hetero train` does."""
    folder = tmp_path_factory.mktemp("compress")
    torch.manual_seed(0)
    model, (inputs, targets) = network(), map(torch.from_numpy, load_digits().train)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for begin in range(0, 2 * len(inputs), 64):
        ids = torch.arange(begin, begin + 64) % len(inputs)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[ids]), targets[ids]).backward()
        optimizer.step()
    return save_model(model, folder / "model.safetensors", {"hetero.model": "mnist"})


@pytest.fixture(scope="module")
def small(trained: Path) -> dict[str, Any]:
    pytest.importorskip("torchao")  # which loads torch's compiler: here, and not where tests are only collected
    words = ("--prune", "0.25", "--structured", "--quantize", "int8", "--devices", "1xcpu", "--json")
    done = compress(trained.name, *words, cwd=trained.parent)
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_size_speed_and_accuracy_are_told_before_and_after(small: dict[str, Any]) -> None:
    before, after = small["before"], small["after"]
    assert after["size_bytes"] < 0.3 * before["size_bytes"]
    assert after["parameters"] < before["parameters"]
    assert before["accuracy"] > 0.8
    assert 0.1 < after["accuracy"] <= 1
    assert set(before["samples_per_s"]) == set(after["samples_per_s"]) == {"cpu:0"}


def test_the_compressed_file_answers_for_pictures_as_the_compressed_model_does(
    small: dict[str, Any], trained: Path, tmp_path: Path
) -> None:
    path = trained.parent / small["output"]
    assert path.stat().st_size == pytest.approx(small["after"]["size_bytes"], abs=100)
    np.save(tmp_path / "pictures.npy", np.random.default_rng(0).integers(0, 256, (20, 28, 28), np.uint8))
    answers = infer(path, [tmp_path / "pictures.npy"], devices="1xcpu")
    model = network()
    load_parameters(model, path)
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(read_pictures(tmp_path / "pictures.npy"))).argmax(1)
    assert [answer.label for answer in answers] == expected.tolist()


def test_people_get_a_table(trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from hetero.cli.compress import compress as command

    command(trained, prune=0.9, output=tmp_path / "zeros.safetensors", devices="1xcpu")
    said = capsys.readouterr().out
    assert "90% of the weights made zero: the file is smaller, the model no faster" in said
    rows = [line.split("  ")[0].strip() for line in said.splitlines()]
    assert {"size, bytes", "parameters", "accuracy", "cpu:0, samples/s"} <= set(rows)
    assert said.splitlines()[-1] == f"model: {tmp_path / 'zeros.safetensors'}"


def test_a_mistake_is_one_line(trained: Path) -> None:
    done = compress("absent.safetensors", "--prune", "0.5", cwd=trained.parent, code=2)
    assert "absent.safetensors: there is no such file" in done.stderr
    assert done.stderr.count("\n") == 1


def test_files_that_are_no_models_of_ours_are_told(small: dict[str, Any], trained: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("these are only words, and more than eight of them")
    save_model(network(), tmp_path / "foreign", {})
    target = tmp_path / "out"
    for path, said in (
        (tmp_path / "words", "is no whole safetensors file"),
        (tmp_path / "foreign", "does not say which model it is of"),
        (trained.parent / small["output"], "is compressed already"),
    ):
        with pytest.raises(BadValueError, match=said):
            compress_file(path, target, prune=0.5)
    assert not target.exists()
