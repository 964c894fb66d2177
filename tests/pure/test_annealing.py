"""Annealing keeps the times of its schedule up to date move by move, and accepts what it may and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.plan.graph_bounds import least_tails
from hetero.plan.listing import timed_schedule
from hetero.plan.planners.base import planner
from hetero.plan.search.annealing import Annealing
from hetero.plan.search.annealing_kernels import walk
from hetero.plan.search.walk_kernels import begin
from tests.pure.test_plan_graphs import random_problem


@pytest.fixture(params=[(40, 3), (90, 1), (120, 6)])
def annealing(request: pytest.FixtureRequest) -> Annealing:
    count, devices = request.param
    p = random_problem(count, devices, seed=11)
    return Annealing(p, least_tails(p), planner("minmin")(p))


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


def test_no_accepted_move_lengthens_the_schedule_by_more_than_its_slack(annealing: Annealing) -> None:
    p, w = annealing.problem, annealing.walk
    draws = np.random.default_rng(5).random((400, 5))
    for slack_s in (0.0, 0.5):
        for row in range(len(draws)):
            span_s = w.span_s[0]
            walk(p, w, draws[row : row + 1], np.array([slack_s]))
            assert w.span_s[0] <= (span_s + slack_s) * (1.0 + 1e-12)


def test_two_tasks_on_different_devices_can_change_places() -> None:
    p = random_problem(12, 2, seed=1)
    annealing = Annealing(p, least_tails(p), planner("heft")(p))
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
