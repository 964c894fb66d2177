"""What the demonstration found: times, speeds, shares, bytes, checks.

In: measured seconds and counts. Out: values with their derived figures. It must not measure or print.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero.demo.jobs import Checked

__all__ = ["DemoResult", "DeviceResult", "JobResult"]


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """One device in one job.

    Attributes
    ----------
    device : id without the host, as in 'cpu:0'
    name : what the maker calls it, with its throttle
    alone_s : s of the whole job on this device, or on one that is equal to it; for the fastest the mean of
        two runs, one before and one after all devices worked together
    speed : units of work a second, alone
    tasks : number of tasks that it ran when all devices worked together
    busy_s : s in these tasks
    """

    device: str
    name: str
    alone_s: float
    speed: float
    tasks: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class JobResult:
    """One job on all devices together.

    Attributes
    ----------
    name, title, unit : of the job
    work : in units
    tasks : number of tasks
    makespan_s : s from the first submission to the last result
    bytes_moved : bytes that travelled between memory nodes
    devices : the devices that took part
    checked : the comparison with another library
    functions : names of its tasks in the trace
    """

    name: str
    title: str
    unit: str
    work: float
    tasks: int
    makespan_s: float
    bytes_moved: int
    devices: tuple[DeviceResult, ...]
    checked: Checked
    functions: tuple[str, ...] = ()

    @property
    def speed(self) -> float:
        """Units of work a second."""
        return self.work / self.makespan_s

    @property
    def share_frac(self) -> float:
        """Achieved share of the sum of the devices' own speeds."""
        return self.speed / sum(each.speed for each in self.devices)

    @property
    def best(self) -> DeviceResult:
        """The device that is fastest alone."""
        return max(self.devices, key=lambda each: (each.speed, each.device))

    @property
    def gain(self) -> float:
        """How many times as fast as the best device alone."""
        return self.best.alone_s / self.makespan_s

    def as_dict(self) -> dict[str, Any]:
        """Return all figures by name."""
        names = ("name", "title", "unit", "work", "tasks", "makespan_s", "bytes_moved")
        plain = {name: getattr(self, name) for name in names}
        devices = [{name: getattr(each, name) for name in each.__slots__} for each in self.devices]
        checked = {name: getattr(self.checked, name) for name in (*self.checked.__slots__, "ok")}
        figures = {"speed_per_s": self.speed, "share_frac": self.share_frac, "best_alone": self.best.device}
        return {**plain, **figures, "gain": self.gain, "devices": devices, "checked": checked}


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demonstration found.

    Attributes
    ----------
    jobs : the jobs, in the order in which they ran
    notes : what a reader must know of the devices, a line each
    trace : where the trace lies
    """

    jobs: tuple[JobResult, ...]
    notes: tuple[str, ...]
    trace: Path

    @property
    def ok(self) -> bool:
        """True when every result was right."""
        return all(job.checked.ok for job in self.jobs)

    def as_dict(self) -> dict[str, Any]:
        """Return everything by name, for JSON."""
        jobs = [job.as_dict() for job in self.jobs]
        return {"ok": self.ok, "jobs": jobs, "notes": list(self.notes), "trace": str(self.trace)}
