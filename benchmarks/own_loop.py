"""The user's own loop under `hetero launch`, on a fast and a slow device (3 : 1), beside plain torch on the fast one.

Each contestant is a process of its own that runs the same script: steps of an MLP or of a small transformer, of which
the first ones, in which shares are learned and compared, are not timed. The slow device is throttled, and says so.
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, alternate, arguments, ratio

CELLS = {
    "0.05 M, batch 32": ("mlp", 128, 32, 600),
    "0.67 M, batch 128": ("mlp", 512, 128, 300),
    "0.67 M, batch 512": ("mlp", 512, 512, 200),
    "transformer 5 M, batch 16": ("transformer", 256, 16, 40),
}
FAST, BOTH = "1xcpu", "1xcpu,1xcpu*0.333"
SUM = 4 / 3


def loop(kind: str, width: int, batch: int, steps: int) -> None:
    """Train, and print the samples a second of the later steps; this is the user's script."""
    import torch
    from torch import nn

    import hetero

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


def measured(devices: str, cell: tuple[str, int, int, int]) -> float:
    """Run the script; returns its samples a second."""
    script = [str(Path(__file__).resolve()), "--loop", *map(str, cell)]
    words = [sys.executable, *script]
    if devices:
        words = [sys.executable, "-m", "hetero", "launch", "--devices", devices, *script]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure and print."""
    if "--loop" in sys.argv:
        kind, *numbers = sys.argv[sys.argv.index("--loop") + 1 :]
        loop(kind, *map(int, numbers))
        return
    given = arguments(str(__doc__).splitlines()[0])
    bench = Bench("own_loop", "a training script under hetero launch, fast : slow = 3 : 1", ("torch",), given.out)
    for name, cell in CELLS.items():
        contestants = {
            "plain torch": partial(measured, "", cell),
            "hetero launch, one device": partial(measured, FAST, cell),
            "hetero launch, both": partial(measured, BOTH, cell),
        }
        found = alternate(contestants, 1 if given.quick else 5, warm_up=0)
        for who, samples in found.items():
            bench.measure(f"{name}: {who}", samples, "samples/s")
        plain = found["plain torch"]
        both = ratio(found["hetero launch, both"], plain)
        bench.claim(
            f"{name}, one device", ratio(found["hetero launch, one device"], plain), rival="plain torch", at_least=0.98
        )
        bench.claim(f"{name}, both devices", both, rival="plain torch", at_least=0.98)
        bench.claim(f"{name}, both devices", both / SUM, rival="sum of speeds", at_least=0.9)
    bench.finish()


if __name__ == "__main__":
    main()
