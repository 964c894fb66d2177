"""What a report says of operators inside attempts, where a profiler told of them.

In: the notes of a run. Out: rows and a sentence. It must not know which profiler it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from hetero.floor.units import format_seconds
from hetero.model.notes import OperatorsRun
from hetero.report.record import RunRecord

__all__ = ["OperatorTime", "operators", "sentence"]


class OperatorTime(NamedTuple):
    """One operator on one device.

    Attributes
    ----------
    device : short name
    calls : how often it was called in what was profiled
    own_s : s that it took, without those of what it called
    share_frac : of all operators of that device
    """

    operator: str
    device: str
    calls: int
    own_s: float
    share_frac: float


def operators(run: RunRecord) -> tuple[OperatorTime, ...]:
    """Return the operators by the time that they took, the longest first."""
    short = {device.id: device.short for device in run.devices}
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    whole: dict[str, float] = defaultdict(float)
    for note in run.notes:
        if isinstance(note, OperatorsRun):
            for name, calls, own_s in zip(note.operators, note.calls, note.own_s, strict=True):
                before = sums.get((name, note.device), (0, 0.0))
                sums[name, note.device] = (before[0] + calls, before[1] + own_s)
                whole[note.device] += own_s
    rows = [
        OperatorTime(name, short.get(device, device), calls, own_s, own_s / whole[device] if whole[device] else 0.0)
        for (name, device), (calls, own_s) in sums.items()
    ]
    return tuple(sorted(rows, key=lambda each: (-each.own_s, each.operator, each.device)))


def sentence(rows: Sequence[OperatorTime]) -> str:
    """Return which operators took most time."""
    told = [
        f"{each.operator} on {each.device} ({format_seconds(each.own_s)}, {100.0 * each.share_frac:.0f} %)"
        for each in rows[:3]
    ]
    return f"The operators that took most time: {', '.join(told)}."
