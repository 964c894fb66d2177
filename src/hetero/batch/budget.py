"""What a run spends, in seconds, dollars and joules, and where its limits end it.

In: the options, the devices, what they draw. Out: figures, or the exception of the limit that was reached.
It must not stop a run: who asks does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import psutil

from hetero.backends.host import PackageEnergy
from hetero.batch.availability import told_of
from hetero.batch.base import EnergyLimitError, PriceLimitError, TimeLimitError
from hetero.batch.options import CheckedLimits
from hetero.batch.outcome import DeviceStatistics
from hetero.catalog import load as catalog
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import BadValueError
from hetero.model.device import Device
from hetero.session.fleet_speed import status

__all__ = ["EnergyMeter", "RunSpending"]

_LOOK_S = 1.0


class EnergyMeter:
    """Adds up the energy of one device, from when it is made.

    Parameters
    ----------
    told_w
        Watts, as the user says; None where nothing was said.
    packages
        The energy counters of the host's processors, None to look for them.

    Attributes
    ----------
    origin
        'told', 'counted', 'measured' or 'catalog'; '' where nobody knows Counted is of a CPU's packages, shared by
        cores; measured is the power that a GPU tells, once a second.

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> EnergyMeter(Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu", name="a CPU"), told_w=65.0).origin
    'told'
    """

    def __init__(self, device: Device, told_w: float | None, packages: PackageEnergy | None = None) -> None:
        self._device = device
        self._at_s = monotonic_s()
        self._joules = 0.0
        self._packages = packages or PackageEnergy()
        self._share = min(1.0, (device.cores or 1) / (psutil.cpu_count() or 1))
        self._watts, self.origin = self._found(told_w)

    def joules(self) -> float:
        """Return the joules until now."""
        if self.origin == "counted":
            return self._packages.joules() * self._share
        now_s = monotonic_s()
        if self.origin == "measured" and now_s - self._at_s < _LOOK_S:
            return self._joules + (now_s - self._at_s) * self._watts
        before_w = self._watts
        if self.origin == "measured":
            self._watts = self._status_w() or before_w
        self._joules += (now_s - self._at_s) * 0.5 * (before_w + self._watts)
        self._at_s = now_s
        return self._joules

    def _found(self, told_w: float | None) -> tuple[float, str]:
        """Return the power now, and who says so."""
        if told_w is not None:
            return told_w, "told"
        if self._device.is_host and self._packages.readable:
            return 0.0, "counted"
        measured_w = self._status_w()
        if measured_w is not None:
            return measured_w, "measured"
        try:
            catalogued_w = catalog.find(self._device.name).power_w
        except BadValueError:
            catalogued_w = None
        return (0.0, "") if catalogued_w is None else (catalogued_w, "catalog")

    def _status_w(self) -> float | None:
        return status([self._device], sample_s=0.0)[0].power_w


class RunSpending:
    """Counts what a run spends, from when it is made.

    Parameters
    ----------
    limits
        What may be spent, the prices, the watts that were told.
    devices
        That take part.

    Raises
    ------
    BadValueError
        Energy is limited, and nobody knows what a device draws.

    Notes
    -----
    A device costs and draws for as long as the run takes, whether it works or waits; one that was left out does not.
    """

    def __init__(self, limits: CheckedLimits, devices: Sequence[Device]) -> None:
        self._limits = limits
        self._begin_s = monotonic_s()
        asked = limits.energy_j is not None or limits.watts
        self._meters = {each.id: EnergyMeter(each, told_of(each, limits.watts)) for each in devices if asked}
        unknown = [device.short for device in devices if asked and not self._meters[device.id].origin]
        if unknown and limits.energy_j is not None:
            raise BadValueError(
                f"a limit of energy needs to know what {', '.join(unknown)} draws: it tells nothing of itself, "
                "and the catalog does not know it",
                remedy=f"write watts={{{unknown[0]!r}: 65}}",
            )

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return monotonic_s() - self._begin_s

    def check(self, statistics: Iterable[DeviceStatistics], items: int) -> None:
        """See whether a limit was reached.

        Parameters
        ----------
        items
            Records that have results, for the message.

        Raises
        ------
        TimeLimitError, PriceLimitError, EnergyLimitError
            It was.
        """
        limits = self._limits
        if limits.time_limit_s is not None and self.seconds > limits.time_limit_s:
            raise TimeLimitError(
                f"not done within {limits.time_limit_s:g} s: {items} records have results",
                remedy="allow more time and resume",
            )
        if limits.price_usd is not None and self.usd(statistics) > limits.price_usd:
            raise PriceLimitError(
                f"not done for ${limits.price_usd:g}: {items} records have results",
                remedy="allow more, or leave the dear devices out, and resume",
            )
        if limits.energy_j is not None and self.energy_j(statistics) > limits.energy_j:
            raise EnergyLimitError(
                f"not done with {limits.energy_j / 3600.0:.3g} Wh: {items} records have results",
                remedy="allow more, or leave the thirsty devices out, and resume",
            )

    def usd(self, statistics: Iterable[DeviceStatistics]) -> float:
        """Return the dollars so far."""
        prices = (told_of(stats.device, self._limits.usd_per_hour) for stats in statistics if not stats.left_out)
        return self.seconds / 3600.0 * sum(price or 0.0 for price in prices)

    def energy_j(self, statistics: Iterable[DeviceStatistics]) -> float:
        """Return the joules so far, 0 where nobody asked."""
        meters = (self._meters.get(stats.device.id) for stats in statistics if not stats.left_out)
        return sum(meter.joules() for meter in meters if meter is not None)
