"""What the report says held a run up: a cause is planted in a simulated run and must be found, with what it cost."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

from benchmarks.causes import PLANTED, drawn, simulated
from hetero.report.causes import gains
from hetero.report.findings import find
from hetero.report.tables import gain_table
from hetero.report.trace_reader import collect
from tests.sim.report_runs import run


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_the_first_gain_and_its_seconds_are_right(cause: str) -> None:
    seed = 1 + list(PLANTED).index(cause)
    world, without = PLANTED[cause](drawn(seed), np.random.default_rng((seed, 1)))
    took_s, record = simulated(world)
    first = gains(record).found[0]
    assert first.cause == cause
    assert first.seconds == pytest.approx(took_s - simulated(without)[0], rel=0.15)


def test_a_run_that_nothing_held_up_has_no_large_gain() -> None:
    took_s, record = simulated(drawn(3))
    found = gains(record)
    assert found.replayed_s == pytest.approx(took_s, rel=0.05)
    assert all(each.seconds < 0.1 * took_s for each in found.found)


def test_gains_are_told_in_sentences_and_figures() -> None:
    world, _ = PLANTED["pin"](drawn(20), np.random.default_rng((20, 1)))
    found = find(simulated(world)[1])
    name = found.gains.found[0].subject
    assert f"with {name} on any device" in " ".join(found.sentences)
    assert "What helps" not in " ".join(found.sentences)
    assert found.as_dict()["gains"][0]["cause"] == "pin"
    assert gain_table(found).splitlines()[1].startswith(f"with {name} on any device")


def test_the_best_possible_includes_what_was_on_the_wrong_device() -> None:
    given = drawn(20)
    world, _ = PLANTED["pin"](given, np.random.default_rng((20, 1)))
    held, free = find(simulated(world)[1]), find(simulated(given)[1])
    assert held.best.saving_s >= 0.8 * (held.span_s - free.span_s)


def test_other_programs_load_is_said() -> None:
    world, _ = PLANTED["load"](drawn(3), np.random.default_rng((3, 1)))
    assert "Other programs used" in " ".join(find(simulated(world)[1]).sentences)


@pytest.mark.parametrize(("throttle", "busy", "most_frac"), [(1.0, 0.5, 0.5), (0.2, 0.85, 0.25), (0.2, 0.5, 0.0)])
def test_an_idle_host_gains_no_more_than_what_the_throttle_of_a_device_leaves(
    throttle: float, busy: float, most_frac: float
) -> None:
    took_s, record = simulated(drawn(3))
    record.devices = tuple(replace(device, throttle_frac=throttle) for device in record.devices)
    record.used = {index: [(record.begin_s, busy)] for index in range(len(record.devices))}
    gained_s = sum(each.seconds for each in gains(record).found if each.cause == "load")
    assert 0.6 * most_frac * took_s <= gained_s <= most_frac * took_s * 1.05


@pytest.mark.parametrize("seed", range(6))
def test_runs_with_every_fault_are_replayed_or_left_out(seed: int) -> None:
    records, devices = run(seed, rough=True)
    found = gains(collect(records, devices))
    assert all(each.seconds > 0.0 for each in found.found)


@pytest.mark.parametrize("head", [{"topology": 7}, {"topology": {"links": [{"src": 1}]}}, {"topology": {"nodes": [3]}}])
def test_a_head_that_was_changed_by_hand_gives_no_gains(head: dict[str, object]) -> None:
    _, record = simulated(drawn(3))
    record.head = head
    assert gains(record).found == ()


@pytest.mark.parametrize("wrong", [inf, nan])
def test_times_that_are_not_finite_give_no_gains(wrong: float) -> None:
    _, record = simulated(drawn(3))
    record.end_s = wrong
    assert gains(record).found == ()
