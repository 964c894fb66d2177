"""How a device's speed is learned from its steps, and when a group shares its step anew."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

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
    replanned,
)
from hetero.train.share_planner import LearnedShares, SharePlanner, StepTimes, counts_of
from hetero.train.values import TrainOptions

PLAIN = StepModel(0.0, 1.0)
CPUS = ("cpu:0", "cpu:1")
NO_TALK = (0.0, 0.0, 0.0)


def seen(*ratios: float, model: StepModel = PLAIN) -> StepModel:
    """Return a model after steps that took so many times what was expected."""
    for ratio in ratios:
        model = model.observed(10, ratio * (model.fixed_s + model.per_sample_s * 10))
    return model


# --- what a device is known to take ------------------------------------------------------------------------------


def test_a_step_without_samples_takes_and_tells_nothing() -> None:
    model = StepModel(1.0, 1.0)
    assert model.seconds(0) == 0.0
    assert model.seconds(2) == 3.0
    assert model.observed(0, 5.0) is model


@pytest.mark.parametrize(("seconds", "samples"), [(0.4, 0), (0.99, 0), (1.5, 1), (2.0, 2), (2.49, 2), (9.0, 5)])
def test_a_device_does_whole_samples_within_some_seconds(seconds: float, samples: int) -> None:
    assert StepModel(1.0, 0.5, most=5).capacity(seconds) == samples
    assert StepModel(1.0, 0.5, factor=2.0, most=5).capacity(2 * seconds) == samples


def test_a_factor_is_the_median_of_seven_steps() -> None:
    assert seen(1.1).factor == 1.0, "one step says nothing"
    assert seen(1.1, 1.2).factor == pytest.approx(1.15)
    model = seen(1.1, 1.2, 1.0, 0.9, 1.05, 1.15, 0.95, 1.0, 1.0)
    assert len(model.recent) == 7
    assert model.factor == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("ratios", "window"),
    [
        ((1.0, 1.0, 1.0, 1.26, 1.26), 2),
        ((1.0, 1.0, 1.0, 1.24, 1.24), 5),
        ((1.0, 1.0, 1.0, 0.79, 0.79), 2),
        ((1.0, 1.0, 1.0, 0.81, 0.81), 5),
        ((1.0, 1.0, 1.0, 1.5, 0.5), 5),
        ((1.0, 1.0, 1.0, 1.1, 1.5), 5),
        ((1.0, 1.0, 1.0, 1.5, 1.1), 5),
        ((1.0, 2.0), 2),
        ((0.8, 1.2, 0.8, 1.2, 1.7, 1.7), 6),
        ((0.8, 1.2, 0.8, 1.2, 2.3, 2.3), 2),
        ((0.8, 1.2, 0.8, 1.2, 0.6, 0.6), 6),
        ((0.8, 1.2, 0.8, 1.2, 0.4, 0.4), 2),
        ((0.5, 1.26, 1.26), 2),
    ],
)
def test_two_steps_beyond_what_the_others_scatter_are_a_change_of_speed(ratios: Sequence[float], window: int) -> None:
    model = PLAIN
    for ratio in ratios[:-2]:
        model = StepModel(0.0, 1.0, (*model.recent, ratio))
    assert len(seen(*ratios[-2:], model=model).recent) == window


@pytest.mark.parametrize(("now", "changed"), [(1.24, False), (1.26, True), (0.81, False), (0.79, True), (1.0, False)])
@pytest.mark.parametrize("before", [1.0, 4.0])
def test_a_speed_has_changed_when_it_moved_by_a_quarter(now: float, changed: bool, before: float) -> None:
    assert StepModel(0.0, 1.0, factor=now * before).changed(StepModel(0.0, 1.0, factor=before)) == changed


@pytest.mark.parametrize(
    ("few_s", "many_s", "expected"),
    [
        (1.0, 1.0, StepModel(0.0, 0.1)),
        (2.0, 10.0, StepModel(0.0, 1.0)),
        (1.0, 10.0, StepModel(0.0, 1.0)),
        (3.0, 11.0, StepModel(1.0, 1.0)),
        (0.0, 0.0, StepModel(0.0, 1e-12)),
    ],
)
def test_two_points_give_a_line_that_time_can_have(few_s: float, many_s: float, expected: StepModel) -> None:
    assert fit_step(2, few_s, 10, many_s) == expected


# --- plans -------------------------------------------------------------------------------------------------------


def test_of_plans_that_take_as_long_the_one_with_fewer_devices_wins() -> None:
    assert make_plan([PLAIN, PLAIN], 2, (0.0, 0.0, 1.0)).shares == (2, 0)
    assert make_plan([PLAIN, PLAIN], 2, (0.0, 0.0, 0.99)).shares == (1, 1)


def test_a_plan_is_of_one_sample_at_least() -> None:
    assert make_plan([PLAIN], 1).shares == (1,)
    with pytest.raises(BadValueError, match="has no sample"):
        make_plan([PLAIN], 0)


def test_a_fixed_plan_takes_what_its_slowest_member_takes_and_the_exchange() -> None:
    plan = fixed_plan([PLAIN, PLAIN, PLAIN], (3, 0, 1), (0.0, 0.1, 0.2, 0.4))
    assert plan.step_s == pytest.approx(3.2)
    assert plan.reasons == ("", "its share is 0", "")
    assert plan.members == (0, 2)
    assert fixed_plan([PLAIN], (3,)).step_s == 3.0


def test_what_is_left_over_goes_to_the_largest_remainders() -> None:
    assert apportion([0.5, 0.3, 0.2], 4) == (2, 1, 1)
    assert apportion([2.6, 1.3, 0.1], 4) == (3, 1, 0)
    assert apportion([1.0, 2.0, 3.0], 6) == (1, 2, 3)
    assert apportion([0.1] * 10, 10) == (1,) * 10


@pytest.mark.parametrize("share", [True, 1.0, "1", -1, None])
def test_a_share_is_a_whole_number(share: object) -> None:
    with pytest.raises(BadValueError, match="a has"):
        given_shares({"a": share}, ["a"], 1)  # type: ignore[dict-item]


def test_a_table_names_the_devices_of_the_run_and_adds_up() -> None:
    assert given_shares({"a": 0, "b": 3}, ["a", "b"], 3) == (0, 3)
    with pytest.raises(BadValueError, match="no device of this run"):
        given_shares({"c": 3}, ["a", "b"], 3)
    with pytest.raises(BadValueError, match=r"1 \+ 1 is 2, and the global batch is 3"):
        given_shares({"a": 1, "b": 1}, ["a", "b"], 3)


def test_a_plan_is_looked_at_after_each_window_or_at_once_when_a_speed_jumped() -> None:
    plan = make_plan([PLAIN, PLAIN], 100)
    slower = [StepModel(0.0, 1.0, factor=1.2), PLAIN]
    jumped = [StepModel(0.0, 1.0, factor=1.3), PLAIN]
    found = [steps for steps in range(15) if replanned(plan, slower, 100, NO_TALK, steps) is not None]
    assert found == [7, 14]
    assert all(replanned(plan, jumped, 100, NO_TALK, steps) is not None for steps in range(15))


@pytest.mark.parametrize(("factor", "better"), [(1.05, False), (1.08, True)])
def test_a_plan_must_be_three_percent_faster(factor: float, better: bool) -> None:
    plan = make_plan([PLAIN, PLAIN], 1000)
    models = [StepModel(0.0, 1.0, factor=factor), PLAIN]
    assert (replanned(plan, models, 1000, steps=7) is not None) == better


@pytest.mark.parametrize(
    ("costs", "shares", "counts"),
    [
        ([1] * 6, [1, 1, 1], (2, 2, 2)),
        ([1] * 6, [1, 0, 2], (2, 0, 4)),
        ([1] * 6, [1, 2, 0], (2, 4, 0)),
        ([4, 1, 1], [1, 1], (1, 2)),
        ([2, 2, 2], [1, 1], (2, 1)),
        ([1, 3, 2], [1, 1], (2, 1)),
        ([1, 5, 2], [1, 1], (2, 1)),
        ([1, 7, 2], [1, 1], (2, 1)),
        ([1, 9, 1], [1, 4], (1, 2)),
    ],
)
def test_samples_are_cut_where_the_cost_is_nearest_its_aim(
    costs: Sequence[float], shares: Sequence[float], counts: Sequence[int]
) -> None:
    assert cut(costs, shares) == counts


# --- a group -----------------------------------------------------------------------------------------------------


def planner(
    team: Sequence[str] = ("cpu:0", "cpu:1"), models: Sequence[StepModel] = (PLAIN, PLAIN), batch: int = 12,
    comm_s: Sequence[float] = NO_TALK, costs: Sequence[float] | None = None, **options: object,
) -> SharePlanner:  # fmt: skip
    return SharePlanner(TrainOptions(batch, **options), team, models, comm_s, costs, CPUS)  # type: ignore[arg-type]


def steps(
    sharing: SharePlanner, count: int, factors: Sequence[float], waits: Sequence[float] = (0.0, 0.0)
) -> list[SharePlan | None]:
    """Make each member take so many times what the model said, step after step."""
    told = []
    for _ in range(count):
        ids = range(sharing.options.global_batch)
        counts = sharing.counts(ids)
        seconds = [factor * samples for factor, samples in zip(factors, counts, strict=True)]
        told.append(sharing.learn(seconds, waits, ids, counts))
    return told


@pytest.mark.parametrize(
    ("shares", "expected"),
    [("auto", (9, 3)), ("proportional", (9, 3)), ("equal", (6, 6)), ({"cpu:0": 4, "cpu:1": 8}, (4, 8)),
     ({"cpu:7": 12}, (6, 6)), ({"cpu:1": 12}, (0, 12))],
)  # fmt: skip
def test_the_first_plan_is_what_was_asked(shares: object, expected: tuple[int, int]) -> None:
    sharing = planner(models=(PLAIN, StepModel(0.0, 3.0)), shares=shares)
    assert sharing.plan.shares == sharing.counts(range(12)) == expected


def test_a_short_step_is_shared_as_a_whole_one() -> None:
    sharing = planner(shares={"cpu:0": 9, "cpu:1": 3})
    assert sharing.counts(range(4)) == (3, 1)
    assert sharing.counts(range(12)) == (9, 3)
    assert planner(shares="equal", batch=128, exact="bitwise").counts(range(9)) == (8, 1)


def test_only_shares_that_are_to_be_found_change() -> None:
    fixed = planner(shares="equal")
    assert steps(fixed, 9, (3.0, 1.0)) == [None] * 9
    assert fixed.models[0].factor == pytest.approx(3.0), "what a device takes is learned all the same"
    assert fixed.speeds() == {"cpu:0": pytest.approx(1 / 3), "cpu:1": pytest.approx(1.0)}
    told = steps(planner(), 9, (3.0, 1.0))
    assert [plan is not None for plan in told] == [False, True] + [False] * 7
    assert told[1] is not None
    assert told[1].shares == (3, 9)


def test_small_changes_are_taken_after_a_window() -> None:
    sharing = planner(batch=1200)
    told = steps(sharing, 8, (1.2, 1.0))
    assert [plan is not None for plan in told] == [False] * 6 + [True, False]
    assert sharing.plan is told[6]


def test_a_device_is_left_out_only_after_three_looks() -> None:
    sharing = planner(batch=12, comm_s=(0.0, 0.0, 2.0))
    told = steps(sharing, 6, (1.0, 40.0), (2.0, 2.0))
    assert [plan.shares if plan else None for plan in told] == [None, None, None, (12, 0), None, None]


def test_looks_that_came_to_nothing_are_forgotten_after_a_window() -> None:
    sharing = planner()
    sharing._looks = 2
    steps(sharing, 6, (1.0, 1.0))
    assert sharing._looks == 2
    steps(sharing, 1, (1.0, 1.0))
    assert sharing._looks == 0


def test_talk_costs_what_the_last_to_come_spends_in_the_exchange() -> None:
    sharing = planner(("cpu:0", "cpu:1", "cpu:2"), (PLAIN,) * 3, comm_s=(0.0,) * 4, shares="equal")
    for number in range(6):
        sharing.learn((4.0,) * 3, (5.0, 0.2 + number / 1000, 9.0), range(12), (4, 4, 4))
        assert sharing.comm_s == (0.0,) * 4, "a window first"
    sharing.learn((4.0,) * 3, (5.0, 0.2, 9.0), range(12), (4, 4, 4))
    assert sharing.comm_s == pytest.approx((0.0, 0.0, 0.101, 0.202))
    alone = planner(("cpu:0",), (PLAIN,), comm_s=(0.0, 0.0))
    for _ in range(8):
        alone.learn((12.0,), (0.5,), range(12), (12,))
    assert alone.comm_s == (0.0, 0.0)


def test_steps_of_unequal_samples_are_learned_by_their_cost() -> None:
    costs = [2.0] * 4 + [0.5] * 8
    sharing = planner(costs=costs, shares="equal")
    assert sharing.counts(range(12)) == (3, 9)
    sharing.learn((6.0, 6.0), (0.0, 0.0), range(12), (3, 9))
    assert [model.recent for model in sharing.models] == [(1.0,), (1.0,)]
    whole = planner(shares="equal", batch=128, exact="bitwise", costs=[1.0] * 128)
    assert whole.costs is None
    whole.learn((8.0, 16.0), (0.0, 0.0), range(128), (64, 64))
    unit = whole.options.unit
    assert [model.recent for model in whole.models] == [(unit / 8,), (unit / 4,)]
    assert whole.speeds() == {"cpu:0": float(unit), "cpu:1": float(unit)}


def accelerated(**more: object) -> SharePlanner:
    models = (PLAIN, StepModel(0.0, 0.25))
    return planner(("cpu:0", "cuda:0"), models, **more)  # type: ignore[arg-type]


def test_an_accelerator_goes_on_alone_where_cpus_slow_it_down() -> None:
    """It was measured alone while the CPUs were idle: 12 samples in 3 s."""
    sharing = accelerated()
    assert sharing.plan.shares == (2, 10)
    told = steps(sharing, 30, (1.0, 0.5))
    taken = [plan for plan in told if plan is not None]
    assert taken[-1].shares == (0, 12)
    assert taken[-1].step_s == 3.0
    assert taken[-1].reasons[1] == ""
    assert "the step of 12 takes" in taken[-1].reasons[0]
    assert "and cuda:0 took 3e+03 ms alone" in taken[-1].reasons[0]
    assert sharing.shares(("cpu:0", "cuda:0")) == {"cpu:0": 0, "cuda:0": 12}


def test_an_accelerator_shares_with_cpus_that_help() -> None:
    assert [plan for plan in steps(accelerated(), 15, (1.0, 0.25)) if plan is not None] == []


def test_where_nobody_but_accelerators_or_cpus_takes_part_nobody_goes_on_alone() -> None:
    assert planner(("cuda:0", "cuda:1"))._alone is None
    assert planner()._alone is None
    assert accelerated()._alone == (3.0, 1)
    short = planner(("cpu:0", "cuda:0"), (PLAIN, StepModel(0.0, 0.25, most=11)))
    assert short._alone is None
    exact = planner(("cpu:0", "cuda:0"), (PLAIN, StepModel(0.0, 0.25, most=12)))
    assert exact._alone == (3.0, 1)
    both = planner(("cuda:0", "cpu:0", "cuda:1"), (StepModel(0.0, 0.5), PLAIN, StepModel(0.0, 0.25)), comm_s=(0.0,) * 4)
    assert both._alone == (3.0, 2)


@pytest.mark.parametrize(("factor", "alone"), [(1.02, False), (1.04, True)])
def test_it_goes_on_alone_where_it_gains_three_percent(factor: float, alone: bool) -> None:
    sharing = accelerated()
    sharing._alone = (sharing.plan.step_s / factor, 1)
    sharing._steps = 7
    assert (sharing._plan_alone(sharing.plan) is not None) == alone
    sharing._steps = 8
    assert sharing._plan_alone(sharing.plan) is None, "a window of steps has to show it"
    sharing._steps = 0
    assert sharing._plan_alone(sharing.plan) is None
    only = fixed_plan(sharing.models, (0, 12))
    sharing._steps = 7
    assert sharing._plan_alone(only) is None, "it is alone already"
    without = fixed_plan(sharing.models, (12, 0))
    sharing._steps = 1
    assert sharing._plan_alone(without) is not None, "a plan that leaves it out is answered at once"


class Loop:
    """A user's loop of simulated devices: t = a + b n for each, and what an exchange and the rest of a step take."""

    def __init__(self, devices: list[tuple[float, float]], exchange_s: float, rest_s: float = 1e-4) -> None:
        self.devices, self.exchange_s, self.rest_s = devices, exchange_s, rest_s
        self.learned = LearnedShares(len(devices))
        self.shares: tuple[float, ...] = (1.0,) * len(devices)
        self.before: StepTimes | None = None
        self.spent_s = 0.0

    def step(self, batch: int = 96, *, may_leave: bool = True) -> tuple[int, ...]:
        counts = counts_of(self.shares, batch)
        busy = [a + b * n if n else 0.0 for (a, b), n in zip(self.devices, counts, strict=True)]
        others = sum(1 for n in counts if n) - 1
        better = self.learned.observed(counts, busy, self.before, may_leave=may_leave)
        step_s = max(busy) + others * self.exchange_s + self.rest_s
        self.before = StepTimes(counts, step_s, busy[0] + self.rest_s)
        self.spent_s += step_s
        if better is not None:
            self.shares = tuple(float(share) for share in better)
        return counts

    def run(self, steps: int) -> tuple[int, ...]:
        for _ in range(steps):
            counts = self.step()
        return counts


