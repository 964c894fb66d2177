"""`hetero simulate`: runs a task graph in virtual time, with times that stray from its table and devices that fail.

In: a graph file, a fleet where it has none. Out: what the runs took beside the plan, for people or as JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.output import console, print_json

if TYPE_CHECKING:
    from hetero.graphs.trials import Trials

__all__ = ["simulate"]


def simulate(
    graph: Annotated[Path, typer.Argument(help="hetero-graph/1, or with --fleet WfFormat 1.5, STG or DOT; .gz too.")],
    fleet: Annotated[
        str | None, typer.Option(help="Fleet file (hetero-fleet/1), or a number of equal devices.")
    ] = None,
    noise: Annotated[float, typer.Option(min=0.0, max=3.0, help="Spread of the logarithm of real times.")] = 0.0,
    fail: Annotated[list[str] | None, typer.Option(help="A device lost for good, as in gpu0@0.5s.")] = None,
    policy: Annotated[str, typer.Option(help="'planned' plans anew as it runs; eft, least_loaded, … do not plan.")] = (
        "planned"
    ),
    draws: Annotated[int, typer.Option(min=1, max=100_000, help="Runs, each with times of its own.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the first run; default: HETERO_SEED.")] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of the search for the plan at the start.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run a task graph in virtual time, by the code that runs programs.

    The same seed gives the same result on every machine with the same extras. Exits 1 when tasks failed.
    """
    from hetero.floor import settings
    from hetero.graphs.reading import convert, read_graph

    read = convert(graph, fleet) if fleet is not None else read_graph(graph)
    from hetero.graphs.trials import losses_of, try_out

    losses = losses_of(read, fail or ())
    first = settings.seed() if seed is None else seed
    trials = try_out(read, policy, noise=noise, losses=losses, draws=draws, seed=first, iterations=iterations)
    print_json(trials.as_dict()) if json else _print(trials)
    if trials.failed:
        raise typer.Exit(1)


def _print(trials: Trials) -> None:
    from hetero.cli.schedule import verdict
    from hetero.floor.units import format_seconds

    out = console()
    out.print(f"planned: {verdict(trials.plan)}", markup=False, soft_wrap=True)
    spans = [format_seconds(value) for value in (trials.median_s, trials.low_s, trials.high_s)]
    if trials.draws == 1:
        out.print(f"{trials.policy}: {spans[0]}", markup=False)
    else:
        middle = f"{trials.policy}: median {spans[0]} of {trials.draws:,} runs"
        out.print(f"{middle}, four of five between {spans[1]} and {spans[2]}", markup=False, soft_wrap=True)
    for device, share in trials.busy_frac.items():
        out.print(f"  {device}: busy {share:.0%}", markup=False)
    if trials.repeated:
        out.print(f"tasks run again after a loss: {trials.repeated:,} in all runs", markup=False)
    for line in trials.notes:
        out.print(f"note: {line}", markup=False, soft_wrap=True)
    for name, why in trials.failed.items():
        out.print(f"failed: {name}: {why}", markup=False, soft_wrap=True)
