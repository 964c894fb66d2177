"""Ten thousand tasks that do nothing, handed in one by one with the trace on: hetero beside pools, Ray and Dask.

Every contestant has two workers. A sample is the wall time from the first hand-in to the last result.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio
from benchmarks.rivals import dask_client, ray_module
from benchmarks.work import nop


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    tasks, rounds = (500, 1) if given.quick else (10_000, 5)
    bench = Bench("throughput", f"{tasks:,} no-op tasks, trace on", ("ray", "distributed"), given.out)
    with (
        tempfile.TemporaryDirectory() as folder,
        hetero.Context(devices="2xcpu", isolation="thread", trace=f"{folder}/threads.jsonl") as threads,
        hetero.Context(devices="2xcpu", trace=f"{folder}/processes.jsonl") as processes,
        ThreadPoolExecutor(2) as thread_pool,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as process_pool,
        ray_module() as ray,
        dask_client() as client,
    ):
        remote = ray.remote(nop)

        def pool(executor: Any) -> Callable[[], None]:
            def run() -> None:
                for future in [executor.submit(nop) for _ in range(tasks)]:
                    future.result()

            return run

        def run_ray() -> None:
            ray.get([remote.remote() for _ in range(tasks)])

        def run_dask() -> None:
            client.gather([client.submit(nop, pure=False) for _ in range(tasks)])

        times_s = alternate(
            {
                "hetero, thread": pool(threads),
                "ThreadPoolExecutor": pool(thread_pool),
                "hetero, process": pool(processes),
                "ProcessPoolExecutor, spawn": pool(process_pool),
                "Ray": run_ray,
                "Dask distributed": run_dask,
            },
            rounds,
        )
    for name, samples in times_s.items():
        bench.measure(name, samples)
    bench.claim("hetero, thread", ratio(times_s["hetero, thread"], times_s["ThreadPoolExecutor"]),
                rival="ThreadPoolExecutor", at_most=5.0)  # fmt: skip
    bench.claim("hetero, process", ratio(times_s["hetero, process"], times_s["ProcessPoolExecutor, spawn"]),
                rival="ProcessPoolExecutor, spawn", at_most=2.0)  # fmt: skip
    for rival in ("Ray", "Dask distributed"):
        bench.claim("hetero, process", ratio(times_s["hetero, process"], times_s[rival]), rival=rival)
    bench.finish()


if __name__ == "__main__":
    main()
