"""The report of a trace of 2 GB: opened as far as a report goes, in bounded memory.

In: a trace made for this, of small tasks on 32 devices. Out: one table.
The trace is written by hetero's own writer; reading and the page are made in a process of their own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from hetero.drive.trace import TraceWriter
from hetero.model.commands import Commit, Launch, Run
from hetero.model.device import Device
from hetero.model.events import DeviceAdded, DeviceReady, TaskFinished, TaskSubmitted
from hetero.model.tasks import Request, Task
from tests.big_runs import devices

_TOOK_S = 1e-3
_ENOUGH = 4096
_MAKE = """
import resource, sys, time
from hetero.report.html import page
from hetero.report.trace_reader import read_run
begin = time.process_time()
run = read_run(sys.argv[1])
read_s = time.process_time() - begin
text = page(run)
told = any("longer than a report can be" in each for each in run.problems)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(read_s, time.process_time() - begin, peak, len(text.encode()), len(run.tasks), int(told))
"""


def records(fleet: tuple[Device, ...]) -> Iterator[Any]:
    """Yield a run without an end: each device computes one task after the other, each of which needs an earlier one."""
    for device in fleet:
        yield DeviceAdded(0.0, device)
        yield DeviceReady(0.0, device.id)
    request, number = Request(), 0
    while True:
        device = fleet[number % len(fleet)]
        begin_s = number // len(fleet) * _TOOK_S
        after = (number - 2 * len(fleet),) if number > 3 * len(fleet) else ()
        number += 1
        yield TaskSubmitted(begin_s, Task(number, f"f{number % 7}", "f|", 1.0, after, after, request))
        yield Run(device.id, (Launch(number, 1, _TOOK_S),))
        yield TaskFinished(begin_s + _TOOK_S, number, 1, device.id, begin_s, _TOOK_S, 100, "h0/ram")
        yield Commit(number, 1, device.id)


def write(path: Path, nbytes: int) -> None:
    """Write a trace of so many bytes."""
    fleet = devices(32)
    writer = TraceWriter(path, devices=fleet)
    for count, record in enumerate(records(fleet)):
        writer.write(record)
        if count % _ENOUGH == 0 and path.stat().st_size >= nbytes:
            break
    writer.close()


def main() -> None:
    """Write the trace and report on it."""
    given = common.arguments(__doc__ or "")
    bench = common.Bench("report_long", (__doc__ or "").partition("\n")[0], (), given.out)
    nbytes = 20_000_000 if given.quick else 2_000_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.trace.jsonl"
        write(path, nbytes)
        command = [sys.executable, "-c", _MAKE, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    read_s, all_s, peak_bytes, page_bytes, tasks, told = (float(each) for each in done.stdout.split())
    bench.note(tasks=f"{tasks:,.0f} of the trace are in the report", said=f"{'cut, and says so' if told else 'whole'}")
    bench.measure("reading, CPU", [read_s], "s")
    bench.measure("reading and the page, CPU", [all_s], "s")
    bench.claim("a trace of 2 GB: memory of its report", peak_bytes / 1e9, unit="GB", at_most=6.0)
    bench.claim("a trace of 2 GB: size of its report", page_bytes / 1e6, unit="MB", at_most=60.0)
    bench.finish()


if __name__ == "__main__":
    main()
