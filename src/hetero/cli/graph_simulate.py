"""`hetero graph simulate`: a task graph in virtual time, with times that stray from its table and devices that fail.

In: a graph file, a fleet where it has none. Out: what the runs took, for people or as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.graph import tell_unused
from hetero.cli.options import AsJson, GraphDevices, Iterations, Noise, Seed, TransferModel
from hetero.cli.output import console, print_json
from hetero.floor.errors import ExitCode

if TYPE_CHECKING:
    from hetero.graphs.simulation import Trials

__all__ = ["simulate"]

_SHOWN_FAILED = 5
"""So many of the tasks that failed for one reason are named."""


def simulate(
    graph: Annotated[Path, typer.Argument(help="hetero-graph/1, or with --devices WfFormat 1.5, STG or DOT; .gz too.")],
    devices: GraphDevices = None,
    noise: Noise = 0.0,
    fail: Annotated[list[str] | None, typer.Option(help="A device lost for good, as in gpu0@0.5s.")] = None,
    policy: Annotated[str, typer.Option(help="'planned' plans anew as it runs; eft, least_loaded, … do not plan.")] = (
        "planned"
    ),
    draws: Annotated[int, typer.Option(min=1, max=100_000, help="Runs, each with times of its own.")] = 1,
    seed: Seed = None,
    iterations: Iterations = None,
    transfer_model: TransferModel = "contention",
    json: AsJson = False,
) -> None:
    """Run a task graph in virtual time, by the code that runs programs.

    'planned' starts with a plan of 20 iterations; other policies run beside a plan where --iterations is given.

    The same seed gives the same result on every machine with the same extras. Exits 1 when tasks failed.
    """
    from hetero.floor import settings
    from hetero.graphs.formats import convert, read_plannable

    read = convert(graph, devices) if devices is not None else read_plannable(graph)
    tell_unused(graph, read, devices)
    from hetero.graphs.simulation import losses_of, try_out  # heavy, so after the graph was found sound

    losses = losses_of(read, fail or ())
    first = settings.seed() if seed is None else seed
    trials = try_out(
        read,
        policy,
        noise=noise,
        losses=losses,
        draws=draws,
        seed=first,
        iterations=iterations,
        transfer_model=transfer_model,
    )
    print_json(trials.as_dict()) if json else _print(trials)
    if trials.failed:
        raise typer.Exit(ExitCode.FAILED)


def _print(trials: Trials) -> None:
    from hetero.cli.graph_plan import verdict
    from hetero.floor.units import format_bytes, format_seconds

    out = console()
    if trials.plan is not None:
        out.print(f"plan: {verdict(trials.plan)}", markup=False, soft_wrap=True)
    spans = [format_seconds(value) for value in (trials.median_s, trials.low_s, trials.high_s)]
    if trials.draws == 1:
        out.print(f"run by {trials.policy}: {spans[0]}{_beside(trials)}", markup=False)
    else:
        middle = f"{trials.draws:,} runs by {trials.policy}: median {spans[0]}{_beside(trials)}"
        out.print(f"{middle}; four of five between {spans[1]} and {spans[2]}", markup=False, soft_wrap=True)
    for device, share in trials.busy_frac.items():
        out.print(f"  {device}: busy {share:.0%}", markup=False)
    held = ", ".join(f"{node} at most {format_bytes(nbytes)}" for node, nbytes in trials.peak_bytes.items())
    out.print(f"copied {format_bytes(round(trials.copied_bytes))} a run; held: {held}", markup=False, soft_wrap=True)
    if trials.repeated:
        out.print(f"tasks run again after a loss: {trials.repeated:,} in all runs", markup=False)
    for line in trials.notes:
        out.print(f"note: {line}", markup=False, soft_wrap=True)
    for line in _failures(trials):
        out.print(line, markup=False, soft_wrap=True)


def _beside(trials: Trials) -> str:
    if trials.plan is None:
        return ""
    return (
        f", {trials.median_s / trials.plan.makespan_s:.2f} times the plan" if trials.plan.makespan_s else ", as planned"
    )


def _failures(trials: Trials) -> Iterator[str]:
    """Yield a line for each reason why tasks failed."""
    by_reason: dict[str, list[str]] = {}
    for name, why in trials.failed.items():
        by_reason.setdefault(why, []).append(name)
    for why, names in by_reason.items():
        more = f" and {len(names) - _SHOWN_FAILED:,} more" if len(names) > _SHOWN_FAILED else ""
        yield f"failed: {', '.join(names[:_SHOWN_FAILED])}{more}: {why}"
