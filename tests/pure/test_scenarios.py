"""What a schedule is expected to take when run times stray from their estimates."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.plan.problem import Floats, Ints
from hetero.plan.replanning.lookahead import Ahead, OpenGraph, remaining_s
from hetero.plan.replanning.replan import COUNTS, WORK, expected_s, left_s, scenarios

Running = tuple[tuple[int, int, float, float], ...]


def loose(seconds: list[list[float]], error: float, running: Running = ()) -> Ahead:
    """Return tasks that need nothing, a row of seconds each, on devices that share one memory."""
    count, devices = len(seconds), len(seconds[0])
    slots = np.arange(count)
    phase = np.zeros(count, dtype=np.uint8)
    device = np.full(count, -1, dtype=np.int64)
    for slot, on, _, _ in running:
        phase[slot], device[slot] = 1, on
    nothing = np.zeros(0, dtype=np.int64)
    g = OpenGraph(
        phase, slots, np.array(seconds), np.zeros(count), np.zeros(count + 1, dtype=np.int64), nothing,
        np.zeros(0, dtype=np.uint8), device, np.zeros(count), np.zeros((count, 1), dtype=np.uint8),
        np.zeros(devices, dtype=np.int64), np.zeros((1, 1)), np.zeros((1, 1)),
    )  # fmt: skip
    return Ahead(g, {slot: slot for slot in range(count)}, slots, count, 1, 1, running, error)


def expected(ahead: Ahead, devices: list[int], now_s: float = 0.0) -> float:
    """Return the expected end of all that waits, each task on the device named, in the order of slots."""
    g = ahead.graph
    waiting: Ints = np.flatnonzero(g.phase == 0)
    device = g.device.copy()
    device[waiting] = devices
    ready_s: Floats = np.full(g.seconds.shape[1], now_s)
    may = scenarios(ahead, now_s, ready_s, len(waiting))
    assert may is not None
    return expected_s(may, g, waiting, device, np.arange(len(g.phase), dtype=np.float64), now_s)


def test_where_times_do_not_stray_a_schedule_ends_as_planned() -> None:
    ahead = loose([[1.0, 9.0], [2.0, 9.0], [9.0, 2.5]], 1e-6)
    assert expected(ahead, [0, 0, 1]) == pytest.approx(3.0, rel=1e-4)


def test_a_schedule_that_hangs_on_one_long_task_is_expected_to_end_later_than_one_of_many_short_ones() -> None:
    """Both end at 8 s if times keep to their estimates."""
    long = expected(loose([[8.0, 8.0], *[[1.0, 1.0]] * 8], 0.6), [0] + [1] * 8)
    short = expected(loose([[1.0, 1.0]] * 16, 0.6), [0] * 8 + [1] * 8)
    assert long > 1.05 * short > 1.05 * 8.0


def test_tasks_that_can_run_nowhere_do_not_count() -> None:
    ahead = loose([[1.0, 1.0], [np.inf, np.inf]], 1e-6)
    assert expected(ahead, [1, 0]) == pytest.approx(1.0, rel=1e-4)


def test_what_waits_behind_a_late_task_is_expected_after_it() -> None:
    """A task of 1 s has run for 3 s: by the spread it goes on for a while, and the other device is the better one."""
    ahead = loose([[1.0, 1.0], [1.0, 1.4]], 0.6, running=((0, 0, 0.0, 1.0),))
    assert expected(ahead, [0], now_s=3.0) > expected(ahead, [1], now_s=3.0)


@pytest.mark.parametrize("error", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("elapsed_s", [0.5, 1.0, 1.5, 3.0])
def test_what_is_left_of_a_task_has_the_mean_of_its_conditional_distribution(error: float, elapsed_s: float) -> None:
    above = (np.arange(2000)[None] + 0.5) / 2000
    mean_s = left_s(np.ones(1), np.array([elapsed_s]), error, above).mean()
    assert mean_s == pytest.approx(remaining_s(1.0, elapsed_s, error), abs=0.02)


def test_the_more_tasks_wait_the_fewer_scenarios_are_looked_at() -> None:
    ahead = loose([[1.0]] * 3, 0.3)
    found = [scenarios(ahead, 0.0, np.zeros(1), waiting) for waiting in (3, 100, 300, WORK)]
    assert [None if may is None else may.factors.shape[1] for may in found] == [COUNTS[0], 7, 3, None]
