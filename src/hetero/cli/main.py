"""The command `hetero`: its subcommands, its exit codes, and how a mistake is told.

In: the words of a command line. Out: an exit code: 0, 1 a task failed, 2 usage, 3 configuration, 4 nothing fits,
130 interrupted. Its commands import what is heavy inside their functions, so that `--help` costs nothing.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hetero.cli import (
    batch,
    calibrate,
    catalog,
    compress,
    config,
    demo,
    devices,
    doctor,
    graph,
    node,
    plan,
    run,
    schedule,
    search,
    simulate,
    top,
    topo,
    train,
    whatif,
)
from hetero.cli.output import tell_error
from hetero.floor import settings
from hetero.floor.errors import HeteroError

__all__ = ["app", "entry"]

app = typer.Typer(
    name="hetero",
    help="Run one Python program of tasks over every unequal device of a host.",
    epilog="Exit codes: 0 done, 1 a task failed, 2 usage, 3 configuration, 4 nothing fits, 130 interrupted.",
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("devices")(devices.devices)
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("infer")(train.infer)
app.command("batch")(batch.batch)
app.command("search")(search.search)
app.command("compress")(compress.compress)
app.add_typer(config.app, name="config")
app.add_typer(catalog.app, name="catalog")
app.add_typer(plan.app, name="plan")
app.command("calibrate")(calibrate.calibrate)
app.add_typer(graph.app, name="graph")
app.add_typer(node.app, name="node")
app.command("top")(top.top)
app.command("schedule")(schedule.schedule)
app.command("simulate")(simulate.simulate)
app.command("whatif")(whatif.whatif)
app.command("topo")(topo.topo)
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"hetero {version('hetero-core')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run one Python program of tasks over every unequal device of a host."""


def entry() -> None:
    """Run the command line and end the process with the right exit code."""
    try:
        settings.debug_level()
        typer.main.get_command(app)(prog_name="hetero")
    except HeteroError as error:
        sys.exit(tell_error(error))


if __name__ == "__main__":
    entry()
