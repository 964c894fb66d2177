"""What a worker keeps, says and gives back between and around its tasks."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import heapq
import logging
import os
import random
import signal
import subprocess
import sys
import time
import types
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.drive.frame import MOST_DEEP, current
from hetero.drive.trace_read import read_trace
from hetero.errors import SerialisationError
from hetero.model.annotations import NestedRun
from hetero.model.events import TaskFinished
from hetero.session import runs
from hetero.session.options import ContextOptions


@pytest.fixture(params=["inline", "thread", "process"], scope="module")
def ctx(request: pytest.FixtureRequest) -> Iterator[hetero.Context]:
    engine, isolation = ("inline", None) if request.param == "inline" else (None, request.param)
    with hetero.Context(devices="1xcpu", engine=engine, isolation=isolation, history=False) as context:
        yield context


def identity(x: Any) -> Any:
    return x


def fail(word: str) -> None:
    raise ValueError(word)


# --- gather ------------------------------------------------------------------------------------------------


def test_gather_returns_exceptions_in_the_place_of_values(ctx: hetero.Context) -> None:
    futures = [ctx.submit(identity, 1), ctx.submit(fail, "two"), {"three": (ctx.submit(fail, "three"), 4)}]
    one, two, rest = ctx.gather(futures, return_exceptions=True)
    assert (one, repr(two), repr(rest["three"][0]), rest["three"][1]) == (
        1,
        "ValueError('two')",
        "ValueError('three')",
        4,
    )
    with pytest.raises(ValueError, match="two"):
        ctx.gather(futures)


class FutureList(list[Any]):
    pass


@pytest.mark.parametrize(
    "hide",
    [
        lambda future: FutureList([future]),
        lambda future: types.SimpleNamespace(a=future),
        lambda future: collections.ChainMap({"a": future}),
        lambda future: {future: 1},
    ],
)
def test_gather_refuses_futures_where_it_does_not_look(ctx: hetero.Context, hide: Any) -> None:
    future = ctx.submit(identity, 1)
    with pytest.raises(hetero.errors.BadValueError, match="gather does not look for futures in this place of a"):
        ctx.gather([1, hide(future)])
    assert ctx.gather([FutureList([1]), {"a": future}]) == [[1], {"a": 1}]


def test_the_async_twin_of_gather_returns_exceptions_and_takes_what_gather_takes(ctx: hetero.Context) -> None:
    async def both() -> tuple[list[Any], list[Any]]:
        nested = (future for future in [[ctx.submit(identity, 1), 2], {"key": ctx.submit(fail, "three")}])
        other: concurrent.futures.Future[int] = concurrent.futures.Future()
        other.set_result(5)
        return await ctx.agather(nested, return_exceptions=True), await ctx.agather([ctx.submit(identity, 4), other])

    (pair, broken), others = asyncio.run(both())
    assert (pair, repr(broken["key"]), others) == ([1, 2], "ValueError('three')", [4, 5])
    with pytest.raises(ValueError, match="six"):
        asyncio.run(ctx.agather([ctx.submit(fail, "six")]))


def test_gather_returns_the_cancellation_of_a_task() -> None:
    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
        running, waiting = ctx.submit(time.sleep, 0.2), ctx.submit(identity, 1)
        waiting.cancel()
        answers = ctx.gather([running, waiting], return_exceptions=True)
        assert answers[0] is None
        assert isinstance(answers[1], concurrent.futures.CancelledError)


# --- coroutines --------------------------------------------------------------------------------------------


async def awaited(x: int) -> int:
    return x


def test_a_coroutine_function_is_refused_when_it_is_submitted(ctx: hetero.Context) -> None:
    for verb in (ctx.submit, ctx.run, lambda function, x: ctx.map(function, [x]), ctx.executor().submit):
        with pytest.raises(
            hetero.errors.BadValueError, match=r"awaited is a coroutine function.*asyncio\.run\(awaited"
        ):
            verb(awaited, 1)


# --- log records -------------------------------------------------------------------------------------------


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    logger, handler = logging.getLogger("worker_life"), Kept()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


def tell(word: str, times: int) -> str:
    log = logging.getLogger("worker_life.inner")
    for number in range(times):
        log.log((10, 20, 30, 40, 50)[number % 5], "%s %d", word, number, extra={"odd": Odd(), "plain": [number]})
    try:
        raise ValueError("told")
    except ValueError:
        log.exception("with a traceback")
    return word


def test_log_records_of_tasks_reach_the_programs_handlers_at_all_levels_and_in_order(
    ctx: hetero.Context, kept: Kept
) -> None:
    future = ctx.submit(tell, "count", 250)
    assert future.result() == "count"
    *counted, last = kept.records
    assert [record.getMessage() for record in counted] == [f"count {number}" for number in range(250)]
    assert [record.levelno for record in counted[:5]] == [10, 20, 30, 40, 50]
    assert {record.hetero_task for record in kept.records} == {future.item}  # type: ignore[attr-defined]
    (device,) = {record.hetero_device for record in kept.records}  # type: ignore[attr-defined]
    assert device in [each.id for each in ctx.devices]
    assert repr(counted[7].odd) == ("'<odd>'" if isinstance(counted[7].odd, str) else "<odd>")  # type: ignore[attr-defined]
    assert counted[7].plain == [7]  # type: ignore[attr-defined]
    assert "ValueError: told" in logging.Formatter().format(last)
    assert counted[0].funcName == "tell"


def tell_args() -> None:
    log = logging.getLogger("worker_life")
    log.info("%s has %d of %r", "it", 3, [1.5, {"a": (None, b"x")}])
    log.info("%(name)s is %(size)d", {"name": "it", "size": 3})
    log.info("100 %")
    log.info(Odd())
    log.info("an %s", Odd())
    log.info("a set %s", {1})
    log.info("%.3s", "x" * 100_000)


def test_messages_arrive_with_their_arguments_where_these_are_plain(ctx: hetero.Context, kept: Kept) -> None:
    ctx.run(tell_args)
    *said, odd, mixed, one_set, cut = [(record.msg, record.args, record.getMessage()) for record in kept.records]
    assert said == [
        ("%s has %d of %r", ("it", 3, [1.5, {"a": (None, b"x")}]), "it has 3 of [1.5, {'a': (None, b'x')}]"),
        ("%(name)s is %(size)d", {"name": "it", "size": 3}, "it is 3"),
        ("100 %", (), "100 %"),
    ]
    assert [text for *_, text in (odd, mixed, one_set, cut)] == ["<odd>", "an <odd>", "a set {1}", "xxx"]
    if os.getpid() != ctx.run(os.getpid):
        assert [args for _, args, _ in (odd, mixed, one_set, cut)] == [(), None, None, None]


def tell_at_the_start() -> None:
    logging.getLogger("worker_life").warning("begun")


def warn(word: str) -> None:
    warnings.warn(word, stacklevel=1)


@pytest.mark.parametrize("how", ["inline", "thread", "process"])
def test_records_of_an_initializer_have_a_device_and_no_task(how: str, kept: Kept) -> None:
    with hetero.Context(
        devices="1xcpu", options=ContextOptions(initializer=tell_at_the_start), history=False, **keys_of(how)
    ) as own:  # type: ignore[arg-type]
        own.run(identity, 1)
        [record] = kept.records
        assert (record.hetero_task, record.hetero_device) == (None, own.devices[0].id)  # type: ignore[attr-defined]


def test_warnings_of_tasks_are_log_records_while_the_program_captures_warnings(
    ctx: hetero.Context, capfd: pytest.CaptureFixture[str]
) -> None:
    captured, handler = logging.getLogger("py.warnings"), Kept()
    captured.addHandler(handler)
    inside = ctx.run(os.getpid) == os.getpid()
    logging.captureWarnings(True)
    try:
        with warnings.catch_warnings():
            if inside:  # pytest listens to those of this process
                warnings.showwarning = logging._showwarning  # type: ignore[attr-defined]
                warnings.simplefilter("always")
            ctx.run(warn, "seen by handlers")
        logging.captureWarnings(False)
        if not inside:
            ctx.run(warn, "seen on standard error")
    finally:
        logging.captureWarnings(False)
        captured.removeHandler(handler)
    [record] = handler.records
    assert "UserWarning: seen by handlers" in record.getMessage()
    assert "seen by handlers" not in capfd.readouterr().err


def test_the_levels_of_workers_follow_those_of_the_program(ctx: hetero.Context, kept: Kept) -> None:
    logging.getLogger("worker_life").setLevel(logging.ERROR)
    ctx.run(tell, "few", 5)
    assert [record.levelno for record in kept.records] == [40, 50, 40]
    logging.getLogger("worker_life").setLevel(logging.NOTSET)
    ctx.run(tell, "inherited", 5)
    assert [record.levelno for record in kept.records[3:]] == [30, 40, 50, 40]
    logging.disable(logging.CRITICAL)
    try:
        ctx.run(tell, "none", 5)
    finally:
        logging.disable(logging.NOTSET)
    assert len(kept.records) == 7


def test_a_configuration_of_logging_that_disables_loggers_does_not_stop_the_levels(
    ctx: hetero.Context, kept: Kept
) -> None:
    disabled = {name: logger for name, logger in logging.root.manager.loggerDict.items() if hasattr(logger, "disabled")}
    before = {name: logger.disabled for name, logger in disabled.items()}
    for logger in disabled.values():
        logger.disabled = not logger.name.startswith("worker_life")
    try:
        logging.getLogger("worker_life").setLevel(logging.CRITICAL)
        ctx.run(tell, "few", 5)
    finally:
        for name, logger in disabled.items():
            logger.disabled = before[name]
    assert [record.levelno for record in kept.records] == [50]


class Leaves(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit("a handler leaves")


def test_a_handler_that_raises_costs_no_other_record(kept: Kept) -> None:
    leaves, logger = Leaves(), logging.getLogger("worker_life.inner")
    logger.addHandler(leaves)
    try:
        with hetero.Context(devices="1xcpu", history=False) as ctx:
            ctx.run(tell, "heard", 2)
            logger.removeHandler(leaves)
            ctx.run(tell, "later", 2)
    finally:
        logger.removeHandler(leaves)
    assert [record.getMessage() for record in kept.records] == ["later 0", "later 1", "with a traceback"]


def die_after_a_word() -> None:
    logging.getLogger("worker_life").error("the last word")
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_last_words_of_a_worker_that_is_killed_arrive(kept: Kept) -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        future = ctx.submit(hetero.task(die_after_a_word, crashes=0))
        assert isinstance(future.exception(), hetero.errors.TaskLostError)
    assert [record.getMessage() for record in kept.records] == ["the last word"]


def fork_and_tell() -> int:
    children = []
    for _ in range(4):
        child = os.fork()
        if not child:
            tell("of a child", 200)
            os._exit(7)
        children.append(child)
    tell("of the task", 200)
    return sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def test_processes_that_a_task_forks_do_not_disturb_its_records(kept: Kept) -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        assert ctx.run(hetero.task(fork_and_tell, crashes=0)) == 28
    assert [record.getMessage() for record in kept.records][:200] == [f"of the task {number}" for number in range(200)]


def fork_and_leave(how: str) -> tuple[str, int]:
    child = os.fork()
    if not child:
        if how == "exit":
            sys.exit(0)
        if how == "code":
            sys.exit(5)
        if how == "word":
            sys.exit("farewell")
        if how == "raise":
            raise ValueError("of the child")
        return "child", 0
    _, status = os.waitpid(child, 0)
    time.sleep(0.05)
    return "parent", os.waitstatus_to_exitcode(status)


CODES = {"return": 0, "exit": 0, "code": 5, "word": 1, "raise": 1}


def test_processes_that_a_task_forks_end_with_its_function_and_leave_everything_else_alone(
    ctx: hetero.Context, capfd: pytest.CaptureFixture[str]
) -> None:
    for how, code in CODES.items():
        future = ctx.submit(fork_and_leave, how)
        others = [ctx.submit(abs, -number) for number in range(50)]
        assert future.result(60) == ("parent", code)
        assert [other.result(60) for other in others] == list(range(50))
    if ctx.engine == "inline" or ctx.config.isolation == "thread":
        said = capfd.readouterr().err
        assert said.count("ValueError: of the child") == said.count("farewell") == 1


def fork_within_a_nested_task() -> list[tuple[str, int]]:
    return [hetero.current_context().submit(fork_and_leave, how).result() for how in CODES]


def test_processes_that_a_nested_task_forks_end_with_its_function(ctx: hetero.Context) -> None:
    future = ctx.submit(fork_within_a_nested_task)
    assert future.result(60) == [("parent", code) for code in CODES.values()]


def test_a_process_that_an_initializer_forks_ends_with_it() -> None:
    with hetero.Context(
        devices="1xcpu", options=ContextOptions(initializer=fork_and_leave, initargs=("return",)), history=False
    ) as own:
        assert [own.run(abs, -number) for number in range(20)] == list(range(20))


FORKING_PROGRAM = """
import atexit, os, sys, hetero
atexit.register(print, "the end of", "the program")
def f():
    if os.fork() == 0:
        {leave}
    os.wait()
    return "parent"
