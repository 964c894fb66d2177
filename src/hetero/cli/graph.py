"""`hetero graph`: plan, simulate, compare, convert, show and check task graphs in files.

In: a graph of any format and a fleet, a plan, the times of earlier runs, or the trace of a run. Out: a file, lines for
people, or one JSON document.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson, GraphDevices, Iterations, Noise, Output, Seed, TransferModel, refuse_unused
from hetero.cli.output import console, is_quiet, note, print_json, say
from hetero.floor.errors import ExitCode

if TYPE_CHECKING:
    from hetero.graphs.comparison import FleetComparison
    from hetero.graphs.data_graph import DataGraph
    from hetero.graphs.planning import PlannedGraph
    from hetero.graphs.simulation import Trials
    from hetero.graphs.whatif import Changed, Measured
    from hetero.model.graph import TaskGraph
    from hetero.model.schedule import Schedule

__all__ = ["answer", "check", "convert", "plan", "schema", "show", "simulate", "tell_unused", "verdict", "whatif"]


def convert(
    file: Annotated[Path, typer.Argument(help="WfFormat 1.5, Standard Task Graph, DOT, hswf, hetero-graph/1 or /2.")],
    devices: GraphDevices = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="wfformat, stg, dot, hswf or hetero; default: by name and content.")
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Of hswf: the kinds of devices of its columns of milliseconds, as in cpu,gpu.")
    ] = "",
    edge_bytes: Annotated[str, typer.Option(help="Of hswf: the bytes of every edge, as in 3686400 or 3.5MB.")] = "0B",
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Write a graph as hetero-graph/1, or hetero-graph/2 where it has items.

    Without --output the document goes to standard output.
    """
    from json import dumps

    from hetero.floor.units import parse_bytes
    from hetero.graphs.data_graph import DataGraph, data_document
    from hetero.graphs.document import document_of
    from hetero.graphs.files import write_text
    from hetero.graphs.formats import read_any

    names = [name.strip() for name in columns.split(",") if name.strip()]
    graph = read_any(file, devices, format_, names, parse_bytes(edge_bytes))
    tell_unused(file, graph, devices)
    document = data_document(graph) if isinstance(graph, DataGraph) else document_of(graph)
    if output is None:
        print_json(document)
        return
    write_text(output, dumps(document, indent=1) + "\n")
    word, count = ("items", len(graph.items)) if isinstance(graph, DataGraph) else ("edges", len(graph.edges))
    if json:
        print_json({"output": str(output), "tasks": len(graph.tasks), word: count, "devices": len(graph.devices)})
    else:
        say(f"{output}: {len(graph.tasks):,} tasks, {count:,} {word}, {len(graph.devices)} devices")


def show(
    file: Annotated[Path, typer.Argument(help="A graph of any format, or the trace of a run.")],
    devices: GraphDevices = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Show the tasks and edges of a graph, or of a run by its trace."""
    from hetero.graphs.files import checked_output, write_text
    from hetero.graphs.formats import convert as convert_any
    from hetero.graphs.show import graph, view_of

    if output is not None:
        checked_output(output)
    if ".jsonl" in file.suffixes:
        view = graph(file)
    else:
        read = convert_any(file, devices or "1")
        tell_unused(file, read, devices)
        view = view_of(read)
    if output is not None:
        write_text(output, view.svg)
    if json:
        print_json(view.as_dict())
    else:
        say(str(view))
        if output is not None:
            say(f"picture: {output}")


def tell_unused(file: Path, graph: TaskGraph | DataGraph, devices: str | None) -> None:
    """Note on standard error that a fleet was given for a graph that names its own devices."""
    from hetero.graphs.fleet_files import read_fleet

    if devices is not None and read_fleet(devices).devices != graph.devices:
        note(f"note: {file} names its own devices, so --devices {devices} is left out")


def schema(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, as it does anyway.")] = True,
) -> None:
    """Print the JSON Schema of hetero-graph/1 and hetero-graph/2."""
    from hetero.graphs.data_graph import data_schema
    from hetero.graphs.document import graph_schema

    of_tasks = graph_schema()
    print_json({"$schema": of_tasks.pop("$schema"), "oneOf": [of_tasks, data_schema(of_tasks)]})


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
    _print_plan_json(planned) if json else _print_plan(read, planned)


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
    from hetero.graphs.check import violations
    from hetero.graphs.formats import read_plannable
    from hetero.graphs.plan_files import read_plan

    read, checked = read_plannable(graph), read_plan(plan)
    found = violations(read, checked)
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


def _print_plan_json(planned: PlannedGraph) -> None:
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


def _print_plan(graph: TaskGraph, planned: PlannedGraph) -> None:
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
    for line in planned.notes:
        out.print(f"note: {line}", markup=False, soft_wrap=True)


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
    print_json(trials.as_dict()) if json else _print_trials(trials)
    if trials.failed:
        raise typer.Exit(ExitCode.FAILED)


def _print_trials(trials: Trials) -> None:
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
    _print_comparison_json(found, then, other) if json else _print_comparison(found, then, other)


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


def _print_comparison_json(found: FleetComparison, then: list[Schedule], other: Changed) -> None:
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


def _print_comparison(found: FleetComparison, then: list[Schedule], other: Changed) -> None:
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
