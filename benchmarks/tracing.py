"""The trace costs little and leaves nothing out: processor time and bytes a task, nothing dropped, constant memory.

Of live runs of every kind it is measured how much of the time that clocks in the workers showed the trace leaves out.

A task is what is told of one that runs once: TaskSubmitted, Run, TaskParts, TaskFinished, Commit.
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
from hetero.model.annotations import TaskParts
from hetero.model.commands import Commit, Launch, Run
from hetero.model.events import TaskFinished, TaskSubmitted
from hetero.model.tasks import Request, Task
from tests.clocked import RUNS, missing_s

MANY = 1_000_000
RECORDS = 5
DEVICES = tuple(f"h0/cpu:{index}" for index in range(8))


def records(tasks: int) -> Iterator[tuple[float, Any]]:
    """Yield the records of tasks, each with numbers of its own, on eight devices."""
    request = Request()
    for each in range(1, tasks + 1):
        at_s, seconds, device = each * 1.1e-4, 1e-3 + (each % 97) * 1.3e-6, DEVICES[each % len(DEVICES)]
        yield at_s, TaskSubmitted(at_s, Task(each, "work", "work(float64[512, 512])", 2097152.0, (each,), (), request))
        yield at_s, Run(device, (Launch(each, 1, seconds * 0.9),))
        parts = (2e-5, seconds - 5e-5, 3e-5, 0.0, 0.0, 0.0)
        yield at_s, TaskParts(at_s, each, 1, device, at_s - seconds, *parts)
        yield at_s, TaskFinished(at_s, each, 1, device, at_s - seconds, seconds, 2097152, "h0/ram")
        yield at_s, Commit(each, 1, device)


def cpu_us(path: Path, batch: list[tuple[float, Any]]) -> float:
    """Return the processor time of the whole process, µs a task, from the first `write` to the end of `close`."""
    begin_s = time.process_time()
    writer = TraceWriter(path)
    for record in batch:
        writer.write(record)
    writer.close()
    return (time.process_time() - begin_s) * 1e6 / (len(batch) / RECORDS)


def growth_bytes(path: Path, tasks: int) -> tuple[int, int]:
    """Write tasks as fast as they can be made; return the growth of resident memory, and the longest queue."""
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


def unattributed_frac(kind: str, folder: Path, unit_s: float) -> float:
    """Run tasks of a kind live; return the share of the time shown by the workers' clocks that the trace leaves out."""
    log, trace = folder / f"{kind}.log", folder / f"{kind}.trace.jsonl"
    RUNS[kind](str(log), str(trace), unit_s)
    shown_s, lost_s, _ = missing_s(log, trace)
    return lost_s / shown_s


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
        unit_s = 0.02 if given.quick else 0.2
        shares = {kind: unattributed_frac(kind, Path(folder), unit_s) for kind in RUNS}
    cpu, size = bench.measured["plain: processor time a task"], bench.measured["plain: bytes a task"]
    bench.claim("processor time a task", cpu.median, unit="µs", at_most=100)
    bench.claim("bytes a task", size.median, unit="B", at_most=400)
    bench.claim(f"records dropped at {many:,} tasks", RECORDS * many - there, unit="", at_most=0)
    bench.claim("memory grown meanwhile", grown_bytes / 1e6, unit="MB", at_most=50)
    bench.claim("longest queue seen", longest, unit="records", at_most=65_536)
    for kind, frac in shares.items():
        bench.claim(f"{kind}: time of workers that is not told", 100.0 * frac, unit="%", at_most=2)
    bench.finish()


if __name__ == "__main__":
    main()
