"""What devices tell of themselves while a run goes on: load, memory, temperature and power, for its trace.

In: the fleet. Out: a note a second of each GPU, and of the host. It must not open a device, nor hold a run up.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING

from hetero.backends import host
from hetero.backends.cpu import CpuLoad
from hetero.floor.clock import JOIN_S
from hetero.model.annotations import DeviceSampled
from hetero.session.fleet_speed import status_of

if TYPE_CHECKING:
    from hetero.drive.live import Driver
    from hetero.model.device import Device, DeviceStatus

__all__ = ["HOST", "Sampler"]

HOST = "host"
"""Stands for all processors and the memory of this machine."""
_PERIOD_S = 1.0


class Sampler:
    """Samples from a thread of its own until it is closed.

    Parameters
    ----------
    driver : takes the notes
    devices : the fleet; simulated devices and processors are not asked, the host is
    """

    def __init__(self, driver: Driver, devices: Sequence[Device]) -> None:
        self._driver = driver
        self._devices = [each for each in devices if each.type != "CPU" and not each.simulated]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="hetero-sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; safe to call twice, also from its own thread."""
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    def _loop(self) -> None:
        load = CpuLoad(())
        load.busy_frac()
        while not self._closing.wait(_PERIOD_S):
            self._note(HOST, host.cpu_status(load.busy_frac()))
            for device in self._devices:
                self._note(device.id, status_of(device))

    def _note(self, name: str, status: DeviceStatus) -> None:
        values = (status.utilisation_frac, status.used_bytes, status.temperature_c, status.power_w)
        if any(value is not None for value in values):
            known = (nan if value is None else float(value) for value in values)
            self._driver.record(DeviceSampled(self._driver.now_s(), name, *known))
