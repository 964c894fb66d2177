"""The report names what held a run up: simulated runs with one planted cause each, and what was lost to it.

Each run is drawn at random: fleet, speeds, tasks, noise, and how much of the cause. The truth is the same program
simulated without the cause. What counts is the first of the gains that the report gives, and its seconds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, arguments
from hetero.drive.frame import current
from hetero.drive.sim import Costs, Program, SimHooks, SimTask, simulate
from hetero.model.annotations import TaskParts
from hetero.model.device import HOST_NODE, Device, DeviceType
from hetero.model.events import EVENTS, TaskFailed, TaskFinished, UtilisationReported
from hetero.model.tasks import Failure, Request, Task
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.report.causes import Gain, gains
from hetero.report.trace_reader import collect, only, read_run

RUNS, LIVES = 50, 12
RIGHT = 45
NEAR = 0.15


@dataclass
class World:
    """One program on one fleet, with a cause or without.

    Attributes
    ----------
    start_s : s until workers take tasks
    load : share that others take of each device's time
    load_s : by function, s that reading the arguments takes
    fail : probability that a task's first attempt is repeated
    late_s : s between two submissions, by position
    """

    seed: int
    devices: list[Device]
    tasks: list[SimTask]
    speed: dict[str, float]
    work: dict[int, float]
    links: list[Link] = field(default_factory=list)
    noise: float = 0.1
    start_s: float = 0.0
    message_s: float = 2e-4
    load: float = 0.0
    load_s: float = 0.0
    again: frozenset[int] = frozenset()
    policy: str = "eft"


def drawn(seed: int) -> World:
    """Draw a program that nothing holds up."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 5))
    devices = [Device(f"h0/cpu:{i}", "cpu", DeviceType("CPU"), "cpu", index=i) for i in range(count)]
    speed = {device.id: float(rng.uniform(1.0, 2.0)) for device in devices}
    base_s = float(rng.uniform(0.02, 0.2))
    tasks, work = [], {}
    for number in range(1, int(rng.integers(60, 200)) + 1):
        name = ("f", "g")[number % 2]
        after = (number - int(rng.integers(5, 20)),) if rng.random() < 0.2 else ()
        after = tuple(each for each in after if each > 0)
        tasks.append(SimTask(Task(number, name, f"{name}|", 1.0, (), after, Request())))
        work[number] = base_s * (1.0 if name == "f" else 2.0)
    return World(seed, devices, tasks, speed, work, noise=float(rng.uniform(0.02, 0.2)))


def simulated(world: World) -> tuple[float, Any]:
    """Run a program; return s that it took, and what its trace tells."""
    records: list[tuple[float, Any]] = []
    now_s = 0.0

    def truth(task: Task, device: Device) -> float:
        stray = exp(world.noise * np.random.default_rng((world.seed, task.id)).standard_normal())
        seconds = world.work[task.id] * world.speed[device.id] * stray
        if task.name == "f":
            seconds += world.load_s
        return seconds / (1.0 - world.load) * (2.0 if task.id in world.again else 1.0)

    def take(record: Any) -> None:
        nonlocal now_s
        if isinstance(record, EVENTS):
            now_s = record[0]
        records.append((now_s, record))

    nodes = [MemoryNode(each.memory_node, 10**12) for each in world.devices if each.memory_node != HOST_NODE]
    topology = Topology(tuple(nodes), tuple(world.links))
    costs = Costs(start_s=world.start_s, launch_s=0.0)
    result = simulate(
        Program(world.tasks), world.devices, truth, policy=world.policy, topology=topology, costs=costs,
        seed=world.seed, hooks=SimHooks(take), check_every=10**9,
    )  # fmt: skip
    assert not result.failures
    run = collect(told(world, records), world.devices)
    links = [{name: getattr(each, name) for name in each.__slots__} for each in world.links]
    sizes = [{"id": each.id, "capacity_bytes": each.capacity_bytes} for each in nodes]
    run.head = {"policy": world.policy, "topology": {"nodes": sizes, "links": links}}
    return result.makespan_s, run


def told(world: World, records: list[tuple[float, Any]]) -> list[tuple[float, Any]]:
    """Return what a live trace would: parts of times, attempts that failed, the load of others."""
    found: list[tuple[float, Any]] = []
    for device in world.devices if world.load else ():
        found.append((0.0, UtilisationReported(0.0, device.id, world.load)))
    for at_s, record in records:
        if isinstance(record, TaskFinished) and world.load_s:
            name = "f" if record.task % 2 == 0 else "g"
            load_s = world.load_s if name == "f" else 0.0
            which = (record.task, record.attempt, record.device, record.started_s)
            found.append((at_s, TaskParts(at_s, *which, load_s, record.seconds - load_s, 0.0, 0.0, 0.0, 0.0)))
        found.append((at_s, record))
    if not world.again:
        return found
    return [each for entry in found for each in _twice(world, entry)]


