"""`hetero batch`: jobs in files, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.needs import PROJECT

HETERO = Path(sys.executable).parent / "hetero"
EXAMPLE = PROJECT / "examples" / "embed_folder.yaml"


def hetero(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(HETERO), "batch", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_the_example_embeds_the_files_of_the_examples_and_resumes(tmp_path: Path) -> None:
    done = hetero(str(EXAMPLE), "--devices", "cpu:1,cpu:1*0.5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "records" in done.stdout
    vectors = np.concatenate([np.load(path) for path in sorted((tmp_path / "embedded").glob("part-*.npy"))])
    assert len(vectors) > 10
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    refused = hetero(str(EXAMPLE), "--devices", "cpu:1", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    again = hetero(str(EXAMPLE), "--devices", "cpu:1", "--resume", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["resumed"] == len(vectors)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("source: a.npy\n", 3, "function is absent"),
        ("function: none.py:f\nsource: a.npy\n", 3, "there is no such file"),
        ("function: json:dumpss\nsource: a.npy\n", 3, "json has no 'dumpss'"),
        ("function: json:dumps\nsource: a.npy\n", 2, "a.npy cannot be read"),
        ("function: json:dumps\nsource: [1]\nbatch: 0\n", 2, "batch=0 is not allowed"),
        ("function: json:dumps\nsource: [1]\nbacth: 1\n", 3, "bacth"),
    ],
)
def test_a_wrong_job_is_told_in_one_line(text: str, code: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    done = hetero("job.yaml", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
