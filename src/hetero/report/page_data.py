"""The data of a report page: a small document and columns of numbers, deflated, as text.

In: a `RunRecord` and its `Findings`. Out: base64. It must not lose a task: what the page leaves out it
leaves out when it draws.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero.report.account import CATEGORIES
from hetero.report.curves import curves
from hetero.report.findings import Findings
from hetero.report.intervals import Floats, Ints, column
from hetero.report.planning import places_by_device
from hetero.report.record import RunRecord
from hetero.report.training import drawn

__all__ = ["packed"]

_TICKS = 2**30
_RATIO = 512
_NO_RATIO = -32768
_PARENTS = 64


def packed(run: RunRecord, found: Findings) -> str:
    """Pack everything that the page draws.

    Notes
    -----
    Layout before deflate: length of the document (4 bytes), the document (JSON, padded to 4 bytes), then each column
    as 32-bit integers with their bytes sorted by significance, which deflates well. The document lists the
    columns with their lengths. Times are whole ticks since the begin; one tick is 1 µs, more in long runs.
    """
    tick_s = max(1e-6, run.span_s / _TICKS) if run.span_s > 0.05 else max(1e-9, run.span_s / _TICKS)
    order = np.lexsort((column(run.attempts, "start_s"), column(run.attempts, "device")))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    names, name_of = _names(run)
    counts, plan = _plan(run, found, tick_s)
    columns = {**_attempts(run, order, place, name_of, tick_s), **_transfers(run, tick_s), **plan}
    document = {
        **_document(run, found, names, tick_s),
        "planCounts": counts,
        "chain": place[[link.attempt for link in found.chain]].tolist() if found.chain else [],
        "columns": [[name, len(values)] for name, values in columns.items()],
    }
    head = json.dumps(document, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 4)
    body = b"".join(_planes(values) for values in columns.values())
    return base64.b64encode(zlib.compress(len(head).to_bytes(4, "little") + head + body, 6)).decode()


def _planes(values: NDArray[np.int32]) -> bytes:
    """Return the lowest bytes of all values, then the next higher ones, and so on."""
    return values.astype("<i4").view(np.uint8).reshape(-1, 4).T.tobytes()


def _document(run: RunRecord, found: Findings, names: list[str], tick_s: float) -> dict[str, Any]:
    counts = Counter(each.device for each in run.attempts)
    return {
        "tick": tick_s,
        "span": run.span_s,
        "names": names,
        "devices": [device.short for device in run.devices],
        "counts": [counts[index] for index in range(len(run.devices))],
        "categories": list(CATEGORIES),
        "seconds": [[_short(each[name]) for name in CATEGORIES] for each in found.account.seconds],
        "links": [_arrow(run, f"{src} → {dst}") for src, dst in _links(run)],
        "linkCounts": [len(each) for each in _links(run).values()],
        "path": found.path[:20_000],
        "best": found.best.seconds,
        "training": drawn(found.training),
        "curves": [
            [each.group, _arrow(run, each.name), each.unit, [_short(one) for one in each.values]]
            for each in curves(run)
        ],
    }


def _arrow(run: RunRecord, name: str) -> str:
    """Shorten the memory nodes in the name of a link, or of anything else."""
    return " → ".join(_near(run, each) for each in name.split(" → "))


def _near(run: RunRecord, node: str) -> str:
    """Leave the host out of a memory node's name where there is only one."""
    host, _, rest = node.partition("/")
    return rest if rest and {device.host for device in run.devices} == {host} else node


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _names(run: RunRecord) -> tuple[list[str], dict[int, int]]:
    """Return the names of functions, those with the most time first, and the place of each task's."""
    taken: dict[str, float] = defaultdict(float)
    for each in run.attempts:
        if each.task in run.tasks:
            taken[run.tasks[each.task].name] += each.end_s - each.start_s
    names = sorted(taken, key=lambda name: (-taken[name], name))
    index = {name: at for at, name in enumerate(names)}
    return names, {number: index.get(task.name, 0) for number, task in run.tasks.items()}


_OUTCOMES = {"done": 0, "failed": 1, "lost": 2, "unused": 3}


