"""`hetero batch`: jobs in files, from the command line."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.needs import PROJECT, data_folder

HETERO = Path(sys.executable).parent / "hetero"
EXAMPLE = PROJECT / "examples" / "embed_folder.yaml"


def hetero(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(HETERO), "batch", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.slow
def test_the_example_embeds_the_files_of_the_examples_and_resumes(tmp_path: Path) -> None:
    done = hetero(str(EXAMPLE), "--devices", "1xcpu,1xcpu*0.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "records" in done.stdout
    vectors = np.concatenate([np.load(path) for path in sorted((tmp_path / "embedded").glob("part-*.npy"))])
    assert len(vectors) > 10
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    refused = hetero(str(EXAMPLE), "--devices", "1xcpu", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    again = hetero(str(EXAMPLE), "--devices", "1xcpu", "--resume", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["resumed"] == len(vectors)


def digits_as_pictures(folder: Path, count: int) -> None:
    from PIL import Image

    folder.mkdir()
    pixels = gzip.decompress((data_folder() / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    for number, digit in enumerate(np.frombuffer(pixels, np.uint8)[: count * 784].reshape(count, 28, 28)):
        Image.fromarray(digit).save(folder / f"{number:04}.png")


@pytest.mark.servers
@pytest.mark.slow
def test_the_example_embeds_pictures_of_digits_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    digits_as_pictures(tmp_path / "digits", 200)
    job = (
        str(EXAMPLE),
        "--devices",
        "1xcpu,1xcpu*0.25",
        "--set",
        f"source.files={tmp_path}/digits",
        "--set",
        "part=10",
    )
    assert hetero(*job, "--output", "calm", cwd=tmp_path).returncode == 0
    slowly = ("--set", "batch=2", "--set", "share=0.004")
    killed = subprocess.Popen(
        [str(HETERO), "batch", *job, *slowly, "--output", "killed"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until_s = time.monotonic() + 90.0
    while not list((tmp_path / "killed").glob("_unfinished/part-*.json")) and time.monotonic() < until_s:
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(60)
    again = hetero(*job, "--output", "killed", "--resume", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["resumed"] >= 10, again.stderr
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("calm", "killed")]
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("source: a.npy\n", 3, "function is absent"),
        ("function: none.py:f\nsource: a.npy\n", 3, "there is no such file"),
        ("function: json:dumpss\nsource: a.npy\n", 3, "json has no 'dumpss'"),
        ("function: json:dumps\nsource: a.npy\n", 2, "a.npy cannot be read"),
        ("function: json:dumps\nsource: [1]\nbatch: 0\n", 2, "batch=0 is not allowed"),
        ("function: json:dumps\nsource: [1]\nbacth: 1\n", 3, "bacth"),
        ("function: json:dumps\nsource: {files: nowhere}\n", 3, "there is no file or folder nowhere"),
        ("function: json:dumps\nsource: {files: ., images: .}\n", 3, "source names images and files"),
        ("function: json:dumps\nsource: {images: ., sise: 3}\n", 3, "source.sise is not known; did you mean 'size'"),
        ("function: json:dumps\nsource: {images: ., size: 3}\n", 3, "holds no file of"),
        ("function: json:dumps\nsource: {files: .}\nform: parket\nout: o\n", 2, "did you mean 'parquet'"),
    ],
)
def test_a_wrong_job_is_told_in_one_line(text: str, code: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    done = hetero("job.yaml", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
