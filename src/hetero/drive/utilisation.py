"""How much of each CPU device others use: sampled from the operating system's own counts.

In: the devices and their workers' process ids. Out: `UtilisationReported` events. It must not decide anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import psutil

from hetero.floor.clock import Clock
from hetero.model.device import Device
from hetero.model.events import Event, UtilisationReported

__all__ = ["UtilisationWatch"]

PERIOD_S = 0.4
"""Samples closer to each other than this would be coarse: the system counts in hundredths of a second."""


class UtilisationWatch:
    """Samples the CPUs that devices are bound to.

    A device without CPUs of its own, or without a worker process, is not reported: its use is unknown.

    Parameters
    ----------
    devices
        The fleet.
    pids
        Gives the process id of each device's worker now.
    clock
        Time of the events.

    Notes
    -----
    others = (busy seconds of the device's CPUs - CPU seconds of its worker) / (elapsed seconds × CPUs), since the
    sample before.
    """

    def __init__(self, devices: Sequence[Device], pids: Callable[[], Mapping[str, int]], clock: Clock) -> None:
        self._devices = [device for device in devices if device.cpus]
        self._pids = pids
        self._clock = clock
        self._before = self._read()

    def _read(self) -> tuple[float, dict[str, tuple[int, float, float]]]:
        busy_s = [sum(times) - times.idle - getattr(times, "iowait", 0.0) for times in psutil.cpu_times(percpu=True)]
        found = {}
        pids = self._pids()
        for device in self._devices:
            pid = pids.get(device.id)
            if pid is None or max(device.cpus) >= len(busy_s):
                continue
            with suppress(psutil.Error):
                own = psutil.Process(pid).cpu_times()
                found[device.id] = (pid, sum(busy_s[cpu] for cpu in device.cpus), own.user + own.system)
        return self._clock.now_s(), found

    def sample(self) -> list[Event]:
        """Return what others used of each device since the last sample; nothing when that was just now."""
        if self._clock.now_s() - self._before[0] < PERIOD_S:
            return []
        before_s, before = self._before
        now_s, now = self._before = self._read()
        elapsed_s = now_s - before_s
        events: list[Event] = []
        for device in self._devices:
            if device.id not in before or device.id not in now:
                continue
            (pid, busy_s, own_s), (pid_before, busy_before_s, own_before_s) = now[device.id], before[device.id]
            if pid != pid_before:
                continue
            others_s = (busy_s - busy_before_s) - (own_s - own_before_s)
            share = min(max(others_s / (elapsed_s * len(device.cpus)), 0.0), 1.0)
            events.append(UtilisationReported(now_s, device.id, share))
        return events
