"""Makespan over the best known on other people's task graphs, what is proven optimal, and the planners' speed.

Fleets are ours, because most of the graphs name none: they are in `instances`, and so part of the best known's hash.
Budgets are processor time, so that a busy machine takes nothing away; `--best SECONDS` searches for better known
schedules and keeps them in graphs_best_known.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import statistics
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import RESULTS, Bench
from hetero.floor import settings
from hetero.floor.clock import cpu_seconds, monotonic_s
from hetero.graphs.check import violations
from hetero.graphs.document import document_of
from hetero.graphs.files import parse_json, read_text
from hetero.graphs.fleet_files import GraphFleet, fleet_from
from hetero.graphs.formats import read_hswf, read_stg, read_wfformat
from hetero.graphs.planning import Budget, pull, schedule_of, warm_up
from hetero.model.graph import GraphDevice, GraphEdge, GraphTask, TaskGraph
from hetero.model.schedule import Schedule
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.bounds.graph import area_bound
from hetero.plan.graph_search.combined import search
from hetero.plan.graph_search.exact_search import ExactLimits, improve
from hetero.plan.graph_search.portfolio import portfolio
from hetero.plan.planners.heuristics import PLANNERS, planner
from hetero.plan.problem import Problem, problem_of

BEST_KNOWN = Path(__file__).resolve().with_name("graphs_best_known.json")
SAGA = BEST_KNOWN.with_name("graphs_saga.json")
BUDGETS_S = (0.1, 1.0)
ITERATIONS = (100, 1_000)
_PCIE_BYTES_PER_S, _PCIE_S = 6e9, 1e-5
_LAN_BYTES_PER_S, _LAN_S = 125e6, 1e-4


class Instance(NamedTuple):
    """A graph with its name."""

    name: str
    graph: TaskGraph

    @property
    def sha256(self) -> str:
        """The hash of the graph as hetero-graph/1."""
        return hashlib.sha256(json.dumps(document_of(self.graph), sort_keys=True).encode()).hexdigest()


def _data() -> Path:
    return (settings.test_data() or Path(__file__).resolve().parents[2] / "shared" / "data") / "graphs"


def _fleet(devices: list[dict[str, Any]], bytes_per_s: float, latency_s: float) -> GraphFleet:
    """Return a fleet in which every memory node has a link to and from every other."""
    nodes = sorted({device["memory_node"] for device in devices})
    links = [
        {"src": src, "dst": dst, "bandwidth_bytes_per_s": bytes_per_s, "latency_s": latency_s}
        for src in nodes
        for dst in nodes
        if src != dst
    ]
    document = {"format": "hetero-fleet/1", "devices": devices, "memory_nodes": [{"id": name} for name in nodes]}
    return fleet_from({**document, "links": links}, "fleet")


def _accelerated(cpus: int, gpus: list[str]) -> GraphFleet:
    rows = [{"id": f"cpu{number}", "memory_node": "ram", "kind": "cpu"} for number in range(cpus)]
    rows += [{"id": f"dev{number}", "memory_node": f"dev{number}", "kind": kind} for number, kind in enumerate(gpus)]
    return _fleet(rows, _PCIE_BYTES_PER_S, _PCIE_S)


def _hosts(programs: set[str]) -> GraphFleet:
    """Return three hosts of unlike speeds and a device that likes some programs, drawn from their names' hashes."""
    liking = (None, 0.5, 2.0, 4.0, 12.0)
    speeds = {name: liking[hashlib.sha256(name.encode()).digest()[0] % len(liking)] for name in sorted(programs)}
    rows: list[dict[str, Any]] = [
        {"id": f"host{number}", "memory_node": f"host{number}", "speed": speed}
        for number, speed in enumerate((1.0, 1.5, 2.5))
    ]
    rows.append({"id": "gpu0", "memory_node": "host2", "speed": 2.0, "speeds": speeds})
    return _fleet(rows, _LAN_BYTES_PER_S, _LAN_S)


