"""What all parts of one Ray engine share.

In: nothing. Out: the hub, the object store, the items, the clock and the counters, by name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hetero.engines.base import Log, Report, Tell, TellParts, WorkerEntry
from hetero.engines.ray.cluster import Cluster
from hetero.engines.ray.heartbeats import HostMonitor
from hetero.engines.ray.object_store import ObjectStore
from hetero.engines.shared.hub import Hub
from hetero.engines.shared.items import Items, Meter
from hetero.floor.clock import Clock

__all__ = ["RayContext"]


@dataclass(slots=True)
class RayContext:
    """One running engine.

    Attributes
    ----------
    start_s : s that a worker may take to start
    tell, tell_parts : take the notes of attempts, and of what their time consists
    log : takes the log records of tasks
    failed_starts : how often in a row the worker of a device did not start
    worked : the devices whose worker was ready once
    """

    hub: Hub
    cluster: Cluster
    store: ObjectStore
    items: Items
    meter: Meter
    clock: Clock
    counters: Counter[str]
    entry: WorkerEntry
    report: Report
    start_s: float
    monitor: HostMonitor
    tell: Tell
    log: Log
    tell_parts: TellParts
    failed_starts: Counter[str] = field(default_factory=Counter)
    worked: set[str] = field(default_factory=set)
