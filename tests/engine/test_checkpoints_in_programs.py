"""Checkpoints as users meet them: workers that die, programs that are killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hetero
from hetero.floor import settings

PROGRAM = """
import hetero, pathlib, sys, time

ctx = hetero.Context(devices="1xcpu", name=sys.argv[1] or None)
seen = pathlib.Path(sys.argv[2])

@hetero.task
def total(count, pause):
    loop = hetero.resumable(range(count), every=5, state=0)
    for item in loop:
        with seen.open("a") as file:
            file.write(f"{item}\\n")
        loop.state += item
        time.sleep(pause)
    return loop.state

print(ctx.run(total, 40, float(sys.argv[3])))
ctx.close()
"""


def run_program(name: str, seen: Path, pause_s: float) -> str:
    command = [sys.executable, "-c", PROGRAM, name, str(seen), str(pause_s)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=True).stdout.strip()


def start_and_kill(name: str, seen: Path) -> int:
    """Start the program, kill it after its twelfth item, and give the number of items that it began."""
    command = [sys.executable, "-c", PROGRAM, name, str(seen), "0.02"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
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
