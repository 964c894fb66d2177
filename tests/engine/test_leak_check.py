"""The leak check sees what it is for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import PROJECT

LEAKS = {
    "process": "import subprocess, sys; KEPT.append(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1))",
    "file descriptor": "import os; KEPT.append(os.open('/dev/null', os.O_RDONLY))",
    "/dev/shm/": "open(f'/dev/shm/hetero-leak-check-{__import__(\"os\").getpid()}', 'wb').close()",
}
PROGRAM = """
import glob, os
import tests.conftest as house
from tests.conftest import no_leaks, own_settings

house.GRACE_S = 0.2
KEPT = []

def test_something(no_leaks):
    {leak}

def teardown_module():
    for process in KEPT:
        if hasattr(process, "kill"):
            process.kill()
    for path in glob.glob(f"/dev/shm/hetero-leak-check-{{os.getpid()}}"):
        os.unlink(path)
"""


def _outcome(leak: str, folder: Path) -> str:
    file = folder / "test_leak.py"
    file.write_text(PROGRAM.format(leak=leak), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(file)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=250, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("what", LEAKS)
def test_what_a_test_leaves_behind_fails_it(what: str, tmp_path: Path) -> None:
    out = _outcome(LEAKS[what], tmp_path)
    assert f"left behind: {what}" in out
    assert "1 passed, 1 error" in out


def test_a_test_that_leaves_nothing_passes(tmp_path: Path) -> None:
    assert "1 passed" in _outcome("pass", tmp_path)


def test_a_process_of_the_runner_that_dies_ends_the_run_and_its_test_is_named(tmp_path: Path) -> None:
    hooks = "pytest_configure_node, pytest_runtest_protocol, pytest_sessionstart, pytest_testnodedown"
    (tmp_path / "conftest.py").write_text(f"from tests.conftest import {hooks}\n", encoding="utf-8")
    killed = "import os\ndef test_before(): pass\ndef test_dies(): os.kill(os.getpid(), 9)\ndef test_after(): pass\n"
    (tmp_path / "test_killed.py").write_text(killed, encoding="utf-8")
    (tmp_path / "test_others.py").write_text("def test_other(): pass\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=250, check=False)
    assert "was killed by SIGKILL while it ran test_killed.py::test_dies" in done.stdout
    assert done.returncode == 3


STEPS = """
import sys, torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], 0.5)
(2 * weight).backward(torch.ones(2))
optimizer.step()
print(weight.tolist(), {"torch._dynamo", "torch.fx.experimental.symbolic_shapes"} & set(sys.modules))
try:
    (2 * weight).backward(torch.ones(3))
except RuntimeError as error:
    print("Mismatch in shape" in str(error))
print(torch.compile(lambda: optimizer.step(), backend="eager")(), weight.tolist())
"""


def test_a_step_of_torch_in_a_process_of_the_tests_loads_no_compiler_before_one_is_called() -> None:
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout.splitlines() == ["[0.0, 0.0] set()", "True", "None [-1.0, -1.0]"]
