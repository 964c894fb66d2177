"""What all parts of one local engine share.

In: nothing. Out: the memory pool and what nested tasks need, beside what every engine has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hetero.engines.base import Submitter
from hetero.engines.shared.engine import EngineContext
from hetero.engines.shared.memory_pool import MemoryPool
from hetero.engines.shared.messages import Transport
from hetero.floor.own_memory import MemoryKills
from hetero.model.device import Device

__all__ = ["LocalContext"]


@dataclass(slots=True, kw_only=True)
class LocalContext(EngineContext):
    """One running engine.

    Attributes
    ----------
    origin_s
        The clock's zero on the host's monotonic clock, so that workers agree.
    transport
        How the members of a group exchange values.
    submitter, fleet
        Take the tasks that running ones submit, and the devices to which these may go.
    below_s
        By nested task that has ended, time that it and those that it submitted took of their devices, s.
    memory_kills
        Tells which workers the system killed for their memory.
    """

    pool: MemoryPool
    origin_s: float
    transport: Transport
    submitter: Submitter | None
    fleet: tuple[Device, ...]
    below_s: dict[int, float] = field(default_factory=dict)
    memory_kills: MemoryKills = field(default_factory=MemoryKills)
