"""A tiled Cholesky run live on two devices of unlike speeds, one of them throttled: what it took over its own plan.

The plan is made from the kernels' measured times, once they are known; the factor is checked. The rival is the
default policy, which sees only the tasks that are ready.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, arguments
from hetero.drive.trace_read import read_trace
from hetero.floor.clock import monotonic_s
from hetero.graphs.planning import Budget, plan_graph
from hetero.model.events import TaskFinished
from hetero.model.graph import GraphDevice, GraphEdge, GraphTask, TaskGraph
from hetero.model.topology import MemoryNode, Topology

DEVICES = "cpu:1,cpu:1*0.5"
TILES, TILE = 8, 384
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


def run(policy: str, count: int, tile: int, rounds: int, folder: Path) -> tuple[list[float], list[float]]:
    """Run the factorisation some times; gives seconds, and those of the plan from what was measured by then."""
    trace = str(folder / f"{policy}.trace.jsonl.gz")
    took, plans = [], []
    tiles = matrix(count, tile)
    with hetero.Context(devices=DEVICES, policy=policy, trace=trace, history=False) as ctx:
        kept = {place: ctx.put(value) for place, value in tiles.items()}
        graph, at, made = cholesky(kept, count)
        for turn in range(2 + rounds):
            begin_s = monotonic_s()
            futures = graph.submit(ctx)
            ctx.driver.wait()
            if turn >= 2:
                took.append(monotonic_s() - begin_s)
        lower = np.block([
            [futures[at[i, j]].result() if j <= i else np.zeros((tile, tile)) for j in range(count)]
            for i in range(count)
        ])  # fmt: skip
        whole = np.tril(np.block([[tiles[max(i, j), min(i, j)] for j in range(count)] for i in range(count)]))
        assert np.allclose(np.tril(lower @ lower.T), whole), "the factor is wrong"
        plans.append(planned_s(ctx, trace, made))
    return took, plans


def main() -> None:
    """Run both policies."""
    import tempfile

    given = arguments(__doc__ or "")
    count, rounds = (4, 1) if given.quick else (TILES, ROUNDS)
    bench = Bench("graphs_live", "A tiled Cholesky live on two unlike devices, against its own plan", out=given.out)
    with tempfile.TemporaryDirectory() as folder:
        ours, plans = run("planned", count, TILE, rounds, Path(folder))
        theirs, _ = run("eft", count, TILE, rounds, Path(folder))
    bench.measure("planned", ours)
    bench.measure("eft", theirs)
    bench.claim("live over its own plan", statistics.median(ours) / plans[0], at_most=1.10)
    bench.claim("live", statistics.median(ours) / statistics.median(theirs), rival="eft")
    bench.note(devices=DEVICES, tiles=count, tile=TILE, tasks=count * (count + 1) * (count + 2) // 6, plan_s=plans[0])
    bench.finish()


if __name__ == "__main__":
    main()
