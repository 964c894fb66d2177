"""Ray executes what hetero decided, is started and joined only as told, and a wrong address is told at once."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import PROJECT

pytestmark = [pytest.mark.timeout(1000), pytest.mark.slow, pytest.mark.servers]

PATIENCE_S = 900.0
JOIN = """
import sys, hetero
from hetero.errors import HeteroError
try:
    hetero.Context(devices="1xcpu", engine="ray", address=sys.argv[1], history=False)
except HeteroError as error:
    print(type(error).__name__, error)
"""
LEAVES = """
import os, hetero, psutil
import ray
os.environ["RAY_ADDRESS"] = "10.0.0.1:6379"
left = []
for turn in range(2):
    with hetero.Context(devices="1xcpu", engine="ray", memory_pool_size="80MB", history=False) as ctx:
        actor = ctx.run(os.getpid)
        family = psutil.Process().children(recursive=True)
        folder = ray._private.worker._global_node.get_session_dir_path()
    gone, still = psutil.wait_procs(family, 60)
    left += still
kept = "RAY_AUTH_TOKEN" in os.environ or os.environ["RAY_ADDRESS"] != "10.0.0.1:6379"
print(left, actor in [process.pid for process in gone], os.path.exists(folder), kept)
"""
RESUMES = """
import pathlib, sys, time, hetero
seen = pathlib.Path(sys.argv[1])
@hetero.task
def total(count):
    loop = hetero.tasks.resumable(range(count), every=5, state=0)
    for item in loop:
        with seen.open("a") as file:
            file.write(f"{item}\\n")
        loop.state += item
        if item == 17 and not seen.with_suffix(".killed").exists():
            time.sleep(3600)
    return loop.state
with hetero.Context(devices="1xcpu", engine="ray", memory_pool_size="80MB", name="again", history=False) as ctx:
    print(ctx.run(total, 40))
"""


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Have a server that says one thing to whoever calls."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = server.accept()
                    with line:
                        line.recv(1000)
                        line.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_what_holds_of_tasks_on_the_local_engine_holds_on_ray(tmp_path: Path) -> None:
    options = ("-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/suite")
    said = run("-m", "pytest", *options, "tests/engine/ray_suite.py")
    assert " passed" in said.splitlines()[-1]


def test_clusters_of_its_own_leave_no_process_no_folder_and_no_variable_behind() -> None:
    assert run("-c", LEAVES).splitlines()[-1] == "[] True False False"


def test_an_address_that_nobody_answers_at_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    said = run("-c", JOIN, address)
    assert said.startswith(f"EngineError no Ray cluster answers at {address}: Connection refused; start it with")


def test_an_address_where_something_else_answers_is_told() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        said = run("-c", JOIN, address)
    assert said.startswith(f"EngineError what answers at {address} is no Ray cluster, or one that")


def test_importing_hetero_and_a_local_context_leave_ray_alone() -> None:
    program = (
        "import sys, hetero\n"
        "with hetero.Context(devices='1xcpu', history=False) as ctx: ctx.run(abs, -1)\n"
        "print('ray' in sys.modules)"
    )
    assert run("-c", program) == "False"


def test_a_program_that_is_killed_and_started_again_under_its_name_goes_on_after_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    seen = tmp_path / "seen"
    command = [sys.executable, "-c", RESUMES, str(seen)]
    with subprocess.Popen(command, cwd=PROJECT) as program:
        deadline_s = time.monotonic() + PATIENCE_S
        while not seen.exists() or len(seen.read_text().split()) < 18:
            assert program.poll() is None
            assert time.monotonic() < deadline_s, "the program does not come on"
            time.sleep(0.1)
        program.kill()
    seen.with_suffix(".killed").touch()
    assert run("-c", RESUMES, str(seen)).splitlines()[-1] == str(sum(range(40)))
    assert [int(word) for word in seen.read_text().split()] == [*range(18), *range(15, 40)]
