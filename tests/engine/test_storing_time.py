"""What a task is said to have taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hetero
from hetero.drive.trace_read import read_trace
from hetero.model.events import TaskFinished


def slow_to_store() -> Any:
    import time

    class Slow:
        def __reduce__(self) -> tuple[Any, ...]:
            time.sleep(0.3)
            return (int, (7,))

    return Slow()


def seven_slowly() -> int:
    import time

    time.sleep(0.3)
    return 7


class SlowToRead:
    def __reduce__(self) -> tuple[Any, ...]:
        return (seven_slowly, ())


def took_s(trace: Path) -> list[float]:
    return [record.seconds for _, record in read_trace(str(trace)) if isinstance(record, TaskFinished)]


def test_the_time_of_a_task_includes_that_of_storing_its_result(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace.jsonl.gz"
    with hetero.Context(devices="1xcpu", trace=str(trace), history=False) as ctx:
        assert ctx.run(slow_to_store) == 7
    assert took_s(trace)[0] >= 0.3


def test_the_time_of_a_task_includes_that_of_reading_its_inputs(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace.jsonl.gz"
    with hetero.Context(devices="1xcpu", trace=str(trace), history=False) as ctx:
        assert ctx.run(abs, SlowToRead()) == 7
    assert took_s(trace)[0] >= 0.3
