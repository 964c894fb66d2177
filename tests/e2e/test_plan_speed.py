"""`hetero plan speed`, `training`, `accuracy` and `hetero calibrate`, run as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetero.advise.measurements import COLUMNS
from tests.needs import data_folder


def _run(home: Path, *words: str, code: int = 0) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "hetero.cli.main", *words],
        env={**os.environ, "HETERO_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def test_own_figures_change_what_is_said(tmp_path: Path) -> None:
    asked = ("plan", "speed", "Llama-3-8B", "--devices", "RTX-4090", "--framework", "llama.cpp", "--weights", "Q4_K_M")
    before = json.loads(_run(tmp_path, *asked, "--json"))[0]
    table = tmp_path / "mine.csv"
    row = "RTX 4090,1,llama.cpp,Llama-3-8B,Q4_K_M,decode,1,0,1024,60"
    table.write_text(f"{','.join(COLUMNS)}\n{row}\n{row.replace('4090', '4090X')}\n", encoding="utf-8")
    told = _run(tmp_path, "calibrate", "--measurements", str(table))
    assert "1 rows kept, of llama.cpp on RTX-4090" in told
    assert "line 3: RTX 4090X" in told
    after = json.loads(_run(tmp_path, *asked, "--json"))[0]
    assert (before["latency_s"]["origin"], after["latency_s"]["origin"]) == ("prior", "measured")
    assert after["decode_tokens_per_s"]["value"] < 0.9 * before["decode_tokens_per_s"]["value"]


def test_the_accuracy_report_takes_several_tables(tmp_path: Path) -> None:
    folder = data_folder() / "planner"
    names = ("gpubench_llamacpp.csv", "trtllm_perf_overview.csv")
    told = json.loads(_run(tmp_path, "plan", "accuracy", *(str(folder / name) for name in names), "--json"))
    groups = told["report"]["uncalibrated"]["groups"]
    assert {"llama.cpp, decode", "llama.cpp, prefill", "TensorRT-LLM 0.14, max_throughput", "all"} == set(groups)
    assert groups["all"]["rows"] > 340
    assert "median error" in _run(tmp_path, "plan", "accuracy", str(folder / names[0]))


def test_a_table_with_wrong_columns_is_told_in_one_line(tmp_path: Path) -> None:
    table = tmp_path / "wrong.csv"
    table.write_text("device,speed\nT4,3\n", encoding="utf-8")
    for words in (("calibrate", "--measurements", str(table)), ("plan", "accuracy", str(table))):
        told = _run(tmp_path, *words, code=3)
        assert told.count("\n") == 1
        assert "lacks the columns count, framework" in told


def test_a_training_over_unequal_nodes_is_planned_from_words(tmp_path: Path) -> None:
    nodes = ("--samples-per-s", "0.0556", "--samples-per-s", "0.0556", "--samples-per-s", "0.0556")
    told = _run(tmp_path, "plan", "training", "--samples", "100", "--global-batch", "30", *nodes)
    assert "9.99 min" in told
    assert "samples a step: 10, 10, 10" in told


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_calibrating_measures_this_host_and_narrows_what_is_said_of_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    told = json.loads(_run(tmp_path, "calibrate", "--json"))
    device = next(each for each in told["devices"] if each["weights"])
    assert device["flop_per_s"] > 0
    assert set(device["prompt_s"]) == set(device["step_s"]) == {"64", "256"}
    assert device["versions"]["torch"]
    assert set(told["exchange"]["seconds"]) == {"4000", "4000000"}
    kept = json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))
    assert f"here {device['device']}" in kept
