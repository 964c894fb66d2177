"""Two devices 3 : 1 swap their speeds in mid-run: how many steps it takes until the shares are right again.

The devices' speeds are emulated: the model sleeps for every sample, on one device three times as long as on the other,
and the program swaps the two between two steps. The limit is the sum of the speeds that each has alone.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import nn

import hetero
from benchmarks.common import Bench, arguments
from hetero.train import TrainOptions

BATCH = 128
FAST_S, SLOW_S = 0.0005, 0.0015
BEFORE, AFTER = 20, 12


class Paced(nn.Module):  # type: ignore[misc]
    """A small network that sleeps for every sample, as its device and the hour ask."""

    def __init__(self, swapped: Path) -> None:
        super().__init__()
        self.swapped = swapped
        self.inner = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, inputs: Any) -> Any:
        """Sleep, and compute."""
        first = hetero.get_current_device().short == "cpu:0"
        time.sleep(len(inputs) * (FAST_S if first != self.swapped.exists() else SLOW_S))
        return self.inner(inputs)


def run(ctx: hetero.Context, shares: Any, steps: int, swap_after: int) -> list[float]:
    """Train, an epoch a step, and give the seconds of each step."""
    inputs = np.random.default_rng(0).standard_normal((BATCH, 32)).astype("float32")
    targets = np.arange(BATCH) % 4
    with tempfile.TemporaryDirectory() as folder:
        swapped = Path(folder) / "swapped"

        def swap(report: Any) -> None:
            if report.epoch == swap_after:
                swapped.touch()

        trainer = hetero.Trainer(
            *(Paced(swapped), nn.CrossEntropyLoss(), lambda p: torch.optim.SGD(p, 0.01), (inputs, targets)),
            options=TrainOptions(BATCH, shares=shares),
            devices=ctx,
            callbacks=[swap],
        )
        return [report.seconds for report in trainer.fit(steps)]


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    rounds = 1 if given.quick else 9
    torch.set_num_threads(1)
    bench = Bench("train_swap", "speeds that swap in mid-run", ("torch",), given.out)
    found: list[list[float]] = []
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        alone_s = [statistics.median(run(ctx, {f"cpu:{i}": BATCH}, 7, 0)) for i in range(2)]
        for _ in range(rounds):
            found.append(run(ctx, "auto", BEFORE + AFTER, BEFORE))
    limit_s = 1 / sum(1 / each_s for each_s in alone_s)
    shares = [[limit_s / step_s for step_s in steps[BEFORE:]] for steps in found]
    bench.measure("alone, the fast device", [alone_s[0]])
    bench.measure("alone, the slow device", [alone_s[1]])
    bench.measure("both, a step before the swap", [statistics.median(steps[BEFORE // 2 : BEFORE]) for steps in found])
    for number in range(4):
        bench.measure(f"both, step {number + 1} after the swap", [steps[BEFORE + number] for steps in found])
    late = [next((i for i, share in enumerate(row) if share >= 0.9), AFTER) + 1 for row in shares]
    bench.claim("first step at 0.9 of the limit after the swap, median", statistics.median(late), unit="", at_most=3)
    bench.claim("step 3 after the swap", statistics.median(row[2] for row in shares), unit="of the limit", at_least=0.9)
    bench.note(limit_s=limit_s, first_good_steps=late)
    bench.finish()


if __name__ == "__main__":
    main()
