"""What a run tells of itself: debug steps, the chosen policy, devices left out, trouble with files, use by others."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import hetero
from hetero.errors import HeteroError
from hetero.floor import platform
from hetero.model.device import Device
from hetero.model.events import UtilisationReported
from hetero.session import opening

PROGRAM = """
import hetero, numpy
fleet = [{"type": "cpu", "cores": 1}, {"type": "cpu", "cores": 1, "link": {"bandwidth": "1GB/s"}}]
with hetero.Context({"devices": fleet}, history=False) as ctx:
    data = ctx.put(numpy.ones(500_000))
    ctx.gather([ctx.submit(hetero.task(numpy.sum, on=f"cpu:{i}"), data) for i in range(2)])
    ctx.gather([ctx.submit(abs, -i) for i in range(4)])
"""


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HETERO_HOME", str(tmp_path / "home"))
    opening._warn_once.cache_clear()
    yield
    logging.getLogger("hetero").setLevel(logging.NOTSET)


def told(level: int) -> str:
    """Run the program with HETERO_DEBUG of this level; give what it wrote to standard error."""
    environment = {**os.environ, "HETERO_DEBUG": str(level)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout == ""
    return done.stderr


def test_each_step_of_hetero_debug_tells_what_its_switch_says_and_nothing_of_the_next() -> None:
    texts = [told(level) for level in range(5)]
    assert texts[0] == ""
    patterns = {
        1: r"h0/null:0 is not used: it computes nothing",
        2: r"task \d+ \(abs\) to cpu:[01]: ends at \d+\.\d{3} s; cpu:[01] would end at \d+\.\d{3} s",
        3: r"DEBUG: TaskFinished\(at_s=",
        4: r"eft: task \d+ to (h0/cpu:\d|nobody yet): cpu:0 .* s",
    }
    for step, pattern in patterns.items():
        for level, text in enumerate(texts):
            assert bool(re.search(pattern, text)) is (level >= step), (level, pattern)
    assert re.search(r"item \d+ from h0/ram to h0/cpu:1\.mem: 4 MB in \d.* [mµ]?s, \d.*[MG]B/s", texts[2])
    assert "no other device can run it" in texts[2]


def test_a_program_that_listens_to_the_logger_itself_gets_no_second_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_DEBUG", "1")
    logger = logging.getLogger("hetero")
    own = logging.NullHandler()
    logger.addHandler(own)
    try:
        with hetero.Context(devices="1xcpu", engine="inline", history=False):
            assert logger.handlers == [own]
    finally:
        logger.removeHandler(own)


def test_policy_auto_is_settled_before_the_run_and_says_why(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, "hetero")
    trace = tmp_path / "run.trace.jsonl"
    with hetero.Context(devices="2xcpu", policy="auto", trace=trace, history=False) as ctx:
        assert ctx.driver.machine.placer.policy.name == "eft"
        assert ctx.policy_reason.startswith("eft: the 2 devices are equal")
    assert any(line.startswith("policy auto takes eft: the 2 devices are equal") for line in caplog.messages)
    assert '"policy": "eft"' in trace.read_text().splitlines()[0]
    with hetero.Context(devices="1xcpu", policy="auto", history=False) as ctx:
        assert ctx.policy_reason == "round_robin: h0/cpu:0 is the only device: there is nothing to choose"


def test_the_policy_that_nobody_named_is_the_default() -> None:
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as ctx:
        assert ctx.policy_reason == "eft: it is the default"


def works(seconds: float) -> None:
    """Use the processor for so long, by its own time."""
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass


@pytest.fixture
def useless() -> str:
    """Give a fleet whose second device is known to be fifty times slower."""
    fleet = "1xcpu,1xcpu*0.02"
    with hetero.Context(devices=fleet) as ctx:
        for index in range(2):
            ctx.gather([ctx.submit(hetero.task(works, on=f"cpu:{index}"), 0.01) for _ in range(3)])
    return fleet


@pytest.mark.alone
def test_a_device_that_was_left_out_is_told_with_the_reason(
    useless: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "hetero")
    with hetero.Context(devices=useless, progress=True) as ctx:
        ctx.run(hetero.task(works, on="cpu:0"), 0.01)
        ctx.gather([ctx.submit(works, 0.01) for _ in range(12)])
        (left_out,) = ctx.left_out()
    assert left_out[0] == "h0/cpu:1"
    reason = r"a task of works would take \d.* m?s there against \d.* ms on h0/cpu:0"
    assert re.fullmatch(reason, left_out[1])
    assert [line for line in caplog.messages if re.fullmatch(f"left out: cpu:1: {reason}", line)]
    assert re.search(f"hetero: left out: cpu:1: {reason}", capsys.readouterr().err)
    assert [device for device, _ in ctx.left_out()] == ["h0/cpu:1"]


def test_too_few_tasks_leave_no_device_out(useless: str) -> None:
    with hetero.Context(devices=useless) as ctx:
        ctx.gather([ctx.submit(works, 0.01) for _ in range(7)])
        assert ctx.left_out() == []


def test_a_home_that_cannot_be_written_costs_the_history_and_the_checkpoints_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HETERO_HOME", str(tmp_path / "file" / "home"))

    def keeps() -> None:
        hetero.checkpoint("half")

    for _ in range(2):
        with hetero.Context(devices="1xcpu", name="night") as ctx:
            assert ctx.run(abs, -1) == 1
            with pytest.raises(HeteroError, match=r"checkpoint.*HETERO_HOME"):
                ctx.run(keeps)
    about_home = [line for line in caplog.messages if "HETERO_HOME" in line]
    assert len(about_home) == 1
    assert re.search(r"nothing is remembered of this run", about_home[0])


def test_a_trace_on_a_full_disk_is_told_when_the_run_ends(caplog: pytest.LogCaptureFixture) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with hetero.Context(devices="1xcpu", trace="/dev/full", history=False) as ctx:
        assert ctx.run(abs, -1) == 1
    assert "the trace /dev/full ends early: No space left on device" in caplog.messages


def _until(holds: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return holds()


def _used(device: Device) -> float:
    """Give how much of a device's CPU the whole host uses, watched for as long as a report covers."""
    return psutil.cpu_percent(interval=0.6, percpu=True)[device.cpus[0]] / 100.0


