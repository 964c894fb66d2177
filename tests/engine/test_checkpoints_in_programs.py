"""Checkpoints as users meet them: workers that die, programs that are killed and started again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.floor import settings

PROGRAM = """
import hetero, os, pathlib, sys, time

ctx = hetero.Context(devices="1xcpu", name=sys.argv[1] or None)
seen = pathlib.Path(sys.argv[2])

@hetero.task
def total(count):
    loop = hetero.tasks.resumable(range(count), every=5, state=0)
    for item in loop:
        with seen.open("a") as file:
            file.write(f"{item}\\n")
        loop.state += item
        time.sleep(float(os.environ["PAUSE_S"]))
    return loop.state

print(ctx.run(total, 40))
ctx.close()
"""


def run_program(name: str, seen: Path, pause_s: float) -> str:
    command = [sys.executable, "-c", PROGRAM, name, str(seen)]
    environ = {**os.environ, "PAUSE_S": str(pause_s)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=250, check=True)
    return done.stdout.strip()


def start_and_kill(name: str, seen: Path) -> int:
    """Start the program, kill it after its twelfth item, and give the number of items that it began."""
    command = [sys.executable, "-c", PROGRAM, name, str(seen)]
    environ = {**os.environ, "PAUSE_S": "0.02"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        deadline_s = time.monotonic() + 60
        while not seen.exists() or len(seen.read_text().split()) < 12:
            assert time.monotonic() < deadline_s, "the program does not come on"
            time.sleep(0.005)
        program.send_signal(signal.SIGKILL)
    time.sleep(0.5)  # its worker dies with it
    return len(seen.read_text().split())


def kept() -> list[Path]:
    return [path for path in (settings.home() / "checkpoints").rglob("*=") if path.is_file()]


def test_a_program_started_again_under_the_same_name_resumes(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    begun = start_and_kill("again", seen)
    assert run_program("again", seen, 0.0) == str(sum(range(40)))
    items = [int(word) for word in seen.read_text().split()]
    resumed = items[begun]
    assert resumed % 5 == 0
    assert begun - 6 <= resumed <= begun
    assert items[begun:] == list(range(resumed, 40))


def test_a_program_that_ended_well_starts_from_the_beginning(tmp_path: Path) -> None:
    before = kept()
    for turn in range(2):
        seen = tmp_path / f"seen{turn}"
        assert run_program("twice", seen, 0.0) == str(sum(range(40)))
        assert len(seen.read_text().split()) == 40
    assert kept() == before


def test_a_program_without_a_name_starts_from_the_beginning_and_leaves_nothing(tmp_path: Path) -> None:
    before = kept()
    start_and_kill("", tmp_path / "seen")
    assert run_program("", tmp_path / "other", 0.0) == str(sum(range(40)))
    assert len((tmp_path / "other").read_text().split()) == 40
    assert kept() == before


def test_an_attempt_whose_worker_was_killed_resumes_in_the_next(tmp_path: Path) -> None:
    def work(seen: Path) -> tuple[int, list[str]]:
        done = hetero.restore("done") or []
        for step in range(len(done), 6):
            done = [*done, f"step {step}"]
            hetero.checkpoint("done", done)
            with seen.open("a") as file:
                file.write(f"{step}\n")
            if step == 3 and seen.read_text().count("3\n") == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return len(done), done

    with hetero.Context(devices="1xcpu") as ctx:
        count, done = ctx.run(work, tmp_path / "seen")
    assert (count, done[-1]) == (6, "step 5")
    assert (tmp_path / "seen").read_text().split() == ["0", "1", "2", "3", "4", "5"]


def test_tasks_of_the_same_function_resume_each_its_own(tmp_path: Path) -> None:
    def work(number: int, seen: Path) -> int:
        state = hetero.restore()
        if state is None:
            hetero.checkpoint("number", number)
            os.kill(os.getpid(), signal.SIGKILL)
        return int(state) * 10

    with hetero.Context(devices="1xcpu,1xcpu*0.9") as ctx:
        assert ctx.gather([ctx.submit(work, number, tmp_path) for number in range(4)]) == [0, 10, 20, 30]


def total(values: list[int], end: int) -> tuple[int, int]:
    """Add up the values, and fail at one; return the sum and where this attempt began."""
    begin, so_far = hetero.restore("place") or (0, 0)
    for place in range(begin, len(values)):
        if place == end:
            raise RuntimeError("stopped on purpose")
        so_far += values[place]
        hetero.checkpoint("place", (place + 1, so_far))
    return so_far, begin


def named(name: str, function: Any, *args: Any) -> Any:
    with hetero.Context(devices="1xcpu", engine="inline", name=name) as ctx:
        return ctx.run(function, *args)


def failed(name: str, function: Any, *args: Any) -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        named(name, function, *args)


def test_a_call_with_other_arguments_starts_anew_under_the_same_name() -> None:
    failed("other-input", total, [100, 1, 1], 2)
    assert named("other-input", total, [5, 5, 5], 9) == (15, 0)
    assert named("other-input", total, [100, 1, 1], 9) == (102, 0)


def adder(step: int) -> Any:
    """Return a function that takes the step along; what breaks it lies outside of what it is."""

    def add(values: np.ndarray[Any, Any], stop: Path) -> tuple[int, int]:
        begin, so_far = hetero.restore() or (0, 0)
        for place in range(begin, len(values)):
            if place == 2 and stop.exists():
                raise RuntimeError("stopped on purpose")
            so_far += int(values[place]) * step
            hetero.checkpoint("place", (place + 1, so_far))
        return so_far, begin

    return add


def test_equal_calls_resume_and_changed_code_or_bytes_start_anew(tmp_path: Path) -> None:
    stop, values = tmp_path / "stop", np.arange(1, 4)
    stop.touch()
    for _ in range(2):
        failed("code", adder(1), values, stop)
    stop.unlink()
    assert named("code", adder(10), values, stop) == (60, 0)
    assert named("code", adder(1), values + 1, stop) == (9, 0)
    assert named("code", adder(1), values.astype(np.float64), stop) == (6, 0)
    assert named("code", adder(1), values.copy(), stop) == (6, 2)


def test_calls_handed_in_in_another_order_resume_each_its_own(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    stop.touch()
    inputs = [[1, 2, 3], [10, 20, 30]]

    def both(order: list[int]) -> list[Any]:
        with hetero.Context(devices="1xcpu", engine="inline", name="order") as ctx:
            values = [ctx.put(np.array(inputs[which])) for which in order]
            futures = [ctx.submit(adder(1), value, stop) for value in values]
            return ctx.gather(futures, return_exceptions=True)

    assert all(isinstance(error, RuntimeError) for error in both([0, 1]))
    stop.unlink()
    assert both([1, 0]) == [(60, 2), (6, 2)]


def test_the_items_of_one_chunk_of_a_map_have_checkpoints_of_their_own() -> None:
    with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        assert list(ctx.map(total, [[1, 1], [7, 7, 7]], [9, 9], chunk=2)) == [(2, 0), (21, 0)]
        looped = ctx.map(lambda n: list(hetero.tasks.resumable(range(n))), [2, 3], chunk=2)
        assert list(looped) == [[0, 1], [0, 1, 2]]


def test_a_nested_task_does_not_resume_from_an_earlier_one_of_its_name(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    stop.touch()

    def outer(rows: list[list[int]], stop: Path) -> list[Any]:
        loop = hetero.tasks.resumable(rows, state=[])
        for row in loop:
            if len(loop.state) == 1 and stop.exists():
                raise RuntimeError("stopped on purpose")
            loop.state = [*loop.state, hetero.current_context().run(total, row, 9)[0]]
        return loop.state

    failed("nested", outer, [[1, 1], [5, 5, 5]], stop)
    stop.unlink()
    assert named("nested", outer, [[1, 1], [5, 5, 5]], stop) == [2, 15]


def test_a_seed_draws_the_same_in_runs_with_a_name_and_without() -> None:
    @hetero.task(seed=3)
    def draw(_: int) -> float:
        return random.random()

    drawn = []
    for name in ("seeded", None):
        with hetero.Context(devices="1xcpu", name=name) as ctx:
            drawn.append(ctx.gather([ctx.submit(draw, i) for i in (1, 1, 2)]))
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3
