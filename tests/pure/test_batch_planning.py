"""Batch sizes: laws, what is learned of one device, and the end that all devices reach together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.plan.batch.planner import BatchPlanner
from hetero.plan.batch.size_tuning import Sizes
from hetero.plan.batch.time_model import Law, finish_s, guided_size, packed, soonest_s
from tests.batch_simulation import simulate


def law(best: float, rate: float, overhead: float = 0.2) -> Callable[[float], float]:
    """Make t(b) = a + c·b + d·b² whose rate is highest at the best size."""
    whole_s = best / rate
    a, d = overhead * whole_s, overhead * whole_s / best**2
    return lambda size: a + (whole_s - 2 * a) / best * size + d * size**2


def learned(truth: Callable[[float], float]) -> Sizes:
    sizes = Sizes()
    while sizes.probing:
        size = sizes.wanted()
        sizes.add(size, truth(size))
    return sizes


@pytest.mark.parametrize(("best", "rate"), [(256, 900.0), (16, 100.0), (1, 3.0), (1024, 1e5)])
def test_the_size_found_is_within_two_per_cent_of_the_best_rate(best: float, rate: float) -> None:
    truth = law(best, rate)
    found = learned(truth).wanted()
    assert found / truth(found) > 0.98 * rate


def test_a_first_batch_is_believed_only_until_there_is_another() -> None:
    sizes = Sizes()
    sizes.add(1, 10.0, cold=True)
    assert sizes.law is not None
    assert sizes.law.seconds(1) == 10.0
    sizes.add(1, 0.1)
    assert sizes.law is not None
    assert sizes.law.seconds(1) == 0.1


def test_a_size_that_did_not_fit_is_never_asked_for_again() -> None:
    sizes = Sizes()
    for _ in range(40):
        size = sizes.wanted()
        if size > 100:
            sizes.too_large(size)
        else:
            sizes.add(size, 0.01 + 1e-5 * size)
    assert 64 <= sizes.wanted() <= 100


def test_a_change_of_speed_scales_every_size_after_three_batches() -> None:
    sizes = learned(law(64, 100.0))
    before = sizes.law
    for _ in range(3):
        sizes.add(64, 3.0 * law(64, 100.0)(64))
    assert before is not None
    assert sizes.law is not None
    assert sizes.law.seconds(8) == pytest.approx(3.0 * before.seconds(8))


def test_sizes_of_an_earlier_run_that_prove_wrong_are_learned_again() -> None:
    truth = law(256, 900.0)
    sizes = Sizes(known=learned(law(16, 100.0)).points())
    assert sizes.wanted() == 16
    for _ in range(20):
        size = sizes.wanted()
        sizes.add(size, truth(size))
    assert sizes.wanted() == 256


def test_one_spike_changes_nothing() -> None:
    sizes = learned(law(64, 100.0))
    before = sizes.wanted()
    sizes.add(64, 100.0)
    assert sizes.wanted() == before


def test_all_devices_end_together() -> None:
    laws = [Law([(1, 0.02), (256, 0.28)]), Law([(1, 0.03), (16, 0.16)]), Law([(1, 0.5), (4, 1.0)])]
    end_s = finish_s(laws, [0.0, 0.1, 0.0], 2000)
    assert sum(each.capacity(end_s - free) for each, free in zip(laws, [0.0, 0.1, 0.0], strict=True)) >= 2000
    assert soonest_s(laws, [0.0, 0.1, 0.0], 2000) <= end_s


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=30), st.floats(0.01, 200.0))
def test_a_batch_packed_by_cost_never_exceeds_what_was_wanted_but_by_a_single_record(
    costs: list[float], wanted: float
) -> None:
    number = packed(costs, wanted)
    assert 1 <= number <= len(costs)
    assert number == 1 or sum(costs[:number]) <= wanted
    assert number == len(costs) or sum(costs[: number + 1]) > wanted


def test_a_device_that_cannot_do_one_record_in_time_gets_none() -> None:
    quick, slow = Law([(1, 0.01), (100, 1.0)]), Law([(1, 5.0)])
    assert guided_size([quick, slow], [0.0, 0.0], 100, 1) == 0
    planner = BatchPlanner({"quick": Sizes(known=[(1, 0.01), (100, 1.0)], fixed=100), "slow": Sizes(known=[(1, 5.0)])})
    assert planner.ask("slow", 100, 0.0) == 0
    assert "one record would take it 5 s" in planner.why_idle("slow")


def test_a_batch_on_a_device_nobody_knows_is_run_again_by_one_that_is_idle() -> None:
    truths = {"quick": law(64, 1000.0), "dead slow": lambda _: 1000.0}
    done = simulate(BatchPlanner({"quick": learned(truths["quick"]), "dead slow": Sizes()}), truths, 1000)
    assert done.makespan_s < 1.2
    assert done.repeated == 1


def test_two_devices_nine_to_one_are_within_two_per_cent_of_the_ideal() -> None:
    truths = {"quick": law(256, 900.0), "slow": law(16, 100.0)}
    known = simulate(BatchPlanner({name: learned(truth) for name, truth in truths.items()}), truths, 12_000)
    cold = simulate(BatchPlanner({name: Sizes() for name in truths}), truths, 12_000)
    assert known.makespan_s < 1.02 * 12.0
    assert cold.makespan_s < 1.10 * 12.0


def test_a_second_device_makes_no_pair_slower_than_its_better_half() -> None:
    rng = np.random.default_rng(7)
    worst = 0.0
    for _ in range(40):
        truths = {
            name: law(2.0 ** rng.uniform(1, 9), 10.0 ** rng.uniform(0, 3), rng.uniform(0.05, 0.45)) for name in "ab"
        }
        count = int(10.0 ** rng.uniform(1, 3.5))
        pair = simulate(BatchPlanner({name: learned(truth) for name, truth in truths.items()}), truths, count)
        alone = min(
            simulate(BatchPlanner({name: learned(truth)}), {name: truth}, count).makespan_s
            for name, truth in truths.items()
        )
        worst = max(worst, pair.makespan_s / alone)
    assert worst < 1.02


def test_a_fixed_size_is_kept() -> None:
    sizes = Sizes(fixed=24)
    for _ in range(5):
        assert sizes.wanted() == 24
        sizes.add(24, 0.1)
    assert not sizes.probing


def test_batches_given_before_anything_was_known_are_expected_to_end_once_something_is() -> None:
    planner = BatchPlanner({"a": Sizes()})
    for ticket in (1, 2):
        planner.assign("a", ticket, 1, 0.0)
    planner.done("a", 1, 1.0, 1.0)
    assert planner.given("a")[0].expected_s == 1.0
    assert planner.ask("a", 5, 1.0) >= 0
    assert planner.end_s(5, 1.0) < 60.0


def test_times_that_are_noise_do_not_drive_sizes_away() -> None:
    """Two short batches told at once look as one that took long and one that took nothing."""

    def truth(size: float) -> float:
        return 1.5e-3 + 1e-7 * size

    sizes, rng = Sizes(limit=1 << 20), np.random.default_rng(3)
    for _ in range(20_000):
        size = sizes.wanted()
        sizes.add(size, truth(size) * (rng.uniform(0.02, 0.1) if rng.random() < 0.5 else rng.uniform(1.0, 2.0)))
    law = sizes.law
    assert law is not None
    assert all(truth(size) / 250 < seconds < 10 * truth(size) for size, seconds in law.points)
    assert sizes.wanted() >= 4096


def test_what_was_scaled_far_since_it_was_measured_is_forgotten() -> None:
    sizes = learned(law(256, 900.0))
    top = int(sizes.wanted())
    for _ in range(3):
        sizes.add(top, 9.0 * law(256, 900.0)(top))
    assert [size for size, _ in sizes.points()] == [top]


def test_where_the_rate_still_grows_a_larger_batch_is_expected_on_the_line_up_to_four_times_the_size() -> None:
    points = [(1, 1.0), (4, 1.3)]
    assert Law(points).seconds(16) == pytest.approx(5.2)
    assert Law(points, grows=True).seconds(16) == pytest.approx(2.5)
    assert Law(points, grows=True).seconds(32) == pytest.approx(5.0)
    assert Law([(1, 1.0), (4, 5.0)], grows=True).seconds(16) == pytest.approx(20.0)


def makespans(truths: dict[str, Callable[[float], float]], count: int) -> tuple[float, float]:
    """Return the seconds of a pair, and of its better half alone, both from cold."""
    alone = min(
        simulate(BatchPlanner({name: Sizes()}), {name: truth}, count).makespan_s for name, truth in truths.items()
    )
    return simulate(BatchPlanner({name: Sizes() for name in truths}), truths, count).makespan_s, alone


@pytest.mark.parametrize(
    ("count", "a", "b"),
    [
        (15, law(8, 2.0), law(4, 0.05)),
        (10, law(64, 900.0), law(8, 3.0)),
        (45, law(1000, 5000.0, 0.44), law(8, 2.0)),
        (98, law(500, 1000.0, 0.4), law(1, 6.0, 0.3)),
        (360, law(300, 3000.0, 0.4), law(24, 2000.0)),
        (276, law(4, 6.9, 0.3), law(256, 40.0, 0.44)),
    ],
)
def test_a_device_that_nobody_knows_makes_no_run_longer(
    count: int, a: Callable[[float], float], b: Callable[[float], float]
) -> None:
    for truths in ({"a": a, "b": b}, {"a": b, "b": a}):
        pair_s, alone_s = makespans(truths, count)
        assert pair_s <= 1.02 * alone_s


@given(st.integers(0, 10_000), st.integers(10, 400))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_a_pair_that_begins_cold_is_never_much_slower_than_its_better_half(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    truths = {name: law(2.0 ** rng.uniform(0, 10), 10.0 ** rng.uniform(0, 2), rng.uniform(0.02, 0.45)) for name in "ab"}
    pair_s, alone_s = makespans(truths, count)
    assert pair_s <= 1.02 * alone_s + 0.1


def test_a_batch_that_is_late_goes_to_the_other_device_with_its_last_batch() -> None:
    truths = {"quick": law(64, 1000.0), "dead slow": lambda _: 1000.0}
    done = simulate(BatchPlanner({name: Sizes() for name in truths}), truths, 40)
    alone = simulate(BatchPlanner({"quick": Sizes()}), {"quick": truths["quick"]}, 40)
    assert done.records == {"quick": 40, "dead slow": 0}
    assert done.makespan_s == alone.makespan_s


def test_what_was_taken_over_is_not_given_to_the_same_device_again() -> None:
    planner = BatchPlanner({"quick": Sizes(), "unknown": Sizes()})
    planner.assign("quick", 1, 1, 0.0)
    planner.assign("unknown", 2, 1, 0.0)
    planner.done("quick", 1, 1.0, 1.0)
    assert planner.late("quick", (2,), 3, 1.1) == ()
    assert planner.late("quick", (2,), 3, 2.0) == (2,)
    planner.taken_over("unknown", 2, 2.0)
    assert planner.ask("unknown", 4, 2.0) == 0


def test_two_devices_do_not_take_one_batch_from_each_other_without_end() -> None:
    planner = BatchPlanner({name: Sizes(known=[(50, 1e-6)], fixed=50) for name in ("a", "b")})
    planner.assign("a", 1, 50, 0.0)
    now_s, holder, taker, taken = 1.0, "a", "b", 0
    for ticket in range(1, 20):
        if not planner.late(taker, (ticket,), 50, now_s):
            break
        planner.taken_over(holder, ticket, now_s)
        planner.assign(taker, ticket + 1, 50, now_s)
        now_s, holder, taker, taken = now_s + 1.0, taker, holder, taken + 1
    assert taken == 1


def test_a_device_that_seems_too_slow_tries_a_larger_batch_only_where_another_can_take_it_over() -> None:
    sizes = Sizes()
    sizes.add(1, 1.0)
    planner = BatchPlanner({"quick": Sizes(known=[(8, 0.08)], fixed=8), "unsure": sizes})
    assert planner.ask("unsure", 400, 0.0) == 0
    assert planner.ask("unsure", 400, 0.0, insured=True) == 4