if __name__ == "__main__":
    with hetero.Context(devices="1xcpu", history=False, {how}) as ctx:
        future = ctx.submit(f)
        print(future.result(), [ctx.run(abs, -x) for x in range(3)])
"""


@pytest.mark.parametrize("how", ["engine='inline'", "isolation='thread'", "isolation='process'"])
@pytest.mark.parametrize("leave", ["return 'child'", "sys.exit(0)"])
def test_the_child_of_a_task_does_not_go_on_as_a_second_program(how: str, leave: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(FORKING_PROGRAM.format(how=how, leave=leave))
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["parent [0, 1, 2]", "the end of the program"]


def close_everything(how: str) -> int:
    os.closerange(3, 256)
    if how == "raises":
        raise ValueError(how)
    return 1


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_a_task_that_closes_its_workers_connection_fails_and_nothing_else_does(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with hetero.Context(devices="1xcpu", history=False) as own:
        before = [own.submit(abs, -number) for number in range(10)]
        future = own.submit(close_everything, how)
        others = [own.submit(abs, -number) for number in range(50)]
        error = future.exception(120)
        assert isinstance(error, hetero.errors.TaskLostError)
        assert "close_everything was given up: its worker died 4 times" in str(error)
        assert "its worker closed its connection" in str(error)
        assert [other.result(60) for other in before + others] == [*range(10), *range(50)]
    assert "Traceback" not in capfd.readouterr().err


class Asks(logging.Handler):
    """A handler that is slow, raises, and asks for the result of the task that logged."""

    def __init__(self) -> None:
        super().__init__()
        self.futures: list[hetero.Future] = []
        self.answers: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(0.01)
        self.answers.extend(future.result(10) for future in self.futures)


def test_a_handler_may_wait_for_the_task_that_logs(kept: Kept) -> None:
    asks, logger = Asks(), logging.getLogger("worker_life")
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        ctx.run(identity, 1)
        logger.addHandler(asks)
        try:
            asks.futures.append(ctx.submit(tell, "asked", 1))
            assert asks.futures[0].result(60) == "asked"
            ctx.close()
        finally:
            logger.removeHandler(asks)
    assert asks.answers == ["asked", "asked"]


def say(*lines: str) -> None:
    for line in lines:
        print(line, end=" ")
        print("and", end="\n")


@pytest.mark.parametrize("how", ["inline", "thread", "process"])
def test_prints_are_tagged_with_device_and_task_where_that_is_wanted(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    keys: dict[str, str] = {"engine": "inline"} if how == "inline" else {"isolation": how}
    with hetero.Context({"tag_output": True, "devices": "1xcpu", **keys}, history=False) as ctx:
        future = ctx.submit(say, "one", "two")
        future.result()
        print("of the program")
        tag = f"[{ctx.devices[0].short} task {future.item}]"
    assert capfd.readouterr().out.splitlines() == [f"{tag} one and", f"{tag} two and", "of the program"]
    print("afterwards")
    assert capfd.readouterr().out == "afterwards\n"


# --- exceptions and prints that are unlike others -----------------------------------------------------------


class Unspeakable(Exception):  # noqa: N818
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("not to be asked")


class Proud(Exception):  # noqa: N818
    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.add_note("mine")


def raise_one(kind: type[Exception]) -> None:
    raise kind("word")


def pids_of_workers(ctx: hetero.Context) -> list[int]:
    return [ctx.run(hetero.task(os.getpid, on=(device.id,))) for device in ctx.devices]


def test_an_exception_that_cannot_be_asked_anything_fails_only_its_task(ctx: hetero.Context) -> None:
    workers = pids_of_workers(ctx)
    error = ctx.submit(raise_one, Unspeakable).exception(60)
    assert type(error).__name__ == "Unspeakable"
    assert pids_of_workers(ctx) == workers


def test_an_exception_keeps_its_own_notes_beside_the_one_that_names_its_task(ctx: hetero.Context) -> None:
    future = ctx.submit(raise_one, Proud)
    error = future.exception(60)
    assert error is not None
    assert error.__notes__ == ["mine", f"raised by task {future.item} (raise_one)"]


def begin_a_line() -> None:
    print("begun", end="")


def test_what_a_task_began_to_print_is_not_tagged_as_the_next_ones(capfd: pytest.CaptureFixture[str]) -> None:
    with hetero.Context({"tag_output": True, "devices": "1xcpu"}, history=False) as own:
        first, second = own.submit(begin_a_line), own.submit(say, "one")
        own.gather([first, second])
        name = own.devices[0].short
    assert capfd.readouterr().out.splitlines() == [
        f"[{name} task {first.item}] begun",
        f"[{name} task {second.item}] one and",
    ]


def test_the_name_of_a_function_steers_no_terminal() -> None:
    def steer(x: int) -> int:
        return x

    steer.__name__ = steer.__qualname__ = "steer\x1b[31m"
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as own:
        future = own.submit(steer, 1)
        shown = [repr(future), repr(hetero.task(steer)), str(own.explain(steer, 1))]
    assert all("\x1b" not in each for each in shown), shown
    with pytest.raises(hetero.errors.BadValueError, match="characters that print"):
        hetero.task(name="a\x1b[31m")(steer)


def print_bytes() -> None:
    print("text", end=" ")
    sys.stdout.buffer.write(b"bytes\n")
    sys.stdout.buffer.flush()
    sys.stdout.writelines(["one\n", "two\n"])
    assert sys.stdout.encoding
    assert sys.stdout.errors
    assert sys.stdout.fileno() >= 0
    assert not sys.stdout.isatty()


def test_tagged_output_has_what_a_text_stream_has(capfd: pytest.CaptureFixture[str]) -> None:
    with hetero.Context({"tag_output": True, "devices": "1xcpu"}, history=False) as own:
        own.run(print_bytes)
    said = [line.rpartition("] ")[2] for line in capfd.readouterr().out.splitlines()]
    assert said == ["text ", "bytes", "one", "two"]


# --- classes of the program ----------------------------------------------------------------------------------


SLOTTED_PROGRAM = """
import abc, dataclasses, typing, hetero
class Plain:
    __slots__ = ("x", "__own", "never")
    def __init__(self, x):
        self.x, self.__own = x, -x
    def seen(self):
        return type(self) is Plain, self.x, self.__own, hasattr(self, "never"), hasattr(self, "__dict__")
