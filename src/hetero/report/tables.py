"""The figures of a report as plain text tables: one block of text each, for pages, terminals and printers.

In: `Findings`. Out: lines. It must not compute a figure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import isfinite

from hetero.floor.units import format_bytes, format_seconds
from hetero.report.account import CATEGORIES
from hetero.report.findings import LOSSES, Findings, gain_words
from hetero.report.phases import PHASES
from hetero.report.prices import format_usd, lost_usd
from hetero.report.record import RunRecord
from hetero.report.training import Training

__all__ = [
    "Table",
    "chain_table",
    "collective_table",
    "device_table",
    "epoch_table",
    "gain_table",
    "loss_table",
    "member_table",
    "operator_table",
    "prediction_table",
    "process_table",
    "text_table",
]

_ROWS = 30
_OPERATORS = 15


class Table(str):
    """A table as plain text that also knows its cells, for pages on which it is sorted.

    Attributes
    ----------
    head, rows, left
        As given to `text_table`.
    """

    __slots__ = ("head", "left", "rows")
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: Collection[int]


_NONE = Table("")


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> Table:
    """Lay out a table in columns; those named in `left` flush left, the others flush right.

    Examples
    --------
    >>> print(text_table(("device", "s"), [("cpu:0", "1.5"), ("cuda:12", "10")]))
    device     s
    cpu:0    1.5
    cuda:12   10
    """
    table = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    lines = []
    for row in table:
        cells = zip(row, widths, strict=True)
        padded = [cell.ljust(wide) if at in left else cell.rjust(wide) for at, (cell, wide) in enumerate(cells)]
        lines.append("  ".join(padded).rstrip())
    laid = Table("\n".join(lines))
    laid.head, laid.rows, laid.left = table[0], tuple(table[1:]), left
    return laid


def device_table(found: Findings) -> Table:
    """Return the share of each kind of time for each device; kinds that no device had are left out."""
    priced = any(each is not None for each in found.usd)
    kinds = [name for name in CATEGORIES if found.account.total_s(name) > 0.0]
    head = ("device", *kinds, *(("cost",) if priced else ()))
    rows = []
    for device, seconds, usd in zip(found.devices, found.account.seconds, found.usd, strict=True):
        shares = (f"{100.0 * seconds[name] / found.span_s:.1f} %" if found.span_s else "" for name in kinds)
        rows.append((device.short, *shares, *((format_usd(usd) if usd is not None else "–",) if priced else ())))
    return text_table(head, rows)


def loss_table(found: Findings) -> Table:
    """Return the seconds and, where prices are known, the money that each kind of loss took."""
    priced = any(each is not None for each in found.usd)
    whole_s = found.span_s * len(found.devices) or 1.0
    rows = []
    for name in sorted(LOSSES, key=lambda each: -found.account.total_s(each)):
        total_s = found.account.total_s(name)
        if total_s <= 0.0:
            continue
        money = (format_usd(lost_usd(found.account, found.usd, name)),) if priced else ()
        share = f"{100.0 * total_s / whole_s:.1f} %"
        rows.append((name, format_seconds(total_s), share, *money))
    return text_table(("loss", "over all devices", "share", *(("cost",) if priced else ())), rows)


def gain_table(found: Findings) -> Table:
    """Return what the run would have gained without each cause, the largest first; '' where nothing was found."""
    rows = [
        (gain_words(each)[:80], format_seconds(each.seconds), _share(each.seconds / found.span_s), each.remedy[:120])
        for each in found.gains.found
    ]
    return text_table(("replayed", "sooner by", "share", "what to do"), rows, left=(0, 3)) if rows else _NONE


def prediction_table(found: Findings) -> Table:
    """Return what was expected and measured for each function and device, the largest sums first."""
    rows = []
    for each in sorted(found.predictions, key=lambda one: -one.runs * one.measured_s):
        seconds = (format_seconds(each.predicted_s), format_seconds(each.measured_s))
        rows.append((each.function[:40], each.device, f"{each.runs:,}", *seconds, _error(each.error_frac)))
    if len(rows) > _ROWS:
        rows = [*rows[:_ROWS], (f"… and {len(rows) - _ROWS:,} more", "", "", "", "", "")]
    return text_table(("function", "device", "runs", "predicted", "measured", "median error"), rows, left=(0, 1))


def _error(frac: float) -> str:
    """Write an error for people: far off as a factor."""
    return f"{100.0 * frac:.0f} %" if frac < 10.0 else f"{frac:,.0f} ×"


_BEGAN = {
    "data": "when its inputs were there",
    "device": "when the device was free",
    "submission": "after it was handed in",
}


def chain_table(run: RunRecord, found: Findings) -> Table:
    """Return what held the run up, the longest links first, and what they were waiting for."""
    rows = []
    chain = sorted(
        found.chain, key=lambda each: -(run.attempts[each.attempt].end_s - run.attempts[each.attempt].start_s)
    )
    for link in chain[:12]:
        attempt = run.attempts[link.attempt]
        name = run.tasks[attempt.task].name if attempt.task in run.tasks else "?"
        took = format_seconds(attempt.end_s - attempt.start_s)
        cells = (f"{name[:40]} #{attempt.task}", run.devices[attempt.device].short, took, format_seconds(link.waited_s))
        rows.append((*cells, _BEGAN[link.cause]))
    return text_table(("task", "device", "took", "waited", "began"), rows, left=(0, 1, 4))


def member_table(found: Training) -> Table:
    """Return what each device had of a step and took for it."""
    rows = []
    for each in found.members:
        busy = f"{100.0 * each.busy_s / found.step_s:.0f} %" if found.step_s and each.steps else "–"
        alone = f"{each.alone_per_s:,.0f}" if each.alone_per_s else "–"
        took = format_seconds(each.busy_s) if each.steps else "–"
        rows.append((each.device, f"{each.samples:,.0f}", took, busy, alone))
    return text_table(("device", "samples of a step", "its time", "of the step", "alone, samples/s"), rows)


def process_table(found: Findings) -> Table:
    """Return what each process of a launched script did with its time, by phase; '' for other runs."""
    had = dict.fromkeys(each.phase for process in found.processes for each in process.phases)
    rows = []
    for phase in (*(each for each in PHASES if each in had), *(each for each in had if each not in PHASES)):
        cells = [phase]
        for process in found.processes:
            took = next((each for each in process.phases if each.phase == phase), None)
            cells += ["–"] * 3 if took is None else [
                format_seconds(took.seconds),
                f"{100.0 * took.seconds / (process.seconds or 1.0):.1f} %",
                format_seconds(took.seconds / took.times),
            ]  # fmt: skip
        rows.append(cells)
    heads = [head for each in found.processes for head in (each.device, "of it", "each time")]
    return text_table(("phase", *heads), rows) if rows else _NONE


def epoch_table(found: Training) -> Table:
    """Return the epochs, the last ones where there are many."""
    rows = [
        (
            f"{each.epoch:,}",
            f"{each.step:,}",
            f"{each.loss:.4g}",
            _share(each.accuracy),
            f"{each.test_loss:.4g}" if isfinite(each.test_loss) else "–",
            _share(each.test_accuracy),
            format_seconds(each.seconds),
            f"{each.samples_per_s:,.0f}",
        )
        for each in found.epochs[-_ROWS:]
    ]
    head = ("epoch", "step", "loss", "right", "test loss", "test right", "took", "samples/s")
    return text_table(head, rows, left=()) if rows else _NONE


def collective_table(found: Findings) -> Table:
    """Return what collectives took; '' where there were none."""
    rows = [
        (
            each.what,
            each.algorithm,
            f"{each.members:,}",
            f"{each.calls:,}",
            format_bytes(each.nbytes) if each.nbytes else "–",
            format_seconds(each.seconds),
            format_seconds(each.seconds / each.calls),
        )
        for each in found.collectives
    ]
    head = ("collective", "algorithm", "members", "calls of members", "their bytes", "their time", "a call")
    return text_table(head, rows, left=(0, 1)) if rows else _NONE


def operator_table(found: Findings) -> Table:
    """Return the operators that took most time; '' where no profiler told."""
    rows = [
        (each.operator[:60], each.device, f"{each.calls:,}", format_seconds(each.own_s), _share(each.share_frac))
        for each in found.operators[:_OPERATORS]
    ]
    head = ("operator", "device", "calls", "own time", "of the device's")
    return text_table(head, rows, left=(0, 1)) if rows else _NONE


def _share(part: float) -> str:
    return f"{100.0 * part:.1f} %" if isfinite(part) else "–"
