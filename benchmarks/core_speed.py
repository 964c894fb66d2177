"""The core: events a second, and what one decision costs on fleets of 10 to 10,000 devices.

The core alone, in one process: no engine, no driver, no trace. Times are this process's own CPU seconds.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, alternate, arguments
from hetero.core.machine import Machine
from hetero.model.commands import Run
from hetero.model.device import HOST_NODE, Device, DeviceType
from hetero.model.events import DeviceAdded, DeviceReady, Event, TaskFinished, TaskSubmitted
from hetero.model.tasks import Request, Task
from hetero.model.topology import Topology
from hetero.plan.performance.cost_model import CostModel
from hetero.plan.policies.registry import get

FLEETS = (10, 100, 1_000, 10_000)
REQUEST = Request()


class World:
    """A core with its devices ready, and the launches that its engine would be running."""

    def __init__(self, devices: int, seconds: float) -> None:
        cpu = DeviceType("CPU")
        fleet = [Device(f"h0/cpu:{i}", "cpu", cpu, "cpu", i, name=f"speed {i % 8}") for i in range(devices)]
        cost = CostModel(fleet)
        for device in fleet[:8]:
            for _ in range(4):
                cost.observe("f|", 0.0, device, seconds)
        self.machine = Machine(get("eft"), cost, Topology())
        self.seconds = seconds
        self.now_s = 0.0
        self.out: deque[tuple[str, int, int]] = deque()
        self.events = 0
        self._ids = iter(range(1, 1 << 60))
        for device in fleet:
            self.tell(DeviceAdded(0.0, device))
        for device in fleet:
            self.tell(DeviceReady(0.0, device.id))

    def tell(self, event: Event) -> None:
        """Feed one event, and keep what was launched."""
        self.events += 1
        for command in self.machine.handle(event):
            if type(command) is Run:
                self.out.extend((command.device, launch.task, launch.attempt) for launch in command.launches)

    def submit(self) -> None:
        """Submit one task."""
        self.tell(TaskSubmitted(self.now_s, Task(next(self._ids), "f", "f|", 0.0, (), (), REQUEST)))

    def finish(self) -> None:
        """Finish what was launched first."""
        device, task, attempt = self.out.popleft()
        self.now_s += 1e-6
        self.tell(TaskFinished(self.now_s, task, attempt, device, 0.0, self.seconds, 0, HOST_NODE))


def one_by_one(tasks: int) -> float:
    """Return the events a second of lone no-op tasks on an idle machine."""
    world = World(2, 1e-5)
    begin_s, before = time.process_time(), world.events
    for _ in range(tasks):
        world.submit()
        world.finish()
    return (world.events - before) / (time.process_time() - begin_s)


def backlog(tasks: int) -> float:
    """Return the events a second when all no-op tasks are handed in at once."""
    world = World(2, 1e-5)
    begin_s, before = time.process_time(), world.events
    for _ in range(tasks):
        world.submit()
    while world.out:
        world.finish()
    return (world.events - before) / (time.process_time() - begin_s)


def decisions(devices: int, rounds: int) -> Iterator[float]:
    """Yield the seconds of single decisions: a device becomes idle, and the next of many ready tasks is placed."""
    world = World(devices, 1.0)
    for _ in range(3 * devices + 200):
        world.submit()
    for _ in range(devices // 4):
        world.finish()
        world.submit()
    for _ in range(rounds):
        before = len(world.out)
        begin_s = time.process_time()
        world.finish()
        yield time.process_time() - begin_s
        assert len(world.out) == before, "the idle device got nothing"
        world.submit()


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    tasks, rounds, fleets = (2_000, 1, FLEETS[:2]) if given.quick else (50_000, 7, FLEETS)
    bench = Bench("core_speed", "the core alone, CPU time of its process", (), given.out)
    contestants = {
        "lone no-op tasks": lambda: one_by_one(tasks),
        "a backlog of no-op tasks": lambda: backlog(tasks),
    }
    speeds = alternate(contestants, rounds)
    for name, samples in speeds.items():
        bench.measure(name, samples, "events/s")
        bench.claim(name, bench.measured[name].median, unit="events/s", at_least=50_000)
    for devices in fleets:
        samples = list(decisions(devices, 20 if given.quick else 300))
        bench.measure(f"a decision on {devices:,} devices", [1e6 * s for s in samples], "µs")
    least, most = (bench.measured[f"a decision on {n:,} devices"].median for n in (fleets[0], fleets[-1]))
    factor = fleets[-1] // fleets[0]
    what = f"a decision on {factor:,} times as many devices"
    bench.claim(what, most / least, rival=f"on {fleets[0]} devices", at_most=factor / 10)
    bench.finish()


if __name__ == "__main__":
    main()
