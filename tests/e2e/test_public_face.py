"""The program that users have read about runs as written: as a script, from -c, from standard input, in a cell."""

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

PROGRAM = """\
import hetero, numpy as np

ctx = hetero.Context(config="hetero_config.yaml", memory_pool_size="2GB")

@hetero.task
def matrix_multiply(a, b):
    device = hetero.get_current_device()
    if device.type == "GPU":
        import cupy as cp
        return cp.dot(cp.asarray(a), cp.asarray(b)).get()
    return np.dot(a, b)

result = ctx.run(matrix_multiply, np.random.rand(1024, 1024), np.random.rand(1024, 1024))
"""

TOLD = PROGRAM + "print(result.shape, float(result.min()) > 0.0)\n"

AS_PRINTED = """\
devices:
- type: GPU
  id: 0
  memory_limit: 8GB
- type: CPU
  cores: 8
communication:
  protocol: RDMA
  buffer_size: 64MB
"""

CPU_ONLY = """\
devices:
- type: CPU
  cores: 1
communication:
  protocol: auto
  buffer_size: 64MB
"""


def run(words: list[str], folder: Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=folder, input=text, capture_output=True, text=True, timeout=250, check=False
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hetero_config.yaml").write_text(CPU_ONLY)
    (tmp_path / "program.py").write_text(TOLD)
    return tmp_path


@pytest.mark.parametrize("way", ["script", "command", "standard input", "module"])
def test_the_program_runs_verbatim(way: str, folder: Path) -> None:
    words = {"script": ["program.py"], "command": ["-c", TOLD], "standard input": ["-"], "module": ["-m", "program"]}
    done = run(words[way], folder, TOLD if way == "standard input" else None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1024, 1024) True\n", "")


def test_the_program_runs_under_the_run_command_with_another_fleet(folder: Path) -> None:
    done = run(["-m", "hetero", "run", "program.py"], folder)
    assert (done.returncode, done.stdout) == (0, "(1024, 1024) True\n")


def test_the_configuration_as_printed_names_all_that_is_absent_at_once(folder: Path) -> None:
    (folder / "hetero_config.yaml").write_text(AS_PRINTED)
    kinds = {device.kind for device in hetero.inspect.get_device_list()}
    done = run(["program.py"], folder)
    message = done.stderr[done.stderr.index("ConfigError: ") :]
    assert done.returncode != 0
    absent = [("cuda" not in kinds and "rocm" not in kinds, "gpu 0"), (len(os.sched_getaffinity(0)) < 8, "8 cores")]
    words = [word for is_absent, word in absent if is_absent]
    assert all(word in message for word in (*words, "'rdma' is not available", "optional: true"))
    proposed = message[message.index("devices:\n") :]
    (folder / "hetero_config.yaml").write_text(proposed)
    assert run(["program.py"], folder).stdout == "(1024, 1024) True\n"


def test_importing_hetero_is_light(folder: Path) -> None:
    heavy = "('torch', 'jax', 'ray', 'numba', 'scipy', 'numpy', 'asyncio')"
    done = run(["-c", f"import hetero, sys; print([m for m in {heavy} if m in sys.modules])"], folder)
    assert done.stdout == "[]\n"


def test_opening_a_context_loads_no_framework(folder: Path) -> None:
    heavy = "('torch', 'jax', 'ray', 'numba', 'scipy', 'pandas')"
    text = f"import hetero, sys; hetero.Context(devices='1xcpu'); print([m for m in {heavy} if m in sys.modules])"
    assert run(["-c", text], folder).stdout == "[]\n"


def test_every_public_name_can_be_imported(folder: Path) -> None:
    text = "import hetero\nfor name in hetero.__all__: getattr(hetero, name)\nprint(hetero.__version__ != '')"
    assert run(["-c", text], folder).stdout == "True\n"


def test_a_misspelt_name_is_told(folder: Path) -> None:
    done = run(["-c", "import hetero; hetero.Contxt"], folder)
    assert "hetero has no 'Contxt'; did you mean 'Context'?" in done.stderr


def test_star_import_and_submodule_import_work(folder: Path) -> None:
    text = (
        "from hetero import *\nfrom hetero.errors import HeteroError as H\nprint(H is errors.HeteroError, bool(task))"
    )
    assert run(["-c", text], folder).stdout == "True True\n"


def children_of(marker: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["environ"]):
        environ = process.info["environ"] or {}
        if environ.get("HETERO_TEST_MARK") == marker:
            found.append(process.pid)
    return found


@pytest.mark.parametrize("end", ["falls off", "exits", "raises", "is interrupted", "is killed"])
def test_a_program_that_ends_with_tasks_running_does_not_hang_and_leaves_no_process(end: str, folder: Path) -> None:
    last = {"falls off": "", "exits": "import sys; sys.exit(3)", "raises": "1 / 0"}.get(end, "time.sleep(60)")
    text = (
        "import hetero, time\nctx = hetero.Context(devices='2xcpu')\nprint(ctx.run(abs, -1), flush=True)\n"
        f"futures = [ctx.submit(time.sleep, 60) for _ in range(4)]\ntime.sleep(0.3)\n{last}\n"
    )
    mark = f"{os.getpid()}-{end}"
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=folder,
        env={**os.environ, "HETERO_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    if end.startswith("is "):
        time.sleep(0.5)
        process.send_signal(signal.SIGINT if end == "is interrupted" else signal.SIGKILL)
    start = time.monotonic()
    code = process.wait(40)
    process.stdout.close()
    assert time.monotonic() - start < 40
    assert code == {"falls off": 0, "exits": 3, "raises": 1, "is killed": -9}.get(end, code)
    deadline = time.monotonic() + 20
    while children_of(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children_of(mark) == []


def test_progress_is_told_in_plain_lines_where_there_is_no_terminal(folder: Path) -> None:
    text = (
        "import hetero\nwith hetero.Context(devices='2xcpu', progress=True) as ctx:\n"
        "    ctx.gather([ctx.submit(abs, -i) for i in range(20)])\n"
    )
    done = run(["-c", text], folder)
    assert "20 of 20 tasks done" in done.stderr
    assert "\x1b" not in done.stderr


def test_the_debug_switch_tells_placements(folder: Path) -> None:
    text = "import hetero\nhetero.set_log_level('DEBUG')\nhetero.Context(devices='1xcpu').run(abs, -1)\n"
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env={**os.environ, "HETERO_DEBUG": "2"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert "task 1 (abs) to cpu:0: ends at" in done.stderr
