"""`hetero plan tasks`: how long many independent tasks take on many hosts, in virtual time.

In: hosts with devices of the catalog, tasks by their size. Out: what the run took, for people or as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson, Network, Noise, Seed
from hetero.cli.output import print_json, say

if TYPE_CHECKING:
    from hetero.graphs.fleet_simulation import Scaled

__all__ = ["tasks"]


def tasks(
    hosts: Annotated[
        list[str], typer.Option(help="HOSTS x DEVICES x NAME of the catalog, as in '10 x 8 x H100-SXM'; repeated.")
    ],
    tasks: Annotated[int, typer.Option(min=1, help="Number of independent tasks.")] = 100_000,
    flop: Annotated[list[float] | None, typer.Option(help="Operations of a task; repeated.")] = None,
    input_bytes: Annotated[str, typer.Option(help="What tasks of one size read, as in 100MB.")] = "0B",
    precision: Annotated[str, typer.Option(help="Number format of the operations.")] = "fp32",
    network: Network = "10Gb/s",
    tick: Annotated[str, typer.Option(help="Time between two decisions, as in 50ms.")] = "50ms",
    noise: Noise = 0.0,
    policy: Annotated[str, typer.Option(help="Policy by name.")] = "eft",
    seed: Seed = None,
    json: AsJson = False,
) -> None:
    """Report how long many independent tasks take on many hosts, by the code that runs programs, in virtual time."""
    from dataclasses import asdict

    from hetero.floor import settings
    from hetero.floor.units import parse_bandwidth, parse_bytes, parse_seconds
    from hetero.graphs.fleet_simulation import SimulatedLoad, read_hosts, run_at_scale

    found, _ = run_at_scale(
        read_hosts(hosts),
        SimulatedLoad(tasks, tuple(flop or (1e12,)), precision, parse_bytes(input_bytes)),
        link_bytes_per_s=parse_bandwidth(network),
        noise=noise,
        policy=policy,
        seed=settings.seed() if seed is None else seed,
        tick_s=parse_seconds(tick),
    )
    print_json(asdict(found)) if json else _print(found)


def _print(found: Scaled) -> None:
    from hetero.floor.units import format_bytes, format_seconds

    fleet = f"{found.devices:,} devices of {found.hosts:,} hosts"
    say(f"{found.tasks:,} tasks on {fleet}: {format_seconds(found.makespan_s)}")
    say(f"  all devices together, without a task's length or a link in the way: {format_seconds(found.best_s)}")
    say(f"  over links: {format_bytes(found.moved_bytes)}")
    for name, share in found.busy_frac.items():
        say(f"  {name}: busy {share:.0%}")
