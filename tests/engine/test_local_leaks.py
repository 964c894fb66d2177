from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(100)

PROGRAM = """
import os, sys, time
from hetero.engines.local.engine import LocalEngine
from hetero.floor.platform import FEATURES
from hetero.testing.engine import Bench
for word in {off!r}:
    setattr(FEATURES, word, False)
def pid(): return os.getpid()
def hang(a): time.sleep(1000)
bench = Bench(LocalEngine(10_000_000))
bench.ready()
import numpy as np
pids = [bench.value(pid, on=device) for device in (0, 1)]
for device in (0, 1):
    bench.launch(bench.call(hang, np.ones(100_000)), on=device)
print(*pids, flush=True)
{then}
"""


def start(then: str = "time.sleep(1000)", off: tuple[str, ...] = ()) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a program with two busy workers in a process group of its own; return it and the workers' ids."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(off=off, then=then)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    pids = [int(word) for word in program.stdout.readline().split()]
    assert len(pids) == 2
    return program, pids


def end(program: subprocess.Popen[str], pids: list[int]) -> None:
    program.wait(20)
    assert program.stdout is not None
    program.stdout.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(map(alive, pids)):
        time.sleep(0.05)
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "workers outlived the program"


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_killing_the_whole_process_group_leaves_nothing(no_leaks: None) -> None:
    program, pids = start()
    os.killpg(program.pid, signal.SIGKILL)
    end(program, pids)


@pytest.mark.parametrize("off", [(), ("parent_death_signal",)])
def test_killing_the_program_alone_ends_its_workers(no_leaks: None, off: tuple[str, ...]) -> None:
    program, pids = start(off=off)
    os.kill(program.pid, signal.SIGKILL)
    end(program, pids)


@pytest.mark.parametrize("then", ["", "sys.exit(3)", "raise SystemExit", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_a_program_that_forgets_to_stop_the_engine_leaves_nothing(no_leaks: None, then: str) -> None:
    program, pids = start(f"import signal\n{then}")
    end(program, pids)


def test_an_interrupted_program_leaves_nothing(no_leaks: None) -> None:
    program, pids = start(
        "signal = __import__('signal'); signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.stderr.close()\ntime.sleep(1000)"
    )
    time.sleep(0.3)
    os.killpg(program.pid, signal.SIGINT)
    end(program, pids)


def test_a_fork_that_ends_does_not_stop_the_engine_of_its_parent(no_leaks: None) -> None:
    then = (
        "if os.fork() == 0: sys.exit(0)\n"
        "os.wait()\n"
        "bench.engine.put(5, np.ones(20_000))\n"
        "assert bench.engine.load(5).sum() == 20_000\n"
        "assert all(os.path.exists(f'/proc/{pid}') for pid in pids)"
    )
    program, pids = start(then)
    end(program, pids)
    assert program.returncode == 0


def test_a_file_for_the_pool_has_no_name(no_leaks: None, tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    program, pids = start(off=("memfd",))
    assert set(os.listdir("/dev/shm")) <= before
    os.killpg(program.pid, signal.SIGKILL)
    end(program, pids)


SCRIPT = """
import os, hetero
from hetero.engines.local.engine import LocalEngine
from hetero.testing.engine import Bench
class Point:
    def __init__(self, x): self.x = x
def shift(point, by): return Point(point.x + by)
bench = Bench(LocalEngine(1_000_000))
bench.ready()
point = bench.value(shift, Point(1), 2)
print(point.x, type(point) is Point, bench.value(os.getpid) != os.getpid())
bench.value(print, "said by a task")
bench.engine.stop()
"""


@pytest.mark.parametrize("how", ["file", "-c", "stdin"])
def test_programs_run_without_a_main_guard_and_from_anywhere(how: str, tmp_path: Path, no_leaks: None) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    (tmp_path / "random.py").write_text("raise ImportError('a file beside the program')") if how != "file" else None
    command = {"file": [str(tmp_path / "program.py")], "-c": ["-c", SCRIPT], "stdin": ["-"]}[how]
    done = subprocess.run(
        [sys.executable, *(["-P"] if how != "file" else []), *command],
        input=SCRIPT if how == "stdin" else None, capture_output=True, text=True, timeout=250,
        cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["3 True True", "said by a task"]
    assert done.stderr == ""


def test_a_module_in_the_working_folder_reaches_the_workers(tmp_path: Path, no_leaks: None) -> None:
    (tmp_path / "own_module.py").write_text("def answer(): return 42")
    code = (
        "import own_module; from hetero.engines.local.engine import LocalEngine; "
        "from hetero.testing.engine import Bench; "
        "b = Bench(LocalEngine(1_000_000)); b.ready(); print(b.value(own_module.answer)); b.engine.stop()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=tmp_path, check=True)
    assert done.stdout == "42\n"
