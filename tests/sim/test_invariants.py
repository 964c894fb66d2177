"""No task lost, none committed twice, no device over-committed, memory accounted for, every wait bounded."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from hetero.drive.sim import SimHooks, SimResult, simulate
from tests.needs import PROJECT
from tests.sim import soak

FAULTS = {
    "crash", "hang", "exception", "out_of_memory", "missing_package", "transfer", "start", "duplicate", "late",
    "cancel", "kill", "permanent", "back", "slowdown", "split", "stopped", "withdrawn", "discarded", "recommit",
}  # fmt: skip

TRANSITIONS = {
    ("TaskSubmitted", "over"), ("TaskSubmitted", "SUBMITTED"),
    ("CancelRequested", "SUBMITTED"), ("CancelRequested", "READY"), ("CancelRequested", "RUNNING"),
    ("CancelRequested", "over"),
    ("TaskFinished", "RUNNING"), ("TaskFinished", "RUNNING, late"), ("TaskFinished", "READY"), ("TaskFinished", "over"),
    ("TaskFailed", "RUNNING"), ("TaskFailed", "READY"), ("TaskFailed", "over"),
    ("TaskWithdrawn", "RUNNING"),
    ("DeviceAdded", "none"), ("DeviceAdded", "GONE"),
    ("DeviceReady", "STARTING"), ("DeviceReady", "LOST"), ("DeviceReady", "READY"),
    ("DeviceLost", "READY"), ("DeviceLost", "LOST"),
    ("UtilisationReported", "READY"),
    ("TransferFinished", "awaited"), ("TransferFinished", "late"), ("TransferFailed", "awaited"),
    ("ItemPut", ""), ("ItemReleased", ""), ("TimerFired", ""),
}  # fmt: skip

RARE = {
    ("CancelRequested", "PLACED"), ("TaskFailed", "SUBMITTED"), ("TaskFailed", "RUNNING, late"),
    ("TaskFinished", "PLACED"), ("TaskFinished", "SUBMITTED"), ("TaskWithdrawn", "RUNNING, late"),
    ("DeviceLost", "GONE"), ("DeviceLost", "STARTING"), ("TransferFailed", "late"), ("UtilisationReported", "LOST"),
}  # fmt: skip


def soaked(count: int, seed: int, **more: object) -> SimResult:
    return simulate(
        soak.program(count, seed),
        soak.fleet(),
        soak.truth,
        topology=soak.topology(),
        seed=seed,
        costs=soak.COSTS,
        faults=soak.FAULTS,
        rules=soak.RULES,
        **more,  # type: ignore[arg-type]
    )


def judge(result: SimResult, coverage: soak.Coverage, transitions: set[tuple[str, str]]) -> None:
    counts = result.machine.counts
    assert counts.submitted == counts.committed + counts.failed
    assert len(result.commits) == counts.committed
    assert len(result.failures) == counts.failed
    assert not result.machine.tasks
    assert set(result.happened) >= FAULTS
    assert set(coverage.met) >= transitions


@pytest.mark.slow
def test_fifteen_thousand_events_with_every_fault_keep_every_invariant() -> None:
    coverage = soak.Coverage()
    result = soaked(7_000, 2, hooks=SimHooks(watch=coverage))
    assert sum(result.events.values()) > 15_000
    judge(result, coverage, TRANSITIONS)


def test_every_event_of_a_short_run_leaves_every_invariant() -> None:
    assert sum(soaked(600, 3, check_every=1).events.values()) > 1_000


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.timeout(600)
def test_a_million_events_with_every_fault_keep_every_invariant() -> None:
    coverage = soak.Coverage()
    result = soaked(400_000, 1, hooks=SimHooks(watch=coverage))
    assert sum(result.events.values()) > 1_000_000
    judge(result, coverage, TRANSITIONS | RARE)


def digest(seed: int) -> str:
    told = hashlib.sha256()
    hooks = SimHooks(lambda record: told.update(f"{type(record).__name__}{record!r}\n".encode()))
    soaked(3_000, seed, hooks=hooks)
    return told.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12])
def test_a_seed_replays_the_same_trace_under_any_hash_seed(seed: int) -> None:
    code = f"from tests.sim.test_invariants import digest; print(digest({seed}))"
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=PROJECT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(PROJECT)},
            capture_output=True,
            text=True,
            timeout=250,
            check=True,
        ).stdout
        for hash_seed in ("0", "4711")
    }
    assert len(told) == 1


@pytest.mark.slow
def test_another_seed_gives_another_trace() -> None:
    assert digest(11) != digest(12)
