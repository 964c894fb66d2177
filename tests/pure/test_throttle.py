"""The throttle of a device sleeps (1/f − 1) × CPU time, once, and the formula stands in one place."""

from __future__ import annotations

import re

import pytest

from hetero.drive.throttle import Stopwatch, Throttle
from hetero.floor import clock
from tests.needs import PROJECT


class _Clocks:
    """A wall clock and a CPU clock that a test moves; each sleep takes `late_s` longer than was asked for."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = self.late_s = 0.0
        self.sleeps: list[float] = []

    def work(self, cpu_s: float, waited_s: float = 0.0) -> None:
        self.cpu_s += cpu_s
        self.wall_s += cpu_s + waited_s

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.wall_s += seconds + self.late_s


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> _Clocks:
    made = _Clocks()
    monkeypatch.setattr(clock, "thread_cpu_s", lambda: made.cpu_s)
    monkeypatch.setattr(clock, "monotonic_s", lambda: made.wall_s)
    monkeypatch.setattr(clock, "sleep", made.sleep)
    return made


def test_a_part_is_followed_by_sleep_for_its_cpu_time_alone(clocks: _Clocks) -> None:
    throttle = Throttle(0.25)
    with throttle:
        clocks.work(2.0, waited_s=5.0)
    assert clocks.sleeps == [6.0]
    assert throttle.seconds == 13.0
    assert throttle.slept_for_s == 2.0


def test_cpu_time_between_parts_counts_unless_the_throttle_is_restarted(clocks: _Clocks) -> None:
    throttle = Throttle(0.5)
    clocks.work(1.0)
    with throttle:
        clocks.work(2.0)
    clocks.work(4.0)
    throttle.restart()
    with throttle:
        clocks.work(1.0)
    assert clocks.sleeps == [3.0, 1.0]


def test_what_a_sleep_took_too_long_is_taken_off_the_next_but_no_more_than_a_millisecond(clocks: _Clocks) -> None:
    throttle = Throttle(0.5)
    clocks.late_s = 0.25
    for _ in range(2):
        clocks.work(1.0)
        throttle.pause()
    assert clocks.sleeps == [1.0, pytest.approx(0.999)]


def test_a_device_at_full_speed_never_sleeps(clocks: _Clocks) -> None:
    throttle = Throttle(1.0)
    clocks.work(1.0)
    with throttle:
        clocks.work(2.0)
    throttle.pause()
    assert not throttle.active
    assert clocks.sleeps == []
    assert throttle.seconds == 2.0


def test_a_stopwatch_adds_the_sleep_that_follows_the_task(clocks: _Clocks) -> None:
    watch = Stopwatch(0.25)
    clocks.work(2.0, waited_s=1.0)
    assert watch.seconds() == 9.0
    assert clocks.sleeps == []


def test_the_formula_of_the_throttle_stands_in_one_place() -> None:
    sources = (PROJECT / "src" / "hetero").rglob("*.py")
    found = [path.name for path in sources if re.search(r"1\.0 / [\w.]*frac - 1\.0", path.read_text(encoding="utf-8"))]
    assert found == ["throttle.py"]
