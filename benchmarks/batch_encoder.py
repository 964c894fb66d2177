"""A small random-weight torch encoder over the MNIST images, on devices throttled 4 : 1, against each one alone."""

from __future__ import annotations

import gzip
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments
from hetero.floor import settings

FLEETS = {"quick": "cpu:1", "slow": "cpu:1*0.25", "pair": "cpu:1,cpu:1*0.25"}
SHARES = {"quick": 0.8, "slow": 0.2, "pair": 1.0}
"""How much of the images each contestant encodes, so that all take about as long."""


def digits() -> NDArray[np.float32]:
    """Give the 10,000 test images of MNIST, or random ones where the data is absent."""
    folder = settings.test_data() or Path(__file__).resolve().parents[2] / "shared" / "data"
    path = folder / "mnist" / "t10k-images-idx3-ubyte.gz"
    if not path.exists():
        return np.random.default_rng(0).random((10_000, 1, 28, 28), np.float32)
    pixels = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=16)
    return (pixels.reshape(-1, 1, 28, 28) / np.float32(255)).astype(np.float32)


def encoder() -> Any:
    """Make the model: three convolutions and a layer, random weights."""
    import torch
    from torch import nn

    torch.manual_seed(2026)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 14 * 14, 64),
    )  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    given = arguments(__doc__ or "")
    count, rounds = (400, 1) if given.quick else (10_000, 3)
    images, model = digits()[:count], encoder()
    bench = Bench("batch_encoder", (__doc__ or "").strip(), ("torch",), given.out)
    contexts = {name: hetero.Context(devices=fleet, history=False) for name, fleet in FLEETS.items()}

    def run(name: str) -> float:
        """Give the images a second."""
        part = images[: round(SHARES[name] * count)]
        begin_s = time.perf_counter()
        found = contexts[name].map_batches(model, part).value
        took_s = time.perf_counter() - begin_s
        assert found.shape == (len(part), 64), "every image has its vector"
        return len(part) / took_s

    try:
        rates = alternate({name: lambda name=name: run(name) for name in FLEETS}, rounds, warm_up=2)
    finally:
        for ctx in contexts.values():
            ctx.close()
    for name, found in rates.items():
        bench.measure(f"{name}: {FLEETS[name]}", found, "images/s")
    shares = [
        pair / (quick + slow) for quick, slow, pair in zip(rates["quick"], rates["slow"], rates["pair"], strict=True)
    ]
    bench.claim("speed of the pair over the sum of both alone", statistics.median(shares), at_least=0.95)
    bench.claim(
        "speed of the pair over the quick one alone",
        statistics.median(rates["pair"]) / statistics.median(rates["quick"]),
        rival=FLEETS["quick"],
    )
    bench.note(images=count)
    bench.finish()


if __name__ == "__main__":
    main()
