"""A third device throttled to 0.02 beside two good ones: training is not slower than without it.

The model is cold: what the third device costs before it is left out counts. Seconds a step, over whole calls of `fit`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torch import nn

import hetero
from benchmarks.common import Bench, alternate, arguments
from benchmarks.train_shares import BATCH, SAMPLES, adam, pictures
from hetero.recipes.mnist import network


class Contestant:
    """hetero on a Context whose workers are up."""

    def __init__(self, ctx: hetero.Context, epochs: int) -> None:
        self.ctx, self.epochs, self.data, self.left_out = ctx, epochs, pictures(), 0

    def step_s(self) -> float:
        """Train from cold and give the seconds of a step as the epochs after the first had them."""
        trainer = hetero.Trainer(
            network(), nn.CrossEntropyLoss(), adam, self.data, global_batch=BATCH, devices=self.ctx
        )
        reports = trainer.fit(1 + self.epochs)[1:]
        self.left_out += any("cpu:2" in note for note in trainer.notes)
        return sum(report.seconds for report in reports) / (SAMPLES // BATCH * self.epochs)

    def cold_s(self) -> float:
        """Train from cold and give the seconds of the whole call."""
        begin_s = time.perf_counter()
        hetero.Trainer(network(), nn.CrossEntropyLoss(), adam, self.data, global_batch=BATCH, devices=self.ctx).fit(
            1 + self.epochs
        )
        return time.perf_counter() - begin_s


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    rounds, epochs = (1, 1) if given.quick else (9, 2)
    bench = Bench("train_useless", "a useless third device in training", ("torch",), given.out)
    with (
        hetero.Context(devices="2xcpu", history=False) as two,
        hetero.Context(devices="2xcpu,1xcpu*0.02", history=False) as three,
    ):
        good, beside = Contestant(two, epochs), Contestant(three, epochs)
        times_s = alternate(
            {
                "two good devices, a step": good.step_s,
                "and a useless one, a step": beside.step_s,
                "two good devices, the whole call": good.cold_s,
                "and a useless one, the whole call": beside.cold_s,
            },
            rounds,
        )
    for what, seconds in times_s.items():
        bench.measure(what, seconds)

    def against(what: str, rival: str) -> float:
        ratios = sorted(mine / theirs for mine, theirs in zip(times_s[what], times_s[rival], strict=True))
        return ratios[len(ratios) // 2]

    step = against("and a useless one, a step", "two good devices, a step")
    bench.claim("seconds a step", step, rival="the two good devices", at_most=1.03)
    whole = against("and a useless one, the whole call", "two good devices, the whole call")
    bench.claim(f"a call of {SAMPLES // BATCH * (1 + epochs)} steps", whole, rival="the two good devices")
    bench.note(runs=rounds + 1, left_out=beside.left_out)
    bench.finish()


if __name__ == "__main__":
    main()
