"""`hetero demo`: the main job on this host's devices.

In: options. Out: what the demonstration prints, or its result as JSON. The work is in `hetero.demo`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import Address, AsJson, Config, Devices, Engine, Policy, Settings, Trace
from hetero.cli.output import is_quiet, print_json, say
from hetero.floor.errors import ExitCode

if TYPE_CHECKING:
    from hetero.demo.run import DemoResult

__all__ = ["demo"]


def demo(
    config: Config = None,
    devices: Devices = None,
    engine: Engine = None,
    address: Address = None,
    policy: Policy = None,
    size: Annotated[int | None, typer.Option(help="Rows of the matrix, a multiple of 192.")] = None,
    field: Annotated[Path | None, typer.Option(help="File with a field that diffuses; synthetic without one.")] = None,
    trace: Trace = None,
    set_: Settings = None,
    json: AsJson = False,
) -> None:
    """Run real computations on this host's devices and check them."""
    from hetero.demo import run

    found = run(
        None if config is None else str(config),
        devices=devices,
        field=field,
        trace=trace,
        quiet=json or is_quiet(),
        engine=engine,
        address=address,
        policy=policy,
        set=set_ or (),
        **({} if size is None else {"size": size}),
    )
    reports = _write_reports(found)
    if json:
        print_json({**found.as_dict(), "reports": [str(path) for path in reports]})
    else:
        for path in reports:
            say(f"report: {path}")
    if not found.ok:
        raise typer.Exit(ExitCode.FAILED)


def _write_reports(found: DemoResult) -> list[Path]:
    """Write a report of each job on all devices beside the trace."""
    from hetero.report.html import page
    from hetero.report.trace_reader import only, read_run

    run = read_run(found.trace)
    stem = found.trace.name.partition(".")[0]
    paths = []
    for job in found.jobs:
        part = only(run, job.functions)
        part.head = {**run.head, "run": job.title}
        path = found.trace.with_name(f"{stem}.{job.functions[0]}.report.html")
        path.write_text(page(part), encoding="utf-8")
        paths.append(path)
    return paths
