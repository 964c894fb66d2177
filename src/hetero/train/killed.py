"""Workers that the system killed for their memory: told apart from other deaths, so that they come back smaller.

In: the passes that members begin, workers that are gone. Out: how large a pass of a device may be, who is given up.
It must not kill or start anybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from hetero.floor import own_memory
from hetero.floor.errors import OutOfDeviceMemoryError

__all__ = ["Killed"]


class _Pass(NamedTuple):
    """The largest pass that a member has begun.

    Attributes
    ----------
    samples : of the pass
    file, kills : where the system counts the processes that it kills for memory, and how many there were
    """

    samples: int
    file: str
    kills: int


@dataclass(slots=True)
class Killed:
    """What is known of each device's memory from those that were killed for it.

    Attributes
    ----------
    full : why a device's memory is too small even for its smallest pass, by device
    """

    full: dict[str, str] = field(default_factory=dict)
    _passes: dict[str, _Pass] = field(default_factory=dict)
    _most: dict[str, float] = field(default_factory=dict)

    def most(self, device: str) -> float:
        """Give the most samples that a pass of a device may have, inf where nothing is known."""
        return self._most.get(device, inf)

    def begins(self, device: str, samples: int, file: str) -> bool:
        """Take note of a pass that is about to be made; False where it killed the worker before."""
        self._passes[device] = _Pass(samples, file, own_memory.memory_kills(file))
        if samples <= self.most(device):
            return True
        self.full[device] = f"the system killed it for its memory in a pass of {samples} samples, which stays whole"
        return False

    def ran_out(self, device: str, error: BaseException) -> BaseException:
        """Take note of an error that says that memory ran out; gives one that says it in words."""
        if not isinstance(error, OutOfDeviceMemoryError):
            error = OutOfDeviceMemoryError(f"memory ran out before the first pass ({type(error).__name__})")
        self.full.setdefault(device, str(error))
        return error

    def was_killed(self, device: str) -> str:
        """Say what a worker that is gone was killed for, '' where its memory was not the reason."""
        last = self._passes.pop(device, None)
        if last is None or own_memory.memory_kills(last.file) <= last.kills:
            return ""
        self._most[device] = last.samples // 2
        size = "one sample" if last.samples == 1 else f"{last.samples} samples"
        said = f"the system killed it for its memory in a pass of {size}"
        if last.samples == 1:
            self.full[device] = said
        return said