class Below(Plain):
    __slots__ = "more"
    def __init__(self, x):
        super().__init__(x)
        self.more = x + 1
    def seen(self):
        return type(self) is Below, self.more, super().seen()[1:]
class Open(Plain):
    def __init__(self, x):
        super().__init__(x)
        self.free = x + 2
    def seen(self):
        return type(self) is Open, self.free, super().seen()[1:]
class Abstract(abc.ABC):
    __slots__ = {"x": "documented", "__weakref__": ""}
    def __init__(self, x):
        self.x = x
    def seen(self):
        return type(self) is Abstract, self.x
@dataclasses.dataclass(slots=True)
class Data:
    x: int
    y: int = 7
    def seen(self):
        return type(self) is Data, self.x, self.y, self == Data(self.x)
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int
    def seen(self):
        return type(self) is Frozen, self.x
class Named(typing.NamedTuple):
    x: int
    y: str = "y"
    def seen(self):
        return type(self) is Named, self, self._replace(y="z")
class BelowNamed(Named):
    __slots__ = ()
    def seen(self):
        return type(self) is BelowNamed, tuple(self), super().seen()[1:]
class Failed(Exception):
    __slots__ = ("x",)
    def __init__(self, x):
        self.x = x
    def seen(self):
        return type(self) is Failed, self.x
