"""`hetero simulate`: runs a task graph in virtual time, with times that stray from its table and devices that fail.

In: a graph file, a fleet where it has none; or hosts with devices of the catalog. Out: what the runs took, for people
or as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.graph import tell_unused
from hetero.cli.output import console, print_json, say
from hetero.cli.words import refuse_unused
from hetero.floor.errors import BadValueError

if TYPE_CHECKING:
    from hetero.graphs.fleet_simulation import Scaled
    from hetero.graphs.simulation import Trials

__all__ = ["simulate"]

_OF_BOTH = ("noise", "policy", "seed", "json")
_OF_HOSTS = (*_OF_BOTH, "hosts", "tasks", "flop", "data", "precision", "link", "tick")
_OF_A_GRAPH = (*_OF_BOTH, "graph", "fleet", "fail", "draws", "iterations", "model")
_SHOWN_FAILED = 5
"""So many of the tasks that failed for one reason are named."""


def simulate(
    context: typer.Context,
    graph: Annotated[
        Path | None, typer.Argument(help="hetero-graph/1, or with --fleet WfFormat 1.5, STG or DOT; .gz too.")
    ] = None,
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
    hosts: Annotated[
        list[str] | None,
        typer.Option(help="Instead of a graph: HOSTS x DEVICES x NAME, as in '10 x 8 x H100-SXM'; repeated."),
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="With --hosts: number of independent tasks.")] = 100_000,
    flop: Annotated[list[float] | None, typer.Option(help="With --hosts: operations of a task; repeated.")] = None,
    data: Annotated[str, typer.Option(help="With --hosts: what tasks of one size read, as in 100MB.")] = "0B",
    precision: Annotated[str, typer.Option(help="With --hosts: of the operations.")] = "fp32",
    link: Annotated[str, typer.Option(help="With --hosts: link of each host, as in 10Gb/s.")] = "10Gb/s",
    tick: Annotated[str, typer.Option(help="With --hosts: between two decisions, as in 50ms.")] = "50ms",
    model: Annotated[
        str, typer.Option(help="contention: transfers share links, memory has capacities; free: neither.")
    ] = "contention",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run a task graph, or many tasks on many hosts, in virtual time, by the code that runs programs.

    The same seed gives the same result on every machine with the same extras. Exits 1 when tasks failed.
    """
    from hetero.floor import settings

    if hosts or graph is None:
        from hetero.floor.units import parse_bandwidth, parse_bytes, parse_seconds
        from hetero.graphs.fleet_simulation import SimulatedLoad, read_hosts, run_at_scale

        if graph is not None or not hosts:
            raise BadValueError("a run is of a graph or of hosts", remedy="give a graph file, or --hosts, not both")
        refuse_unused(context, _OF_HOSTS, "with --hosts")
        found, _ = run_at_scale(
            read_hosts(hosts),
            SimulatedLoad(tasks, tuple(flop or (1e12,)), precision, parse_bytes(data)),
            link_bytes_per_s=parse_bandwidth(link),
            noise=noise,
            policy="eft" if policy == "planned" else policy,
            seed=settings.seed() if seed is None else seed,
            tick_s=parse_seconds(tick),
        )
        print_json(asdict(found)) if json else _print_scaled(found)
        return
    refuse_unused(context, _OF_A_GRAPH, "on a graph")
    from hetero.graphs.formats import convert, read_plannable

    read = convert(graph, fleet) if fleet is not None else read_plannable(graph)
    tell_unused(graph, read, fleet)
    from hetero.graphs.simulation import losses_of, try_out

    losses = losses_of(read, fail or ())
    first = settings.seed() if seed is None else seed
    trials = try_out(
        read, policy, noise=noise, losses=losses, draws=draws, seed=first, iterations=iterations, model=model
    )
    print_json(trials.as_dict()) if json else _print(trials)
    if trials.failed:
        raise typer.Exit(1)


def _print_scaled(found: Scaled) -> None:
    from hetero.floor.units import format_bytes, format_seconds

    fleet = f"{found.devices:,} devices of {found.hosts:,} hosts"
    say(f"{found.tasks:,} tasks on {fleet}: {format_seconds(found.makespan_s)}")
    say(f"  all devices together, without a task's length or a link in the way: {format_seconds(found.best_s)}")
    say(f"  over links: {format_bytes(found.moved_bytes)}")
    for name, share in found.busy_frac.items():
        say(f"  {name}: busy {share:.0%}")


def _print(trials: Trials) -> None:
    from hetero.cli.schedule import verdict
    from hetero.floor.units import format_bytes, format_seconds

    out = console()
    out.print(f"plan: {verdict(trials.plan)}", markup=False, soft_wrap=True)
    spans = [format_seconds(value) for value in (trials.median_s, trials.low_s, trials.high_s)]
    beside = (
        f"{trials.median_s / trials.plan.makespan_s:.2f} times the plan" if trials.plan.makespan_s else "as planned"
    )
    if trials.draws == 1:
        out.print(f"run by {trials.policy}: {spans[0]}, {beside}", markup=False)
    else:
        middle = f"{trials.draws:,} runs by {trials.policy}: median {spans[0]}, {beside}"
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


def _failures(trials: Trials) -> Iterator[str]:
    """Yield a line for each reason why tasks failed."""
    by_reason: dict[str, list[str]] = {}
    for name, why in trials.failed.items():
        by_reason.setdefault(why, []).append(name)
    for why, names in by_reason.items():
        more = f" and {len(names) - _SHOWN_FAILED:,} more" if len(names) > _SHOWN_FAILED else ""
        yield f"failed: {', '.join(names[:_SHOWN_FAILED])}{more}: {why}"
