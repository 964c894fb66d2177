"""Shares 96 and 32 of a global batch of 128 against a plain torch loop on one device, and equal bits for five splits.

The reference is a loop of torch alone. float64: parameters after 200 steps. float32: the summed gradient of each of 200
steps, from equal parameters, with the kernels that the loop has (`layout="channels_first"`). With the layout that each
device chooses, kernels are others than the loop's: there both are held against the same gradient in float64. What DDP
makes of naive unequal shares stands beside it.
"""

from __future__ import annotations

import copy
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import hetero
from benchmarks.common import Bench, arguments
from benchmarks.train_shares import BATCH, pictures
from hetero.recipes.mnist import network
from hetero.train import TrainOptions

SHARES = {"cpu:0": 96, "cpu:1": 32}
SPLITS: tuple[tuple[str, dict[str, int]], ...] = (
    ("1xcpu", {"cpu:0": 128}),
    ("2xcpu", SHARES),
    ("2xcpu", {"cpu:0": 64, "cpu:1": 64}),
    ("3xcpu", {"cpu:0": 8, "cpu:1": 40, "cpu:2": 80}),
    ("4xcpu", {"cpu:0": 56, "cpu:1": 8, "cpu:2": 40, "cpu:3": 24}),
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
    model: Any,
    data: Any,
    devices: str,
    shares: dict[str, int],
    epochs: int,
    optimizer: Any,
    exact: str,
    layout: str = "auto",
) -> Any:
    """Train with hetero."""
    with hetero.Trainer(
        *(model, nn.CrossEntropyLoss(), optimizer, data),
        options=TrainOptions(BATCH, shares=shares, shuffle=False, exact=exact, layout=layout),
        devices=devices,
    ) as trainer:
        trainer.fit(epochs)
    return model


def adam(parameters: Any) -> Any:
    """Make the optimizer of hetero's runs."""
    return torch.optim.Adam(parameters, 1e-3)


def flat(model: Any) -> Any:
    """Return all parameters in a row."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def _records(path: Path) -> int:
    """Count the records of a file; all are of one size."""
    with path.open("rb") as file:
        pickle.load(file)
        return path.stat().st_size // file.tell()


class Errors(NamedTuple):
    """Worst relative errors of the gradients of 200 steps.

    Attributes
    ----------
    ours, naive : against torch's, from the same parameters; hetero's, and those of DDP with unweighted shares
    ours_true, plain_true : against the gradient in float64; hetero's, and torch's own
    """

    ours: float
    naive: float
    ours_true: float
    plain_true: float


def gradient_errors(data: tuple[Any, Any], folder: Path) -> Errors:
    """Compare each recorded gradient with torch's from the same parameters."""
    inputs, targets = (torch.from_numpy(part) for part in data)
    models, loss = (net(), net().double()), nn.CrossEntropyLoss()
    doubles = inputs.double()

    def gradient(begin: int, end: int, true: bool = False) -> Any:
        model = models[true]
        model.zero_grad()
        loss(model((doubles if true else inputs)[begin:end]), targets[begin:end]).backward()
        return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]).double()

    def apart(one: Any, other: Any) -> float:
        return float((one - other).norm() / other.norm())

    found = []
    path = next(folder.iterdir())
    with path.open("rb") as file:
        file.seek(-200 * (path.stat().st_size // _records(path)), 2)  # the probe's steps come first
        for step in range(200):
            parameters, ours = (torch.from_numpy(row) for row in pickle.load(file))
            for model, row in zip(models, (parameters, parameters.double()), strict=True):
                nn.utils.vector_to_parameters(row, model.parameters())
            begin, end = step * BATCH % len(inputs), step * BATCH % len(inputs) + BATCH
            whole, true = gradient(begin, end), gradient(begin, end, true=True)
            naive = (gradient(begin, begin + 96) + gradient(begin + 96, end)) / 2
            ours = ours.double()
            found.append((apart(ours, whole), apart(naive, whole), apart(ours, true), apart(whole, true)))
    return Errors(*map(max, zip(*found, strict=True)))


def recorded(data: Any, epochs: int, layout: str) -> Errors:
    """Train in float32 with a layout, and look at every gradient."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = type("Recorder", (Recorder,), {"folder": folder})
        trained(net(), data, "2xcpu", SHARES, epochs, lambda p: recorder(p, 1e-3), "sum", layout)
        return gradient_errors(data, Path(folder))


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
    found = trained(net().double(), doubles, "2xcpu", SHARES, epochs, adam, "sum")
    error = float((flat(found) - flat(expected)).abs().max() / flat(expected).abs().max())
    bench.measure(f"float64, {steps} steps, parameters", [error], "relative")
    bench.claim(f"float64: parameters after {steps} steps", error, rival="plain torch loop", unit="", at_most=1e-12)

    if not given.quick:
        same, chosen = (recorded(data, epochs, layout) for layout in ("channels_first", "auto"))
        bench.measure("float32, worst gradient of 200", [same.ours], "relative")
        bench.measure("DDP with 96 and 32, unweighted", [same.naive], "relative")
        bench.claim("float32: worst gradient of 200 steps", same.ours, rival="plain torch loop", unit="", at_most=1e-6)
        bench.measure("own layouts against float64", [chosen.ours_true], "relative")
        bench.measure("plain loop against float64", [chosen.plain_true], "relative")
        bench.claim(
            "float32, layouts that devices chose: worst error against float64",
            chosen.ours_true / chosen.plain_true,
            rival="plain torch loop's own",
            unit="×",
            at_most=1.5,
        )

    start = net(0.5)
    few = data[0][: BATCH * 8 - 20], data[1][: BATCH * 8 - 20]
    made = [trained(copy.deepcopy(start), few, *split, 2, adam, "bitwise") for split in SPLITS]
    equal = sum(bool(torch.equal(flat(made[0]), flat(model))) for model in made)
    bench.measure("bitwise: splits with equal bits", [float(equal)], "splits")
    bench.claim("bitwise: splits with equal bits", equal, rival="one worker", unit="of 5", at_least=5)
    bench.finish()


if __name__ == "__main__":
    main()
