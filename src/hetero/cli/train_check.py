"""`hetero train check`: a user's training script on one device and over several, and where the two part.

In: a script, its arguments, options. Out: a table or one JSON document. The work is in `hetero.train`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.launch import CheckSteps, Module, ScriptArguments, Shares, TrainingScript, shares_of
from hetero.cli.options import AsJson, Config, Devices, Settings, as_setting
from hetero.cli.output import console, note, print_json
from hetero.cli.train import need_torch
from hetero.floor.errors import BadValueError, ExitCode
from hetero.floor.text import single_line

if TYPE_CHECKING:
    from rich.table import Table

    from hetero.train.script_comparison import ScriptComparison, StepDifference

__all__ = ["check"]


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
    from hetero.train.launch import LaunchOptions
    from hetero.train.script_comparison import compare_script

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
