"""The trace costs little: processor time and bytes a task, nothing dropped, constant memory.

A task is what the core says about one that runs once: TaskSubmitted, Run, TaskFinished, Commit.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from hetero.drive.trace import TraceWriter, read_trace
from hetero.model.commands import Commit, Launch, Run
from hetero.model.events import TaskFinished, TaskSubmitted
from hetero.model.tasks import Request, Task

MANY = 1_000_000
DEVICES = tuple(f"h0/cpu:{index}" for index in range(8))


def records(tasks: int) -> Iterator[tuple[float, Any]]:
    """Give the records of tasks, each with numbers of its own, on eight devices."""
    request = Request()
    for each in range(1, tasks + 1):
        at_s, seconds, device = each * 1.1e-4, 1e-3 + (each % 97) * 1.3e-6, DEVICES[each % len(DEVICES)]
        yield at_s, TaskSubmitted(at_s, Task(each, "work", "work(float64[512, 512])", 2097152.0, (each,), (), request))
        yield at_s, Run(device, (Launch(each, 1, seconds * 0.9),))
        yield at_s, TaskFinished(at_s, each, 1, device, at_s - seconds, seconds, 2097152, "h0/ram")
        yield at_s, Commit(each, 1, device)


def cpu_us(path: Path, batch: list[tuple[float, Any]]) -> float:
    """Give the processor time of the whole process, µs a task, from the first `write` to the end of `close`."""
    begin_s = time.process_time()
    writer = TraceWriter(path)
    for record in batch:
        writer.write(record)
    writer.close()
    return (time.process_time() - begin_s) * 1e6 / (len(batch) / 4)


def growth_bytes(path: Path, tasks: int) -> tuple[int, int]:
    """Write tasks as fast as they can be made; give the growth of resident memory, and the longest queue."""
    process, longest = psutil.Process(), 0
    writer = TraceWriter(path)
    for record in records(20_000):
        writer.write(record)
    before = process.memory_info().rss
    for count, record in enumerate(records(tasks - 20_000)):
        writer.write(record)
        if count % 1000 == 0:
            longest = max(longest, len(writer._waiting))
    after = process.memory_info().rss
    writer.close()
    return after - before, longest


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    tasks, rounds = (20_000, 2) if given.quick else (100_000, 7)
    many = 50_000 if given.quick else MANY
    bench = Bench("tracing", "what a trace costs a task", (), given.out)
    with tempfile.TemporaryDirectory() as folder:
        batch = list(records(tasks))
        for name in ("plain.jsonl", "gzipped.jsonl.gz"):
            path, what = Path(folder) / name, name.partition(".")[0]
            samples = [cpu_us(path, batch) for _ in range(rounds)]
            bench.measure(f"{what}: processor time a task", samples, "µs")
            bench.measure(f"{what}: bytes a task", [path.stat().st_size / tasks], "B")
        del batch
        path = Path(folder) / "many.jsonl"
        grown_bytes, longest = growth_bytes(path, many)
        there = sum(1 for _ in read_trace(path))
    cpu, size = bench.measured["plain: processor time a task"], bench.measured["plain: bytes a task"]
    bench.claim("processor time a task", cpu.median, unit="µs", at_most=100)
    bench.claim("bytes a task", size.median, unit="B", at_most=400)
    bench.claim(f"records dropped at {many:,} tasks", 4 * many - there, unit="", at_most=0)
    bench.claim("memory grown meanwhile", grown_bytes / 1e6, unit="MB", at_most=50)
    bench.claim("longest queue seen", longest, unit="records", at_most=65_536)
    bench.finish()


if __name__ == "__main__":
    main()
