"""Workers that die: those that the system killed for their memory come back smaller, those that get nowhere do not.

In: the passes that members begin, the steps that are done, workers that are gone. Out: how large a pass of a device may
be, who is given up. It must not kill or start anybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from hetero.floor import own_memory
from hetero.floor.errors import OutOfDeviceMemoryError

__all__ = ["KilledPasses", "WorkerDeaths"]

_DEATHS = 4
"""Deaths of a device's worker, no step being done between, after which a run goes on without the device."""


class _LargestPass(NamedTuple):
    """The largest pass that a member has begun.

    Attributes
    ----------
    samples
        Of the pass.
    file, kills
        Where the system counts the processes that it kills for memory, and how many there were.
    """

    samples: int
    file: str
    kills: int


@dataclass(slots=True)
class KilledPasses:
    """What is known of each device's memory from those that were killed for it.

    Attributes
    ----------
    full
        Why a device's memory is too small even for its smallest pass, by device.
    """

    full: dict[str, str] = field(default_factory=dict)
    _passes: dict[str, _LargestPass] = field(default_factory=dict)
    _most: dict[str, float] = field(default_factory=dict)

    def most(self, device: str) -> float:
        """Return the most samples that a pass of a device may have, inf where nothing is known."""
        return self._most.get(device, inf)

    def begins(self, device: str, samples: int, file: str) -> bool:
        """Record a pass that is about to be made; False where it killed the worker before."""
        self._passes[device] = _LargestPass(samples, file, own_memory.memory_kills(file))
        if samples <= self.most(device):
            return True
        self.full[device] = f"the system killed it for its memory in a pass of {samples} samples, which stays whole"
        return False

    def ran_out(self, device: str, error: BaseException) -> BaseException:
        """Record an error that says that memory ran out; returns one that says it in words."""
        if not isinstance(error, OutOfDeviceMemoryError):
            error = OutOfDeviceMemoryError(f"memory ran out before the first pass ({type(error).__name__})")
        self.full.setdefault(device, str(error))
        return error

    def was_killed(self, device: str) -> str:
        """Return what a worker that is gone was killed for, '' where its memory was not the reason."""
        last = self._passes.pop(device, None)
        if last is None or own_memory.memory_kills(last.file) <= last.kills:
            return ""
        self._most[device] = last.samples // 2
        size = "one sample" if last.samples == 1 else f"{last.samples} samples"
        said = f"the system killed it for its memory in a pass of {size}"
        if last.samples == 1:
            self.full[device] = said
        return said


class _Death(NamedTuple):
    """The last death of a device's worker: how many there were in a row, and how far run and device had come."""

    in_a_row: int = 0
    step: int = -1
    most: float = inf


@dataclass(slots=True)
class WorkerDeaths:
    """How often each device's worker died without getting anywhere.

    Attributes
    ----------
    step
        The furthest step that a member was heard to have done.

    Notes
    -----
    A worker that took part in a step further than any before its last death begins a new row; so does one whose passes
    were made smaller since. What kills at the same step each time thus ends after a few lives, what kills now and then
    never does.
    """

    step: int = -1
    _last: dict[str, _Death] = field(default_factory=dict)
    _joined: dict[str, int] = field(default_factory=dict)

    def reached(self, step: int) -> None:
        """Record that a step was done."""
        self.step = max(self.step, step)

    def joined(self, device: str) -> None:
        """Record that a device became a member of a group."""
        self._joined[device] = self.step

    def died(self, device: str, most: float) -> str:
        """Record a death; return in words how many there were in a row where it was one too many, else ''."""
        last = self._last.get(device, _Death())
        stepped = self.step > max(last.step, self._joined.pop(device, self.step))
        count = 1 if stepped or most < last.most else last.in_a_row + 1
        self._last[device] = _Death(count, self.step, most)
        return f"its worker died {count} times, no step being done between" if count >= _DEATHS else ""
