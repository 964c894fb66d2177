"""`hetero graph plan` and `check`: plan a task graph, say how far from the best possible a plan is, check any plan.

In: a hetero-graph/1 file. Out: makespan, lower bound, gap and a Gantt chart for people, or one JSON document.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson, Output, Seed, TransferModel, refuse_unused
from hetero.cli.output import console, print_json, say
from hetero.floor.errors import ExitCode

if TYPE_CHECKING:
    from hetero.graphs.planning import PlannedGraph
    from hetero.model.graph import TaskGraph
    from hetero.model.schedule import Schedule

__all__ = ["check", "plan", "verdict"]

_SHOWN_FAULTS = 20


def plan(
    context: typer.Context,
    graph: Annotated[Path, typer.Argument(help="Task graph, hetero-graph/1; 'hetero graph convert' makes one.")],
    planner: Annotated[str, typer.Option(help="search, heft, peft, cpop, minmin, maxmin or sufferage.")] = "search",
    budget: Annotated[str, typer.Option(help="Processor time of the search, as in '1s'.")] = "1s",
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Iterations of the search instead of a time: the same plan everywhere.")
    ] = None,
    seed: Seed = None,
    transfer_model: TransferModel = "contention",
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Plan a task graph, and say how far from the best possible the plan is.

    Transfers wait for one another on links and buses, and no memory overflows; '--transfer-model free' plans without
    both. --output writes the plan, hetero-plan/1.
    """
    from hetero.floor.units import parse_seconds
    from hetero.graphs.files import checked_output
    from hetero.graphs.formats import read_plannable

    if iterations is not None:
        given = [each.name or "" for each in context.command.params]
        refuse_unused(context, [name for name in given if name != "budget"], "with --iterations")
    limit_s = parse_seconds(budget)
    read = read_plannable(graph)
    if output is not None:
        checked_output(output)
    planned = _planned(read, planner, limit_s, iterations, seed, transfer_model)
    if output is not None:
        _write(planned.schedule, output)
    _print_json(planned) if json else _print(read, planned)


def _planned(
    graph: TaskGraph, planner: str, limit_s: float, iterations: int | None, seed: int | None, transfer_model: str
) -> PlannedGraph:
    from hetero.floor import settings
    from hetero.graphs.planning import Budget, plan_graph

    chosen = settings.seed() if seed is None else seed
    return plan_graph(graph, planner, Budget(limit_s, iterations), chosen, transfer_model=transfer_model)


def _write(schedule: Schedule, out: Path) -> None:
    import json

    from hetero.graphs.files import write_text
    from hetero.graphs.plan_files import plan_document

    write_text(out, json.dumps(plan_document(schedule), indent=1) + "\n")


def check(
    graph: Annotated[Path, typer.Argument(help="Task graph, hetero-graph/1.")],
    plan: Annotated[Path, typer.Argument(help="Plan of it, hetero-plan/1.")],
    json: AsJson = False,
) -> None:
    """Check a plan of a task graph by code that knows no planner; exits 1 when it is not sound."""
    from hetero.floor.units import format_seconds
    from hetero.graphs.check import faults
    from hetero.graphs.formats import read_plannable
    from hetero.graphs.plan_files import read_plan

    read, checked = read_plannable(graph), read_plan(plan)
    found = faults(read, checked)
    if json:
        print_json({"sound": not found, "faults": found, "makespan_s": checked.makespan_s})
    elif not found:
        again = f" and {len(checked.repeats):,} repeats" if checked.repeats else ""
        say(
            f"{plan}: sound: {len(checked.placements):,} tasks{again} on {len(read.devices)} devices,"
            f" makespan {format_seconds(checked.makespan_s)} (model {checked.model})"
        )
    else:
        for line in found[:_SHOWN_FAULTS]:
            say(f"{plan}: {line}")
        if len(found) > _SHOWN_FAULTS:
            say(f"{plan}: and {len(found) - _SHOWN_FAULTS:,} more")
    if found:
        raise typer.Exit(ExitCode.FAILED)


def _print_json(planned: PlannedGraph) -> None:
    from hetero.graphs.plan_files import plan_document

    schedule = planned.schedule
    gap = schedule.gap_frac if schedule.lower_bound_s > 0.0 or schedule.makespan_s == 0.0 else None
    facts = {
        "gap_frac": gap,
        "optimal": schedule.is_optimal,
        "iterations": planned.iterations,
        "search_s": planned.search_s,
        "warm_up_s": planned.warm_up_s,
        "notes": list(planned.notes),
    }
    print_json({**plan_document(schedule), **facts})


def _print(graph: TaskGraph, planned: PlannedGraph) -> None:
    from hetero.floor.units import format_seconds
    from hetero.graphs.gantt import gantt

    out = console()
    for line in gantt(graph, planned.schedule, min(out.width, 120)):
        out.print(line, markup=False, overflow="crop", no_wrap=True)
    out.print(verdict(planned.schedule), markup=False)
    turns = f"{planned.iterations:,} iteration{'' if planned.iterations == 1 else 's'}, "
    how = turns if planned.schedule.policy == "search" else ""
    out.print(
        f"{planned.schedule.policy}: {how}{format_seconds(planned.search_s)}"
        f" (loading and compiling before it {format_seconds(planned.warm_up_s)})",
        markup=False,
    )
    for note in planned.notes:
        out.print(f"note: {note}", markup=False, soft_wrap=True)


def verdict(schedule: Schedule) -> str:
    """Return in one line how good a schedule is.

    Examples
    --------
    >>> from hetero.model.schedule import Schedule
    >>> verdict(Schedule((), 0.0985, 0.09526, "search"))
    'makespan 98.5 ms, lower bound 95.3 ms: at most 3.4 % above the best possible'
    >>> verdict(Schedule((), 2.0, 2.0, "search"))
    'makespan 2 s: the best possible'
    """
    from hetero.floor.units import format_seconds

    made = f"makespan {format_seconds(schedule.makespan_s)}"
    if schedule.is_optimal:
        return f"{made}: the best possible"
    gap = schedule.gap_frac
    above = (
        f"at most {100 * gap:.1f} % above the best possible" if gap >= 5e-4 else "within 0.05 % of the best possible"
    )
    return f"{made}, lower bound {format_seconds(schedule.lower_bound_s)}: {above}"
