"""What a choice of devices must keep to: time, rate, money, capabilities, and where its devices stand.

In: a user's numbers and words. Out: a checked value. It must not judge anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero.catalog.load import devices
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.model.leases import LeaseRequest

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a choice must keep to.

    Attributes
    ----------
    latency_s : most seconds from the prompts to the last token of the batch, 0 for any
    throughput_per_s : tokens/s that all replicas must give together, 0 for any
    usd_per_hour : most dollars an hour, 0 for any
    needs : capabilities that a device must have, as in 'fp8'
    together : what the devices of one copy share: 'host', 'rack', 'numa', 'pcie', 'nvlink' or 'link:KIND'; '' for
        nothing, and where no topology is known for the host
    apart, apart_by : workloads that hold devices of the fleet and are kept away from, by 'device', 'host' or 'rack'
    """

    latency_s: float = 0.0
    throughput_per_s: float = 0.0
    usd_per_hour: float = 0.0
    needs: tuple[str, ...] = ()
    together: str = ""
    apart: tuple[str, ...] = ()
    apart_by: str = "host"

    @property
    def terms(self) -> LeaseRequest:
        """What is asked of the pool for each copy."""
        return LeaseRequest(together=self.together, apart=self.apart, apart_by=self.apart_by)

    def __post_init__(self) -> None:
        for name, what in (("latency_s", "s"), ("throughput_per_s", "tokens/s"), ("usd_per_hour", "dollars an hour")):
            given = getattr(self, name)
            if not 0.0 <= given < float("inf"):
                raise BadValueError(
                    f"a limit of {given:g} {what} is none", remedy="give a number above 0, or leave it out"
                )
        _ = self.terms  # raises where a word is wrong
        known = sorted({word for spec in devices().values() for word in spec.capabilities})
        for word in self.needs:
            if word not in known:
                hint = did_you_mean(word, known).removeprefix("; ")
                raise BadValueError(f"no device has {word!r}", remedy=hint or f"known: {', '.join(known)}")
