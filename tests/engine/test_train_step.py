"""What a step of training costs besides its arithmetic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero

torch = pytest.importorskip("torch")
nn = torch.nn


class Counting(torch.optim.SGD):  # type: ignore[misc]
    """An optimizer that writes down how often its process had to ask the system for a page."""

    def __init__(self, parameters: Any, path: Path) -> None:
        super().__init__(parameters, 0.1)
        self.path = path

    def step(self, closure: Any = None) -> Any:
        import resource

        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_minflt}\n")
        return super().step(closure)


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted on Linux")
def test_a_step_has_the_memory_of_the_step_before(tmp_path: Path) -> None:
    path = tmp_path / "faults"
    model = nn.Sequential(nn.Linear(16, 4096), nn.ReLU(), nn.Linear(4096, 4))
    data = np.zeros((2048, 16), dtype="float32"), np.zeros(2048, dtype="int64")
    with hetero.Trainer(
        *(model, nn.CrossEntropyLoss(), lambda p: Counting(p, path), data), global_batch=512, devices="1xcpu"
    ) as trainer:
        trainer.fit(10)
    faults = [int(line) for line in path.read_text(encoding="utf-8").split()]
    a_step = sorted(after - before for before, after in zip(faults[-20:], faults[-19:], strict=False))
    assert a_step[len(a_step) // 2] < 512 * 4096 * 4 / 4096 / 4
