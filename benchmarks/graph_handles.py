"""A tiled Cholesky by data handles on two cores: from the matrix in the program to the factor in the program.

The rivals get the same tiles and kernels: Dask distributed by chained futures on two workers, NumPy tile by tile in one
thread, and NumPy's factorisation of the whole matrix with as many threads as it likes. Each factor is checked.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hetero
from benchmarks.common import Bench, alternate, arguments, ratio
from benchmarks.graphs_live import Tile, matrix, potrf, trsm, update
from benchmarks.rivals import dask_client
from hetero.floor.clock import monotonic_s

TILES, TILE = 8, 448
ROUNDS = 9
WARM_UP = 2


def subtract(a: Any, left: Any, right: Any) -> Any:
    """Subtract a product from a tile, in place."""
    a -= left @ right.T
    return a


def cholesky(count: int, change: Callable[..., None], product: Callable[..., Any]) -> None:
    """Call `change(kernel, tile that it changes, *tiles that it reads)` for each task, in order."""
    for k in range(count):
        change(potrf, (k, k))
        for i in range(k + 1, count):
            change(trsm, (i, k), (k, k))
        for i in range(k + 1, count):
            for j in range(k + 1, i + 1):
                change(product, (i, j), (i, k), (j, k))


def by_handles(ctx: hetero.Context, tiles: dict[Tile, Any], count: int) -> dict[Tile, Any]:
    """Factorise by handles, in place."""
    graph = hetero.graphs.Graph()
    data = {at: graph.data(tile) for at, tile in tiles.items()}

    def change(kernel: Any, at: Tile, *reads: Tile) -> None:
        graph.add(kernel, data[at].readwrite, *(data[read].read for read in reads))

    cholesky(count, change, subtract)
    graph.run(ctx)
    return {at: handle.result() for at, handle in data.items()}


def by_futures(submit: Callable[..., Any], tiles: dict[Tile, Any], count: int) -> dict[Tile, Any]:
    """Factorise by a chain of futures for each tile; returns those of the factor."""
    at_last = dict(tiles)

    def change(kernel: Any, at: Tile, *reads: Tile) -> None:
        at_last[at] = submit(kernel, at_last[at], *(at_last[read] for read in reads))

    cholesky(count, change, update)
    return at_last


def by_dask(client: Any, tiles: dict[Tile, Any], count: int) -> dict[Tile, Any]:
    """Factorise with Dask distributed; the tiles are scattered first."""
    spread = dict(zip(tiles, client.scatter(list(tiles.values()), hash=False), strict=True))
    made = by_futures(partial(client.submit, pure=False), spread, count)
    return dict(zip(made, client.gather(list(made.values())), strict=True))


def by_numpy(tiles: dict[Tile, Any], count: int) -> dict[Tile, Any]:
    """Factorise in this thread."""
    with threadpoolctl.threadpool_limits(1):
        return by_futures(lambda kernel, *args: kernel(*args), tiles, count)


def whole(lower: dict[Tile, Any], count: int) -> Any:
    """Return the lower tiles as one matrix."""
    if len(lower) == 1:
        return lower[0, 0]
    size = len(lower[0, 0])
    found = np.zeros((count * size, count * size))
    for (i, j), tile in lower.items():
        found[i * size : (i + 1) * size, j * size : (j + 1) * size] = tile
    return np.tril(found)


def main() -> None:
    """Run the contestants in turn."""
    given = arguments(__doc__ or "")
    count, tile, rounds = (4, 128, 1) if given.quick else (TILES, TILE, ROUNDS)
    bench = Bench("graph_handles", "A tiled Cholesky by data handles on two cores", ("distributed",), given.out)
    tiles = matrix(count, tile)
    lower = whole(tiles, count)
    full = lower + np.tril(lower, -1).T
    right = np.linalg.cholesky(full)

    def seconds(factorise: Callable[[], dict[Tile, Any]]) -> float:
        begin_s = monotonic_s()
        made = factorise()
        took_s = monotonic_s() - begin_s
        assert np.allclose(whole(made, count), right), "the factor is wrong"
        return took_s

    with hetero.Context(devices="2xcpu", history=False) as ctx, dask_client() as client:
        runs: dict[str, Callable[[], float]] = {
            "hetero, handles": partial(seconds, partial(by_handles, ctx, tiles, count)),
            "Dask distributed": partial(seconds, partial(by_dask, client, tiles, count)),
            "NumPy, tiles in one thread": partial(seconds, partial(by_numpy, tiles, count)),
            "NumPy, whole matrix": lambda: seconds(lambda: {(0, 0): np.linalg.cholesky(full)}),
        }
        took = alternate(runs, rounds, warm_up=WARM_UP)
    for name, samples in took.items():
        bench.measure(name, samples)
    for name in list(took)[1:]:
        bench.claim("hetero, handles", ratio(took["hetero, handles"], took[name]), rival=name)
    per_task = statistics.median(took["hetero, handles"]) / (count * (count + 1) * (count + 2) // 6)
    bench.note(tiles=count, tile=tile, seconds_per_task=round(per_task, 5))
    bench.finish()


if __name__ == "__main__":
    main()
