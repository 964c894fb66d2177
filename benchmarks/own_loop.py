"""The user's own loop under `hetero launch`, on a fast and a slow device (3 : 1), beside plain torch on the fast one.

Each contestant is a process of its own that runs the same script: steps of an MLP or of a small transformer, of which
the first ones, in which shares are learned and compared, are not timed. The slow device is throttled, and says so.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, alternate, arguments, ratio

PROGRAM = str(Path(__file__).resolve().parent / "inside" / "own_loop_program.py")
CELLS = {
    "0.05 M, batch 32": ("mlp", 128, 32, 4000),
    "0.67 M, batch 128": ("mlp", 512, 128, 1200),
    "0.67 M, batch 512": ("mlp", 512, 512, 600),
    "transformer 5 M, batch 16": ("transformer", 256, 16, 120),
}
FAST, BOTH = "1xcpu", "1xcpu,1xcpu*0.333"
SUM = 4 / 3


def measured(devices: str, cell: tuple[str, int, int, int], starts_s: dict[str, list[float]]) -> float:
    """Run the script; returns its samples a second, and adds how long it took until its first step was over."""
    script = [PROGRAM, *map(str, cell)]
    words = [sys.executable, *script]
    if devices:
        words = [sys.executable, "-m", "hetero", "launch", "--devices", devices, *script]
    speed, start_s = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    starts_s.setdefault(devices, []).append(float(start_s))
    return float(speed)


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    bench = Bench("own_loop", "a training script under hetero launch, fast : slow = 3 : 1", ("torch",), given.out)
    starts_s: dict[str, list[float]] = {}
    for name, cell in CELLS.items():
        contestants = {
            "plain torch": partial(measured, "", cell, starts_s),
            "hetero launch, one device": partial(measured, FAST, cell, starts_s),
            "hetero launch, both": partial(measured, BOTH, cell, starts_s),
        }
        found = alternate(contestants, 1 if given.quick else 5, warm_up=0)
        for who, samples in found.items():
            bench.measure(f"{name}: {who}", samples, "samples/s")
        plain = found["plain torch"]
        one = found["hetero launch, one device"]
        both = found["hetero launch, both"]
        bench.claim(f"{name}, one device", ratio(one, plain), rival="plain torch", at_least=0.98)
        bench.claim(f"{name}, both devices", ratio(both, plain), rival="plain torch", at_least=0.98)
        bench.claim(f"{name}, both devices", ratio(both, one) / SUM, rival="sum of speeds", at_least=0.9)
    beyond_s = statistics.median(starts_s[BOTH]) - statistics.median(starts_s[""])
    bench.claim("torch imported to first step, both devices", beyond_s, rival="plain torch", unit="s more", at_most=1.5)
    bench.finish()


if __name__ == "__main__":
    main()
