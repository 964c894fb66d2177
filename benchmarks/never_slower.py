"""Never slower than the best device alone: random fleets and programs in virtual time, with learned models.

Each case is run on the whole fleet and on each of its devices alone; what counts is the makespan over the
best of these. Independent tasks, fork-join, chains and random graphs; related and unrelated times; devices
with memory of their own behind fast and slow links. The run times and the sizes of the results are known. Every
program begins with one task that takes 1 ms on each device and is not counted; meanwhile the rest is handed in,
so that the core knows what comes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import Bench, arguments
from hetero.drive.sim import Program, SimTask, simulate
from hetero.model.device import HOST_NODE, Device, DeviceType
from hetero.model.tasks import Request, Task
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.performance.cost_model import CostModel

CASES = 1000
AT_MOST = 1.02
ROOT_S = 1e-3
KINDS = ("independent", "fork-join", "chains", "random graph")
REQUEST = Request()


@dataclass(frozen=True, slots=True)
class Case:
    """One fleet and one program; `seconds[signature][device]` is what a task takes."""

    kind: str
    traits: tuple[str, ...]
    fleet: tuple[Device, ...]
    topology: Topology
    tasks: tuple[SimTask, ...]
    seconds: dict[str, dict[str, float]]

    def truth(self, task: Task, device: Device) -> float:
        """Return the seconds of a task on a device."""
        return self.seconds[task.signature][device.id]


def _fleet(rng: np.random.Generator) -> tuple[tuple[Device, ...], Topology, tuple[str, ...]]:
    devices, nodes, links, traits = [], [], [], []
    count = int(rng.integers(2, 9))
    for index in range(count):
        if rng.random() < 0.6:
            devices.append(Device(f"h0/cpu:{index}", "cpu", DeviceType("CPU"), "cpu", index=index, name=f"cpu {index}"))
            continue
        name = f"h0/cuda:{index}"
        devices.append(Device(name, "cuda", DeviceType("GPU"), "null", index=index, name=name, memory_node=name))
        rate = float(10 ** rng.uniform(6.5, 10.5))
        traits += ["slow link"] if rate < 3e8 else ["fast link"]
        nodes.append(MemoryNode(name, int(10 ** rng.uniform(8.5, 11))))
        bus = "pcie" if rng.random() < 0.3 else ""
        links += [Link(HOST_NODE, name, 1e-5, rate, bus, "pcie"), Link(name, HOST_NODE, 1e-5, rate, bus, "pcie")]
    return tuple(devices), Topology(tuple(nodes), tuple(links)), tuple(dict.fromkeys(traits))


def _times(
    rng: np.random.Generator, fleet: tuple[Device, ...], signatures: int
) -> tuple[dict[str, dict[str, float]], str]:
    speeds = 10 ** rng.uniform(-2.0, 0.0, len(fleet))
    unrelated = bool(rng.random() < 0.5)
    spread = 10 ** rng.uniform(-0.7, 0.7, (signatures, len(fleet))) if unrelated else np.ones((signatures, len(fleet)))
    work = 10 ** rng.uniform(-3.5, 0.0) * 10 ** rng.uniform(-0.7, 0.7, signatures)
    table = work[:, None] * spread / speeds[None, :]
    seconds = {f"f{s}|": {d.id: float(table[s, i]) for i, d in enumerate(fleet)} for s in range(signatures)}
    return seconds, "unrelated" if unrelated else "related"


def _edges(rng: np.random.Generator, kind: str, count: int) -> list[tuple[int, ...]]:
    """Return the parents of each task among the `count`; they are numbered from 1."""
    if kind == "independent":
        return [()] * count
    if kind == "chains":
        chains = int(rng.integers(1, 6))
        return [(number - chains,) if number > chains else () for number in range(1, count + 1)]
    if kind == "fork-join":
        width, parents, last = int(rng.integers(2, 16)), [], 0
        for number in range(1, count + 1):
            place = (number - 1) % (width + 1)
            joins = tuple(range(number - width, number)) if place == width else ((last,) if last else ())
            last = number if place == width else last
            parents.append(joins)
        return parents
    return [
        tuple(sorted({int(p) for p in rng.integers(max(1, n - 15), n, size=int(rng.integers(0, 4)))})) if n > 1 else ()
        for n in range(1, count + 1)
    ]


def case(seed: int) -> Case:
    """Make the case of a seed."""
    rng = np.random.default_rng(seed)
    kind = KINDS[int(rng.integers(len(KINDS)))]
    fleet, topology, links = _fleet(rng)
    signatures = int(rng.integers(1, 6))
    seconds, related = _times(rng, fleet, signatures)
    count = int(10 ** rng.uniform(0.3, 2.3))
    bytes_of = [int(10 ** rng.uniform(3, 8)) if rng.random() < 0.6 else 0 for _ in range(signatures)]
    seconds["root|"] = dict.fromkeys((device.id for device in fleet), ROOT_S)
    tasks = [SimTask(Task(1, "root", "root|", 0.0, (), (), REQUEST))]
    for number, parents in enumerate(_edges(rng, kind, count), start=2):
        which = int(rng.integers(signatures))
        after = tuple(parent + 1 for parent in parents) or (1,)
        inputs = tuple(parent for parent in after if tasks[parent - 1].nbytes)
        task = Task(number, f"f{which}", f"f{which}|", 0.0, inputs, after, REQUEST)
        tasks.append(SimTask(task, 0.0, bytes_of[which]))
    return Case(kind, (related, *links), fleet, topology, tuple(tasks), seconds)


def learned(one: Case) -> CostModel:
    """Return a model that has seen each task a few times on each device."""
    cost = CostModel(one.fleet)
    for signature, by_device in one.seconds.items():
        for device in one.fleet:
            for _ in range(3):
                cost.observe(signature, 0.0, device, by_device[device.id])
    cost.result_bytes.update({entry.task.signature: entry.nbytes for entry in one.tasks})
    return cost


def makespans(one: Case) -> tuple[float, dict[str, float]]:
    """Return the makespan on the whole fleet, and on each device alone."""

    def takes_s(fleet: tuple[Device, ...]) -> float:
        done = simulate(Program(one.tasks), fleet, one.truth, cost=learned(one), topology=one.topology)
        return done.makespan_s - ROOT_S

    return takes_s(one.fleet), {device.id: takes_s((device,)) for device in one.fleet}


def main() -> None:
    """Run the cases and print the distribution."""
    given: argparse.Namespace = arguments(str(__doc__).splitlines()[0])
    count = 30 if given.quick else CASES
    ratios: dict[str, list[float]] = defaultdict(list)
    worst: list[tuple[float, int]] = []
    for seed in range(count):
        one = case(seed)
        whole_s, alone_s = makespans(one)
        ratio = whole_s / min(alone_s.values())
        for group in ("all", one.kind, *one.traits):
            ratios[group].append(ratio)
        worst.append((ratio, seed))
    worst.sort(reverse=True)
    bench = Bench("never_slower", f"{count} random fleets and programs: makespan / best device alone", (), given.out)
    for group, samples in ratios.items():
        bench.measure(group, samples, "×")
    bench.claim("worst case", worst[0][0], rival="best device alone", at_most=AT_MOST)
    bench.claim("cases over 1.02 ×", sum(r > AT_MOST for r, _ in worst), unit="cases", at_most=0)
    bench.claim("median speed-up", 1.0 / statistics.median(ratios["all"]), rival="best device alone")
    bench.note(worst_seeds=[(round(r, 4), seed) for r, seed in worst[:20]])
    bench.finish()


if __name__ == "__main__":
    main()
