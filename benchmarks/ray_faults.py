"""A worker killed every two seconds on Ray: 1,000 tasks give 1,000 results, each committed once.

hetero alone decides what runs again: Ray restarts no actor and retries no call. Beside it plain Ray tasks, which Ray
itself retries, under the same kills. A task that starts twice leaves two marks.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, arguments
from benchmarks.rivals import ray_module

TASK_S = 0.05
KILL_EVERY_S = 2.0
SEED = 7


def marked(number: int, folder: str) -> int:
    """Leave a mark, take 50 ms, and give the number back."""
    handle, _ = tempfile.mkstemp(prefix=f"{number}-", dir=folder)
    os.close(handle)
    time.sleep(TASK_S)
    return number


@contextmanager
def killing(names: tuple[str, ...]) -> Iterator[list[int]]:
    """Kill one of the worker processes that run tasks every two seconds; return the ids of those killed."""
    killed: list[int] = []
    over = threading.Event()
    chance = random.Random(SEED)

    def kill() -> None:
        while not over.wait(KILL_EVERY_S):
            family = psutil.Process().children(recursive=True)
            workers = [process.pid for process in family if _title(process).startswith(names)]
            if workers:
                killed.append(chance.choice(workers))
                with suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def _title(process: psutil.Process) -> str:
    try:
        return (process.cmdline() or [""])[0]
    except psutil.Error:
        return ""


def counted(run: Callable[[str], list[int]], names: tuple[str, ...]) -> tuple[list[int], int, int, float]:
    """Return the results of a run, the tasks that were started twice, the kills, and the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.perf_counter()
        with killing(names) as killed:
            results = run(folder)
        took_s = time.perf_counter() - begin_s
        marks = [int(name.partition("-")[0]) for name in os.listdir(folder)]
    return results, len(marks) - len(set(marks)), len(killed), took_s


def main() -> None:
    """Measure, and tell."""
    given = arguments(str(__doc__).splitlines()[0])
    count = 60 if given.quick else 1000
    bench = Bench("ray_faults", "a worker killed every 2 s on Ray", ("ray",), given.out)
    with (
        ray_module() as ray,
        hetero.Context(devices="2xcpu", engine="ray", address="auto", history=False) as ctx,
        tempfile.TemporaryDirectory() as warm,
    ):
        task = hetero.task(crashes=20)(marked)
        ctx.gather([ctx.submit(task, number, warm) for number in range(2)])
        ours = counted(lambda folder: ctx.gather([ctx.submit(task, n, folder) for n in range(count)]), ("ray::Worker",))
        committed = ctx.driver.ask(lambda core: core).counts.committed - 2
        plain = ray.remote(num_cpus=1, max_retries=20)(marked)
        theirs = counted(
            lambda folder: ray.get([plain.remote(n, folder) for n in range(count)]), ("ray::marked", "ray::IDLE")
        )
    for name, (results, twice, kills, took_s) in {"hetero": ours, "plain Ray tasks": theirs}.items():
        bench.measure(f"{name}, makespan", [took_s])
        bench.note(**{f"{name}: results, started twice, kills": [len(results), twice, kills]})
    bench.claim("results, each the right one", float(ours[0] == list(range(count))), unit="", at_least=1.0)
    bench.claim("committed more than once", float(committed - count), unit="tasks", at_most=0.0)
    bench.claim("makespan", ours[3] / theirs[3], rival="plain Ray tasks")
    bench.finish()


if __name__ == "__main__":
    main()
