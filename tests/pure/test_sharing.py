"""A group shares its steps by what they took, and is never slower than its best device for long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.plan.training.shares import StepModel
from hetero.train.share_planner import SharePlanner
from hetero.train.values import TrainOptions

BATCH = 64
CPUS = ("cpu:0", "torch-cpu:0")
IDS = range(BATCH)

law = st.builds(StepModel, st.floats(0.0, 0.05), st.floats(0.0002, 0.02))
change = st.floats(0.2, 5.0)


def truth(known: Sequence[StepModel], changes: Sequence[float]) -> list[StepModel]:
    """Return laws that are as the known ones up to a factor each."""
    return [StepModel(each.fixed_s * by, each.per_sample_s * by) for each, by in zip(known, changes, strict=True)]


def step(sharing: SharePlanner, laws: Sequence[StepModel], talk_s: float) -> float:
    """Do one step under true laws, let the group learn from it, and give its seconds."""
    counts = sharing.counts(IDS)
    busy = [each.seconds(count) for each, count in zip(laws, counts, strict=True)]
    exchange_s = talk_s * (len(laws) - 1)
    waits = [max(busy) - own + exchange_s for own in busy]
    sharing.learn(busy, waits, IDS, counts)
    return max(busy) + exchange_s


def train(known: Sequence[StepModel], laws: Sequence[StepModel], guess_s: float, talk_s: float, steps: int) -> float:
    """Train in groups, as members do: whoever is left out leaves, the others form anew; returns the last step's s."""
    team = list(range(len(known)))
    models, last_s = list(known), 0.0
    sharing = None
    for _ in range(steps):
        if sharing is None:
            names = [f"cpu:{index}" for index in team]
            sharing = SharePlanner(TrainOptions(BATCH), names, models, [0.0, *(guess_s * k for k in range(len(team)))])
        if len(sharing.plan.members) == len(team):
            last_s = step(sharing, [laws[index] for index in team], talk_s)
            continue
        stay = sharing.plan.members
        models, team = [sharing.models[index] for index in stay], [team[index] for index in stay]
        sharing = None
    return last_s


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(law, change), min_size=2, max_size=4),
    st.floats(0.0, 0.02),
    st.floats(0.0, 0.05),
)
def test_steps_are_soon_no_slower_than_the_best_device_alone(
    devices: list[tuple[StepModel, float]], guess_s: float, talk_s: float
) -> None:
    known, changes = zip(*devices, strict=True)
    laws = truth(known, changes)
    last_s = train(known, laws, guess_s, talk_s, 90)
    best_there_s = min(each.seconds(BATCH) for each in laws)
    assert last_s <= 1.04 * best_there_s or _left_too_early(known, laws, guess_s)


def _left_too_early(known: Sequence[StepModel], laws: Sequence[StepModel], guess_s: float) -> bool:
    """Return whether the device that would be best had to leave at first, by what was known then."""
    first = SharePlanner(
        TrainOptions(BATCH), [str(i) for i in range(len(known))], known, [guess_s * i for i in range(-1, len(known))]
    )
    best = min(range(len(laws)), key=lambda index: laws[index].seconds(BATCH))
    return not first.plan.shares[best]


def test_a_device_whose_talk_turns_out_to_cost_more_than_it_gains_leaves_after_three_looks() -> None:
    known = [StepModel(0.0, 0.001), StepModel(0.0, 0.004)]
    sharing = SharePlanner(TrainOptions(BATCH), ("cpu:0", "cpu:1"), known, [0.0, 0.0, 0.001])
    assert sharing.plan.shares == (51, 13)
    for _ in range(20):
        step(sharing, known, 0.030)
        assert sharing.plan.members == (0, 1)
    step(sharing, known, 0.030)
    assert sharing.plan.shares == (64, 0)


def test_a_talk_that_is_slow_for_a_while_sends_nobody_away() -> None:
    known = [StepModel(0.0, 0.001), StepModel(0.0, 0.004)]
    sharing = SharePlanner(TrainOptions(BATCH), ("cpu:0", "cpu:1"), known, [0.0, 0.0, 0.001])
    for talk_s in [0.030] * 14 + [0.001] * 28:
        step(sharing, known, talk_s)
    assert sharing.plan.members == (0, 1)


def test_speeds_that_swap_cost_two_slow_steps() -> None:
    known = [StepModel(0.0, 0.001), StepModel(0.0, 0.003)]
    sharing = SharePlanner(TrainOptions(BATCH), ("cpu:0", "cpu:1"), known, [0.0, 0.0, 0.0])
    for _ in range(10):
        step(sharing, known, 0.0)
    swapped = known[::-1]
    times_s = [step(sharing, swapped, 0.0) for _ in range(3)]
    assert times_s[2] < 0.05 < 0.1 < times_s[0]


@pytest.mark.parametrize("slowed", [1.2, 5.0, 60.0])
def test_an_accelerator_that_cpus_slow_down_goes_on_alone(slowed: float) -> None:
    """The probe measured it without them; together a step takes longer than it took alone."""
    alone, cpu = StepModel(0.001, 0.0001), StepModel(0.0, 0.0012)
    sharing = SharePlanner(TrainOptions(BATCH), ("cuda:0", "torch-cpu:0"), [alone, cpu], [0.0, 0.0, 0.0], on_host=CPUS)
    assert sharing.plan.members == (0, 1)
    together = [StepModel(slowed * alone.fixed_s, slowed * alone.per_sample_s), cpu]
    for _ in range(40):
        step(sharing, together, 0.0)
    assert sharing.plan.shares == (BATCH, 0)
    assert "cuda:0 took 7.4 ms alone" in sharing.plan.reasons[1]


def test_an_accelerator_that_cpus_do_not_slow_down_keeps_their_help() -> None:
    models = [StepModel(0.001, 0.0001), StepModel(0.0, 0.0012)]
    sharing = SharePlanner(TrainOptions(BATCH), ("cuda:0", "torch-cpu:0"), models, [0.0, 0.0, 0.0], on_host=CPUS)
    for _ in range(40):
        step(sharing, models, 0.0)
    assert sharing.plan.members == (0, 1)


def test_cpus_that_slow_each_other_down_were_measured_together() -> None:
    models = [StepModel(0.001, 0.0001), StepModel(0.0, 0.0012)]
    sharing = SharePlanner(TrainOptions(BATCH), ("cpu:0", "torch-cpu:0"), models, [0.0, 0.0, 0.0], on_host=CPUS)
    for _ in range(40):
        step(sharing, [StepModel(0.002, 0.0002), StepModel(0.0, 0.0012)], 0.0)
    assert sharing.plan.members == (0, 1)