def instances() -> Iterator[Instance]:
    """Yield every graph of the shared data with its fleet."""
    folder = _data()
    for path in sorted((folder / "hswf3").glob("*.txt")):
        tile = int(path.stem.split("-")[1])
        fleet = _accelerated(4, ["gpu1", "gpu2"])
        yield Instance(
            f"hswf3/{path.stem}", read_hswf(read_text(path), path.name, fleet, ("cpu", "gpu1", "gpu2"), tile**2 * 4)
        )
    for path in sorted((folder / "hswf2").glob("*.txt")):
        tile = 0 if path.stem.startswith("forkJoin") else int(path.stem.split("-")[1])
        for cpus, gpus in ((4, 1), (8, 2)):
            fleet = _accelerated(cpus, ["gpu"] * gpus)
            graph = read_hswf(read_text(path), path.name, fleet, ("cpu", "gpu"), tile**2 * 4)
            yield Instance(f"hswf2/{path.stem}/{cpus}+{gpus}", graph)
    for path in sorted((folder / "stg").glob("*.stg")):
        rows = [{"id": f"d{number}", "memory_node": "ram", "speed": speed} for number, speed in enumerate((1, 1, 2, 4))]
        yield Instance(f"stg/{path.stem}", read_stg(read_text(path), path.name, _fleet(rows, 1e9, 0.0)))
    for path in sorted((folder / "wfinstances").glob("*.json.gz")):
        document = parse_json(read_text(path), path.name)
        ran = document["workflow"]["execution"]["tasks"]
        programs = {task.get("command", {}).get("program", "") for task in ran}
        name = path.name.removesuffix(".json.gz")
        yield Instance(f"wf/{name}", read_wfformat(document, path.name, _hosts(programs)))


def cholesky(tiles: int, devices: int) -> TaskGraph:
    """Return the tiled Cholesky factorisation over unlike devices, each with a memory of its own."""
    shares = {"potrf": (1.0, 3), "trsm": (3.0, 2), "syrk": (3.0, 1), "gemm": (6.0, 0)}
    seconds = {
        kind: tuple(work * 1e-3 / (1 + (5 * index + late) % 7) for index in range(devices))
        for kind, (work, late) in shares.items()
    }
    tasks: list[GraphTask] = []
    edges: dict[tuple[str, str], GraphEdge] = {}
    wrote: dict[tuple[int, int], str] = {}

    def add(kind: str, reads: tuple[tuple[int, int], ...], tile: tuple[int, int], step: int) -> None:
        name = f"{kind}{tile[0]}.{tile[1]}.{step}"
        tasks.append(GraphTask(name, seconds[kind]))
        for read in (*reads, tile):
            if read in wrote:
                edges[wrote[read], name] = GraphEdge(wrote[read], name, 960 * 960 * 4)
        wrote[tile] = name

    for k in range(tiles):
        add("potrf", (), (k, k), k)
        for i in range(k + 1, tiles):
            add("trsm", ((k, k),), (i, k), k)
        for i in range(k + 1, tiles):
            add("syrk", ((i, k),), (i, i), k)
            for j in range(k + 1, i):
                add("gemm", ((i, k), (j, k)), (i, j), k)
    nodes = [f"m{index}" for index in range(devices)]
    links = tuple(Link(a, b, _PCIE_S, _PCIE_BYTES_PER_S) for a in nodes for b in nodes if a != b)
    topology = Topology(tuple(MemoryNode(node, 2**40) for node in nodes), links)
    fleet = tuple(GraphDevice(f"d{index}", node) for index, node in enumerate(nodes))
    return TaskGraph(fleet, topology, tuple(tasks), tuple(edges.values()))


def planned(instance: Instance, p: Problem, budget: Budget, seed: int, bound_s: float = 0.0) -> Schedule:
    """Return what the search finds in so much processor time or iterations; the independent checker must confirm it."""
    found, _ = pull(search(p, seed), budget, cpu_seconds)
    return _confirmed(
        instance, schedule_of(instance.graph, p, found.timeline, max(found.lower_bound_s, bound_s), "search")
    )


def _confirmed(instance: Instance, schedule: Schedule) -> Schedule:
    wrong = violations(instance.graph, schedule)
    if wrong:
        raise AssertionError(f"{instance.name}: {wrong[0]}")
    return schedule


def read_best() -> dict[str, dict[str, Any]]:
    """Return the best known schedules by the name of the instance."""
    best: dict[str, dict[str, Any]] = json.loads(BEST_KNOWN.read_text()) if BEST_KNOWN.exists() else {}
    return best


