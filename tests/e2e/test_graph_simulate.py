"""`hetero graph simulate` and `hetero graph whatif` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.test_cli import document, hetero


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("graphs")
    graph = {
        "format": "hetero-graph/1",
        "devices": [
            {"id": "cpu0", "memory_node": "ram", "kind": "cpu"},
            {"id": "gpu0", "memory_node": "vram", "kind": "cuda"},
        ],
        "memory_nodes": [{"id": "ram"}, {"id": "vram"}],
        "links": [
            {"src": "ram", "dst": "vram", "bandwidth_bytes_per_s": 1e9, "latency_s": 0.001},
            {"src": "vram", "dst": "ram", "bandwidth_bytes_per_s": 1e9, "latency_s": 0.001},
        ],
        "tasks": [{"id": f"t{index}", "seconds": {"cpu0": 2.0, "gpu0": 0.5}} for index in range(12)],
        "edges": [{"src": "t0", "dst": f"t{index}", "bytes": 1000} for index in range(1, 12)],
    }
    (made / "g.json").write_text(json.dumps(graph))
    return made


@pytest.mark.servers
def test_a_graph_is_run_many_times_with_a_device_lost_and_every_figure_is_told(folder: Path) -> None:
    words = (
        "graph",
        "simulate",
        "g.json",
        "--noise",
        "0.3",
        "--fail",
        "gpu0@2s",
        "--draws",
        "20",
        "--seed",
        "1",
        "--json",
    )
    done = hetero(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    told = document(done)
    assert told["draws"] == 20
    assert told["failed"] == {}
    assert told["planned"]["lower_bound_s"] <= told["planned"]["makespan_s"] < told["low_s"] <= told["high_s"]
    assert document(hetero(*words, cwd=folder)) == told


@pytest.mark.servers
def test_a_run_keeps_to_the_memory_of_a_device_and_the_free_model_does_not(folder: Path) -> None:
    graph = json.loads((folder / "g.json").read_text())
    graph["memory_nodes"][1]["capacity_bytes"] = 5_000
    graph["tasks"] = [{"id": f"t{index}", "seconds": {"gpu0": 0.5}} for index in range(12)]
    graph["tasks"].append({"id": "end", "seconds": {"cpu0": 1.0}})
    graph["edges"] = [{"src": f"t{index}", "dst": "end", "bytes": 1000} for index in range(12)]
    (folder / "small.json").write_text(json.dumps(graph))
    kept = document(hetero("graph", "simulate", "small.json", "--json", cwd=folder))
    free = document(hetero("graph", "simulate", "small.json", "--transfer-model", "free", "--json", cwd=folder))
    assert kept["copied_bytes"] == free["copied_bytes"] == 12_000
    assert kept["peak_bytes"]["vram"] <= 5_000 < free["peak_bytes"]["vram"]
    assert "vram at most 5 KB" in hetero("graph", "simulate", "small.json", cwd=folder).stdout


def test_what_other_devices_would_make_of_a_graph_says_what_is_extrapolated(folder: Path) -> None:
    words = ("--add", "2 x H100-SXM", "--is", "gpu0=A100-SXM-80GB", "--remove", "gpu0")
    told = document(hetero("graph", "whatif", "g.json", *words, "--json", cwd=folder))
    assert told["extrapolated"]
    assert told["times_as_fast"] > 1.0
    assert told["then"]["makespan_low_s"] <= told["then"]["makespan_s"] <= told["then"]["makespan_high_s"]
    people = hetero("graph", "whatif", "g.json", *words, cwd=folder)
    assert "extrapolated" in people.stdout
    assert "times as fast" in people.stdout


def test_tasks_that_fail_for_one_reason_are_told_in_one_line_beside_the_plan(folder: Path) -> None:
    done = hetero("graph", "simulate", "g.json", "--fail", "gpu0@0s", "--fail", "cpu0@0.1s", cwd=folder)
    assert done.returncode == 1
    plan, run, *_, failed = done.stdout.splitlines()
    assert plan.startswith("plan: makespan ")
    assert run.startswith("run by planned: ")
    assert failed.startswith("failed: t0, t")
    assert " and 7 more: " in failed


def test_a_fleet_that_is_not_used_is_told(folder: Path) -> None:
    done = hetero("graph", "simulate", "g.json", "--devices", "4", cwd=folder)
    assert done.returncode == 0
    assert done.stderr == "note: g.json names its own devices, so --devices 4 is left out\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("graph", "simulate", "g.json", "--fail", "gpu1@1s"), "the graph has no device 'gpu1'; did you mean"),
        (("graph", "simulate", "g.json", "--fail", "gpu0"), "does not say when"),
        (("graph", "simulate", "g.json", "--policy", "planed"), "did you mean 'planned'"),
        (
            ("graph", "simulate", "g.json", "--transfer-model", "fre"),
            "'fre' is not a model of transfers; did you mean 'free'",
        ),
        (("graph", "whatif", "g.json", "--add", "H100-SXM"), "--is gpu0=NAME"),
    ],
)
def test_a_mistake_is_one_line_and_exits_2(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = hetero(*words, cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
