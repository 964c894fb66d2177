"""Devices side by side, in tables, JSON and a chart."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hetero.advise.compare import MEASURES, best_for, chart, compare
from hetero.catalog.load import find
from hetero.cli.main import app
from hetero.floor.errors import BadValueError

RUN = CliRunner()


def test_ratios_are_the_quotients_of_the_figures() -> None:
    row = compare([find("H100-SXM")])[0]
    assert row.tflop_per_s == pytest.approx(989)
    assert row.tflop_per_s_per_w == pytest.approx(989 / 700)
    assert row.tflop_per_s_per_usd_hour == pytest.approx(989 / 2.5)
    assert row.memory_gib_per_tflop_per_s == pytest.approx(80 / 989)


def test_what_has_no_source_stays_empty_in_every_ratio() -> None:
    row = compare([find("TPU-v5p")])[0]
    assert (row.power_w, row.tflop_per_s_per_w, row.tflop_per_s_per_usd_hour) == (None, None, None)


def test_a_device_is_best_only_among_those_that_have_the_figure() -> None:
    best = best_for(compare([find("H100-SXM"), find("TPU-v5p"), find("MI300X")]))
    assert MEASURES["memory_gib"] in best["MI300X"]
    assert all(MEASURES["tflop_per_s_per_usd_hour"] not in words for words in best.values())


def test_fp16_stands_in_for_bf16_and_says_so() -> None:
    assert compare([find("T4")])[0].precision == "fp16"
    assert compare([find("T4")], "fp32")[0].precision == "fp32"


def test_an_unknown_precision_is_told() -> None:
    with pytest.raises(BadValueError, match="did you mean 'bf16'"):
        compare([find("T4")], "bf61")


def test_the_commands_print_one_json_document() -> None:
    compared = json.loads(RUN.invoke(app, ["catalog", "compare", "H100-SXM", "RTX-4090", "--json"]).stdout)
    assert [row["name"] for row in compared["devices"]] == ["H100-SXM", "RTX-4090"]
    shown = json.loads(RUN.invoke(app, ["catalog", "show", "tpu v5e", "--json"]).stdout)
    assert shown["pod"]["chips"] == 256
    model = json.loads(RUN.invoke(app, ["catalog", "show", "Llama-3.1-8B", "--json"]).stdout)
    assert model["parameters"] == 8030261248
    listed = json.loads(RUN.invoke(app, ["catalog", "list", "--kind", "tpu", "--json"]).stdout)
    assert {row["kind"] for row in listed["devices"]} == {"tpu"}


def test_the_tables_say_where_a_figure_has_no_source() -> None:
    assert "no source" in RUN.invoke(app, ["catalog", "show", "TPU-v5e"]).stdout
    assert "have no source" in RUN.invoke(app, ["catalog", "list"]).stdout
    assert "Mixtral-8x7B" in RUN.invoke(app, ["catalog", "list", "--models"]).stdout


def test_a_chart_is_written_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "chart.png"
    chart(compare([find("H100-SXM"), find("TPU-v5p")]), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_chart_without_matplotlib_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadValueError, match=r"needs matplotlib.*hetero-core\[plot\]"):
        chart(compare([find("H100-SXM")]), tmp_path / "chart.png")


def test_a_chart_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(BadValueError, match="cannot be written"):
        chart(compare([find("H100-SXM")]), tmp_path / "absent" / "chart.png")
