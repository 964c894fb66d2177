"""A random worker is killed every 2 s during 1,000 tasks of 50 ms: what is lost, repeated, committed twice.

Each start of a task appends a line to a file, so that repeated work is counted outside of hetero.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from benchmarks.rivals import ray_module
from benchmarks.work import calibrate, spin


def work(index: int, steps: int, log: str) -> int:
    """Note the start, work, give the index."""
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{index}\n".encode())
    os.close(handle)
    spin(steps)
    return index


class Killer(threading.Thread):
    """Kills a random worker process of this program every `period_s` until told to stop."""

    def __init__(self, period_s: float, is_worker: Callable[[list[str]], bool]) -> None:
        super().__init__(daemon=True)
        self.period_s, self.is_worker = period_s, is_worker
        self.kills = 0
        self.ending = threading.Event()
        self.chance = random.Random(1)

    def run(self) -> None:
        """Kill."""
        while not self.ending.wait(self.period_s):
            victims = []
            for child in psutil.Process().children(recursive=True):
                try:
                    if self.is_worker(child.cmdline()):
                        victims.append(child)
                except psutil.Error:
                    continue
            if victims:
                os.kill(self.chance.choice(victims).pid, signal.SIGKILL)
                self.kills += 1


def report(bench: Bench, name: str, tasks: int, results: list[int], log: str, killer: Killer, wall_s: float) -> None:
    """Add a contestant's counts."""
    starts = Counter(Path(log).read_text(encoding="utf-8").split())
    bench.note(**{
        name: {
            "kills": killer.kills, "results": len(results), "lost": tasks - len(set(results)),
            "started again": sum(starts.values()) - tasks, "wall_s": round(wall_s, 2),
        }
    })  # fmt: skip
    bench.measure(f"{name}, wall", [wall_s])


def main() -> None:
    """Measure and print."""
    import hetero

    given = arguments(str(__doc__).splitlines()[0])
    tasks, period_s = (100, 1.0) if given.quick else (1_000, 2.0)
    steps = calibrate(0.05)
    bench = Bench("kills", f"{tasks} tasks of 50 ms, a worker killed every {period_s:g} s", ("ray",), given.out)
    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/hetero"
        killer = Killer(period_s, lambda command: "hetero.drive.worker" in command)
        with hetero.Context(devices="2xcpu", history=False) as ctx:
            ctx.gather([ctx.submit(abs, 1) for _ in range(4)])
            begin_s = time.perf_counter()
            killer.start()
            results = ctx.gather([ctx.submit(work, index, steps, log) for index in range(tasks)])
            killer.ending.set()
            wall_s = time.perf_counter() - begin_s
            counts = ctx.driver.ask(lambda core: core).counts
        report(bench, "hetero", tasks, results, log, killer, wall_s)
        repeated = len(Path(log).read_text(encoding="utf-8").split()) - tasks
        bench.claim("results", len(results), unit="", at_least=tasks)
        bench.claim("lost", tasks - len(set(results)), unit="", at_most=0)
        bench.claim("committed twice", counts.committed - 4 - tasks, unit="", at_most=0)
        bench.claim(
            "repeated work per kill, 1 task in flight each", repeated / max(1, killer.kills), unit="", at_most=1
        )
        with ray_module() as ray:
            log = f"{folder}/ray"
            remote = ray.remote(max_retries=-1)(work)
            ray.get([remote.remote(-1, 10, f"{folder}/warm") for _ in range(4)])
            killer = Killer(period_s, lambda command: command[:1] != [] and command[0].startswith("ray::work"))
            begin_s = time.perf_counter()
            killer.start()
            results = ray.get([remote.remote(index, steps, log) for index in range(tasks)])
            killer.ending.set()
            wall_s = time.perf_counter() - begin_s
            report(bench, "Ray", tasks, results, log, killer, wall_s)
    bench.finish()


if __name__ == "__main__":
    main()
