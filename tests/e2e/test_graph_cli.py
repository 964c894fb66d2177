"""`hetero graph` and `hetero graph plan` as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_cli import document, hetero
from tests.needs import PROJECT, data_folder

_PLAN = """
import sys, hashlib
sys.path.insert(0, {project!r})
from tests.pure.test_plan_graphs import random_problem
from hetero.plan.graph_search.combined import search
from hetero.plan.planners.heuristics import PLANNERS, planner
from hetero.plan.planners.list_scheduling import compiler
from itertools import islice
digest = hashlib.sha256()
for p in (random_problem(20, 3, 1), random_problem(70, 4, 2)):
    found = [*islice(search(p, 5), 40)][-1]
    for timeline in (found.timeline, *(planner(name)(p) for name in PLANNERS)):
        digest.update(timeline.device.tobytes() + timeline.start_s.tobytes() + timeline.finish_s.tobytes())
print(bool(compiler()), digest.hexdigest())
"""


def _digest(**environment: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _PLAN.format(project=str(PROJECT))],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    plain, digest = done.stdout.split()
    return plain, digest


def test_a_plan_is_the_same_under_any_hash_seed_and_without_a_compiler() -> None:
    first, second = _digest(PYTHONHASHSEED="1"), _digest(PYTHONHASHSEED="2")
    assert first == second
    assert first[0] == "False"
    assert _digest(NUMBA_DISABLE_JIT="1") == ("True", first[1])


FLEET = {
    "format": "hetero-fleet/1",
    "devices": [
        {"id": "cpu0", "memory_node": "ram"},
        {"id": "gpu0", "memory_node": "vram", "speed": 8, "speeds": {"multiqc": None}},
    ],
    "memory_nodes": [{"id": "ram"}, {"id": "vram"}],
    "links": [
        {"src": "ram", "dst": "vram", "bandwidth_bytes_per_s": 1e10, "latency_s": 1e-5},
        {"src": "vram", "dst": "ram", "bandwidth_bytes_per_s": 1e10, "latency_s": 1e-5},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a fleet, and a graph g.json converted from a recorded workflow."""
    made = tmp_path_factory.mktemp("graphs")
    (made / "fleet.json").write_text(json.dumps(FLEET))
    source = data_folder() / "graphs" / "wfinstances" / "sarek-dirt02-001.json.gz"
    done = hetero("graph", "convert", str(source), "--devices", "fleet.json", "--output", "g.json", cwd=made)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "g.json: 26 tasks, 50 edges, 2 devices\n"
    return made