KINDS = [Plain, Below, Open, Abstract, Data, Frozen, Named, BelowNamed]
def make(kind, x):
    return kind(x)
def strict(value):
    try:
        value.undeclared = 1
    except AttributeError:
        return value
def fail(x):
    raise Failed(x)
if __name__ == "__main__":
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        for kind in KINDS:
            assert ctx.run(make, kind, 3).seen() == kind(3).seen(), kind
            assert ctx.run(list, [kind(3)])[0].seen() == kind(3).seen(), kind
        assert ctx.run(strict, Plain(3)).seen() == Plain(3).seen()
        error = ctx.submit(fail, 3).exception()
        assert error.seen() == (True, 3), error
        print("all came back")
"""


def test_instances_of_the_programs_slotted_classes_come_back_as_its_own(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(SLOTTED_PROGRAM)
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout, ended.stderr) == ("all came back\n", "")


C_PROGRAM = """
import ctypes, hetero
class Packed(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("low", ctypes.c_byte), ("high", ctypes.c_int)]
class Either(ctypes.Union):
    _anonymous_ = ("parts",)
    _fields_ = [("parts", Packed), ("octets", ctypes.c_ubyte * 5)]
def doubled(value):
    value.high *= 2
    return value
def backwards(values):
    return type(values)(*reversed(list(values)))
if __name__ == "__main__":
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        made = Either()
        made.low, made.high = 7, 300
        for _ in range(2):
            made = ctx.run(doubled, made)
        assert type(made) is Either and ctypes.sizeof(made) == 5 and (made.low, made.high) == (7, 1200), made
        assert list(made.octets) == [7, 176, 4, 0, 0], list(made.octets)
        row = ctx.run(backwards, (ctypes.c_int * 3)(1, 2, 3))
        assert type(row) is ctypes.c_int * 3 and list(row) == [3, 2, 1], row
        grid = ctx.run(list, ((ctypes.c_float * 2) * 2)((1, 2), (3, 4)))
        assert [list(each) for each in grid] == [[1, 2], [3, 4]]
