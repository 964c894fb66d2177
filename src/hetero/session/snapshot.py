"""What a run is doing at one moment, as plain values.

In: an open Context. Out: counts of tasks, devices, memory nodes and links.
It must not keep anything: who wants rates takes two snapshots.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from hetero.model.device import DeviceStatus

if TYPE_CHECKING:
    from hetero.core.machine import Machine
    from hetero.core.state import DeviceState
    from hetero.floor.documents import JsonObject
    from hetero.session.context import Context

__all__ = ["DeviceNow", "LinkNow", "NodeNow", "Snapshot", "TasksNow", "snapshot"]


@dataclass(frozen=True, slots=True)
class TasksNow:
    """Counts of tasks: submitted = waiting + ready + placed + running + finished + failed."""

    submitted: int
    waiting: int
    ready: int
    placed: int
    running: int
    finished: int
    failed: int
    retried: int


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """One device.

    Attributes
    ----------
    id, kind, name
        As in `hetero devices`.
    remark
        'throttled to 0.25', 'simulated' or ''.
    phase
        Starting, ready, lost or gone.
    task, task_s
        Name of the task that runs, '' for none, and the seconds since it began.
    queued
        Tasks that were placed here and have not begun.
    finished, busy_s
        Tasks that were finished here, and the seconds that they took.
    pid
        The worker's process id, 0 where it has none of its own.
    cpu_s, held_bytes
        Processor time and memory of that process so far, None where unknown.
    status
        What the device reports of itself.
    """

    id: str
    kind: str
    name: str
    remark: str
    phase: str
    task: str
    task_s: float
    queued: int
    finished: int
    busy_s: float
    pid: int
    cpu_s: float | None
    held_bytes: int | None
    status: DeviceStatus


@dataclass(frozen=True, slots=True)
class NodeNow:
    """How full a memory node is, in bytes; capacity_bytes is 0 where it is unknown."""

    id: str
    used_bytes: int
    peak_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class LinkNow:
    """Transfers over one link that are finished, and their bytes."""

    src: str
    dst: str
    transfers: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of a run; `at_s` is the seconds since it began."""

    run: str
    pid: int
    engine: str
    policy: str
    at_s: float
    tasks: TasksNow
    devices: tuple[DeviceNow, ...]
    nodes: tuple[NodeNow, ...]
    links: tuple[LinkNow, ...]

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def of_dict(cls, values: JsonObject) -> Snapshot:
        """Read what `as_dict` gave, also after a way through JSON."""
        devices = [DeviceNow(**{**row, "status": DeviceStatus(**row["status"])}) for row in values["devices"]]
        parts = {
            "tasks": TasksNow(**values["tasks"]),
            "devices": tuple(devices),
            "nodes": tuple(NodeNow(**row) for row in values["nodes"]),
            "links": tuple(LinkNow(**row) for row in values["links"]),
        }
        return cls(**{**values, **parts})


def snapshot(ctx: Context) -> Snapshot:
    """Return what a Context is doing now.

    Examples
    --------
    >>> import hetero
    >>> with hetero.Context(devices="1xcpu", isolation="thread") as ctx:
    ...     _ = ctx.run(sum, [1, 2])
    ...     snapshot(ctx).tasks.finished
    1
    """
    import os

    from hetero.session.fleet_speed import status

    driver = ctx.driver
    pids = driver.engine.pids()
    states = status(ctx.devices, 0.0)
    now_s = driver.now_s()
    policy, tasks, rows, links = driver.ask(
        lambda machine: (machine.placer.policy.name, _tasks(machine), _devices(machine, now_s), _links(machine))
    )
    devices = [
        row(*_process(pids.get(device.id, 0)), now) for device, row, now in zip(ctx.devices, rows, states, strict=True)
    ]
    nodes = [
        NodeNow(node, use.used_bytes, use.peak_bytes, int(use.capacity_bytes) if use.capacity_bytes < inf else 0)
        for node, use in ctx.usage.items()
    ]
    return Snapshot(ctx.name, os.getpid(), ctx.engine, policy, now_s, tasks, tuple(devices), tuple(nodes), tuple(links))


def _tasks(machine: Machine) -> TasksNow:
    counts, states = machine.counts, machine.fleet.states
    running = len({next(iter(state.sent)) for state in states if state.sent})
    placed = len({task for state in states for task in (*state.sent, *(one.task.id for one in state.placed))}) - running
    ready = machine.placer.ready.count + len(machine.placer.groups)
    waiting = max(len(machine.tasks) - ready - placed - running, 0)
    return TasksNow(counts.submitted, waiting, ready, placed, running, counts.committed, counts.failed, counts.retried)


def _devices(machine: Machine, now_s: float) -> list[partial[DeviceNow]]:
    return [_device(state, now_s) for state in machine.fleet.states]


def _device(state: DeviceState, now_s: float) -> partial[DeviceNow]:
    """Return a device as far as the core knows it; its process and its status are left to be told."""
    device = state.device
    first = next(iter(state.sent.values()), None)
    remarks = [f"throttled to {device.throttle_frac:g}"] if device.throttle_frac < 1.0 else []
    remarks += ["simulated"] if device.simulated else []
    task, task_s = (first[0].task.name, max(now_s - state.started_s, 0.0)) if first else ("", 0.0)
    queued = len(state.placed) + max(len(state.sent) - 1, 0)
    told = device.id, device.kind, device.name, ", ".join(remarks), state.phase.name.lower()
    return partial(DeviceNow, *told, task, task_s, queued, state.finished, state.busy_s)


def _process(pid: int) -> tuple[int, float | None, int | None]:
    """Return the number of a worker's process, its CPU seconds and its bytes; None where it has ended or never was."""
    import psutil

    if pid:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            times = process.cpu_times()
            return pid, times.user + times.system, process.memory_info().rss
    return pid, None, None


def _links(machine: Machine) -> list[LinkNow]:
    return [LinkNow(src, dst, *moved) for (src, dst), moved in sorted(machine.replicas.moved.items())]
