"""A tiled Cholesky run live on two devices of unlike speeds, one of them throttled: what it took over its own plan.

The plan is made from the medians of what the kernels took, once they are known; the factor is checked. A second plan is
made for each run from what its tasks really took, so that times which differ from their medians are told apart from
what the run loses by handing over and by decisions. The rival is the default policy, which sees only the tasks that are
ready.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio
from hetero.drive.trace_read import read_trace
from hetero.floor.clock import monotonic_s
from hetero.graphs.planning import Budget, plan_graph
from hetero.model.events import TaskFinished
from hetero.model.graph import GraphDevice, GraphEdge, GraphTask, TaskGraph
from hetero.model.topology import MemoryNode, Topology

DEVICES = "1xcpu,1xcpu*0.5"
TILES, TILE = 8, 448
ROUNDS = 9
WARM_UP = 2
Tile = tuple[int, int]
Made = list[tuple[str, list[int]]]
Row = tuple[float, ...]


def potrf(a: Any) -> Any:
    """Factorise a tile on the diagonal."""
    return np.linalg.cholesky(a)


def trsm(a: Any, diagonal: Any) -> Any:
    """Solve for a tile below a factor."""
    return np.linalg.solve(diagonal, a.T).T


def update(a: Any, left: Any, right: Any) -> Any:
    """Subtract a product from a tile."""
    return a - left @ right.T


def matrix(tiles: int, tile: int) -> dict[Tile, Any]:
    """Return the lower tiles of a matrix that can be factorised."""
    base = np.random.default_rng(0).standard_normal((tiles * tile, tiles * tile)) / tile
    whole = base @ base.T + 4.0 * np.eye(tiles * tile)
    return {
        (i, j): whole[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile].copy()
        for i in range(tiles)
        for j in range(i + 1)
    }


def cholesky(tiles: dict[Tile, Any], count: int) -> tuple[hetero.graphs.Graph, dict[Tile, Any], Made]:
    """Return the graph, the node of each tile of the factor, and each task's kernel with the tasks that it needs."""
    graph, at = hetero.graphs.Graph(), dict(tiles)
    made: Made = []
    number: dict[Tile, int] = {}

    def add(function: Any, tile: Tile, *reads: Tile) -> None:
        needs = [number[read] for read in (tile, *reads) if read in number]
        at[tile] = graph.add(function, at[tile], *(at[read] for read in reads))
        number[tile] = len(made)
        made.append((function.__name__, needs))

    for k in range(count):
        add(potrf, (k, k))
        for i in range(k + 1, count):
            add(trsm, (i, k), (k, k))
        for i in range(k + 1, count):
            for j in range(k + 1, i + 1):
                add(update, (i, j), (i, k), (j, k))
    return graph, at, made


def runs_of(trace: str, tasks: int) -> list[list[TaskFinished]]:
    """Return how the tasks of each run ended, in the order in which they were handed in."""
    ended = sorted(
        (record for _, record in read_trace(trace) if isinstance(record, TaskFinished)), key=lambda e: e.task
    )
    return [ended[begin : begin + tasks] for begin in range(0, len(ended), tasks)]


def medians(runs: Sequence[Sequence[TaskFinished]], made: Made, devices: Sequence[str]) -> dict[str, Row]:
    """Return what each kernel took on each device, s, in the median of all runs."""
    took: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for end, (name, _) in zip(run, made, strict=True):
            took.setdefault((name, end.device), []).append(end.seconds)
    return {name: tuple(statistics.median(took[name, device]) for device in devices) for name in {n for n, _ in made}}


def really(run: Sequence[TaskFinished], made: Made, usual: dict[str, Row], devices: Sequence[str]) -> list[Row]:
    """Return what each task of a run took, and would have elsewhere: as many times its kernel's median as here."""
    found: list[Row] = []
    for end, (name, _) in zip(run, made, strict=True):
        factor = end.seconds / usual[name][devices.index(end.device)]
        found.append(tuple(factor * seconds for seconds in usual[name]))
    return found