@pytest.mark.parametrize(
    ("devices", "exchange_s", "members"),
    [
        ([(0.0, 1e-5), (0.0, 3e-5)], 0.0, (0, 1)),
        ([(0.0, 1e-5), (0.0, 3e-5)], 1e-4, (0, 1)),  # 0.82 ms against 0.96 ms alone
        ([(0.0, 1e-5), (0.0, 3e-5)], 5e-4, (0,)),
        ([(0.0, 1e-5), (1e-3, 3e-5)], 0.0, (0,)),
        ([(0.0, 1e-5), (0.0, 1e-5), (2e-2, 1e-5)], 1e-5, (0, 1)),
        ([(0.0, 1e-5), (0.0, 1e-5), (0.0, 1e-5)], 1e-3, (0,)),
    ],
)
def test_who_costs_more_than_it_brings_is_left_out_within_fifty_steps(
    devices: list[tuple[float, float]], exchange_s: float, members: tuple[int, ...]
) -> None:
    loop = Loop(devices, exchange_s)
    assert tuple(rank for rank, count in enumerate(loop.run(50)) if count) == members
    if len(members) > 1:  # looking whether it pays costs some steps, of which there are ever fewer
        alone = Loop(devices[:1], 0.0)
        alone.run(1000)
        loop.spent_s = 0.0
        loop.run(1000)
        assert loop.spent_s < alone.spent_s


