"""The table of claims is what the results say, and every result can be judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import common, summary
from tests.needs import PROJECT

RESULTS = sorted(common.RESULTS.glob("*.json"))


def test_the_table_of_claims_is_what_the_results_say() -> None:
    text = (PROJECT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert summary.rewritten(text) == text, "run python benchmarks/summary.py"


def test_every_result_belongs_to_a_benchmark_and_tells_how_it_came_about() -> None:
    for path in RESULTS:
        result = json.loads(path.read_text(encoding="utf-8"))
        assert path.with_suffix(".py").name in {file.name for file in (PROJECT / "benchmarks").glob("*.py")}
        assert {"command", "date", "versions", "machine", "measured", "claims"} <= set(result)
        assert "--quick" not in result["command"]


def test_contestants_alternate_and_every_other_round_runs_backwards() -> None:
    order: list[str] = []
    common.alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2, warm_up=1)
    assert "".join(order) == "abbaab"


def test_a_contestants_own_figure_is_kept_as_it_is() -> None:
    assert common.alternate({"a": lambda: 7.0}, rounds=2)["a"] == [7.0, 7.0]


@pytest.mark.parametrize(("value", "verdict"), [(2.0, "met"), (2.001, "missed")])
def test_a_figure_beyond_its_aim_is_missed(value: float, verdict: str) -> None:
    assert common.Claim("x", value, at_most=2.0).verdict == verdict


def test_a_quick_run_keeps_nothing(tmp_path: Path) -> None:
    assert common.arguments("x", ["--quick"]).out is None
    assert common.arguments("x", ["--quick", "--out", str(tmp_path)]).out == tmp_path
    assert common.arguments("x", []).out == common.RESULTS


@pytest.mark.servers
@pytest.mark.slow
def test_the_cold_start_benchmark_runs() -> None:
    command = [sys.executable, str(PROJECT / "benchmarks" / "cold_start.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "hetero --help" in done.stdout
