"""The report as one page of HTML that opens anywhere: no request leaves it; its data, and curves over the run's time.

In: a `RunRecord` and its `Findings`. Out: text. It must not let anything of the trace become markup or a script: texts
are escaped, and the page runs one script only, named by its hash. What it does not draw is in its data.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from itertools import chain
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.floor.units import format_bytes, format_seconds
from hetero.model.annotations import DeviceSampled
from hetero.report.account import CATEGORIES
from hetero.report.findings import Findings, find
from hetero.report.intervals import Floats, Ints, column
from hetero.report.planning import expected_end, places_by_device
from hetero.report.record import RunRecord, nothing_collected
from hetero.report.tables import (
    Table,
    chain_table,
    collective_table,
    device_table,
    epoch_table,
    gain_table,
    loss_table,
    member_table,
    operator_table,
    prediction_table,
    process_table,
)
from hetero.report.training import drawn

__all__ = ["STEPS", "TimeCurve", "curves", "packed", "page"]

_PROBLEMS = 50
_SCRIPTS = ("data", "uplot", "draw", "timeline", "curves", "figures", "start")

_TICKS = 2**30
_RATIO = 512
_NO_RATIO = -32768
_PARENTS = 64

STEPS = 400
"""Steps into which a run is cut."""


def page(run: RunRecord, usd_per_hour: Mapping[str, float] | None = None, found: Findings | None = None) -> str:
    """Return the report of a run as a page.

    Parameters
    ----------
    usd_per_hour
        Price per hour by device id, label, name or kind; where none is given, the catalog's.
    found
        What was found already, None to look now.
    """
    found = found or find(run, usd_per_hour)
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    with nothing_collected():
        data = packed(run, found)
    values = {
        "hash": digest,
        "title": escape(_title(run)),
        "about": escape(_about(run, found)),
        "summary": "".join(f"<li>{escape(_plain(each))}</li>" for each in found.sentences),
        "devices": _html(device_table(found)),
        "losses": _html(gain_table(found)) + _html(loss_table(found)),
        "predictions": _html(prediction_table(found)),
        "chain": _html(chain_table(run, found)),
        "training": _training(found),
        "inside": _inside(found),
        "problems": _problems(run, found),
        "data": data,
    }
    values |= {"css": _file("uplot.css") + "\n" + _file("css"), "js": script}
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], _file("html"))


def _file(name: str) -> str:
    return (resources.files("hetero.report") / f"page.{name}").read_text(encoding="utf-8")


def _script() -> str:
    """Put the page's one script together: our own parts, and uPlot with its licence in place of its address."""
    parts = {name: _file(f"{name}.js") for name in _SCRIPTS}
    head, _, code = parts["uplot"].partition("\n")
    parts["uplot"] = f"/* uPlot {head.partition('(v')[2].partition(')')[0]}\n{_file('uplot.LICENSE')}*/\n{code}"
    return "\n".join(parts.values())


def _plain(text: str) -> str:
    """Replace what would not show."""
    return "".join(each if each.isprintable() or each == "\n" else "�" for each in text)


def _html(table: Table) -> str:
    """Return a table as markup, which the page's script sorts by the column whose head is pressed; '' for none."""
    if not table:
        return ""

    def row(cells: Sequence[str], tag: str) -> str:
        marked = (f'<{tag} class="text">' if at in table.left else f"<{tag}>" for at in range(len(cells)))
        return "".join(f"{mark}{escape(_plain(cell))}</{tag}>" for mark, cell in zip(marked, cells, strict=True))

    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in table.rows)
    return f"<table><thead><tr>{row(table.head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def _title(run: RunRecord) -> str:
    name = _plain(str(run.head.get("run") or ""))
    return f"Where the time went: {name}" if name else "Where the time went"