@pytest.mark.parametrize("busy", [range(17), range(10, 24), range(28, 45)])
@pytest.mark.parametrize("gone", [True, False])
def test_another_program_for_a_while_leaves_nobody_out_who_pays(busy: range, gone: bool) -> None:
    loop = Loop([(0.0, 1e-5), (0.0, 3e-5)], 5e-4 if gone else 1e-4)
    pays, exchange_s = list(loop.devices), loop.exchange_s
    for step in range(300):
        slow = 3.0 if step in busy else 1.0  # on the cores of both devices
        loop.devices, loop.exchange_s = [(a * slow, b * slow) for a, b in pays], exchange_s * slow
        counts = loop.step()
    assert (counts[1] == 0) == gone


def test_looking_whether_a_device_pays_costs_few_steps_where_it_clearly_does() -> None:
    loop = Loop([(0.0, 1e-5), (0.0, 3e-5)], 1e-4)
    counts = [loop.step() for _ in range(400)]
    alone = [step for step, each in enumerate(counts) if each == (95, 1)]
    assert 0 < len(alone) <= 18
    assert not set(alone) & set(range(24, 64))


@pytest.mark.parametrize(("exchange_s", "others", "members"), [(0.13, 1, 1), (0.11, 1, 2), (0.13, 2, 3)])
def test_an_exchange_longer_than_a_step_of_one_device_ends_it_within_a_dozen_steps(
    exchange_s: float, others: int, members: int
) -> None:
    """Of three, the two that are near each other may still pay, so those are tried."""
    loop = Loop([(0.0, 0.001)] * (1 + others), exchange_s)
    assert sum(1 for each in loop.run(12) if each) == members


def test_one_short_exchange_among_long_ones_leaves_nobody_out_early() -> None:
    loop = Loop([(0.0, 0.001)] * 2, 0.13)
    for step in range(12):
        loop.exchange_s = 0.01 if step % 4 == 3 else 0.13
        assert all(loop.step())


def test_nobody_is_left_out_while_a_loop_needs_all() -> None:
    loop = Loop([(0.0, 1e-5), (0.0, 3e-5)], 5e-4)
    for _ in range(60):
        assert all(loop.step(may_leave=False))
    assert loop.learned.alone_s is not None
    assert loop.learned.together_s is not None
    assert loop.learned.alone_s < loop.learned.together_s
    for _ in range(120):
        counts = loop.step()
    assert counts == (96, 0)


def test_the_last_batch_of_an_epoch_does_not_count() -> None:
    loop = Loop([(0.0, 1e-5), (0.0, 3e-5)], 1e-4)
    for number in range(300):
        counts = loop.step(96 if number % 5 else 1)
    assert all(counts)
