"""The memory of a program over 100,000 tasks: what it holds after them beyond what it held before.

The program is this process; the tasks return small values, one in a hundred an array of 1 MB that is dropped.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, arguments


def answer(index: int) -> object:
    """Return a small value, now and then an array."""
    return np.full(131_072, index, dtype=np.float64) if index % 100 == 0 else index


def resident_bytes() -> int:
    """Return the program's resident memory that is its own, shared pages left out."""
    gc.collect()
    info = psutil.Process().memory_full_info()
    return int(info.uss)


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    tasks, step = (2_000, 1_000) if given.quick else (100_000, 1_000)
    bench = Bench("memory_growth", f"memory over {tasks:,} tasks", (), given.out)
    growth: dict[str, float] = {}
    for isolation in ("process", "thread"):
        with hetero.Context(devices="2xcpu", isolation=isolation) as ctx:
            before, samples = 0, []
            for first in range(0, tasks, step):
                for future in [ctx.submit(answer, index) for index in range(first, first + step)]:
                    future.result()
                if first == 2 * step:
                    before = resident_bytes()
                if first >= 2 * step and first % (10 * step) == 0:
                    samples.append(resident_bytes() / 1e6)
            growth[isolation] = (resident_bytes() - before) / 1e6
        bench.measure(f"resident, {isolation}", samples or [0.0], "MB")
    for isolation, grown in growth.items():
        bench.claim(f"growth, {isolation}", grown, unit="MB", at_most=50)
    bench.finish()


if __name__ == "__main__":
    main()
