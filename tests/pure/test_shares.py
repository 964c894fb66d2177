"""Shares are the best there are, whole, and change when it pays."""

from __future__ import annotations

import itertools
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import BadValueError
from hetero.plan.training.shares import (
    SharePlan,
    StepModel,
    apportion,
    cut,
    fit_step,
    fixed_plan,
    given_shares,
    make_plan,
    proportional_plan,
    replanned,
)
from hetero.train.share_planner import SharePlanner
from hetero.train.values import TrainOptions

seconds = st.floats(0.0, 5.0)
model = st.builds(StepModel, seconds, st.floats(0.01, 2.0), most=st.one_of(st.just(inf), st.integers(1, 12)))


def brute_force(models: list[StepModel], batch: int, comm_s: list[float]) -> float:
    """Try every share of every device."""
    best_s = inf
    for shares in itertools.product(range(batch + 1), repeat=len(models)):
        if sum(shares) == batch and all(share <= each.most for share, each in zip(shares, models, strict=True)):
            best_s = min(best_s, fixed_plan(models, shares, comm_s).step_s)
    return best_s


@settings(max_examples=150)
@given(st.lists(model, min_size=1, max_size=3), st.integers(1, 12), st.lists(seconds, min_size=2, max_size=2))
def test_no_share_of_whole_samples_is_faster(models: list[StepModel], batch: int, steps_s: list[float]) -> None:
    comm_s = [0.0, 0.0, *itertools.accumulate(steps_s)][: len(models) + 1]
    if sum(each.most for each in models) < batch:
        with pytest.raises(BadValueError, match="does not fit"):
            make_plan(models, batch, comm_s)
        return
    plan = make_plan(models, batch, comm_s)
    assert sum(plan.shares) == batch
    assert plan.step_s == pytest.approx(brute_force(models, batch, comm_s), abs=1e-9)
    assert plan.step_s == pytest.approx(fixed_plan(models, plan.shares, comm_s).step_s)


@given(st.lists(model, min_size=1, max_size=8), st.integers(1, 500), st.floats(0.0, 1.0))
def test_a_plan_is_never_slower_than_the_best_device_alone(models: list[StepModel], batch: int, one_s: float) -> None:
    if sum(each.most for each in models) < batch:
        return
    alone = [each.seconds(batch) for each in models if each.most >= batch]
    plan = make_plan(models, batch, [one_s * max(0, count - 1) for count in range(len(models) + 1)])
    assert not alone or plan.step_s <= min(alone) * (1 + 1e-9)
    assert all(share <= each.most for share, each in zip(plan.shares, models, strict=True))


@pytest.mark.parametrize(
    ("weights", "total", "shares"),
    [
        ([1.0, 1.0, 1.0], 10, (4, 3, 3)),
        ([1.0] * 4, 6, (2, 2, 1, 1)),
        ([2.0, 1.0, 1.0], 5, (3, 1, 1)),
        ([1.0, 2.0, 1.0], 6, (2, 3, 1)),
        ([0.0, 1.0, 1.0], 1, (0, 1, 0)),
    ],
)
def test_of_equal_remainders_the_first_is_rounded_up(weights: list[float], total: int, shares: tuple[int, ...]) -> None:
    assert apportion(weights, total) == shares


def test_devices_of_equal_speed_get_equal_shares() -> None:
    assert make_plan([StepModel(0.1, 0.01)] * 4, 128).shares == (32, 32, 32, 32)


def test_a_useless_device_is_left_out_with_the_reason() -> None:
    plan = make_plan([StepModel(0.001, 0.0001), StepModel(0.05, 0.005)], 128)
    assert plan.shares == (128, 0)
    assert plan.reasons[1] == "one sample would take it 55 ms, and the others do all 128 in 13.8 ms"


def test_a_device_whose_talk_costs_more_than_it_gains_is_left_out() -> None:
    plan = make_plan([StepModel(0.0, 0.001), StepModel(0.0, 0.02)], 100, [0.0, 0.0, 0.05])
    assert plan.shares == (100, 0)
    assert plan.reasons[1].startswith("with it, talking would cost more")


def test_a_plan_that_memory_forbids_is_not_made() -> None:
    assert make_plan([StepModel(0.0, 0.001, most=10), StepModel(0.0, 0.1)], 30).shares == (10, 20)


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6), st.integers(0, 1000))
def test_what_is_apportioned_adds_up_and_is_nowhere_off_by_one(weights: list[float], total: int) -> None:
    found = apportion(weights, total)
    assert sum(found) == total
    exact = [weight * total / sum(weights) for weight in weights]
    assert all(abs(share - due) < 1 + 1e-6 for share, due in zip(found, exact, strict=True))


def test_proportional_shares_leave_nobody_out() -> None:
    assert proportional_plan([StepModel(0.0, 0.001), StepModel(0.0, 0.05)], 51).shares == (50, 1)


