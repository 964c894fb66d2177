"""Seeded programs with one seeded fault each: is each value right, and each error explained by the fault?

Each runs in a fork of a process that has imported everything, with rights, limits and mounts of its own.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import hetero
import hetero.session.context
from hetero.floor.platform import FEATURES

FAULTS = (
    *("none", "kill", "stop", "poison", "descriptors", "file size", "clock"),
    *("two programs", "read-only home", "full disk", "full memory"),
)
OF_PROCESSES = ("kill", "stop", "poison", "descriptors", "file size", "full memory")
EXPLAINED = {
    "poison": ("TaskLostError",),
    "kill": ("TaskLostError",),
    "stop": ("TaskLostError",),
    "descriptors": ("OSError", "NothingFitsError", "EngineError", "HeteroError"),
    "file size": ("OSError", "EngineError", "OutOfDeviceMemoryError", "HeteroError"),
}
EXPLAINED["full disk"] = EXPLAINED["file size"]
EXPLAINED["full memory"] = EXPLAINED["file size"]
PATIENCE_S = 100.0
BOUND_S = 120.0
_NEW_MOUNTS, _READ_ONLY, _REMOUNT, _BIND, _PRIVATE = 0x20000, 1, 32, 4096, 0x44000


def square(number: int) -> int:
    """Return a square."""
    return number * number


def total(*numbers: int) -> int:
    """Return a sum."""
    return sum(numbers)


def poison(number: int) -> int:
    """End the worker."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return number


def nap(number: int) -> int:
    """Take a little while."""
    time.sleep(0.01)
    return number * number


def filled(number: int) -> np.ndarray:
    """Return an array of 400 kB."""
    return np.full(50_000, number)


def total_of(array: np.ndarray) -> int:
    """Return the sum of an array."""
    return int(array.sum())


def forked(number: int, depth: int) -> int:
    """Return a square, as a sum of what nested tasks give."""
    if not depth:
        return nap(number)
    ctx = hetero.current_context()
    halves = [ctx.submit(forked, part, depth - 1) for part in (number, number)]
    return sum(half.result() for half in halves) // 2


def harm(ctx: object, word: int, chance: random.Random, ending: threading.Event) -> None:
    """Send a signal to random workers now and then."""
    for _ in range(3):
        if ending.wait(chance.uniform(0.05, 0.5)):
            return
        pids = list(ctx.driver.engine.pids().values())  # type: ignore[attr-defined]
        if pids:
            try:
                os.kill(chance.choice(pids), word)
            except ProcessLookupError:
                continue