def _attempts(
    run: RunRecord, order: Ints, place: Ints, name_of: Mapping[int, int], tick_s: float
) -> dict[str, NDArray[np.int32]]:
    attempts = [run.attempts[at] for at in order]
    began_s, ended_s = column(attempts, "start_s"), column(attempts, "end_s")
    tasks = column(attempts, "task").astype(np.int64)
    counts, parents = _parents(run, order, place)
    start, end = _ticks(began_s - run.begin_s, tick_s), _ticks(ended_s - run.begin_s, tick_s)
    return {
        "gap": np.diff(start, prepend=0) - np.concatenate(([0], (end - start)[:-1])) if len(start) else start,
        "took": end - start,
        "queued": _ticks(np.maximum(began_s - column(attempts, "launch_s"), 0.0), tick_s),
        "task": np.diff(np.minimum(tasks, 2**31 - 1), prepend=0).astype(np.int32),
        "name": np.fromiter((name_of.get(each, 0) for each in tasks.tolist()), np.int32, len(tasks)),
        "outcome": np.fromiter((_OUTCOMES[each.outcome] for each in attempts), np.int32, len(attempts)),
        "ratio": _ratios(column(attempts, "predicted_s"), ended_s - began_s),
        "parents": counts,
        "parent": parents,
    }


def _plan(run: RunRecord, found: Findings, tick_s: float) -> tuple[list[int], dict[str, NDArray[np.int32]]]:
    """Return where a plan of the whole graph had tasks at first; no columns where there was none."""
    if found.planning is None:
        return [], {}
    counts, starts_s, ends_s = places_by_device(found.planning, len(run.devices))
    start, end = _ticks(starts_s - run.begin_s, tick_s), _ticks(ends_s - run.begin_s, tick_s)
    return counts, {"planGap": np.diff(start, prepend=0).astype(np.int32), "planTook": end - start}


def _ticks(seconds: Any, tick_s: float) -> NDArray[np.int32]:
    return np.nan_to_num(np.rint(np.asarray(seconds) / tick_s)).clip(-(2**31), 2**31 - 1).astype(np.int32)


def _ratios(predicted_s: Floats, took_s: Floats) -> NDArray[np.int32]:
    """Return predicted over measured as logarithms, good to 0.14 %."""
    known = (predicted_s > 0.0) & (predicted_s < np.inf) & (took_s > 0.0)
    found = np.full(len(took_s), _NO_RATIO)
    found[known] = np.rint(_RATIO * np.log2(predicted_s[known] / took_s[known])).clip(-32767, 32767)
    return found.astype(np.int32)


def _parents(run: RunRecord, order: Ints, place: Ints) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return for each attempt how many attempts it needed, and how many rows before it each of them stands."""
    tasks = column(run.attempts, "task").astype(np.int64)
    done = np.flatnonzero(np.fromiter((each.outcome == "done" for each in run.attempts), bool, len(tasks)))
    homes, first = np.unique(tasks[done], return_index=True)
    needs = [task.after if task else () for task in map(run.tasks.get, tasks[order].tolist())]
    rows = np.repeat(np.arange(len(needs)), [len(each) for each in needs])
    given = np.fromiter(chain.from_iterable(needs), np.int64, len(rows))
    known = np.isin(given, homes)
    rows, given = rows[known], given[known]
    counts = np.bincount(rows, minlength=len(needs))
    kept = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows] < _PARENTS
    parents = rows - place[done[first]][np.searchsorted(homes, given)]
    return np.minimum(counts, _PARENTS).astype(np.int32), parents[kept].astype(np.int32)


def _links(run: RunRecord) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at, each in enumerate(run.transfers):
        found[each.src, each.dst].append(at)
    return dict(sorted(found.items()))


def _transfers(run: RunRecord, tick_s: float) -> dict[str, NDArray[np.int32]]:
    rows = [
        each
        for link in _links(run).values()
        for each in sorted((run.transfers[at] for at in link), key=lambda one: (one.start_s, one.item))
    ]
    return {
        "copyStart": _ticks(column(rows, "start_s") - run.begin_s, tick_s),
        "copyTook": _ticks(column(rows, "end_s") - column(rows, "start_s"), tick_s),
        "copyItem": np.array([min(each.item, 2**31 - 1) for each in rows], dtype=np.int32),
        "copyBytes": np.array([each.nbytes for each in rows], dtype=np.float32).view(np.int32),
        "copyOk": np.array([each.ok for each in rows], dtype=np.int32),
    }
