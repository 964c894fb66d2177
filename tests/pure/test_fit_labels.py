"""What is said to fit is judged by what ran and what ran out of memory; no constant was fitted on these rows."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks import fit as benchmark
from hetero.floor.errors import BadValueError
from tests.needs import data_folder


def _judged(name: str, job: str) -> list[benchmark.Judged]:
    items, unanswered = benchmark.judge_all(benchmark.rows_of([data_folder() / "planner" / name]))
    assert unanswered == []
    return [item for item in items if (item.work.job == "inference") == (job == "inference")]


def test_llama_cpp_runs_where_it_is_said_to_fit_and_nowhere_else() -> None:
    items = _judged("gpubench_llamacpp.csv", "inference")
    assert len(items) >= 140
    assert {item.ran for item in items} == {True, False}
    assert [item.row for item in items if not item.right] == []


def test_the_peaks_of_generation_are_near_what_is_computed() -> None:
    errors = [
        item.error_frac for item in _judged("finetune_memory_fit.csv", "inference") if item.error_frac is not None
    ]
    assert len(errors) >= 15
    assert statistics.median(errors) <= 0.10


def test_adapters_are_trained_where_it_is_said_to_fit_and_the_peaks_are_near() -> None:
    items = _judged("finetune_memory_fit.csv", "lora")
    errors = [item.error_frac for item in items if item.error_frac is not None]
    assert [item.row for item in items if item.unsafe] == []
    assert sum(item.right for item in items) >= 0.95 * len(items)
    assert statistics.median(errors) <= 0.15


def test_the_rules_that_people_copy_are_no_better() -> None:
    items = _judged("finetune_memory_fit.csv", "lora")
    ours = sum(item.right for item in items)
    for rule in benchmark.RULES.values():
        assert sum((rule(item) <= item.room.usable_bytes) == item.ran for item in items) < ours


def test_a_row_that_cannot_be_answered_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    columns = "device,count,framework,model,precision,kind,batch,input_len,output_len,oom"
    path.write_text(f"{columns}\nnever-made,1,x,Llama-3-8B,F16,decode,1,,,0\n", encoding="utf-8")
    items, unanswered = benchmark.judge_all(benchmark.rows_of([path]))
    assert items == []
    assert "never-made" in unanswered[0]


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("device,count\nT4,1\n", encoding="utf-8")
    with pytest.raises(BadValueError, match="lacks the columns batch, framework"):
        benchmark.rows_of([path])