def _twice(world: World, entry: tuple[float, Any]) -> list[tuple[float, Any]]:
    """Tell an attempt that took twice its time as one that failed and one that did not."""
    from hetero.model.commands import Commit, Launch, Run

    at_s, record = entry
    if isinstance(record, Commit) and record.task in world.again:
        return [(at_s, record._replace(attempt=2))]
    if not isinstance(record, TaskFinished) or record.task not in world.again:
        return [entry]
    half_s = record.seconds / 2.0
    middle_s = record.started_s + half_s
    failure = Failure("exception", "it failed")
    return [
        (middle_s, TaskFailed(middle_s, record.task, 1, record.device, record.started_s, half_s, failure)),
        (middle_s, Run(record.device, (Launch(record.task, 2, half_s),))),
        (at_s, TaskFinished(at_s, record.task, 2, record.device, middle_s, half_s, record.nbytes, record.node)),
    ]


# -- causes: each gives a world with it and the same without it


def slow_start(world: World, rng: np.random.Generator) -> tuple[World, World]:
    """Let workers take long to start."""
    span_s = simulated(world)[0]
    return replace(world, start_s=span_s * float(rng.uniform(0.2, 1.0))), world


def harmful_device(world: World, rng: np.random.Generator) -> tuple[World, World]:
    """Add a device that is far too slow, under a policy that does not know times."""
    slow = Device("h0/cpu:9", "cpu", DeviceType("CPU"), "cpu", index=9)
    speed = {**world.speed, slow.id: float(rng.uniform(15.0, 40.0))}
    without = replace(world, policy="round_robin")
    return replace(without, devices=[*world.devices, slow], speed=speed), without


def pinned(world: World, rng: np.random.Generator) -> tuple[World, World]:
    """Pin one function to the slowest device."""
    slow = max(world.devices, key=lambda device: world.speed[device.id])
    name = ("f", "g")[int(rng.integers(2))]
    tasks = [
        each._replace(task=each.task._replace(request=Request(on=(slow.id,)))) if each.task.name == name else each
        for each in world.tasks
    ]
    return replace(world, tasks=tasks), world


def loaded(world: World, rng: np.random.Generator) -> tuple[World, World]:
    """Let other programs take a share of the host."""
    return replace(world, load=float(rng.uniform(0.2, 0.6))), world


def slow_link(world: World, rng: np.random.Generator) -> tuple[World, World]:
    """Put the devices behind links over which results go from task to task; the truth has twice the bandwidth."""
    far = [replace(each, memory_node=f"{each.id}.mem") for each in world.devices]
    nodes = [each.memory_node for each in far]
    pairs = [(HOST_NODE, node) for node in nodes] + [(node, HOST_NODE) for node in nodes]
    names = {number: far[number % len(far)].id for number in range(1, len(world.tasks) + 1)}
    tasks = []
    for entry in world.tasks:
        number = entry.task.id
        inputs = (number - 1,) if number > 1 and number % 10 != 1 else ()
        request = Request(on=(names[number],))
        task = entry.task._replace(inputs=inputs, after=inputs, request=request)
        tasks.append(SimTask(task, 0.0, 1_000_000))
    step_s = np.mean(list(world.work.values())) * float(rng.uniform(1.0, 4.0))
    links = [Link(src, dst, 0.0, 1e6 / step_s) for src, dst in pairs]
    twice = [replace(each, bandwidth_bytes_per_s=2.0 * each.bandwidth_bytes_per_s) for each in links]
    given = replace(world, devices=far, tasks=tasks, links=links)
    return given, replace(given, links=twice)


def large_arguments(world: World, rng: np.random.Generator) -> tuple[World, World]:
    """Let reading the arguments of one function take long."""
    return replace(world, load_s=world.work[1] * float(rng.uniform(0.5, 3.0))), world


def failing(world: World, rng: np.random.Generator) -> tuple[World, World]:
    """Let a share of the tasks fail once at their end."""
    share = float(rng.uniform(0.2, 0.6))
    return replace(world, again=frozenset(n for n in world.work if rng.random() < share)), world


def late(world: World, rng: np.random.Generator) -> tuple[World, World]:
    """Hand tasks in slowly."""
    span_s = simulated(world)[0]
    step_s = span_s * float(rng.uniform(1.3, 3.0)) / len(world.tasks)
    tasks = [each._replace(at_s=step_s * place) for place, each in enumerate(world.tasks)]
    return replace(world, tasks=tasks), world


def stragglers(world: World, rng: np.random.Generator) -> tuple[World, World]:
    """Make some tasks far longer than others of their function."""
    span_s = simulated(world)[0]
    chosen = rng.choice(list(world.work), size=int(rng.integers(1, 4)), replace=False)
    work = {**world.work, **{int(n): span_s * float(rng.uniform(0.5, 1.5)) for n in chosen}}
    return replace(world, work=work), world


PLANTED: dict[str, Callable[[World, np.random.Generator], tuple[World, World]]] = {
    "start-up": slow_start,
    "device": harmful_device,
    "pin": pinned,
    "load": loaded,
    "link": slow_link,
    "loading": large_arguments,
    "attempts": failing,
    "late": late,
    "stragglers": stragglers,
}


