"""Shares 96 and 32 of a global batch of 128 against a plain torch loop on one device, and equal bits for five splits.

The reference is a loop of torch alone. float64: parameters after 200 steps. float32: the summed gradient of each of 200
steps, from equal parameters. What DDP makes of naive unequal shares stands beside it.
"""

from __future__ import annotations

import copy
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import hetero
from benchmarks.common import Bench, arguments
from benchmarks.train_shares import BATCH, pictures
from hetero.train.mnist import network

SHARES = {"cpu:0": 96, "cpu:1": 32}
SPLITS: tuple[tuple[str, dict[str, int]], ...] = (
    ("cpu:1", {"cpu:0": 128}),
    ("cpu:1,cpu:1", SHARES),
    ("cpu:1,cpu:1", {"cpu:0": 64, "cpu:1": 64}),
    ("cpu:1,cpu:1,cpu:1", {"cpu:0": 8, "cpu:1": 40, "cpu:2": 80}),
    ("cpu:1,cpu:1,cpu:1,cpu:1", {"cpu:0": 56, "cpu:1": 8, "cpu:2": 40, "cpu:3": 24}),
)


def net(dropout: float = 0.0) -> Any:
    """Make the tutorials' network, the same every time."""
    torch.manual_seed(0)
    model = network()
    model[9].p = dropout
    return model


def plain(model: Any, data: tuple[Any, Any], steps: int) -> Any:
    """Train in a loop of torch alone, in the order of the data, around and around."""
    inputs, targets = (torch.from_numpy(part) for part in data)
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-3), nn.CrossEntropyLoss()
    for step in range(steps):
        begin = step * BATCH % len(inputs)
        optimizer.zero_grad()
        loss(model(inputs[begin : begin + BATCH]), targets[begin : begin + BATCH]).backward()
        optimizer.step()
    return model


class Recorder(torch.optim.Adam):
    """Adam that writes the parameters and the gradient of each step to a file of its process."""

    folder = ""

    def step(self, closure: Any = None) -> Any:
        """Write, and step."""
        import os

        tensors = [p for group in self.param_groups for p in group["params"]]
        rows = [torch.cat([t.detach().reshape(-1) for t in tensors]), torch.cat([t.grad.reshape(-1) for t in tensors])]
        with open(f"{self.folder}/{os.getpid()}", "ab") as file:
            pickle.dump([row.numpy() for row in rows], file)
        return super().step(closure)


def trained(
    model: Any, data: Any, devices: str, shares: dict[str, int], epochs: int, optimizer: Any, exact: str
) -> Any:
    """Train with hetero."""
    with hetero.Trainer(
        *(model, nn.CrossEntropyLoss(), optimizer, data),
        global_batch=BATCH,
        devices=devices,
        shares=shares,
        shuffle=False,
        exact=exact,
    ) as trainer:
        trainer.fit(epochs)
    return model


def adam(parameters: Any) -> Any:
    """Make the optimizer of hetero's runs."""
    return torch.optim.Adam(parameters, 1e-3)


def flat(model: Any) -> Any:
    """Give all parameters in a row."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def _records(path: Path) -> int:
    """Count the records of a file; all are of one size."""
    with path.open("rb") as file:
        pickle.load(file)
        return path.stat().st_size // file.tell()


def gradient_errors(data: tuple[Any, Any], folder: Path) -> tuple[float, float]:
    """Compare each recorded gradient with torch's from the same parameters; the worst, and DDP's with naive shares."""
    inputs, targets = (torch.from_numpy(part) for part in data)
    model, loss = net(), nn.CrossEntropyLoss()

    def gradient(begin: int, end: int) -> Any:
        model.zero_grad()
        loss(model(inputs[begin:end]), targets[begin:end]).backward()
        return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])

    worst = naive = 0.0
    path = next(folder.iterdir())
    with path.open("rb") as file:
        file.seek(-200 * (path.stat().st_size // _records(path)), 2)  # the probe's steps come first
        for step in range(200):
            parameters, found = (torch.from_numpy(row) for row in pickle.load(file))
            nn.utils.vector_to_parameters(parameters, model.parameters())
            begin = step * BATCH % len(inputs)
            whole = gradient(begin, begin + BATCH)
            parts = gradient(begin, begin + 96), gradient(begin + 96, begin + BATCH)
            worst = max(worst, float((found - whole).norm() / whole.norm()))
            naive = max(naive, float(((parts[0] + parts[1]) / 2 - whole).norm() / whole.norm()))
    return worst, naive


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    torch.set_num_threads(1)
    inputs, targets = pictures()
    epochs, kept = (1, BATCH * 8) if given.quick else (8, BATCH * 25)
    data = inputs[:kept], targets[:kept]
    steps = epochs * kept // BATCH
    bench = Bench("train_exactness", "training is exact", ("torch",), given.out)

    doubles = data[0].astype("float64"), data[1]
    expected = plain(net().double(), doubles, steps)
    found = trained(net().double(), doubles, "cpu:1,cpu:1", SHARES, epochs, adam, "sum")
    error = float((flat(found) - flat(expected)).abs().max() / flat(expected).abs().max())
    bench.measure(f"float64, {steps} steps, parameters", [error], "relative")
    bench.claim(f"float64: parameters after {steps} steps", error, rival="plain torch loop", unit="", at_most=1e-12)

    if not given.quick:
        with tempfile.TemporaryDirectory() as folder:
            recorder = type("Recorder", (Recorder,), {"folder": folder})
            trained(net(), data, "cpu:1,cpu:1", SHARES, epochs, lambda p: recorder(p, 1e-3), "sum")
            worst, naive = gradient_errors(data, Path(folder))
        bench.measure("float32, worst gradient of 200", [worst], "relative")
        bench.measure("DDP with 96 and 32, unweighted", [naive], "relative")
        bench.claim("float32: worst gradient of 200 steps", worst, rival="plain torch loop", unit="", at_most=1e-6)

    start = net(0.5)
    few = data[0][: BATCH * 8 - 20], data[1][: BATCH * 8 - 20]
    made = [trained(copy.deepcopy(start), few, *split, 2, adam, "bitwise") for split in SPLITS]
    equal = sum(bool(torch.equal(flat(made[0]), flat(model))) for model in made)
    bench.measure("bitwise: splits with equal bits", [float(equal)], "splits")
    bench.claim("bitwise: splits with equal bits", equal, rival="one worker", unit="of 5", at_least=5)
    bench.finish()


if __name__ == "__main__":
    main()
