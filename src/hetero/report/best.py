"""How far from the best a run was: the lower bound of its makespan, from what its tasks took.

In: a `RunRecord`. Out: seconds that every placement needs, and how many of the times behind them are estimates.
It must not promise what it cannot prove: the bound is never above what the run took.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hetero.core.eligible import obstacle
from hetero.model.tasks import Request
from hetero.plan.bounds import lower_bound
from hetero.report.record import Attempt, RunRecord

__all__ = ["Best", "best_possible"]

Floats: TypeAlias = NDArray[np.float64]

_LOW = 0.1


@dataclass(frozen=True, slots=True)
class Best:
    """What no placement of the same tasks can beat.

    Attributes
    ----------
    seconds : s, no placement ends sooner after the first submission
    saving_s : s, the most that the best placement would have saved
    cause : what the bound rests on: 'path', 'load', 'window', 'search', or 'mixed' where parts differ
    pairs, estimated : of function and model of device that can meet; of these never ran, so their times are estimates
    quiet_s : s in which the program had handed in nothing that was open; no placement removes them
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
    lower bound of `hetero.plan.bounds` on a table of seconds: where a task ran, what it took there; where
    its function ran on such a device, the tenth percentile of that; where it never did, the tenth percentile of
    an estimate from the ratio of the devices on other functions, else of its time on any device. The run itself is a
    schedule of that table, so its makespan is never below the bound, whatever the estimates are. Transfers are left
    out.
    """
    done = [each for each in run.attempts if each.outcome == "done"]
    members: dict[int, list[Attempt]] = defaultdict(list)
    for each in done:
        members[each.task].append(each)
    numbers = sorted(members)
    table, pairs, estimated = _table(run, numbers, members)
    parts, quiet_s = _parts(run, numbers)
    rounds = max(4, 400 // len(parts)) if len(parts) > 4 else 120
    found = [_part(run, [numbers[row] for row in rows], table[rows], members, rounds) for rows in parts]
    causes = {cause for _, cause in found}
    cause = causes.pop() if len(causes) == 1 else "mixed" if causes else "load"
    seconds = min(sum(each for each, _ in found) + quiet_s, run.span_s)
    return Best(seconds, run.span_s - seconds, cause, pairs, estimated, quiet_s)


def _part(
    run: RunRecord, numbers: list[int], table: Floats, members: dict[int, list[Attempt]], rounds: int
) -> tuple[float, str]:
    if len(numbers) == 1:
        return float(table.min()), "path"
    row_of = {number: row for row, number in enumerate(numbers)}
    after = [tuple(row_of[each] for each in run.tasks[number].after if each in row_of) for number in numbers]
    width = [len(members[number]) for number in numbers]
    found = lower_bound(table, after if any(after) else (), width, rounds=rounds)
    first_s = min(each.start_s for number in numbers for each in members[number])
    last_s = max(each.end_s for number in numbers for each in members[number])
    return min(found.seconds, last_s - first_s), found.cause


def _parts(run: RunRecord, numbers: list[int]) -> tuple[list[list[int]], float]:
    """Give the rows of each part of a run between moments when nothing was open, and the quiet seconds in all."""
    row_of = {number: row for row, number in enumerate(numbers)}
    parts: list[list[int]] = []
    over_s, quiet_s = run.begin_s, 0.0
    numbers_in_order = list(run.tasks)
    if any(one.submitted_s > two.submitted_s for one, two in pairwise(run.tasks.values())):
        numbers_in_order.sort(key=lambda number: (run.tasks[number].submitted_s, number))
    for number in numbers_in_order:
        task = run.tasks[number]
        if task.submitted_s > over_s or not parts:
            quiet_s += max(0.0, task.submitted_s - over_s)
            parts.append([])
        over_s = max(over_s, min(task.over_s, run.end_s))
        if number in row_of:
            parts[-1].append(row_of[number])
    return [sorted(part) for part in parts if part], quiet_s


def _table(run: RunRecord, numbers: list[int], members: dict[int, list[Attempt]]) -> tuple[Floats, int, int]:
    """Give seconds, task × device, with the number of pairs of function and model, and of those estimated."""
    keys = [device.model_key for device in run.devices]
    seen: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in numbers:
        for each in members[number]:
            seen[run.tasks[number].signature, keys[each.device]].append(each.end_s - each.start_s)
    low = {pair: float(np.quantile(taken, _LOW)) for pair, taken in seen.items()}
    by_signature: dict[str, dict[str, float]] = defaultdict(dict)
    for (signature, key), taken in low.items():
        by_signature[signature][key] = taken
    ratios = _ratios(by_signature)
    rows: dict[tuple[str, int], Floats] = {}
    used: set[tuple[str, str]] = set()
    table = np.empty((len(numbers), len(run.devices)))
    for row, number in enumerate(numbers):
        task = run.tasks[number]
        kind = (task.signature, id(task.request))
        if kind not in rows:
            rows[kind] = _row(run, task.signature, task.request, by_signature[task.signature], ratios, used)
        table[row] = rows[kind]
        for each in members[number]:
            table[row, each.device] = each.end_s - each.start_s
    return table, len(used), len(used - set(low))


def _row(
    run: RunRecord,
    signature: str,
    request: Request,
    measured: dict[str, float],
    ratios: dict[tuple[str, str], float],
    used: set[tuple[str, str]],
) -> Floats:
    row = np.full(len(run.devices), np.inf)
    for index, device in enumerate(run.devices):
        if obstacle(device, request, None):
            continue
        key = device.model_key
        used.add((signature, key))
        guesses = [taken * ratios[other, key] for other, taken in measured.items() if (other, key) in ratios]
        row[index] = measured.get(key, min(guesses or measured.values()))
    return row


def _ratios(by_signature: dict[str, dict[str, float]]) -> dict[tuple[str, str], float]:
    """Give for each two models of device the tenth percentile of seconds on the second over the first."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for taken_on in by_signature.values():
        for one, other in permutations(taken_on, 2):
            if taken_on[one] > 0.0:
                found[one, other].append(taken_on[other] / taken_on[one])
    return {pair: float(np.quantile(each, _LOW)) for pair, each in found.items()}
