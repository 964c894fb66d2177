"""A device becomes three times slower in mid-run: how soon the fleet is back at its new sum of speeds.

The worker of one device is stopped and continued by signals, 2 ms in 6, from the middle of the run on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, arguments
from benchmarks.work import calibrate, spin


def who(steps: int) -> tuple[str, int, float]:
    """Work; tell the device, the process and when it ended."""
    spin(steps)
    return hetero.get_current_device().short, os.getpid(), time.monotonic()


@contextlib.contextmanager
def slowed(process: int) -> Iterator[None]:
    """Let a process run 2 ms in 6."""
    ending = threading.Event()

    def beat() -> None:
        while not ending.is_set():
            os.kill(process, signal.SIGSTOP)
            time.sleep(0.004)
            os.kill(process, signal.SIGCONT)
            time.sleep(0.002)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
        os.kill(process, signal.SIGCONT)


def speeds(ctx: hetero.Context, steps: int, tasks: int) -> dict[str, float]:
    """Return the tasks a second of each device, each alone."""
    found = {}
    for device in ctx.devices:
        alone = hetero.task(who, on=device.short)
        begin_s = time.perf_counter()
        ctx.gather([ctx.submit(alone, steps) for _ in range(tasks)])
        found[device.short] = tasks / (time.perf_counter() - begin_s)
    return found


def once(tasks: int, steps: int) -> tuple[float, int]:
    """Return the share of the new sum reached after the slow device's fifth task, and that device's count."""
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        pids = {d.short: ctx.run(hetero.task(who, on=d.short), 10)[1] for d in ctx.devices}
        futures = [ctx.submit(who, steps) for _ in range(tasks)]
        futures[tasks // 2].result()
        with slowed(pids["cpu:1"]):
            begin_s = time.monotonic()
            rows = sorted((row for row in ctx.gather(futures) if row[2] > begin_s), key=lambda row: row[2])
            new_sum = sum(speeds(ctx, steps, max(8, tasks // 20)).values())
    slow_ends = [row[2] for row in rows if row[0] == "cpu:1"]
    settled_s = slow_ends[min(5, len(slow_ends)) - 1]
    after = [row for row in rows if row[2] > settled_s]
    return len(after) / (after[-1][2] - settled_s) / new_sum, len(slow_ends)


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    tasks, rounds = (60, 1) if given.quick else (400, 5)
    steps = calibrate(0.02)
    bench = Bench("slow_down", "a device slows down three times in mid-run", (), given.out)
    results = [once(tasks, steps) for _ in range(rounds)]
    bench.measure("share of the new sum, after 5 tasks of the slowed device", [share for share, _ in results], "")
    bench.measure("tasks that the slowed device still ran", [float(count) for _, count in results], "tasks")
    bench.claim("share of the new sum", statistics.median(s for s, _ in results), unit="", at_least=0.90)
    bench.finish()


if __name__ == "__main__":
    main()
