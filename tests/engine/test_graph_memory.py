"""Graphs on real workers whose devices have small memories of their own, behind emulated links."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero

TILE = 1_000_000
"""Numbers of one result: 8 MB; all of a graph's are 200 MB, and the devices hold 96 MB each."""

OWN = {"type": "cpu", "cores": 1, "memory_limit": "96MB", "link": {"bandwidth": "2GB/s"}}


@pytest.fixture
def ctx() -> Iterator[hetero.Context]:
    """Yield a Context that has seen no times yet: data travel ahead only while times keep to their estimates."""
    devices = {"devices": [OWN, {**OWN, "link": {"bandwidth": "1GB/s"}}]}
    with hetero.Context(devices, policy="planned", history=False) as made:
        yield made


def added(name: str, *parts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return as many ones as there are paths from the first tasks."""
    total = np.ones(TILE) if not parts else np.zeros(TILE)
    for part in parts:
        total += part
    return total


def grid(side: int) -> dict[str, Any]:
    """Return a square of tasks, each of which reads the one above and the one to its left."""
    names = [(row, column) for row in range(side) for column in range(side)]
    edges = [
        {"src": f"t{src[0]}.{src[1]}", "dst": f"t{row}.{column}", "bytes": 8 * TILE}
        for row, column in names
        for src in ((row - 1, column), (row, column - 1))
        if src in names
    ]
    return {
        "format": "hetero-graph/1",
        "devices": [{"id": "d", "memory_node": "m"}],
        "memory_nodes": [{"id": "m"}],
        "links": [],
        "tasks": [{"id": f"t{row}.{column}", "seconds": {"d": 1.0}} for row, column in names],
        "edges": edges,
    }


def test_a_graph_from_a_file_runs_within_memories_that_hold_a_few_of_its_results(
    ctx: hetero.Context, tmp_path: Path
) -> None:
    (tmp_path / "g.json").write_text(json.dumps(grid(5)))
    graph = hetero.graphs.Graph.from_file(tmp_path / "g.json", added)
    (last,) = graph.run(ctx)
    assert last[0] == last[-1] == 70.0
    replicas = ctx.driver.ask(lambda core: core).replicas
    own = [node for node in replicas.peak if node.endswith(".mem")]
    assert len(own) == 2
    assert all(replicas.peak[node] <= replicas.capacity(node) < 25 * 8 * TILE for node in own)
    assert any(replicas.peak[node] > 0 for node in own)


def waits_for(path: str) -> np.ndarray[Any, Any]:
    end = time.monotonic() + 100.0
    while not Path(path).exists():
        assert time.monotonic() < end, "what the next task reads did not travel ahead"
        time.sleep(0.01)
    return np.ones(TILE)


def test_what_the_next_task_reads_travels_while_its_device_is_busy(ctx: hetero.Context, tmp_path: Path) -> None:
    mark = tmp_path / "arrived"
    graph = hetero.graphs.Graph()
    near = graph.add(hetero.task(waits_for, on="cpu:0"), str(mark))
    far = graph.add(hetero.task(added, on="cpu:1"), "far")
    graph.add(hetero.task(added, on="cpu:0"), "both", near, far)
    replicas = ctx.driver.ask(lambda core: core).replicas
    before = replicas.settled
    futures = graph.submit(ctx)
    end = time.monotonic() + 90.0
    while replicas.settled == before and time.monotonic() < end:
        time.sleep(0.01)
    ahead = replicas.settled - before
    mark.touch()
    assert [float(futures[node].result(100)[0]) for node in graph.last] == [2.0]
    assert ahead == 1
