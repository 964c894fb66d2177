"""The default model, in which transfers share links: makespan over the best known on random graphs, and what-if.

Graphs and fleets are drawn from a seed. Seeds below 1,000 are for development, those from 1,000 on for figures.
Budgets are processor time. `--best SECONDS` searches for better known schedules and keeps them in
graphs_contention_best.json; `--whatif N` counts contradictions among N random removals and additions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import RESULTS, Bench
from hetero.floor.clock import cpu_seconds, monotonic_s
from hetero.floor.errors import BadValueError
from hetero.graphs.check import violations
from hetero.graphs.comparison import compare
from hetero.graphs.document import document_of
from hetero.graphs.planning import Budget, plan_graph, warm_up
from hetero.graphs.whatif import without
from hetero.model.graph import UNLIMITED_BYTES, GraphDevice, GraphEdge, GraphTask, TaskGraph
from hetero.model.schedule import Schedule
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.planners.heuristics import PLANNERS

BEST_KNOWN = Path(__file__).resolve().with_name("graphs_contention_best.json")
FIRST_SEED = 1_000
"""Seeds below it are for development: no figure that is kept comes from them."""

BUDGETS_S = (0.1, 1.0)
_COUNTS = (10, 20, 40, 80, 150, 300, 500)
_CCRS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_DEVICES = (2, 3, 4, 6, 8, 12, 16, 24)

Pairs = list[tuple[int, int]]


def _layered(rng: np.random.Generator, count: int) -> Pairs:
    width = max(2, int(rng.uniform(0.5, 1.5) * math.sqrt(count)))
    layer = np.sort(rng.integers(0, max(2, count // width), count))
    pairs: Pairs = []
    for task in range(count):
        before = np.flatnonzero(layer == layer[task] - 1)
        if len(before):
            pairs += [
                (int(each), task) for each in rng.choice(before, min(len(before), int(rng.integers(1, 4))), False)
            ]
    return pairs


def _fork_join(rng: np.random.Generator, count: int) -> Pairs:
    pairs: Pairs = []
    root = 0
    while root < count - 3:
        width = min(int(rng.integers(2, 12)), count - root - 2)
        join = root + width + 1
        pairs += [(root, middle) for middle in range(root + 1, join)] + [
            (middle, join) for middle in range(root + 1, join)
        ]
        root = join
    return pairs


def _series_parallel(rng: np.random.Generator, count: int) -> Pairs:
    edges: Pairs = [(0, 1)]
    for made in range(2, count):
        src, dst = edges[int(rng.integers(len(edges)))]
        if rng.random() < 0.5:
            edges.remove((src, dst))
        edges += [(src, made), (made, dst)]
    return _by_depth(edges, count)


def _by_depth(edges: Pairs, count: int) -> Pairs:
    """Renumber the tasks so that edges point forward."""
    from hetero.model.graph import topological_order

    order = topological_order([str(task) for task in range(count)], edges)
    number = {task: place for place, task in enumerate(order)}
    return [(number[src], number[dst]) for src, dst in edges]


def _stencil(rng: np.random.Generator, count: int) -> Pairs:
    width = max(2, int(rng.uniform(0.6, 1.6) * math.sqrt(count)))
    return [
        (above + shift, task)
        for task in range(width, count)
        for above in [task - width]
        for shift in (-1, 0, 1)
        if above % width + shift in range(width)
    ]


def _tree(rng: np.random.Generator, count: int) -> Pairs:
    """Return a workflow: a task splits, chains work on the parts, merges take three at a time, a task ends it."""
    length = int(rng.integers(1, 5))
    chains = max(2, int((count - 2) / (length + 0.7)))
    pairs: Pairs = []
    made = 1
    open_ends = []
    for _ in range(chains):
        last = 0
        for _ in range(length):
            if made < count - 1:
                pairs.append((last, made))
                last, made = made, made + 1
        open_ends.append(last)
    while made < count - 1 and len(open_ends) > 2:
        some, open_ends = open_ends[:3], open_ends[3:]
        pairs += [(each, made) for each in some]
        open_ends.append(made)
        made += 1
    return pairs + [(each, count - 1) for each in dict.fromkeys(open_ends) if each < count - 1]


def _tiles(kind: str) -> Callable[[np.random.Generator, int], Pairs]:
    return lambda rng, count: _factorised(kind, count)


def _factorised(kind: str, count: int) -> Pairs:
    """Tasks that write tiles in place: tiled Cholesky, LU without pivoting, or QR, cut to so many tasks."""
    writes: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]] = []
    for k in range(64):
        later = range(k + 1, 64 if len(writes) < count else k + 1)
        size = max(3, int((3.0 * count) ** (1 / 3)) + 1)
        rows = [i for i in later if i < size]
        if k >= size or len(writes) >= count:
            break
        writes.append(([], [(k, k)]))
        if kind == "cholesky":
            writes += [([(k, k)], [(i, k)]) for i in rows]
            writes += [([(i, k), (j, k)], [(i, j)]) for i in rows for j in rows if j <= i]
        elif kind == "lu":
            writes += [([(k, k)], [(i, k)]) for i in rows] + [([(k, k)], [(k, j)]) for j in rows]
            writes += [([(i, k), (k, j)], [(i, j)]) for i in rows for j in rows]
        else:
            writes += [([(k, k)], [(k, j)]) for j in rows]
            for i in rows:
                writes.append(([], [(k, k), (i, k)]))
                writes += [([(i, k)], [(k, j), (i, j)]) for j in rows]
    wrote: dict[tuple[int, int], int] = {}
    pairs: dict[tuple[int, int], None] = {}
    for task, (reads, makes) in enumerate(writes[:count]):
        for tile in (*reads, *makes):
            if tile in wrote:
                pairs[wrote[tile], task] = None
        wrote.update(dict.fromkeys(makes, task))
    return list(pairs)


FAMILIES: dict[str, Callable[[np.random.Generator, int], Pairs]] = {
    "layered": _layered,
    "fork-join": _fork_join,
    "series-parallel": _series_parallel,
    "cholesky": _tiles("cholesky"),
    "lu": _tiles("lu"),
    "qr": _tiles("qr"),
    "stencil": _stencil,
    "tree": _tree,
}


class _Fleet(NamedTuple):
    devices: tuple[GraphDevice, ...]
    topology: Topology
    speeds: list[float]


def _fleet(rng: np.random.Generator, count: int) -> _Fleet:
    """Draw hosts with cores that share a memory, and accelerators with memories of their own, some on one bus."""
    hosts = int(rng.integers(1, min(4, count) + 1))
    devices: list[GraphDevice] = []
    speeds: list[float] = []
    links: list[Link] = []
    nodes: list[str] = []
    shares_bus, is_wired = rng.random() < 0.5, rng.random() < 0.3
    network_bytes_per_s = float(rng.choice([0.1, 0.3, 1.0]))
    for host in range(hosts):
        nodes.append(f"h{host}/ram")
        mine = count // hosts + (host < count % hosts)
        cores = int(rng.integers(1, mine + 1))
        base = float(rng.choice([0.5, 1.0, 1.0, 2.0]))
        devices += [GraphDevice(f"h{host}/cpu:{each}", f"h{host}/ram", "cpu") for each in range(cores)]
        speeds += [base] * cores
        own = [f"h{host}/cuda:{each}" for each in range(mine - cores)]
        for name in own:
            nodes.append(name)
            devices.append(GraphDevice(name, name, "cuda"))
            speeds.append(float(rng.choice([1.0, 2.0, 4.0, 8.0])))
            speed, bus = float(rng.choice([0.5, 1.0, 2.0])), f"h{host}/pcie" if shares_bus else ""
            links += [Link(f"h{host}/ram", name, 1e-5, speed, bus), Link(name, f"h{host}/ram", 1e-5, speed, bus)]
        if is_wired:
            links += [Link(a, b, 1e-6, 5.0) for a in own for b in own if a != b]
    rams = [f"h{host}/ram" for host in range(hosts)]
    links += [Link(a, b, 1e-4, network_bytes_per_s) for a in rams for b in rams if a != b]
    return _Fleet(tuple(devices), Topology(tuple(MemoryNode(n, UNLIMITED_BYTES) for n in nodes), tuple(links)), speeds)


class Drawn(NamedTuple):
    """A graph that was drawn, and from what."""

    name: str
    graph: TaskGraph

    @property
    def sha256(self) -> str:
        """The hash of the graph as hetero-graph/1."""
        return hashlib.sha256(json.dumps(document_of(self.graph), sort_keys=True).encode()).hexdigest()


def drawn(seed: int, most: int = 500, fewest_devices: int = 2) -> Drawn:
    """Draw a graph; of each eight seeds one is of each family."""
    rng = np.random.default_rng([16, seed])
    family = list(FAMILIES)[seed % len(FAMILIES)]
    count = int(rng.choice([each for each in _COUNTS if each <= most]))
    ccr, many = float(rng.choice(_CCRS)), int(rng.choice([each for each in _DEVICES if each >= fewest_devices]))
    pairs = FAMILIES[family](rng, count)
    fleet = _fleet(rng, many)
    work = rng.lognormal(0.0, float(rng.choice([0.2, 0.8])), count)
    stray = float(rng.choice([0.0, 0.2, 0.6]))
    seconds = work[:, None] / np.array(fleet.speeds)[None, :] * rng.lognormal(0.0, stray, (count, many))
    has_cuda = np.array([device.kind == "cuda" for device in fleet.devices])
    if not has_cuda.all():
        seconds[np.ix_(rng.random(count) < 0.1, has_cuda)] = math.inf
    size = rng.lognormal(0.0, 0.5, count) if rng.random() < 0.7 else np.ones(count)
    slowness = (
        statistics.mean(1.0 / link.bandwidth_bytes_per_s for link in fleet.topology.links)
        if fleet.topology.links
        else 1.0
    )
    unit = ccr * float(np.where(np.isfinite(seconds), seconds, 0.0).sum() / np.isfinite(seconds).sum()) / slowness
    scale = 2.0**20 / max(unit * float(size.mean()), 1e-9)
    links = tuple(
        Link(link.src, link.dst, link.latency_s, link.bandwidth_bytes_per_s * scale, link.bus)
        for link in fleet.topology.links
    )
    own = rng.random() < 0.3
    edges = tuple(
        GraphEdge(f"t{a}", f"t{b}", max(1, int(size[a] * (rng.lognormal(0.0, 0.5) if own else 1.0) * unit * scale)))
        for a, b in dict.fromkeys(pairs)
    )
    tasks = tuple(GraphTask(f"t{at}", tuple(map(float, row))) for at, row in enumerate(seconds))
    topology = Topology(fleet.topology.nodes, links)
    return Drawn(f"{family}/{count}/ccr{ccr:g}/{many}/{seed}", TaskGraph(fleet.devices, topology, tasks, edges))


def parts(graph: TaskGraph) -> Iterator[tuple[str, TaskGraph]]:
    """Yield the graph on each device, memory node and host alone that can run all of it."""
    groups: dict[tuple[str, ...], str] = {}
    for what, of in (
        ("device", lambda device: device.id),
        ("memory node", lambda device: device.memory_node),
        ("host", lambda device: device.memory_node.partition("/")[0]),
    ):
        for name in dict.fromkeys(of(device) for device in graph.devices):
            groups.setdefault(tuple(device.id for device in graph.devices if of(device) == name), what)
    for kept, what in groups.items():
        index = [at for at, device in enumerate(graph.devices) if device.id in kept]
        if all(any(math.isfinite(task.seconds[at]) for at in index) for task in graph.tasks):
            yield what, without(graph, [device.id for device in graph.devices if device.id not in kept])


def _alone_s(graph: TaskGraph) -> float:
    """Return the least makespan of the planners on one device, one memory node or one host."""
    return min((_rival_s(each, PLANNERS) for _, each in parts(graph)), default=math.inf)


def _rival_s(graph: TaskGraph, planners: Sequence[str]) -> float:
    return min(plan_graph(graph, name).schedule.makespan_s for name in planners)


def planned(each: Drawn, budget: Budget, seed: int) -> Schedule:
    """Return what the search finds in so much processor time; the independent checker must confirm it."""
    schedule = plan_graph(each.graph, "search", budget, seed, cpu_seconds).schedule
    wrong = violations(each.graph, schedule)
    if wrong:
        raise AssertionError(f"{each.name}: {wrong[0]}")
    return schedule


def read_best() -> dict[str, dict[str, Any]]:
    """Return the best known schedules by the name of the graph."""
    best: dict[str, dict[str, Any]] = json.loads(BEST_KNOWN.read_text()) if BEST_KNOWN.exists() else {}
    return best


def seek_best(seconds: float, seeds: int, numbers: Sequence[int]) -> None:
    """Search longer, and keep what is better than what is known; what was spent is kept with each graph."""
    for number in numbers:
        each = drawn(number)
        best = read_best()
        known = best.get(each.name, {})
        if known.get("sha256") != each.sha256:
            known = {
                "sha256": each.sha256,
                "makespan_s": math.inf,
                "lower_bound_s": 0.0,
                "alone_s": _alone_s(each.graph),
            }
            known |= {"rival_s": _rival_s(each.graph, PLANNERS), "spent_s": {}}
        for seed in range(1000, 1000 + seeds):
            if known["spent_s"].get(str(seed), 0.0) < seconds and known["makespan_s"] > known["lower_bound_s"] * (
                1 + 1e-6
            ):
                schedule = planned(each, Budget(seconds), seed)
                known["makespan_s"] = min(known["makespan_s"], schedule.makespan_s, known["alone_s"], known["rival_s"])
                known["lower_bound_s"] = min(known["makespan_s"], max(known["lower_bound_s"], schedule.lower_bound_s))
                known["spent_s"][str(seed)] = seconds
        part = BEST_KNOWN.with_suffix(".part")
        part.write_text(json.dumps(dict(sorted({**best, each.name: known}.items())), indent=1) + "\n")
        part.replace(BEST_KNOWN)
        print(f"{each.name}: {known['makespan_s']:.6g} s, bound {known['lower_bound_s']:.6g} s", flush=True)


class _Row(NamedTuple):
    name: str
    tasks: int
    ratio: float
    over_alone: float
    is_optimal: bool
    gap_frac: float


def _ratios(bench: Bench, numbers: Sequence[int], seed: int) -> None:
    best = read_best()
    rows: dict[float, list[_Row]] = {budget_s: [] for budget_s in BUDGETS_S}
    for number in numbers:
        each = drawn(number)
        known = best.get(each.name)
        if known is None or known["sha256"] != each.sha256:
            raise AssertionError(f"{each.name} has no best known: run --best")
        for budget_s in BUDGETS_S:
            made = planned(each, Budget(budget_s), seed)
            ratio, alone = made.makespan_s / known["makespan_s"], made.makespan_s / known["alone_s"]
            rows[budget_s].append(_Row(each.name, len(each.graph.tasks), ratio, alone, made.is_optimal, made.gap_frac))
    _claims(bench, rows)


def _claims(bench: Bench, rows: dict[float, list[_Row]]) -> None:
    aims = {0.1: (1.01, 1.05, 1.10), 1.0: (1.003, 1.03, 1.05)}
    for budget_s, (mean, ninety_ninth, worst) in aims.items():
        ratios = [row.ratio for row in rows[budget_s]]
        what = f"contention, makespan over the best known, {budget_s:g} s"
        bench.measure(what, ratios, "×")
        bench.claim(f"{what}: geometric mean", statistics.geometric_mean(ratios), at_most=mean)
        bench.claim(f"{what}: 99th percentile", float(np.quantile(ratios, 0.99)), at_most=ninety_ninth)
        bench.claim(f"{what}: worst", max(ratios), at_most=worst)
        above = sum(row.over_alone > 1.0 + 1e-9 for row in rows[budget_s])
        what = f"longer than on one device, memory node or host, {budget_s:g} s"
        bench.claim(what, above, unit=f"of {len(ratios)}", at_most=0)
    small = [row for row in rows[1.0] if row.tasks <= 50]
    if small:
        share = sum(row.is_optimal for row in small) / len(small)
        bench.claim("contention, proven in 1 s, up to 50 tasks", share, unit="of them", at_least=0.8)
    bench.note(
        graphs=len(rows[1.0]),
        ratio_at_0_1_s={row.name: round(row.ratio, 4) for row in rows[0.1]},
        ratio_at_1_s={row.name: round(row.ratio, 4) for row in rows[1.0]},
        gap_at_1_s={row.name: round(row.gap_frac, 4) for row in rows[1.0]},
    )


class Change(NamedTuple):
    """A graph on a fleet and on a smaller one, drawn; `adds` says which of them stands first."""

    name: str
    before: TaskGraph
    after: TaskGraph
    adds: bool


def changes(first: int, most: int = 80) -> Iterator[Change]:
    """Yield removals and additions of devices, without end; each removal read backwards is an addition."""
    for seed in count(first):
        rng = np.random.default_rng([17, seed])
        each = drawn(seed, most, fewest_devices=3)
        ids = [device.id for device in each.graph.devices]
        gone = [str(name) for name in rng.choice(ids, int(rng.integers(1, len(ids))), replace=False)]
        try:
            fewer = without(each.graph, gone)
        except BadValueError:
            continue
        if rng.random() < 0.5:
            yield Change(f"{each.name} -{len(gone)}", each.graph, fewer, adds=False)
        else:
            yield Change(f"{each.name} +{len(gone)}", fewer, each.graph, adds=True)


def inversions(many: int, first: int, budget: Budget) -> tuple[list[str], int]:
    """Return what contradicts itself among so many changes, and how many are decided.

    Notes
    -----
    A larger fleet must not be slower, nor its lower bound be above that of the smaller one, and the checker must
    confirm both plans.
    """
    wrong, decided = [], 0
    for change, _ in zip(changes(first), range(many), strict=False):
        found = compare(change.before, change.after, budget, 0)
        small, large = (found.now, found.then) if change.adds else (found.then, found.now)
        sound = not violations(change.before, found.now) and not violations(change.after, found.then)
        if large.makespan_s > small.makespan_s or large.lower_bound_s > small.lower_bound_s or not sound:
            wrong.append(change.name)
        decided += found.is_decided
    return wrong, decided


def _count_inversions(bench: Bench, many: int, first: int) -> None:
    wrong, decided = inversions(many, first, Budget(0.1))
    bench.claim(f"what-if, contradictions in {many:,} removals and additions", len(wrong), unit="", at_most=0)
    bench.note(contradictions=wrong, decided_of_them=decided)


def main() -> None:
    """Measure and print, or search for better known schedules."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures mean nothing and are not kept")
    parser.add_argument("--out", type=Path, help="folder of the results (default: results/ beside this file)")
    parser.add_argument("--best", type=float, help="search for better known schedules for so many seconds each")
    parser.add_argument("--seeds", type=int, default=1, help="searches of --best for each graph")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="seed of the first graph")
    parser.add_argument("--graphs", type=int, default=24, help="how many graphs")
    parser.add_argument("--whatif", type=int, default=1000, help="how many removals and additions; 0 for none")
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.graphs)
    begin_s = monotonic_s()
    warm_up(searches=True)
    warm_s = monotonic_s() - begin_s
    if given.best:
        seek_best(given.best, given.seeds, numbers)
        return
    out = given.out if given.quick or given.out else RESULTS
    if given.first < FIRST_SEED and out == RESULTS:
        raise SystemExit(f"graphs below seed {FIRST_SEED:,} are for development: give --out")
    bench = Bench("graphs_contention", "random graphs whose transfers share links", ("numba", "scipy", "ortools"), out)
    known = "found with the budgets named in graphs_contention_best.json"
    bench.note(warm_up_s=round(warm_s, 2), times="processor time of this process", best_known=known)
    _ratios(bench, numbers[:2] if given.quick else numbers, 0)
    if given.whatif:
        _count_inversions(bench, 3 if given.quick else given.whatif, given.first)
    bench.finish()


if __name__ == "__main__":
    main()
