"""Data that travel ahead and replicas that leave by the plan: the same graphs with and without the plan's word."""

from __future__ import annotations

import math

import pytest

from hetero.core.replicas import Replicas
from hetero.drive.sim_values import SimResult
from hetero.graphs.planning import Budget, plan_graph
from hetero.graphs.simulation import guide_of, run_graph
from hetero.model.device import HOST_NODE
from hetero.model.graph import UNLIMITED_BYTES, GraphDevice, GraphEdge, GraphTask, TaskGraph
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.policies.planned import Planned

TILE = 1000
HOST, FIRST, SECOND = "ram", "v0", "v1"


class Silent(Planned):
    """The same policy, which does not tell the core what it means to do."""

    foresee = None  # type: ignore[assignment]


def fleet(capacity_bytes: int = UNLIMITED_BYTES) -> tuple[tuple[GraphDevice, ...], Topology]:
    nodes = (MemoryNode(HOST, UNLIMITED_BYTES), MemoryNode(FIRST, capacity_bytes), MemoryNode(SECOND, capacity_bytes))
    ends = ((HOST, FIRST), (FIRST, HOST), (HOST, SECOND), (SECOND, HOST))
    links = tuple(Link(src, dst, 0.001, 8.0 * TILE) for src, dst in ends)
    devices = (GraphDevice("cpu", HOST, "cpu"), GraphDevice("g0", FIRST, "cuda"), GraphDevice("g1", SECOND, "cuda"))
    return devices, Topology(nodes, links)


def cholesky(tiles: int, capacity_bytes: int) -> TaskGraph:
    """Return the tiled Cholesky over a CPU and two devices whose memories hold some of the tiles."""
    tasks: list[GraphTask] = []
    edges: dict[tuple[str, str], None] = {}
    last: dict[tuple[int, int], str] = {}

    def add(name: str, seconds: tuple[float, ...], reads: list[tuple[int, int]], writes: tuple[int, int]) -> None:
        tasks.append(GraphTask(name, seconds))
        edges.update(((last[tile], name), None) for tile in reads if tile in last)
        last[writes] = name

    for k in range(tiles):
        add(f"potrf{k}", (1.0, 1.0, 1.2), [(k, k)], (k, k))
        for i in range(k + 1, tiles):
            add(f"trsm{k}.{i}", (2.0, 0.5, 0.6), [(k, k), (i, k)], (i, k))
        for i in range(k + 1, tiles):
            for j in range(k + 1, i + 1):
                add(f"gemm{k}.{i}.{j}", (3.0, 0.4, 0.5), [(i, k), (j, k), (i, j)], (i, j))
    return TaskGraph(*fleet(capacity_bytes), tuple(tasks), tuple(GraphEdge(src, dst, TILE) for src, dst in edges))


def replicas(done: SimResult) -> Replicas:
    assert done.machine is not None
    return done.machine.replicas


def copies(done: SimResult) -> int:
    return sum(count for count, _ in replicas(done).moved.values())


@pytest.fixture(scope="module")
def tight() -> list[tuple[int, int, float, float]]:
    """Return copies and makespans, told and not told, of runs whose devices hold a third of the tiles or fewer."""
    found = []
    for capacity in (10, 20):
        graph = cholesky(8, capacity * TILE)
        guide = guide_of(graph, plan_graph(graph, "heft", Budget(iterations=1), transfer_model="free").schedule)
        for noise, seed in ((0.0, 0), (0.3, 0), (0.3, 1), (0.3, 2)):
            told = run_graph(graph, Planned(guide, ahead_s=0.0), noise=noise, seed=seed)
            alone = run_graph(graph, Silent(guide, ahead_s=0.0), noise=noise, seed=seed)
            found.append((copies(told), copies(alone), told.makespan_s, alone.makespan_s))
    return found


@pytest.mark.slow
def test_with_tight_memories_the_plan_copies_less_than_the_order_of_last_use(
    tight: list[tuple[int, int, float, float]],
) -> None:
    assert sum(told for told, *_ in tight) < sum(alone for _, alone, *_ in tight), tight


def test_with_tight_memories_runs_take_no_longer_when_the_plan_is_told(
    tight: list[tuple[int, int, float, float]],
) -> None:
    assert sum(told_s for _, _, told_s, _ in tight) <= sum(alone_s for *_, alone_s in tight), tight


def join(bytes_made: int, capacity_bytes: int = UNLIMITED_BYTES) -> TaskGraph:
    """Return a task that reads a result from elsewhere, and must wait for a longer one on its own device."""
    tasks = (
        GraphTask("near", (math.inf, 10.0, math.inf)),
        GraphTask("far", (math.inf, math.inf, 1.0)),
        GraphTask("both", (math.inf, 2.0, math.inf)),
    )
    edges = (GraphEdge("near", "both", TILE), GraphEdge("far", "both", bytes_made))
    return TaskGraph(*fleet(capacity_bytes), tasks, edges)


def test_inputs_are_there_when_the_device_of_the_next_task_becomes_free() -> None:
    graph = join(8 * TILE)
    assert run_graph(graph, Planned(ahead_s=0.0)).makespan_s == pytest.approx(12.0)
    assert run_graph(graph, Silent(ahead_s=0.0)).makespan_s > 13.0


def test_nothing_is_sent_ahead_to_where_it_has_no_room() -> None:
    """The task that runs has reserved its place; what travels too early would have to take it."""
    graph = join(8 * TILE, 9 * TILE)
    done = run_graph(graph, Planned(ahead_s=0.0))
    assert done.failures == {}
    assert replicas(done).peak[FIRST] <= 9 * TILE


def test_what_is_sent_ahead_is_sent_once() -> None:
    assert copies(run_graph(join(8 * TILE), Planned(ahead_s=0.0))) == copies(
        run_graph(join(8 * TILE), Silent(ahead_s=0.0))
    )


def test_what_could_not_be_copied_is_not_sent_ahead_again() -> None:
    replicas = Replicas(fleet(10 * TILE)[1])
    replicas.add(1, TILE, HOST_NODE, None)
    sent = replicas.fetch((1,), FIRST)
    assert sent is not None
    assert replicas.fetch((1,), FIRST) is None, "it is on its way"
    replicas.failed(sent.item, sent.src, sent.dst)
    assert replicas.fetch((1,), FIRST) is None
    assert replicas.fetch((1,), SECOND) is not None
    assert replicas.used[FIRST] == 0


def test_data_travel_ahead_however_far_times_stray() -> None:
    graph = cholesky(5, UNLIMITED_BYTES)
    told, silent = (
        sum(run_graph(graph, policy(ahead_s=0.0), noise=0.6, seed=seed).makespan_s for seed in range(10))
        for policy in (Planned, Silent)
    )
    assert told < 0.97 * silent
