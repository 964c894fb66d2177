"""Nothing hangs: frozen workers, closing, exits that tasks raise, forks, and processes whose program was killed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import hetero
from hetero.engines.local import process_proxy
from hetero.floor.errors import HeteroError, NothingFitsError, TaskCancelledError
from hetero.session import callbacks

pytestmark = pytest.mark.timeout(100)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers be looked at twelve times as often."""
    monkeypatch.setattr(process_proxy, "LOOK_S", 0.1)


@pytest.fixture
def ctx(often: None, no_leaks: None) -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu", isolation="process", history=False) as ctx:
        yield ctx


def worker_of(ctx: hetero.Context) -> int:
    return next(iter(ctx.driver.engine.pids().values()))


def until(done: Callable[[], object], what: str) -> None:
    """Wait until something is so; a minute is for a hang, not for a loaded machine."""
    deadline = time.monotonic() + 60.0
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid), "it was not stopped")


# --- frozen workers


def test_the_task_of_a_frozen_worker_runs_on_a_new_one(ctx: hetero.Context, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def work() -> int:
        if not begun.exists():
            begun.write_text(str(os.getpid()))
            time.sleep(300.0)
        return os.getpid()

    future = ctx.submit(work)
    until(begun.exists, "the task did not begin")
    frozen = worker_of(ctx)
    freeze(frozen)
    assert future.result(60) != frozen
    assert is_gone(frozen)


def test_an_idle_worker_that_froze_is_replaced(ctx: hetero.Context) -> None:
    frozen = ctx.run(os.getpid)
    freeze(frozen)
    until(lambda: is_gone(frozen), "it was not ended")
    assert ctx.run(os.getpid) != frozen


def test_a_task_that_holds_the_interpreter_in_c_code_keeps_its_worker(
    ctx: hetero.Context,
) -> None:
    def computes() -> int:
        begun_s = time.process_time()
        while time.process_time() - begun_s < 1.5:
            sum(range(3_000_000))
        return os.getpid()

    def waits() -> int:
        ctypes.PyDLL(None).usleep(2_000_000)
        return os.getpid()

    own = ctx.run(os.getpid)
    assert ctx.run(computes) == own
    assert ctx.run(waits) == own


def test_heartbeats_do_not_disturb_a_worker_that_only_waits(ctx: hetero.Context) -> None:
    own = ctx.run(os.getpid)
    assert ctx.run(lambda: time.sleep(2.0) or os.getpid()) == own
    time.sleep(1.5)
    assert ctx.run(os.getpid) == own


def test_a_worker_that_froze_while_it_started_is_started_again(often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = process_proxy.Child
    frozen: list[int] = []

    def freezes_the_first(*given: Any) -> Any:
        child = made(*given)
        if not frozen:
            frozen.append(child.pid)
            os.kill(child.pid, signal.SIGSTOP)
        return child

    monkeypatch.setattr(process_proxy, "Child", freezes_the_first)
    with hetero.Context(devices="1xcpu", isolation="process", history=False) as ctx:
        assert ctx.submit(os.getpid).result(60) != frozen[0]
    assert is_gone(frozen[0])


# --- closing


def test_a_context_whose_workers_cannot_start_closes_although_a_call_was_refused(no_leaks: None) -> None:
    ctx = hetero.Context({"devices": [{"type": "cpu", "python": sys.executable}]}, history=False)
    lost = [device.id for device in ctx.devices]
    ctx.driver.engine.stop()
    from hetero.model.events import DeviceLost

    ctx.driver._post([DeviceLost(0.0, device, "no worker", permanent=True) for device in lost])
    errors: list[BaseException] = []
    for call in (lambda: list(ctx.map(abs, range(8))), lambda: ctx.submit(abs, 1), lambda: ctx.map(abs, [1], chunk=1)):
        with pytest.raises(NothingFitsError) as refused:
            call()
        errors.append(refused.value)
    ends_soon(ctx.close)
    assert len(errors) == 3


def ends_soon(call: Callable[[], object]) -> None:
    """Make a call in a thread, so that a hang is a failure of this test and not of the run."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive(), "it hangs"


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_whoever_waits_for_a_task_is_told_when_the_context_closes_without_it(isolation: str, no_leaks: None) -> None:
    ctx = hetero.Context(devices="1xcpu", isolation=isolation, history=False)
    going = threading.Event()
    running, queued = ctx.submit(time.sleep, 3.0), ctx.submit(abs, -1)
    told: list[BaseException | None] = []

    def wait() -> None:
        going.set()
        told.extend([running.exception(), queued.exception()])

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    going.wait(60)
    ends_soon(lambda: ctx.close(wait=False))
    waiting.join(60)
    assert not waiting.is_alive()
    assert [type(error) for error in told] == [TaskCancelledError, TaskCancelledError]


def test_a_context_closes_with_a_frozen_worker_and_with_one_that_heeds_nothing(often: None, no_leaks: None) -> None:
    ctx = hetero.Context(devices="1xcpu,1xcpu*0.5", isolation="process", history=False)
    ctx.gather([ctx.submit(abs, n) for n in range(4)])
    first, second = ctx.driver.engine.pids().values()

    def heedless() -> None:
        while True:
            try:
                time.sleep(1000)
            except BaseException:  # noqa: BLE001  that is the point
                continue

    futures = [ctx.submit(heedless), ctx.submit(heedless)]
    freeze(first)
    for future in futures:
        future.cancel()
    ends_soon(ctx.close)
    assert is_gone(first)
    assert is_gone(second)


def test_a_map_in_a_callback_is_read_there_also_while_the_context_closes(no_leaks: None) -> None:
    found: list[int] = []
    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
        ctx.submit(abs, -1).add_done_callback(lambda _: found.extend(ctx.map(abs, range(-5, 0))))
    assert found == [5, 4, 3, 2, 1]


@pytest.mark.parametrize("how", [{"isolation": "thread"}, {"isolation": "process"}, {"engine": "inline"}])
def test_a_context_closes_although_another_thread_goes_on_submitting(how: dict[str, str], no_leaks: None) -> None:
    ctx = hetero.Context(devices="1xcpu", history=False, **how)
    given: list[Any] = []
    refused: list[str] = []

    def submit_on() -> None:
        try:
            while True:
                given.append(ctx.submit(abs, -len(given)))
        except HeteroError as error:
            refused.append(str(error))

    thread = threading.Thread(target=submit_on)
    thread.start()
    while len(given) < 20:
        time.sleep(0.001)
    late: list[Any] = []
    given[0].add_done_callback(lambda _: late.append(ctx.submit(abs, -7)))
    ctx.close()
    thread.join(60)
    assert "is closed" in refused[0]
    assert [each.result(0) for each in given] == list(range(len(given)))
    assert [each.result(0) for each in late] == [7]


def test_a_callback_that_never_returns_or_wants_to_exit_holds_up_no_close(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks, "PATIENCE_S", 0.3)
    ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
    never, called = threading.Event(), threading.Event()
    ctx._call_soon(lambda: sys.exit(3))
    ctx.submit(abs, -1).add_done_callback(lambda _: called.set())
    assert called.wait(60), "an exit in a callback ended the thread of all callbacks"
    assert "SystemExit: 3" in capsys.readouterr().err
    ctx._call_soon(never.wait)
    ends_soon(ctx.close)
    never.set()
    assert ["has not returned for 0.3 s" in record.message for record in caplog.records] == [True]


# --- what tasks raise


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise SystemExit("no words")

    def __reduce__(self) -> Any:
        raise SystemExit("no way")


class Unmeasurable:
    @property
    def nbytes(self) -> int:
        raise SystemExit("no size")


@pytest.mark.parametrize(("engine", "isolation"), [("inline", None), ("local", "thread"), ("local", "process")])
def test_an_exit_or_an_interrupt_of_a_task_is_that_tasks_exception_and_ends_nothing_else(
    engine: str, isolation: str | None, no_leaks: None
) -> None:
    def ends(error: type[BaseException], *args: object) -> None:
        raise error(*args)

    ctx = hetero.Context(devices="1xcpu", engine=engine, isolation=isolation, history=False)
    for kind in (SystemExit, KeyboardInterrupt, GeneratorExit):
        future = ctx.submit(ends, kind, 3)
        with pytest.raises(kind) as raised:
            future.result(60)
        assert raised.value.args == (3,)
    assert isinstance(ctx.submit(ends, UnspeakableError).exception(60), Exception)
    assert isinstance(ctx.submit(Unmeasurable).result(60), Unmeasurable)
    unread = [ctx.submit(ends, kind, 3) for kind in (SystemExit, KeyboardInterrupt)]
    assert ctx.submit(abs, -1).result(60) == 1
    ctx.close()
    assert [type(future.exception()) for future in unread] == [SystemExit, KeyboardInterrupt]


def program(text: str, *args: str, **options: Any) -> subprocess.Popen[str]:
    """Start a program in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **options,
    )


def output_of(text: str) -> list[str]:
    """Run a program that must end by itself; return the lines that it prints."""
    with program(text) as running:
        try:
            return running.communicate(timeout=250)[0].splitlines()
        finally:
            running.kill()


def test_ctrl_c_ends_the_inline_task_and_the_program_s_own_call() -> None:
    said = output_of("""
        import os, signal, hetero
        ctx = hetero.Context(devices="1xcpu", engine="inline", history=False)
        def heeds():
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                return "heeded"
        print(ctx.run(heeds), ctx.run(abs, -1))
        try:
            ctx.submit(os.kill, os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            print("out of the call")
        print(ctx.run(abs, -2), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        ctx.close()
    """)
    assert said == ["heeded 1", "out of the call", "2 True"]


# --- forks


def test_a_context_says_in_a_forked_process_that_it_belongs_to_the_other_and_goes_on_there(tmp_path: Path) -> None:
    said = output_of(f"""
        import gc, json, os, sys, time, hetero
        from hetero.floor.errors import HeteroError
        trace = {str(tmp_path / "run.trace.jsonl")!r}
        ctx = hetero.Context(devices="1xcpu", history=False, trace=trace)
        read, unread, slow = ctx.submit(abs, -1), ctx.submit(abs, -2), ctx.submit(lambda: time.sleep(1.0) or 3)
        read.result()
        going = ctx.map(abs, range(100))
        pid = os.fork()
        if not pid:
            calls = dict(
                submit=lambda: ctx.submit(abs, 1), run=lambda: ctx.run(abs, 1), map=lambda: ctx.map(abs, [1]),
                put=lambda: ctx.put(1), usage=lambda: ctx.usage, lease=lambda: ctx.lease(on="cpu"),
                unread=unread.result, slow=slow.result, going=lambda: list(going),
                explain=lambda: ctx.explain(abs, 1),
            )
            for name, call in calls.items():
                try:
                    print(name, call())
                except HeteroError as error:
                    assert f"opened by process {{os.getppid()}}" in str(error), error
                    assert "\\n" not in str(error)
            print(read.result(), slow.done(), slow.cancel())
            ctx.close()
            with hetero.Context(devices="1xcpu", isolation="thread", history=False) as own:
                print(own.run(abs, -5))
            del ctx, read, unread, slow, going, own, calls
            gc.collect()
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(unread.result(), slow.result(), sum(going))
        ctx.close()
        from hetero.drive.trace import END
        lines = [json.loads(line) for line in open(trace)]
        print([line[0] for line in lines[1:]].count(END))
    """)
    assert said == ["1 True False", "5", "0", "2 3 4950", "1"]


# --- killed programs


def killed(running: subprocess.Popen[str], frozen: int) -> None:
    """Kill a program one of whose processes is frozen, and wait for that one's end."""
    try:
        freeze(frozen)
        running.kill()
        running.wait(60)
        until(lambda: is_gone(frozen), "a frozen process outlived its program")
    finally:
        for pid in (frozen, running.pid):
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        running.communicate()


def first_number(running: subprocess.Popen[str]) -> int:
    assert running.stdout is not None
    return int(running.stdout.readline())


def test_a_frozen_worker_does_not_outlive_its_program() -> None:
    running = program("""
        import os, time, hetero
        ctx = hetero.Context(devices="1xcpu", history=False)
        print(ctx.run(os.getpid), flush=True)
        time.sleep(1000)
    """)
    killed(running, first_number(running))


def test_a_frozen_probe_does_not_outlive_its_program(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    running = program(
        """
        import sys
        from hetero.backends import probe
        tells = "print(os.getpid(), file=open(a[3], 'w', 1))"
        hangs = f"import time; p._child_probe = lambda name: ({tells}, time.sleep(1000))"
        probe._ELSEWHERE = probe._ELSEWHERE.replace(
            "runpy.run_module('hetero.backends.probe', run_name='__main__')",
            f"import os, hetero.backends.probe as p; a = [*sys.argv]; {hangs}; p.main([*a[1:3], a[4]])",
        )
        probe.ask([("probe", "cpu", sys.argv[1])], sys.executable)
        """,
        str(begun),
    )
    until(lambda: begun.exists() and begun.read_text().endswith("\n"), "the probe did not begin")
    killed(running, int(begun.read_text()))


def test_a_frozen_script_does_not_outlive_its_profiler(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n")
    running = subprocess.Popen(
        [sys.executable, "-c", "from hetero.cli.profiler import entry; entry()", "run", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
    )
    killed(running, first_number(running))
