"""The command `hetero`: its subcommands, its exit codes, and how a mistake is told.

In: the words of a command line. Out: an exit code, one of `ExitCode`. Commands are imported when they are called, so
that `--help` costs nothing.
"""

from __future__ import annotations

from typing import Annotated

import typer

from hetero.cli.grammar import COMMANDS
from hetero.cli.lazy import SETTINGS, lazy_group
from hetero.cli.old_names import of_hetero
from hetero.cli.output import run_command, say
from hetero.floor.errors import EXIT_MEANINGS

__all__ = ["app", "entry"]

_EXITS = ", ".join(f"{code} {meaning}" for code, meaning in EXIT_MEANINGS.items())

app = typer.Typer(
    name="hetero",
    cls=lazy_group(COMMANDS, of_hetero),
    help="Run one Python program of tasks over every unequal device of a host.",
    epilog=f"Exit codes: {_EXITS}.",
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