def seek_best(seconds: float, seeds: int, workers: int) -> None:
    """Search longer, and keep what is better than what is known.

    Notes
    -----
    Graphs of up to 500 tasks first, one seed for all of them before the next, then CP-SAT alone from the best so far.
    What was spent is kept with each graph, and the file is whole after each search: begun again, it goes on.
    """
    saga = json.loads(SAGA.read_text()) if SAGA.exists() else {}
    ordered = sorted(instances(), key=lambda instance: len(instance.graph.tasks) > 500)
    rounds = [f"seed {1000 + seed}" for seed in range(seeds)] + ["CP-SAT"]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _warm_up) as pool:
        for searcher in rounds:
            wanted = [instance for instance in ordered if _is_wanted(_known(instance), searcher, seconds)]
            searches = {pool.submit(_searched, instance, searcher, seconds): instance for instance in wanted}
            for done in as_completed(searches):
                instance = searches[done]
                known = _known(instance)
                _keep(known, *done.result())
                _keep_saga(known, saga.get(instance.name, {}))
                known["gap_frac"] = round(known["makespan_s"] / known["lower_bound_s"] - 1.0, 6)
                known["spent_s"][searcher] = seconds
                _write({**read_best(), instance.name: known})
                print(f"{instance.name}: {known['makespan_s']:.6g} s, {done.result()[1]}", flush=True)


def _known(instance: Instance) -> dict[str, Any]:
    known = read_best().get(instance.name, {})
    if known.get("sha256") == instance.sha256:
        return known
    known = {"sha256": instance.sha256, "tasks": len(instance.graph.tasks), "makespan_s": math.inf}
    return {**known, "lower_bound_s": 0.0, "spent_s": {}}


def _is_wanted(known: Mapping[str, Any], searcher: str, seconds: float) -> bool:
    is_proven = known["makespan_s"] <= known["lower_bound_s"] * (1.0 + 1e-6)
    return not is_proven and known["spent_s"].get(searcher, 0.0) < seconds


def _warm_up() -> None:
    warm_up(searches=True)


def _searched(instance: Instance, searcher: str, seconds: float) -> tuple[Schedule, str]:
    """Return what one searcher finds, confirmed by the checker, and its name."""
    p = problem_of(instance.graph)
    bound_s = area_bound(p)
    if searcher != "CP-SAT":
        schedule = planned(instance, p, Budget(seconds), int(searcher.split()[1]), bound_s)
        return schedule, f"search, {seconds:g} s, {searcher}"
    found, _ = pull(search(p, 0), Budget(1.0), cpu_seconds)
    timeline, least_s = improve(p, found.timeline, 0, len(p.order), ExactLimits(math.inf, seconds, 0))
    schedule = schedule_of(instance.graph, p, timeline, max(bound_s, found.lower_bound_s, least_s), "CP-SAT")
    return _confirmed(instance, schedule), f"CP-SAT, {seconds:g} s"


def _keep(known: dict[str, Any], schedule: Schedule, by: str) -> None:
    if schedule.makespan_s < known["makespan_s"]:
        known.update(makespan_s=schedule.makespan_s, by=by)
    known["lower_bound_s"] = min(max(known["lower_bound_s"], schedule.lower_bound_s), known["makespan_s"])


def _keep_saga(known: dict[str, Any], saga: Mapping[str, Any]) -> None:
    if saga.get("sha256") != known["sha256"]:
        return
    sound = [(made, name) for name, made in saga["schedulers"].items() if isinstance(made, float)]
    made_s, name = min(sound, default=(math.inf, ""))
    if made_s < known["makespan_s"]:
        known.update(makespan_s=made_s, by=f"SAGA, {name}")


def _write(best: Mapping[str, Any]) -> None:
    """Write the best known, whole or not at all."""
    part = BEST_KNOWN.with_suffix(".part")
    part.write_text(json.dumps(dict(sorted(best.items())), indent=1) + "\n")
    part.replace(BEST_KNOWN)


def _ratios(bench: Bench, best: Mapping[str, Any], quick: bool) -> None:
    rows: dict[float, list[tuple[float, str, int, Schedule]]] = {budget_s: [] for budget_s in BUDGETS_S}
    single: dict[str, list[float]] = {name: [] for name in PLANNERS}
    stepped: dict[int, list[float]] = {iterations: [] for iterations in ITERATIONS}
    for instance in list(instances())[: 3 if quick else None]:
        known = best[instance.name]
        if known["sha256"] != instance.sha256:
            raise AssertionError(f"{instance.name} is not the graph of the best known: run --best")
        p = problem_of(instance.graph)
        bound_s = area_bound(p)
        for budget_s in BUDGETS_S:
            schedule = planned(instance, p, Budget(budget_s), 0, bound_s)
            ratio = schedule.makespan_s / known["makespan_s"]
            rows[budget_s].append((ratio, instance.name, len(p.order), schedule))
        for iterations in ITERATIONS:
            schedule = planned(instance, p, Budget(iterations=iterations), 0, bound_s)
            stepped[iterations].append(schedule.makespan_s / known["makespan_s"])
        for name in PLANNERS:
            single[name].append(planner(name)(p).makespan_s / known["makespan_s"])
    for name, ratios in single.items():
        bench.measure(f"{name} alone, over the best known", ratios, "×")
    for iterations, ratios in stepped.items():
        bench.measure(f"search of {iterations:,} iterations over the best known", ratios, "×")
    _claims(bench, rows)