"""


def test_structures_and_arrays_of_c_travel(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(C_PROGRAM)
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


FUNCTOOLS_PROGRAM = """
import functools, hetero
@functools.lru_cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
@functools.cache
def power(x, *, k=2):
    "of x"
    return x**k
class Part:
    def __init__(self, x):
        self.x = x
    @functools.cached_property
    def double(self):
        return self.x * 2
    @classmethod
    @functools.cache
    def more(cls, y):
        return cls, y + 1
class Below(Part):
    pass
@functools.singledispatch
def shown(value):
    "of any"
    return repr(value)
@shown.register
def _(value: list):
    return [shown(each) for each in value]
@shown.register(Part)
def _(value):
    return value.double
class Chooses:
    @functools.singledispatchmethod
    @classmethod
    def shown(cls, value):
        return cls.__name__
    @shown.register(str)
    @classmethod
    def _(cls, value):
        return value
def chosen():
    return Chooses().shown(3), Chooses.shown("a")
def uses(n):
    return fibonacci(n), power(n), power.__doc__, power.__name__, power.cache_info()[1:]
def of(part):
    return part.double, isinstance(part, Part), Part.more(3) == (Part, 4)
if __name__ == "__main__":
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        assert ctx.run(fibonacci, 20) == 6765
        assert ctx.run(uses, 10) == (55, 100, "of x", "power", (1, None, 1))
        assert ctx.run(of, Below(4)) == (8, True, True)
        assert ctx.run(Below.more, 4) == (Below, 5)
        assert ctx.run(chosen) == ("Chooses", "a")
        assert ctx.run(shown, [1, [Part(2)], "a"]) == ["1", [4], "'a'"]
"""


def test_functions_that_keep_results_or_choose_by_type_travel(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(FUNCTOOLS_PROGRAM)
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


SEEN_PROGRAM = """
import os, sys, warnings, hetero
def seen():
    return hash("word"), sys.argv, os.environ.get("PYTHONHASHSEED"), sys.flags.utf8_mode, sys.flags.optimize
def ends():
    os._exit(3)
def warned():
    warnings.warn("odd", FutureWarning)
if __name__ == "__main__":
    found = []
    for _ in range(2):
        with hetero.Context(devices="2xcpu", history=False) as ctx:
            on = [hetero.task(seen, on=f"cpu:{index}") for index in range(2)]
            found += [ctx.run(each) for each in on]
            assert isinstance(ctx.submit(ends).exception(), hetero.errors.HeteroError)
            found += [ctx.run(each) for each in on]
            assert isinstance(ctx.submit(warned).exception(), FutureWarning)
    assert all(each == found[0] for each in found), found
    assert found[0][1:] == seen()[1:], (found[0], seen())
    print(found[0][0] == hash("word"))
