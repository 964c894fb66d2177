from __future__ import annotations

import pdb
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.engines.inline import InlineEngine
from hetero.model.events import TaskFailed
from hetero.testing import check_engine
from hetero.testing.engine import Bench


def _fail() -> None:
    raise ValueError("broken")


def test_the_inline_engine_keeps_what_the_driver_relies_on(no_leaks: None) -> None:
    check_engine(lambda: InlineEngine(debug=False), processes=False, concurrent=False)


def test_a_failing_task_opens_the_debugger_where_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(pdb, "post_mortem", seen.append)
    bench = Bench(InlineEngine(debug=True))
    bench.ready()
    assert bench.failure(_fail).failure.kind == "exception"
    last = seen[0]
    while last.tb_next:
        last = last.tb_next
    assert last.tb_frame.f_code.co_name == "_fail"
    bench.engine.stop()


def test_a_group_of_two_is_refused_with_the_remedy() -> None:
    bench = Bench(InlineEngine(debug=False))
    bench.ready()
    task = bench.launch_group(bench.call(_fail))
    event = bench.expect(TaskFailed, lambda event: event.task == task)
    assert "engine: local" in event.failure.message
    bench.engine.stop()


def _spoil(array: np.ndarray) -> float:
    array += 1
    return float(array.sum())


def test_what_a_task_changes_in_its_arguments_is_seen_by_nobody_else() -> None:
    given = np.zeros(4)
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as ctx:
        made = ctx.submit(np.zeros, 4)
        assert [ctx.run(_spoil, made), ctx.run(_spoil, made), ctx.run(_spoil, given)] == [4.0, 4.0, 4.0]
        made.result()[:] = 5.0
        assert ctx.run(_spoil, made) == 4.0
    assert not given.any()


class RefusingError(Exception):
    """Refuses to have an attribute set, also by the interpreter's own libraries."""

    args = property(lambda self: ("made up",))  # type: ignore[assignment]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


def refuse() -> None:
    raise RefusingError("own")


def catch() -> str:
    try:
        hetero.current_context().run(refuse)
    except RefusingError as error:
        return str(error)
    return "nothing"


def test_an_exception_that_refuses_attributes_passes_through_nested_tasks_as_itself() -> None:
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as ctx:
        assert ctx.run(catch) == "own"
        with pytest.raises(RefusingError, match="own"):
            ctx.run(refuse)