def plan_s(seconds: Sequence[Row], made: Made, devices: Sequence[str]) -> float:
    """Plan the graph with those seconds a task, and give the plan's makespan, s."""
    graph = TaskGraph(
        tuple(GraphDevice(device, "ram") for device in devices),
        Topology((MemoryNode("ram", 2**50),)),
        tuple(GraphTask(str(index), row) for index, row in enumerate(seconds)),
        tuple(GraphEdge(str(before), str(index), 0) for index, (_, needs) in enumerate(made) for before in set(needs)),
    )
    return plan_graph(graph, "search", Budget(iterations=20)).schedule.makespan_s


class Runner:
    """One policy's Context with the graph, run as often as wanted."""

    def __init__(self, policy: str, count: int, tile: int, folder: Path) -> None:
        self.trace = str(folder / f"{policy}.trace.jsonl.gz")
        self.ctx = hetero.Context(devices=DEVICES, policy=policy, trace=self.trace, history=False)
        self.tiles = matrix(count, tile)
        kept = {place: self.ctx.put(value) for place, value in self.tiles.items()}
        self.graph, self.at, self.made = cholesky(kept, count)

    def run(self) -> float:
        """Run the graph once, check the factor, and give the seconds that it took."""
        begin_s = monotonic_s()
        futures = self.graph.submit(self.ctx)
        self.ctx.driver.wait()
        took_s = monotonic_s() - begin_s
        count, tile = 1 + max(i for i, _ in self.tiles), len(self.tiles[0, 0])
        factor, whole = np.zeros((2, count * tile, count * tile))
        for (i, j), value in self.tiles.items():
            place = np.s_[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile]
            factor[place], whole[place] = futures[self.at[i, j]].result(), value
        assert np.allclose(np.tril(np.tril(factor) @ np.tril(factor).T), np.tril(whole)), "the factor is wrong"
        return took_s

    def plans_s(self, rounds: int) -> tuple[float, list[float]]:
        """Return the makespans of the plan by medians, and of those by what the tasks of the last runs really took."""
        self.ctx.flush_trace()
        devices, runs = [device.id for device in self.ctx.devices], runs_of(self.trace, len(self.made))
        usual = medians(runs, self.made, devices)
        by_median = plan_s([usual[name] for name, _ in self.made], self.made, devices)
        return by_median, [plan_s(really(run, self.made, usual, devices), self.made, devices) for run in runs[-rounds:]]


def main() -> None:
    """Run both policies in turn."""
    given = arguments(__doc__ or "")
    count, rounds = (4, 1) if given.quick else (TILES, ROUNDS)
    bench = Bench("graphs_live", "A tiled Cholesky live on two unlike devices, against its own plan", out=given.out)
    with tempfile.TemporaryDirectory() as folder:
        runners = {policy: Runner(policy, count, TILE, Path(folder)) for policy in ("planned", "eft")}
        took = alternate({policy: runner.run for policy, runner in runners.items()}, rounds, warm_up=WARM_UP)
        plans = {policy: runner.plans_s(rounds) for policy, runner in runners.items()}
        for runner in runners.values():
            runner.ctx.close()
    for policy, samples in took.items():
        bench.measure(policy, samples)
    live, (ours_s, really_s) = took["planned"], plans["planned"]
    bench.claim("live over its own plan", statistics.median(live) / ours_s, at_most=1.10)
    over = [run_s / best_s for run_s, best_s in zip(live, really_s, strict=True)]
    bench.claim("live over the plan of what its tasks really took", statistics.median(over))
    bench.claim("live", ratio(live, took["eft"]), rival="eft")
    bench.claim("eft live over a plan by its own times", statistics.median(took["eft"]) / plans["eft"][0])
    bench.note(devices=DEVICES, tiles=count, tile=TILE, tasks=len(runners["planned"].made), plan_s=ours_s)
    bench.finish()


if __name__ == "__main__":
    main()
