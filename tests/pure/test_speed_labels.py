"""What is said of speed is judged by what others measured; nothing was fitted on the rows that judge."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from hetero.advise.accuracy import Judged, Merit, leave_one_model_out, merits, ordered, uncalibrated
from hetero.advise.known_efficiency import keep_table, known_of, tables
from hetero.advise.measurements import COLUMNS, Measurement, device_of, published, read_rows, read_table
from hetero.catalog.load import find, published_rows
from hetero.cli.plan import accuracy
from hetero.floor.errors import BadValueError, FileError
from tests.needs import data_folder


def _rows(name: str) -> list[Measurement]:
    return read_rows(read_table(data_folder() / "planner" / name))[0]


@pytest.fixture(scope="module")
def argonne() -> list[list[Judged]]:
    rows = _rows("argonne_llm_inference_bench.csv")
    assert len(rows) > 2200
    return [leave_one_model_out(rows, draw=draw) for draw in range(5)]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "no row has a value"),
        (["no-such-card,1,vllm,Llama-3.1-8B,bf16,decode,1,128,128,10"], "line 2: no-such-card, Llama-3.1-8B"),
        (["L4,1,vllm,Llama-3.1-8B,bf16,decode,1,128,128,"], "no row has a value"),
        (["L4,1,vllm,Llama-3.1-8B,bf16,decode,1,128,128,fast"], "could not convert"),
    ],
)
def test_a_table_without_a_row_that_can_be_read_is_refused_in_one_line(
    rows: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETERO_HOME", str(tmp_path))
    table = tmp_path / "mine.csv"
    table.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    for reading in (lambda: accuracy([table], json=False), lambda: keep_table(table)):
        with pytest.raises(FileError, match=f"mine.csv has no row that can be read: .*{why}") as caught:
            reading()
        assert "\n" not in str(caught.value)


def test_llama_cpp_is_as_fast_as_said_where_nothing_was_measured() -> None:
    found = merits(uncalibrated(_rows("gpubench_llamacpp.csv")), lambda item: item.row.kind)
    assert found["decode"].error_frac <= 0.16
    assert found["prefill"].error_frac <= 0.25
    assert all(0.65 <= merit.held_frac <= 0.95 for merit in found.values())


def test_the_most_that_tensorrt_llm_gives_is_near_what_is_said() -> None:
    merit = Merit.of(uncalibrated(_rows("trtllm_perf_overview.csv")))
    assert merit.rows == 156
    assert merit.error_frac <= 0.18
    assert 0.65 <= merit.held_frac <= 0.95


@pytest.mark.slow
def test_twelve_measurements_of_other_models_are_enough(argonne: list[list[Judged]]) -> None:
    assert statistics.median(Merit.of(items).error_frac for items in argonne) <= 0.12
    by_engine = [merits(items, lambda item: item.row.framework) for items in argonne]
    assert statistics.median(found["TensorRT-LLM"].error_frac for found in by_engine) <= 0.08
    assert statistics.median(found["Deepspeed"].error_frac for found in by_engine) <= 0.12


def test_four_of_five_intervals_hold(argonne: list[list[Judged]]) -> None:
    assert 0.75 <= statistics.median(Merit.of(items).held_frac for items in argonne) <= 0.85
    for name in ("Deepspeed", "Deepspeed-MII", "TensorRT-LLM", "llama.cpp", "vLLM"):
        shares = [merits(items, lambda item: item.row.framework)[name].held_frac for items in argonne]
        assert 0.62 <= statistics.median(shares) <= 0.95, name


def test_devices_are_ordered_right(argonne: list[list[Judged]]) -> None:
    shares = [[right / asked for right, asked in (ordered(items), ordered(items, single=True))] for items in argonne]
    assert statistics.median(share[0] for share in shares) >= 0.90
    assert statistics.median(share[1] for share in shares) >= 0.92


def test_no_measurement_of_the_judged_model_is_drawn() -> None:
    rows = [row for row in _rows("argonne_llm_inference_bench.csv") if row.framework == "Deepspeed-MII"]
    one = [row for row in rows if row.work.model.name == "Llama-3-8B"]
    assert len(leave_one_model_out(one)) == len(one)
    said = {item.said_s.origin for item in leave_one_model_out(one)}
    assert said == {"spec"}


def test_every_published_row_has_a_page_and_is_none_of_the_rows_that_judge() -> None:
    assert all(row["source"].startswith("https://") for row in published_rows())
    assert len(published()) == len(published_rows())
    names = ("gpubench_llamacpp.csv", "trtllm_perf_overview.csv", "argonne_llm_inference_bench.csv")
    judged = {
        (row.device.name, row.work.model.name, row.kind, round(row.value, 2)) for name in names for row in _rows(name)
    }
    assert not judged & {(row.device.name, row.work.model.name, row.kind, round(row.value, 2)) for row in published()}


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Nvidia A100 GPU", "A100-SXM-40GB"),
        ("AMD MI300X GPU", "MI300X"),
        ("A100-PCIe", "A100-PCIe-80GB"),
        ("M1 Max 32‑Core GPU 64GB", "M1-Max-64GB"),
    ],
)
def test_the_labels_of_the_common_tables_mean_a_card(label: str, name: str) -> None:
    assert device_of(label).name == name


def _table(path: Path, *rows: str) -> Path:
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n", encoding="utf-8")
    return path


def test_own_figures_are_kept_and_taken_before_those_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_HOME", str(tmp_path / "home"))
    device = find("RTX-4090")
    assert known_of(device, "llama.cpp").origin == "prior"
    path = _table(tmp_path / "mine.csv", "RTX 4090,1,llama.cpp,Llama-3-8B,Q4_K_M,decode,1,0,1024,60")
    found, unread = keep_table(path)
    assert (len(found), unread) == (1, [])
    assert known_of(device, "llama.cpp").origin == "measured"
    amounts = found[0].sample.amounts
    before_s = 1 / 128
    assert before_s < known_of(device, "llama.cpp").seconds(amounts) < 1.05 / 60
    _table(path, "RTX 4090,1,llama.cpp,Llama-3-8B,Q4_K_M,decode,1,0,1024,90")
    keep_table(path)
    assert [row.value for row in tables()] == [90]


def test_a_row_that_cannot_be_read_is_told_with_its_line(tmp_path: Path) -> None:
    good = "RTX 4090,1,llama.cpp,Llama-3-8B,Q4_K_M,decode,1,0,1024,60"
    path = _table(
        tmp_path / "rows.csv",
        good,
        good.replace("RTX 4090", "never-made"),
        good.replace("llama.cpp", "mlc"),
        good.replace("decode", "speed"),
        good.replace(",60", ",fast"),
        good.replace(",60", ",-3"),
        good.replace(",60", ","),
    )
    found, unread = read_rows(read_table(path))
    assert len(found) == 1
    assert [line.partition(":")[0] for line in unread] == ["line 3", "line 4", "line 5", "line 6", "line 7"]
    assert "'speed' is no kind of measurement" in unread[2]


def test_a_table_without_the_columns_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("device,count\nT4,1\n", encoding="utf-8")
    with pytest.raises(BadValueError, match="lacks the columns framework, model"):
        keep_table(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadValueError, match="this is UTF-16, not UTF-8 text"):
        read_table(path)
    with pytest.raises(BadValueError, match="no row that can be read"):
        keep_table(_table(tmp_path / "empty.csv"))
