"""The script of benchmarks/own_loop.py and benchmarks/launch_hosts.py: steps of an MLP or of a small transformer.

In: kind of model, its width, the batch, how many steps. Out: a line with the samples a second of the second half.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

import hetero


def loop(kind: str, width: int, batch: int, steps: int) -> None:
    """Train, and print the samples a second of the later steps."""
    fleet = hetero.train.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if kind == "mlp":
        model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        inputs = torch.randn(batch * 64, 64)
    else:
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        model = nn.Sequential(nn.Embedding(1000, width), body, nn.Flatten(), nn.Linear(width * 32, 10))
        inputs = torch.randint(0, 1000, (batch * 64, 32))
    data = torch.utils.data.TensorDataset(inputs, torch.randint(0, 10, (len(inputs),)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    loader = torch.utils.data.DataLoader(data, batch, shuffle=True)
    model, optimizer, loader = fleet.prepare(model, optimizer, loader)
    done, before, begun_s = 0, steps // 2, 0.0
    while done < steps:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            done += 1
            if done == before:
                begun_s = time.perf_counter()
            if done == steps:
                break
    fleet.print((steps - before) * batch / (time.perf_counter() - begun_s))


if __name__ == "__main__":
    loop(sys.argv[1], *map(int, sys.argv[2:]))