"""


@pytest.mark.parametrize("seed", ["", "7"])
def test_all_workers_see_the_hashes_arguments_and_options_of_one_program(tmp_path: Path, seed: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(SEEN_PROGRAM)
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONHASHSEED"}
    environment |= {"PYTHONHASHSEED": seed} if seed else {}
    options = ["-W", "error::FutureWarning", "-X", "utf8"]
    ended = subprocess.run(
        [sys.executable, *options, path, "--rate", "5"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == ("True\n" if seed else "False\n")


def test_a_view_that_cannot_be_made_again_is_refused_where_it_is_given() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        for dtype in ("e", ">i4", "g"):
            with pytest.raises(SerialisationError, match=r"an argument of 'len' cannot travel.*memoryview of format"):
                ctx.run(len, memoryview(np.arange(3, dtype=dtype)))
        assert ctx.run(memoryview.tolist, memoryview(np.arange(3.0))) == [0.0, 1.0, 2.0]


# --- initializer -------------------------------------------------------------------------------------------


def load_model(weight: int) -> None:
    state = hetero.tasks.worker_state()
    assert not state
    state["model"] = weight
    state["pid"] = os.getpid()


def use_model(x: int) -> tuple[int, int, bool]:
    state = hetero.tasks.worker_state()
    state["uses"] = state.get("uses", 0) + 1
    return state["model"] * x, state["uses"], state["pid"] == os.getpid()


def kill_worker() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def keys_of(how: str) -> dict[str, str]:
    return {"engine": "inline"} if how == "inline" else {"isolation": how}


@pytest.mark.parametrize("how", ["inline", "thread", "process"])
def test_an_initializer_runs_once_in_each_worker_before_its_first_task(how: str) -> None:
    with hetero.Context(
        devices="1xcpu", options=ContextOptions(initializer=load_model, initargs=(3,)), history=False, **keys_of(how)
    ) as ctx:  # type: ignore[arg-type]
        assert [ctx.run(use_model, x) for x in range(3)] == [(0, 1, True), (3, 2, True), (6, 3, True)]
        if how == "process":
            ctx.submit(hetero.task(kill_worker, crashes=0)).exception()
            assert ctx.run(use_model, 5) == (15, 1, True)


def break_down(word: str) -> None:
    raise OSError(f"no {word}")


@pytest.mark.parametrize("how", ["inline", "thread", "process"])
def test_an_initializer_that_raises_is_named_and_its_device_is_not_used(how: str) -> None:
    with hetero.Context(  # type: ignore[arg-type]
        devices="1xcpu",
        options=ContextOptions(initializer=break_down, initargs=("weights",)),
        history=False,
        **keys_of(how),
    ) as ctx:
        with pytest.raises(hetero.errors.HeteroError, match="the initializer break_down raised OSError: no weights"):
            ctx.submit(identity, 1).result(60)
        with pytest.raises(hetero.errors.HeteroError, match="the initializer break_down raised OSError: no weights"):
            ctx.submit(identity, 1).result(60)


def fail_later(marks: str, failures: int) -> None:
    """Raise in some starts after the first."""
    folder = Path(marks)
    (folder / str(len(list(folder.iterdir())))).touch()
    if 1 < len(list(folder.iterdir())) <= 1 + failures:
        raise ConnectionError("hiccup")


def deaf() -> None:
    """Heed no exception, so that only the end of the worker stops it."""
    end_s = time.monotonic() + 3.0
    while time.monotonic() < end_s:
        with contextlib.suppress(BaseException):
            time.sleep(0.05)


@pytest.mark.parametrize("how", ["thread", "process"])
def test_an_initializer_that_raises_at_a_restart_is_tried_again(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hetero.Context(  # type: ignore[arg-type]
        devices="1xcpu",
        options=ContextOptions(initializer=fail_later, initargs=(str(tmp_path), 2)),
        history=False,
        **keys_of(how),
    ) as ctx:
        assert ctx.run(identity, 1) == 1
        with pytest.raises(hetero.errors.HeteroError):
            ctx.submit(hetero.task(kill_worker if how == "process" else deaf, crashes=0, timeout=0.3)).result(60)
        assert ctx.submit(identity, 2).result(60) == 2
    assert len(list(tmp_path.iterdir())) == 4
    told = [text for text in caplog.messages if "initializer fail_later raised ConnectionError: hiccup" in text]
    assert len(told) == 1


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_in_an_initializer_is_the_programs_where_it_runs_in_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        hetero.Context(devices="1xcpu", engine="inline", options=ContextOptions(initializer=interrupt), history=False)
    with (
        hetero.Context(
            devices="1xcpu", isolation="thread", options=ContextOptions(initializer=interrupt), history=False
        ) as ctx,
        pytest.raises(hetero.errors.HeteroError, match="the initializer interrupt raised KeyboardInterrupt"),
    ):
        ctx.submit(identity, 1).result(60)


def test_an_initializer_that_cannot_travel_is_refused_at_once() -> None:
    import threading

    with pytest.raises(hetero.errors.SerialisationError, match="initializer identity cannot travel"):
        hetero.Context(
            devices="1xcpu", options=ContextOptions(initializer=identity, initargs=(threading.Lock(),)), history=False
        )
    with pytest.raises(hetero.errors.BadValueError, match="no event loop"):
        hetero.Context(devices="1xcpu", options=ContextOptions(initializer=awaited), history=False)


def test_worker_state_outside_of_workers_is_refused() -> None:
    with pytest.raises(hetero.errors.BadValueError, match="only inside a task or an initializer"):
        hetero.tasks.worker_state()


# --- surroundings ------------------------------------------------------------------------------------------


def surroundings() -> tuple[str | None, str, bool]:
    return os.environ.get("WORKER_LIFE"), os.getcwd(), "/worker/life" in sys.path


def test_workers_have_the_surroundings_of_the_program_when_the_context_was_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.setenv("WORKER_LIFE", "at opening")
    monkeypatch.chdir(first)
    monkeypatch.setattr(sys, "path", [*sys.path, "/worker/life"])
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        monkeypatch.setenv("WORKER_LIFE", "later")
        monkeypatch.chdir(second)
        sys.path.remove("/worker/life")
        assert ctx.run(surroundings) == ("at opening", str(first), True)
        ctx.submit(hetero.task(kill_worker, crashes=0)).exception()
        assert ctx.run(surroundings) == ("at opening", str(first), True)


def test_a_working_folder_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        ctx.run(identity, 1)
        monkeypatch.chdir(tmp_path)
        folder.rmdir()
        ctx.submit(hetero.task(kill_worker, crashes=0)).exception()
        with pytest.raises(hetero.errors.HeteroError, match=r"working folder .*gone' is gone"):
            ctx.submit(identity, 1).result(60)


# --- variables and seeds of a task -------------------------------------------------------------------------


def variables(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


def chance() -> tuple[float, float]:
    return random.random(), float(np.random.random())


def chance_and_failure() -> None:
    raise ValueError(repr(chance()))


@pytest.mark.parametrize("how", ["inline", "process"])
def test_variables_of_a_task_are_there_while_it_runs_and_not_afterwards(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_LIFE", "of the program")
    asks = hetero.task(variables, env={"WORKER_LIFE": None, "WORKER_LIFE_TOO": "two"})
    names = ("WORKER_LIFE", "WORKER_LIFE_TOO")
    with hetero.Context(devices="1xcpu", history=False, **keys_of(how)) as ctx:  # type: ignore[arg-type]
        assert ctx.run(asks, *names) == [None, "two"]
        assert ctx.run(variables, *names) == ["of the program", None]
        assert ctx.run(hetero.task(variables, env={"WORKER_LIFE": "other"}), *names) == ["other", None]
        failing = hetero.task(fail, env={"WORKER_LIFE_TOO": "left"})
        assert isinstance(ctx.submit(failing, "broken").exception(), ValueError)
        assert list(ctx.map(asks, names, names, chunk=2)) == [[None, None], ["two", "two"]]
        assert ctx.run(variables, *names) == ["of the program", None]


@pytest.mark.parametrize("how", ["inline", "process"])
def test_seeded_tasks_give_the_same_values_wherever_they_run(how: str) -> None:
    seeded, other = hetero.task(chance, seed=7), hetero.task(chance, seed=8)

    def values(devices: str) -> tuple[Any, ...]:
        with hetero.Context(devices=devices, history=False, **keys_of(how)) as ctx:  # type: ignore[arg-type]
            futures = [ctx.submit(seeded) for _ in range(6)]
            drawn = ctx.gather(futures), list(ctx.map(hetero.task(lambda _: chance(), seed=7, name="g"), range(40)))
            return (*drawn, ctx.run(other), ctx.run(chance), ctx.run(chance))

    one, two = values("1xcpu"), values("1xcpu,1xcpu*0.9")
    assert one[:3] == two[:3]
    assert len({*one[0], *one[1], one[2]}) == 47
    assert one[3] != one[4]


def test_a_seeded_task_that_is_tried_again_draws_the_same_values() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        first = ctx.submit(hetero.task(chance_and_failure, seed=3, name="f")).exception()
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        again = ctx.submit(hetero.task(chance_and_failure, seed=3, name="f", retries=2)).exception()
    assert str(first) == str(again)


@pytest.mark.parametrize(("options", "word"), [({"env": {"A": "b"}}, "env="), ({"seed": 1}, "seed=")])
def test_a_worker_thread_refuses_what_it_shares_with_the_program(options: dict[str, Any], word: str) -> None:
    with (
        hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx,
        pytest.raises(hetero.errors.BadValueError, match=f"{word} is not possible on .*isolation: process"),
    ):
        ctx.run(hetero.task(chance, **options))


# --- nested tasks ------------------------------------------------------------------------------------------


@hetero.task
def fib(n: int) -> int:
    if n < 2:
        return n
    ctx = hetero.current_context()
    left, right = ctx.submit(fib, n - 1), ctx.submit(fib, n - 2)
    return int(left.result() + right.result())


def merged(left: list[int], right: list[int]) -> list[int]:
    return list(heapq.merge(left, right))


def merge_sort(values: list[int]) -> list[int]:
    if len(values) < 2:
        return values
    ctx, middle = hetero.current_context(), len(values) // 2
    halves = [ctx.submit(merge_sort, half) for half in (values[:middle], values[middle:])]
    return list(ctx.run(merged, *halves))


def chain(depth: int) -> int:
    return 0 if not depth else 1 + int(hetero.current_context().run(chain, depth - 1))


def test_recursive_fork_join_of_ten_thousand_tasks_runs_on_one_device(ctx: hetero.Context) -> None:
    assert ctx.run(fib, 19) == 4181  # 13,529 tasks
    values = list(range(3000))[::-1]
    assert ctx.run(merge_sort, values) == sorted(values)  # 8,998 tasks


def test_tasks_can_be_nested_deep_and_too_deep_is_named(ctx: hetero.Context) -> None:
    assert ctx.run(chain, MOST_DEEP) == MOST_DEEP
    with pytest.raises(hetero.errors.BadValueError, match=f"nested {MOST_DEEP} deep"):
        ctx.run(chain, MOST_DEEP + 1)
    assert ctx.run(chain, 3) == 3


def test_functions_of_the_main_program_can_be_nested() -> None:
    program = """
