"""Bulk work with a worker killed every 2 s, and with the whole killed 20 times: output, and work that was repeated.

Each call of the function appends a line to a file, so that repeated work is counted outside of hetero.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from hetero.batch import BatchOptions

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BATCH, DEVICES, QUEUED = 8, 2, 2
IN_FLIGHT = BATCH * DEVICES * QUEUED
RECORD_S = 0.01
LIMIT_S = 300.0


def work_through(out: str, log: str, count: int) -> None:
    """Run the job, or go on with it; this is the process that is killed."""
    import hetero

    def note(batch: list[int]) -> list[str]:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{batch[0]} {len(batch)} {os.getpid()}\n")
        time.sleep(RECORD_S * len(batch))
        return [f"record {x}" for x in batch]

    with hetero.Context(devices="2xcpu", history=False) as ctx:
        ctx.map_batches(
            note, range(count), output=out, options=BatchOptions(part=200, learn=False), batch=BATCH, resume=True
        )


def start(out: Path, log: Path, count: int) -> subprocess.Popen[bytes]:
    """Start the job in a process group of its own."""
    command = [sys.executable, __file__, "--work-through", str(out), str(log), str(count)]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)


def calls(log: Path) -> list[list[int]]:
    """Return first record, size and process of each call."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [[int(word) for word in line.split()] for line in lines if line.count(" ") == 2]


def kill_workers(out: Path, log: Path, count: int, period_s: float) -> int:
    """Run the job and kill one of its workers every so often; returns how many were killed."""
    process, chance, kills, ended = start(out, log, count), random.Random(1), 0, threading.Event()
    watcher = threading.Thread(target=lambda: (process.wait(LIMIT_S), ended.set()))
    watcher.start()
    while not ended.wait(period_s):
        alive = sorted({pid for _, _, pid in calls(log)[-2 * DEVICES :] if psutil.pid_exists(pid)})
        if alive:
            os.kill(chance.choice(alive), signal.SIGKILL)
            kills += 1
    watcher.join()
    return kills


def kill_all(out: Path, log: Path, count: int, times: int) -> int:
    """Run the job and kill all of it so many times, each time after a part of the work; returns how many."""
    kills = 0
    for _ in range(times):
        process, before = start(out, log, count), len(calls(log))
        until_s = time.monotonic() + LIMIT_S
        more = count // BATCH // (times + 2)
        while process.poll() is None and len(calls(log)) < before + more and time.monotonic() < until_s:
            time.sleep(0.005)
        if process.poll() is None:
            workers = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
            psutil.wait_procs(workers, timeout=30)
        process.wait()
    assert start(out, log, count).wait(LIMIT_S) == 0, "the last run ends well"
    return kills


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def main() -> None:
    """Run the benchmark."""
    from benchmarks.common import Bench, arguments

    given = arguments(str(__doc__).splitlines()[0])
    count, period_s, times = (400, 1.0, 2) if given.quick else (4_000, 2.0, 20)
    bench = Bench("batch_kills", str(__doc__).splitlines()[0], (), given.out)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        logs = {word: folder / f"{word}-calls" for word in ("calm", "workers", "whole")}
        assert start(folder / "calm", logs["calm"], count).wait(LIMIT_S) == 0
        kills = {"workers": kill_workers(folder / "workers", logs["workers"], count, period_s)}
        kills["whole"] = kill_all(folder / "whole", logs["whole"], count, times)
        for word, number in kills.items():
            repeated = sum(size for _, size, _ in calls(logs[word])) - count
            same = content(folder / word) == content(folder / "calm")
            bench.note(**{f"{word} killed": number, f"{word}, records done again": repeated})
            bench.claim(f"{word} killed {number} times: output byte-equal", float(same), unit="", at_least=1)
            bench.claim(
                f"{word} killed: records done again a kill", repeated / max(1, number), unit="", at_most=IN_FLIGHT
            )
    bench.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work-through"]:
        work_through(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
