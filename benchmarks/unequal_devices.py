"""400 CPU-bound tasks of 20 ms on two devices, one of them throttled to a quarter: share of the sum of speeds.

Each device's speed is measured alone, before and after, in the same run. Ray and Dask get workers that are
slowed down in the same way.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, arguments
from benchmarks.rivals import dask_client, ray_module
from benchmarks.work import calibrate, spin, throttled

SHARE = 0.25


def speed(spec: str, tasks: int, steps: int) -> float:
    """Return the tasks a second of one device alone."""
    with hetero.Context(devices=spec, history=False) as ctx:
        ctx.run(spin, steps)
        begin_s = time.perf_counter()
        ctx.gather([ctx.submit(spin, steps) for _ in range(tasks)])
        return tasks / (time.perf_counter() - begin_s)


def both(tasks: int, steps: int, *, known: bool) -> float:
    """Return the tasks a second of both devices together."""
    with hetero.Context(devices=f"1xcpu,1xcpu*{SHARE}", history=known) as ctx:
        ctx.gather([ctx.submit(abs, -1) for _ in range(4)])
        begin_s = time.perf_counter()
        ctx.gather([ctx.submit(spin, steps) for _ in range(tasks)])
        return tasks / (time.perf_counter() - begin_s)


def with_ray(tasks: int, steps: int) -> float:
    """Return the tasks a second of an actor pool with one slow actor."""
    with ray_module() as ray:

        class Worker:
            def __init__(self, share: float) -> None:
                self.share = share

            def work(self, steps: int) -> Any:
                return throttled(spin, self.share, steps)

        actor = ray.remote(Worker)
        from ray.util import ActorPool

        workers = [actor.remote(1.0), actor.remote(SHARE)]
        ray.get([worker.work.remote(10) for worker in workers])
        pool = ActorPool(workers)
        begin_s = time.perf_counter()
        list(pool.map_unordered(lambda worker, n: worker.work.remote(n), [steps] * tasks))
        return tasks / (time.perf_counter() - begin_s)


def on_dask_worker(slow: str, steps: int) -> Any:
    """Work at this worker's speed."""
    from distributed import get_worker

    return throttled(spin, SHARE if get_worker().address == slow else 1.0, steps)


def with_dask(tasks: int, steps: int) -> float:
    """Return the tasks a second of a cluster with one slow worker."""
    with dask_client() as client:
        slow = sorted(client.scheduler_info()["workers"])[0]
        client.gather([client.submit(on_dask_worker, slow, 10, pure=False) for _ in range(4)])
        begin_s = time.perf_counter()
        client.gather([client.submit(on_dask_worker, slow, steps, pure=False) for _ in range(tasks)])
        return tasks / (time.perf_counter() - begin_s)


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    tasks, rounds = (40, 1) if given.quick else (400, 3)
    steps = calibrate(0.02)
    bench = Bench("unequal_devices", f"{tasks} tasks of 20 ms on speeds 1 : {SHARE}", ("ray", "distributed"), given.out)
    shares: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as home:
        os.environ["HETERO_HOME"] = home
        for _ in range(rounds):
            alone = {spec: [speed(spec, tasks // 8, steps)] for spec in ("1xcpu", f"1xcpu*{SHARE}")}
            found = {
                "hetero, cold": both(tasks, steps, known=False),
                "hetero, known": _known(tasks, steps),
                "Ray, actor pool": with_ray(tasks, steps),
                "Dask distributed": with_dask(tasks, steps),
            }
            for spec, samples in alone.items():
                samples.append(speed(spec, tasks // 8, steps))
                rates.setdefault(f"{spec} alone", []).extend(samples)
            total = sum(statistics.mean(samples) for samples in alone.values())
            for name, rate in found.items():
                rates.setdefault(name, []).append(rate)
                shares.setdefault(name, []).append(rate / total)
    for name, samples in rates.items():
        bench.measure(name, samples, "tasks/s")
    aims = {"hetero, known": 0.97, "hetero, cold": 0.92, "Ray, actor pool": None, "Dask distributed": None}
    for name, aim in aims.items():
        bench.claim(f"{name}: share of the sum of speeds", statistics.median(shares[name]), unit="", at_least=aim)
    bench.finish()


def _known(tasks: int, steps: int) -> float:
    both(8, steps, known=True)
    return both(tasks, steps, known=True)


if __name__ == "__main__":
    main()
