"""Exceptions as they travel: whatever its class, the caller gets the task's own exception."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import pytest

from hetero.drive.call_environment import EnvironmentFound, kept_random_state
from hetero.engines.shared.exceptions import add_note, dump_error, kind_here, load_error, one_line
from hetero.floor import settings
from hetero.floor.contexts import transparent
from hetero.floor.errors import BadValueError, HeteroError, RemoteTracebackError
from hetero.floor.own_memory import freed_memory_kept
from hetero.train.compatibility import dtype_held, in_process
from hetero.train.data import generators_kept


class TwoError(Exception):
    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} ({code})")
        self.code, self.what = code, what


class KeywordError(ValueError):
    def __init__(self, *, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def __str__(self) -> str:
        return f"because {self.reason}"


class QuietlyWrongError(Exception):
    def __init__(self, what: str, more: int = 0) -> None:
        super().__init__(f"bad {what}")
        self.more = more


class SlottedError(Exception):
    __slots__ = ("__own", "what")

    def __init__(self, what: str, own: int) -> None:
        self.what, self.__own = what, own

    def own(self) -> int:
        return self.__own


class HoldingError(RuntimeError):
    def __init__(self, lock: Any, good: int) -> None:
        super().__init__(lock, good)
        self.lock, self.good = lock, good


class NewError(Exception):
    def __new__(cls, one: int, other: int) -> NewError:
        return super().__new__(cls, one + other)

    def __init__(self, one: int, other: int) -> None:
        self.one = one


class DumbError(Exception):
    def __init__(self, one: int, other: int) -> None:
        self.one = one

    def __str__(self) -> str:
        raise ValueError("no words")

    def __repr__(self) -> str:
        raise ValueError("no words")

    def __reduce__(self) -> Any:
        raise ValueError("no pickle")


class PathError(OSError):
    def __init__(self, path: str, *, why: str) -> None:
        super().__init__(2, why, path)
        self.why = why


class StrictError(Exception):
    def __init__(self, one: int, other: int) -> None:
        object.__setattr__(self, "one", one)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("this is read only")


class GroupOfOursError(ExceptionGroup[Exception]):
    pass


def travelled(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001  of every kind
        blob, text = dump_error(caught)
    assert blob is not None
    return load_error(blob, one_line(error), text)


def test_a_class_whose_init_takes_two_arguments_comes_back_as_itself() -> None:
    back = travelled(TwoError(7, "disk"))
    assert type(back) is TwoError
    assert (str(back), back.args, back.code, back.what) == ("disk (7)", ("disk (7)",), 7, "disk")
    assert isinstance(back.__cause__, RemoteTracebackError)
    assert "raise error" in str(back.__cause__)


def test_init_is_never_called_again() -> None:
    back = travelled(QuietlyWrongError("file", 3))
    assert (str(back), vars(back)) == ("bad file", {"more": 3})


def test_keywords_slots_and_a_new_of_its_own_survive() -> None:
    back = travelled(KeywordError(reason="rain"))
    assert type(back) is KeywordError
    assert str(back) == "because rain"
    slotted = travelled(SlottedError("a", 5))
    assert isinstance(slotted, SlottedError)
    assert (slotted.what, slotted.own(), slotted.args) == ("a", 5, ("a", 5))
    made = travelled(NewError(1, 2))
    assert type(made) is NewError
    assert (made.one, made.args) == (1, (3,))
    strict = travelled(StrictError(1, 2))
    assert type(strict) is StrictError
    assert strict.one == 1


def test_what_cannot_travel_is_left_out_and_named() -> None:
    back = travelled(HoldingError(threading.Lock(), 4))
    assert type(back) is HoldingError
    assert (back.good, hasattr(back, "lock"), back.args[1]) == (4, False, 4)
    assert back.args[0].startswith("<unlocked _thread.lock")
    assert any("the attribute 'lock', <unlocked _thread.lock" in note for note in back.__notes__)


def test_an_exception_that_raises_wherever_it_is_asked_comes_back_as_itself() -> None:
    back = travelled(DumbError(1, 2))
    assert type(back) is DumbError
    assert back.one == 1
    assert one_line(back) == "DumbError: (its text cannot be made)"


class ArgsError(Exception):
    args = property(lambda self: ("made up",))  # type: ignore[assignment]


class FieldsError(Exception):
    __cause__ = property(lambda self: None)  # type: ignore[assignment]
    __context__ = property(lambda self: 1 / 0)  # type: ignore[assignment]
    __suppress_context__ = property(lambda self: "no")  # type: ignore[assignment]
    __notes__ = property(lambda self: ["never"])  # type: ignore[assignment]
    __dict__ = property(lambda self: {})  # type: ignore[assignment]
    name = property(lambda self: 1 / 0)

    def with_traceback(self, trace: object) -> Any:
        raise RuntimeError("no")


class MixedError(ArgsError, FieldsError):
    __slots__ = ("own",)

    def __init__(self, own: object) -> None:
        super().__init__(own)
        object.__setattr__(self, "own", own)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class ReduceError(ArgsError):
    def __reduce__(self) -> Any:
        raise ValueError("cannot")


@pytest.mark.parametrize("kind", [ArgsError, FieldsError, MixedError, ReduceError])
def test_a_class_whose_properties_hide_the_fields_of_exceptions_comes_back_as_itself(kind: type[Exception]) -> None:
    fields = vars(BaseException)
    try:
        try:
            raise KeyError("first")
        except KeyError as cause:
            raise kind("own") from cause
    except kind as error:
        blob, text = dump_error(error)
    found = load_error(blob, "message", text)
    assert type(found) is kind
    assert fields["args"].__get__(found) == ("own",)
    assert repr(fields["__cause__"].__get__(found)) == "KeyError('first')"
    assert f"{kind.__name__}" in text
    assert kind_here("missing_package", found) == "exception"
    add_note(found, "noted")
    assert fields["__dict__"].__get__(found)["__notes__"] == ["noted"]


class TraceError(Exception):
    __traceback__ = property(lambda self: 1 / 0)  # type: ignore[assignment]


class TraceStop(TraceError, StopIteration):  # noqa: N818
    """One that the interpreter wraps as it leaves a generator."""


@pytest.mark.parametrize("kind", [TraceError, TraceStop, StopIteration, RuntimeError])
@pytest.mark.parametrize(
    "block",
    [
        lambda: settings.replaced({"HETERO_TEST_ANY": "1"}),
        kept_random_state,
        EnvironmentFound((), True).again,
        freed_memory_kept,
        lambda: in_process({}),
        generators_kept,
        dtype_held,
    ],
)
def test_our_blocks_around_code_of_users_leave_its_exceptions_as_they_are(
    kind: type[Exception], block: Callable[[], AbstractContextManager[object]]
) -> None:
    error, found, trace = kind("own"), None, vars(BaseException)["__traceback__"]
    try:
        with block():
            raise error
    except kind as caught:
        found = caught
    assert found is error
    assert [step.tb_frame.f_code.co_filename for step in steps(trace.__get__(found))] == [__file__]


def steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def test_a_transparent_block_may_change_or_swallow_what_passes_through() -> None:
    @transparent
    def changed(into: Exception | None) -> Iterator[None]:
        try:
            yield
        except TraceError:
            if into is not None:
                raise into from None

    with changed(None):
        raise TraceError
    with pytest.raises(KeyError), changed(KeyError("new")):
        raise TraceError
    with changed(None):
        pass


def test_fields_that_c_holds_survive() -> None:
    path = travelled(PathError("/x", why="gone"))
    assert type(path) is PathError
    assert (path.errno, path.filename, path.strerror, path.why, str(path)) == (
        2, "/x", "gone", "gone", "[Errno 2] gone: '/x'",
    )  # fmt: skip
    assert type(travelled(OSError(2, "no", "/y"))) is FileNotFoundError
    assert travelled(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")).start == 0  # type: ignore[attr-defined]
    assert travelled(ModuleNotFoundError("no", name="torch")).name == "torch"  # type: ignore[attr-defined]
    assert travelled(StopIteration(5)).value == 5  # type: ignore[attr-defined]
    assert travelled(SystemExit(3)).code == 3  # type: ignore[attr-defined]
    assert travelled(NameError("no", name="x")).name == "x"  # type: ignore[attr-defined]
    assert travelled(SyntaxError("bad", ("f.py", 3, 1, "x", 3, 2))).lineno == 3  # type: ignore[attr-defined]
    for error in (KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError("x"), StopAsyncIteration()):
        assert type(travelled(error)) is type(error)
        assert travelled(error).args == error.args


def test_groups_keep_their_members_as_themselves() -> None:
    back = travelled(ExceptionGroup("many", [TwoError(1, "a"), GroupOfOursError("inner", [KeywordError(reason="b")])]))
    assert isinstance(back, ExceptionGroup)
    first, inner = back.exceptions
    assert (type(first), str(first), type(inner)) == (TwoError, "a (1)", GroupOfOursError)
    assert str(inner.exceptions[0]) == "because b"
    found: list[BaseException] = []
    try:
        raise back
    except* TwoError as caught:
        found += caught.exceptions
    except* KeywordError as caught:
        found += caught.exceptions
    assert len(found) == 2


def test_causes_contexts_and_notes_survive_and_the_remote_traceback_is_at_the_end() -> None:
    error = TwoError(1, "a")
    error.__cause__ = KeywordError(reason="below")
    error.__cause__.__context__ = KeyError("lowest")
    error.add_note("a note")
    back = travelled(error)
    assert back.__notes__ == ["a note"]
    assert type(back.__cause__) is KeywordError
    assert type(back.__cause__.__context__) is KeyError
    assert isinstance(back.__cause__.__cause__, RemoteTracebackError)
    alone = TwoError(1, "a")
    alone.__context__ = KeyError("before")
    back = travelled(alone)
    assert isinstance(back.__context__, KeyError)
    assert isinstance(back.__cause__, RemoteTracebackError)


def test_exceptions_that_lead_to_each_other_in_circles_come_back_in_the_same_circles() -> None:
    own = TwoError(1, "a")
    own.__cause__ = own
    back = travelled(own)
    assert str(back) == "a (1)"
    assert isinstance(back.__cause__, RemoteTracebackError)
    inside = KeyError()
    inside.args = (inside,)
    back = travelled(inside)
    assert back.args[0] is back
    first, other, third = TwoError(1, "a"), TwoError(2, "b"), KeyError(3)
    first.__cause__, first.__context__, other.__cause__, other.__context__ = other, third, third, first
    third.__cause__, third.__context__ = first, other
    first.partner, other.args = [other], (first, {"third": third})  # type: ignore[attr-defined]
    back = travelled(first)
    two = back.__cause__
    assert back.partner == [two]
    assert two.args == (back, {"third": back.__context__})
    assert two.__cause__ is back.__context__


def test_what_is_reached_in_two_ways_stays_one_and_takes_no_longer_each_time() -> None:
    error: BaseException = KeyError("lowest")
    for number in range(40):
        outer = TwoError(number, "more")
        outer.args = (error,)
        outer.__cause__ = outer.__context__ = error
        error = outer
    back = travelled(error)
    below = back.__cause__
    assert below is back.args[0]
    assert type(below.__cause__.args[0]) is TwoError
    group = ExceptionGroup("many", [TwoError(1, "a")])
    group.exceptions[0].args = (group,)
    assert type(travelled(group).exceptions[0]) is TwoError


def test_a_chain_without_end_and_a_circle_are_cut() -> None:
    first = error = TwoError(0, "first")
    for number in range(500):
        error.__context__ = TwoError(number, "more")
        error = error.__context__
    assert type(travelled(first)) is TwoError
    one, other = TwoError(1, "a"), TwoError(2, "b")
    one.__context__, other.__context__ = other, one
    assert str(travelled(one)) == "a (1)"


def local_class() -> type[Exception]:
    class LocalError(KeywordError):
        def __init__(self, one: int, other: int) -> None:
            super().__init__(reason=f"{one}{other}")

    return LocalError


def test_classes_of_a_function_and_of_main_are_the_callers_own() -> None:
    kind = local_class()
    back = travelled(kind(1, 2))  # type: ignore[call-arg]
    assert type(back) is kind
    assert str(back) == "because 12"
    here = type("MainError", (TwoError,), {"__module__": "__main__"})
    assert type(travelled(here(1, "m"))) is here


def test_a_class_that_is_not_here_stands_in_under_its_nearest_base() -> None:
    module = types.ModuleType("only_in_the_worker")
    module.FarError = type("FarError", (TwoError,), {"__module__": "only_in_the_worker"})  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        blob, text = dump_error(module.FarError(3, "far"))
        again, _ = dump_error(module.FarError(4, "far"))
    finally:
        del sys.modules[module.__name__]
    back = load_error(blob, "FarError: far", text)
    assert isinstance(back, TwoError)
    assert (type(back).__name__, type(back).__module__, back.code, str(back)) == (
        "FarError", "only_in_the_worker", 3, "far (3)",
    )  # fmt: skip
    assert type(load_error(again, "", "")) is type(back)
    assert "its class, only_in_the_worker.FarError, did not travel" in back.__notes__[0]


def test_our_own_errors_and_those_with_a_reduce_of_their_own_are_read_by_it() -> None:
    back = travelled(BadValueError("three", remedy="give two"))
    assert (type(back), str(back)) == (BadValueError, "three; give two")
    assert isinstance(load_error(None, "lost", "text"), HeteroError)
    assert isinstance(load_error(pickle.dumps(5), "lost", "text"), HeteroError)


def test_a_package_that_the_program_lacks_too_is_missing_nowhere_in_particular() -> None:
    assert kind_here("missing_package", ModuleNotFoundError("no", name="hetero_has_no_such")) == "exception"
    assert kind_here("missing_package", ModuleNotFoundError("no", name="numpy")) == "missing_package"
    assert kind_here("missing_package", ModuleNotFoundError("no")) == "exception"
    assert kind_here("exception", ModuleNotFoundError("no", name="numpy")) == "exception"
