"""What goes into a simulated run and what comes out of it, as values.

In: tasks with their arrival times. Out: programs and results. It must not run anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hetero.core.machine import Machine
from hetero.model.leases import LeasePhase, LeaseRequest
from hetero.model.tasks import Failure, Task

__all__ = ["Decision", "LeaseNews", "Program", "SimLease", "SimResult", "SimTask"]


class SimTask(NamedTuple):
    """One task of a program.

    Attributes
    ----------
    task
        As the core sees it.
    at_s
        When it is handed in, ascending in a program.
    nbytes
        Bytes of its result, which stay on the memory node of the device; 0 for a small value.
    nested
        What each attempt at it submits as it begins and waits for half-way; their ids and parents are set then. In an
        exclusive task, and in one of several devices, they run at once, as a part of it.
    """

    task: Task
    at_s: float = 0.0
    nbytes: int = 0
    nested: Sequence[SimTask] = ()


class SimLease(NamedTuple):
    """Devices that a program leases, and what it runs on them.

    Attributes
    ----------
    number
        > 0, its own.
    wish
        What is asked for.
    at_s
        When.
    tasks
        Handed in once it is granted, at times that count from then.
    held_s
        Seconds from then after which it is given back, once its tasks have ended; inf only where the wish expires.
    """

    number: int
    wish: LeaseRequest
    at_s: float = 0.0
    tasks: Sequence[SimTask] = ()
    held_s: float = 0.0


class LeaseNews(NamedTuple):
    """How a lease stood from a time on."""

    at_s: float
    phase: LeasePhase
    devices: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Program:
    """What is run.

    Attributes
    ----------
    tasks
        In the order in which they are handed in; may be a generator.
    items
        (id, bytes) of the values that lie on the host from the start.
    together
        True hands in whatever is due at one time at once, so that a policy sees all of it.
    released_after
        A result is released when this many further tasks were handed in and no open task reads it; 0 keeps them all.
    leases
        What it leases.
    """

    tasks: Iterable[SimTask]
    items: Sequence[tuple[int, int]] = ()
    released_after: int = 0
    together: bool = False
    leases: Sequence[SimLease] = ()


class Decision(NamedTuple):
    """One launch: which attempt was sent where and when; for a group the device of rank 0."""

    at_s: float
    task: int
    attempt: int
    device: str


@dataclass(slots=True)
class SimResult:
    """What happened in a simulated run.

    Attributes
    ----------
    makespan_s
        Last outcome minus first submission, s.
    busy_s
        Seconds that each device computed.
    finished
        Attempts whose result counted, per device.
    runs
        `Run` and `RunGroup` commands.
    launches
        Attempts in them.
    commits, failures
        Per task, the time of its outcome, and why it failed.
    events
        How many of each kind the core was told.
    happened
        Faults and what else the engine counts.
    decisions
        Every launch, in order.
    warnings
        What the user was told.
    leases
        What became of each, in order.
    machine
        The core as it ended.
    """

    makespan_s: float = 0.0
    busy_s: dict[str, float] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    launches: int = 0
    commits: dict[int, float] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    decisions: list[Decision] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    leases: dict[int, list[LeaseNews]] = field(default_factory=dict)
    machine: Machine | None = None
