"""A training script that kills its own processes: `kinds of loop`, where, and `rank@step` of each kill.

Under `python` it is an ordinary script: nobody is killed, and it prints what a run with kills is to print.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass

import torch
from torch import nn

import hetero

kinds, where = sys.argv[1:3]
kills = {tuple(map(int, each.split("@"))) for each in sys.argv[3:]}
torch.set_default_dtype(torch.float64)
fleet = hetero.train.init()
torch.manual_seed(0)
norm = nn.BatchNorm1d(32) if "norm" in kinds else nn.Identity()
model = nn.Sequential(nn.Linear(8, 32), norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
other = nn.Linear(8, 3)
others = torch.optim.AdamW(other.parameters(), 1e-2)
data = torch.utils.data.TensorDataset(torch.randn(120, 8), torch.randint(0, 3, (120,)))
loader = torch.utils.data.DataLoader(data, 24, shuffle=True, num_workers=1 if "workers" in kinds else 0)
model, optimizer, loader, scheduler = fleet.prepare(model, optimizer, loader, scheduler)
if "two" in kinds:
    other, others = fleet.prepare(other, others)
step = 0


def reached(place: str) -> None:
    if place == where and (fleet.rank, step) in kills and fleet.world_size > 1:
        os.kill(os.getpid(), signal.SIGKILL)


def train(inputs: torch.Tensor, targets: torch.Tensor) -> float:
    optimizer.zero_grad()
    outputs = model(inputs)
    reached("forward")
    loss = nn.functional.cross_entropy(outputs, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if "two" not in kinds:
        return loss.item()
    others.zero_grad()
    second = nn.functional.cross_entropy(other(inputs) + model(inputs).detach(), targets)
    reached("second")
    second.backward()
    others.step()
    return loss.item() + second.item()


def train_on_some() -> float:
    chosen = torch.randint(0, len(data), (24,))
    inputs, targets = fleet.split(data.tensors[0][chosen], data.tensors[1][chosen])
    return train(inputs, targets)


def train_on_alike() -> float:
    return train(data.tensors[0][:29], data.tensors[1][:29])


@dataclass(frozen=True)
class Given:
    inputs: torch.Tensor
    targets: torch.Tensor


def train_on(given: Given) -> float:
    return train(given.inputs, given.targets)


def evaluate() -> int:
    model.eval()
    with torch.no_grad():
        right = sum(int((model(inputs).argmax(1) == targets).sum()) for inputs, targets in loader)
    reached("evaluation")
    model.train()
    return int(fleet.sum(right))


for _ in range(4):
    if "split" in kinds:
        for _ in range(5):
            step += 1
            loss = fleet.step(train_on_some)
            fleet.print("loss", f"{loss:.10f}")
    else:
        for inputs, targets in loader:
            step += 1
            is_object = "object" in kinds
            loss = fleet.step(train_on, Given(inputs, targets)) if is_object else fleet.step(train, inputs, targets)
            fleet.print("loss", f"{loss:.10f}")
            if "alike" in kinds:
                fleet.print("alike", f"{fleet.step(train_on_alike):.10f}")
    scheduler.step()
    fleet.print("right", fleet.step(evaluate))
for each in (*model.parameters(), *model.buffers(), *other.parameters()):
    fleet.print("sum", f"{float(each.detach().double().sum()):.9f}")