def test_a_plan_is_printed_with_its_gap_and_its_check_confirms_it(folder: Path) -> None:
    done = hetero("graph", "plan", "g.json", "--budget", "0.3s", "--output", "plan.json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "makespan" in done.stdout
    assert "the best possible" in done.stdout
    assert "gpu0 │" in done.stdout
    checked = hetero("graph", "check", "g.json", "plan.json", cwd=folder)
    assert checked.returncode == 0
    assert checked.stdout.startswith("plan.json: sound: 26 tasks on 2 devices")


ITEMS: dict[str, Any] = {
    **{key: value for key, value in FLEET.items() if key not in ("format", "devices")},
    "format": "hetero-graph/2",
    "devices": [{"id": "cpu0", "memory_node": "ram", "cores": 4}, {"id": "gpu0", "memory_node": "vram"}],
    "items": [{"id": "a", "bytes": 10**10, "at": "ram"}, {"id": "b", "bytes": 10**10, "home": "ram"}],
    "tasks": [
        {
            "id": name,
            "seconds": {"cpu0": 9.0, "gpu0": 1.0},
            "uses": [{"item": item, "mode": mode} for item, mode in uses],
        }
        for name, uses in (("make", [("a", "R"), ("b", "W")]), ("change", [("b", "RW")]))
    ],
}


@pytest.mark.servers
def test_a_graph_of_items_goes_through_every_command(folder: Path) -> None:
    (folder / "items.json").write_text(json.dumps(ITEMS))
    done = hetero("graph", "convert", "items.json", "--output", "items2.json", cwd=folder)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "items2.json: 2 tasks, 2 items, 2 devices\n")
    assert json.loads((folder / "items2.json").read_text())["format"] == "hetero-graph/2"
    done = hetero("graph", "plan", "items2.json", "--iterations", "5", "--output", "items.plan.json", cwd=folder)
    assert "makespan 4 s: the best possible" in done.stdout, done.stderr
    checked = hetero("graph", "check", "items.json", "items.plan.json", cwd=folder)
    assert checked.stdout.startswith("items.plan.json: sound: 4 tasks on 2 devices")
    assert "a@ram" in hetero("graph", "show", "items.json", cwd=folder).stdout
    simulated = document(hetero("graph", "simulate", "items.json", "--json", cwd=folder))
    assert simulated["planned"]["makespan_s"] == pytest.approx(4.0, rel=1e-3)
    wide = {**ITEMS, "tasks": [{**task, "devices": 2} for task in ITEMS["tasks"]]}
    (folder / "wide.json").write_text(json.dumps(wide))
    refused = hetero("graph", "plan", "wide.json", cwd=folder)
    assert refused.returncode == 3
    assert "wide.json: tasks[0].devices: task 'make' takes 2 devices together" in refused.stderr
    fleet = {**FLEET, "files_at": "ram"}
    (folder / "files.json").write_text(json.dumps(fleet))
    source = data_folder() / "graphs" / "wfinstances" / "sarek-dirt02-001.json.gz"
    done = hetero("graph", "convert", str(source), "--devices", "files.json", "--output", "f.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "f.json").read_text())["format"] == "hetero-graph/2"


def test_a_plan_that_was_tampered_with_is_found_out(folder: Path) -> None:
    assert hetero("graph", "plan", "g.json", "--planner", "heft", "--output", "heft.json", cwd=folder).returncode == 0
    plan = json.loads((folder / "heft.json").read_text())
    plan["placements"][-1]["start_s"] -= 1.0
    (folder / "bad.json").write_text(json.dumps(plan))
    done = hetero("graph", "check", "g.json", "bad.json", "--json", cwd=folder)
    assert done.returncode == 1
    assert document(done)["sound"] is False
    assert document(done)["faults"]


@pytest.mark.servers
def test_the_same_seed_and_iterations_give_the_same_plan(folder: Path) -> None:
    plans = []
    for hash_seed in ("1", "2"):
        words = ("graph", "plan", "g.json", "--iterations", "40", "--seed", "7", "--json")
        plans.append(document(hetero(*words, cwd=folder, PYTHONHASHSEED=hash_seed)))
    assert plans[0]["placements"] == plans[1]["placements"]
    assert plans[0]["format"] == "hetero-plan/1"
    assert plans[0]["lower_bound_s"] <= plans[0]["makespan_s"]


def test_a_converted_graph_without_out_is_one_json_document(folder: Path) -> None:
    (folder / "a.dot").write_text("digraph { node [seconds=1] a -> b [bytes=5] }")
    converted = document(hetero("graph", "convert", "a.dot", "--devices", "2", cwd=folder))
    assert converted["edges"] == [{"src": "a", "dst": "b", "bytes": 5}]
    formats = [each["title"] for each in document(hetero("graph", "schema"))["oneOf"]]
    assert formats == [converted["format"], "hetero-graph/2"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("graph", "plan", "nowhere.json"), 3, "nowhere.json cannot be read"),
        (
            ("graph", "plan", "g.json", "--planner", "hefft"),
            2,
            "'hefft' is not a planner of graphs; did you mean 'heft'?",
        ),
        (("graph", "plan", "g.json", "--budget", "soon"), 2, "'soon' is not a duration"),
        (("graph", "check", "g.json", "g.json"), 3, "g.json: format: 'hetero-graph/1' is not 'hetero-plan/1'"),
        (("graph", "plan", "fleet.json"), 3, "fleet.json: "),
        (("graph", "convert", "g.json", "--format", "xml"), 2, "'xml' is not a format of graphs"),
    ],
)
def test_a_mistake_is_one_line_and_no_traceback(folder: Path, words: tuple[str, ...], code: int, said: str) -> None:
    done = hetero(*words, cwd=folder)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("hetero: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_plan_that_cannot_be_made_writes_nothing(folder: Path) -> None:
    (folder / "cycle.dot").write_text("digraph { node [seconds=1] a -> b -> a }")
    done = hetero("graph", "convert", "cycle.dot", "--devices", "2", "--output", "cycle.json", cwd=folder)
    assert done.returncode == 3
    assert "the tasks make a cycle: a → b → a" in done.stderr
    assert not (folder / "cycle.json").exists()


def test_a_file_of_a_hundred_megabytes_is_refused_before_it_is_read(folder: Path) -> None:
    with (folder / "large.json").open("wb") as file:
        file.truncate(100_000_000)
    done = hetero("graph", "plan", "large.json", cwd=folder)
    assert done.returncode == 3
    assert "the file has more than 48 MB" in done.stderr


@pytest.mark.parametrize("command", ["plan", "simulate", "whatif"])
def test_a_wrong_file_is_told_before_the_planner_is_loaded(folder: Path, command: str) -> None:
    (folder / "cut.json").write_text((folder / "g.json").read_text()[:-40])
    program = (
        "import sys\nfrom hetero.cli.main import entry\ntry:\n    entry()\nexcept SystemExit as end:\n"
        "    print(end.code, 'numba' in sys.modules)"
    )
    words = [sys.executable, "-c", program, "graph", command, "cut.json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout.split() == ["3", "False"], done.stderr


def test_an_install_without_numba_schedules_and_says_that_it_is_slow(folder: Path) -> None:
    program = "import sys\nsys.modules['numba'] = None\nfrom hetero.cli.main import entry\nentry()"
    words = [sys.executable, "-c", program, "graph", "plan", "g.json", "--iterations", "30", "--output", "plain.json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "numba cannot be used" in done.stdout + done.stderr
    assert "slower" in done.stdout + done.stderr
    hetero("graph", "plan", "g.json", "--iterations", "30", "--output", "fast.json", cwd=folder)
    plain, fast = (json.loads((folder / f"{name}.json").read_text()) for name in ("plain", "fast"))
    assert plain["placements"] == fast["placements"]


def test_a_graph_beyond_the_memory_is_refused_and_planned_under_the_model_without_capacities(folder: Path) -> None:
    graph = json.loads((folder / "g.json").read_text())
    graph["memory_nodes"] = [{"id": "ram", "capacity_bytes": 1000}, {"id": "vram", "capacity_bytes": 1000}]
    (folder / "small.json").write_text(json.dumps(graph))
    refused = hetero("graph", "plan", "small.json", "--output", "none.json", cwd=folder)
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "at once for what it reads and makes; 'ram' has 1 KB" in refused.stderr
    assert not (folder / "none.json").exists()
    free = document(
        hetero("graph", "plan", "small.json", "--transfer-model", "free", "--planner", "heft", "--json", cwd=folder)
    )
    assert (free["model"], free["transfers"], free["evictions"]) == ("free", [], [])
