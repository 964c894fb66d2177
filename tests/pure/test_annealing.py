"""Annealing keeps the times of its schedule up to date move by move, and accepts what it may and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.plan.graph_bounds import least_tails
from hetero.plan.listing import timed_schedule
from hetero.plan.planners.base import planner
from hetero.plan.problem import Problem
from hetero.plan.search.annealing import Annealing
from hetero.plan.search.annealing_kernels import _picked, walk
from hetero.plan.search.walk_kernels import begin
from tests.pure.test_plan_graphs import random_problem


@pytest.fixture(params=[(40, 3), (90, 1), (120, 6)])
def annealing(request: pytest.FixtureRequest) -> Annealing:
    count, devices = request.param
    return begun(random_problem(count, devices, seed=11), "minmin")


def begun(p: Problem, name: str) -> Annealing:
    annealing = Annealing(p, least_tails(p))
    annealing.begin(planner(name)(p), 300, 0.1, 0.01)
    return annealing


def test_the_times_after_many_moves_are_those_of_the_order_timed_anew(annealing: Annealing) -> None:
    p, w = annealing.problem, annealing.walk
    rng = np.random.default_rng(3)
    for _ in range(15):
        annealing.batch(20, rng)
        timed = timed_schedule(p, w.order.copy(), w.device.copy())
        assert (timed.start_s == w.start_s).all()
        assert (timed.finish_s == w.finish_s).all()
        rest_s, before, after = w.rest_s.copy(), w.before.copy(), w.after.copy()
        assert begin(p, w) == timed.makespan_s
        assert (rest_s == w.rest_s).all()
        assert (before == w.before).all()
        assert (after == w.after).all()


def test_the_longest_path_through_each_task_ends_no_later_than_the_makespan(annealing: Annealing) -> None:
    w = annealing.walk
    annealing.batch(200, np.random.default_rng(4))
    through_s = w.finish_s + w.rest_s
    assert through_s.max() == pytest.approx(w.span_s[0], rel=1e-12)


def test_no_accepted_move_adds_more_than_its_slack_to_the_makespan_and_a_fifth_of_the_priced_work(
    annealing: Annealing,
) -> None:
    p, w = annealing.problem, annealing.walk
    draws = np.random.default_rng(5).random((400, 5))
    tasks = np.arange(len(p.order))
    for slack_s in (0.0, 0.5):
        for row in range(len(draws)):
            cost_s = w.span_s[0] + 0.2 * w.priced_s[tasks, w.device].sum()
            walk(p, w, draws[row : row + 1], np.array([slack_s]))
            assert w.span_s[0] + 0.2 * w.priced_s[tasks, w.device].sum() <= (cost_s + slack_s) * (1.0 + 1e-12)


def test_most_tasks_that_are_picked_are_critical_and_every_critical_one_can_be(annealing: Annealing) -> None:
    w = annealing.walk
    critical = np.flatnonzero(w.finish_s + w.rest_s >= w.span_s[0] * (1.0 - 1e-9))
    picked = [int(_picked(w, draw)) for draw in np.random.default_rng(8).random((2_000, 5))]
    assert np.isin(picked, critical).mean() > 0.7
    assert set(critical.tolist()) <= set(picked)


def test_two_tasks_on_different_devices_can_change_places() -> None:
    p = random_problem(12, 2, seed=1)
    annealing = begun(p, "heft")
    w = annealing.walk
    draws = np.random.default_rng(7).random((300, 5))
    draws[:, 2] = 0.99
    counts = np.bincount(w.device)
    devices = w.device.copy()
    assert walk(p, w, draws, np.full(300, 5.0)) > 0
    assert (np.bincount(w.device) == counts).all()
    assert (w.device != devices).any()


def test_a_task_is_never_put_before_what_it_depends_on(annealing: Annealing) -> None:
    p, w = annealing.problem, annealing.walk
    annealing.batch(300, np.random.default_rng(6))
    for task in range(len(p.order)):
        assert (w.place[p.pred[p.pred_first[task] : p.pred_first[task + 1]]] < w.place[task]).all()
