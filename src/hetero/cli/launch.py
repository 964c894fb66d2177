"""`hetero launch` and `hetero train check`: the user's own training script in one process for each device.

In: a script, its arguments, options. Out: what the script prints, and its exit code; or where it parts from one device.
The work is in `hetero.train`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import Address, AsJson, Config, Devices, Engine, Settings, Trace, as_setting
from hetero.cli.output import console, note, print_json, say
from hetero.cli.train import need_torch
from hetero.floor.errors import BadValueError, ExitCode
from hetero.floor.text import single_line

if TYPE_CHECKING:
    from rich.table import Table

    from hetero.train.launch.script_comparison import ScriptComparison, StepDifference

__all__ = ["CheckSteps", "Module", "ScriptArguments", "Shares", "TrainingScript", "check", "launch", "shares_of"]

TrainingScript = Annotated[str, typer.Argument(help="Training script; it calls hetero.train.init().")]
ScriptArguments = Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")]
Module = Annotated[bool, typer.Option("-m", "--module", help="The script is the name of a module.")]
CheckSteps = Annotated[
    int, typer.Option(min=0, help="First steps in which one more process computes whole batches; 0 for none.")
]
Shares = Annotated[str, typer.Option(help="auto, equal, or samples: 'cuda:0=96,cpu:0=32'.")]


def launch(
    script: TrainingScript,
    args: ScriptArguments = None,
    module: Module = False,
    config: Config = None,
    devices: Devices = None,
    engine: Engine = None,
    address: Address = None,
    set_: Settings = None,
    shares: Shares = "auto",
    check_steps: CheckSteps = 2,
    check_only: Annotated[bool, typer.Option("--check-only", help="End after these steps.")] = False,
    no_strict: Annotated[
        bool, typer.Option("--no-strict", help="Go on where the result would not be that of one device.")
    ] = False,
    prints: Annotated[str, typer.Option(help="Whose output is shown: main or all.")] = "main",
    timeout: Annotated[float, typer.Option(min=1.0, help="Longest wait between two steps, in seconds.")] = 1800.0,
    trace: Trace = None,
    working_dir: Annotated[
        Path | None,
        typer.Option(help="Folder that travels to other hosts, the script in it; default: the modules beside it."),
    ] = None,
) -> None:
    """Run a training script in one process for each device, each with its part of every batch.

    The script calls hetero.train.init(), and prepares its model, optimizer and loader with what that returns.
    """
    need_torch()
    from hetero.session.config import load
    from hetero.session.hosts import devices_of, reached
    from hetero.train.launch import launcher as launching
    from hetero.train.launch.hosts import check_versions

    launching.check_script(script, is_module=module)
    if prints not in launching.PRINTS:
        raise BadValueError(f"--prints {prints!r}", remedy="give main or all")
    if check_only and not check_steps:
        raise BadValueError("--check-only with --check-steps 0 would do nothing", remedy="give 1 or more steps")
    named = {"devices": devices, "engine": engine, "address": address}
    chosen = [as_setting(key, word) for key, word in named.items() if word is not None]
    wanted, notes = load(config, set=[*chosen, *(set_ or [])]), list[str]()
    if wanted.engine == "inline":
        raise BadValueError(
            "engine inline has no use here: each device gets a process", remedy="leave it out, or give --engine ray"
        )
    options = launching.LaunchOptions(
        strict=not no_strict,
        check_steps=check_steps,
        check_only=check_only,
        shares=shares_of(shares),
        timeout_s=timeout,
        prints=prints,
        trace="" if trace is None else str(trace),
    )
    with reached(wanted) as cluster:
        if cluster is not None:
            check_versions(cluster)
        found = devices_of(cluster, wanted, notes)
        for note in notes:
            say(f"hetero: {note}", to=sys.stderr)
        code = launching.launch(script, args or [], found, options, cluster, working_dir, is_module=module)
    raise typer.Exit(code)


def shares_of(text: str) -> str | dict[str, int]:
    """Read how much of a batch each device gets."""
    if text in ("auto", "equal"):
        return text
    try:
        return {name.strip(): int(count) for name, _, count in (part.partition("=") for part in text.split(","))}
    except ValueError:
        raise BadValueError(
            f"--shares {text!r}", remedy="give auto, equal, or samples as in 'cuda:0=96,cpu:0=32'"
        ) from None


def check(
    script: TrainingScript,
    args: ScriptArguments = None,
    module: Module = False,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps that are compared.")] = 3,
    config: Config = None,
    devices: Devices = None,
    set_: Settings = None,
    shares: Shares = "auto",
    check_steps: CheckSteps = 2,
    json: AsJson = False,
) -> None:
    """Run a training script on one device and over several, and report where they part; exits 1 where they do.

    The script runs under plain Python on the fastest device, then as by `hetero launch --no-strict` over all of them,
    each time until its optimizers have made so many steps. Arguments of the script stand behind --.
    """
    need_torch()
    from hetero.session.config import load
    from hetero.session.hosts import devices_of
    from hetero.train.launch.launcher import LaunchOptions
    from hetero.train.launch.script_comparison import compare_script

    chosen = [] if devices is None else [as_setting("devices", devices)]
    wanted, notes = load(config, set=[*chosen, *(set_ or [])]), list[str]()
    if wanted.engine not in (None, "local"):
        raise BadValueError(f"engine {wanted.engine}: a check runs on this host", remedy="leave the engine out")
    found = devices_of(None, wanted, notes)
    for each in notes:
        note(f"hetero: {each}")
    options = LaunchOptions(shares=shares_of(shares), check_steps=check_steps)
    comparison = compare_script(script, args or [], found, steps, options, is_module=module)
    print_json(comparison.as_dict()) if json else _print(comparison)
    raise typer.Exit(ExitCode.DONE if comparison.first is None else ExitCode.FAILED)


def _print(found: ScriptComparison) -> None:
    out = console()
    out.print(_table(found.differences))
    for step in found.unknown:
        note(f"hetero: step {step}: the loss of the whole batch is not known, and was not compared")
    devices = ", ".join(found.devices)
    first = found.first
    if first is None:
        out.print(
            f"{single_line(found.script)}: {devices} do what {found.one} does alone, but for rounding", soft_wrap=True
        )
        return
    of = f" of {single_line(first.parameter)}" if first.parameter else ""
    words = f"{single_line(found.script)}: {devices} part from {found.one} alone in step {first.step}, {first.what}{of}"
    out.print(words, soft_wrap=True)
    if len(found.worst) > 1:
        out.print(f"\nfurthest apart in step {first.step}:")
        out.print(_table(found.worst))


def _table(rows: Sequence[StepDifference]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("step", justify="right")
    table.add_column("what")
    table.add_column("difference", justify="right")
    table.add_column("allowed", justify="right")
    table.add_column("")
    table.add_column("parameter", overflow="fold")
    for each in rows:
        difference = f"{each.difference:.1e}" if each.difference else "0"
        mark = "parts" if each.parts else ""
        table.add_row(str(each.step), each.what, difference, f"{each.tolerance:.1e}", mark, single_line(each.parameter))
    return table
