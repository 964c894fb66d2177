"""A run as Chrome-trace JSON, which Perfetto and chrome://tracing open.

In: a `RunRecord`. Out: events: a row a device and link, a slice a task and copy, below a task what it told of its
inside, a flow from each copy to what read it. It must not let slices of one row cross each other: importers drop those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import NamedTuple

from hetero.model.annotations import CheckpointKept, CollectiveDone, NestedRun, OperatorsRun
from hetero.report.record import RunRecord

__all__ = ["InnerSlice", "Inside", "chrome_trace", "nested"]

_FIRST_ROW = 1000
"""Perfetto takes small thread ids for those of its own."""
_FIRST_LANE = 1_000_000
_PROCESS = 1


def chrome_trace(run: RunRecord) -> dict[str, object]:
    """Return the document.

    Notes
    -----
    Times are whole µs since the begin of the run; a slice of less than 1 µs is shown as 0 µs, in order.
    Copies that overlap on one link are put on rows of their own. Collectives and operators lie below the slice of
    their task, and what reaches beyond it by rounding is cut.
    """
    inside = Inside(run)
    events: list[dict[str, object]] = [_meta("process_name", 0, "hetero")]
    for index, device in enumerate(run.devices):
        events.append(_meta("thread_name", _FIRST_ROW + index, device.id))
        rows = sorted(
            (each for each in run.attempts if each.device == index), key=lambda each: (each.start_s, each.end_s)
        )
        spans = _whole(run, ((each.start_s, each.end_s) for each in rows))
        for each, (start_us, took_us) in zip(rows, spans, strict=True):
            task = run.tasks.get(each.task)
            told = {"task": each.task, "attempt": each.attempt, "outcome": each.outcome}
            row = _FIRST_ROW + index
            events.append(_slice(row, task.name if task else "?", each.outcome, start_us, took_us, told))
            for part, at, took in nested(inside.of(each.task, each.attempt, device.id), start_us, start_us + took_us):
                events.append(_slice(row, part.name, part.kind, at, took, part.told))
    events += _copies(run)
    events += _tracks(inside)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _us(seconds: float) -> int:
    """Round to whole µs; what is no number of a damaged trace counts as 0."""
    return round(seconds * 1e6) if isfinite(seconds) else 0


def _whole(run: RunRecord, spans: Iterable[tuple[float, float]]) -> list[tuple[int, int]]:
    """Round spans to whole µs so that none reaches into the next."""
    found: list[tuple[int, int]] = []
    free_us = 0
    for start_s, end_s in spans:
        start_us = max(free_us, _us(start_s - run.begin_s))
        free_us = max(start_us, _us(end_s - run.begin_s))
        found.append((start_us, free_us - start_us))
    return found


def _tracks(inside: Inside) -> list[dict[str, object]]:
    """Return what ran beside attempts, each thread and stream on a row of its own."""
    events = []
    for number, ((device, track), parts) in enumerate(sorted(inside.tracks.items())):
        row = _FIRST_LANE + number
        events.append(_meta("thread_name", row, f"{device} {track}"))
        events += [_slice(row, part.name, part.kind, at, took, part.told) for part, at, took in nested(parts)]
    return events


def _meta(name: str, row: int, text: str) -> dict[str, object]:
    return {"ph": "M", "name": name, "pid": _PROCESS, "tid": row, "args": {"name": text}}


def _slice(
    row: int, name: str, kind: str, start_us: int, took_us: int, told: Mapping[str, object]
) -> dict[str, object]:
    return {
        "ph": "X", "pid": _PROCESS, "tid": row, "name": name, "cat": kind, "ts": start_us, "dur": took_us, "args": told,
    }  # fmt: skip


def _copies(run: RunRecord) -> list[dict[str, object]]:
    """Return the copies as slices, and a flow from each to the first attempt that read it there."""
    readers: dict[tuple[int, str], list[tuple[float, int]]] = defaultdict(list)
    for each in run.attempts:
        node = run.devices[each.device].memory_node
        for item in run.tasks[each.task].inputs if each.task in run.tasks else ():
            readers[item, node].append((each.start_s, _FIRST_ROW + each.device))
    events: list[dict[str, object]] = []
    row_of: dict[tuple[str, int], int] = {}
    free_s: dict[tuple[str, int], float] = {}
    for number, copy in enumerate(sorted(run.transfers, key=lambda each: (each.start_s, each.item))):
        name = f"{copy.src} → {copy.dst}"
        track = next(track for track in range(len(run.transfers)) if free_s.get((name, track), -1.0) <= copy.start_s)
        free_s[name, track] = copy.end_s + 1e-6
        if (name, track) not in row_of:
            row_of[name, track] = _FIRST_ROW + len(run.devices) + len(row_of)
            events.append(_meta("thread_name", row_of[name, track], name))
        row = row_of[name, track]
        ((start_us, took_us),) = _whole(run, [(copy.start_s, copy.end_s)])
        told = {"item": copy.item, "bytes": copy.nbytes, "ok": copy.ok}
        events.append(_slice(row, f"item {copy.item}", "transfer", start_us, took_us, told))
        later = [each for each in readers.get((copy.item, copy.dst), ()) if each[0] >= copy.end_s]
        if later and copy.ok:
            read_s, reader = min(later)
            flow = {"cat": "transfer", "name": "read", "id": number + 1, "pid": _PROCESS}
            events.append({**flow, "ph": "s", "tid": row, "ts": start_us})
            events.append({**flow, "ph": "f", "bp": "e", "tid": reader, "ts": round((read_s - run.begin_s) * 1e6)})
    return events


class InnerSlice(NamedTuple):
    """One slice: its name and category, times in s since the begin of the run, and what is told of it."""

    name: str
    kind: str
    start_s: float
    end_s: float
    told: dict[str, object]


class Inside:
    """What the attempts of a run told of their inside.

    Attributes
    ----------
    tracks
        By device id and name, what ran beside the attempts: on other threads and streams.
    """

    def __init__(self, run: RunRecord) -> None:
        self._of: dict[tuple[int, int, str], list[InnerSlice]] = defaultdict(list)
        self.tracks: dict[tuple[str, str], list[InnerSlice]] = defaultdict(list)
        for note in run.notes:
            if isinstance(note, CollectiveDone):
                self._of[note.task, note.attempt, note.device].append(_collective(note, run.begin_s))
            elif isinstance(note, CheckpointKept):
                self._of[note.task, note.attempt, note.device].append(_checkpoint(note, run.begin_s))
            elif isinstance(note, NestedRun):
                start_s = note.started_s - run.begin_s
                part = InnerSlice(note.name, "nested", start_s, start_s + note.seconds, {"calls": note.calls})
                self._of[note.task, note.attempt, note.device].append(part)
            elif isinstance(note, OperatorsRun):
                for track, part in _operators(note, run.begin_s):
                    (
                        self.tracks[note.device, track] if track else self._of[note.task, note.attempt, note.device]
                    ).append(part)

    def of(self, task: int, attempt: int, device: str) -> list[InnerSlice]:
        """Return what happened inside one attempt, on its own thread."""
        return self._of.get((task, attempt, device), [])


def _collective(note: CollectiveDone, begin_s: float) -> InnerSlice:
    told = {"algorithm": note.algorithm, "rank": note.rank, "members": note.world_size, "bytes": note.nbytes}
    start_s = note.started_s - begin_s
    return InnerSlice(note.what, "collective", start_s, start_s + note.seconds, {**told, "calls": note.calls})


def _checkpoint(note: CheckpointKept, begin_s: float) -> InnerSlice:
    start_s = note.started_s - begin_s
    told = {"name": note.name, "bytes": note.nbytes, "calls": note.calls}
    return InnerSlice("checkpoint", "checkpoint", start_s, start_s + note.seconds, told)


def _operators(note: OperatorsRun, begin_s: float) -> Iterator[tuple[str, InnerSlice]]:
    origin_s = note.started_s - begin_s
    for name, track, start_s, seconds in zip(note.names, note.lanes, note.starts_s, note.seconds, strict=True):
        yield track, InnerSlice(name, "operator", origin_s + start_s, origin_s + start_s + seconds, {"task": note.task})


def nested(
    parts: Iterable[InnerSlice], from_us: int = 0, until_us: int = 2**62
) -> Iterator[tuple[InnerSlice, int, int]]:
    """Yield each part with its start and length in µs, cut so that it lies within the window and what is around it.

    Examples
    --------
    >>> parts = [InnerSlice("inner", "", 2e-6, 5e-6, {}), InnerSlice("outer", "", 1e-6, 4e-6, {})]
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
