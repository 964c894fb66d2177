"""The policy that plans the whole open graph: in virtual time, with noise, losses and estimates that are wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.core.invariants import check
from hetero.drive.sim import Program, SimTask, simulate
from hetero.drive.sim_engine import Costs
from hetero.drive.sim_faults import Faults, Loss
from hetero.floor.errors import BadValueError
from hetero.graphs import simulation
from hetero.graphs.planning import Budget, PlannedGraph, plan_graph
from hetero.graphs.simulation import losses_of, run_graph, try_out
from hetero.model.device import Device, DeviceType
from hetero.model.graph import GraphDevice, GraphEdge, GraphTask, TaskGraph
from hetero.model.tasks import Request, Task
from hetero.model.topology import Link, MemoryNode, Topology
from hetero.plan.policies.base import Policy
from hetero.plan.replanning.lookahead import remaining_s


def shared_memory(devices: int) -> tuple[tuple[GraphDevice, ...], Topology]:
    made = tuple(GraphDevice(f"d{index}", "ram", "cpu") for index in range(devices))
    return made, Topology((MemoryNode("ram", 10**12),))


def two_memories() -> tuple[tuple[GraphDevice, ...], Topology]:
    links = (Link("ram", "vram", 0.01, 1e6), Link("vram", "ram", 0.01, 1e6))
    devices = (GraphDevice("cpu0", "ram", "cpu"), GraphDevice("gpu0", "vram", "cuda"))
    return devices, Topology((MemoryNode("ram", 10**12), MemoryNode("vram", 10**12)), links)


def layered(width: int, depth: int, seed: int, fleet: tuple[tuple[GraphDevice, ...], Topology]) -> TaskGraph:
    """Return layers of tasks, each of which needs two of the layer before."""
    random = np.random.default_rng(seed)
    tasks, edges = [], []
    for level in range(depth):
        for place in range(width):
            seconds = tuple(float(value) for value in random.uniform(0.5, 5.0, len(fleet[0])))
            tasks.append(GraphTask(f"t{level}.{place}", seconds))
            if level:
                for other in sorted({place, int(random.integers(width))}):
                    edges.append(GraphEdge(f"t{level - 1}.{other}", f"t{level}.{place}", 100_000))
    return TaskGraph(*fleet, tuple(tasks), tuple(edges))


@pytest.mark.parametrize("seed", range(3))
def test_without_noise_a_run_takes_no_longer_than_its_plan_where_nothing_travels(seed: int) -> None:
    graph = layered(5, 5, seed, shared_memory(3))
    plan = plan_graph(graph, "search", Budget(iterations=6)).schedule
    # A run keeps the plan's order, not its idle gaps: an urgent task may take a device a moment before the planned one.
    assert run_graph(graph, guide=plan).makespan_s <= plan.makespan_s * (1 + 2e-3)


def test_a_task_that_is_urgent_goes_before_those_that_were_handed_in_first() -> None:
    """A chain of ten and ten loose tasks on two devices: by age the loose ones would go first."""
    loose = [GraphTask(f"loose{index}", (1.0, 1.0)) for index in range(10)]
    chain = [GraphTask(f"chain{index}", (1.0, 1.0)) for index in range(10)]
    edges = tuple(GraphEdge(f"chain{index}", f"chain{index + 1}", 0) for index in range(9))
    graph = TaskGraph(*shared_memory(2), (*loose, *chain), edges)
    assert run_graph(graph, "planned").makespan_s == pytest.approx(10.0)
    assert run_graph(graph, "eft").makespan_s > 12.0


def test_a_task_that_a_memory_cannot_hold_runs_elsewhere_unless_memory_has_no_end() -> None:
    devices, topology = two_memories()
    small = replace(topology, nodes=(MemoryNode("ram", 10**12), MemoryNode("vram", 1500)), _by_pair={})
    tasks = (GraphTask("a", (10.0, 1.0)), GraphTask("b", (10.0, 1.0)))
    graph = TaskGraph(devices, small, tasks, (GraphEdge("a", "b", 1600),))
    assert run_graph(graph).makespan_s == pytest.approx(20.0)
    assert run_graph(graph, contention=False).makespan_s == pytest.approx(2.0)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    graph = layered(4, 4, 1, two_memories())
    runs = [run_graph(graph, noise=0.3, seed=seed).decisions for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_device_that_is_lost_costs_its_results_and_no_task() -> None:
    graph = layered(4, 6, 2, two_memories())
    whole = run_graph(graph)
    half = Faults(losses=(Loss(0.5 * whole.makespan_s, "h0/gpu0"),))
    broken = run_graph(graph, faults=half)
    assert len(broken.commits) == len(graph.tasks)
    assert not broken.failures
    assert broken.makespan_s > whole.makespan_s
    assert broken.machine is not None
    check(broken.machine)


def test_a_graph_is_planned_only_for_the_policy_that_follows_a_plan_or_where_iterations_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices, topology = two_memories()
    graph = TaskGraph(devices, topology, (GraphTask("a", (2.0, 1.0)), GraphTask("b", (1.0, 1.0))), ())
    asked: list[int | None] = []

    def counted(graph: TaskGraph, policy: str, budget: Budget, *args: Any, **more: Any) -> PlannedGraph:
        asked.append(budget.iterations)
        return plan_graph(graph, "heft", budget, *args, **more)

    monkeypatch.setattr(simulation, "plan_graph", counted)
    alone = try_out(graph, "eft")
    assert (alone.plan, asked) == (None, [])
    assert alone.as_dict()["planned"] == {"makespan_s": None, "lower_bound_s": None}
    assert alone.median_s == 1.0
    assert try_out(graph, "eft", iterations=3).plan is not None
    assert try_out(graph).plan is not None
    assert asked == [3, 20]
    with pytest.raises(BadValueError, match="'fre' is not a model of transfers; did you mean 'free'"):
        try_out(graph, "eft", transfer_model="fre")


def test_tasks_that_only_the_lost_device_could_run_fail_with_the_reason() -> None:
    devices, topology = two_memories()
    tasks = (GraphTask("a", (math.inf, 1.0)), GraphTask("b", (1.0, 1.0)))
    graph = TaskGraph(devices, topology, tasks, (GraphEdge("a", "b", 0),))
    trials = try_out(graph, losses=losses_of(graph, ["gpu0@0.5s"]), iterations=1)
    assert "lost" in trials.failed["a"]
    assert set(trials.failed) == {"a", "b"}


def test_a_task_that_is_hours_late_holds_up_its_device_alone() -> None:
    """One device turns out a thousand times slower: what was planned there goes to the other one."""
    graph = TaskGraph(*shared_memory(2), tuple(GraphTask(f"t{index}", (1.0, 1.0)) for index in range(20)), ())
    plan = plan_graph(graph, "heft").schedule
    devices = [Device(f"h0/cpu:{index}", "cpu", DeviceType("CPU"), "cpu", name=str(index)) for index in range(2)]
    tasks = [SimTask(Task(index, "f", "f|", 0.0, (), (), Request())) for index in range(1, 21)]
    slow = simulate(
        Program(tasks, together=True), devices, lambda _, device: 1000.0 if device.index else 1.0, policy="planned"
    )
    assert plan.makespan_s == pytest.approx(10.0)
    assert slow.finished["h0/cpu:0"] + slow.finished["h0/cpu:1"] == 20
    assert slow.makespan_s <= 2001.0


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 99), st.sampled_from([0.0, 0.3, 1.0]), st.booleans())
def test_every_graph_ends_under_any_noise(width: int, depth: int, seed: int, noise: float, own: bool) -> None:
    graph = layered(width, depth, seed, two_memories() if own else shared_memory(2))
    found = run_graph(graph, noise=noise, seed=seed)
    assert len(found.commits) == len(graph.tasks)


@pytest.mark.slow
def test_slots_of_tasks_that_are_over_are_given_up() -> None:
    """Nine thousand short tasks, each of which needs the one before the last."""
    devices = [Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu")]
    tasks = (
        SimTask(Task(index, "f", "f|", 0.0, (), (index - 2,) if index > 2 else (), Request()), 2.0 * index)
        for index in range(1, 9001)
    )
    found = simulate(
        Program(tasks), devices, lambda task, device: 1.0, policy="planned", costs=Costs(), check_every=1 << 30
    )
    assert len(found.commits) == 9000
    assert found.machine is not None
    assert found.machine.placer.lookahead is not None
    assert len(found.machine.placer.lookahead.ahead().ids) < 5000


@pytest.mark.parametrize("error", [0.05, 0.3, 1.0])
def test_the_later_a_task_is_the_later_it_is_expected(error: float) -> None:
    left = [remaining_s(1.0, elapsed, error) for elapsed in (0.0, 0.5, 1.5, 3.0, 6.0, 50.0)]
    assert all(value >= 0.0 and math.isfinite(value) for value in left)
    assert left[3] < left[4] < left[5]


def mean_s(graph: TaskGraph, policy: str | Policy, noise: float, draws: int) -> float:
    runs = (run_graph(graph, policy, noise=noise, seed=seed).makespan_s for seed in range(draws))
    return sum(runs) / draws


def test_when_times_stray_the_longest_task_is_not_begun_on_the_slowest_device() -> None:
    """By its estimates alone such a plan is the shortest, and it ends when that one task does."""
    long_s = (9.2, 9.0, 8.4, 7.1, 6.5, 6.2, 5.4, 4.5, 4.2, 4.0)
    tasks = tuple(GraphTask(f"t{index}", (value, value / 1.5, value / 2.5)) for index, value in enumerate(long_s))
    graph = TaskGraph(*shared_memory(3), tasks, ())
    plan = plan_graph(graph, "search", Budget(iterations=30)).schedule
    runs = [run_graph(graph, "planned", guide=plan, noise=0.6, seed=seed) for seed in range(12)]
    assert sum(run.makespan_s for run in runs) / 12 <= 1.05 * mean_s(graph, "eft", 0.6, 12)


def test_how_far_times_stray_is_known_after_a_dozen_tasks() -> None:
    graph = layered(3, 6, 1, shared_memory(3))
    for noise, low, high in ((0.0, 0.0, 0.1), (0.6, 0.35, 0.85)):
        done = run_graph(graph, noise=noise, seed=1)
        assert done.machine is not None
        assert done.machine.placer.lookahead is not None
        assert low <= done.machine.placer.lookahead.error <= high
