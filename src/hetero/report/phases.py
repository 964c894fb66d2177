"""What the processes of a launched script did, by phase: where all of their time went, from start to end.

In: a run. Out: seconds by process and phase, and a sentence. It must not know of tasks.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from hetero.floor.units import format_seconds
from hetero.model.annotations import PhasesRun
from hetero.report.record import RunRecord

__all__ = ["PHASES", "START_UP", "TOGETHER", "PhaseTime", "ProcessTime", "process_times", "sentence"]

PHASES = (
    "import", "prepare", "read", "forward", "backward", "wait", "exchange", "comparison", "update", "script", "end",
    "untold",
)  # fmt: skip
"""The phases of a process, in the order in which they are shown; see `PhasesRun`."""

START_UP = ("import", "prepare")
TOGETHER = ("wait", "exchange", "comparison")
_TOLD = 4


class PhaseTime(NamedTuple):
    """One phase of one process: s in all, and how often it came."""

    phase: str
    seconds: float
    times: int


class ProcessTime(NamedTuple):
    """The time of one process.

    Attributes
    ----------
    device
        Short name.
    seconds
        Seconds from its start to its end.
    phases
        Those that it had, in the order of `PHASES`.
    """

    device: str
    seconds: float
    phases: tuple[PhaseTime, ...]

    @property
    def told_frac(self) -> float:
        """Share of its time that the phases account for, without what was not told of."""
        told_s = sum(each.seconds for each in self.phases if each.phase != "untold")
        return told_s / self.seconds if self.seconds else 1.0

    def as_dict(self) -> dict[str, object]:
        """Return it for programs."""
        phases = {each.phase: {"seconds": each.seconds, "times": each.times} for each in self.phases}
        return {"device": self.device, "seconds": self.seconds, "told_frac": self.told_frac, "phases": phases}


def process_times(run: RunRecord) -> tuple[ProcessTime, ...]:
    """Return the time of each process, in the order of the devices; empty for a run without phases."""
    notes: dict[str, list[PhasesRun]] = defaultdict(list)
    for note in run.notes:
        if isinstance(note, PhasesRun):
            notes[note.device].append(note)
    found = []
    for device in run.devices:
        told = notes.get(device.id)
        if told:
            begin_s = min(each.started_s for each in told)
            end_s = max(each.started_s + sum(each.seconds) for each in told)
            found.append(ProcessTime(device.short, end_s - begin_s, _phases(told)))
    return tuple(found)


def _phases(told: list[PhasesRun]) -> tuple[PhaseTime, ...]:
    sums: dict[str, tuple[float, int]] = {}
    for note in told:
        for name, seconds in zip(note.names, note.seconds, strict=False):
            before_s, times = sums.get(name, (0.0, 0))
            sums[name] = before_s + seconds, times + 1
    order = {name: place for place, name in enumerate(PHASES)}
    return tuple(PhaseTime(name, *sums[name]) for name in sorted(sums, key=lambda name: order.get(name, len(order))))


def sentence(found: tuple[ProcessTime, ...]) -> str:
    """Return where the time of the processes went, the longest phases first."""
    whole_s = sum(each.seconds for each in found) or 1.0
    sums: dict[str, float] = defaultdict(float)
    for process in found:
        for phase in process.phases:
            sums[phase.phase] += phase.seconds
    longest = sorted(sums, key=lambda name: -sums[name])
    words = [f"{name} {100.0 * sums[name] / whole_s:.0f} %" for name in longest[:_TOLD]]
    rest_s = sum(sums[name] for name in longest[_TOLD:])
    words += [f"the rest {100.0 * rest_s / whole_s:.0f} %"] if rest_s else []
    told = 100.0 * min(each.told_frac for each in found)
    return (
        f"The time of the {len(found)} processes, {format_seconds(whole_s)} in all: {', '.join(words)}. "
        f"The phases account for {told:.1f} % of each or more."
    )
