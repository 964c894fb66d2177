"""What a search tries, and which device takes a further trial."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.errors import BadValueError
from hetero.tune.search import RunningTrial, TrialPaces
from hetero.tune.space import Range, corners, describe, grid, read_range, read_space
from hetero.tune.values import SearchPlan

TICK_S = 0.05


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"linear": []}, "is empty or no list"),
        ({"choice": []}, "is empty or no list"),
        ({"linear": [2, 1]}, "2 … 1 is empty; give the least number first"),
        ({"linear": [1]}, "is no range"),
        ({"linear": ["a", "b"]}, "is no range"),
        ({"linear": [0, float("inf")]}, "is empty"),
        ({"log": [0, 1]}, "0 is not above 0"),
        ({"whole": [0.5, 2]}, "are no whole numbers"),
        ({"choice": ["a", "a"]}, "stands there twice"),
        ({"choice": [["a"]]}, "cannot be a choice"),
        ({"lgo": [1, 2]}, "did you mean 'log'?"),
        ({"log": [1, 2], "linear": [1, 2]}, "is no range"),
        ({"log": [1, 2], "points": -1}, "points=-1 is not allowed"),
        (0.5, "0.5 is no range"),
    ],
)
def test_a_range_that_is_wrong_is_told_with_its_name(given_: Any, words: str) -> None:
    with pytest.raises(BadValueError, match=r"^lr: ") as told:
        read_range("lr", given_)
    assert words in str(told.value)


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(BadValueError, match="the space has no range"):
        read_space({})


def test_numbers_that_yaml_reads_as_text_are_numbers() -> None:
    assert read_range("lr", {"log": ["1e-4", "1e-1"]}) == Range("log", (1e-4, 1e-1))


def test_a_grid_has_both_ends_of_every_range() -> None:
    space = read_space({"a": {"log": [0.001, 10], "points": 5}, "b": {"whole": [1, 100], "points": 3}})
    assert grid(space) == {"a": [0.001, 0.01, 0.1, 1.0, 10.0], "b": [1, 51, 100]}


def test_a_grid_of_too_many_points_is_refused() -> None:
    with pytest.raises(BadValueError, match="the grid has 1000000 points"):
        grid(read_space({"a": {"whole": [1, 1000]}, "b": {"whole": [1, 1000]}}))


def test_the_corners_of_a_space_hold_every_end_and_every_choice() -> None:
    space = read_space({"a": {"choice": [None, 1, 2]}, "b": {"linear": [0, 1]}})
    found = corners(space)
    assert {corner["b"] for corner in found} == {0.0, 1.0}
    assert [corner["a"] for corner in found] == [None, 1, 2]


def test_a_space_is_described_in_words_that_tell_spaces_apart() -> None:
    one, other = (describe(read_space({"a": {kind: [1, 2]}})) for kind in ("linear", "whole"))
    assert one != other


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"sampler": "tpee"}, "sampler='tpee' is not known; did you mean 'tpe'?"),
        ({"pruner": "medain"}, "did you mean 'median'?"),
        ({"goal": "minimise"}, "did you mean 'minimize'?"),
        ({"trials": 0}, "trials=0 is not allowed"),
        ({"trials": True}, "trials=True is not allowed"),
        ({"seed": -1}, "seed=-1 is not allowed"),
    ],
)
def test_a_plan_that_is_wrong_is_told(words: dict[str, Any], said: str) -> None:
    with pytest.raises(BadValueError) as told:
        SearchPlan("demo", {}, **{"trials": 3, **words})
    assert said in str(told.value)


def makespan_s(seconds: list[float], trials: int) -> float:
    """Search in virtual time, with devices whose trials always take so long; nothing is known of them at first."""
    paces, now_s, left, ended = TrialPaces(), 0.0, trials, 0
    runs: dict[int, tuple[int, float]] = {}
    while ended < trials:
        for device in map(int, paces.fastest_first(map(str, range(len(seconds))))):
            if device in runs:
                continue
            running = [RunningTrial(number, str(d), now_s - since_s) for d, (number, since_s) in runs.items()]
            number = None
            if left:
                if paces.worth(str(device), left, running):
                    left, number = left - 1, trials - left
            else:
                number = paces.to_rescue(str(device), running)
            if number is not None:
                runs[device] = (number, now_s)
        next_s = min(since_s + seconds[device] for device, (_, since_s) in runs.items())
        now_s = next_s if left else min(next_s, now_s + TICK_S)
        for device, (number, since_s) in sorted(runs.items()):
            if device in runs and now_s >= since_s + seconds[device]:
                paces.learn(str(device), seconds[device])
                ended += 1
                for other in [other for other, run in runs.items() if run[0] == number]:
                    paces.learn_at_least(str(other), now_s - runs.pop(other)[1])
    return now_s


@given(
    st.lists(st.floats(0.2, 20.0), min_size=1, max_size=4),
    st.integers(3, 15),
)
def test_a_search_of_two_trials_a_device_is_never_slower_than_on_the_best_alone(
    seconds: list[float], trials: int
) -> None:
    more = trials + (trials < 2 * len(seconds))
    assert makespan_s(seconds, trials) <= min(seconds) * more + 2 * TICK_S


def test_two_devices_three_to_one_reach_almost_the_sum_of_their_speeds() -> None:
    assert makespan_s([1.0, 3.0], 40) <= 1.08 * 40 / (1 + 1 / 3)


def test_equal_devices_share_the_last_trial_instead_of_waiting_for_each_other() -> None:
    assert makespan_s([1.0, 1.0, 1.0], 10) <= 4.0 + 2 * TICK_S
