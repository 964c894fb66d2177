"""The script of benchmarks/own_loop_rivals.py: the loop of own_loop_program.py by hetero, DDP, Accelerate or Fabric.

In: by what, kind of model, its width, the batch over all processes, how many steps, the control group that holds the
process of rank 1. Out: a line with the samples a second of the second half.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from own_loop_program import loop, made
from torch.utils.data import DataLoader, DistributedSampler


def main(by: str, kind: str, width: int, batch: int, steps: int, group: str) -> None:
    """Train, and print in the first process."""
    rank = int(os.environ.get("RANK", "0"))
    if by == "hetero":
        import hetero

        fleet = hetero.train.init()
        rank = fleet.rank
    if rank == 1 and group:
        Path(group, "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    model, optimizer, data = made(kind, width, batch)
    if by == "hetero":
        model, optimizer, loader = fleet.prepare(model, optimizer, DataLoader(data, batch, shuffle=True))
        fleet.print(batch * loop(model, optimizer, loader, steps, lambda loss: loss.backward())[0])
        return
    if by == "plain":
        print(batch * loop(model, optimizer, DataLoader(data, batch, shuffle=True), steps)[0])
        return
    if by == "DDP":
        torch.distributed.init_process_group("gloo")
        own = DataLoader(data, batch // 2, sampler=DistributedSampler(data))
        speed, _ = loop(torch.nn.parallel.DistributedDataParallel(model), optimizer, own, steps)
    elif by == "Accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        prepared = accelerator.prepare(model, optimizer, DataLoader(data, batch // 2, shuffle=True))
        speed, _ = loop(*prepared, steps, accelerator.backward)
    else:
        from lightning.fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
        fabric.launch()
        model, optimizer = fabric.setup(model, optimizer)
        own = fabric.setup_dataloaders(DataLoader(data, batch // 2, shuffle=True))
        speed, _ = loop(model, optimizer, own, steps, fabric.backward)
    if rank == 0:
        print(batch * speed)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]), sys.argv[6])
