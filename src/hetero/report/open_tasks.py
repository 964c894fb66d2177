"""When tasks of each request were ready and had not begun, and when some were not ready.

In: a `RunRecord`. Out: sets of intervals by request. It must not know of devices.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hetero.model.tasks import Request
from hetero.report.intervals import Floats, Ints, Spans, by_owner, column, cut, union
from hetero.report.record import RunRecord

__all__ = ["open_tasks"]


def open_tasks(run: RunRecord) -> Mapping[Request, tuple[Spans, Spans]]:
    """Return for each request when a task of it was ready and had not begun, and when one was not ready."""
    tasks = list(run.tasks.values())
    requests, kinds = _kinds([each.request for each in tasks])
    over_s = np.minimum(column(tasks, "over_s"), run.end_s)
    free_s = np.minimum(column(tasks, "ready_s"), over_s)
    blocked = column(tasks, "submitted_s"), free_s
    rows, waits, last_s = _waits(run, free_s)
    answered = np.fromiter((each.commit is not None for each in tasks), bool, len(tasks))
    left = np.flatnonzero((last_s < over_s) & ~answered)
    ready = (
        np.concatenate((waits[0], last_s[left])),
        np.concatenate((np.minimum(waits[1], over_s[rows]), over_s[left])),
    )
    window, count = (run.begin_s, run.end_s), len(requests)
    ready_of = by_owner(np.concatenate((kinds[rows], kinds[left])), ready, count)
    blocked_of = by_owner(kinds, blocked, count)
    return {
        request: (union(cut(*ready_of[kind], *window)), union(cut(*blocked_of[kind], *window)))
        for kind, request in enumerate(requests)
    }


def _kinds(given: list[Request]) -> tuple[list[Request], Ints]:
    """Return the different requests, and for each task the place of its own; hashing one takes long."""
    by_id: dict[int, int] = {}
    places: dict[Request, int] = {}
    for each in given:
        if id(each) not in by_id:
            by_id[id(each)] = places.setdefault(each, len(places))
    return list(places), np.fromiter((by_id[id(each)] for each in given), np.int64, len(given))


def _waits(run: RunRecord, free_s: Floats) -> tuple[Ints, Spans, Floats]:
    """Return the row and interval of each wait of a ready task for its next attempt, and when the last one ended."""
    place = {number: row for row, number in enumerate(run.tasks)}
    tries = [each for each in run.attempts if each.task in place]
    rows = np.fromiter((place[each.task] for each in tries), np.int64, len(tries))
    starts, ends = column(tries, "start_s"), column(tries, "end_s")
    order = np.lexsort((ends, starts, rows))
    rows, starts, ends = rows[order], starts[order], ends[order]
    free_until_s = free_s.copy()
    since = np.empty(len(rows))
    alone = np.bincount(rows, minlength=len(free_s))[rows] == 1
    since[alone] = free_s[rows[alone]]
    np.maximum.at(free_until_s, rows[alone], ends[alone])
    for at in np.flatnonzero(~alone):
        since[at] = free_until_s[rows[at]]
        free_until_s[rows[at]] = max(free_until_s[rows[at]], ends[at])
    waited = since < starts
    return rows[waited], (since[waited], starts[waited]), free_until_s