import hetero
@hetero.task
def total(values):
    if len(values) < 2:
        return sum(values)
    ctx, middle = hetero.current_context(), len(values) // 2
    return sum(ctx.gather([ctx.submit(total, values[:middle]), ctx.submit(total, values[middle:])]))
with hetero.Context(devices="1xcpu", history=False) as ctx:
    print(ctx.run(total, list(range(100))))
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=True)
    assert told.stdout == "4950\n"


def parent_of_failures() -> list[str]:
    ctx = hetero.current_context()
    failed = ctx.submit(fail, "inner")
    needs = ctx.submit(identity, {"a": [failed]})
    answers = ctx.gather([failed, needs, ctx.submit(identity, [ctx.put(3)])], return_exceptions=True)
    return [*map(repr, answers), repr(list(ctx.map(abs, [-1, -2])))]


def test_exceptions_of_nested_tasks_reach_their_parents_and_futures_are_arguments(ctx: hetero.Context) -> None:
    inner = "ValueError('inner')"
    assert ctx.run(parent_of_failures) == [inner, inner, "[3]", "[1, 2]"]
    with pytest.raises(ValueError, match="through"):
        ctx.run(lambda: hetero.current_context().run(fail, "through"))


def change(values: Any) -> None:
    values[0] = 9


def parent_of_changes() -> list[float]:
    values = np.zeros(2)
    hetero.current_context().run(change, values)
    return [float(value) for value in values]


