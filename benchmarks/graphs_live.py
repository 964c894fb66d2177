"""A tiled Cholesky run live on two devices of unlike speeds, one of them throttled: what it took over its own plan.

The plan is made from the kernels' measured times, once they are known; the factor is checked. The rival is the
default policy, which sees only the tasks that are ready.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
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

DEVICES = "cpu:1,cpu:1*0.5"
TILES, TILE = 8, 448
ROUNDS = 5
Tile = tuple[int, int]


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
    """Give the lower tiles of a matrix that can be factorised."""
    base = np.random.default_rng(0).standard_normal((tiles * tile, tiles * tile)) / tile
    whole = base @ base.T + 4.0 * np.eye(tiles * tile)
    return {
        (i, j): whole[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile].copy()
        for i in range(tiles)
        for j in range(i + 1)
    }


def cholesky(tiles: dict[Tile, Any], count: int) -> tuple[hetero.Graph, dict[Tile, Any], list[tuple[str, list[int]]]]:
    """Give the graph, the node of each tile of the factor, and each task's kernel with the tasks that it needs."""
    graph, at = hetero.Graph(), dict(tiles)
    made: list[tuple[str, list[int]]] = []
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


def planned_s(ctx: hetero.Context, trace: str, made: list[tuple[str, list[int]]]) -> float:
    """Plan the graph from the medians of what its kernels took, and give the plan's makespan, s."""
    took: dict[tuple[str, str], list[float]] = {}
    names = [name for name, _ in made]
    ctx.flush_trace()
    ids: list[int] = []
    for _, record in read_trace(trace):
        if isinstance(record, TaskFinished):
            ids.append(record.task)
    first = min(ids)
    for _, record in read_trace(trace):
        if isinstance(record, TaskFinished):
            name = names[(record.task - first) % len(names)]
            took.setdefault((name, record.device), []).append(record.seconds)
    devices = [device.id for device in ctx.devices]
    seconds = {name: tuple(statistics.median(took[name, device]) for device in devices) for name in set(names)}
    graph = TaskGraph(
        tuple(GraphDevice(device, "ram") for device in devices),
        Topology((MemoryNode("ram", 2**50),)),
        tuple(GraphTask(str(index), seconds[name]) for index, name in enumerate(names)),
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


def main() -> None:
    """Run both policies in turn."""
    given = arguments(__doc__ or "")
    count, rounds = (4, 1) if given.quick else (TILES, ROUNDS)
    bench = Bench("graphs_live", "A tiled Cholesky live on two unlike devices, against its own plan", out=given.out)
    with tempfile.TemporaryDirectory() as folder:
        runners = {policy: Runner(policy, count, TILE, Path(folder)) for policy in ("planned", "eft")}
        took = alternate({policy: runner.run for policy, runner in runners.items()}, rounds, warm_up=2)
        ours = runners["planned"]
        plan_s = planned_s(ours.ctx, ours.trace, ours.made)
        for runner in runners.values():
            runner.ctx.close()
    for policy, samples in took.items():
        bench.measure(policy, samples)
    bench.claim("live over its own plan", statistics.median(took["planned"]) / plan_s, at_most=1.10)
    bench.claim("live", ratio(took["planned"], took["eft"]), rival="eft")
    bench.note(devices=DEVICES, tiles=count, tile=TILE, tasks=len(ours.made), plan_s=plan_s)
    bench.finish()


if __name__ == "__main__":
    main()
