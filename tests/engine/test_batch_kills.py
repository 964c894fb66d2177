"""Killed at any moment and begun again, a bulk run gives the bytes of an undisturbed one, and repeats little."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import hetero
from hetero.batch.options import BatchOptions

PROGRAM = Path(__file__).parent / "batch_program.py"
IN_FLIGHT = 2 * 2 * 8


def start(out: str, calls: Path, merge: str = "") -> subprocess.Popen[str]:
    command, env = [sys.executable, str(PROGRAM), out, merge], {**os.environ, "CALLS": str(calls)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=env)


def kill_once_it_has_done(process: subprocess.Popen[str], calls: Path, more: int) -> None:
    """Kill a program and all its workers once its function was called so many times more."""
    before = len(calls.read_text().splitlines()) if calls.exists() else 0
    until_s = time.monotonic() + 30.0
    while time.monotonic() < until_s and process.poll() is None:
        if calls.exists() and len(calls.read_text().splitlines()) >= before + more:
            break
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    psutil.wait_procs(workers, timeout=10)


def items_done(calls: Path) -> int:
    return sum(int(line.split()[1]) for line in calls.read_text().splitlines())


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.slow
def test_a_run_killed_twice_gives_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    calm = start(str(tmp_path / "calm"), tmp_path / "calm-calls")
    assert calm.wait(60) == 0
    calls = tmp_path / "calls"
    for more in (5, 6):
        kill_once_it_has_done(start(str(tmp_path / "killed"), calls), calls, more)
    last = start(str(tmp_path / "killed"), calls)
    said, _ = last.communicate(timeout=250)
    assert int(said.split()[-1]) > 0
    assert content(tmp_path / "killed") == content(tmp_path / "calm")
    assert items_done(calls) - 160 <= 2 * IN_FLIGHT + IN_FLIGHT


@pytest.mark.slow
def test_a_merge_with_a_name_goes_on_after_a_kill_and_is_the_same_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETERO_HOME", str(tmp_path))
    calls = tmp_path / "calls"
    kill_once_it_has_done(start("sums", calls, "sum"), calls, 8)
    said, _ = start("sums", calls, "sum").communicate(timeout=250)
    calm, _ = start("calm", tmp_path / "calm-calls", "sum").communicate(timeout=250)
    assert int(said.split()[1]) > 0
    assert said.split()[0] == calm.split()[0]


def test_killed_workers_cost_their_batches_in_flight_and_no_more(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def work(batch: list[int]) -> list[int]:
        with calls.open("a") as file:
            file.write(f"{batch[0]} {len(batch)} {os.getpid()}\n")
        time.sleep(0.005 * len(batch))
        return batch

    killed = 0

    def kill_a_worker(results: list[int]) -> None:
        nonlocal killed
        if killed < 3:
            os.kill(int(calls.read_text().splitlines()[-1].split()[2]), signal.SIGKILL)
            killed += 1

    with hetero.Context(devices="2xcpu", history=False) as ctx:
        outcome = ctx.map_batches(
            work, range(600), batch=8, output=kill_a_worker, options=BatchOptions(part=150, learn=False)
        )
    assert killed == 3
    assert not outcome.bad
    assert items_done(calls) - 600 <= 3 * 2 * 8 + IN_FLIGHT


def test_results_that_wait_are_kept_on_disk_when_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[int] = []

    def look(batch: list[int]) -> list[int]:
        return batch

    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
        ctx.map_batches(look, range(100), output=out, options=BatchOptions(spill=True, part=50), batch=5)
    seen += [int(line) for path in sorted(out.glob("part-*")) for line in path.read_text().splitlines()]
    assert seen == list(range(100))