@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=40), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_samples_of_different_cost_are_cut_near_their_aims(costs: list[float], shares: list[int]) -> None:
    if not sum(shares):
        return
    counts = cut(costs, shares)
    assert sum(counts) == len(costs)
    assert all(share or not count for share, count in zip(shares, counts, strict=True))
    ends = list(itertools.accumulate(counts))
    aims = [part * sum(costs) / sum(shares) for part in itertools.accumulate(shares)]
    for end, aim in zip(ends, aims, strict=True):
        assert abs(sum(costs[:end]) - aim) <= max(costs) + 1e-9


def settle(each: StepModel, samples: int, factor: float, steps: int) -> StepModel:
    for _ in range(steps):
        each = each.observed(samples, factor * (each.fixed_s + each.per_sample_s * samples))
    return each


def test_two_points_give_the_line_through_them() -> None:
    found = fit_step(8, 0.010, 64, 0.066)
    assert found.seconds(128) == pytest.approx(0.130)


def test_a_line_that_noise_made_impossible_counts_as_proportional() -> None:
    assert fit_step(8, 0.02, 64, 0.01) == StepModel(0.0, 0.01 / 64)


def test_a_speed_that_changes_three_times_is_believed_after_two_steps() -> None:
    each = settle(StepModel(0.0, 0.001), 100, 1.0, 7)
    assert settle(each, 100, 3.0, 1).factor == 1.0
    assert settle(each, 100, 3.0, 2).factor == pytest.approx(3.0)


def test_one_slow_step_changes_nothing() -> None:
    each = settle(settle(StepModel(0.0, 0.001), 100, 1.0, 7), 100, 10.0, 1)
    assert settle(each, 100, 1.0, 7).factor == pytest.approx(1.0)


def test_speeds_that_swap_are_shared_anew_on_the_third_step() -> None:
    models = [settle(StepModel(0.0, 0.001), 96, 1.0, 7), settle(StepModel(0.0, 0.003), 32, 1.0, 7)]
    plan = make_plan(models, 128)
    assert plan.shares == (96, 32)
    slow = [settle(models[0], 96, 3.0, 1), settle(models[1], 32, 1 / 3, 1)]
    assert replanned(plan, slow, 128, steps=1) is None
    slow = [settle(models[0], 96, 3.0, 2), settle(models[1], 32, 1 / 3, 2)]
    found = replanned(plan, slow, 128, steps=2)
    assert found is not None
    assert found.shares == (32, 96)


def test_a_gain_of_less_than_three_percent_changes_nothing() -> None:
    models = [StepModel(0.0, 0.001), StepModel(0.0, 0.001)]
    plan: SharePlan = make_plan(models, 128)
    faster = [settle(models[0], 64, 0.98, 7), settle(models[1], 64, 1.0, 7)]
    assert replanned(plan, faster, 128) is None
    faster = [settle(models[0], 64, 0.85, 7), settle(models[1], 64, 1.0, 7)]
    assert replanned(plan, faster, 128, steps=6) is None
    assert replanned(plan, faster, 128, steps=7) is not None


def test_a_table_of_shares_is_checked() -> None:
    with pytest.raises(BadValueError, match="give whole samples"):
        given_shares({"cpu:0": -1, "cpu:1": 9}, ["cpu:0", "cpu:1"], 8)
    assert given_shares({"cpu:1": 8}, ["cpu:0", "cpu:1"], 8) == (0, 8)


def test_samples_of_different_cost_are_shared_by_cost_and_not_by_count() -> None:
    lengths = [24] * 8 + [3] * 56
    costs = [length * 64 / sum(lengths) for length in lengths]
    models = [StepModel(0.0, 0.001), StepModel(0.0, 0.001)]
    sharing = SharePlanner(TrainOptions(64), ("cpu:0", "cpu:1"), models, [0.0, 0.0, 0.0], costs)
    assert sharing.counts(range(64)) == (8, 56)


def test_fixed_micro_batches_stay_whole() -> None:
    models = [StepModel(0.0, 0.001), StepModel(0.0, 0.002)]
    sharing = SharePlanner(TrainOptions(128, exact="bitwise"), ("cpu:0", "cpu:1"), models, [0.0, 0.0, 0.0])
    assert sharing.counts(range(128)) == (88, 40)
    assert sharing.counts(range(20)) == (16, 4)


def test_shares_of_a_device_that_is_gone_go_to_those_that_are_left() -> None:
    table = {"cpu:0": 60, "cpu:1": 30, "cpu:2": 10}
    sharing = SharePlanner(
        TrainOptions(100, shares=table), ("cpu:1", "cpu:2"), [StepModel(0.0, 0.001)] * 2, [0.0, 0.0, 0.0]
    )
    assert sharing.counts(range(100)) == (75, 25)
    assert sharing.shares(("cpu:0", "cpu:1", "cpu:2")) == {"cpu:0": 0, "cpu:1": 75, "cpu:2": 25}
