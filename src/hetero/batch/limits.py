"""Limits on when and how much a run works: hours of the day, and a share of each device.

In: words such as '22:00-06:00', '50%'. Out: values that can be asked. It must not wait.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

from hetero.floor.clock import wall_time_s
from hetero.floor.errors import BadValueError
from hetero.floor.units import shown

__all__ = ["Hours", "local_now", "parse_hours", "parse_share"]

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
        """Tell whether a run may work at a time."""
        minute = 60 * now.hour + now.minute
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


def local_now() -> datetime:
    """Give the local time."""
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
