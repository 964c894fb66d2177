"""Two devices 9 : 1 with best batches of 256 and 16: hetero against Ray Data, Dask bag and equal halves."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments
from benchmarks.rivals import dask_client, ray_module
from hetero.batch import BatchOptions

BESTS = (256, 16)
RATES = (1800.0, 200.0)
OVERHEAD = 0.2
SMALLEST = 16
FLEET = "1xcpu,1xcpu*0.999"
"""Two devices that are told apart by what is learned of them."""


def law_s(device: int, size: int) -> float:
    """Return the seconds of a batch: t(b) = a + c·b + d·b², whose rate is highest at the device's best size."""
    best, whole_s = BESTS[device], BESTS[device] / RATES[device]
    a, d = OVERHEAD * whole_s, OVERHEAD * whole_s / best**2
    return a + (whole_s - 2 * a) / best * size + d * size**2


def wait_as(device: int, size: int) -> None:
    """Take as long as a device would for a batch."""
    time.sleep(law_s(device, size))


def on_hetero(batch: list[int]) -> list[int]:
    """Work on a batch at the speed of the current device."""
    wait_as(hetero.get_current_device().index, len(batch))
    return batch


def run_hetero(ctx: hetero.Context, count: int, cold: bool) -> float:
    """Return the seconds of hetero."""
    begin_s = time.perf_counter()
    outcome = hetero.batch.map_batches(on_hetero, range(count), ctx=ctx, options=BatchOptions(learn=not cold))
    took_s = time.perf_counter() - begin_s
    assert outcome.value == list(range(count)), "every record has its result"
    return took_s


def run_halves(ctx: hetero.Context, count: int) -> float:
    """Return the seconds of equal halves, each in batches of its device's best size."""

    def half(device: int) -> None:
        for begin in range(0, count // 2, BESTS[device]):
            wait_as(device, min(BESTS[device], count // 2 - begin))

    begin_s = time.perf_counter()
    devices = ctx.devices
    ctx.gather([ctx.submit(hetero.task(half, on=(device.id,)), device.index) for device in devices])
    return time.perf_counter() - begin_s


def slot(folder: str) -> int:
    """Return this worker process its device: the first one to ask is the quick one."""
    for device in range(len(BESTS)):
        path = Path(folder) / f"{device}"
        try:
            path.symlink_to(str(os.getpid()))
        except FileExistsError:
            if path.readlink().name == str(os.getpid()):
                return device
            continue
        return device
    raise RuntimeError("more workers than devices")


def run_ray(ray: Any, count: int, size: int) -> Callable[[], float]:
    """Make the run of Ray Data: one pool of two actors, one batch size."""

    class Worker:
        def __init__(self, folder: str) -> None:
            self.device = slot(folder)

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            wait_as(self.device, len(batch["id"]))
            return batch

    def once() -> float:
        with tempfile.TemporaryDirectory() as folder:
            begin_s = time.perf_counter()
            data = ray.data.range(count, override_num_blocks=max(2, count // max(size, 64)))
            options = {
                "batch_size": size,
                "fn_constructor_args": (folder,),
                "compute": ray.data.ActorPoolStrategy(size=2),
            }
            assert data.map_batches(Worker, **options).materialize().count() == count, "every record has its result"
            return time.perf_counter() - begin_s

    return once


def run_dask(count: int, size: int) -> Callable[[], float]:
    """Make the run of Dask bag: partitions of one size, any worker takes the next."""
    import dask.bag

    def once() -> float:
        with tempfile.TemporaryDirectory() as folder:

            def work(part: Any) -> list[int]:
                batch = list(part)
                wait_as(slot(folder), len(batch))
                return batch

            begin_s = time.perf_counter()
            bag = dask.bag.from_sequence(range(count), partition_size=size).map_partitions(work)
            assert len(bag.compute(scheduler="distributed")) == count, "every record has its result"
            return time.perf_counter() - begin_s

    return once


def over_ideal(run: Callable[[], float], count: int) -> Callable[[], float]:
    """Make a run give its time over that of both devices at their best rates."""
    return lambda: run() * sum(RATES) / count


def best_size(make: Callable[[int, int], Callable[[], float]], count: int) -> int:
    """Return the batch size at which a rival is quickest: doubled until two sizes in a row gained nothing."""
    seconds: dict[int, float] = {}
    size = SMALLEST
    while size <= count and (len(seconds) < 3 or min(seconds.values()) in list(seconds.values())[-2:]):
        seconds[size] = make(count, size)()
        size *= 2
    return min(seconds, key=lambda size: seconds[size])


def main() -> None:
    """Run the benchmark."""
    import logging

    given = arguments(__doc__ or "")
    count, rounds = (600, 1) if given.quick else (12_000, 3)
    bench = Bench("batch_own_sizes", (__doc__ or "").strip(), ("ray", "dask", "distributed"), given.out)
    bench.note(
        records=count,
        ideal_s=count / sum(RATES),
        law="t(b) = a + c·b + d·b², slept; best sizes 256 and 16, rates 1,800 and 200 a second",
        rivals="each at its quickest batch size, doubled from 16 until it turns, tried first over half of the records",
    )
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with hetero.Context(devices=FLEET, history=False) as ctx, ray_module(cpus=4) as ray, dask_client():
        ray.data.DataContext.get_current().enable_progress_bars = False
        run_hetero(ctx, count, cold=False)
        rivals = {"Ray Data": lambda items, size: run_ray(ray, items, size), "Dask bag": run_dask}
        chosen = {name: best_size(make, count // (4 if given.quick else 2)) for name, make in rivals.items()}
        contestants: dict[str, Callable[[], float | None]] = {
            "hetero, sizes known": over_ideal(lambda: run_hetero(ctx, count, cold=False), count),
            "hetero, cold": over_ideal(lambda: run_hetero(ctx, count, cold=True), count),
            "equal halves": over_ideal(lambda: run_halves(ctx, count // 4), count // 4),
        }
        contestants |= {name: over_ideal(make(count, chosen[name]), count) for name, make in rivals.items()}
        samples = alternate(contestants, rounds, warm_up=0)
    for name, found in samples.items():
        bench.measure(name, found, "× the ideal")
    for name, aim in (("hetero, sizes known", 1.03), ("hetero, cold", 1.10), ("equal halves", None)):
        bench.claim(f"{name}: time over the ideal", statistics.median(samples[name]), at_most=aim)
    for name, size in chosen.items():
        bench.claim(f"{name}, batches of {size}: time over the ideal", statistics.median(samples[name]))
    bench.finish()


if __name__ == "__main__":
    main()
