"""The worker's side that both engines share: functions, dropped values, cancelling, emulated links."""

from __future__ import annotations

import pickle
import threading

import pytest

from hetero.engines.base import Function
from hetero.engines.shared import worker
from hetero.engines.shared.messages import FAILED, Cancelled, UnserialisableError
from hetero.engines.shared.worker import Cancellation, KeptValues, WorkerFunctions, failed_row
from hetero.floor.errors import HeteroError


def _blob(name: str) -> bytes:
    return pickle.dumps((name, abs, {}))


def test_a_function_is_read_once_and_forgotten_with_its_bytes() -> None:
    functions = WorkerFunctions()
    functions.take([("f", _blob("f")), ("g", _blob("g"))])
    first = functions.get("f")
    assert functions.get("f") is first
    assert functions.read == {"f": first}
    functions.take([("f", b""), ("g", b"")])
    for key in ("f", "g"):
        with pytest.raises(HeteroError, match=f"'{key}' did not reach this worker"):
            functions.get(key)


def test_a_function_that_travels_again_replaces_the_one_before() -> None:
    functions = WorkerFunctions()
    functions.take([("f", _blob("old"))])
    functions.get("f")
    functions.take([("f", _blob("new"))])
    assert functions.get("f").name == "new"


def test_a_function_that_cannot_be_read_now_may_be_read_later() -> None:
    functions = WorkerFunctions()
    functions.take([("f", b"no pickle")])
    for _ in range(2):
        with pytest.raises(pickle.UnpicklingError):
            functions.get("f")


def test_drops_are_waited_for_no_longer_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    values = KeptValues()
    values["a"] = 1
    threading.Timer(0.05, values.drop, ("a",)).start()
    values.wait_for_drops(1)
    assert (values.drops, dict(values)) == (1, {})
    monkeypatch.setattr(worker, "DROPS_S", 0.01)
    values.wait_for_drops(2)
    assert values.drops == 1


def _wait_for_ever(began: threading.Event) -> None:
    began.set()
    while True:
        threading.Event().wait(1e-3)


def test_a_running_call_is_stopped_and_nothing_comes_after_it() -> None:
    cancellation, began, ends = Cancellation(), threading.Event(), list[str]()

    def attempt() -> None:
        cancellation.thread, cancellation.current = threading.get_ident(), 1
        try:
            try:
                _wait_for_ever(began)
            finally:
                cancellation.leave_call()
        except Cancelled:
            ends.append("cancelled")

    thread = threading.Thread(target=attempt)
    thread.start()
    assert began.wait(60)
    with cancellation.lock:
        cancellation.stop_call()
    thread.join(60)
    assert ends == ["cancelled"]
    assert cancellation.current is None


def test_a_cancellation_that_comes_too_late_does_no_harm() -> None:
    cancellation, ends = Cancellation(), list[str]()

    def attempt() -> None:
        cancellation.thread, cancellation.current = threading.get_ident(), 1
        cancellation._on_its_way = True  # as where the call ends between the decision and the exception
        try:
            cancellation.leave_call()
        except Cancelled:
            ends.append("cancelled")
        ends.append("went on")

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(60)
    assert ends == ["went on"]
    assert not cancellation._on_its_way


class _Runner:
    def classify(self, error: BaseException) -> str:
        return "out_of_memory" if isinstance(error, MemoryError) else "exception"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Cancelled(), "cancelled"),
        (UnserialisableError("no"), "unserialisable"),
        (MemoryError("full"), "out_of_memory"),
        (ValueError("bad"), "exception"),
    ],
)
def test_a_failure_tells_its_kind_and_keeps_no_frames(error: BaseException, kind: str) -> None:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001  as a task raises whatever it likes
        row = failed_row(_Runner(), raised)  # type: ignore[arg-type]
    assert row[:2] == (FAILED, kind)
    if kind in ("out_of_memory", "exception"):
        assert error.__traceback__ is None


def test_functions_of_workers_are_functions() -> None:
    functions = WorkerFunctions()
    functions.take([("f", _blob("f"))])
    assert isinstance(functions.get("f"), Function)
