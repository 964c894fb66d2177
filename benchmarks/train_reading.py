"""Reading that takes as long as computing: how much of it a training step still waits for when it is done ahead.

A dataset whose samples take a while to come, as from a disk or a network (it sleeps). Beside it stands a plain loop
over torch's own DataLoader, in the same run. What is waited for: a step's time less that of one with nothing to read.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import hetero
from benchmarks.common import Bench, alternate, arguments
from benchmarks.train_shares import adam, pictures
from hetero.recipes.mnist import network
from hetero.train import DataOptions

BATCH, SAMPLES = 128, 2048
WAIT_S = 0.00007


class Slow:
    """Pictures that take a while to come."""

    def __init__(self, wait_s: float) -> None:
        self.inputs, self.targets = (torch.from_numpy(part[:SAMPLES]) for part in pictures())
        self.wait_s = wait_s

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if self.wait_s:
            time.sleep(self.wait_s)
        return self.inputs[index], self.targets[index]


def ours(ctx: hetero.Context, data: Any, readers: int, epochs: int) -> float:
    """Return the seconds of a step, once the reader is there."""
    trainer = hetero.Trainer(
        network(),
        nn.CrossEntropyLoss(),
        adam,
        data,
        global_batch=BATCH,
        devices=ctx,
        data_options=DataOptions(readers=readers),
    )
    reports = trainer.fit(epochs)
    return statistics.median(report.seconds for report in reports[epochs // 2 :]) / (SAMPLES // BATCH)


def torchs(data: Any, workers: int, epochs: int) -> float:
    """Return the seconds of a step of a plain loop over torch's DataLoader."""
    model, loss = network(), nn.CrossEntropyLoss()
    optimizer, seconds = adam(model.parameters()), []
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(epochs):
        begin_s = time.perf_counter()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
        seconds.append(time.perf_counter() - begin_s)
    return statistics.median(seconds[epochs // 2 :]) / (SAMPLES // BATCH)


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    rounds, epochs = (1, 4) if given.quick else (3, 20)
    torch.set_num_threads(1)
    bench = Bench("train_reading", "samples that take a while to come", ("torch",), given.out)
    slow = Slow(WAIT_S)
    arrays = tuple(part[:SAMPLES] for part in pictures())
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        times_s = alternate(
            {
                "hetero, arrays: nothing to read": lambda: ours(ctx, arrays, 0, epochs),
                "hetero, read by the device itself": lambda: ours(ctx, slow, 0, epochs),
                "hetero, read ahead": lambda: ours(ctx, slow, 1, epochs),
                "plain loop, DataLoader, no worker": lambda: torchs(slow, 0, epochs),
                "plain loop, DataLoader, one worker": lambda: torchs(slow, 1, epochs),
            },
            rounds,
        )
    for what, seconds in times_s.items():
        bench.measure(f"{what}, a step", seconds)
    middle = {what: statistics.median(seconds) for what, seconds in times_s.items()}
    least_s, itself_s = middle["hetero, arrays: nothing to read"], middle["hetero, read by the device itself"]
    ahead_s = middle["hetero, read ahead"]
    bench.claim("share of the reading that is waited for", (ahead_s - least_s) / (itself_s - least_s), unit="")
    bench.claim("a step, read ahead", ahead_s / middle["plain loop, DataLoader, one worker"], rival="DataLoader")
    bench.note(wait_s_a_sample=WAIT_S, global_batch=BATCH)
    bench.finish()


if __name__ == "__main__":
    main()
