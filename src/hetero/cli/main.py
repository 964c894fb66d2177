"""The command `hetero`: its subcommands, its exit codes, and how a mistake is told.

In: the words of a command line. Out: an exit code: 0, 1 a task failed, 2 usage, 3 configuration, 4 nothing fits,
130 interrupted. Commands are imported when they are called, so that `--help` costs nothing.
"""

from __future__ import annotations

from typing import Annotated

import typer

from hetero.cli.lazy import SETTINGS, CommandEntry, lazy_group
from hetero.cli.output import run_command, say

__all__ = ["COMMANDS", "app", "entry"]

COMMANDS = {
    "devices": CommandEntry("hetero.cli.devices:devices", "List this host's devices, and why one is not used."),
    "run": CommandEntry(
        "hetero.cli.run:run", "Run a script on the devices of this host.", {"allow_interspersed_args": False}
    ),
    "demo": CommandEntry("hetero.cli.demo:demo", "Run real computations on this host's devices and check them."),
    "train": CommandEntry(
        "hetero.cli.train:train",
        "Train one model over this host's devices, or with Ray over those of many, as a recipe says.",
    ),
    "infer": CommandEntry(
        "hetero.cli.train:infer",
        "Run a saved model on pictures, over this host's devices, or with Ray over those of many.",
    ),
    "batch": CommandEntry(
        "hetero.cli.batch:batch", "Run a function or a model over many records, every device at its own batch size."
    ),
    "search": CommandEntry(
        "hetero.cli.search:search",
        "Search for the best values of a recipe or a function; run anew, it goes on with what was stopped.",
    ),
    "compress": CommandEntry(
        "hetero.cli.compress:compress",
        "Prune and quantise a saved model; tells size, speed on each device and accuracy before and after.",
    ),
    "calibrate": CommandEntry(
        "hetero.cli.calibrate:calibrate",
        "Measure the devices of this host, about a minute each, and keep the figures; or keep your own.",
    ),
    "top": CommandEntry("hetero.cli.top:top", "Show devices, tasks, memory and links of a run that is going on."),
    "schedule": CommandEntry(
        "hetero.cli.schedule:schedule", "Plan a task graph, and say how far from the best possible the plan is."
    ),
    "simulate": CommandEntry(
        "hetero.cli.simulate:simulate",
        "Run a task graph, or many tasks on many hosts, in virtual time, by the code that runs programs.",
    ),
    "whatif": CommandEntry(
        "hetero.cli.whatif:whatif", "Compare what a task graph takes on its fleet and on another one."
    ),
    "topo": CommandEntry(
        "hetero.cli.topo:topo", "Show how devices are connected, and which of them work together best."
    ),
    "doctor": CommandEntry("hetero.cli.doctor:doctor", "Show what is missing on this host, and how to get it."),
    "config": CommandEntry("hetero.cli.config:app", "Check a configuration."),
    "catalog": CommandEntry("hetero.cli.catalog:app", "Facts about devices and models, each with its source."),
    "plan": CommandEntry("hetero.cli.plan:app", "Know before you run: what fits where, how fast, at what price."),
    "graph": CommandEntry("hetero.cli.graph:app", "Convert task graphs."),
    "node": CommandEntry("hetero.cli.node:app", "Make this host a part of a cluster, on Ray."),
    "submit": CommandEntry(
        "hetero.cli.submit:submit",
        "Run a program on a cluster; it finds the devices of all hosts.",
        {"allow_interspersed_args": False},
    ),
    "jobs": CommandEntry("hetero.cli.jobs:app", "See and stop the programs of a cluster."),
}

app = typer.Typer(
    name="hetero",
    cls=lazy_group(COMMANDS),
    help="Run one Python program of tasks over every unequal device of a host.",
    epilog="Exit codes: 0 done, 1 a task failed, 2 usage, 3 configuration, 4 nothing fits, 130 interrupted.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **SETTINGS,
)


def _version(wanted: bool) -> None:
    if wanted:
        from hetero.floor.extras import own_version

        say(f"hetero {own_version()}")
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
    run_command(app, "hetero")


if __name__ == "__main__":
    entry()
