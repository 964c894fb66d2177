"""Curves over the time of a run: devices computing, bytes on each memory node, bytes a second on each link.

In: a `RunRecord`. Out: named series, a value for each of a fixed number of steps. It must not draw.
"""

from __future__ import annotations

from collections import defaultdict
from math import isfinite
from typing import NamedTuple

import numpy as np

from hetero.model.notes import DeviceSampled
from hetero.report.intervals import Floats
from hetero.report.planning import expected_end
from hetero.report.record import RunRecord

__all__ = ["STEPS", "TimeCurve", "curves"]

STEPS = 400
"""Steps into which a run is cut."""


class TimeCurve(NamedTuple):
    """One series.

    Attributes
    ----------
    group : 'devices computing', 'memory', 'links', or what devices told of themselves: 'busy', 'in use', 'temperature',
        'power', 'expected end'
    unit : '', 'B', 'B/s', '°C', 'W', 's', or '%' of fractions
    values : shape (STEPS,), the mean of each step; of memory the value at its end
    """

    group: str
    name: str
    unit: str
    values: Floats


def curves(run: RunRecord) -> list[TimeCurve]:
    """Return all curves of a run that have something to show."""
    edges = np.linspace(run.begin_s, max(run.end_s, run.begin_s + 1e-9), STEPS + 1)
    told = [_computing(run, edges), *_memory(run, edges), *_links(run, edges), *_told(run, edges)]
    ends_s = expected_end(run, edges)
    return told if ends_s is None else [*told, TimeCurve("expected end", "plan", "s", ends_s)]


def _spread(starts: Floats, ends: Floats, amounts: Floats, edges: Floats) -> Floats:
    """Spread amounts evenly over their intervals and sum them up for each step."""
    length_s = np.maximum(ends - starts, 1e-9)
    times = np.concatenate((starts, starts + length_s))
    rates = np.concatenate((amounts / length_s, -amounts / length_s))
    order = np.argsort(times, kind="stable")
    times, rates = times[order], np.cumsum(rates[order])
    if not len(times):
        return np.zeros(len(edges) - 1)
    total = np.concatenate(([0.0], np.cumsum(rates[:-1] * np.diff(times))))
    return np.maximum(np.diff(np.interp(edges, times, total)), 0.0)


def _computing(run: RunRecord, edges: Floats) -> TimeCurve:
    done = [(each.start_s, each.end_s) for each in run.attempts if each.outcome == "done"]
    table = np.array(done, dtype=float).reshape(-1, 2)
    seconds = _spread(table[:, 0], table[:, 1], table[:, 1] - table[:, 0], edges)
    return TimeCurve("devices computing", "devices", "", seconds / np.diff(edges))


def _memory(run: RunRecord, edges: Floats) -> list[TimeCurve]:
    held: dict[tuple[int, str], int] = {}
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    puts = [(at_s, 1, item, node, nbytes) for item, nbytes, node, at_s in run.put]
    frees = [(at_s, 0, item, node, 0) for item, node, at_s in run.freed]
    for at_s, _, item, node, nbytes in sorted([*puts, *frees]):
        before = held.pop((item, node), 0)
        if nbytes:
            held[item, node] = nbytes
        if nbytes != before:
            changes[node].append((at_s, nbytes - before))
    found = []
    for node, steps in sorted(changes.items()):
        at = np.array([at_s for at_s, _ in steps])
        level = np.concatenate(([0.0], np.cumsum([float(change) for _, change in steps])))
        found.append(TimeCurve("memory", node, "B", level[np.searchsorted(at, edges[1:], side="right")]))
    return found


def _links(run: RunRecord, edges: Floats) -> list[TimeCurve]:
    by_link: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for each in run.transfers:
        if each.ok:
            by_link[f"{each.src} → {each.dst}"].append((each.start_s, each.end_s, float(each.nbytes)))
    found = []
    for name, copies in sorted(by_link.items()):
        table = np.array(copies)
        moved = _spread(table[:, 0], table[:, 1], table[:, 2], edges)
        found.append(TimeCurve("links", name, "B/s", moved / np.diff(edges)))
    return found


_TOLD = (
    ("busy", "%", "busy_frac"),
    ("in use", "B", "used_bytes"),
    ("temperature", "°C", "temperature_c"),
    ("power", "W", "power_w"),
)


def _told(run: RunRecord, edges: Floats) -> list[TimeCurve]:
    """Return what devices told of themselves, each value until the next one."""
    samples = [each for each in run.notes if isinstance(each, DeviceSampled)]
    found = []
    for group, unit, column in _TOLD:
        series: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for each in samples:
            if isfinite(value := getattr(each, column)):
                series[each.device].append((each.at_s, value))
        for name, pairs in sorted(series.items()):
            at, values = np.array(pairs).T
            place = np.searchsorted(at, edges[1:], side="right") - 1
            found.append(TimeCurve(group, name, unit, values[place.clip(min=0)]))
    return found
