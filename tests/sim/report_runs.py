"""Simulated runs for the tests of reports, and an account of time that shares no code with the package's.

In: a seed. Out: events and commands with their times. The oracle asks at the middle of each elementary interval what
was so, by looking through plain lists.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from hetero.core.machine import Rules
from hetero.core.obstacles import obstacle
from hetero.drive.sim import Costs, Program, SimHooks, SimTask, simulate
from hetero.drive.sim_faults import Faults
from hetero.model.annotations import CollectiveDone, TaskParts
from hetero.model.commands import RunGroup
from hetero.model.device import HOST_NODE, Device, DeviceType
from hetero.model.events import EVENTS, TaskFinished
from hetero.model.tasks import Request, Task
from hetero.model.topology import Link, MemoryNode, Topology

Records = list[tuple[float, Any]]

REQUESTS = (Request(retries=3), Request(on=("gpu",), retries=3), Request(devices=2), Request(priority=3, retries=2))
CALM = Faults()
ROUGH = Faults(
    crash=0.02, exception=0.05, transfer=0.03, start=0.05, duplicate=0.05, late=0.5, cancel=0.02, kill_every_s=0.15,
    permanent=0.1, back_s=0.1,
)  # fmt: skip


def fleet(rng: np.random.Generator) -> list[Device]:
    cpus = [Device(f"h0/cpu:{i}", "cpu", DeviceType("CPU"), "cpu", index=i) for i in range(int(rng.integers(1, 4)))]
    gpus = [
        Device(f"h0/cuda:{i}", "cuda", DeviceType("GPU"), "null", index=i, memory_node=f"h0/cuda:{i}")
        for i in range(int(rng.integers(2, 4)))
    ]
    return [*cpus, *gpus]


def topology(devices: Sequence[Device]) -> Topology:
    nodes = [device.memory_node for device in devices if device.memory_node != HOST_NODE]
    both = [pair for node in nodes for pair in ((HOST_NODE, node), (node, HOST_NODE))]
    links = [Link(*pair, 1e-4, 1e8, "pcie", "pcie") for pair in both]
    return Topology(tuple(MemoryNode(node, 10**8) for node in nodes), tuple(links))


def tasks(rng: np.random.Generator, count: int, groups: bool = True) -> list[SimTask]:
    found: list[SimTask] = []
    sized: list[int] = []
    at_s = 0.0
    for number in range(1, count + 1):
        kind = int(rng.choice(4, p=(0.75, 0.1, 0.05, 0.1) if groups else (0.8, 0.1, 0.0, 0.1)))
        after = {int(each) for each in number - rng.integers(1, 9, size=int(rng.integers(0, 3))) if each > 0}
        inputs = {int(each) for each in rng.choice(sized, size=1)} if sized and rng.random() < 0.4 else set()
        nbytes = int(rng.integers(10_000, 500_000)) if rng.random() < 0.4 and kind != 2 else 0
        if nbytes:
            sized.append(number)
        at_s += float(rng.exponential(0.003)) * (rng.random() < 0.7) + (0.3 if rng.random() < 0.02 else 0.0)
        name = ("small", "large")[int(rng.random() < 0.3)]
        task = Task(number, name, f"{name}|", 1.0, tuple(sorted(inputs)), tuple(sorted(after | inputs)), REQUESTS[kind])
        found.append(SimTask(task, at_s, nbytes))
    return found


def truth(task: Task, device: Device) -> float:
    """Return speeds of GPUs that are quick at what is large only."""
    base = 0.004 if task.name == "small" else 0.03
    return base / (6.0 if device.kind == "cuda" and task.name == "large" else 1.0)


def run(seed: int, *, rough: bool, count: int = 40, noise: float = 0.2) -> tuple[Records, list[Device]]:
    """Simulate a random program on a random fleet; return its records in order, each with its time."""
    rng = np.random.default_rng(seed)
    devices = fleet(rng)
    records: Records = []
    now_s = 0.0

    def take(record: tuple[object, ...]) -> None:
        nonlocal now_s
        if isinstance(record, EVENTS):
            now_s = record[0]  # type: ignore[assignment]
        records.append((now_s, record))

    simulate(
        Program(tasks(rng, count)), devices, truth, topology=topology(devices), seed=seed, hooks=SimHooks(take),
        costs=Costs(noise=noise, start_s=0.01), faults=ROUGH if rough else CALM,
        rules=Rules(stall_s=0.5, sweep_s=0.2), check_every=10**9,
    )  # fmt: skip
    return records, devices


def with_collectives(records: Records, seed: int) -> Records:
    """Let the members of group tasks tell of some collectives that they took part in."""
    rng = np.random.default_rng(seed)
    sizes = {record.launch.task: len(record.devices) for _, record in records if isinstance(record, RunGroup)}
    found: Records = []
    told = set()
    for at_s, record in records:
        of_a_group = isinstance(record, TaskFinished) and sizes.get(record.task, 1) > 1
        if of_a_group and (record.task, record.attempt, record.device) not in told:
            told.add((record.task, record.attempt, record.device))
            calls = 1 + record.task % 3
            cuts = np.sort(rng.random(2 * calls)) * record.seconds + record.started_s
            for begin_s, end_s in cuts.reshape(-1, 2).tolist():
                sums = ("all_reduce", "ring", 0, sizes[record.task], 8)
                which = (record.task, record.attempt, record.device)
                found.append((at_s, CollectiveDone(at_s, *which, *sums, begin_s, end_s - begin_s, 1)))
        found.append((at_s, record))
    return found


def with_parts(records: Records, seed: int) -> Records:
    """Let every second attempt that ended well tell of its parts; what it gives to links its time loses."""
    rng = np.random.default_rng(seed)
    found: Records = []
    told = set()
    for at_s, record in records:
        ended = isinstance(record, TaskFinished) and record.task % 2 and record.seconds > 0.0
        if ended and (record.task, record.attempt, record.device) not in told:
            told.add((record.task, record.attempt, record.device))
            load_s, store_s, wait_s, link_in_s, link_out_s = (record.seconds * rng.random(5) / 8.0).tolist()
            record = record._replace(seconds=record.seconds - link_in_s - link_out_s)
            which = (record.task, record.attempt, record.device, record.started_s)
            run_s = record.seconds - load_s - store_s - wait_s
            found.append((at_s, TaskParts(at_s, *which, load_s, run_s, store_s, wait_s, link_in_s, link_out_s)))
        found.append((at_s, record))
    return found


class _Sweep:
    """Lists of what was so, from when until when."""

    def __init__(self, records: Records, devices: list[Device]) -> None:
        self.devices = devices
        self.submitted: dict[int, tuple[float, Task]] = {}
        self.over: dict[int, float] = {}
        self.winner: dict[int, tuple[int, str]] = {}
        self.runs: list[tuple[int, int, str, float, float, float, bool]] = []
        self.queued: list[tuple[str, float, float]] = []
        self.copies: list[tuple[int, str, str, float, float]] = []
        self.up: list[tuple[str, float, float]] = []
        self.sums: list[tuple[str, float, float]] = []
        self.parts: dict[tuple[int, int, str], list[tuple[str, float]]] = {}
        self._read(records)

    def _read(self, records: Records) -> None:
        sent: dict[tuple[int, int, str], float] = {}
        ordered: dict[tuple[int, str, str], list[float]] = defaultdict(list)
        since: dict[str, float] = {}
        busy_until: dict[str, float] = defaultdict(float)
        for at_s, record in records:
            kind = type(record).__name__
            if kind == "TaskSubmitted":
                first_s = self.submitted.get(record.task.id, (at_s, None))[0]
                self.submitted[record.task.id] = (first_s, record.task)
                self.over.pop(record.task.id, None)
            elif kind == "Run":
                sent.update({(each.task, each.attempt, record.device): at_s for each in record.launches})
            elif kind == "RunGroup":
                sent.update({(record.launch.task, record.launch.attempt, name): at_s for name in record.devices})
            elif kind in ("TaskFinished", "TaskFailed"):
                launch_s = sent.pop((record.task, record.attempt, record.device), None)
                if launch_s is not None:
                    told = self.parts.get((record.task, record.attempt, record.device), [])
                    end_s = record.started_s + record.seconds
                    end_s += sum(seconds for what, seconds in told if what.startswith("transfer"))
                    busy_until[record.device] = max(busy_until[record.device], end_s)
                    well = kind == "TaskFinished"
                    if not well and record.seconds == 0.0:
                        self.queued.append((record.device, launch_s, end_s))
                        continue
                    times = (launch_s, record.started_s, end_s, well)
                    self.runs.append((record.task, record.attempt, record.device, *times))
            elif kind == "TaskWithdrawn":
                launch_s = sent.pop((record.task, record.attempt, record.device), None)
                if launch_s is not None:
                    self.queued.append((record.device, launch_s, at_s))
            elif kind == "CollectiveDone":
                self.sums.append((record.device, record.started_s, record.started_s + record.seconds))
            elif kind == "TaskParts":
                self.parts[record.task, record.attempt, record.device] = [
                    ("transfer in", record.link_in_s), ("loading", record.load_s), ("compute", record.run_s),
                    ("waiting for memory", record.wait_s), ("storing", record.store_s),
                    ("transfer out", record.link_out_s),
                ]  # fmt: skip
            elif kind == "DeviceReady":
                since.setdefault(record.device, at_s)
            elif kind == "DeviceLost":
                if record.device in since:
                    self.up.append((record.device, since.pop(record.device), at_s))
                mine = [key for key in sent if key[2] == record.device]
                for place, key in enumerate(mine):
                    launch_s = sent.pop(key)
                    begin_s = max(launch_s, busy_until[record.device])
                    if place == 0 and begin_s < at_s:
                        self.runs.append((*key, launch_s, begin_s, at_s, False))
                    else:
                        self.queued.append((record.device, launch_s, at_s))
                node = next(each.memory_node for each in self.devices if each.id == record.device)
                for item, src, dst in [key for key in ordered if node in key[1:]]:
                    self.copies += [(item, src, dst, begin_s, at_s) for begin_s in ordered.pop((item, src, dst))]
            elif kind == "Commit":
                self.over[record.task] = at_s
                self.winner[record.task] = (record.attempt, record.device)
            elif kind == "Fail" and record.task not in self.winner:
                self.over[record.task] = at_s
            elif kind == "Transfer":
                ordered[record.item, record.src, record.dst].append(at_s)
            elif kind in ("TransferFinished", "TransferFailed"):
                orders = ordered.get((record.item, record.src, record.dst))
                if orders:
                    begin_s = orders.pop(0)
                    if kind == "TransferFinished":
                        begin_s, at_s = record.started_s, record.started_s + record.seconds
                    self.copies.append((record.item, record.src, record.dst, begin_s, at_s))
        starts = [at_s for at_s, _ in self.submitted.values()]
        self.begin_s = min(starts)
        self.end_s = max([*self.over.values(), *(each[5] for each in self.runs)])
        self.up += [(name, at_s, inf) for name, at_s in since.items()]

    def seconds(self) -> list[dict[str, float]]:
        points = sorted({self.begin_s, self.end_s, *self._points()})
        found: list[dict[str, float]] = [defaultdict(float) for _ in self.devices]
        for from_s, until_s in itertools.pairwise(points):
            if from_s >= self.begin_s and until_s <= self.end_s:
                middle_s = (from_s + until_s) / 2.0
                state = self._tasks_at(middle_s)
                for index, device in enumerate(self.devices):
                    found[index][self._kind(device, middle_s, state)] += until_s - from_s
        return found

    def _points(self) -> list[float]:
        points = [each[0] for each in self.submitted.values()] + list(self.over.values())
        points += [at_s for each in self.runs for at_s in each[3:6]]
        for *which, _, from_s, _, _ in self.runs:
            points += [from_s + each for each in itertools.accumulate(s for _, s in self.parts.get(tuple(which), ()))]
        points += [at_s for each in (*self.queued, *self.up, *self.sums) for at_s in each[1:] if at_s < inf]
        return points + [at_s for each in self.copies for at_s in each[3:]]

    def _tasks_at(self, at_s: float) -> tuple[list[Request], list[Request]]:
        """Return the requests of tasks that are ready and have not begun, and of those that are not ready."""
        ready, blocked = [], []
        for number, (since_s, task) in self.submitted.items():
            if not since_s <= at_s < self.over.get(number, self.end_s):
                continue
            if any(self.over.get(parent, inf) > at_s for parent in task.after if parent in self.submitted):
                blocked.append(task.request)
                continue
            mine = [each for each in self.runs if each[0] == number]
            running = any(each[4] <= at_s < each[5] for each in mine)
            comes = any(each[4] > at_s for each in mine)
            if not running and (comes or number not in self.winner):
                ready.append(task.request)
        return ready, blocked

    def _kind(self, device: Device, at_s: float, state: tuple[list[Request], list[Request]]) -> str:
        for task, attempt, name, _, from_s, until_s, well in self.runs:
            if name == device.id and from_s <= at_s < until_s:
                counts = well and self.winner.get(task, (None,))[0] == attempt
                if not counts:
                    return "retry"
                for what, seconds in self.parts.get((task, attempt, name), ()):
                    from_s += seconds
                    if at_s < from_s:
                        if what == "compute":
                            break
                        return what
                together = any(who == device.id and since_s <= at_s < end_s for who, since_s, end_s in self.sums)
                return "collective" if together else "compute"
        for task, attempt, name, _, _, until_s, _ in self.runs:
            if name == device.id and until_s <= at_s:
                last_s = max(each[5] for each in self.runs if each[:2] == (task, attempt))
                if at_s < last_s and sum(each[:2] == (task, attempt) for each in self.runs) > 1:
                    return "collective"
        mine = [each for each in self.up if each[0] == device.id]
        if not any(from_s <= at_s < until_s for _, from_s, until_s in mine):
            return "retry" if any(until_s <= at_s for _, _, until_s in mine) else "start-up"
        if self._is_fed(device, at_s):
            return "transfer in"
        if self._is_emptied(device, at_s):
            return "transfer out"
        waits = [(name, from_s, until_s) for _, _, name, from_s, until_s, *_ in self.runs] + self.queued
        if any(name == device.id and from_s <= at_s < until_s for name, from_s, until_s in waits):
            return "overhead"
        ready, blocked = state
        if any(not obstacle(device, request, None) for request in ready):
            return "idle"
        if any(not obstacle(device, request, None) for request in blocked):
            return "waiting for data"
        return "waiting for work"

    def _is_fed(self, device: Device, at_s: float) -> bool:
        read = {item for each in self.runs if each[2] == device.id for item in self.submitted[each[0]][1].inputs}
        return any(
            dst == device.memory_node and from_s <= at_s < until_s and (dst != HOST_NODE or item in read)
            for item, _, dst, from_s, until_s in self.copies
        )

    def _is_emptied(self, device: Device, at_s: float) -> bool:
        return any(
            src == device.memory_node
            and from_s <= at_s < until_s
            and (src != HOST_NODE or self.winner.get(item, (0, ""))[1] == device.id)
            for item, src, _, from_s, until_s in self.copies
        )


def swept(records: Records, devices: list[Device]) -> list[dict[str, float]]:
    """Return the seconds per category of each device, by looking at every elementary interval."""
    return _Sweep(records, devices).seconds()
