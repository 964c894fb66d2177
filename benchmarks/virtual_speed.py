"""400 tasks of 20 ms on devices of speed 1 and 0.25, in virtual time with counted dispatches.

The same core as a live run; what a dispatch costs is not part of it, so what is lost here the policy loses.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, arguments
from hetero.drive.sim import Costs, Program, SimResult, SimTask, simulate
from hetero.model.device import Device, DeviceType
from hetero.model.tasks import Request, Task
from hetero.plan.performance.cost_model import CostModel
from hetero.plan.policies.registry import OURS

TASKS = 400
TASK_S = 0.02
SPEEDS = (1.0, 0.25)
NOISE = 0.05


def run(policy: str, seed: int, *, learned: bool) -> SimResult:
    """Run the tasks once."""
    cpu = DeviceType("CPU")
    fleet = [Device(f"h0/cpu:{i}", "cpu", cpu, "cpu", i, name=f"speed {speed}") for i, speed in enumerate(SPEEDS)]
    cost = CostModel(fleet)
    if learned:
        for device, speed in zip(fleet, SPEEDS, strict=True):
            for _ in range(8):
                cost.observe("f|", 0.0, device, TASK_S / speed)
    tasks = [SimTask(Task(number, "f", "f|", 0.0, (), (), Request())) for number in range(1, TASKS + 1)]

    def truth(task: Task, device: Device) -> float:
        return TASK_S / SPEEDS[device.index]

    return simulate(Program(tasks), fleet, truth, policy=policy, cost=cost, seed=seed, costs=Costs(noise=NOISE))


def efficiency(result: SimResult) -> float:
    """Return the achieved speed over the sum of the devices' own speeds."""
    return TASKS * TASK_S / result.makespan_s / sum(SPEEDS)


def main() -> None:
    """Run each policy with known and unknown times, and print."""
    given = arguments(str(__doc__).splitlines()[0])
    seeds = range(3 if given.quick else 50)
    bench = Bench("virtual_speed", "400 tasks of 20 ms on 1 : 0.25, achieved share of the sum of speeds", (), given.out)
    dispatches = {}
    for policy in OURS:
        for known in (True, False):
            done = [run(policy, seed, learned=known) for seed in seeds]
            what = f"{policy}, {'model known' if known else 'cold start'}"
            bench.measure(what, [efficiency(result) for result in done], "of the sum")
            dispatches[what] = (max(result.runs for result in done), max(result.launches for result in done))
    for what, at_least in (("eft, model known", 0.97), ("eft, cold start", 0.92)):
        bench.claim(what, bench.measured[what].median, unit="of the sum", at_least=at_least)
        bench.claim(f"{what}: attempts started", dispatches[what][1], unit="for 400 tasks", at_most=1.01 * TASKS)
    bench.note(noise=NOISE, most_messages_and_attempts=dispatches)
    bench.finish()


if __name__ == "__main__":
    main()
