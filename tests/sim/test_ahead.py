"""Tasks that are sent ahead of their turn, and taken back where that turns out a mistake."""

from __future__ import annotations

from itertools import pairwise

from hetero.drive.sim import simulate
from hetero.drive.sim_faults import Faults, Slowdown
from tests.sim.worlds import cpus, independent, known, program, speeds

TASK_S = 0.02


def test_the_next_task_is_at_the_worker_before_the_one_that_runs_ends() -> None:
    fleet = cpus(2)
    truth = speeds(fleet, TASK_S, 1.0, 0.5)
    done = simulate(program(independent(100)), fleet, truth, cost=known(fleet, truth))
    for device in ("h0/cpu:0", "h0/cpu:1"):
        mine = [decision for decision in done.decisions if decision.device == device]
        ahead = [later.at_s < done.commits[task.task] for task, later in pairwise(mine)]
        assert sum(ahead) >= 0.8 * len(ahead)


def test_a_task_that_waits_behind_a_slowed_one_is_taken_back_by_an_idle_device() -> None:
    fleet = cpus(2)
    truth = speeds(fleet, TASK_S, 1.0, 1.0)
    stuck = Faults(slowdowns=(Slowdown(0.01, "h0/cpu:1", 30.0),))
    done = simulate(program(independent(8)), fleet, truth, cost=known(fleet, truth), faults=stuck)
    assert done.events["TaskWithdrawn"] >= 1
    on_slow = [decision.task for decision in done.decisions if decision.device == "h0/cpu:1"]
    back = [decision.task for decision in done.decisions if decision.device == "h0/cpu:0" and decision.task in on_slow]
    assert back
    assert len(done.commits) == 8


def test_a_long_task_is_not_sent_ahead() -> None:
    fleet = cpus(1)
    truth = speeds(fleet, 1.0, 1.0)
    done = simulate(program(independent(5)), fleet, truth, cost=known(fleet, truth))
    times_s = [decision.at_s for decision in done.decisions]
    assert all(later_s - sooner_s >= 0.99 for sooner_s, later_s in pairwise(times_s))
