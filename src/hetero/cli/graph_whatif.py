"""`hetero graph whatif`: what a task graph would take on another fleet, by measured and by catalogued speeds.

In: a hetero-graph/1 file, devices to add and to take away, the times of earlier runs. Out: lines for people,
or one JSON document.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.cli.options import AsJson, Iterations, Seed
from hetero.cli.output import console, note, print_json

if TYPE_CHECKING:
    from hetero.graphs.whatif import Changed, Measured
    from hetero.model.schedule import Schedule

__all__ = ["whatif"]


def whatif(
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
    iterations: Iterations = 20,
    seed: Seed = None,
    json: AsJson = False,
) -> None:
    """Compare what a task graph takes on its fleet and on another one.

    Seconds of the graph's own devices are taken as measured. A new device is compared with one that --is names: by
    the times of earlier runs of the tasks' functions on both, else by the catalog. That is extrapolated, and the
    range is between the ratios of arithmetic and of memory bandwidth.
    """
    from hetero.floor import settings
    from hetero.graphs.formats import read_plannable
    from hetero.graphs.whatif import changed, named_devices

    read = read_plannable(graph)
    measured = _measured()
    other = changed(read, add or (), remove or (), named_devices(read, is_ or (), measured), measured)
    chosen = settings.seed() if seed is None else seed

    def planned(each: Any) -> Schedule:
        from hetero.graphs.planning import Budget, plan_graph

        return plan_graph(each, "search", Budget(iterations=iterations), chosen).schedule

    now = planned(read)
    then = [
        planned(each) for each in ((other.middle, other.low, other.high) if other.extrapolated else (other.middle,))
    ]
    _print_json(now, then, other) if json else _print(now, then, other)


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


def _print_json(now: Schedule, then: list[Schedule], other: Changed) -> None:
    spans = sorted(plan.makespan_s for plan in then)
    print_json(
        {
            "now": {"makespan_s": now.makespan_s, "lower_bound_s": now.lower_bound_s},
            "then": {
                "makespan_s": then[0].makespan_s,
                "lower_bound_s": then[0].lower_bound_s,
                "makespan_low_s": spans[0],
                "makespan_high_s": spans[-1],
            },
            "times_as_fast": now.makespan_s / then[0].makespan_s if then[0].makespan_s else None,
            "extrapolated": other.extrapolated,
            "changes": list(other.said),
        }
    )


def _print(now: Schedule, then: list[Schedule], other: Changed) -> None:
    from hetero.cli.graph_plan import verdict
    from hetero.floor.units import format_seconds

    out = console()
    for line in other.said or ("nothing is changed",):
        out.print(line, markup=False, soft_wrap=True)
    out.print(f"now:  {verdict(now)}", markup=False, soft_wrap=True)
    out.print(f"then: {verdict(then[0])}", markup=False, soft_wrap=True)
    if other.extrapolated:
        spans = sorted(plan.makespan_s for plan in then)
        out.print(
            f"      between {format_seconds(spans[0])} and {format_seconds(spans[-1])}, extrapolated", markup=False
        )
    if then[0].makespan_s:
        out.print(f"{now.makespan_s / then[0].makespan_s:.2f} times as fast", markup=False)