def judged(seed: int) -> tuple[str, Gain | None, float, float]:
    """Plant one cause; return it, the first gain of the report, the true gain and the run's length, s."""
    cause = list(PLANTED)[seed % len(PLANTED)]
    world, without = PLANTED[cause](drawn(seed), np.random.default_rng((seed, 1)))
    took_s, run = simulated(world)
    found = gains(run).found
    return cause, found[0] if found else None, took_s - simulated(without)[0], took_s


# -- live runs: what sleeps, on two worker processes


def warmed() -> None:
    """Do nothing, once this module was imported."""


def sleeps(seconds: float, slow: float) -> None:
    """Take so long, and `slow` times as long on the second device."""
    time.sleep(seconds * (slow if hetero.get_current_device().index == 1 else 1.0))


def sleeps_again(seconds: float, slow: float) -> None:
    """Sleep, and fail at the first attempt."""
    sleeps(seconds, slow)
    if current_attempt() == 1:
        raise ValueError("the first attempt")


def current_attempt() -> int:
    """Return the number of the attempt that runs."""
    frame = current()
    assert frame is not None
    return frame.attempt


class Slow:
    """Sleeps while it is unpickled in a worker."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self.seconds, os.getpid())


def _loaded(seconds: float, home: int) -> float:
    if os.getpid() != home:
        time.sleep(seconds)
    return 0.0


def reads(given: Any, seconds: float, slow: float) -> None:
    """Sleep, once the argument is there."""
    sleeps(seconds, slow)


def lived(cause: str, rng: np.random.Generator, planted: bool, trace: Path) -> float:
    """Run tasks live, with a cause or without; return s from the first submission to the last outcome."""
    unit_s, slow = float(rng.uniform(0.02, 0.05)), float(rng.uniform(1.0, 1.5))
    much = float(rng.uniform(1.0, 2.0))
    call: Any = hetero.task(sleeps)
    tasks = [(unit_s, slow)] * 40
    if planted and cause == "pin":
        call = hetero.task(sleeps, on="cpu:1")
    if planted and cause == "stragglers":
        tasks[30] = (20.0 * unit_s * much, slow)
    if planted and cause == "attempts":
        call = hetero.task(sleeps_again, retries=2)
    if cause == "loading":
        call, tasks = hetero.task(reads), [(Slow(much * unit_s * planted), *each) for each in tasks]
    with hetero.Context(devices="2xcpu", trace=str(trace), history=False) as ctx:
        if not (planted and cause == "start-up"):
            ctx.gather([ctx.submit(hetero.task(warmed, on=each.id)) for each in ctx.devices])
        futures = []
        for each in tasks:
            futures.append(ctx.submit(call, *each))
            if planted and cause == "late":
                time.sleep(unit_s * much)
        ctx.gather(futures)
    return only(read_run(trace), [call.name]).span_s


LIVE = ("start-up", "pin", "loading", "attempts", "late", "stragglers")


def judged_live(seed: int, folder: Path) -> tuple[str, Gain | None, float, float]:
    """Do what `judged` does with a live run."""
    cause = LIVE[seed % len(LIVE)]
    traces = [folder / f"{seed}.{word}.jsonl" for word in ("with", "without")]
    took_s, without_s = (
        lived(cause, np.random.default_rng((seed, 2)), planted, trace)
        for planted, trace in zip((True, False), traces, strict=True)
    )
    run = read_run(traces[0])
    found = gains(only(run, {task.name for task in run.tasks.values()} - {"warmed"})).found
    return cause, found[0] if found else None, took_s - without_s, took_s


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    runs = 9 if given.quick else RUNS
    bench = Bench("causes", "what the report says held a run up", (), given.out)
    lives = 0 if given.quick else LIVES
    with tempfile.TemporaryDirectory() as folder:
        rows = [judged(seed) for seed in range(1, runs + 1 - lives)]
        rows += [judged_live(seed, Path(folder)) for seed in range(lives)]
    right, near, errors, missed = 0, 0, [], Counter[str]()
    for seed, (cause, first, true_s, took_s) in enumerate(rows, start=1):
        error = abs(first.seconds - true_s) / max(abs(true_s), 1e-9) if first else 1.0
        if first is not None and first.cause == cause:
            right += 1
            near += error <= NEAR
            errors.append(100.0 * error)
        else:
            missed[f"{cause} → {first.cause if first else 'nothing'}"] += 1
        print(seed, cause, first and first[:3], round(true_s, 3), round(took_s, 3), round(error, 3), flush=True)
    bench.measure("error of the gain, where the cause is right", errors, "%")
    share = RIGHT / RUNS * runs
    bench.claim(f"right cause first, of {runs} runs", right, unit="", at_least=share)
    bench.claim(f"and its gain within 15 %, of {runs} runs", near, unit="", at_least=share)
    print(dict(missed))
    bench.finish()


if __name__ == "__main__":
    main()