def test_what_a_nested_task_changes_in_its_arguments_stays_with_it(ctx: hetero.Context) -> None:
    assert ctx.run(parent_of_changes) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on": "cuda"}, "it is not one of: cuda; submit it from the program"),
        ({"devices": 2}, "devices= cannot be met"),
        ({"timeout": "1s"}, "timeout= cannot be met"),
        ({"exclusive": True}, "exclusive= cannot be met"),
    ],
)
def test_what_a_nested_task_cannot_have_is_refused_by_name(
    ctx: hetero.Context, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(hetero.errors.HeteroError, match=words):
        ctx.run(lambda: hetero.current_context().submit(hetero.task(identity, **options), 1))


def leaves_with_a_future() -> Any:
    return hetero.current_context().submit(identity, 1)


def asks_for_more() -> Any:
    return hetero.current_context().lease(devices=1)


def test_what_leads_out_of_a_task_is_refused() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        with pytest.raises(hetero.errors.SerialisationError, match="future of a nested task"):
            ctx.run(leaves_with_a_future)
        with pytest.raises(hetero.errors.BadValueError, match="lease is not possible inside a task"):
            ctx.run(asks_for_more)


def test_the_context_of_the_program_is_the_one_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_contexts", weakref.WeakSet())
    with pytest.raises(hetero.errors.BadValueError, match=r"no Context is open.*in a task, submit from"):
        hetero.current_context()
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as one:
        assert hetero.current_context() is one
        with (
            hetero.Context(devices="1xcpu", engine="inline", history=False),
            pytest.raises(hetero.errors.BadValueError, match="2 Contexts are open"),
        ):
            hetero.current_context()


def waits_for_its_parent(own: list[hetero.Future]) -> Any:
    return own[0].result(5)


def test_a_task_that_waits_for_a_task_of_the_program_is_refused() -> None:
    with hetero.Context(devices="1xcpu", isolation="thread", history=False) as ctx:
        own: list[hetero.Future] = []
        own.append(ctx.submit(lambda: waits_for_its_parent(own)))
        with pytest.raises(hetero.errors.BadValueError, match=r"would wait for task .*current_context\(\)"):
            own[0].result(60)


def nested_state(path: str, word: str) -> int:
    loop = hetero.tasks.resumable(range(6), every=1, state=0)
    for item in loop:
        with open(path, "a") as file:
            file.write(f"{word}{item} ")
        loop.state += item
        if word == "b" and item == 3 and not os.path.exists(f"{path}.died"):
            Path(f"{path}.died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return int(loop.state)


def parent_of_states(path: str) -> tuple[int, int]:
    ctx = hetero.current_context()
    return ctx.run(nested_state, path, "a"), ctx.run(nested_state, path, "b")


def test_a_parent_that_is_killed_runs_again_and_nested_tasks_resume_from_their_own_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "seen"
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        assert ctx.run(parent_of_states, str(path)) == (15, 15)
    assert path.read_text().split() == [f"a{n}" for n in range(6)] + [f"b{n}" for n in (0, 1, 2, 3, 3, 4, 5)]


def sleep_deep(depth: int, path: str) -> None:
    if depth:
        hetero.current_context().run(sleep_deep, depth - 1, path)
    Path(path).touch()
    time.sleep(60)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_cancelling_a_parent_stops_what_is_nested_in_it(isolation: str, tmp_path: Path) -> None:
    path = tmp_path / "deep"
    with hetero.Context(devices="1xcpu", isolation=isolation, history=False) as ctx:
        future = ctx.submit(sleep_deep, 5, str(path))
        while not path.exists():
            time.sleep(0.01)
        future.cancel()
        assert ctx.submit(identity, 1).result(60) == 1


def parent_of_chance() -> list[tuple[float, float]]:
    ctx, seeded = hetero.current_context(), hetero.task(chance, seed=5)
    return [ctx.run(seeded), ctx.run(seeded)]


def test_nested_tasks_have_seeds_of_their_own() -> None:
    values = []
    for _ in range(2):
        with hetero.Context(devices="1xcpu", engine="inline", history=False) as ctx:
            values.append([ctx.run(parent_of_chance), ctx.run(parent_of_chance)])
    assert values[0] == values[1]
    assert len({pair for pairs in values[0] for pair in pairs}) == 4


def fails_twice(path: str) -> str:
    with open(path, "a") as file:
        file.write("x")
    if os.path.getsize(path) < 3:
        raise OSError("not yet")
    return Path(path).read_text()


def parent_of_retries(path: str) -> str:
    ctx = hetero.current_context()
    return str(ctx.run(hetero.task(fails_twice, retries=2), path)) + str(ctx.run(fib, 6))


def test_a_nested_task_is_tried_again_and_the_trace_tells_how_long_it_ran(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace.jsonl"
    with hetero.Context(devices="1xcpu", engine="inline", history=False, trace=trace) as ctx:
        future = ctx.submit(parent_of_retries, str(tmp_path / "tries"))
        assert future.result() == "xxx8"
    told = [record for _, record in read_trace(trace) if isinstance(record, NestedRun)]
    (end,) = [record for _, record in read_trace(trace) if isinstance(record, TaskFinished)]
    assert [(note.name, note.task, note.attempt) for note in told] == [
        (name, future.item, 1) for name in ("fails_twice", "fails_twice", "fails_twice", "fib")
    ]
    assert sum(note.seconds for note in told) <= end.seconds
    assert all(end.started_s <= note.started_s <= end.started_s + end.seconds for note in told)


# --- a device that answers nothing any more ----------------------------------------------------------------


def _break_device(trouble: str) -> None:
    """Leave the device as a failed kernel leaves a CUDA context: whatever waits for it raises, in this process."""

    def refuse() -> None:
        raise RuntimeError(trouble)

    frame = current()
    assert frame is not None
    frame.backend._synchronize = refuse  # type: ignore[method-assign]
    raise KeyError("the task's own exception")


@pytest.mark.servers
def test_a_task_that_leaves_its_device_unusable_fails_alone() -> None:
    pytest.importorskip("torch")
    with hetero.Context(devices="1xtorch-cpu", isolation="process", history=False) as ctx:
        before = ctx.run(os.getpid)
        futures = [ctx.submit(_break_device, "CUDA error: device-side assert triggered") for _ in range(3)]
        rest = [ctx.submit(identity, number) for number in range(20)]
        for future in futures:
            with pytest.raises(KeyError, match="the task's own exception"):
                future.result(60)
        assert ctx.gather(rest) == list(range(20))
        assert ctx.run(os.getpid) != before
        assert ctx.run(identity, 5) == 5


def test_a_task_that_fails_on_a_sound_device_keeps_its_worker() -> None:
    pytest.importorskip("torch")
    with hetero.Context(devices="1xtorch-cpu", isolation="process", history=False) as ctx:
        before = ctx.run(os.getpid)
        with pytest.raises(ValueError, match="two"):
            ctx.run(fail, "two")
        assert ctx.run(os.getpid) == before