def _about(run: RunRecord, found: Findings) -> str:
    head = run.head
    parts = [
        str(head.get("started", ""))[:19].replace("T", " "),
        str(head.get("host", "")),
        f"policy {head['policy']}" if head.get("policy") else "",
        f"{len(run.attempts):,} attempts",
        f"{format_seconds(found.span_s)}",
        f"{format_bytes(found.bytes_moved)} moved" if found.bytes_moved else "nothing copied between memory nodes",
        f"hetero {head['hetero']}" if head.get("hetero") else "",
    ]
    return " · ".join(_plain(each) for each in parts if each)


def _training(found: Findings) -> str:
    if found.training is None:
        return f"<h2>Phases</h2>{_html(process_table(found))}" if found.processes else ""
    tables = "".join(map(_html, (member_table(found.training), epoch_table(found.training), process_table(found))))
    label = "Loss, samples and time over the steps. Arrow keys move, plus and minus zoom, 0 shows all; figures follow"
    curves = f'<div id="training" tabindex="0" role="group" aria-label="{label}"></div>'
    return f"<h2>Training</h2>{curves}{tables}"


def _inside(found: Findings) -> str:
    """Return what attempts told of their inside."""
    told = (("Collectives", collective_table(found)), ("Operators", operator_table(found)))
    return "".join(f"<h2>{title}</h2>{_html(table)}" for title, table in told if table)


def _problems(run: RunRecord, found: Findings) -> str:
    told = [(at_s, f"warned: {text}") for at_s, text in run.warnings]
    failed = [(number, task) for number, task in run.tasks.items() if task.failure]
    told += [
        (task.over_s, f"{task.name} #{number} failed: {' '.join(task.failure.split())}") for number, task in failed
    ]
    for device, losses in zip(run.devices, run.lost, strict=True):
        told += [(at_s, f"{device.id} was lost: {reason}") for at_s, reason in losses]
    lines = [*found.problems, *(f"{format_seconds(at_s - run.begin_s)}: {text}" for at_s, text in sorted(told))]
    if not lines:
        return ""
    more = f"\n… and {len(lines) - _PROBLEMS:,} more" if len(lines) > _PROBLEMS else ""
    return f"<h2>Problems</h2><pre>{escape(_plain(chr(10).join(lines[:_PROBLEMS]) + more))}</pre>"


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


def _document(run: RunRecord, found: Findings, names: list[str], tick_s: float) -> dict[str, object]:
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


def _ticks(seconds: object, tick_s: float) -> NDArray[np.int32]:
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


class TimeCurve(NamedTuple):
    """One series.

    Attributes
    ----------
    group
        'devices computing', 'memory', 'links', or what devices told of themselves: 'busy', 'in use', 'temperature',
        'power', 'expected end'.
    unit
        '', 'B', 'B/s', '°C', 'W', 's', or '%' of fractions.
    values
        Shape (STEPS,), the mean of each step; of memory the value at its end.
    """

    group: str
    name: str
    unit: str
    values: Floats


def curves(run: RunRecord) -> list[TimeCurve]:
    """Return all curves of a run that have something to show."""
    edges = np.linspace(run.begin_s, max(run.end_s, run.begin_s + 1e-9), STEPS + 1)
    told = [_computing(run, edges), *_memory_curves(run, edges), *_link_curves(run, edges), *_told_curves(run, edges)]
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


def _memory_curves(run: RunRecord, edges: Floats) -> list[TimeCurve]:
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


def _link_curves(run: RunRecord, edges: Floats) -> list[TimeCurve]:
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


def _told_curves(run: RunRecord, edges: Floats) -> list[TimeCurve]:
    """Return what devices told of themselves, each value until the next one."""
    samples = [each for each in run.notes if isinstance(each, DeviceSampled)]
    found = []
    for group, unit, field in _TOLD:
        series: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for each in samples:
            if isfinite(value := getattr(each, field)):
                series[each.device].append((each.at_s, value))
        for name, pairs in sorted(series.items()):
            at, values = np.array(pairs).T
            place = np.searchsorted(at, edges[1:], side="right") - 1
            found.append(TimeCurve(group, name, unit, values[place.clip(min=0)]))
    return found
