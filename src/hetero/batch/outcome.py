"""What a run of bulk work came to: the value, the bad records, and what each device did.

In: counts. Out: values and words for people. It must not change anything.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from hetero.batch.base import BadRecord
from hetero.model.device import Device

__all__ = ["BatchOutcome", "DeviceStatistics"]


@dataclass(slots=True)
class DeviceStatistics:
    """What one device did.

    Attributes
    ----------
    device
        Itself.
    items, calls, failed, again
        Records done; batches begun, that failed, and that were begun because others had.
    busy_s
        Seconds, that its batches took.
    batch
        Its best size in the end, 0 where nobody knows; with a cost of records, how many its batches held.
    raw_bytes, home_bytes
        Of its results before they were merged, and of what came home.
    left_out
        Why it did nothing, or no more; '' where it took part.
    precision
        In what a model computed there, and how far that was off; '' where it is a function.
    """

    device: Device
    items: int = 0
    calls: int = 0
    failed: int = 0
    again: int = 0
    busy_s: float = 0.0
    batch: int = 0
    raw_bytes: int = 0
    home_bytes: int = 0
    left_out: str = ""
    precision: str = ""

    @property
    def rate(self) -> float:
        """Records a second while it worked, 0 where it did nothing."""
        return self.items / self.busy_s if self.busy_s else 0.0

    def note(self, items: int, seconds: float, raw_bytes: int, home_bytes: int) -> None:
        """Record a batch that is done."""
        self.items += items
        self.busy_s += seconds
        self.raw_bytes += raw_bytes
        self.home_bytes += home_bytes

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name."""
        return {
            "device": self.device.id,
            "items": self.items,
            "items_per_s": self.rate,
            "batch": self.batch,
            "calls": self.calls,
            "failed": self.failed,
            "again": self.again,
            "left_out": self.left_out,
            "precision": self.precision,
        }


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What came of a run.

    Attributes
    ----------
    value
        The results joined, the merged value, or the folder that they were written to.
    items
        Records of the source.
    resumed
        Of them, those that an earlier run had done.
    bad
        Records that have no result.
    seconds
        Seconds, of this run.
    devices
        What each device did.
    usd
        Dollars, the time of the run on every device that was not left out; 0 where no price was given.
    energy_j
        J, of every device that was not left out, for as long as the run took; 0 where nobody asked.

    Examples
    --------
    >>> import hetero
    >>> outcome = hetero.batch.map_batches(lambda batch: batch, [1, 2, 3], devices="1xcpu")
    >>> outcome.value, outcome.items, outcome.bad
    ([1, 2, 3], 3, ())
    """

    value: Any
    items: int
    resumed: int
    bad: tuple[BadRecord, ...]
    seconds: float
    devices: tuple[DeviceStatistics, ...]
    usd: float = 0.0
    energy_j: float = 0.0

    @property
    def lanes(self) -> tuple[DeviceStatistics, ...]:
        """The former name of `devices`."""
        warnings.warn("BatchOutcome.lanes is now BatchOutcome.devices", DeprecationWarning, stacklevel=2)
        return self.devices

    @property
    def left_out(self) -> dict[str, str]:
        """The devices that did nothing, with the reason."""
        return {stats.device.short: stats.left_out for stats in self.devices if stats.left_out}

    @property
    def sizes(self) -> dict[str, int]:
        """The best batch size of each device that took part."""
        return {stats.device.short: stats.batch for stats in self.devices if stats.batch}

    def as_dict(self) -> dict[str, object]:
        """Return every field but the value by name.

        Examples
        --------
        >>> import hetero
        >>> outcome = hetero.batch.map_batches(lambda batch: batch, [1, 2, 3], devices="1xcpu")
        >>> outcome.as_dict()["items"]
        3
        """
        return {
            "items": self.items,
            "resumed": self.resumed,
            "seconds": self.seconds,
            "items_per_s": (self.items - self.resumed) / self.seconds if self.seconds else 0.0,
            "usd": self.usd,
            "energy_j": self.energy_j,
            "bad": [record.as_dict() for record in self.bad],
            "devices": [stats.as_dict() for stats in self.devices],
        }

    def __str__(self) -> str:
        fresh = self.items - self.resumed
        each = ", ".join(f"{stats.device.short} {stats.items} in batches of {stats.batch}" for stats in self.devices)
        bad = f", {len(self.bad)} set aside" if self.bad else ""
        return f"{fresh} records in {self.seconds:.3g} s{bad}: {each}"
