"""A device that becomes 3 times slower in mid-run, in virtual time: how soon the fleet is back at its new speed.

The share of the new sum of speeds is that of all work begun after five of the slow device's tasks.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from hetero.drive.sim import Costs, Program, SimTask, simulate
from hetero.drive.sim_faults import Faults, Slowdown
from hetero.model.device import Device, DeviceType
from hetero.model.tasks import Request, Task
from hetero.plan.performance.cost_model import CostModel

TASKS = 600
TASK_S = 0.02
SLOW_AT_S = 1.0
BELIEVED_WITHIN = 5
NOISE = 0.05


def share(speeds: tuple[float, ...], factor: float, seed: int) -> float:
    """Return the achieved share of the new sum of speeds, from five of the slow device's tasks on."""
    cpu = DeviceType("CPU")
    fleet = [Device(f"h0/cpu:{i}", "cpu", cpu, "cpu", i, name=f"speed {speed} {i}") for i, speed in enumerate(speeds)]
    cost = CostModel(fleet)
    for device, speed in zip(fleet, speeds, strict=True):
        for _ in range(8):
            cost.observe("f|", 0.0, device, TASK_S / speed)
    slow = fleet[0].id
    done = simulate(
        Program([SimTask(Task(number, "f", "f|", 0.0, (), (), Request())) for number in range(1, TASKS + 1)]),
        fleet,
        lambda task, device: TASK_S / speeds[device.index],
        cost=cost,
        seed=seed,
        costs=Costs(noise=NOISE),
        faults=Faults(slowdowns=(Slowdown(SLOW_AT_S, slow, factor),)),
    )
    begun = [decision for decision in done.decisions if decision.device == slow and decision.at_s >= SLOW_AT_S]
    after_s = begun[BELIEVED_WITHIN].at_s
    rest = sum(at_s > after_s for at_s in done.commits.values())
    new_sum = sum(speeds) - speeds[0] + speeds[0] / factor
    return rest * TASK_S / (done.makespan_s - after_s) / new_sum


def main() -> None:
    """Run the fleets and print."""
    given = arguments(str(__doc__).splitlines()[0])
    seeds = range(3 if given.quick else 50)
    bench = Bench("slow_down_virtual", "share of the new sum of speeds, from five slow tasks on", (), given.out)
    for speeds in ((1.0, 1.0), (1.0, 0.25), (1.0, 0.5, 0.25)):
        for factor in (3.0, 1.0 / 3.0):
            change = "3 × slower" if factor > 1.0 else "3 × faster"
            name = f"{' : '.join(f'{speed:g}' for speed in speeds)}, the first {change}"
            bench.measure(name, [share(speeds, factor, seed) for seed in seeds], "of the new sum")
            if factor > 1:
                bench.claim(name, bench.measured[name].median, unit="of the new sum", at_least=0.90)
    bench.note(noise=NOISE, tasks=TASKS, believed_within=BELIEVED_WITHIN)
    bench.finish()


if __name__ == "__main__":
    main()