def prepare(fault: str, folder: Path, chance: random.Random) -> None:
    """Copy about the faults of the surroundings."""
    os.environ["HETERO_HOME"] = str(folder)
    if fault == "descriptors":
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (chance.randint(24, 48), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
    elif fault == "file size":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    elif fault == "clock":
        real, step = time.time, chance.choice((-1e6, 1e6))
        time.time = lambda: real() + step
    elif fault == "read-only home":
        folder.chmod(0o500)
        if os.geteuid() == 0:
            mount(str(folder), folder, _BIND)
            mount(str(folder), folder, _BIND | _REMOUNT | _READ_ONLY)
    elif fault in ("full disk", "full memory"):
        if os.geteuid() == 0:
            mount("tmpfs", folder, options="size=1m")
        if fault == "full memory":
            FEATURES.memfd, FEATURES.shm_dir = False, str(folder)
        tempfile.tempdir = str(folder)
        fill(folder, chance.choice((0, 100_000)))


def mount(source: str, folder: Path, flags: int = 0, options: str = "") -> None:
    """Mount something for this process and its children alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    kind = source if source == "tmpfs" else ""
    if flags & _REMOUNT == 0 and libc.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    if libc.mount(b"none", b"/", None, _PRIVATE, None):
        raise OSError(ctypes.get_errno(), "mount --make-rprivate")
    if libc.mount(source.encode(), bytes(folder), kind.encode() or None, flags, options.encode() or None):
        raise OSError(ctypes.get_errno(), f"mount {source}")


def fill(folder: Path, left: int) -> None:
    """Fill the small disk that a folder lies on, but for some bytes."""
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    if free <= 1 << 20:
        (folder / "full").write_bytes(bytes(max(0, free - left)))


def go(seed: int, fault: str, chance: random.Random) -> list[str]:
    """Run the program; return what is wrong."""
    way: dict[str, Any] = {"isolation": "process" if fault in OF_PROCESSES else "thread"}
    if fault not in OF_PROCESSES and chance.random() < 0.3:
        way = {"engine": "inline"}
    if fault == "full memory":
        way["memory_pool_size"] = "1MB"
    wrong: list[str] = []
    ending = threading.Event()
    with hetero.Context(devices=f"{chance.randint(1, 2)}xcpu", **way) as ctx:
        if fault in ("kill", "stop"):
            word = signal.SIGKILL if fault == "kill" else signal.SIGSTOP
            threading.Thread(target=harm, args=(ctx, word, chance, ending), daemon=True).start()
        wanted: list[tuple[hetero.Future, int]] = []
        for index in range(chance.randint(5, 60)):
            draw = chance.random()
            if draw < 0.2 and len(wanted) > 2:
                parts = chance.sample(wanted, 2)
                wanted.append((ctx.submit(total, *[part[0] for part in parts]), sum(part[1] for part in parts)))
            elif draw > 0.8 and fault == "full memory":
                wanted.append((ctx.submit(total_of, ctx.submit(filled, index)), 50_000 * index))
            elif draw < 0.35:
                wanted.append((ctx.submit(forked, index, chance.randint(1, 3)), index * index))
            else:
                bad = fault == "poison" and draw > 0.9
                wanted.append((ctx.submit(poison if bad else chance.choice((square, nap)), index), index * index))
        for future, value in wanted:
            error = future.exception(PATIENCE_S)
            if error is None and future.result() != value:
                wrong.append(f"{future.name} gave {future.result()} for {value}")
            elif error is not None and not {kind.__name__ for kind in type(error).__mro__} & set(
                EXPLAINED.get(fault, ())
            ):
                wrong.append(f"{fault} does not explain {type(error).__name__}: {error}")
        ending.set()
    return wrong


def judge(seed: int, folder: Path) -> list[str]:
    """Run one seed in this process; return what is wrong."""
    chance = random.Random(seed)
    fault = FAULTS[seed % len(FAULTS)]
    prepare(fault, folder, chance)
    other = os.fork() if fault == "two programs" else -1
    try:
        wrong = go(seed, fault, chance)
    except Exception as error:  # noqa: BLE001  whatever comes out is judged
        explained = {kind.__name__ for kind in type(error).__mro__} & set(EXPLAINED.get(fault, ()))
        wrong = [] if explained else [f"{fault} does not explain {type(error).__name__}: {traceback.format_exc()}"]
    if other == 0:
        os._exit(bool(wrong))
    if other > 0 and os.waitpid(other, 0)[1]:
        wrong.append("the other program on the same home failed")
    return wrong


def fork(seed: int) -> str:
    """Run one seed in a process of its own; return what is wrong, '' for nothing."""
    with tempfile.TemporaryDirectory(prefix="hetero-chaos-") as folder, tempfile.TemporaryFile() as told:
        home = Path(folder, "home")
        home.mkdir()
        pid = os.fork()
        if not pid:
            os.setsid()
            os.dup2(told.fileno(), 2)
            wrong = judge(seed, home)
            os.write(1, f"seed {seed}: {wrong}\n".encode()) if wrong else None
            os._exit(bool(wrong))
        deadline_s = time.monotonic() + BOUND_S
        while time.monotonic() < deadline_s:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                told.seek(0)
                last = told.read().decode(errors="replace")[-1500:]
                return "" if not status else f"seed {seed} ({FAULTS[seed % len(FAULTS)]}): status {status}\n{last}"
            time.sleep(0.01)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return f"seed {seed} ({FAULTS[seed % len(FAULTS)]}): hangs for more than {BOUND_S:g} s"


if __name__ == "__main__":
    found = [text for seed in range(*map(int, sys.argv[1:4])) if (text := fork(seed))]
    print(*found, sep="\n")
    sys.exit(bool(found))
