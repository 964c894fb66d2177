"""The script of benchmarks/own_loop.py and benchmarks/launch_hosts.py: steps of an MLP or of a small transformer.

In: kind of model, its width, the batch, how many steps. Out: a line with the samples a second of the second half, and
the seconds from when torch was imported to the end of the first step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

BEGUN_S = time.perf_counter()

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import hetero  # noqa: E402


def made(kind: str, width: int, batch: int) -> tuple[nn.Module, torch.optim.Optimizer, TensorDataset]:
    """Return a model, its optimizer, and data for 64 batches."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module
    if kind == "mlp":
        model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        inputs = torch.randn(batch * 64, 64)
    else:
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        model = nn.Sequential(nn.Embedding(1000, width), body, nn.Flatten(), nn.Linear(width * 32, 10))
        inputs = torch.randint(0, 1000, (batch * 64, 32))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    return model, optimizer, TensorDataset(inputs, torch.randint(0, 10, (len(inputs),)))


def loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
    steps: int,
    backward: Callable[[torch.Tensor], None] = torch.Tensor.backward,
) -> tuple[float, float]:
    """Train; returns the steps a second of the later half of them, and when the first one was over, s."""
    done, before, begun_s, first_s = 0, steps // 2, 0.0, 0.0
    while done < steps:
        for x, y in loader:
            optimizer.zero_grad()
            backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            done += 1
            if done == 1:
                first_s = time.perf_counter()
            if done == before:
                begun_s = time.perf_counter()
            if done == steps:
                break
    return (steps - before) / (time.perf_counter() - begun_s), first_s


def main(kind: str, width: int, batch: int, steps: int) -> None:
    """Train under `hetero launch` or plain `python`, and print the speed and the start."""
    fleet = hetero.train.init()
    model, optimizer, data = made(kind, width, batch)
    model, optimizer, loader = fleet.prepare(model, optimizer, DataLoader(data, batch, shuffle=True))
    speed, first_s = loop(model, optimizer, loader, steps, lambda loss: loss.backward())
    fleet.print(batch * speed, first_s - BEGUN_S)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
