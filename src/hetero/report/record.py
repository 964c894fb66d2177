"""A run as values: tasks, attempts, transfers, the lives of devices; and how to make many of them quickly.

In: what `trace_reader` found in a trace. Out: values. It must not judge where time went: that is `account`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from hetero.floor.documents import JsonObject
from hetero.model.annotations import CollectiveDone
from hetero.model.device import Device
from hetero.model.tasks import Request

__all__ = ["Attempt", "Outcome", "RunRecord", "TaskRecord", "TransferRecord", "nothing_collected"]

Outcome = Literal["done", "failed", "lost", "unused"]
"""How an attempt ended: its result counted; it failed; its worker died; its result was not wanted."""


class Attempt(NamedTuple):
    """One attempt on one device; a member of a group task has one of its own.

    One that was suspended stands here once for each time that it had its device.

    Attributes
    ----------
    device
        Index in `RunRecord.devices`.
    launch_s, start_s, end_s
        Seconds, when it was sent, took the device and gave it back.
    predicted_s
        Seconds, what was expected, inf where nothing was.
    link_in_s, load_s, store_s, wait_s, link_out_s
        Seconds of it that were no running, in the order of `TaskParts`; 0 in traces that do not tell.
    """

    task: int
    attempt: int
    device: int
    launch_s: float
    start_s: float
    end_s: float
    predicted_s: float
    outcome: Outcome
    link_in_s: float = 0.0
    load_s: float = 0.0
    store_s: float = 0.0
    wait_s: float = 0.0
    link_out_s: float = 0.0

    @property
    def taken_s(self) -> float:
        """Seconds that it took of its device, as the scheduler learns them: without emulated links."""
        return self.end_s - self.start_s - self.link_in_s - self.link_out_s


class TransferRecord(NamedTuple):
    """One copy of a data item; `ok` is False where it did not happen."""

    item: int
    src: str
    dst: str
    nbytes: int
    start_s: float
    end_s: float
    ok: bool


@dataclass(slots=True)
class TaskRecord:
    """One task.

    Attributes
    ----------
    submitted_s, ready_s, over_s
        Seconds, when it was handed in, when all that it needs was there, when it was answered; inf where that never
        came.
    commit
        (attempt, device id) whose result counted, None where none did.
    failure
        Why it failed for good, '' where it did not.
    """

    name: str
    signature: str
    inputs: tuple[int, ...]
    after: tuple[int, ...]
    request: Request
    submitted_s: float
    ready_s: float = inf
    over_s: float = inf
    commit: tuple[int, str] | None = None
    failure: str = ""


@dataclass(slots=True)
class RunRecord:
    """All that a trace tells of a run, in the order of time.

    Attributes
    ----------
    devices
        The fleet.
    tasks
        By id, in the order of submission.
    attempts
        In the order in which they ended.
    queued
        (device, from, until) where attempts were at a device and had not begun, s.
    transfers
        Copies between memory nodes.
    up
        Per device, (from, until) where its worker took tasks, s.
    lost
        Per device, (at, reason) of each loss.
    put
        (item, bytes, node, at) of each value that came to be on a node.
    freed
        (item, node, at).
    warnings
        What the user was told.
    used
        (at, share) of each device by index, of its time that others used as it was told, 0..1.
    notes
        What training, devices and attempts told, as in `hetero.model.annotations`.
    problems
        One line for each event that is missing or contradicts another; empty for a sound trace.
    torn
        True when the program ended without closing its trace.
    begin_s, end_s
        Seconds, first submission and last outcome.
    head
        The first line of the trace.
    """

    devices: tuple[Device, ...] = ()
    tasks: dict[int, TaskRecord] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    queued: list[tuple[int, float, float]] = field(default_factory=list)
    transfers: list[TransferRecord] = field(default_factory=list)
    up: list[list[tuple[float, float]]] = field(default_factory=list)
    lost: list[list[tuple[float, str]]] = field(default_factory=list)
    put: list[tuple[int, int, str, float]] = field(default_factory=list)
    freed: list[tuple[int, str, float]] = field(default_factory=list)
    warnings: list[tuple[float, str]] = field(default_factory=list)
    used: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    notes: list[object] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    torn: bool = False
    begin_s: float = 0.0
    end_s: float = 0.0
    head: JsonObject = field(default_factory=dict)

    @property
    def collectives(self) -> list[CollectiveDone]:
        """What devices did in collectives, in the order in which it was told."""
        return [each for each in self.notes if isinstance(each, CollectiveDone)]

    @property
    def span_s(self) -> float:
        """Seconds from the first submission to the last outcome."""
        return self.end_s - self.begin_s

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start of an attempt to the last finish."""
        starts = (each.start_s for each in self.attempts)
        return max(0.0, max((each.end_s for each in self.attempts), default=-inf) - min(starts, default=inf))


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Hold the collector of reference cycles back, which would look through a million new values again and again.

    At the end they are put among the old values, which it looks through rarely, unless the program froze some itself.

    Examples
    --------
    >>> with nothing_collected():
    ...     gc.isenabled()
    False
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