def _claims(bench: Bench, rows: Mapping[float, list[tuple[float, str, int, Schedule]]]) -> None:
    aims = {0.1: (1.01, 1.05), 1.0: (1.003, 1.03)}
    for budget_s, (mean_at_most, worst_at_most) in aims.items():
        small = [ratio for ratio, _, count, _ in rows[budget_s] if count <= 500]
        bench.measure(f"search {budget_s:g} s over the best known, up to 500 tasks", small, "×")
        what = f"makespan over the best known, up to 500 tasks, {budget_s:g} s"
        bench.claim(f"{what}: geometric mean", statistics.geometric_mean(small), at_most=mean_at_most)
        bench.claim(f"{what}: worst", max(small), at_most=worst_at_most)
    large = [ratio for ratio, _, count, _ in rows[1.0] if count > 500]
    if large:
        bench.claim("makespan over the best known, 500 to 5,000 tasks, 1 s: worst", max(large), at_most=1.03)
    proven = [schedule.is_optimal for _, _, count, schedule in rows[1.0] if count <= 52]
    what = "optimality proven in 1 s, graphs of up to 50 tasks (and an entry and an exit)"
    bench.claim(what, sum(proven) / max(1, len(proven)), unit="of them", at_least=0.8)
    bench.note(
        instances=len(rows[1.0]),
        proven_of_all=sum(schedule.is_optimal for *_, schedule in rows[1.0]),
        gap_to_bound_at_1_s={name: round(schedule.gap_frac, 5) for _, name, _, schedule in rows[1.0]},
        ratio_at_1_s={name: round(ratio, 5) for ratio, name, _, _ in rows[1.0]},
        ratio_at_0_1_s={name: round(ratio, 5) for ratio, name, _, _ in rows[0.1]},
    )


def _speeds(bench: Bench, quick: bool) -> None:
    graph = cholesky(12 if quick else 38, 24)
    p = problem_of(graph)
    count = len(p.order)
    for name, at_least in (("heft", 1e6), ("peft", 0.4e6)):
        rates = []
        for _ in range(3 if quick else 15):
            begin_s = cpu_seconds()
            planner(name)(p)
            rates.append(count / (cpu_seconds() - begin_s))
        bench.measure(f"{name}, tiled Cholesky of {count:,} tasks, 24 devices", rates, "tasks/s")
        bench.claim(
            f"{name} on a tiled Cholesky, 24 devices", statistics.median(rates), unit="tasks/s", at_least=at_least
        )
    passes = []
    for _ in range(2 if quick else 5):
        begin_s = cpu_seconds()
        members = sum(1 for _ in portfolio(p))
        passes.append(cpu_seconds() - begin_s)
    bench.measure(f"the portfolio of {members} list schedules on {count:,} tasks", passes)
    bench.claim("one pass of the portfolio over 10,000 tasks", statistics.median(passes), unit="s", at_most=0.5)


def main() -> None:
    """Measure and print, or search for better known schedules."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures mean nothing and are not kept")
    parser.add_argument("--out", type=Path, help="folder of the results (default: results/ beside this file)")
    parser.add_argument("--best", type=float, help="search for better known schedules for so many seconds each")
    parser.add_argument("--seeds", type=int, default=1, help="seeds of --best")
    parser.add_argument("--workers", type=int, default=1, help="processes of --best")
    given = parser.parse_args()
    begin_s = monotonic_s()
    _warm_up()
    warm_s = monotonic_s() - begin_s
    if given.best:
        seek_best(given.best, given.seeds, given.workers)
        return
    out = given.out if given.quick or given.out else RESULTS
    bench = Bench("graphs", "task graphs of others, over the best known", ("numba", "scipy", "ortools"), out)
    bench.note(
        warm_up_s=round(warm_s, 2),
        times="processor time of this process; wall time is no shorter",
        best_known="found with the budgets named in graphs_best_known.json",
    )
    _speeds(bench, given.quick)
    _ratios(bench, read_best(), given.quick)
    bench.finish()


if __name__ == "__main__":
    main()
