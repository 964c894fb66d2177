"""A task that does nothing, there and back: hetero beside the standard pools, Ray and Dask.

Every contestant has two workers, and each round trip is waited for. A sample of the wall clock is the median of a few
hundred. A sample of the processor time is what the program and the contestant's own workers take for as many trips,
divided by them; it is measured before Ray and Dask have started, whose own threads would count.
"""

from __future__ import annotations

import concurrent.futures
import statistics
import sys
import time
from collections.abc import Callable, Sequence
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
from hetero.floor.clock import cpu_seconds, process_cpu_s

GIVEN: dict[str, tuple[Any, ...]] = {"": (), ", a dict": ({"a": [1, 2, 3], "b": "x" * 100},)}
"""What each call is given, by how the rows are named."""


def median_s(trips: int, once: Callable[[], Any]) -> float:
    """Return the median seconds of a round trip."""
    samples = []
    for _ in range(trips):
        begin_s = time.perf_counter()
        once()
        samples.append(time.perf_counter() - begin_s)
    return statistics.median(samples)


def processor_s(trips: int, once: Callable[[], Any], workers: Sequence[int]) -> float:
    """Return the seconds of processor time of a round trip, in this process and in its workers."""

    def taken_s() -> float:
        return cpu_seconds() + sum(map(process_cpu_s, workers))

    begin_s = taken_s()
    for _ in range(trips):
        once()
    return (taken_s() - begin_s) / trips


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    trips, rounds = (50, 1) if given.quick else (400, 9)
    bench = Bench("round_trip", "one no-op task, submitted and waited for", ("ray", "distributed"), given.out)
    compare_processor_time(bench, trips, rounds)
    compare_wall_clock(bench, trips, rounds)
    bench.finish()


def compare_processor_time(bench: Bench, trips: int, rounds: int) -> None:
    """Measure the processor time of a round trip without arguments and with a small dict, beside the standard pools."""
    with (
        hetero.Context(devices="2xcpu", isolation="thread") as threads,
        ThreadPoolExecutor(2) as thread_pool,
        hetero.Context(devices="2xcpu") as processes,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as process_pool,
        threads.executor() as thread_executor,
        processes.executor() as process_executor,
    ):
        concurrent.futures.wait([process_pool.submit(nop) for _ in range(20)])
        processes.gather([processes.submit(nop) for _ in range(20)])
        own = tuple(processes.driver.engine.pids().values())
        submits: dict[str, tuple[Callable[..., Any], Sequence[int]]] = {
            "hetero, thread": (threads.submit, ()),
            "hetero.tasks.Executor, thread": (thread_executor.submit, ()),
            "ThreadPoolExecutor": (thread_pool.submit, ()),
            "hetero, process": (processes.submit, own),
            "hetero.tasks.Executor, process": (process_executor.submit, own),
            "ProcessPoolExecutor, spawn": (process_pool.submit, tuple(process_pool._processes)),
        }
        contestants: dict[str, Callable[[], float]] = {}
        for given, args in GIVEN.items():
            for name, (submit, workers) in submits.items():
                contestants[f"{name}{given}"] = partial(processor_s, trips, partial(_once, submit, args), workers)
        times_s = alternate(contestants, rounds)
    for name, samples in times_s.items():
        bench.measure(f"{name}, processor time", [sample * 1e6 for sample in samples], "µs")
    for given in GIVEN:
        for kind, theirs, at_most in (
            ("thread", "ThreadPoolExecutor", 2.5),
            ("process", "ProcessPoolExecutor, spawn", 1.1),
        ):
            for ours in (f"hetero, {kind}{given}", f"hetero.tasks.Executor, {kind}{given}"):
                found = ratio(times_s[ours], times_s[f"{theirs}{given}"])
                bench.claim(f"{ours}, processor time", found, rival=theirs, at_most=at_most)


def _once(submit: Callable[..., Any], args: tuple[Any, ...]) -> None:
    submit(nop, *args).result()


def compare_wall_clock(bench: Bench, trips: int, rounds: int) -> None:
    """Measure the time of a round trip on the wall, beside the standard pools, Ray and Dask."""
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
        ("hetero, process", "ProcessPoolExecutor, spawn", 2.0),
        ("hetero, process", "Ray", 0.2),
        ("hetero, process", "Dask distributed", 0.1),
    ):
        bench.claim(ours, ratio(times_s[ours], times_s[theirs]), rival=theirs, at_most=at_most)


if __name__ == "__main__":
    main()
