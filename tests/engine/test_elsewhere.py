"""What is to be written to an object store is refused by name, and no folder called `s3:` is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.drive.trace import TraceWriter
from hetero.engines.ray.certificates import make_certificates
from hetero.errors import BadValueError
from hetero.floor import settings
from hetero.floor.files import local_path
from hetero.stores.files import FileStore
from hetero.stores.history import HistoryStore
from tests.flat_options import batch_options, trainer_options

PATIENCE_S = 120.0
ADDRESSES = ("s3://bucket/out", "gs://b/o", "az://b/o", "hdfs://n/o", "memory://o", "abfss:o", "file:///o", "new+x://o")


def batch(where: Any, **options: Any) -> Any:
    return hetero.batch.map_batches(np.sum, np.ones((4, 2)), out=where, devices="cpu:1", **batch_options(**options))


def trained(where: Any, option: str) -> Any:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    data = torch.ones(8, 2), torch.zeros(8, dtype=torch.long)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {option: where, "devices": "cpu:1", "global_batch": 4}
    with hetero.Trainer(model, torch.nn.CrossEntropyLoss(), sgd, data, **trainer_options(**given)) as trainer:
        trainer.fit(1)


WRITERS: dict[str, Callable[[Any], Any]] = {
    "batch": batch,
    "merge": lambda where: batch(where, merge=lambda a, b: a + b),
    "trace": TraceWriter,
    "run": lambda where: hetero.Context(devices="cpu:1", isolation="thread", trace=where),
    "store": FileStore,
    "history": lambda where: HistoryStore(Path(where)),
    "certificates": lambda where: make_certificates(Path(where), ["127.0.0.1"]),
    "sample_log": lambda where: trained(where, "sample_log"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_folder_is_made_for_an_address(writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("s3://bucket/out", Path("gs://bucket/out")):
        with pytest.raises(BadValueError, match=r"(s3|gs)://bucket/out is no path of this host"):
            WRITERS[writer](address)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (Path("gs://bucket/out"), "gs://bucket/out is no path of this host"),
        ("hdfs://n/o", "hdfs://n cannot be opened"),
        ("memory://o", "memory://o is gone when a process ends"),
        ("s3://key:wq7-secret@bucket", "has credentials, and addresses are printed"),
    ],
)
def test_checkpoints_of_training_are_refused_where_no_store_keeps_them(address: Any, words: str) -> None:
    with pytest.raises(BadValueError, match=words) as caught:
        trained(address, "checkpoint")
    assert "wq7-secret" not in str(caught.value)


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_scheme_is_known_also_beside_a_folder(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (address, Path(address), Path("folder") / address, Path("/folder") / address / "deeper"):
        with pytest.raises(BadValueError, match="is no path of this host"):
            local_path(path, "out")
    monkeypatch.setenv("HETERO_HOME", address)
    with pytest.raises(BadValueError, match="HETERO_HOME: "):
        settings.home()


@pytest.mark.parametrize("path", ["out", "/a/b", "a/model:v2", "C:/out", "0000:00:1f.2/x", "~/x", "s3/out", "s3"])
def test_a_path_is_a_path(path: str) -> None:
    assert local_path(path, "out") == Path(path).expanduser()


def test_a_job_that_writes_elsewhere_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("function: numpy:sum\nsource: data.npy\nout: s3://bucket/out\n")
    np.save(tmp_path / "data.npy", np.ones((4, 2)))
    command = [sys.executable, "-m", "hetero", "batch", "job.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, check=False)
    assert done.returncode in (2, 3)
    assert "s3://bucket/out is no path of this host" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npy", "job.yaml"]
