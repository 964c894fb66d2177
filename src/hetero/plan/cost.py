"""Performance models: how long a task takes on a device, learned from what it took.

In: measured seconds by signature, size and device. Out: estimates with their spread and origin.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from hetero.model.device import Device

__all__ = ["CostModel", "Estimate", "Origin", "Sample"]

Origin = Literal["history", "regression", "roofline", "relative", "unknown"]


class Estimate(NamedTuple):
    """An estimated run time.

    Attributes
    ----------
    seconds : s, the median; inf never occurs here
    low_s, high_s : s, the 10th and 90th percentile, or a wide guess
    origin : 'history' same signature on this device or its model; 'regression' other sizes of the function;
        'relative' the signature's time on another device, scaled by the devices' speeds;
        'roofline' size over the device's speed; 'unknown' nothing is known
    samples : number of measurements behind it
    """

    seconds: float
    low_s: float
    high_s: float
    origin: Origin
    samples: int


class Sample(NamedTuple):
    """One measured run, as it is kept between runs."""

    signature: str
    device_key: str
    size: float
    seconds: float


class CostModel:
    """Interface only; the body follows."""

    def observe(self, signature: str, size: float, device: Device, seconds: float) -> bool:
        """Learn one run; True when the estimates of this signature moved by more than a tenth."""
        raise NotImplementedError

    def estimate(self, signature: str, size: float, device: Device) -> Estimate:
        """Estimate one run."""
        raise NotImplementedError

    def load(self, samples: Iterable[Sample]) -> None:
        """Take what earlier runs measured."""
        raise NotImplementedError

    def new_samples(self) -> tuple[Sample, ...]:
        """Give what was learned since the last call, to be kept."""
        raise NotImplementedError
