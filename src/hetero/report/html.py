"""The report as one page of HTML that opens anywhere: no request leaves it.

In: a `RunRecord`. Out: text. It must not let anything of the trace become markup or a script: texts are escaped,
and the page runs one script only, named by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources

from hetero.floor.units import format_bytes, format_seconds
from hetero.report.findings import Findings, find
from hetero.report.page_data import packed
from hetero.report.quick import nothing_collected
from hetero.report.record import RunRecord
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
)

__all__ = ["page"]

_PROBLEMS = 50
_SCRIPTS = ("data", "uplot", "draw", "timeline", "curves", "figures", "start")


def page(run: RunRecord, usd_per_hour: Mapping[str, float] | None = None, found: Findings | None = None) -> str:
    """Return the report of a run as a page.

    Parameters
    ----------
    usd_per_hour : price per hour by device id, label, name or kind; where none is given, the catalog's
    found : what was found already, None to look now
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
        return ""
    tables = _html(member_table(found.training)) + _html(epoch_table(found.training))
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
