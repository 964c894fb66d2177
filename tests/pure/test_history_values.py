from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.model.device import Device, DeviceType
from hetero.plan.performance.cost_model import CostModel
from hetero.plan.performance.robust_statistics import (
    CHANGE_RATIO,
    NOISE_S,
    curve,
    exponent,
    is_change,
    median,
    quantile,
    summary,
)
from hetero.plan.performance.window import WINDOW, Window
from tests.needs import data_folder

seconds = st.floats(1e-6, 1e3)
CPU = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu")


@given(st.lists(seconds, min_size=1, max_size=40))
def test_the_median_is_one_of_the_values_and_at_most_half_lie_on_either_side(values: list[float]) -> None:
    middle = median(values)
    assert middle in values
    assert sum(value < middle for value in values) <= len(values) / 2
    assert sum(value > middle for value in values) <= len(values) / 2


@given(st.lists(seconds, min_size=1, max_size=40), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_are_values_and_do_not_fall(values: list[float], one: float, other: float) -> None:
    low, high = quantile(values, min(one, other)), quantile(values, max(one, other))
    assert low in values
    assert low <= high


@given(st.lists(seconds, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_a_summary_does_not_depend_on_the_order(values: list[float], shuffler: object) -> None:
    mixed = list(values)
    shuffler.shuffle(mixed)  # type: ignore[attr-defined]
    assert summary(mixed) == summary(values)


@given(st.lists(seconds, min_size=1, max_size=40))
def test_nothing_within_the_change_ratio_of_the_median_is_off(values: list[float]) -> None:
    found = summary(values)
    assert found.low <= found.median <= found.high
    assert found.floor < found.median / CHANGE_RATIO * 1.000001
    assert found.ceil > found.median * CHANGE_RATIO * 0.999999


def test_one_sample_is_never_a_change_and_three_always_are() -> None:
    assert not is_change([1e9], 1.0)
    assert is_change([1.5, 1.5, 1.5], 1.0)
    assert is_change([0.3, 0.3], 1.0)
    assert not is_change([3.0, 9.0], 1.0)


@given(st.floats(1e-9, 1e-3), st.floats(0.2, 3.0), st.lists(st.floats(10.0, 1e8), min_size=4, max_size=30, unique=True))
def test_a_power_law_is_found_and_extrapolates(a: float, b: float, sizes: list[float]) -> None:
    if max(sizes) < 10.0 * min(sizes):
        sizes = [*sizes, 100.0 * max(sizes)]
    found = curve(sizes, [a * size**b for size in sizes])
    assert found is not None
    target = 10.0 * max(sizes)
    assert found.seconds(target) == pytest.approx(a * target**b, rel=1e-3)


def test_a_fixed_cost_plus_a_rate_is_found() -> None:
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7]
    found = curve(sizes, [1e-3 + 1e-9 * size for size in sizes])
    assert found is not None
    assert found.kind == "affine"
    assert found.seconds(5e6) == pytest.approx(6e-3)


def test_two_sizes_give_no_curve() -> None:
    assert curve([1.0, 2.0, 2.0], [1.0, 2.0, 2.0]) is None


def test_one_wild_point_of_nine_does_not_bend_a_curve() -> None:
    sizes = [2.0**k for k in range(10, 19)]
    times = [1e-6 * size for size in sizes]
    times[4] *= 2000.0
    found = curve(sizes, times)
    assert found is not None
    assert found.seconds(2.0**19) == pytest.approx(1e-6 * 2.0**19, rel=0.2)


def test_an_index_that_is_only_a_number_explains_nothing() -> None:
    times = [1.0, 1.3, 0.8, 1.1, 0.9, 1.25, 1.0, 0.95]
    assert exponent(list(range(1, 9)), times) == 0.0
    found = curve(list(range(1, 9)), times)
    assert found is not None
    assert found.kind == "constant"


@given(st.lists(seconds, min_size=1, max_size=3 * WINDOW))
def test_a_window_holds_the_latest_samples_in_order(values: list[float]) -> None:
    window = Window()
    for value in values:
        window.put(0.0, value)
    assert [value for _, value in window.latest(WINDOW)] == values[-WINDOW:]


def _files() -> Iterator[tuple[str, float, list[float]]]:
    for path in sorted((data_folder() / "graphs" / "cholesky_broadwell").glob("*_timing.csv")):
        yield from _series(path)


def _series(path: Path) -> Iterator[tuple[str, float, list[float]]]:
    by_tile: dict[int, list[float]] = {}
    for row in csv.reader(path.open()):
        if len(row) == 3 and row[0].strip().isdigit():
            by_tile.setdefault(int(row[0]), []).append(float(row[2]) * 1e-6)
    for tile, times in by_tile.items():
        yield f"{path.stem}|{tile}", 8.0 * tile * tile, times


def test_the_first_half_of_real_timings_predicts_the_second_half_though_first_calls_are_poisoned() -> None:
    """Measured on 24 series of 1001 runs: off by 0.44 % at most, and exact to the clock's grain on 20 of them."""
    model, seen = CostModel([CPU]), 0
    for signature, size, times in _files():
        half = len(times) // 2
        for value in times[:half]:
            model.observe(signature, size, CPU, value)
        told, truth = model.estimate(signature, size, CPU).seconds, median(times[half:])
        assert told == pytest.approx(truth, rel=0.005), signature
        seen += 1
    assert seen == 24


def test_ten_real_timings_are_enough_though_the_first_is_up_to_2800_times_too_slow() -> None:
    for signature, size, times in _files():
        model = CostModel([CPU])
        for value in times[:10]:
            model.observe(signature, size, CPU, value)
        told, truth = model.estimate(signature, size, CPU).seconds, median(times)
        assert abs(told - truth) <= max(NOISE_S, 0.1 * truth), (signature, told, truth)


def test_real_timings_of_three_smaller_tiles_predict_a_tile_twice_as_wide() -> None:
    """Measured: within 9 % for three kernels; 2.9 times too long for dpotrf, which grows by 2.7 and not by 8 there."""
    series = {(signature.split("|")[0], size): times for signature, size, times in _files()}
    for kernel, allowed in (("dgemm", 1.1), ("dsyrk", 1.1), ("dtrsm", 1.1), ("dpotrf", 3.0)):
        name = f"{kernel}_timing"
        model = CostModel([CPU])
        sizes = sorted(size for other, size in series if other == name)
        for size in sizes[2:5]:
            for value in series[name, size][:50]:
                model.observe(f"{name}|{size}", size, CPU, value)
        found = model.estimate(f"{name}|{sizes[5]}", sizes[5], CPU)
        assert found.origin == "regression"
        assert 1 / allowed < found.seconds / median(series[name, sizes[5]]) < allowed, kernel


def test_a_steady_series_is_not_taken_for_a_change() -> None:
    for signature, size, times in _files():
        model = CostModel([CPU])
        for value in times:
            model.observe(signature, size, CPU, value)
        assert model.epoch == 0, signature


def test_a_size_between_others_goes_by_its_neighbours_where_no_one_law_holds() -> None:
    """A fixed cost below, a cube above, and the size in the bend not shown."""
    sizes = [2.0**power for power in range(4, 16)]

    def truth(size: float) -> float:
        return 2.0 + 1e-3 * size if size < 1024 else 1e-6 * size**2 + 2.0

    shown = [size for size in sizes if size != 2048.0]
    found = curve(shown, [truth(size) for size in shown])
    assert found is not None
    assert found.seconds(2048.0) == pytest.approx(truth(2048.0), rel=0.4)


def test_a_wild_size_does_not_bend_what_is_told_of_another_one() -> None:
    sizes = [float(2**power) for power in range(4, 14)]
    times = [1e-6 * size**1.5 * (50.0 if size == 256.0 else 1.0) for size in sizes]
    found = curve(sizes, times)
    assert found is not None
    for size in (40.0, 200.0, 300.0, 3000.0, 30000.0):
        assert found.seconds(size) == pytest.approx(1e-6 * size**1.5, rel=0.05)


def test_many_sizes_are_bent_by_groups_of_them() -> None:
    sizes = [float(size) for size in range(100, 900)]
    found = curve(sizes, [1e-6 * size**2 * (1.3 if size % 2 else 1.0) for size in sizes])
    assert found is not None
    assert len(found.bends) <= 32
    assert found.seconds(500.0) == pytest.approx(1e-6 * 500.0**2 * 1.15, rel=0.2)
