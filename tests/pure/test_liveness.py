"""Which signs make a worker process alive, silent or frozen."""

from __future__ import annotations

import os

import pytest

from hetero.engines.local.child_process import LOOKS, SILENCE_S, Pulse
from hetero.floor.clock import process_cpu_s
from hetero.floor.platform import process_state


def looks(count: int, state: str, *, received: bool = False, answers: bool = True) -> list[bool]:
    """Look so many times at a process that takes no processor time."""
    pulse = Pulse()
    return [pulse.frozen(state, 0.0, received=received, answers=answers) for _ in range(count)]


@pytest.mark.parametrize(
    ("state", "answers"), [("T", True), ("T", False), ("t", True), ("t", False), ("S", True), ("", True)]
)
def test_who_gives_no_sign_of_life_is_frozen_after_ten_seconds_and_not_before(state: str, answers: bool) -> None:
    assert SILENCE_S == 10.0
    assert looks(LOOKS, state, answers=answers) == [False] * (LOOKS - 1) + [True]


@pytest.mark.parametrize(
    ("state", "answers"), [("R", True), ("D", True), ("R", False), ("D", False), ("S", False), ("", False)]
)
def test_who_is_at_work_or_cannot_answer_is_alive_however_long(state: str, answers: bool) -> None:
    assert not any(looks(10 * LOOKS, state, answers=answers))


@pytest.mark.parametrize("state", ["S", "T", ""])
def test_processor_time_and_answers_are_signs_of_life_in_every_state(state: str) -> None:
    pulse = Pulse()
    assert not any(pulse.frozen(state, 0.001 * n, received=False, answers=True) for n in range(1, 5 * LOOKS))
    assert not any(looks(5 * LOOKS, state, received=True))


def test_one_sign_of_life_begins_the_count_anew() -> None:
    pulse = Pulse()
    for _ in range(LOOKS - 1):
        pulse.frozen("T", 0.0, received=False, answers=True)
    signs = [pulse.frozen("T", 0.001, received=False, answers=True) for _ in range(LOOKS + 1)]
    assert signs == [False] * LOOKS + [True]


def test_the_signs_of_a_process_are_read_and_unknown_ones_do_no_harm() -> None:
    before_s = process_cpu_s(os.getpid())
    while process_cpu_s(os.getpid()) == before_s > 0.0:
        sum(range(1000))
    assert process_state(os.getpid()) in ("R", "")
    assert process_state(2**22 + 1) == ""
    assert process_cpu_s(2**22 + 1) == 0.0
