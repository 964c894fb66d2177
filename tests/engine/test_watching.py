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
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

import hetero
from hetero.drive import utilisation
from hetero.errors import HeteroError
from hetero.floor import logs
from hetero.model.device import Device, DeviceType
from hetero.model.events import UtilisationReported
from hetero.plan.performance.cost_model import CostModel
from hetero.session.options import ContextOptions

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
    logs.warn_once.cache_clear()
    yield
    logging.getLogger("hetero").setLevel(logging.NOTSET)


def told(level: int) -> str:
    """Run the program with HETERO_DEBUG of this level; return what it wrote to standard error."""
    environment = {**os.environ, "HETERO_DEBUG": str(level)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=250, check=True
    )
    assert done.stdout == ""
    return done.stderr


@pytest.mark.servers
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
        assert ctx.driver.ask(lambda core: core).placer.policy.name == "eft"
        assert ctx.policy_reason.startswith("eft: the 2 devices are equal")
    assert any(line.startswith("policy auto takes eft: the 2 devices are equal") for line in caplog.messages)
    assert '"policy": "eft"' in trace.read_text().splitlines()[0]
    with hetero.Context(devices="1xcpu", policy="auto", history=False) as ctx:
        assert ctx.policy_reason == "eft: h0/cpu:0 is the only device, and a lone task is sent there at once"


def test_the_policy_that_nobody_named_is_the_default() -> None:
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as ctx:
        assert ctx.policy_reason == "eft: it is the default"


def _until(holds: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return holds()


@pytest.fixture
def useless(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a fleet whose second device is known to take 50 s for what the first does in 10 ms."""
    observe = CostModel.observe

    def told(self: CostModel, signature: str, size: float, device: Device, seconds: float) -> bool:
        return observe(self, signature, size, device, (0.01, 50.0)[device.index])

    monkeypatch.setattr(CostModel, "observe", told)
    fleet = "1xcpu,1xcpu*0.02"
    with hetero.Context(devices=fleet) as ctx:
        for index in range(2):
            ctx.gather([ctx.submit(hetero.task(abs, on=f"cpu:{index}"), -1) for _ in range(3)])
    return fleet


def test_a_device_that_was_left_out_is_told_with_the_reason(
    useless: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "hetero")
    with hetero.Context(devices=useless, options=ContextOptions(progress=True)) as ctx:
        ctx.run(hetero.task(abs, on="cpu:0"), -1)
        ctx.gather([ctx.submit(abs, -1) for _ in range(12)])
        assert _until(lambda: all(each.phase == "ready" for each in hetero.inspect.snapshot(ctx).devices))
        (left_out,) = ctx.left_out()
    assert left_out[0] == "h0/cpu:1"
    reason = r"a task of abs would take 50.* s there against 10.* ms on h0/cpu:0"
    assert re.fullmatch(reason, left_out[1])
    assert [line for line in caplog.messages if re.fullmatch(f"left out: cpu:1: {reason}", line)]
    assert re.search(f"hetero: left out: cpu:1: {reason}", capsys.readouterr().err)
    assert [device for device, _ in ctx.left_out()] == ["h0/cpu:1"]


def test_too_few_tasks_leave_no_device_out(useless: str) -> None:
    with hetero.Context(devices=useless) as ctx:
        ctx.gather([ctx.submit(abs, -1) for _ in range(7)])
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


class Times(NamedTuple):
    """What a processor, or a process, has used."""

    user: float
    system: float = 0.0
    idle: float = 0.0


class Machine:
    """The system's own counts of two processors and of a worker, and the clock that they are read by."""

    def __init__(self) -> None:
        self.time_s, self.busy_s, self.own_s = 0.0, [10.0, 20.0], 5.0

    def now_s(self) -> float:
        return self.time_s

    def cpu_times(self, percpu: bool) -> list[Times]:
        return [Times(used, idle=self.time_s - used) for used in self.busy_s]

    def own_times(self) -> Times:
        return Times(0.75 * self.own_s, 0.25 * self.own_s)


def test_the_use_of_a_device_by_others_is_what_its_worker_did_not_use_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    process = SimpleNamespace(cpu_times=machine.own_times)
    system = SimpleNamespace(cpu_times=machine.cpu_times, Process=lambda pid: process, Error=psutil.Error)
    monkeypatch.setattr(utilisation, "psutil", system)
    pids = {"h0/cpu:0": 7}
    fleet = [Device(f"h0/cpu:{i}", "cpu", DeviceType("CPU"), "cpu", i, cpus=(i,)) for i in range(2)]
    watch = utilisation.UtilisationWatch(fleet, lambda: pids, machine)  # type: ignore[arg-type]
    machine.time_s = 0.2
    assert watch.sample() == []
    machine.time_s, machine.busy_s, machine.own_s = 2.0, [11.75, 21.0], 5.25
    (told,) = watch.sample()
    assert told == UtilisationReported(2.0, "h0/cpu:0", 0.75)
    machine.time_s, machine.own_s = 4.0, 6.0
    assert watch.sample() == [UtilisationReported(4.0, "h0/cpu:0", 0.0)]
    machine.time_s, pids["h0/cpu:0"] = 6.0, 8
    assert watch.sample() == []


@pytest.mark.usefixtures("no_leaks")
def test_what_others_use_of_a_device_is_reported_to_the_policy_that_looks_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    used: set[int] = set()
    processors = range(max(cpus) + 1)
    process = SimpleNamespace(cpu_times=lambda: Times(0.0))
    system = SimpleNamespace(
        cpu_times=lambda percpu: [Times(time.monotonic() if cpu in used else 0.0) for cpu in processors],
        Process=lambda pid: process,
        Error=psutil.Error,
    )
    monkeypatch.setattr(utilisation, "psutil", system)
    with hetero.Context(devices="2xcpu", policy="migration", history=False) as ctx:
        ctx.run(abs, -1)
        busy_frac = ctx.driver.ask(lambda core: core).fleet.busy_frac
        assert set(ctx.driver.engine.pids()) == {"h0/cpu:0", "h0/cpu:1"}
        used.update(ctx.devices[0].cpus)
        assert _until(lambda: busy_frac[0] > 0.5 and busy_frac[1] == 0.0)
        used.clear()
        assert _until(lambda: busy_frac[0] == 0.0)


def test_a_policy_that_does_not_look_at_the_use_by_others_costs_no_reports() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        assert ctx.driver._watch is None
