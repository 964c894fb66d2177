"""`hetero graph whatif`: what a task graph would take on another fleet, by measured and by catalogued speeds.

In: a hetero-graph/1 file, devices to add and to take away, the times of earlier runs. Out: lines for people,
or one JSON document.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson, Iterations, Seed, refuse_unused
from hetero.cli.output import console, is_quiet, note, print_json

if TYPE_CHECKING:
    from hetero.graphs.comparison import FleetComparison
    from hetero.graphs.whatif import Changed, Measured
    from hetero.model.schedule import Schedule

__all__ = ["answer", "whatif"]


def whatif(
    context: typer.Context,
    graph: Annotated[Path, typer.Argument(help="Task graph, hetero-graph/1.")],
    add: Annotated[
        list[str] | None, typer.Option(help="Devices to add: '2 x H100-SXM' of the catalog, '2 x gpu0' of the graph.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Device of the graph to take away.")] = None,
    is_: Annotated[
        list[str] | None,
        typer.Option(
            "--is", help="What a device of the graph is, in the catalog or in earlier runs: gpu0=A100-SXM-80GB."
        ),
    ] = None,
    budget: Annotated[str, typer.Option(help="Processor time for each fleet, as in '2s'.")] = "2s",
    iterations: Iterations = None,
    seed: Seed = None,
    json: AsJson = False,
) -> None:
    """Compare what a task graph takes on its fleet and on another one.

    Seconds of the graph's own devices are taken as measured. A new device is compared with one that --is names: by
    the times of earlier runs of the tasks' functions on both, else by the catalog. That is extrapolated, and the
    range is between the ratios of arithmetic and of memory bandwidth. Of two fleets of which one is part of the
    other, the larger is never slower; where the gaps of both plans overlap the answer is "undecided".
    """
    from hetero.floor import settings
    from hetero.floor.units import parse_seconds
    from hetero.graphs.formats import read_plannable
    from hetero.graphs.whatif import changed, named_devices

    if iterations is not None:
        given = [each.name or "" for each in context.command.params]
        refuse_unused(context, [name for name in given if name != "budget"], "with --iterations")
    limit_s = parse_seconds(budget)
    read = read_plannable(graph)
    measured = _measured()
    other = changed(read, add or (), remove or (), named_devices(read, is_ or (), measured), measured)
    chosen = settings.seed() if seed is None else seed
    fleets = (other.middle, other.low, other.high) if other.extrapolated else (other.middle,)
    from hetero.graphs.comparison import FleetComparison, plan_family
    from hetero.graphs.planning import Budget

    with _progress() as told:
        now, *then = plan_family((read, *fleets), Budget(limit_s, iterations), chosen, progress=told)
    found = FleetComparison(now, then[0], is_same=not other.said)
    _print_json(found, then, other) if json else _print(found, then, other)


@contextmanager
def _progress() -> Iterator[Callable[[str], object]]:
    """Show on a terminal what is planned, unless --quiet was given; yield what is to be told."""
    if is_quiet() or not sys.stderr.isatty():
        yield str
        return
    from rich.console import Console

    with Console(stderr=True).status("") as line:
        yield line.update


def _measured() -> Measured:
    """Read the times of earlier runs; none where there were none, or their file cannot be read."""
    from hetero.floor import settings
    from hetero.floor.errors import HistoryError
    from hetero.graphs.whatif import Measured
    from hetero.stores.history import FILE, HistoryStore

    file = settings.home() / FILE
    if not file.exists():
        return Measured()
    try:
        store = HistoryStore(file)
        return Measured(store.load(store.device_keys()))
    except HistoryError as error:
        note(f"note: earlier runs are left out: {error.problem}")
        return Measured()


def _print_json(found: FleetComparison, then: list[Schedule], other: Changed) -> None:
    spans = sorted(plan.makespan_s for plan in then)
    print_json(
        {
            "now": _figures(found.now),
            "then": {**_figures(found.then), "makespan_low_s": spans[0], "makespan_high_s": spans[-1]},
            "times_as_fast": found.times_as_fast,
            "times_as_fast_at_least": found.at_least,
            "times_as_fast_at_most": found.at_most,
            "decided": found.is_decided,
            "extrapolated": other.extrapolated,
            "changes": list(other.said),
        }
    )


def _figures(plan: Schedule) -> dict[str, float | None]:
    gap = plan.gap_frac if plan.lower_bound_s > 0.0 or plan.makespan_s == 0.0 else None
    return {"makespan_s": plan.makespan_s, "lower_bound_s": plan.lower_bound_s, "gap_frac": gap}


def _print(found: FleetComparison, then: list[Schedule], other: Changed) -> None:
    from hetero.cli.graph_plan import verdict
    from hetero.floor.units import format_seconds

    out = console()
    for line in other.said or ("nothing is changed",):
        out.print(line, markup=False, soft_wrap=True)
    out.print(f"now:  {verdict(found.now)}", markup=False, soft_wrap=True)
    out.print(f"then: {verdict(found.then)}", markup=False, soft_wrap=True)
    if other.extrapolated:
        spans = sorted(plan.makespan_s for plan in then)
        out.print(
            f"      between {format_seconds(spans[0])} and {format_seconds(spans[-1])}, extrapolated", markup=False
        )
    said = answer(found)
    if said:
        out.print(said, markup=False, soft_wrap=True)


def answer(found: FleetComparison) -> str:
    """Return in one line how many times as fast the other fleet is, or between what that is undecided.

    Examples
    --------
    >>> from hetero.graphs.comparison import FleetComparison
    >>> from hetero.model.schedule import Schedule
    >>> four, two = Schedule((), 4.0, 4.0, "search"), Schedule((), 2.0, 2.0, "search")
    >>> answer(FleetComparison(four, two))
    '2.00 times as fast'
    >>> answer(FleetComparison(four, Schedule((), 3.2, 2.0, "search")))
    '1.25 times as fast; between 1.25 and 2.00 at the best of both'
    >>> answer(FleetComparison(Schedule((), 4.0, 1.0, "search"), two))
    'undecided: between 0.50 and 2.00 times as fast at the best of both; these plans: 2.00'
    """
    if found.times_as_fast is None:
        return ""
    plans = f"{found.times_as_fast:.2f}"
    if found.is_same or (found.now.is_optimal and found.then.is_optimal):
        return f"{plans} times as fast"
    low = f"{found.at_least or 0.0:.2f}"
    if found.at_most is None:
        return f"undecided: at least {low} times as fast at the best of both; these plans: {plans}"
    high = f"{found.at_most:.2f}"
    if found.is_decided:
        return f"{plans} times as fast; between {low} and {high} at the best of both"
    return f"undecided: between {low} and {high} times as fast at the best of both; these plans: {plans}"
