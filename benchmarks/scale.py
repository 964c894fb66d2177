"""10,000 devices of 20 classes on 1,000 hosts in virtual time: tasks simulated a second, memory, cost a decision.

The devices are the catalog's, the core and the policy those of live runs. Times are this process's own CPU seconds, and
all of a run: building the fleet, starting its devices, deciding, finishing. `hetero plan tasks --hosts` does the same.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from hetero.catalog.load import devices
from hetero.graphs.fleet_simulation import Scaled, SimulatedLoad, read_hosts, run_at_scale

CLASSES = 20
PER_HOST = 10
FLOP = (1e13, 2e13, 3e13, 4e13)
NBYTES = 1_000_000
TICK_S = 0.05


def fleet_of(count: int) -> list[str]:
    """Return the words for that many devices, as equal numbers of hosts of each class."""
    names = [name for name, spec in devices().items() if spec.kind in ("cuda", "rocm") and spec.flop_per_s.get("fp32")]
    classes = min(CLASSES, count // PER_HOST)
    return [f"{count // PER_HOST // classes} x {PER_HOST} x {name}" for name in names[:classes]]


def run(count: int, tasks: int, *, nbytes: int = 0, tick_s: float = TICK_S) -> tuple[Scaled, float]:
    """Run so many tasks on so many devices; return what happened, and the CPU seconds."""
    racks = read_hosts(fleet_of(count))
    begin_s = time.process_time()
    found, _ = run_at_scale(racks, SimulatedLoad(tasks, FLOP, nbytes=nbytes), tick_s=tick_s)
    return found, time.process_time() - begin_s


def main() -> None:
    """Measure, and tell."""
    given = arguments(str(__doc__).splitlines()[0])
    fleets = (100, 200, 400) if given.quick else (100, 1_000, 10_000)
    tasks = 2_000 if given.quick else 100_000
    bench = Bench("scale", "fleets of the catalog in virtual time", (), given.out)
    for count in fleets:
        alone, took_s = run(count, tasks // 5, tick_s=0.0)
        bench.measure(f"a decision on {count:,} devices, each event alone", [1e6 * took_s / alone.tasks], "µs")
    for what, nbytes in (("no data", 0), ("1 MB read by all tasks of a size", NBYTES)):
        found, took_s = run(fleets[-1], tasks, nbytes=nbytes)
        bench.measure(f"{found.devices:,} devices on {found.hosts:,} hosts, {what}", [tasks / took_s], "tasks/s")
        bench.claim(f"tasks simulated, {what}", tasks / took_s, unit="tasks/s", at_least=5000.0 if not nbytes else None)
        bench.claim(f"virtual seconds in a second, {what}", found.makespan_s / took_s)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    bench.claim("memory at its peak", peak_bytes / 1e9, unit="GB", at_most=2.0)
    bench.note(classes=len(fleet_of(fleets[-1])), tasks=tasks, tick_s=TICK_S)
    bench.finish()


if __name__ == "__main__":
    main()
