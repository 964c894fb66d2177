"""One array of 64 MB handed to eight tasks on two workers: copies counted, wall time beside Ray's shared store.

Each task sums the array and works for 50 ms; two workers need 0.20 s at least. joblib's loops have sixteen calls.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import joblib
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio
from benchmarks.rivals import dask_client, ray_module
from benchmarks.work import calibrate, spin

TASKS = 8


def look(array: np.ndarray, rounds: int) -> float:
    """Touch the array and work."""
    spin(rounds)
    return float(array[::4096].sum())


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    rounds = 1 if given.quick else 7
    steps = calibrate(0.05)
    rivals = ("ray", "distributed", "joblib")
    bench = Bench("shared_array", "64 MB to 8 tasks of 50 ms on 2 process workers", rivals, given.out)
    with (
        hetero.Context(devices="2xcpu", memory_pool_size="1GB") as ctx,
        ray_module() as ray,
        dask_client() as client,
    ):
        remote = ray.remote(look)
        engine = ctx.driver.engine
        copies: list[int] = []

        def fresh() -> np.ndarray:
            return np.random.default_rng(len(copies)).random(8_000_000)

        def run_hetero(array: np.ndarray) -> None:
            before = engine.counters["copies"]
            ctx.gather([ctx.submit(look, array, steps) for _ in range(TASKS)])
            copies.append(engine.counters["copies"] - before)

        def run_hetero_put(array: np.ndarray) -> None:
            kept = ctx.put(array)
            ctx.gather([ctx.submit(look, kept, steps) for _ in range(TASKS)])

        def run_put(array: np.ndarray) -> None:
            reference = ray.put(array)
            ray.get([remote.remote(reference, steps) for _ in range(TASKS)])

        def run_plain(array: np.ndarray) -> None:
            ray.get([remote.remote(array, steps) for _ in range(TASKS)])

        def run_scatter(array: np.ndarray) -> None:
            data = client.scatter(array, broadcast=True, hash=False)
            client.gather([client.submit(look, data, steps, pure=False) for _ in range(TASKS)])

        hetero.tasks.register_joblib(ctx)

        def run_joblib(array: np.ndarray, backend: str) -> None:
            calls = [joblib.delayed(look)(array, steps) for _ in range(2 * TASKS)]
            joblib.Parallel(n_jobs=2, backend=backend)(calls)

        arrays = iter([fresh() for _ in range(7 * (rounds + 1))])
        runs = {
            "hetero, ctx.put": run_hetero_put, "hetero, plain argument": run_hetero,
            "Ray, ray.put": run_put, "Ray, plain argument": run_plain,
            "Dask distributed, scatter": run_scatter,
            "hetero, joblib's loop of 16": partial(run_joblib, backend="hetero"),
            "joblib, loky, loop of 16": partial(run_joblib, backend="loky"),
        }  # fmt: skip
        times_s = alternate({name: partial(lambda run: run(next(arrays)), run) for name, run in runs.items()}, rounds)
    for name, samples in times_s.items():
        bench.measure(name, samples)
    bench.claim("copies of the array into the pool, per run", max(copies), unit="", at_most=1)
    for ours, theirs in (
        ("hetero, ctx.put", "Ray, ray.put"),
        ("hetero, plain argument", "Ray, ray.put"),
        ("hetero, plain argument", "Ray, plain argument"),
    ):
        bench.claim(f"wall time, {ours}", ratio(times_s[ours], times_s[theirs]), rival=theirs, at_most=1.2)
    ours, theirs = "hetero, joblib's loop of 16", "joblib, loky, loop of 16"
    bench.claim(f"wall time, {ours}", ratio(times_s[ours], times_s[theirs]), rival=theirs, at_most=1.1)
    bench.finish()


if __name__ == "__main__":
    main()
