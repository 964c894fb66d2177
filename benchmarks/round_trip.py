"""A task that does nothing, there and back: hetero beside the standard pools, Ray and Dask.

Every contestant has two workers. A sample is the median of a few hundred round trips, each waited for.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio
from benchmarks.rivals import dask_client, ray_module
from benchmarks.work import nop


def median_s(trips: int, once: Callable[[], Any]) -> float:
    """Give the median seconds of a round trip."""
    samples = []
    for _ in range(trips):
        begin_s = time.perf_counter()
        once()
        samples.append(time.perf_counter() - begin_s)
    return statistics.median(samples)


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    trips, rounds = (50, 1) if given.quick else (400, 9)
    bench = Bench("round_trip", "one no-op task, submitted and waited for", ("ray", "distributed"), given.out)
    with (
        hetero.Context(devices="2xcpu", isolation="thread") as threads,
        hetero.Context(devices="2xcpu") as processes,
        ThreadPoolExecutor(2) as thread_pool,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as process_pool,
        ray_module() as ray,
        dask_client() as client,
    ):
        remote = ray.remote(nop)
        contestants: dict[str, Callable[[], Any]] = {
            "hetero, thread": lambda: threads.submit(nop).result(),
            "ThreadPoolExecutor": lambda: thread_pool.submit(nop).result(),
            "hetero, process": lambda: processes.submit(nop).result(),
            "ProcessPoolExecutor, spawn": lambda: process_pool.submit(nop).result(),
            "Ray": lambda: ray.get(remote.remote()),
            "Dask distributed": lambda: client.submit(nop, pure=False).result(),
        }
        times_s = alternate({name: partial(median_s, trips, once) for name, once in contestants.items()}, rounds)
    for name, samples in times_s.items():
        bench.measure(name, [sample * 1e6 for sample in samples], "µs")
    for ours, theirs, at_most in (
        ("hetero, thread", "ThreadPoolExecutor", 2.0),
        ("hetero, process", "ProcessPoolExecutor, spawn", 2.0),
        ("hetero, process", "Ray", 0.2),
        ("hetero, process", "Dask distributed", 0.1),
    ):
        bench.claim(ours, ratio(times_s[ours], times_s[theirs]), rival=theirs, at_most=at_most)
    bench.finish()


if __name__ == "__main__":
    main()
