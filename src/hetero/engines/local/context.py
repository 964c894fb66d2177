"""What all parts of one local engine share.

In: nothing. Out: the hub, the memory, the items, the clock and the counters, by name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hetero.engines.base import Log, Report, Submitter, Tell, TellParts, WorkerEntry
from hetero.engines.shared.hub import Hub
from hetero.engines.shared.items import Items, Meter
from hetero.engines.shared.memory_pool import MemoryPool
from hetero.engines.shared.messages import Transport
from hetero.floor.clock import Clock
from hetero.floor.own_memory import MemoryKills
from hetero.model.commands import Launch
from hetero.model.device import Device
from hetero.model.events import TaskFailed
from hetero.model.tasks import Failure

__all__ = ["LocalContext"]


@dataclass(slots=True)
class LocalContext:
    """One running engine.

    Attributes
    ----------
    origin_s : the clock's zero on the host's monotonic clock, so that workers agree
    start_s : s that a worker may take to start
    transport : how the members of a group exchange values
    tell, tell_parts : take the notes of attempts, and of what their time consists
    log : takes the log records of tasks
    submitter, fleet : take the tasks that running ones submit, and the devices to which these may go
    below_s : by nested task that has ended, s that it and those that it submitted took of their devices
    failed_starts : how often in a row the worker of a device did not start
    worked : the devices whose worker was ready once
    memory_kills : tells which workers the system killed for their memory
    """

    hub: Hub
    pool: MemoryPool
    items: Items
    meter: Meter
    clock: Clock
    counters: Counter[str]
    entry: WorkerEntry
    report: Report
    origin_s: float
    start_s: float
    transport: Transport
    tell: Tell
    log: Log
    tell_parts: TellParts
    submitter: Submitter | None
    fleet: tuple[Device, ...]
    below_s: dict[int, float] = field(default_factory=dict)
    failed_starts: Counter[str] = field(default_factory=Counter)
    worked: set[str] = field(default_factory=set)
    memory_kills: MemoryKills = field(default_factory=MemoryKills)

    def refuse(self, device: str, launch: Launch, failure: Failure) -> None:
        """Tell that an attempt could not be sent."""
        now_s = self.clock.now_s()
        event = TaskFailed(now_s, launch.task, launch.attempt, device, now_s, 0.0, failure)
        self.hub.call(lambda: self.hub.emit(event))
