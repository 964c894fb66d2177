from __future__ import annotations

import errno
import gc
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest

import hetero
from hetero.core.state import DevicePhase
from hetero.engines.base import ItemRef
from hetero.engines.local.engine import LocalEngine
from hetero.engines.shared.in_flight import FUNCTIONS_KEPT
from hetero.model.commands import Cancel, Launch, StartWorker
from hetero.model.device import HOST_NODE
from hetero.model.events import DeviceLost, DeviceReady, Event, TaskFailed, TaskFinished
from hetero.testing.engine import Bench, two_devices

pytestmark = pytest.mark.timeout(100)


@pytest.fixture
def bench(no_leaks: None) -> Iterator[Bench]:
    bench = Bench(LocalEngine(200_000_000))
    bench.ready()
    yield bench
    bench.engine.stop()


def counters(bench: Bench) -> Any:
    assert isinstance(bench.engine, LocalEngine)
    return bench.engine.counters


def test_a_large_array_handed_to_many_tasks_is_copied_once(bench: Bench) -> None:
    array = np.ones(8_000_000)
    calls = [bench.call(lambda a: float(a.sum()), array) for _ in range(8)]
    tasks = bench.launch(*calls[:4]) + bench.launch(*calls[4:], on=1)
    for task in tasks:
        bench.finish(task)
        assert bench.engine.load(task) == 8_000_000.0
    assert counters(bench)["copies"] == 1
    assert counters(bench)["copied_bytes"] == 64_000_000


def test_from_its_second_large_result_on_a_function_need_not_ask_for_room(bench: Bench) -> None:
    for asked, value in ((1, 1.0), (0, 2.0)):
        before = counters(bench)["messages"]
        task = bench.launch(bench.call(np.full, 100_000, value))[0]
        bench.finish(task)
        assert counters(bench)["messages"] == before + 1 + asked
        assert (bench.engine.load(task) == value).all()


def test_results_of_other_sizes_than_the_last_one_arrive_whole(bench: Bench) -> None:
    for size in (100_000, 200_000, 10, 200_000, 100_000):
        assert bench.value(np.ones, size).shape == (size,)


def test_many_small_tasks_go_in_one_message_and_a_function_goes_once(bench: Bench) -> None:
    before = counters(bench)["messages"]
    for task in bench.launch(*[bench.call(abs, -n) for n in range(100)], predicted_s=1e-5):
        bench.finish(task)
    assert counters(bench)["messages"] == before + 1
    bench.value(abs, -1)
    assert counters(bench)["functions"] == 1


def test_a_finished_result_does_not_wait_behind_a_long_task(bench: Bench) -> None:
    short, long = bench.launch(bench.call(abs, -1), bench.call(time.sleep, 2.0), predicted_s=1e-5)
    bench.finish(short)
    assert not any(isinstance(event, TaskFinished) and event.task == long for event in bench.events)
    bench.finish(long)


def test_c_code_that_holds_the_interpreter_is_cancelled_by_a_new_worker(bench: Bench) -> None:
    (task,) = bench.launch(bench.call(lambda: sum(range(10**13))))
    time.sleep(0.3)
    bench.engine.submit(Cancel("h0/cpu:0", task, 1))
    lost = bench.expect(DeviceLost)
    assert not lost.permanent
    assert f"stop task {task}" in lost.reason
    bench.restart("h0/cpu:0")
    assert bench.value(abs, -4) == 4


def test_a_cancelled_attempt_that_waits_does_not_end_the_one_that_runs(bench: Bench) -> None:
    running, waiting = bench.launch(bench.call(time.sleep, 1.0), bench.call(abs, -1))
    time.sleep(0.1)
    bench.engine.submit(Cancel("h0/cpu:0", waiting, 1))
    bench.finish(running)
    assert bench.expect(TaskFailed, lambda event: event.task == waiting).failure.kind == "cancelled"
    assert not any(isinstance(event, DeviceLost) for event in bench.events)


