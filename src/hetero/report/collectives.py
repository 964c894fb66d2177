"""When devices were in collectives or waited at the end of group tasks, and what of it cannot be.

In: a run. Out: spans of time by device, and one line for each thing that contradicts another.
It must not say which category that time is: that is `account`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf
from typing import NamedTuple

from hetero.model.annotations import CollectiveDone
from hetero.report.record import Attempt, RunRecord

__all__ = ["CollectiveTime", "collective_problems", "collective_spans", "collective_times", "collective_waits"]

_SLACK_S = 2e-6
_SLACK_FRAC = 1e-6
"""Traces give durations with seven digits."""
TimeSpans = dict[int, list[tuple[float, float]]]


class CollectiveTime(NamedTuple):
    """One kind of collective by one algorithm, over all groups of a size.

    Attributes
    ----------
    what, algorithm, members : as in `CollectiveDone`
    calls : of one member after the other
    nbytes : bytes of all their rows
    seconds : s that members spent in there, all together
    """

    what: str
    algorithm: str
    members: int
    calls: int
    nbytes: int
    seconds: float


def collective_times(run: RunRecord) -> tuple[CollectiveTime, ...]:
    """Sum up what members told, those that took longest first."""
    sums: dict[tuple[str, str, int], tuple[int, int, float]] = {}
    for each in run.collectives:
        key = (each.what, each.algorithm, each.world_size)
        calls, nbytes, seconds = sums.get(key, (0, 0, 0.0))
        sums[key] = (calls + each.calls, nbytes + each.nbytes, seconds + each.seconds)
    rows = (CollectiveTime(*key, *values) for key, values in sums.items())
    return tuple(sorted(rows, key=lambda each: (-each.seconds, each[:3])))


def collective_spans(run: RunRecord) -> TimeSpans:
    """Return for each device when it was in a collective."""
    index_of = {device.id: index for index, device in enumerate(run.devices)}
    spans: TimeSpans = defaultdict(list)
    for each in run.collectives:
        if each.device in index_of:
            spans[index_of[each.device]].append((each.started_s, each.started_s + each.seconds))
    return spans


def collective_waits(run: RunRecord) -> TimeSpans:
    """Return for each device when it had ended its part of a group task and others had not."""
    sizes = Counter(key[:2] for key in {(each.task, each.attempt, each.device) for each in run.attempts})
    ends: dict[tuple[int, int], float] = {}
    for each in run.attempts:
        key = (each.task, each.attempt)
        if sizes[key] > 1:
            ends[key] = max(ends.get(key, -inf), each.end_s)
    waits: TimeSpans = defaultdict(list)
    for each in run.attempts:
        last_s = ends.get((each.task, each.attempt), -inf)
        if last_s > each.end_s:
            waits[each.device].append((each.end_s, last_s))
    return waits


def collective_problems(run: RunRecord) -> Iterator[str]:
    """Return which collectives lie outside of their attempt, overlap, or were told by some members of a group only."""
    told: dict[tuple[int, int, str], list[CollectiveDone]] = defaultdict(list)
    for each in run.collectives:
        told[each.task, each.attempt, each.device].append(each)
    if not told or run.torn:
        return
    groups: dict[tuple[int, int], list[Attempt]] = defaultdict(list)
    for attempt in run.attempts:
        groups[attempt.task, attempt.attempt].append(attempt)
    for key, members in groups.items():
        rows = [told.pop((*key, run.devices[each.device].id), []) for each in members]
        yield from _outside(members, rows)
        counts = {sum(each.calls for each in row) for row in rows}
        if len(counts) > 1 and all(each.outcome == "done" for each in members):
            yield f"the members of task {key[0]} tell of {min(counts)} to {max(counts)} collectives"
    for task, number, device in told:
        yield f"a collective of attempt {number} of task {task} was told on {device}, which did not run it"


def _outside(members: Iterable[Attempt], rows: Iterable[list[CollectiveDone]]) -> Iterator[str]:
    for member, row in zip(members, rows, strict=True):
        spans = sorted((each.started_s, each.started_s + each.seconds) for each in row)
        slack_s = _SLACK_S + _SLACK_FRAC * (member.end_s - member.start_s)
        if spans and (spans[0][0] < member.start_s - slack_s or max(spans)[1] > member.end_s + slack_s):
            yield f"a collective of task {member.task} lies outside of its attempt {member.attempt}"
        if any(next_s < end_s - slack_s for (_, end_s), (next_s, _) in pairwise(spans)):
            yield f"two collectives of task {member.task} overlap in its attempt {member.attempt}"
