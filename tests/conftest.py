"""What every test stands on: a home of its own, settings of its own, seeds, leak checks and golden files.

A process of the test runner that dies ends the run at once, with the test that it was running.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import hypothesis
import numpy as np
import psutil
import pytest

from hetero.floor import settings
from hetero.floor.platform import describe_exit
from tests.needs import PARTS, PROJECT, import_or_fail, in_ci, required
from tests.startup import sitecustomize

os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other spin: 20 times the time on a loaded machine
GOLDEN = PROJECT / "tests" / "golden"
GRACE_S = 5.0
KEPT_SWITCHES = {"HETERO_REQUIRE", "HETERO_TEST_DATA", "HETERO_SEED", "HETERO_CHECK"}

_CURRENT = pytest.StashKey[str]()
"""The file in which a process of the runner notes its test, '' without one."""

hypothesis.settings.register_profile("hetero", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("hetero")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--accept", action="store_true", help="write what the golden tests got over what they expected")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if in_ci():
        pytest.importorskip = import_or_fail  # type: ignore[assignment]
    unknown = [part for part in required() if part not in PARTS]
    if unknown:
        raise pytest.UsageError(f"HETERO_REQUIRE names {', '.join(unknown)}; known: {', '.join(PARTS)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest files and folders, so that all processes of the runner end at nearly the same time."""
    files = ("engine/test_launch.py", "docs/test_readme.py", "engine/test_train_deaths.py")
    names = (*files, "e2e", "engine", "backend", "docs", "sim")
    rank = {PROJECT / "tests" / name: place for place, name in enumerate(names)}
    items.sort(key=lambda item: rank.get(item.path, rank.get(item.path.parent, len(names))))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of the runner where to note which test it runs."""
    handle, node.workerinput["current_test"] = tempfile.mkstemp(prefix="hetero-current-test-")
    os.close(handle)


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_CURRENT] = getattr(session.config, "workerinput", {}).get("current_test", "")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    note = item.config.stash[_CURRENT]
    if note:
        Path(note).write_text(item.nodeid, encoding="utf-8")
    done = yield
    if note:
        Path(note).write_text(f"(between tests, after {item.nodeid})", encoding="utf-8")
    return done


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """End the run when a process of the runner has died: whoever waits for its tests would wait for ever."""
    note = Path(node.workerinput["current_test"])
    test = note.read_text(encoding="utf-8")
    note.unlink()
    if error:
        how = describe_exit(node.gateway._io.popen.wait(10))
        pytest.exit(f"the runner's process {node.gateway.id} {how} while it ran {test}", returncode=3)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name what failed at once in CI: a run that is stopped prints no summary."""
    if report.failed and "CI" in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nfailed: {report.nodeid} ({report.when})", file=sys.__stderr__, flush=True)


@pytest.fixture(scope="session", autouse=True)
def own_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the tests a home of their own, none of the developer's switches, and the core's invariants checked.

    Every process that they start does what `tests/startup/sitecustomize.py` says, as this one does.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in {switch.name for switch in settings.SWITCHES} - KEPT_SWITCHES:
            patch.delenv(name, raising=False)
        home = tmp_path_factory.mktemp("hetero-home")
        patch.setenv("HETERO_HOME", str(home))
        patch.setenv("PYTHONPATH", str(Path(sitecustomize.__file__).parent), prepend=os.pathsep)
        patch.setenv("HETERO_CHECK", os.environ.get("HETERO_CHECK", "1"))
        yield home


@pytest.fixture
def rng() -> np.random.Generator:
    """Return random numbers that HETERO_SEED decides."""
    return np.random.default_rng(settings.seed())


class Golden(Protocol):
    """Compares a text, or one line of a file of many, with the file of that name in tests/golden."""

    def __call__(self, name: str, text: str, line: int | None = None) -> None: ...


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Return `golden(name, text)`, which compares a text with the file of that name in tests/golden."""
    accept = bool(request.config.getoption("--accept"))

    def compare(name: str, text: str, line: int | None = None) -> None:
        path = GOLDEN / name
        whole = path.read_text(encoding="utf-8") if path.exists() else ""
        expected = whole if line is None else [*whole.splitlines(), *[""] * (line + 1)][line]
        if accept and text != expected:
            lines = whole.splitlines()
            lines += [""] * (0 if line is None else line + 1 - len(lines))
            if line is not None:
                lines[line] = text
            path.write_text(text if line is None else "\n".join(lines) + "\n", encoding="utf-8")
            expected = text
        assert text == expected, f"{name} differs; if the new text is right: pytest {request.node.nodeid} --accept"

    return compare


def _descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def _files() -> dict[int, str]:
    """Return the open file descriptors of this process and what they point to."""
    folder, found = Path("/proc/self/fd"), {}
    for name in os.listdir(folder):
        try:
            found[int(name)] = os.readlink(folder / name)
        except FileNotFoundError:
            continue
    return {fd: target for fd, target in found.items() if not target.startswith(("/proc/", "/dev/urandom"))}


def _blocks() -> set[str]:
    """Return the shared-memory blocks that hetero may have made; other libraries' are their own affair."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("hetero")}


def _held_by_others(block: str) -> bool:
    """Return whether a process that is not of this test's family maps or opens a shared-memory block."""
    family = _descendants() | {os.getpid()}
    for process in psutil.process_iter():
        if process.pid in family:
            continue
        try:
            maps = {row.path for row in process.memory_maps()} | {row.path for row in process.open_files()}
        except (psutil.Error, OSError):
            continue
        if f"/dev/shm/{block}" in maps:
            return True
    return False


def _left_behind(children: set[int], files: dict[int, str], blocks: set[str]) -> list[str]:
    new_files = [f"file descriptor {fd} -> {to}" for fd, to in _files().items() if files.get(fd) != to]
    new_children = [f"process {pid}" for pid in sorted(_descendants() - children)]
    return new_children + new_files + [f"/dev/shm/{name}" for name in sorted(_blocks() - blocks)]


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail when a test leaves a child process, a file descriptor or a shared-memory block behind.

    What goes away within five seconds is not left behind; neither are blocks that other programs hold. What was there
    before the test is frozen: the test's garbage is found without a look at all that the runner holds.
    """
    gc.freeze()
    before = _descendants(), _files(), _blocks()
    yield
    deadline = time.monotonic() + GRACE_S
    left = _left_behind(*before)
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        gc.collect()
        left = _left_behind(*before)
    gc.unfreeze()
    left = [item for item in left if not (item.startswith("/dev/shm/") and _held_by_others(item[9:]))]
    assert not left, "left behind: " + "; ".join(left)
