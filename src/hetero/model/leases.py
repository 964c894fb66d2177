"""Leases: several devices handed out together for a time, as values.

In: what is wanted and when. Out: frozen values. It must not hand anything out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hetero.floor.errors import BadValueError, did_you_mean

__all__ = ["TOGETHER", "LeasePhase", "LeaseRequest", "LeaseState"]

TOGETHER = ("host", "rack", "numa", "pcie", "nvlink")
"""What devices of a lease may share, beside a kind of link."""

_APART = ("device", "host", "rack")


class LeasePhase(StrEnum):
    """Where a lease stands; the usual path first."""

    PENDING = "pending"
    ACTIVE = "active"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a lease asks for.

    Attributes
    ----------
    on, not_on
        Words that each device must answer to, any one of them, or to none; ids among them.
    count
        Devices, >= 1.
    memory_bytes
        Of each device's memory.
    compute_frac
        Share of each device's time, 0 < f <= 1.
    min_cores
        Cores that each device must have.
    exclusive
        True where nobody else may have a part of its devices.
    together
        '' or one of `TOGETHER`, which all devices share, or 'link:KIND', which joins each two of them.
    workload
        Name under which others may keep away from it, '' for none.
    apart
        Names of workloads that it keeps away from.
    apart_by
        'device', 'host' or 'rack': how far.
    timeout_s
        Seconds that it may wait, 0 for any time.
    lease_s
        Seconds that it may be held without renewal, 0 for any time.
    priority
        Higher goes first.
    """

    on: tuple[str, ...] = ()
    not_on: tuple[str, ...] = ()
    count: int = 1
    memory_bytes: int = 0
    compute_frac: float = 1.0
    min_cores: int = 0
    exclusive: bool = False
    together: str = ""
    workload: str = ""
    apart: tuple[str, ...] = ()
    apart_by: str = "device"
    timeout_s: float = 0.0
    lease_s: float = 0.0
    priority: int = 0

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("memory_bytes", 0), ("min_cores", 0), ("timeout_s", 0), ("lease_s", 0)):
            given = getattr(self, name)
            if not given >= least:
                raise BadValueError(f"{name} of a lease is {given!r}", remedy=f"it must be at least {least}")
        if not 0.0 < self.compute_frac <= 1.0:
            raise BadValueError(
                f"a lease of the share {self.compute_frac!r}", remedy="it must be above 0 and at most 1"
            )
        if not self.together.startswith("link:"):
            _one_of("together", self.together, ("", *TOGETHER))
        _one_of("apart_by", self.apart_by, _APART)


def _one_of(what: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        words = [word for word in allowed if word]
        hint = did_you_mean(given, words).removeprefix("; ")
        raise BadValueError(f"{what} is {given!r}", remedy=hint or f"allowed: {', '.join(words)}, or link:KIND")


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A lease as it stands.

    Attributes
    ----------
    id
        > 0, ascending.
    request
        What was asked.
    phase
        Where it stands.
    devices
        Ids, in the order of the fleet; empty while it is pending.
    asked_s, granted_s
        When, 0 while it is pending.
    expires_s
        When it ends unless it is renewed, 0 for never.
    reason
        Why it failed, or waits.
    """

    id: int
    request: LeaseRequest
    phase: LeasePhase = LeasePhase.PENDING
    devices: tuple[str, ...] = ()
    asked_s: float = 0.0
    granted_s: float = 0.0
    expires_s: float = 0.0
    reason: str = ""

    @property
    def over(self) -> bool:
        """Return whether nothing will change any more."""
        return self.phase in (LeasePhase.RELEASED, LeasePhase.FAILED)
