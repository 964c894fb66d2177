"""What held a run up: the chain of attempts and waits that ends with the last result.

In: a `RunRecord`. Out: the links of that chain, first to last, and the longest chain of the task graph.
It must not guess: each link names the event that the next one waited for.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import NamedTuple

import numpy as np

from hetero.report.intervals import by_owner, column
from hetero.report.record import Attempt, RunRecord

__all__ = ["ChainLink", "critical_chain", "longest_path"]


class ChainLink(NamedTuple):
    """One link of the chain that held the run up.

    Attributes
    ----------
    attempt : index in `RunRecord.attempts`
    waited_s : s between what it waited for and its start
    cause : why it began when it did: 'data' (a task before it ended), 'device' (the attempt before it on its device
        ended), or 'submission'
    """

    attempt: int
    waited_s: float
    cause: str


def critical_chain(run: RunRecord) -> list[ChainLink]:
    """Walk back from the last finish: each attempt began after the latest of what it waited for."""
    if not run.attempts:
        return []
    places = _by_device(run)
    ended: dict[int, int] = {}
    for index, each in enumerate(run.attempts):
        if each.outcome == "done":
            ended[each.task] = index
    at = len(run.attempts) - 1 - int(column(run.attempts[::-1], "end_s").argmax())
    chain: list[ChainLink] = []
    seen = set()
    while at not in seen:
        seen.add(at)
        attempt = run.attempts[at]
        cause, before, since_s = _reason(run, at, attempt, places[attempt.device], ended)
        chain.append(ChainLink(at, max(0.0, attempt.start_s - since_s), cause))
        if before is None:
            break
        at = before
    return chain[::-1]


def _by_device(run: RunRecord) -> dict[int, tuple[list[float], list[int]]]:
    """Return for each device the ends of its attempts, ascending, and their places."""
    owners, ends = column(run.attempts, "device").astype(np.int64), column(run.attempts, "end_s")
    order = np.argsort(ends, kind="stable")
    split = by_owner(owners[order], (ends[order], order.astype(float)), len(run.devices))
    return {device: (end.tolist(), at.astype(int).tolist()) for device, (end, at) in enumerate(split)}


def _reason(
    run: RunRecord, at: int, attempt: Attempt, here: tuple[list[float], list[int]], ended: dict[int, int]
) -> tuple[str, int | None, float]:
    """Return why an attempt began when it did, the attempt that it waited for, and when that ended."""
    task = run.tasks.get(attempt.task)
    found: tuple[str, int | None, float] = ("submission", None, task.submitted_s if task else attempt.launch_s)
    for parent in task.after if task else ():
        index = ended.get(parent)
        if index is not None and found[2] < run.attempts[index].end_s <= attempt.start_s:
            found = ("data", index, run.attempts[index].end_s)
    place = bisect_right(here[0], attempt.start_s) - 1
    while place >= 0 and here[1][place] == at:
        place -= 1
    if place >= 0 and here[0][place] > found[2]:
        found = ("device", here[1][place], here[0][place])
    return found


def longest_path(run: RunRecord) -> tuple[list[int], float]:
    """Return the tasks of the longest chain of the task graph, by what they took, and its seconds."""
    taken: dict[int, float] = {}
    for each in run.attempts:
        if each.outcome == "done":
            taken[each.task] = max(taken.get(each.task, 0.0), each.end_s - each.start_s)
    reach: dict[int, float] = {}
    before: dict[int, int] = {}
    for number in sorted(run.tasks, key=lambda each: (run.tasks[each].ready_s, each)):
        longest_s = -1.0
        for parent in run.tasks[number].after:
            reach_s = reach.get(parent, -inf)
            if reach_s > longest_s or (reach_s == longest_s and parent < before[number]):
                before[number], longest_s = parent, reach_s
        reach[number] = taken.get(number, 0.0) + max(longest_s, 0.0)
    if not reach:
        return [], 0.0
    last = max(reach, key=lambda each: (reach[each], -each))
    path = [last]
    while path[-1] in before:
        path.append(before[path[-1]])
    return path[::-1], reach[last]
