"""What one device draws: told by the user, counted by the processor, measured by the vendor's tool, or catalogued.

In: a device. Out: joules since it was first asked. It must not guess: a device that nobody knows has no origin.
"""

from __future__ import annotations

import psutil

from hetero.backends.host import PackageEnergy
from hetero.catalog import load as catalog
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import BadValueError
from hetero.model.device import Device
from hetero.session.fleet_speed import status

__all__ = ["Meter"]

_LOOK_S = 1.0


class Meter:
    """Adds up the energy of one device, from when it is made.

    Parameters
    ----------
    told_w : W, as the user says; None where nothing was said
    packages : the energy counters of the host's processors, None to look for them

    Attributes
    ----------
    origin : 'told', 'counted', 'measured' or 'catalog'; '' where nobody knows
        Counted is of a CPU's packages, shared by cores; measured is the power that a GPU tells, once a second.

    Examples
    --------
    >>> from hetero.model.device import DeviceType
    >>> Meter(Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu", name="a CPU"), told_w=65.0).origin
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
            self._watts = self._told_by_itself() or before_w
        self._joules += (now_s - self._at_s) * 0.5 * (before_w + self._watts)
        self._at_s = now_s
        return self._joules

    def _found(self, told_w: float | None) -> tuple[float, str]:
        """Return the power now, and who says so."""
        if told_w is not None:
            return told_w, "told"
        if self._device.kind == "cpu" and self._packages.readable:
            return 0.0, "counted"
        measured_w = self._told_by_itself()
        if measured_w is not None:
            return measured_w, "measured"
        try:
            catalogued_w = catalog.find(self._device.name).power_w
        except BadValueError:
            catalogued_w = None
        return (0.0, "") if catalogued_w is None else (catalogued_w, "catalog")

    def _told_by_itself(self) -> float | None:
        return status([self._device], sample_s=0.0)[0].power_w