@pytest.mark.parametrize(
    ("death", "told"),
    [
        (lambda: os._exit(3), "ended with exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "was killed by SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
    ],
)
def test_the_end_of_a_worker_is_told_with_its_reason(bench: Bench, death: Callable[[], Any], told: str) -> None:
    bench.launch(bench.call(death))
    assert told in bench.expect(DeviceLost).reason


def test_results_sent_before_a_worker_died_are_not_lost(bench: Bench) -> None:
    tasks = bench.launch(*[bench.call(abs, -n) for n in range(20)], bench.call(os._exit, 1))
    bench.expect(DeviceLost)
    told = [event.task for event in bench.events if isinstance(event, TaskFinished)]
    assert told == tasks[:20]


def test_an_argument_kept_by_a_task_stays_as_it_was_when_its_place_is_used_again(bench: Bench) -> None:
    def keep(array: Any) -> None:
        import builtins

        builtins.kept_array = array  # type: ignore[attr-defined]

    def look() -> tuple[float, float]:
        import builtins

        return float(builtins.kept_array.min()), float(builtins.kept_array.max())  # type: ignore[attr-defined]

    bench.run(keep, np.full(500_000, 7.0))
    gc.collect()
    for number in range(3):
        bench.value(lambda array: float(array[0]), np.full(500_000, float(number)))
    assert bench.value(look) == (7.0, 7.0)


def test_nothing_is_kept_of_tasks_whose_results_were_forgotten(bench: Bench) -> None:
    large = np.zeros(100_000)
    for number in range(200):
        task = bench.run(lambda a, n: a + n, large, number)
        bench.engine.forget(task)
    del large
    gc.collect()
    assert bench.engine.usage()[HOST_NODE].used_bytes == 0
    assert bench.engine.usage()[HOST_NODE].peak_bytes < 10_000_000


def test_an_exception_with_what_cannot_be_pickled_comes_without_that(bench: Bench) -> None:
    def fail() -> None:
        class OddError(Exception):
            def __init__(self, one: int, two: int) -> None:
                super().__init__("odd")
                self.lock = threading.Lock()

        raise OddError(1, 2)

    failure = bench.failure(fail).failure
    assert failure.kind == "exception"
    assert failure.message == "OddError: odd"
    assert type(failure.payload).__name__ == "OddError"
    assert "in fail" in str(failure.payload.__cause__)


def test_an_interrupt_from_the_keyboard_does_not_end_a_worker(bench: Bench) -> None:
    pid = bench.value(os.getpid)
    os.kill(pid, signal.SIGINT)
    time.sleep(0.1)
    assert bench.value(os.getpid) == pid


def test_a_device_that_cannot_be_opened_is_lost_for_good_with_the_reason(no_leaks: None) -> None:
    first, second = two_devices()
    for isolation in ("process", "thread"):
        bench = Bench(LocalEngine(1_000_000, isolation=isolation), [replace(first, backend="no-such"), second])
        lost = bench.expect(DeviceLost)
        assert (lost.device, lost.permanent) == ("h0/cpu:0", True)
        assert "'no-such' is no back end" in lost.reason
        bench.expect(DeviceReady, lambda event: event.device == "h0/cpu:1")
        bench.engine.stop()


def test_a_worker_that_does_not_start_in_time_is_lost_for_good(no_leaks: None) -> None:
    bench = Bench(LocalEngine(1_000_000, start_s=0.01), two_devices()[:1])
    lost = bench.expect(DeviceLost)
    assert lost.permanent
    assert "not ready after 0.01 s" in lost.reason
    bench.engine.stop()


def test_threads_and_processes_of_one_fleet_exchange_values(no_leaks: None) -> None:
    first, second = two_devices()
    bench = Bench(LocalEngine(10_000_000), [replace(first, isolation="thread"), replace(second, memory_node=HOST_NODE)])
    bench.ready()
    made = bench.run(lambda: np.arange(50_000))
    assert bench.value(lambda a: int(a[-1]), ItemRef(made), on=1, refs=(made,)) == 49_999
    made = bench.run(lambda: np.arange(60_000), on=1)
    assert bench.value(lambda a: int(a[-1]), ItemRef(made), refs=(made,)) == 59_999
    assert bench.value(os.getpid) == os.getpid() != bench.value(os.getpid, on=1)
    task = bench.launch_group(bench.call(_sum_over_group, np.arange(20_000)))
    for device in bench.devices:
        bench.expect(TaskFinished, lambda e, d=device: (e.task, e.device) == (task, d.id))  # type: ignore[misc]
    bench.engine.commit(task, 1)
    assert bench.engine.load(task) == 199_990_001
    bench.engine.stop()


def _sum_over_group(array: Any) -> int:
    from hetero.drive.frame import current

    frame = current()
    assert frame is not None
    channel = frame.channel
    assert channel is not None
    channel.send(array + channel.rank, 1 - channel.rank)
    return int(channel.recv(1 - channel.rank).sum()) - 20_000 + 1


def test_when_a_member_of_a_group_dies_the_others_give_up(bench: Bench) -> None:
    def wait_for_the_dead() -> Any:
        from hetero.drive.frame import current

        channel = current().channel  # type: ignore[union-attr]
        if channel.rank == 1:  # type: ignore[union-attr]
            os._exit(1)
        return channel.recv(1)  # type: ignore[union-attr]

    task = bench.launch_group(bench.call(wait_for_the_dead))
    failed = bench.expect(TaskFailed, lambda event: event.task == task)
    assert "rank 1 was lost" in failed.failure.message
    lost = [event for event in bench.events if isinstance(event, DeviceLost | TaskFailed)]
    assert [type(event) for event in lost] == [DeviceLost, TaskFailed]


def test_a_slow_link_takes_its_time_both_ways(no_leaks: None) -> None:
    _, second = two_devices()
    bench = Bench(LocalEngine(10_000_000), [replace(second, link_bytes_per_s=4e6, link_latency_s=0.05)])
    bench.ready()
    task = bench.run(lambda: np.zeros(50_000))
    assert bench.transfer(task, second.memory_node, HOST_NODE, 400_000).seconds >= 0.15
    bench.engine.put(1000, np.zeros(50_000))
    assert bench.transfer(1000, HOST_NODE, second.memory_node, 400_000).seconds >= 0.15
    bench.engine.stop()


def test_a_value_on_a_device_can_be_loaded_while_events_are_told(no_leaks: None) -> None:
    got: queue.Queue[Any] = queue.Queue()

    class Eager(Bench):
        def _report(self, events: Sequence[Event]) -> None:
            super()._report(events)
            for event in events:
                if isinstance(event, TaskFinished):
                    self.engine.commit(event.task, event.attempt)
                    got.put(self.engine.load(event.task))

    bench = Eager(LocalEngine(10_000_000), two_devices()[1:])
    bench.ready()
    bench.launch(bench.call(np.ones, 50_000))
    assert got.get(timeout=30).sum() == 50_000.0
    bench.engine.stop()


def test_stopping_ends_workers_that_are_busy(no_leaks: None) -> None:
    bench = Bench(LocalEngine(1_000_000))
    bench.ready()
    for device in (0, 1):
        bench.launch(bench.call(lambda: sum(range(10**13))), on=device)
    time.sleep(0.2)
    started = time.monotonic()
    bench.engine.stop()
    assert time.monotonic() - started < 10.0


def test_an_engine_stopped_before_its_workers_are_up_leaves_nothing(no_leaks: None) -> None:
    for pause_s in (0.0, 0.02, 0.1):
        bench = Bench(LocalEngine(1_000_000))
        time.sleep(pause_s)
        bench.engine.stop()


def test_a_worker_can_be_replaced_many_times(bench: Bench) -> None:
    for _ in range(5):
        before = len(bench.events)
        bench.engine.run("h0/cpu:0", [(Launch(999, len(bench.events), 0.0), bench.call(os._exit, 1))])
        bench.expect(DeviceLost, after=before)
        before = len(bench.events)
        bench.engine.submit(StartWorker("h0/cpu:0"))
        bench.expect(DeviceReady, after=before)
    assert psutil.Process().num_fds() < 200


def test_a_worker_forgets_functions_that_were_not_used_for_long_and_gets_them_again(bench: Bench) -> None:
    def number(n: int) -> Callable[[], int]:
        return lambda: n

    functions = [number(n) for n in range(FUNCTIONS_KEPT + 20)]
    tasks = [task for each in functions for task in bench.launch(bench.call(each), predicted_s=1e-5)]
    for task in tasks:
        bench.finish(task)
    assert bench.value(functions[0]) == 0
    assert bench.value(functions[-1]) == len(functions) - 1
    assert counters(bench)["functions"] == len(functions) + 1


def test_a_worker_killed_while_it_starts_is_started_again_but_not_for_ever(no_leaks: None) -> None:
    others = set(psutil.Process().children())
    bench = Bench(LocalEngine(1_000_000), two_devices()[:1])
    told = []
    for _ in range(6):
        while not (started := set(psutil.Process().children()) - others):
            time.sleep(0.001)
        started.pop().kill()
        lost = bench.expect(DeviceLost, after=len(told))
        told.append(lost)
        if not lost.permanent:
            bench.engine.submit(StartWorker("h0/cpu:0"))
    assert [lost.permanent for lost in told] == [*[False] * 5, True]
    assert "did not start: its worker was killed by SIGKILL" in told[0].reason
    bench.engine.stop()


def test_a_worker_of_a_cpu_imports_nothing_heavy(bench: Bench) -> None:
    def heavy() -> list[str]:
        words = ("pydantic", "typer", "rich", "yaml", "torch", "jax", "ray", "scipy", "numba", "hetero.session")
        return [word for word in words if word in sys.modules]

    assert bench.value(heavy) == []


def test_a_task_that_writes_into_its_workers_sockets_costs_the_worker_only(bench: Bench) -> None:
    def scribble() -> None:
        for name in os.listdir("/proc/self/fd"):
            if os.path.exists(f"/proc/self/fd/{name}") and "socket:" in os.readlink(f"/proc/self/fd/{name}"):
                os.write(int(name), b"\xff" * 64)

    bench.launch(bench.call(scribble))
    lost = bench.expect(DeviceLost)
    assert "sent what cannot be understood" in lost.reason
    bench.restart("h0/cpu:0")
    assert bench.value(abs, -4) == 4


def test_the_end_of_a_worker_names_the_task_that_ran_and_none_where_none_did(bench: Bench) -> None:
    fault = bench.call(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    _, killer, _ = bench.launch(bench.call(abs, -1), fault, bench.call(abs, -2), predicted_s=1e-5)
    lost = bench.expect(DeviceLost)
    assert (lost.task, lost.reason, lost.permanent) == (killer, "its worker was killed by SIGSEGV", False)
    bench.engine.submit(StartWorker(lost.device))
    bench.expect(DeviceReady, after=2)
    bench.value(abs, -3)
    os.kill(bench.engine.pids()[lost.device], signal.SIGKILL)
    assert bench.expect(DeviceLost, lambda event: "SIGKILL" in event.reason).task == 0


def test_tasks_that_end_their_workers_cost_the_others_nothing_and_later_calls_work(no_leaks: None) -> None:
    def fault(_: int) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave(status: int) -> None:
        os._exit(status)

    with hetero.Context(devices="2xcpu", history=False) as ctx:
        bad = [ctx.submit(fault, index) for index in range(20)]
        left = ctx.submit(leave, 3)
        good = [ctx.submit(abs, -index) for index in range(100)]
        assert ctx.gather(good) == list(range(100))
        assert all("SIGSEGV" in str(future.exception()) for future in bad)
        assert "its worker ended with exit code 3" in str(left.exception())
        assert ctx.run(abs, -5) == 5
        assert all(device.phase is not DevicePhase.GONE for device in ctx.driver.ask(lambda core: core).fleet.states)


def test_a_start_that_lacks_descriptors_is_tried_again(no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failed = subprocess.Popen, []

    def lacking(*given: Any, **options: Any) -> Any:
        if len(failed) < 3:
            failed.append(True)
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*given, **options)

    monkeypatch.setattr(subprocess, "Popen", lacking)
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        assert ctx.run(abs, -5) == 5
    assert len(failed) == 3
