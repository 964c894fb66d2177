"""The report of a Context or a trace, for programs and notebooks.

In: a Context that writes a trace, or the trace's path. Out: a `Report` that shows itself and can be saved.
It must not run anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from hetero.floor.errors import BadValueError
from hetero.floor.files import output_stream
from hetero.report.findings import Findings, find
from hetero.report.html import page
from hetero.report.record import RunRecord
from hetero.report.trace_reader import read_run
from hetero.session.context import Context
from hetero.session.runs import trace_of

__all__ = ["Report", "report"]

_HIGH_PX = 900


class Report:
    """What a run did with its time.

    Attributes
    ----------
    run
        Everything that the trace tells.
    findings
        The figures.
    """

    def __init__(self, run: RunRecord, findings: Findings) -> None:
        self.run = run
        self.findings = findings

    @property
    def html(self) -> str:
        """The page."""
        return page(self.run, found=self.findings)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file.

        Raises
        ------
        BadValueError
            The file cannot be written.
        """
        path = output_stream(path, "path")
        try:
            path.write_text(self.html, encoding="utf-8")
        except OSError as error:
            problem = f"the report {path} cannot be written: {error.strerror}"
            raise BadValueError(problem, remedy="name a file in a folder that exists") from error
        return path

    def __str__(self) -> str:
        return "\n".join(self.findings.sentences)

    def _repr_html_(self) -> str:
        """Show the page in a frame of its own, which can reach nothing outside of it."""
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.html)}" '
            f'style="width:100%;height:{_HIGH_PX}px;border:0"></iframe>'
        )


def report(ctx: Context | str | Path, *, usd_per_hour: Mapping[str, float] | None = None) -> Report:
    """Return where the time of a run went; of one that is still going, until now.

    Parameters
    ----------
    ctx
        A Context that was opened with `trace=`, or the path of a trace.
    usd_per_hour
        Price per hour by device id, label, name or kind; where none is given, the catalog's.

    Raises
    ------
    BadValueError
        The Context writes no trace, or a price is for a device that the run did not have.
    TraceError
        The trace cannot be read.

    Examples
    --------
    >>> import hetero, tempfile
    >>> path = tempfile.mkdtemp() + "/run.trace.jsonl.gz"
    >>> with hetero.Context(devices="1xcpu", engine="inline", trace=path) as ctx:
    ...     total = ctx.run(sum, [1, 2, 3])
    >>> str(hetero.report(ctx)).startswith("1 task ran on 1 of 1 devices")
    True
    """
    run = read_run(trace_of(ctx))
    return Report(run, find(run, usd_per_hour))
