"""Limits on when and how much a run works: hours, a share of each device, what others leave; words by device.

In: words such as '22:00-06:00', '50%', 'free'. Out: values that can be asked. It must not wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

from hetero.floor.clock import monotonic_s, wall_time_s
from hetero.floor.errors import BadValueError
from hetero.floor.units import shown
from hetero.model.device import Device
from hetero.session.requests import check_word

__all__ = [
    "FREE",
    "HostLoad",
    "Hours",
    "OtherUsers",
    "host_load",
    "local_now",
    "parse_by_device",
    "parse_hours",
    "parse_share",
    "told_of",
]

FREE = "free"
"""The share that follows what others leave of the host."""

_LEAST_FRAC = 0.1
_LOOK_S = 1.0

_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})")


class Hours(NamedTuple):
    """When a run may work, in minutes of the local day; past midnight where the end is not after the beginning.

    Examples
    --------
    >>> night = Hours(22 * 60, 6 * 60)
    >>> night.allow(datetime(2026, 1, 1, 23, 30)), night.allow(datetime(2026, 1, 1, 12, 0))
    (True, False)
    """

    begin: int
    end: int

    def allow(self, now: datetime) -> bool:
        """Return whether a run may work at a time."""
        minute = 60 * now.hour + now.minute
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


def local_now() -> datetime:
    """Return the local time."""
    return datetime.fromtimestamp(wall_time_s()).astimezone()


def parse_hours(given: str) -> Hours:
    """Read hours of the day.

    Raises
    ------
    BadValueError
        They are not of the form '22:00-06:00'.
    """
    found = _HOURS.fullmatch(str(given).strip())
    numbers = [int(number) for number in found.groups()] if found else [99, 0, 0, 0]
    if max(numbers[0], numbers[2]) > 24 or max(numbers[1], numbers[3]) > 59:
        raise BadValueError(f"hours={shown(given)} is not allowed", remedy="write them as in '22:00-06:00'")
    return Hours(60 * numbers[0] + numbers[1], 60 * numbers[2] + numbers[3])


def parse_share(given: float | str) -> float:
    """Read the share of each device that a run may take.

    Raises
    ------
    BadValueError
        It is not above 0 and at most 1.

    Examples
    --------
    >>> parse_share("25%"), parse_share(1)
    (0.25, 1.0)
    """
    try:
        text = str(given).strip()
        share = float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise BadValueError(f"share={shown(given)} is not allowed", remedy="give one above 0 and up to 1, or '50%'")
    return share


class HostLoad(NamedTuple):
    """What a host's cores did until now.

    Attributes
    ----------
    at_s
        Seconds, when it was looked at.
    busy_s, own_s
        Core-seconds of all programs, and of this one with its workers.
    cores
        Of the host.
    """

    at_s: float
    busy_s: float
    own_s: float
    cores: int


def host_load() -> HostLoad:
    """Inspect the host as a worker: its program is the parent process with all its children."""
    import psutil

    times = psutil.cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    own_s = 0.0
    try:
        program = psutil.Process().parent() or psutil.Process()
        for process in (program, *program.children(recursive=True)):
            used = process.cpu_times()
            own_s += used.user + used.system
    except psutil.Error:
        own_s = 0.0
    guests_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return HostLoad(monotonic_s(), sum(times) - idle_s - guests_s, own_s, psutil.cpu_count() or 1)


class OtherUsers:
    """Tells which share of a host its other users leave.

    Parameters
    ----------
    look
        Gives the load until now.
    now_s
        Gives the time of a load.

    Examples
    --------
    >>> loads, times = iter([HostLoad(0.0, 0.0, 0.0, 4), HostLoad(2.0, 5.0, 1.0, 4)]), iter([0.0, 2.0])
    >>> neighbours = OtherUsers(lambda: next(loads), lambda: next(times))
    >>> neighbours.left_frac(), neighbours.left_frac()
    (1.0, 0.5)
    """

    def __init__(self, look: Callable[[], HostLoad] = host_load, now_s: Callable[[], float] = monotonic_s) -> None:
        self._load, self._now_s = look, now_s
        self._last: HostLoad | None = None
        self._left_frac = 1.0

    def left_frac(self) -> float:
        """Return the share, from 0.1 to 1, as it was in the last second or more; 1 at the first call."""
        now_s, last = self._now_s(), self._last
        if last is None:
            self._last = self._load()
        elif now_s - last.at_s >= _LOOK_S:
            load = self._load()
            others_s = max(0.0, load.busy_s - last.busy_s - (load.own_s - last.own_s))
            self._left_frac = max(_LEAST_FRAC, 1.0 - others_s / ((load.at_s - last.at_s) * load.cores))
            self._last = load
        return self._left_frac


def parse_by_device(name: str, given: Mapping[str, object] | None, unit: str) -> dict[str, float]:
    """Read numbers by device word: dollars an hour, watts.

    Parameters
    ----------
    name, unit
        For the message, as in 'usd_per_hour' and 'dollars an hour'.

    Raises
    ------
    BadValueError
        A number is not above 0, or a word names no device.

    Examples
    --------
    >>> parse_by_device("usd_per_hour", {"CUDA": 2.5}, "dollars an hour")
    {'cuda': 2.5}
    """
    found = {}
    for word, value in (given or {}).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise BadValueError(f"{name}[{word!r}]={shown(value)} is not allowed", remedy=f"give {unit} above 0")
        found[check_word(name, word)] = float(value)
    return found


def told_of(device: Device, given: Mapping[str, float]) -> float | None:
    """Return the number of a device, by its id, its short id or another of its words; None where none is given."""
    words = (device.id, device.short, *sorted(device.words))
    return next((given[word] for word in words if word in given), None)
