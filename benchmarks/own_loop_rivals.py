"""The user's own loop on a fast and a slow device (3 : 1): hetero launch beside DDP, Accelerate and Fabric.

The slow process of each contestant is held at a third of a core by a control group of the kernel (cgroup v1, periods of
10 ms), so that nobody's own idea of a slow device counts. The rivals give each process half of a batch, as they do by
default, and exchange by gloo. Needs root and two cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, alternate, arguments, ratio

PROGRAM = str(Path(__file__).resolve().parent / "inside" / "own_loop_rival_program.py")
CELLS = {
    "0.67 M, batch 512": ("mlp", 512, 512, 200),
    "transformer 5 M, batch 16": ("transformer", 256, 16, 60),
}
RIVALS = ("DDP", "Accelerate", "Fabric")
PERIOD_US, QUOTA_US = 10_000, 3_333


@contextmanager
def third_of_a_core() -> Iterator[str]:
    """Yield the folder of a control group that has a third of one core."""
    root = Path("/sys/fs/cgroup/cpu")
    folder = Path(tempfile.mkdtemp(prefix="hetero-bench-", dir=root))
    try:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
        (folder / "cpu.cfs_quota_us").write_text(str(QUOTA_US), encoding="ascii")
        yield str(folder)
    finally:
        folder.rmdir()


def measured(by: str, cell: tuple[str, int, int, int], group: str) -> float:
    """Run the script in two processes, or one where it is plain; returns its samples a second."""
    starters = {
        "plain": [sys.executable],
        "hetero": [sys.executable, "-m", "hetero", "launch", "--devices", "1xcpu,1xcpu"],
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    words = [*starters.get(by, torchrun), PROGRAM, by, *map(str, cell), group]
    ended = subprocess.run(
        words, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return float(ended.stdout.split()[-1])


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    packages = ("torch", "accelerate", "lightning")
    bench = Bench("own_loop_rivals", "a training script on 3 : 1 beside DDP, Accelerate, Fabric", packages, given.out)
    with third_of_a_core() as group:
        for name, cell in CELLS.items():
            if given.quick:
                cell = (*cell[:3], cell[3] // 4)
            contestants = {by: partial(measured, by, cell, group) for by in ("plain", "hetero", *RIVALS)}
            found = alternate(contestants, 1 if given.quick else 3, warm_up=0)
            for by, samples in found.items():
                bench.measure(f"{name}: {by}", samples, "samples/s")
            for rival in RIVALS:
                bench.claim(f"{name}", ratio(found["hetero"], found[rival]), rival=rival, at_least=1.6)
            bench.claim(f"{name}", ratio(found["hetero"], found["plain"]), rival="plain torch", at_least=0.98)
    bench.finish()


if __name__ == "__main__":
    main()
