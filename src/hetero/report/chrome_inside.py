"""What attempts told of their inside, as slices of a Chrome trace: collectives, checkpoints and operators.

In: the notes of a run, rows with their times. Out: spans in whole µs that lie within each other and never cross.
It must not know what an importer wants beside that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from hetero.model.notes import CheckpointKept, CollectiveDone, NestedRun, OperatorsRun
from hetero.report.record import RunRecord

__all__ = ["Inside", "Part", "nested"]


class Part(NamedTuple):
    """One slice: its name and category, times in s since the begin of the run, and what is told of it."""

    name: str
    kind: str
    start_s: float
    end_s: float
    told: dict[str, Any]


class Inside:
    """What the attempts of a run told of their inside.

    Attributes
    ----------
    lanes : by device id and name, what ran beside the attempts: on other threads and streams
    """

    def __init__(self, run: RunRecord) -> None:
        self._of: dict[tuple[int, int, str], list[Part]] = defaultdict(list)
        self.lanes: dict[tuple[str, str], list[Part]] = defaultdict(list)
        for note in run.notes:
            if isinstance(note, CollectiveDone):
                self._of[note.task, note.attempt, note.device].append(_collective(note, run.begin_s))
            elif isinstance(note, CheckpointKept):
                self._of[note.task, note.attempt, note.device].append(_checkpoint(note, run.begin_s))
            elif isinstance(note, NestedRun):
                start_s = note.started_s - run.begin_s
                part = Part(note.name, "nested", start_s, start_s + note.seconds, {"calls": note.calls})
                self._of[note.task, note.attempt, note.device].append(part)
            elif isinstance(note, OperatorsRun):
                for lane, part in _operators(note, run.begin_s):
                    (self.lanes[note.device, lane] if lane else self._of[note.task, note.attempt, note.device]).append(
                        part
                    )

    def of(self, task: int, attempt: int, device: str) -> list[Part]:
        """Return what happened inside one attempt, on its own thread."""
        return self._of.get((task, attempt, device), [])


def _collective(note: CollectiveDone, begin_s: float) -> Part:
    told = {"algorithm": note.algorithm, "rank": note.rank, "members": note.world_size, "bytes": note.nbytes}
    start_s = note.started_s - begin_s
    return Part(note.what, "collective", start_s, start_s + note.seconds, {**told, "calls": note.calls})


def _checkpoint(note: CheckpointKept, begin_s: float) -> Part:
    start_s = note.started_s - begin_s
    told = {"name": note.name, "bytes": note.nbytes, "calls": note.calls}
    return Part("checkpoint", "checkpoint", start_s, start_s + note.seconds, told)


def _operators(note: OperatorsRun, begin_s: float) -> Iterator[tuple[str, Part]]:
    origin_s = note.started_s - begin_s
    for name, lane, start_s, seconds in zip(note.names, note.lanes, note.starts_s, note.seconds, strict=True):
        yield lane, Part(name, "operator", origin_s + start_s, origin_s + start_s + seconds, {"task": note.task})


def nested(parts: Iterable[Part], from_us: int = 0, until_us: int = 2**62) -> Iterator[tuple[Part, int, int]]:
    """Yield each part with its start and length in µs, cut so that it lies within the window and what is around it.

    Examples
    --------
    >>> parts = [Part("inner", "", 2e-6, 5e-6, {}), Part("outer", "", 1e-6, 4e-6, {})]
    >>> [(part.name, start, took) for part, start, took in nested(parts)]
    [('outer', 1, 3), ('inner', 2, 2)]
    """
    around = [until_us]
    for part in sorted(parts, key=lambda each: (each.start_s, -each.end_s)):
        start_us = min(max(from_us, round(part.start_s * 1e6)), until_us)
        while len(around) > 1 and start_us >= around[-1]:
            around.pop()
        end_us = max(start_us, min(round(part.end_s * 1e6), around[-1]))
        yield part, start_us, end_us - start_us
        around.append(end_us)
