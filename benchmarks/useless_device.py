"""A good device alone, and the same with a useless one beside it: throttled to 0.02, or behind a slow link.

The model is cold: hetero learns during the run. Fleets alternate; ratios are of the medians.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio
from benchmarks.work import calibrate, spin

SLOW_LINK = {"type": "CPU", "cores": 1, "link": {"bandwidth": "2MB/s", "latency": "20ms"}}
GOOD = {"type": "CPU", "cores": 1}
USELESS = {"type": "CPU", "cores": 1, "throttle": 0.02}


def total(array: np.ndarray, steps: int) -> float:
    """Work, and look at the array."""
    spin(steps)
    return float(array.sum())


def run(fleet: list[dict[str, Any]], tasks: int, steps: int, *, data: bool) -> float:
    """Return the seconds of one program on a fleet that is up."""
    import time

    with hetero.Context({"devices": fleet}, history=False) as ctx:
        ctx.gather([ctx.submit(abs, -1) for _ in range(8)])
        arrays = [np.full(131_072, index, dtype=np.float64) for index in range(tasks)]
        begin_s = time.perf_counter()
        if data:
            ctx.gather([ctx.submit(total, array, steps) for array in arrays])
        else:
            ctx.gather([ctx.submit(spin, steps) for _ in range(tasks)])
        return time.perf_counter() - begin_s


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    rounds, steps = (1 if given.quick else 3), calibrate(0.02)
    bench = Bench("useless_device", "never slower than the good device alone", (), given.out)
    for title, other, data in (
        ("throttled to 0.02", USELESS, False),
        ("behind a link of 2 MB/s and 20 ms", SLOW_LINK, True),
    ):
        for tasks in (10, 100):
            alone, beside = f"alone, {tasks} tasks", f"{title}, {tasks} tasks"
            times_s = alternate(
                {
                    alone: partial(run, [GOOD], tasks, steps, data=data),
                    beside: partial(run, [GOOD, other], tasks, steps, data=data),
                },
                rounds,
            )
            bench.measure(f"{alone} ({'1 MB arrays' if data else 'numbers'})", times_s[alone])
            bench.measure(beside, times_s[beside])
            bench.claim(beside, ratio(times_s[beside], times_s[alone]), rival="the good device alone", at_most=1.03)
    bench.finish()


if __name__ == "__main__":
    main()
