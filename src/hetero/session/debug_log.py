"""What a run tells while it goes on: the steps of HETERO_DEBUG, and the counts that the progress view shows.

In: the records of the trace, as they happen. Out: log lines, counts; and the records, handed on.
It must not hold up the driver: a record costs a look at its type unless somebody asked for more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from hetero.floor.clock import TraceSink
from hetero.floor.units import format_bytes, format_rate, format_seconds
from hetero.model.commands import Commit, Fail, Launch, Run, RunGroup
from hetero.model.events import TaskSubmitted, TransferFinished
from hetero.plan.policies.base import Memory, Policy, Proposal, ReadyTask, View

if TYPE_CHECKING:
    from hetero.core.machine import Machine
    from hetero.model.device import Device

__all__ = ["DebugLog", "Several", "TaskCounts", "WatchedPolicy", "joined", "log_to_stderr", "tell_devices"]

_log = logging.getLogger("hetero")
_OTHERS = 3
"""Devices beside the chosen one that a placement is compared with."""


def log_to_stderr(level: int | str) -> None:
    """Set the level of hetero's loggers, which write to standard error where no other handler is set."""
    _log.setLevel(level)
    if not _log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s", "%H:%M:%S"))
        _log.addHandler(handler)


def tell_devices(used: Sequence[Device]) -> None:
    """Log every device of this host, used or not, with the reason (level 1)."""
    from hetero.session.fleet import choose, survey

    for device in used:
        cores = f"{device.cores} core{'s' if device.cores > 1 else ''}"
        _log.debug("%s is used: %s, %s", device.id, device.name or device.kind, cores)
    found = survey()
    reasons = {device.id: reason for device, reason in choose(found)[1]}
    ids = {device.id for device in used}
    for one in found:
        if one.device is None or one.reason:
            name = one.backend if one.device is None else one.device.id
            _log.debug("%s is not used: %s%s", name, one.reason, f"; {one.remedy}" if one.remedy else "")
        elif one.device.id not in ids:
            _log.debug("%s is not used: %s", one.device.id, reasons.get(one.device.id, "the fleet does not name it"))


class TaskCounts:
    """Counts tasks: handed in, done by each device, failed.

    Examples
    --------
    >>> counts = TaskCounts()
    >>> counts.write((0.5, Commit(1, 1, "h0/cpu:0")))
    >>> counts.done
    Counter({'h0/cpu:0': 1})
    """

    def __init__(self) -> None:
        self.submitted = 0
        self.failed = 0
        self.done: Counter[str] = Counter()

    def write(self, record: tuple[object, ...]) -> None:
        """Count one record."""
        fact = _fact(record)
        if type(fact) is Commit:
            self.done[fact.device] += 1
        elif type(fact) is TaskSubmitted:
            self.submitted += 1
        elif type(fact) is Fail:
            self.failed += 1


class DebugLog:
    """Logs placements and transfers (level 2), and every event and command (level 3).

    Attributes
    ----------
    machine
        The core whose placements are told, None before it is there.
    """

    def __init__(self, level: int) -> None:
        self.level = level
        self.machine: Machine | None = None

    def write(self, record: tuple[object, ...]) -> None:
        """Log one record."""
        fact = _fact(record)
        if self.level >= 3:
            _log.debug("%.400s", fact)
        if type(fact) is Run and self.machine is not None:
            for number, launch in enumerate(fact.launches, start=1):
                behind_s = sum(later.predicted_s for later in fact.launches[number:])
                _log.debug("%s", _placement(self.machine, fact.device, launch, behind_s))
        elif type(fact) is RunGroup:
            _log.debug("task %d to %s together", fact.launch.task, ", ".join(map(_short, fact.devices)))
        elif type(fact) is TransferFinished:
            nbytes, took = format_bytes(fact.nbytes), format_seconds(fact.seconds)
            rate = format_rate(fact.nbytes / max(fact.seconds, 1e-9), "B/s")
            _log.debug("item %d from %s to %s: %s in %s, %s", fact.item, fact.src, fact.dst, nbytes, took, rate)


def _placement(machine: Machine, device: str, launch: Launch, behind_s: float) -> str:
    """Return where a task went, and when the other devices would have ended it; times are those of the run."""
    state, fleet = machine.tasks[launch.task], machine.fleet
    free_s = fleet.available_s(machine.now_s)
    index = fleet.by_id[device].index
    ends = f"task {launch.task} ({state.task.name}) to {_short(device)}: ends at {free_s[index] - behind_s:.3f} s"
    travel_s = machine.replicas.costs.arrivals(state.task.inputs) if fleet.own_nodes else None
    start_s = free_s if travel_s is None else free_s.clip(min=machine.now_s + travel_s)
    seconds = machine.rows.of(state).seconds
    others = [(start_s[other] + seconds[other], other) for other in range(len(free_s)) if other != index]
    rivals = sorted((end_s, other) for end_s, other in others if isfinite(end_s))[:_OTHERS]
    told = [f"{_short(fleet.devices[other].id)} would end at {end_s:.3f} s" for end_s, other in rivals]
    return "; ".join([ends, *told]) if told else f"{ends}; no other device can run it"


def _short(device: str) -> str:
    return device.partition("/")[2]


class Several:
    """Hands each record to several sinks."""

    def __init__(self, sinks: Iterable[TraceSink]) -> None:
        self._writers = tuple(sink.write for sink in sinks)

    def write(self, record: tuple[object, ...]) -> None:
        """Hand one record on."""
        for write in self._writers:
            write(record)


class WatchedPolicy:
    """A policy whose scores are logged (level 4)."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self._policy = policy

    def __getattr__(self, word: str) -> object:
        """Return what the policy declares of itself."""
        return getattr(self._policy, word)

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose as the policy does, and log what it saw."""
        proposals, kept = self._policy.propose(view, ready, memory)
        chosen = {proposal.task: view.devices[proposal.device].id for proposal in proposals}
        for task in ready:
            scores = ", ".join(f"{d.short} {s:.3g} s" for d, s in zip(view.devices, task.seconds, strict=True))
            _log.debug("%s: task %d to %s: %s", self.name, task.id, chosen.get(task.id, "nobody yet"), scores)
        return proposals, kept


def joined(sinks: Sequence[TraceSink]) -> TraceSink | None:
    """Return one sink for several, None for none."""
    return None if not sinks else sinks[0] if len(sinks) == 1 else Several(sinks)


def _fact(record: tuple[object, ...]) -> object:
    return record[1] if type(record) is tuple else record
