"""What a run tells while it goes on: the steps of HETERO_DEBUG, and the counts that the progress view shows.

In: the records of the trace, as they happen. Out: log lines, counts; and the records, handed on.
It must not hold up the driver: a record costs a look at its type unless somebody asked for more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hetero.floor.clock import TraceSink
from hetero.floor.units import format_bytes, format_rate
from hetero.model.commands import Commit, Fail, Run, RunGroup
from hetero.model.events import TaskSubmitted, TransferFinished
from hetero.plan.policies.base import Memory, Policy, Proposal, ReadyTask, View

__all__ = ["Counts", "DebugLog", "Several", "WatchedPolicy", "joined"]

_log = logging.getLogger("hetero")


class Counts:
    """Counts tasks: handed in, done by each device, failed.

    Examples
    --------
    >>> counts = Counts()
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
    """Logs placements and transfers (level 2), and every event and command (level 3)."""

    def __init__(self, level: int) -> None:
        self.level = level

    def write(self, record: tuple[object, ...]) -> None:
        """Log one record."""
        fact = _fact(record)
        if self.level >= 3:
            _log.debug("%s", fact)
        elif type(fact) is Run:
            for launch in fact.launches:
                _log.debug("task %d to %s, expected %.3g s", launch.task, fact.device, launch.predicted_s)
        elif type(fact) is RunGroup:
            _log.debug("task %d to %s together", fact.launch.task, ", ".join(fact.devices))
        elif type(fact) is TransferFinished:
            rate = format_rate(fact.nbytes / max(fact.seconds, 1e-9), "B/s")
            _log.debug("item %d, %s, %s to %s, %s", fact.item, format_bytes(fact.nbytes), fact.src, fact.dst, rate)


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

    def propose(self, view: View, ready: Sequence[ReadyTask], memory: Memory) -> tuple[Sequence[Proposal], Memory]:
        """Propose as the policy does, and log what it saw."""
        proposals, kept = self._policy.propose(view, ready, memory)
        chosen = {proposal.task: view.devices[proposal.device].id for proposal in proposals}
        for task in ready:
            scores = ", ".join(f"{d.short} {s:.3g} s" for d, s in zip(view.devices, task.seconds, strict=True))
            _log.debug("%s: task %d to %s: %s", self.name, task.id, chosen.get(task.id, "nobody yet"), scores)
        return proposals, kept


def joined(sinks: Sequence[TraceSink]) -> TraceSink | None:
    """Give one sink for several, None for none."""
    return None if not sinks else sinks[0] if len(sinks) == 1 else Several(sinks)


def _fact(record: tuple[Any, ...]) -> Any:
    return record[1] if type(record) is tuple else record
