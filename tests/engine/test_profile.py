"""Operators of torch in the trace: inside attempts, on the run's clock, and in every way of looking at a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hetero
from hetero.errors import HeteroError
from hetero.model.annotations import OperatorsRun
from hetero.report.chrome import chrome_trace
from hetero.report.findings import find
from hetero.report.html import page
from hetero.report.record import RunRecord
from hetero.report.tables import operator_table
from hetero.report.trace_reader import read_run
from hetero.session.options import ContextOptions

torch = pytest.importorskip("torch")


def _multiplied(size: int) -> float:
    a = torch.ones(size, size)
    return float((a @ a).relu().sum())


def _fails(size: int) -> None:
    torch.ones(size, size)
    raise ValueError("after an operator")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    trace = tmp_path_factory.mktemp("profile") / "run.trace.jsonl.gz"
    given: dict[str, Any] = {"devices": "1xcpu", "isolation": "thread", "trace": trace}
    with hetero.Context(**given, options=ContextOptions(profile="torch")) as ctx:
        assert ctx.run(_multiplied, 64) == 64.0**3
        with pytest.raises(ValueError, match="after an operator"):
            ctx.run(hetero.task(retries=0)(_fails), 8)
    return read_run(trace)


def _told(run: RunRecord) -> list[OperatorsRun]:
    return [each for each in run.notes if isinstance(each, OperatorsRun)]


def test_operators_lie_within_their_attempt_on_the_clock_of_the_run(run: RunRecord) -> None:
    for note, attempt in zip(_told(run), run.attempts, strict=True):
        assert (note.task, note.attempt) == (attempt.task, attempt.attempt)
        begins = [note.started_s + at_s for at_s in note.starts_s]
        ends = [begin_s + took_s for begin_s, took_s in zip(begins, note.seconds, strict=True)]
        assert attempt.start_s <= min(begins) <= max(ends) <= attempt.end_s + 1e-4


def test_every_operator_that_was_called_is_counted_also_where_the_task_failed(run: RunRecord) -> None:
    first, second = (dict(zip(each.operators, each.calls, strict=True)) for each in _told(run))
    assert (first["aten::mm"], first["aten::relu"], first["aten::sum"]) == (1, 1, 1)
    assert second["aten::ones"] == 1
    assert "aten::mm" not in second


def test_the_report_names_the_operators_that_took_longest(run: RunRecord) -> None:
    found = find(run)
    assert found.operators[0].own_s == max(each.own_s for each in found.operators)
    assert sum(each.share_frac for each in found.operators) == pytest.approx(1.0)
    assert "aten::mm" in operator_table(found)
    assert any(each.startswith("The operators that took most time") for each in found.sentences)
    assert {"operator", "device", "calls", "own_s", "share_frac"} == set(found.as_dict()["operators"][0])
    assert "<h2>Operators</h2>" in page(run)


def test_slices_of_a_chrome_trace_lie_within_each_other(run: RunRecord) -> None:
    slices = [each for each in chrome_trace(run)["traceEvents"] if each["ph"] == "X"]
    assert sum(each["cat"] == "operator" for each in slices) == sum(len(each.names) for each in _told(run))
    for row in {each["tid"] for each in slices}:
        around: list[int] = []
        for each in sorted((each for each in slices if each["tid"] == row), key=lambda one: (one["ts"], -one["dur"])):
            while around and each["ts"] >= around[-1]:
                around.pop()
            assert not around or each["ts"] + each["dur"] <= around[-1]
            around.append(each["ts"] + each["dur"])


def test_a_run_without_a_profiler_tells_of_no_operator(tmp_path: Path) -> None:
    with hetero.Context(devices="1xcpu", isolation="thread", trace=tmp_path / "run.trace.jsonl") as ctx:
        ctx.run(_multiplied, 4)
    assert not _told(read_run(tmp_path / "run.trace.jsonl"))
    assert operator_table(find(RunRecord())) == ""


def test_training_tells_of_the_operators_of_a_few_steps(tmp_path: Path) -> None:
    model, loss = torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss()
    data = (torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"devices": "1xcpu", "isolation": "thread", "profile": "torch"}
    trace = tmp_path / "run.trace.jsonl"
    with hetero.Trainer(
        model, loss, optimizer, data, global_batch=8, context=ContextOptions(config=config, trace=trace)
    ) as trainer:
        trainer.fit(1)
    (told,) = _told(read_run(trace))
    calls = dict(zip(told.operators, told.calls, strict=True))
    assert calls["aten::addmm"] == 3


def test_an_unknown_profiler_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(HeteroError, match=r"profile.*allowed: torch"):
        hetero.Context(devices="1xcpu", options=ContextOptions(profile="cprofile"))
