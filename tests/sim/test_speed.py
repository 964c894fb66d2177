"""How near to the sum of the devices' speeds, and never slower than the best of them."""

from __future__ import annotations

import pytest

from benchmarks.never_slower import AT_MOST, case, makespans
from hetero.drive.sim import Costs, Program, SimTask, simulate
from hetero.drive.sim_faults import Faults, Slowdown
from hetero.plan.policies.registry import names
from tests.sim.worlds import cpus, gpu, independent, joined, known, program, speeds, task

TASK_S = 0.02


def efficiency(count: int, makespan_s: float, *factors: float) -> float:
    return count * TASK_S / makespan_s / sum(factors)


@pytest.mark.parametrize(("learned", "least"), [(True, 0.97), (False, 0.92)])
def test_400_tasks_on_one_and_a_quarter_reach_the_sum_of_speeds(learned: bool, least: float) -> None:
    fleet = cpus(2)
    truth = speeds(fleet, TASK_S, 1.0, 0.25)
    done = simulate(program(independent(400)), fleet, truth, cost=known(fleet, truth) if learned else None)
    assert efficiency(400, done.makespan_s, 1.0, 0.25) >= least
    assert sum(done.finished.values()) == 400
    assert done.runs <= done.launches <= (400 if learned else 402)


@pytest.mark.parametrize("factors", [(1.0, 1.0), (1.0, 0.5, 0.1), (1.0, 0.9, 0.3, 0.05, 0.02)])
def test_other_fleets_reach_the_sum_of_speeds_too(factors: tuple[float, ...]) -> None:
    fleet = cpus(len(factors))
    truth = speeds(fleet, TASK_S, *factors)
    done = simulate(program(independent(800)), fleet, truth, cost=known(fleet, truth), costs=Costs(noise=0.05))
    assert efficiency(800, done.makespan_s, *factors) >= 0.94


def test_a_device_that_slows_down_threefold_is_believed_within_five_of_its_tasks() -> None:
    fleet = cpus(2)
    truth = speeds(fleet, TASK_S, 1.0, 1.0)
    slow_at_s = 1.0
    done = simulate(
        program(independent(600)),
        fleet,
        truth,
        cost=known(fleet, truth),
        faults=Faults(slowdowns=(Slowdown(slow_at_s, "h0/cpu:1", 3.0),)),
    )
    of_slow = [decision for decision in done.decisions if decision.device == "h0/cpu:1" and decision.at_s >= slow_at_s]
    after_s = of_slow[5].at_s
    rest = [task for task, at_s in done.commits.items() if at_s > after_s]
    assert len(rest) * TASK_S / (done.makespan_s - after_s) >= 0.90 * (1.0 + 1.0 / 3.0)


def test_a_useless_device_makes_nothing_slower() -> None:
    fleet = cpus(2)
    for count in (1, 3, 10, 47, 200):
        truth = speeds(fleet, TASK_S, 1.0, 0.02)
        both = simulate(program(independent(count)), fleet, truth, cost=known(fleet, truth))
        alone = simulate(program(independent(count)), fleet[:1], truth, cost=known(fleet[:1], truth))
        assert both.makespan_s <= 1.0001 * alone.makespan_s


def test_a_useless_device_costs_few_decisions() -> None:
    fleet = cpus(2)
    truth = speeds(fleet, TASK_S, 1.0, 0.02)
    done = simulate(program(independent(20)), fleet, truth, cost=known(fleet, truth))
    assert done.finished == {"h0/cpu:0": 20, "h0/cpu:1": 0}
    reasons = dict(done.machine.left_out())
    assert reasons["h0/cpu:1"] == "a task of f would take 1 s there against 20 ms on h0/cpu:0"


@pytest.mark.parametrize("bytes_per_s", [1e6, 1e8, 1e10])
def test_a_device_behind_a_link_makes_nothing_slower(bytes_per_s: float) -> None:
    fleet = [*cpus(1), gpu()]
    truth = speeds(fleet, TASK_S, 1.0, 2.0)
    items = [(1_000 + number, 1_000_000) for number in range(100)]
    work = Program([SimTask(task(number + 1, inputs=[item])) for number, (item, _) in enumerate(items)], items)
    links = joined(gpu(), bytes_per_s=bytes_per_s)
    both = simulate(work, fleet, truth, cost=known(fleet, truth), topology=links)
    alone = [simulate(work, [one], truth, cost=known([one], truth), topology=links).makespan_s for one in fleet]
    assert both.makespan_s <= 1.0001 * min(alone)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_are_not_slower_on_the_fleet_than_on_its_best_device(seed: int) -> None:
    whole_s, alone_s = makespans(case(seed))
    assert whole_s <= AT_MOST * min(alone_s.values())


def test_no_ops_travel_in_few_messages() -> None:
    fleet = cpus(2)
    truth = speeds(fleet, 1e-5, 1.0, 1.0)
    done = simulate(program(independent(10_000)), fleet, truth, cost=known(fleet, truth))
    assert done.launches == 10_000
    assert done.runs < 400
    assert efficiency(10_000, done.makespan_s * TASK_S / 1e-5, 1.0, 1.0) >= 0.95


@pytest.mark.parametrize("policy", names())
def test_every_policy_finishes(policy: str) -> None:
    fleet = [*cpus(3), gpu()]
    truth = speeds(fleet, TASK_S, 1.0, 0.5, 0.1, 4.0)
    done = simulate(program(independent(300)), fleet, truth, policy=policy, topology=joined(gpu(), bytes_per_s=1e9))
    assert len(done.commits) == 300
    assert sum(done.finished.values()) == 300
    assert done.launches < 310
