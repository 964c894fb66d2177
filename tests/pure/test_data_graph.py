"""The format hetero-graph/2: items and how tasks use them, and the tasks and edges that planners take of them."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hetero.floor.errors import GraphError
from hetero.graphs.check import violations
from hetero.graphs.data_graph import DataGraph, data_document, data_graph_of, data_schema
from hetero.graphs.document import graph_schema
from hetero.graphs.fleet_files import fleet_from
from hetero.graphs.formats import convert, read_any, read_plannable, read_wfformat
from hetero.graphs.planning import Budget, plan_graph
from hetero.graphs.program import Graph
from hetero.model.graph import TaskGraph
from tests.needs import data_folder

FLEET: dict[str, Any] = {
    "devices": [{"id": "cpu", "memory_node": "ram", "cores": 4}, {"id": "gpu", "memory_node": "vram", "kind": "cuda"}],
    "memory_nodes": [{"id": "ram"}, {"id": "vram", "capacity_bytes": 1000}],
    "links": [
        {"src": "ram", "dst": "vram", "bandwidth_bytes_per_s": 100.0, "latency_s": 0.0},
        {"src": "vram", "dst": "ram", "bandwidth_bytes_per_s": 100.0, "latency_s": 0.0},
    ],
}
BOTH = {"cpu": 4.0, "gpu": 1.0}


def task(name: str, *uses: str, **more: Any) -> dict[str, Any]:
    """Return a row of a task that uses items, each as 'MODE item'."""
    rows = [{"item": item, "mode": mode} for mode, item in (use.split() for use in uses)]
    return {"id": name, "seconds": BOTH, "uses": rows, **more}


def item(name: str, nbytes: int = 100, **more: Any) -> dict[str, Any]:
    return {"id": name, "bytes": nbytes, **more}


def document(items: list[dict[str, Any]], tasks: list[dict[str, Any]]) -> dict[str, Any]:
    return copy.deepcopy({"format": "hetero-graph/2", **FLEET, "items": items, "tasks": tasks})


def tasks_of(items: list[dict[str, Any]], tasks: list[dict[str, Any]]) -> TaskGraph:
    return data_graph_of(document(items, tasks), "g.json").as_tasks()


def edges_of(graph: TaskGraph) -> set[tuple[str, str, int]]:
    return {tuple(edge) for edge in graph.edges}  # type: ignore[misc]


def seconds_of(graph: TaskGraph, name: str) -> tuple[float, ...]:
    return next(each.seconds for each in graph.tasks if each.id == name)


EVERYTHING = document(
    [item("a", at="ram"), item("b", 50, home="ram"), item("sum", 8, operator={"cpu": 0.5}, at="ram", home="vram")],
    [
        task("t1", "R a", "W b"),
        task("t2", "REDUCE sum", "R b", after=["t1"], cores=2, memory_bytes=10),
        task("t3", "REDUCE sum", "COMMUTE b", devices=2),
        task("t4", "RW a", "COMMUTE b", release_s=1.5),
    ],
)


def test_a_graph_written_is_the_graph_read_and_the_schema_takes_it() -> None:
    graph = data_graph_of(EVERYTHING, "g.json")
    written = data_document(graph)
    assert data_graph_of(written, "g.json") == graph
    schema = data_schema(graph_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(written, schema)
    jsonschema.validate(EVERYTHING, schema)


def test_what_reads_what_follows_from_the_order_of_the_tasks() -> None:
    graph = tasks_of(
        [item("a", at="ram")],
        [task("r1", "R a"), task("w", "RW a"), task("r2", "R a"), task("new", "W a"), task("r3", "R a")],
    )
    assert edges_of(graph) == {
        ("a@ram", "r1", 100), ("a@ram", "w", 100), ("w", "r2", 100), ("new", "r3", 100),
    }  # fmt: skip
    assert seconds_of(graph, "a@ram") == (0.0, math.inf)


def test_orders_without_data_have_no_bytes_and_add_nothing_to_those_with() -> None:
    graph = tasks_of([item("a")], [task("w", "W a"), task("r", "R a", after=["w"]), task("last", after=["r", "w"])])
    assert edges_of(graph) == {("w", "r", 100), ("r", "last", 0), ("w", "last", 0)}


def test_tasks_that_commute_follow_one_another_the_early_ones_first() -> None:
    graph = tasks_of(
        [item("a", at="vram"), item("b"), item("c")],
        [task("t1", "W b"), task("t2", "R b", "W c"), task("late", "COMMUTE a", "R c"), task("early", "COMMUTE a"),
         task("read", "R a")],
    )  # fmt: skip
    assert edges_of(graph) == {
        ("t1", "t2", 100), ("t2", "late", 100), ("a@vram", "early", 100), ("early", "late", 100), ("late", "read", 100),
    }  # fmt: skip


def test_what_tasks_reduce_is_combined_in_order_as_a_tree_with_what_was_there() -> None:
    rows = [item("a", at="ram", operator={"cpu": 0.5}, home="ram")]
    graph = tasks_of(rows, [task(f"t{number}", "REDUCE a") for number in range(3)])
    assert edges_of(graph) == {
        ("a@ram", "a+1", 100), ("t0", "a+1", 100), ("t1", "a+2", 100), ("t2", "a+2", 100),
        ("a+1", "a+3", 100), ("a+2", "a+3", 100), ("a+3", "a>ram", 100),
    }  # fmt: skip
    assert seconds_of(graph, "a+1") == (0.5, math.inf)
    assert seconds_of(graph, "a>ram") == (0.0, math.inf)


def test_items_of_one_task_travel_together_where_the_same_tasks_read_them_and_alone_where_not() -> None:
    items = [item("a"), item("b", 30), item("c", 30), item("d", 0)]
    graph = tasks_of(items, [task("w", "W a", "W b", "W c", "W d"), task("r", "R a", "R b", "R d"), task("s", "R c")])
    assert edges_of(graph) == {("w", "r", 130), ("w", "s", 30)}
    apart = tasks_of(items, [task("w", "W b", "W c"), task("r", "R b", "R c"), task("s", "R c")])
    assert edges_of(apart) == {("w", "r", 30), ("w", "c>r", 31), ("c>r", "r", 31), ("w", "s", 31)}
    assert seconds_of(apart, "c>r") == (0.0, 0.0)


def test_a_name_that_a_task_has_is_left_to_it() -> None:
    graph = tasks_of([item("a", at="ram")], [task("a@ram", "R a"), task("t", "R a")])
    assert edges_of(graph) == {("a@ram'", "a@ram", 100), ("a@ram'", "t", 100)}


def test_a_task_runs_only_where_the_cores_and_the_memory_that_it_needs_are() -> None:
    rows = [task("big", memory_bytes=1001), task("wide", cores=5), task("all", cores=4, memory_bytes=1000)]
    graph = tasks_of([], rows)
    assert [each.seconds for each in graph.tasks] == [(4.0, math.inf), (math.inf, 1.0), (4.0, 1.0)]


MISTAKES: list[tuple[list[dict[str, Any]], list[dict[str, Any]], str]] = [
    ([item("a")], [task("t", "R a")], "tasks[0].uses[0]: task 't' reads 'a' before any task writes it; say where"),
    ([item("a")], [task("t", "COMMUTE a")], "tasks[0].uses[0]: task 't' reads 'a' before any task writes it"),
    ([item("a")], [task("s", "W a"), task("t", "W a"), task("r", "R a")],
     "tasks[1].uses[0]: tasks 's' and 't' both write 'a', and nothing orders them; use RW, COMMUTE or REDUCE, or name"),
    ([item("a")], [task("t", "REDUCE a")], "tasks[0].uses[0]: task 't' reduces 'a', which has no operator; give"),
    ([item("a", at="rom")], [], "items[0].at: no memory node has the id 'rom'; did you mean 'ram'?"),
    ([item("a", home="ram")], [task("t")], "items[0].home: 'a' must be at 'ram' in the end, and no task writes it"),
    ([item("a"), item("a")], [], "items[1].id: the id 'a' is given twice"),
    ([item("a", -1)], [], "items[0].bytes: -1 is not a number of bytes"),
    ([item("a", operator={"tpu": 1})], [], "items[0].operator: no device has the id 'tpu'"),
    ([item("a", at="ram")], [task("t", "R a", "W a")], "tasks[0].uses[1]: the item 'a' is used twice by one task"),
    ([item("a", at="ram")], [task("t", "RX a")], "tasks[0].uses[0].mode: 'RX' is not how a task uses an item; did you"),
    ([], [task("t", "R b")], "tasks[0].uses[0].item: no item has the id 'b'"),
    ([], [task("t", after=["t"])], "tasks[0].after[0]: task 't' waits for itself"),
    ([], [task("t", after=["u"])], "tasks[0].after[0]: no task has the id 'u'"),
    ([], [task("t", devices=0)], "tasks[0].devices: 0 is not a number of devices; write at least 1"),
    ([], [task("t", core=1)], "tasks[0]: the key 'core' is not known; did you mean 'cores'?"),
]  # fmt: skip


@pytest.mark.parametrize(("items", "tasks", "said"), MISTAKES, ids=[said[:50] for *_, said in MISTAKES])
def test_a_mistake_is_told_with_its_place(items: list[dict[str, Any]], tasks: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(GraphError) as caught:
        data_graph_of(document(items, tasks), "g.json")
    assert str(caught.value).startswith(f"g.json: {said}")
    assert len(str(caught.value).splitlines()) == 1


UNPLANNED: list[tuple[list[dict[str, Any]], list[dict[str, Any]], str]] = [
    ([], [task("t", devices=2)], "tasks[0].devices: task 't' takes 2 devices together, and plans give a task one"),
    (
        [],
        [task("t", release_s=3)],
        "tasks[0].release_s: task 't' begins at 3 s at the earliest, and plans begin a task",
    ),
    ([], [task("t", cores=5, memory_bytes=2000)], "tasks[0]: no device has the 5 cores and 2,000 bytes of task 't'"),
    ([], [task("s", after=["t"]), task("t", after=["s"])], "tasks: the tasks make a cycle: s → t → s"),
]


@pytest.mark.parametrize(("items", "tasks", "said"), UNPLANNED, ids=[said[:40] for *_, said in UNPLANNED])
def test_what_no_plan_keeps_to_is_read_and_written_and_refused_by_name_when_it_is_planned(
    items: list[dict[str, Any]], tasks: list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps(document(items, tasks)))
    assert isinstance(read_any(path), DataGraph)
    with pytest.raises(GraphError) as caught:
        read_plannable(path)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_program_of_one_function_takes_no_items(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps(document([item("a", at="ram")], [task("t", "R a")])))
    with pytest.raises(GraphError, match=r"g.json: tasks of hetero-graph/2 use items, .*; write the graph by handles"):
        Graph.from_file(path, len)


def test_a_place_without_a_device_is_refused(tmp_path: Path) -> None:
    made = document([item("a", at="disk")], [task("t", "R a")])
    made["memory_nodes"].append({"id": "disk"})
    with pytest.raises(GraphError, match="'a' lies at 'disk', where no device can send or take it; add a device whose"):
        data_graph_of(made, "g.json").as_tasks()


@pytest.mark.parametrize("planner", ["heft", "search"])
def test_a_plan_brings_inputs_from_where_they_lie_and_results_home(planner: str) -> None:
    graph = tasks_of([item("a", at="ram"), item("b", home="ram")], [task("t", "R a", "W b")])
    planned = plan_graph(graph, planner, Budget(iterations=3))
    where = {row.task: row.device for row in planned.schedule.placements}
    assert (where["a@ram"], where["b>ram"]) == ("cpu", "cpu")
    assert planned.schedule.makespan_s == pytest.approx(3.0)  # there, computed, and back: 1 s each; on the CPU 4 s
    assert violations(graph, planned.schedule) == []


WORKFLOW: dict[str, Any] = {
    "name": "w",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {"name": "PIPE.SUB.JOIN", "id": "j", "parents": ["s"], "children": [], "inputFiles": ["part", "in"],
                 "outputFiles": ["out"]},
                {"name": "split", "id": "s", "parents": [], "children": ["j"], "inputFiles": ["in"],
                 "outputFiles": ["part"]},
            ],
            "files": [{"id": name, "sizeInBytes": size} for name, size in (("in", 500), ("part", 20), ("out", 7))],
        },
        "execution": {
            "machines": [{"nodeName": each, "cpu": {"speedInMHz": mhz}} for each, mhz in (("m", 1000), ("n", 2000))],
            "tasks": [
                {"id": "s", "runtimeInSeconds": 4.0, "command": {"program": "split"}, "machines": ["m"], "coreCount": 3,
                 "memoryInBytes": 1500},
                {"id": "j", "runtimeInSeconds": 4.0, "command": {"program": "cat a b\n  > c"}, "machines": ["n"]},
            ],
        },
    },
}  # fmt: skip


def fleet(**more: Any) -> dict[str, Any]:
    devices = [{**FLEET["devices"][0], "speeds": {"join": 2.0}}, FLEET["devices"][1]]
    return copy.deepcopy({"format": "hetero-fleet/1", **FLEET, "devices": devices, **more})


def test_files_of_a_workflow_are_items_where_the_fleet_says_where_they_lie() -> None:
    read = read_wfformat(WORKFLOW, "w.json", fleet_from(fleet(files_at="ram"), "f.json"))
    assert isinstance(read, DataGraph)
    assert [(each.id, each.nbytes, each.at, each.home) for each in read.items] == [
        ("in", 500, "ram", ""), ("part", 20, "", ""), ("out", 7, "", "ram"),
    ]  # fmt: skip
    assert [(each.id, each.seconds, each.cores, each.memory_bytes) for each in read.tasks] == [
        ("s", (2.0, 2.0), 3, 1500), ("j", (2.0, 4.0), 0, 0),
    ]  # fmt: skip
    graph = read.as_tasks()
    assert edges_of(graph) == {("in@ram", "s", 500), ("in@ram", "j", 500), ("s", "j", 20), ("j", "out>ram", 7)}
    assert seconds_of(graph, "s") == (2.0, math.inf)


def test_without_a_place_files_of_others_cost_nothing_as_before() -> None:
    plain = {**fleet(), "devices": [{"id": "d", "memory_node": "ram"}, {"id": "e", "memory_node": "vram"}]}
    graph = read_wfformat(WORKFLOW, "w.json", fleet_from(plain, "f.json"))
    assert isinstance(graph, TaskGraph)
    assert edges_of(graph) == {("s", "j", 20)}
    read = read_wfformat(WORKFLOW, "w.json", fleet_from(fleet(), "f.json"))
    assert isinstance(read, DataGraph)
    assert edges_of(read.as_tasks()) == {("s", "j", 20)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"files_at": "rom"}, "f.json: files_at: no memory node has the id 'rom'; did you mean 'ram'?"),
        ({"files_at": 3}, "f.json: files_at: 3 is not a name"),
        (
            {"devices": [{"id": "d", "memory_node": "ram", "cores": 1.5}]},
            "f.json: devices[0].cores: 1.5 is not a number",
        ),
        ({"file_at": "ram"}, "f.json: the key 'file_at' is not known; allowed: devices, memory_nodes, links, files_at"),
    ],
)
def test_a_mistake_of_a_fleet_is_told_with_its_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError) as caught:
        fleet_from(fleet(**change), "f.json")
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("name", ["sarek-dirt02-001", "bwa-chameleon-large-001", "montage-chameleon-2mass-005d-001"])
def test_public_traces_are_read_with_their_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({**fleet(files_at="ram"), "memory_nodes": [{"id": "ram"}, {"id": "vram"}]}))
    source = data_folder() / "graphs" / "wfinstances" / f"{name}.json.gz"
    read = read_any(source, str(path))
    assert isinstance(read, DataGraph)
    assert any(each.at for each in read.items)
    graph = convert(source, str(path))
    assert len(graph.tasks) > len(read.tasks)
