"""Annealing keeps the times of its schedule up to date move by move, and accepts what it may and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.plan.bounds.graph import least_tails
from hetero.plan.compiled import njit
from hetero.plan.graph_search.annealing import Annealing
from hetero.plan.graph_search.annealing_kernels import walk
from hetero.plan.graph_search.walk_kernels import AT, HEADS, NOW, TAILS, Walk, begin, settle
from hetero.plan.planners.heuristics import planner
from hetero.plan.planners.list_scheduling import timed_schedule
from hetero.plan.problem import Problem
from tests.pure.test_plan_graphs import random_problem


@pytest.fixture(params=[(40, 3), (90, 1), (120, 6)])
def annealing(request: pytest.FixtureRequest) -> Annealing:
    count, devices = request.param
    return begun(random_problem(count, devices, seed=11), "minmin")


def begun(p: Problem, name: str) -> Annealing:
    annealing = Annealing(p, least_tails(p))
    annealing.begin(planner(name)(p), 300, 0.1, 0.01)
    return annealing


def test_the_times_that_are_held_to_be_right_are_those_of_the_order_timed_anew(annealing: Annealing) -> None:
    p, w = annealing.problem, annealing.walk
    rng = np.random.default_rng(3)
    for _ in range(15):
        annealing.batch(17, rng)
        at, heads, tails = w.state[AT], w.state[HEADS], w.state[TAILS]
        timed = timed_schedule(p, w.order.copy(), w.device.copy())
        ahead, behind = w.order[: heads + 1], w.order[tails:].copy()
        assert (timed.finish_s[ahead] == w.finish_s[ahead]).all()
        assert (w.node == p.node[w.device]).all()
        assert (w.seconds == p.seconds[np.arange(len(p.order)), w.device]).all()
        rest_s, before, after = w.rest_s.copy(), w.before.copy(), w.after.copy()
        assert begin(p, w) == timed.makespan_s
        assert (rest_s[behind] == w.rest_s[behind]).all()
        assert (before == w.before).all()
        assert (after == w.after).all()
        w.state[AT] = at


def test_the_longest_path_through_each_task_ends_no_later_than_the_makespan(annealing: Annealing) -> None:
    p, w = annealing.problem, annealing.walk
    annealing.batch(200, np.random.default_rng(4))
    makespan_s = begin(p, w)
    assert (w.finish_s + w.rest_s).max() == pytest.approx(makespan_s, rel=1e-12)


@njit
def _settle(p: Problem, w: Walk, forward: bool) -> None:
    settle(p, w, forward)  # which compiled functions alone can call


@pytest.mark.slow
def test_the_makespan_is_certain_at_both_ends_of_the_order_and_the_best_is_kept(annealing: Annealing) -> None:
    p, w = annealing.problem, annealing.walk
    rng = np.random.default_rng(9)
    for end in (True, False, True, False):
        annealing.batch(30, rng)
        _settle(p, w, end)
        timed = timed_schedule(p, w.order.copy(), w.device.copy())
        assert w.span_s[NOW] == pytest.approx(timed.makespan_s, rel=1e-12)
        assert annealing.makespan_s == annealing.best().makespan_s <= timed.makespan_s * (1.0 + 1e-12)


def test_no_move_adds_more_than_its_slack_to_what_the_makespan_is_held_to_be_and_a_fifth_of_the_priced_work(
    annealing: Annealing,
) -> None:
    p, w = annealing.problem, annealing.walk
    draws = np.random.default_rng(5).random((400, 4))
    tasks = np.arange(len(p.order))
    makespan_s = w.span_s[NOW]
    for slack_s in (0.0, 0.5):
        for row in range(len(draws)):
            cost_s = max(w.span_s[NOW], makespan_s) + 0.2 * w.priced_s[tasks, w.device].sum()
            walk(p, w, draws[row : row + 1], np.array([slack_s]))
            makespan_s = timed_schedule(p, w.order.copy(), w.device.copy()).makespan_s
            assert makespan_s + 0.2 * w.priced_s[tasks, w.device].sum() <= (cost_s + slack_s) * (1.0 + 1e-12)


def test_every_critical_task_is_tried_and_of_the_others_few(annealing: Annealing) -> None:
    p, w = annealing.problem, annealing.walk
    critical = np.flatnonzero(w.finish_s + w.rest_s >= w.span_s[NOW] * (1.0 - 1e-9))
    tried = []
    for draw in np.random.default_rng(8).random((2_000, 4)):
        walk(p, w, draw[np.newaxis], np.array([-np.inf]))
        tried.append(int(w.order[w.state[AT]]))
    assert set(critical.tolist()) <= set(tried)
    passed = len(critical) + 0.1 * (len(p.order) - len(critical))
    assert np.isin(tried, critical).mean() == pytest.approx(len(critical) / passed, abs=0.2)


def test_two_tasks_on_different_devices_can_change_places() -> None:
    p = random_problem(12, 2, seed=1)
    annealing = begun(p, "heft")
    w = annealing.walk
    draws = np.random.default_rng(7).random((300, 4))
    draws[:, 1] = 0.99
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
