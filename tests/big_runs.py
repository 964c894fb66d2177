"""Runs of any size for tests and benchmarks of reports, made without simulating them.

In: numbers of tasks and devices, a seed. Out: events and commands with their times, or the run that they make.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.model.commands import Commit, Launch, Run, Transfer
from hetero.model.device import Device, DeviceType
from hetero.model.events import DeviceAdded, DeviceReady, TaskFinished, TaskSubmitted, TransferFinished
from hetero.model.tasks import Request, Task
from hetero.report.record import Attempt, RunRecord, TaskRecord

__all__ = ["big_run", "devices", "very_big_run"]

_NAMES = ("gemm", "syrk", "trsm", "potrf", "load", "norm", "reduce", "write", "sort")
_ODDS = (0.4, 0.2, 0.15, 0.05, 0.05, 0.05, 0.05, 0.03, 0.02)


def devices(count: int) -> list[Device]:
    """Return a quarter GPUs, the others CPUs."""
    gpus = count // 4
    made = [
        Device(f"h0/cuda:{at}", "cuda", DeviceType("GPU"), "null", index=at, memory_node=f"h0/cuda:{at}")
        for at in range(gpus)
    ]
    return [*made, *(Device(f"h0/cpu:{at}", "cpu", DeviceType("CPU"), "cpu", index=at) for at in range(count - gpus))]


def big_run(tasks: int, fleet: list[Device], seed: int = 0) -> list[tuple[float, Any]]:
    """Return the records of a run in which each device takes the next ready task when it is free."""
    rng = np.random.default_rng(seed)
    request = Request()
    names = rng.choice(len(_NAMES), size=tasks + 1, p=_ODDS)
    base_s = rng.lognormal(-3.0, 0.4, tasks + 1)
    told = rng.lognormal(0.0, 0.1, tasks + 1)
    parents = rng.integers(1, 200, (tasks + 1, 2)) * (rng.random((tasks + 1, 2)) < 0.5)
    moves = rng.random(tasks + 1) < 0.05
    slow = np.array([1.0 if each.kind == "cuda" else 2.5 for each in fleet])
    free = np.zeros(len(fleet))
    end = np.zeros(tasks + 1)
    found: list[tuple[float, int, int, Any]] = []
    for number in range(1, tasks + 1):
        name = _NAMES[names[number]]
        after = tuple(sorted({number - int(each) for each in parents[number] if 0 < each < number}))
        at = int(np.argmin(free + slow * 0.02))
        took_s = float(base_s[number] * slow[at])
        ready_s = max((float(end[each]) for each in after), default=0.0)
        start_s = max(float(free[at]), ready_s) + 1e-4
        end_s = start_s + took_s
        free[at] = end[number] = end_s
        sent_s = max(ready_s, start_s - 0.01)
        device = fleet[at]
        predicted_s = took_s * float(told[number])
        found.append((0.0, 0, number, TaskSubmitted(0.0, Task(number, name, f"{name}|", 1.0, after, after, request))))
        found.append((sent_s, 1, number, Run(device.id, (Launch(number, 1, predicted_s),))))
        if moves[number] and after and device.memory_node != "h0/ram":
            copy = (after[0], "h0/ram", device.memory_node, 1_000_000)
            found.append((sent_s - 0.004, 2, number, Transfer(*copy)))
            found.append((sent_s, 2, number, TransferFinished(sent_s, *copy, sent_s - 0.004, 0.004)))
        finished = TaskFinished(end_s, number, 1, device.id, start_s, took_s, 100_000, device.memory_node)
        found.append((end_s, 3, number, finished))
        found.append((end_s, 4, number, Commit(number, 1, device.id)))
    found.sort(key=lambda each: each[:3])
    ready = [(0.0, each) for device in fleet for each in (DeviceAdded(0.0, device), DeviceReady(0.0, device.id))]
    return [*ready, *((at_s, record) for at_s, _, _, record in found)]


def very_big_run(tasks: int, fleet: list[Device], seed: int = 0) -> RunRecord:
    """Return a run in which each device computes one task after the other, each of which needs the one before it."""
    took_s = np.random.default_rng(seed).lognormal(-7.0, 0.4, tasks)
    request, count, free = Request(), len(fleet), [0.0] * len(fleet)
    run = RunRecord(devices=tuple(fleet), lost=[[] for _ in fleet])
    for row, took in enumerate(took_s.tolist()):
        at, number = row % count, row + 1
        name, after = _NAMES[row % len(_NAMES)], (number - count,) if row >= count else ()
        from_s, free[at] = free[at], free[at] + took
        commit = (1, fleet[at].id)
        run.tasks[number] = TaskRecord(name, f"{name}|", after, after, request, 0.0, from_s, free[at], commit)
        run.attempts.append(Attempt(number, 1, at, from_s, from_s, free[at], 1.05 * took, "done"))
    run.end_s = max(free)
    run.up = [[(0.0, run.end_s)] for _ in fleet]
    return run
