"""How far from the best a run was: the lower bound of its makespan, from what its tasks took.

In: a `RunRecord`. Out: seconds that every placement needs, and how many of the times behind them are estimates.
It must not promise what it cannot prove: the bound is never above what the run took.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import permutations
from typing import NamedTuple

import numpy as np

from hetero.core.obstacles import obstacle
from hetero.model.tasks import Request
from hetero.plan.bounds.makespan import lower_bound
from hetero.report.intervals import Floats, Ints, column
from hetero.report.record import RunRecord

__all__ = ["Best", "best_possible"]

_LOW = 0.1


@dataclass(frozen=True, slots=True)
class Best:
    """What no placement of the same tasks can beat.

    Attributes
    ----------
    seconds
        Seconds, no placement ends sooner after the first submission.
    saving_s
        Seconds, the most that the best placement would have saved.
    cause
        What the bound rests on: 'path', 'load', 'window', 'search', or 'mixed' where parts differ.
    pairs, estimated
        Of function and model of device that can meet; of these never ran, so their times are estimates.
    quiet_s
        Seconds in which the program had handed in nothing that was open; no placement removes them.
    """

    seconds: float
    saving_s: float
    cause: str
    pairs: int
    estimated: int
    quiet_s: float


def best_possible(run: RunRecord) -> Best:
    """Bound the makespan of a run from below.

    Notes
    -----
    The run is cut where no task was open: what follows waits for the program, not for a device. Each part gets the
    lower bound of `hetero.plan.bounds.makespan` on a table of seconds: where a task ran, what it took there; where its
    function ran on such a device, the tenth percentile of that; where it never did, the tenth percentile of an estimate
    from the ratio of the devices on other functions, else of its time on any device. Devices from which only the words
    of a request keep a task count too, so that the bound includes what was put on the wrong device. The run itself is a
    schedule of that table, so its makespan is never below the bound, whatever the estimates are. Transfers are left
    out.
    """
    done = _done(run)
    table, pairs, estimated = _table(run, done)
    parts, quiet_s = _parts(run, done.numbers)
    rounds = max(4, 400 // len(parts)) if len(parts) > 4 else 120
    found = [_part(run, done, rows, table[rows], rounds) for rows in parts]
    causes = {cause for _, cause in found}
    cause = causes.pop() if len(causes) == 1 else "mixed" if causes else "load"
    seconds = min(sum(each for each, _ in found) + quiet_s, run.span_s)
    return Best(seconds, run.span_s - seconds, cause, pairs, estimated, quiet_s)


class _Done(NamedTuple):
    """The attempts that counted.

    Attributes
    ----------
    numbers
        The tasks that have some, ascending.
    row, device, seconds
        Of each attempt the place of its task in `numbers`, its device, and s that it took.
    width, first_s, last_s
        Of each task how many attempts it had, and s when the first began and the last ended.
    """

    numbers: list[int]
    row: Ints
    device: Ints
    seconds: Floats
    width: Ints
    first_s: Floats
    last_s: Floats


def _done(run: RunRecord) -> _Done:
    attempts = [each for each in run.attempts if each.outcome == "done"]
    numbers, row = np.unique(column(attempts, "task").astype(np.int64), return_inverse=True)
    starts, ends = column(attempts, "start_s"), column(attempts, "end_s")
    first_s, last_s = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
    np.minimum.at(first_s, row, starts)
    np.maximum.at(last_s, row, ends)
    device, width = column(attempts, "device").astype(np.int64), np.bincount(row, minlength=len(numbers))
    return _Done(numbers.tolist(), row, device, column(attempts, "taken_s"), width, first_s, last_s)


def _part(run: RunRecord, done: _Done, rows: list[int], table: Floats, rounds: int) -> tuple[float, str]:
    if len(rows) == 1:
        return float(table.min()), "path"
    tasks = [run.tasks[done.numbers[row]] for row in rows]
    row_of = {done.numbers[row]: at for at, row in enumerate(rows)}
    after = [tuple([row_of[each] for each in task.after if each in row_of]) if task.after else () for task in tasks]
    found = lower_bound(table, after if any(after) else (), done.width[rows].tolist(), rounds=rounds)
    return min(found.seconds, float(done.last_s[rows].max() - done.first_s[rows].min())), found.cause


def _parts(run: RunRecord, numbers: list[int]) -> tuple[list[list[int]], float]:
    """Return the rows of each part of a run between moments when nothing was open, and the quiet seconds in all."""
    row_of = {number: row for row, number in enumerate(numbers)}
    parts: list[list[int]] = []
    over_s, quiet_s = run.begin_s, 0.0
    submitted_s, ends_s = column(list(run.tasks.values()), "submitted_s"), column(list(run.tasks.values()), "over_s")
    in_order = np.argsort(submitted_s, kind="stable") if (np.diff(submitted_s) < 0.0).any() else slice(None)
    each_task = np.fromiter(run.tasks, np.int64, len(run.tasks))[in_order], submitted_s[in_order], ends_s[in_order]
    for number, from_s, until_s in zip(*(each.tolist() for each in each_task), strict=True):
        if from_s > over_s or not parts:
            quiet_s += max(0.0, from_s - over_s)
            parts.append([])
        if until_s > over_s:
            over_s = max(over_s, min(until_s, run.end_s))
        if number in row_of:
            parts[-1].append(row_of[number])
    return [sorted(part) for part in parts if part], quiet_s


def _table(run: RunRecord, done: _Done) -> tuple[Floats, int, int]:
    """Return seconds, task × device, with the number of pairs of function and model, and of those estimated."""
    tasks = [run.tasks[number] for number in done.numbers]
    low = _low(run, done, [each.signature for each in tasks])
    by_signature: dict[str, dict[str, float]] = defaultdict(dict)
    for (signature, key), taken in low.items():
        by_signature[signature][key] = taken
    ratios = _ratios(by_signature)
    place: dict[tuple[str, int], int] = {}
    rows: list[Floats] = []
    used: set[tuple[str, str]] = set()
    kinds = []
    for task in tasks:
        kind = (task.signature, id(task.request))
        if kind not in place:
            place[kind] = len(rows)
            rows.append(_row(run, task.signature, task.request, by_signature[task.signature], ratios, used))
        kinds.append(place[kind])
    table = np.array(rows)[kinds] if rows else np.empty((0, len(run.devices)))
    table[done.row, done.device] = done.seconds
    return table, len(used), len(used - set(low))


def _low(run: RunRecord, done: _Done, signatures: list[str]) -> dict[tuple[str, str], float]:
    """Return the tenth percentile of s that each function took on each model of device where it ran."""
    if not signatures:
        return {}
    names, keys = sorted(set(signatures)), sorted({device.model_key for device in run.devices})
    name_at, key_at = ({each: at for at, each in enumerate(known)} for known in (names, keys))
    name = np.array([name_at[each] for each in signatures], dtype=np.int64)
    key = np.array([key_at[device.model_key] for device in run.devices], dtype=np.int64)
    code = name[done.row] * len(keys) + key[done.device]
    order = np.argsort(code, kind="stable")
    codes, starts = np.unique(code[order], return_index=True)
    taken = np.split(done.seconds[order], starts[1:])
    return {
        (names[at // len(keys)], keys[at % len(keys)]): float(np.quantile(each, _LOW))
        for at, each in zip(codes.tolist(), taken, strict=True)
    }


def _row(
    run: RunRecord,
    signature: str,
    request: Request,
    measured: dict[str, float],
    ratios: dict[tuple[str, str], float],
    used: set[tuple[str, str]],
) -> Floats:
    row = np.full(len(run.devices), np.inf)
    anywhere = replace(request, on=(), not_on=())
    for index, device in enumerate(run.devices):
        if obstacle(device, anywhere, None):
            continue
        key = device.model_key
        used.add((signature, key))
        guesses = [taken * ratios[other, key] for other, taken in measured.items() if (other, key) in ratios]
        row[index] = measured.get(key, min(guesses or measured.values()))
    return row


def _ratios(by_signature: dict[str, dict[str, float]]) -> dict[tuple[str, str], float]:
    """Return for each two models of device the tenth percentile of seconds on the second over the first."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for taken_on in by_signature.values():
        for one, other in permutations(taken_on, 2):
            if taken_on[one] > 0.0:
                found[one, other].append(taken_on[other] / taken_on[one])
    return {pair: float(np.quantile(each, _LOW)) for pair, each in found.items()}
