"""A small random-weight torch encoder over the MNIST images, on devices throttled 4 : 1, against each one alone.

What two processes on one machine can reach of the sum of both alone is less than all of it: they share caches, memory
and clock. So plain processes, one a device, encode the same images without hetero, alone and side by side; the share
that they keep is the bound that stands beside the figure.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments
from hetero.floor import settings

FLEETS = {"quick": "1xcpu", "slow": "1xcpu*0.25", "pair": "1xcpu,1xcpu*0.25"}
FRACS = {"quick": 1.0, "slow": 0.25}
SHARES = {"quick": 0.8, "slow": 0.2, "pair": 1.0}
"""How much of the images each contestant encodes, so that all take about as long."""


def digits() -> NDArray[np.float32]:
    """Return the 10,000 test images of MNIST, or random ones where the data is absent."""
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


def encode(frac: float, size: int, core: int) -> None:
    """Be a plain process: encode batches for as long as each line of standard input says, and print the rate."""
    import torch

    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})
    torch.set_num_threads(1)
    images, model, at = torch.as_tensor(digits()), encoder().eval(), 0
    for line in sys.stdin:
        begin_s, done = time.perf_counter(), 0
        with torch.inference_mode():
            while time.perf_counter() - begin_s < float(line):
                used_s = time.thread_time()
                at = at + size if at + 2 * size <= len(images) else 0
                model(images[at : at + size]).numpy()
                time.sleep((1.0 / frac - 1.0) * (time.thread_time() - used_s))
                done += size
        print(done / (time.perf_counter() - begin_s), flush=True)


class Plain:
    """Plain processes that encode when they are asked to.

    Parameters
    ----------
    sizes : of batches, by contestant
    seconds : s, that each of their runs takes
    """

    def __init__(self, sizes: dict[str, int], seconds: float) -> None:
        self.seconds = seconds
        self._processes = {}
        for core, (name, size) in enumerate(sizes.items()):
            command = [sys.executable, __file__, "--encode", str(FRACS[name]), str(size), str(core)]
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )

    def rate(self, *names: str) -> float:
        """Return the images a second of some of them side by side, the others idle."""
        for name in names:
            print(self.seconds, file=self._processes[name].stdin)
        answers = [self._processes[name].stdout for name in names]
        return sum(float(answer.readline()) for answer in answers if answer is not None)

    def close(self) -> None:
        """End them."""
        for process in self._processes.values():
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(60)


@contextlib.contextmanager
def plain_processes(sizes: dict[str, int], seconds: float) -> Iterator[Plain]:
    """Start plain processes and warm them up."""
    plain = Plain(sizes, seconds)
    try:
        for name in sizes:
            plain.rate(name)
        yield plain
    finally:
        plain.close()


def main() -> None:
    """Run the benchmark."""
    title = str(__doc__).splitlines()[0]
    given = arguments(title)
    count, rounds = (400, 1) if given.quick else (10_000, 5)
    images, model = digits()[:count], encoder()
    bench = Bench("batch_encoder", title, ("torch",), given.out)
    contexts = {name: hetero.Context(devices=fleet, history=False) for name, fleet in FLEETS.items()}

    def run(name: str) -> float:
        """Return the images a second."""
        part = images[: round(SHARES[name] * count)]
        begin_s = time.perf_counter()
        found = contexts[name].map_batches(model, part).value
        took_s = time.perf_counter() - begin_s
        assert found.shape == (len(part), 64), "every image has its vector"
        return len(part) / took_s

    try:
        sizes = {name: max(1, *contexts[name].map_batches(model, images).sizes.values()) for name in FRACS}
        with plain_processes(sizes, count / 10_000) as plain:
            contestants = {name: partial(run, name) for name in FLEETS}
            contestants |= {f"plain {name}": partial(plain.rate, name) for name in FRACS}
            contestants["plain pair"] = partial(plain.rate, *FRACS)
            rates = alternate(contestants, rounds, warm_up=2)
    finally:
        for ctx in contexts.values():
            ctx.close()
    for name, found in rates.items():
        bench.measure(f"{name}: {FLEETS[name.removeprefix('plain ')]}", found, "images/s")
    share, bound = (
        statistics.median(
            pair / (quick + slow)
            for quick, slow, pair in zip(*(rates[f"{word}{name}"] for name in ("quick", "slow", "pair")), strict=True)
        )
        for word in ("", "plain ")
    )
    bench.claim("speed of the pair over the sum of both alone", share, at_least=0.95)
    bench.claim("plain processes side by side over the sum of both alone", bound, rival="what the machine allows")
    bench.claim("share of the sum, over that of plain processes", share / bound, rival="plain processes")
    bench.claim(
        "speed of the pair over the quick one alone",
        statistics.median(rates["pair"]) / statistics.median(rates["quick"]),
        rival=FLEETS["quick"],
    )
    bench.note(batch_sizes=sizes)
    bench.note(images=count)
    bench.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--encode"]:
        encode(float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
