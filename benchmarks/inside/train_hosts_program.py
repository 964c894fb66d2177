"""What benchmarks/train_hosts.py runs on the head: one model trained over both hosts, again and again.

In: how many times, a folder. Out: a line with the log of samples before each time, and one of JSON after it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import nn

import hetero
from benchmarks.train_deaths import has_torch
from benchmarks.train_shares import BATCH, adam, pictures
from hetero.recipes.mnist import network
from hetero.train import DataOptions, TrainOptions


def trained(ctx: hetero.Context, log: Path) -> list[Any]:
    """Train for an epoch and give the parameters."""
    torch.manual_seed(0)
    options = TrainOptions(BATCH, exact="bitwise", shares="equal")
    trainer = hetero.Trainer(
        network(),
        nn.CrossEntropyLoss(),
        adam,
        pictures(),
        options=options,
        data_options=DataOptions(sample_log=log),
        devices=ctx,
    )
    trainer.fit(1)
    return [parameter.detach() for parameter in trainer.model.parameters()]


def wait_for_hosts(ctx: hetero.Context) -> None:
    """Wait until the workers of both hosts have torch."""
    for device in ctx.devices:
        ctx.submit(hetero.task(has_torch, on=(device.id,))).result()


def judged(log: Path, bits: list[Any], undisturbed: list[Any]) -> dict[str, Any]:
    """Return when the first step of the second group was applied, and what is wrong."""
    after = [step.applied_s for step in hetero.train.read_sample_log(log) if step.generation > 1]
    same = all(torch.equal(one, other) for one, other in zip(bits, undisturbed, strict=True))
    return {
        "applied_s": min(after, default=0.0),
        "other_bits": not same,
        "samples_wrong": hetero.train.check_sample_log(log).epochs != 1,
    }


def main() -> None:
    """Train undisturbed, then as often as was asked."""
    times, folder = int(sys.argv[1]), Path(sys.argv[2])
    with hetero.Context(engine="ray", address="auto", history=False) as ctx:
        wait_for_hosts(ctx)
        undisturbed = trained(ctx, folder / "undisturbed")
        for number in range(times):
            wait_for_hosts(ctx)
            log = folder / f"log-{number}"
            log.mkdir()
            print(f"log {log}", flush=True)
            bits = trained(ctx, log)
            print(json.dumps(judged(log, bits, undisturbed)), flush=True)


if __name__ == "__main__":
    main()
