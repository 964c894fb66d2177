"""`hetero report` and `hetero-profiler`: where the time of a run went, in a page, a terminal, a picture or as JSON.

In: traces. Out: reports. Its commands import what is heavy inside their functions. The work is in `hetero.report`.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.grammar import REPORT
from hetero.cli.lazy import SETTINGS, lazy_group
from hetero.cli.options import AsJson, Output, Prices
from hetero.cli.output import console, print_json, run_command, say
from hetero.floor.errors import BadValueError
from hetero.floor.files import output_stream
from hetero.floor.platform import die_with_parent
from hetero.floor.script_runs import python_command

if TYPE_CHECKING:
    from hetero.report.record import RunRecord

__all__ = ["app", "chrome", "compare", "entry", "gantt", "html", "png", "run", "summary"]

TraceFile = Annotated[Path, typer.Argument(help="The trace of a run.")]
Only = Annotated[list[str] | None, typer.Option(help="Only the tasks of this function; may be repeated.")]


def _read(trace: Path, functions: list[str] | None = None) -> RunRecord:
    from hetero.report.trace_reader import only, read_run

    run = read_run(trace)
    return only(run, functions) if functions else run


def _beside(trace: Path, ending: str) -> Path:
    name = trace.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".trace")
    return trace.parent / f"{name}{ending}"


def _write(path: Path, text: str, json: bool = False) -> None:
    path = output_stream(path, "--output")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadValueError(
            f"{path} cannot be written: {error.strerror}", remedy="name a folder that exists"
        ) from error
    print_json({"output": str(path)}) if json else say(str(path))


def html(
    trace: TraceFile, output: Output = None, only: Only = None, prices: Prices = None, json: AsJson = False
) -> None:
    """Write the report: one page of HTML that opens anywhere, without the network.

    Without --output it goes beside the trace.
    """
    from hetero.report.html import page
    from hetero.report.prices import prices as read_prices

    _write(output or _beside(trace, ".report.html"), page(_read(trace, only), read_prices(prices or [])), json)


def summary(trace: TraceFile, only: Only = None, prices: Prices = None, json: AsJson = False) -> None:
    """Report in sentences where the time went."""
    from hetero.report.findings import find
    from hetero.report.prices import prices as read_prices
    from hetero.report.tables import (
        collective_table,
        device_table,
        epoch_table,
        gain_table,
        loss_table,
        member_table,
        operator_table,
        process_table,
    )

    found = find(_read(trace, only), read_prices(prices or []))
    if json:
        print_json(found.as_dict())
        return
    say("\n".join(found.sentences))
    if found.training is not None:
        say(f"\n{member_table(found.training)}\n\n{epoch_table(found.training)}".rstrip())
    if found.processes:
        say(f"\n{process_table(found)}")
    say("\n" + "\n\n".join(filter(None, (gain_table(found), device_table(found), loss_table(found)))))
    for table in (collective_table(found), operator_table(found)):
        if table:
            say(f"\n{table}")
    for problem in found.problems[:10]:
        say(f"problem: {problem}", to=sys.stderr)


def gantt(
    trace: TraceFile, only: Only = None, width: Annotated[int, typer.Option(help="Columns; 0 for the terminal's.")] = 0
) -> None:
    """Draw the timeline in the terminal."""
    from hetero.report.timeline import gantt as drawn

    out = console(width=width or None)
    for line in drawn(_read(trace, only), out.width):
        out.print(line, no_wrap=True, overflow="crop")


def chrome(trace: TraceFile, output: Output = None, json: AsJson = False) -> None:
    """Write Chrome-trace JSON, which Perfetto opens.

    Without --output it goes beside the trace.
    """
    from json import dumps

    from hetero.report.chrome import chrome_trace

    text = dumps(chrome_trace(_read(trace)), separators=(",", ":"))
    _write(output or _beside(trace, ".chrome.json"), text, json)


def png(trace: TraceFile, output: Output = None, only: Only = None, json: AsJson = False) -> None:
    """Write the timeline as a picture: PNG, SVG or PDF, by the name's ending.

    Without --output it goes beside the trace.
    """
    from hetero.report.timeline import write_picture

    path = output or _beside(trace, ".png")
    write_picture(_read(trace, only), path)
    print_json({"output": str(path)}) if json else say(str(path))


def compare(
    before: Annotated[Path, typer.Argument(help="The trace of run A.")],
    after: Annotated[Path, typer.Argument(help="The trace of run B.")],
    json: AsJson = False,
) -> None:
    """Report what got slower from run A to run B, where, and whether it is more than chance."""
    from hetero.report.compare import compare as compared

    found = compared(_read(before), _read(after))
    if json:
        print_json(found.as_dict())
    else:
        say(found.as_text())


def run(
    script: Annotated[str, typer.Argument(help="Python file to run.")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    output: Output = None,
    prices: Prices = None,
) -> None:
    """Run a script that need not know of it, and write a report of each Context that it opened."""
    import subprocess
    import tempfile

    from hetero.floor import settings
    from hetero.report.html import page
    from hetero.report.prices import applying
    from hetero.report.prices import prices as read_prices

    usd = read_prices(prices or [])
    with tempfile.TemporaryDirectory(prefix="hetero-") as folder:
        settings.switch_on("HETERO_TRACE", str(Path(folder) / "{pid}-{n}.trace.jsonl.gz"))
        ending = partial(die_with_parent, os.getpid()) if sys.platform == "linux" else None
        code = subprocess.run(python_command(script, args or []), check=False, preexec_fn=ending).returncode
        path = output or Path(f"{Path(script).stem}.report.html")
        runs = sorted((_read(trace) for trace in Path(folder).iterdir()), key=_opened_s)
        for number, each in enumerate(runs, start=1):
            text = page(each, applying(usd, each.devices))
            _write(path if number == 1 else path.with_name(_numbered(path.name, number)), text)
        for name in usd.keys() - {name for each in runs for name in applying(usd, each.devices)} if runs else ():
            say(f"hetero-profiler: no device goes by {name!r}, for which a price is given", to=sys.stderr)
        if not runs:
            say(f"hetero-profiler: {script} opened no hetero.Context, so there is no report", to=sys.stderr)
    raise typer.Exit(code if code >= 0 else 128 - code)


def _opened_s(run: RunRecord) -> float:
    return float(run.head.get("clock_origin_s", 0.0))


def _numbered(name: str, number: int) -> str:
    stem, dot, endings = name.partition(".")
    return f"{stem}-{number}{dot}{endings}"


app = typer.Typer(
    name="hetero-profiler",
    cls=lazy_group(REPORT.commands, REPORT.renamed),
    help=REPORT.help,
    epilog="A trace is written by `hetero run --trace FILE`, hetero.Context(trace=FILE) or HETERO_TRACE.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **SETTINGS,
)


@app.callback()
def _root() -> None:
    """See where the time of a run went, and how far from the best it was."""


def entry() -> None:
    """Run the command line and end the process with the right exit code."""
    run_command(app, "hetero-profiler")


if __name__ == "__main__":
    entry()