@pytest.mark.alone
@pytest.mark.usefixtures("no_leaks")
def test_what_others_use_of_a_device_is_reported_to_the_policy_that_looks_at_it() -> None:
    cpus = platform.available_cpus()
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    with hetero.Context(devices="2xcpu", policy="migration", history=False) as ctx:
        ctx.run(abs, -1)
        busy_frac = ctx.driver.machine.fleet.busy_frac
        assert set(ctx.driver.engine.pids()) == {"h0/cpu:0", "h0/cpu:1"}
        (cpu,) = ctx.devices[0].cpus
        code = f"import os; os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
        with subprocess.Popen([sys.executable, "-c", code]) as busy:
            try:
                assert _until(lambda: busy_frac[0] > 0.5 and busy_frac[1] <= _used(ctx.devices[1]) + 0.2)
            finally:
                busy.kill()
        assert _until(lambda: busy_frac[0] <= _used(ctx.devices[0]) + 0.2)


def test_a_policy_that_does_not_look_at_the_use_by_others_costs_no_reports() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        assert ctx.driver._watch is None


@pytest.mark.alone
@pytest.mark.usefixtures("no_leaks")
def test_waiting_tasks_move_away_from_a_device_that_others_use() -> None:
    def where(seconds: float) -> str:
        time.sleep(seconds)
        return hetero.get_current_device().short

    with hetero.Context(devices="2xcpu", policy="migration", history=False) as ctx:
        ctx.gather([ctx.submit(hetero.task(where, on=f"cpu:{i}"), 0.05) for i in range(2) for _ in range(3)])
        ctx.driver._watch = None
        tasks = [ctx.submit(where, 0.05) for _ in range(30)]
        ctx.driver._post([UtilisationReported(ctx.driver._clock.now_s(), "h0/cpu:0", 0.9)])
        ran = ctx.gather(tasks)
    assert ran.count("cpu:1") >= 20
