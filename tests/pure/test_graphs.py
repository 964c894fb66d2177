"""Graph files: every mistake has its place, every format reads, and the checker finds every planted fault."""

from __future__ import annotations

import ast
import copy
import gzip
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.floor.errors import BadValueError, GraphError
from hetero.graphs.check import violations
from hetero.graphs.document import DocumentPlace, document_of, graph_of, graph_schema
from hetero.graphs.dot import read_dot
from hetero.graphs.files import AT_MOST_BYTES, parse_json, read_text, write_text
from hetero.graphs.fleet_files import equal_devices, fleet_from
from hetero.graphs.formats import convert, read_graph, read_hswf, read_plannable, read_stg, read_wfformat
from hetero.graphs.gantt import gantt
from hetero.graphs.plan_files import plan_document, plan_of
from hetero.graphs.program import Graph
from hetero.model.graph import UNLIMITED_BYTES, GraphEdge
from hetero.model.schedule import Placed, Schedule
from tests.needs import PROJECT, data_folder

DOCUMENT: dict[str, Any] = {
    "format": "hetero-graph/1",
    "devices": [{"id": "cpu", "memory_node": "ram", "kind": "cpu"}, {"id": "gpu", "memory_node": "vram"}],
    "memory_nodes": [{"id": "ram", "capacity_bytes": 1000}, {"id": "vram", "capacity_bytes": None}],
    "links": [
        {"src": "ram", "dst": "vram", "bandwidth_bytes_per_s": 10.0, "latency_s": 1.0, "bus": "pcie"},
        {"src": "vram", "dst": "ram", "bandwidth_bytes_per_s": 10.0, "latency_s": 1.0},
    ],
    "tasks": [
        {"id": "a", "seconds": {"cpu": 2.0, "gpu": 1.0}},
        {"id": "b", "seconds": {"cpu": 3.0}},
        {"id": "c", "seconds": {"gpu": 1.0, "cpu": 4.0}},
    ],
    "edges": [{"src": "a", "dst": "b", "bytes": 20}, {"src": "a", "dst": "c"}],
}
SOUND = Schedule(
    (Placed("a", "gpu", 0.0, 1.0), Placed("c", "gpu", 1.0, 2.0), Placed("b", "cpu", 4.0, 7.0)), 7.0, 5.0, "by hand"
)
GRAPH = graph_of(DOCUMENT, "g.json")


def said_of(read: Callable[[], object]) -> str | None:
    """Return what a reader said of a mistake, None where it found none."""
    try:
        read()
    except GraphError as error:
        return str(error)
    return None


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    """Return the document with one place changed; `...` takes it out."""
    made = copy.deepcopy(DOCUMENT)
    place: Any = made
    for step in path[:-1]:
        place = place[step]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return made


MISTAKES: list[tuple[dict[str, Any], str]] = [
    (changed("format", to="hetero-graph/2"), "g.json: format: 'hetero-graph/2' is not 'hetero-graph/1'"),
    (changed("tasks", to=...), "g.json: the key 'tasks' is missing"),
    (changed("taskz", to=[]), "g.json: the key 'taskz' is not known; did you mean 'tasks'?"),
    (changed("tasks", to={}), "g.json: tasks: {} is not a list"),
    (changed("devices", to=[]), "g.json: devices: [] is not a fleet"),
    (changed("tasks", 1, to=7), "g.json: tasks[1]: 7 is not an object"),
    (changed("tasks", 1, "id", to="a"), "g.json: tasks[1].id: the id 'a' is given twice"),
    (changed("tasks", 1, "id", to=4), "g.json: tasks[1].id: 4 is not a name"),
    (changed("tasks", 1, "seconds", to={}), "g.json: tasks[1].seconds: task 'b' can run on no device"),
    (changed("tasks", 1, "seconds", "cpu", to=-1), "g.json: tasks[1].seconds.cpu: -1 is not a number of seconds"),
    (changed("tasks", 1, "seconds", "cpu", to=True), "g.json: tasks[1].seconds.cpu: True is not a number of seconds"),
    (changed("tasks", 1, "seconds", "cpu", to=math.nan), "g.json: tasks[1].seconds.cpu: nan is not"),
    (changed("tasks", 1, "seconds", "gpuu", to=1), "g.json: tasks[1].seconds: no device has the id 'gpuu'; did you"),
    (changed("devices", 1, "id", to="cpu"), "g.json: devices[1].id: the id 'cpu' is given twice"),
    (changed("devices", 1, "memory_node", to="hbm"), "g.json: devices[1].memory_node: no memory node has the id 'hbm'"),
    (changed("memory_nodes", 1, "id", to="ram"), "g.json: memory_nodes[1].id: the id 'ram' is given twice"),
    (changed("memory_nodes", 0, "capacity_bytes", to=-3), "g.json: memory_nodes[0].capacity_bytes: -3 is not"),
    (changed("links", 0, "dst", to="nowhere"), "g.json: links[0].dst: no memory node has the id 'nowhere'"),
    (changed("links", 0, "dst", to="ram"), "g.json: links[0].dst: 'ram' is not another memory node than src"),
    (changed("links", 0, "bandwidth_bytes_per_s", to=0), "g.json: links[0].bandwidth_bytes_per_s: 0 is not"),
    (changed("links", 0, "latency_s", to="1ms"), "g.json: links[0].latency_s: '1ms' is not a number of seconds"),
    (changed("links", 1, "src", to="ram"), "g.json: links[1].dst"),
    (changed("edges", 0, "dst", to="z"), "g.json: edges[0].dst: no task has the id 'z'"),
    (changed("edges", 0, "bytes", to=1.5), "g.json: edges[0].bytes: 1.5 is not a number of bytes"),
    (changed("edges", 1, "dst", to="b"), "g.json: edges[1]: the id 'a → b' is given twice"),
    (changed("edges", 1, to={"src": "b", "dst": "a"}), "g.json: edges: the tasks make a cycle: a → b → a"),
    (changed("edges", 1, to={"src": "c", "dst": "c"}), "g.json: edges: the tasks make a cycle: c → c"),
]


@pytest.mark.parametrize(("document", "said"), MISTAKES, ids=[said[8:60] for _, said in MISTAKES])
def test_a_mistake_is_told_with_its_place(document: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError) as caught:
        graph_of(document, "g.json")
    assert str(caught.value).startswith(said)
    assert len(str(caught.value).splitlines()) == 1


def test_a_graph_written_is_the_graph_read() -> None:
    assert graph_of(document_of(GRAPH), "g.json") == GRAPH
    assert GRAPH.topology.nodes[1].capacity_bytes == 2**63 - 1
    assert GRAPH.tasks[1].seconds == (3.0, math.inf)


def test_what_the_reader_takes_the_schema_takes() -> None:
    schema = graph_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document_of(GRAPH), schema)
    jsonschema.validate(DOCUMENT, schema)


BEYOND_A_SCHEMA = ("given twice", "no device has", "no task has", "no memory node has", "cycle", "links[", "nan")


def test_what_the_reader_refuses_the_schema_refuses_unless_it_is_about_ids() -> None:
    for document, said in MISTAKES:
        if not any(word in said for word in BEYOND_A_SCHEMA) or "is missing" in said:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(document, graph_schema())


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*DOCUMENT, "id", "seconds"]), inner, max_size=6)
        ),
        max_leaves=12,
    )
)
def test_a_document_of_any_shape_is_read_or_refused_in_words(document: Any) -> None:
    for tried in (
        document,
        {**DOCUMENT, "tasks": document},
        {**DOCUMENT, "edges": document},
        {**DOCUMENT, "devices": document},
    ):
        said = said_of(lambda given=tried: graph_of(given, "g.json"))
        assert said is None or said.startswith("g.json")


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps(DOCUMENT)[:-40], ":1:"),
        ('{"format": "hetero-graph/1", "format": 2}', "the key 'format' is given twice"),
        ('{"a": NaN}', ":1:7: NaN is not a number that JSON has"),
        ('{"say \\"NaN\\" aloud":\n [-Infinity]}', ":2:3: -Infinity is not a number that JSON has"),
        (b"\xff\xfe{", "g.json:1: this is UTF-16, not UTF-8 text"),
        ("[" * 100_000, "this is nested deeper than 64 levels"),
        (gzip.compress(json.dumps(DOCUMENT).encode())[:-12], "is cut short or damaged"),
        (gzip.compress(b" " * (AT_MOST_BYTES + 5)), "the file has more than 48 MB"),
        (b" " * (AT_MOST_BYTES + 1), "the file has more than 48 MB"),
    ],
    ids=["cut", "twice", "nan", "infinity", "bytes", "deep", "cut gzip", "gzip bomb", "large"],
)
def test_a_damaged_file_is_told_with_its_name(tmp_path: Path, content: str | bytes, said: str) -> None:
    path = written(tmp_path, "g.json", content)
    with pytest.raises(GraphError) as caught:
        read_graph(path)
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)


def test_a_packed_file_reads_as_the_plain_one(tmp_path: Path) -> None:
    assert read_graph(written(tmp_path, "g.json.gz", gzip.compress(json.dumps(DOCUMENT).encode()))) == GRAPH


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(GraphError, match="cannot be written"):
        write_text(tmp_path / "taken", "x")
    with pytest.raises(GraphError, match="cannot be written"):
        write_text(tmp_path / "nowhere" / "x", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_fleet_gives_each_kind_of_task_its_speed() -> None:
    rows = [
        {"id": "cpu", "memory_node": "ram"},
        {"id": "gpu", "memory_node": "ram", "speed": 4, "speeds": {"io": None, "fft": 8}},
    ]
    fleet = fleet_from({"format": "hetero-fleet/1", "devices": rows, "memory_nodes": [{"id": "ram"}]}, "f.json")
    assert [fleet.seconds(8.0, kind) for kind in ("", "io", "fft")] == [(8.0, 2.0), (8.0, math.inf), (8.0, 1.0)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": "a", "memory_node": "ram", "speed": 0}, r"f.json: devices\[0\].speed: 0 is not a speed"),
        ({"id": "a", "memory_node": "ram", "speeds": []}, r"f.json: devices\[0\].speeds: \[\] is not an object"),
        ({"id": "a", "memory_node": "rem"}, r"f.json: devices\[0\].memory_node: no memory node has the id 'rem'"),
        ({"id": "a"}, r"f.json: devices\[0\]: the key 'memory_node' is missing"),
    ],
)
def test_a_mistake_of_a_fleet_is_told_with_its_place(row: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        fleet_from({"format": "hetero-fleet/1", "devices": [row], "memory_nodes": [{"id": "ram"}]}, "f.json")


STG = "  2\n 0 0 0\n 1 5 1 0  # a comment\n 2 3 1 0\n 3 0 2 1 2\n# the end\n"


def test_a_standard_task_graph_reads_with_its_entry_and_exit() -> None:
    graph = read_stg(STG, "a.stg", equal_devices(2))
    assert [task.seconds[0] for task in graph.tasks] == [0.0, 5.0, 3.0, 0.0]
    assert graph.edges[-1] == GraphEdge("2", "3", 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a.stg: the file is empty"),
        ("5\n 0 0 0\n", "a.stg:1: 5 tasks are announced, 1 lines follow"),
        ("1\n 0 0\n", "a.stg:2: 2 numbers make no task"),
        ("1\n 0 x 0\n", "a.stg:2: 'x' is not a number >= 0"),
        ("1\n 0 -4 0\n", "a.stg:2: '-4' is not a number >= 0"),
        ("1\n 0 4 1 9\n", "a.stg:2: no task has the id 9"),
        ("2\n 0 4 0\n 0 4 0\n", "a.stg:3: the id 0 is given twice"),
    ],
)
def test_a_mistake_of_a_standard_task_graph_is_told_with_its_line(text: str, said: str) -> None:
    with pytest.raises(GraphError) as caught:
        read_stg(text, "a.stg", equal_devices(1))
    assert str(caught.value).startswith(said)


WORKFLOW: dict[str, Any] = {
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {"id": "p", "children": ["q"], "parents": [], "inputFiles": [], "outputFiles": ["x", "y"]},
                {"id": "q", "children": [], "parents": ["p"], "inputFiles": ["x", "z"], "outputFiles": []},
            ],
            "files": [{"id": name, "sizeInBytes": size} for name, size in (("x", 70), ("y", 5), ("z", 3))],
        },
        "execution": {
            "tasks": [
                {"id": "p", "runtimeInSeconds": 4.0, "command": {"program": "fft"}},
                {"id": "q", "runtimeInSeconds": 2},
            ]
        },
    },
}


def test_the_bytes_of_a_workflows_edge_are_the_files_that_one_writes_and_the_other_reads() -> None:
    graph = read_wfformat(WORKFLOW, "w.json", equal_devices(2))
    assert graph.edges == (GraphEdge("p", "q", 70),)
    assert graph.tasks[0].seconds == (4.0, 4.0)


def test_a_task_of_a_workflow_without_a_run_time_is_named() -> None:
    document = copy.deepcopy(WORKFLOW)
    del document["workflow"]["execution"]["tasks"][1]
    with pytest.raises(GraphError, match=r"w.json: workflow.execution.tasks: task 'q' has no run time"):
        read_wfformat(document, "w.json", equal_devices(1))
    document["schemaVersion"] = "1.3"
    with pytest.raises(GraphError, match=r"w.json: schemaVersion: '1.3' is not '1.5'"):
        read_wfformat(document, "w.json", equal_devices(1))


DOT = """
// a comment
strict digraph "my graph" {
  rankdir=LR; node [seconds=1.5, shape=box]
  a [seconds="d0=2, d1=8", label="the \\"first\\""];
  subgraph cluster_x { b; "c d" [seconds=3] }
  a -> b -> "c d" [bytes=100];
  a -> e
}
"""


def test_a_dot_file_reads_with_defaults_chains_and_subgraphs() -> None:
    graph = read_dot(DOT, "a.dot", equal_devices(2))
    assert {task.id: task.seconds for task in graph.tasks} == {
        "a": (2.0, 8.0),
        "b": (1.5, 1.5),
        "c d": (3.0, 3.0),
        "e": (1.5, 1.5),
    }
    assert graph.edges == (GraphEdge("a", "b", 100), GraphEdge("b", "c d", 100), GraphEdge("a", "e", 0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("graph { a -- b }", "a.dot:1: 'graph' is not 'digraph'"),
        ("digraph {\n a -- b }", "a.dot:2: '--' has no direction"),
        ("digraph {\n a -> b", "a.dot:2: a name is due, not the end of the file"),
        ("digraph {\n a }", "a.dot:2: task 'a' has no seconds"),
        ("digraph {\n a [seconds=soon] }", "a.dot:2: 'soon' are not seconds"),
        ('digraph {\n a [seconds="d7=1"] }', "a.dot:2: no device has the id 'd7'"),
        ("digraph {\n a [seconds] }", "a.dot:2: '=' is due, not ']'"),
        ("digraph { \x01 }", "a.dot:1: '\\x01 }' is not DOT"),
        ("", "a.dot:1: '' is not 'digraph'"),
        ("digraph { a [seconds=1] ", "a.dot:1: a name is due, not the end of the file"),
        ("digraph { a [seconds=", "a.dot:1: a name is due, not the end of the file"),
        ('digraph { "a" + b }', "a.dot:1: only a string in quotes can follow '+'"),
        ("digraph { a -> subgraph x; }", "a.dot:1: '{' is due, not ';'"),
        ("digraph " + "{" * 200, "a.dot:1: subgraphs stand in more than 100 others"),
    ],
)
def test_a_mistake_of_a_dot_file_is_told_with_its_line(text: str, said: str) -> None:
    with pytest.raises(GraphError) as caught:
        read_dot(text, "a.dot", equal_devices(1))
    assert str(caught.value).startswith(said)


def test_arrows_need_no_blanks_lead_to_several_names_and_ports_and_labels_say_nothing() -> None:
    text = "digraph{a[seconds=1,label=<<b>A</b>>];b[seconds=1];c[seconds=-0]a->b:n->c[bytes=2];a->{b;c}}"
    graph = read_dot(text, "a.dot", equal_devices(1))
    assert [task.id for task in graph.tasks] == ["a", "b", "c"]
    assert [tuple(edge) for edge in graph.edges] == [("a", "b", 2), ("b", "c", 2), ("a", "c", 0)]


@pytest.mark.parametrize(
    ("text", "edges"),
    [
        ("{a b} -> c", [("a", "c", 0), ("b", "c", 0)]),
        ("subgraph x {a; b} -> subgraph y {c d} [bytes=3]", [(s, d, 3) for s in "ab" for d in "cd"]),
        ("a -> {b {c}} -> d", [("a", "b", 0), ("a", "c", 0), ("b", "d", 0), ("c", "d", 0)]),
        ("a -> {b -> c} [bytes=1]", [("b", "c", 0), ("a", "b", 1), ("a", "c", 1)]),
        ("{edge [bytes=5] a -> b} a -> c", [("a", "b", 5), ("a", "c", 0)]),
        ("a -> b [bytes=2] a -> b [bytes=3]", [("a", "b", 5)]),
        ('"a" -> "b" + "" + "c"', [("a", "bc", 0)]),
        ('"a\\\nb" -> c', [("ab", "c", 0)]),
    ],
)
def test_edges_of_subgraphs_of_pairs_given_twice_and_of_strings_in_parts(
    text: str, edges: list[tuple[str, str, int]]
) -> None:
    graph = read_dot("digraph { node [seconds=1] " + text + " }", "a.dot", equal_devices(1))
    assert [tuple(edge) for edge in graph.edges] == edges


def test_defaults_of_a_subgraph_end_with_it_and_a_strict_graph_keeps_the_last_edge_of_a_pair() -> None:
    text = "strict digraph { node [seconds=1] {node [seconds=2] a} b; a -> b [bytes=2]; a -> b [bytes=3] }"
    graph = read_dot(text, "a.dot", equal_devices(1))
    assert {task.id: task.seconds for task in graph.tasks} == {"a": (2.0,), "b": (1.0,)}
    assert graph.edges == (GraphEdge("a", "b", 3),)


@pytest.mark.parametrize("name", ["g.dot", "g.json", "g.stg", "g.txt"])
def test_a_byte_order_mark_says_nothing_in_any_format(tmp_path: Path, name: str) -> None:
    texts = {
        "g.dot": "digraph { a [seconds=1] }",
        "g.json": json.dumps(DOCUMENT),
        "g.stg": "1\n 0 4 0\n",
        "g.txt": "1 20 -1\n",
    }
    for mark in ("", "\ufeff"):
        path = written(tmp_path, name, mark + texts[name])
        more: dict[str, Any] = {} if name == "g.json" else {"fleet": "1"}
        if name == "g.txt":
            more = {"fleet": str(written(tmp_path, "f.json", mark + json.dumps(KINDS))), "columns": ("cpu", "gpu")}
        assert len(convert(path, **more).tasks) >= 1


KINDS = {
    "format": "hetero-fleet/1",
    "devices": [{"id": "c", "memory_node": "ram", "kind": "cpu"}, {"id": "g", "memory_node": "ram", "kind": "gpu"}],
    "memory_nodes": [{"id": "ram"}],
}


@given(st.text(alphabet='digraph{}[]->;= "\nab1.', max_size=40))
def test_any_text_is_a_dot_graph_or_a_mistake_with_its_line(text: str) -> None:
    said = said_of(lambda: read_dot("digraph {" + text, "a.dot", equal_devices(1)))
    assert said is None or said.startswith("a.dot:")


def test_columns_of_milliseconds_become_the_devices_of_that_kind() -> None:
    rows = [{"id": f"d{index}", "memory_node": "ram", "kind": kind} for index, kind in enumerate(("cpu", "gpu", "cpu"))]
    fleet = fleet_from({"format": "hetero-fleet/1", "devices": rows, "memory_nodes": [{"id": "ram"}]}, "f.json")
    graph = read_hswf("1 20 -1\n2 30 3.5 1\n", "a.txt", fleet, ("cpu", "gpu"), edge_bytes=64)
    assert graph.tasks[0].seconds == (0.02, math.inf, 0.02)
    assert graph.edges == (GraphEdge("1", "2", 64),)


def test_a_file_of_columns_is_converted_once_its_columns_and_devices_have_kinds(tmp_path: Path) -> None:
    rows = [{"id": kind, "memory_node": "ram", "kind": kind, "speed": 2.0} for kind in ("cpu", "gpu")]
    fleet = {"format": "hetero-fleet/1", "devices": rows, "memory_nodes": [{"id": "ram"}]}
    table = written(tmp_path, "t.txt", "1 20 -1\n2 30 3 1\n")
    used = str(written(tmp_path, "f.json", json.dumps(fleet)))
    graph = convert(table, used, columns=("cpu", "gpu"), edge_bytes=64)
    assert [task.seconds for task in graph.tasks] == [(0.01, math.inf), (0.015, 0.0015)]
    assert graph.edges == (GraphEdge("1", "2", 64),)
    with pytest.raises(BadValueError, match=r"columns of milliseconds without names; name their kinds: .*--columns"):
        convert(table, used)
    with pytest.raises(GraphError, match=r"device 'gpu' is of the kind 'gpu', and no column is; .* cpu, tpu in the"):
        convert(table, used, columns=("cpu", "tpu"))


def test_a_graph_whose_data_has_no_way_to_a_device_is_refused_before_it_is_planned(tmp_path: Path) -> None:
    graph = {**DOCUMENT, "links": []}
    graph["edges"] = [{**edge, "bytes": 1} for edge in graph["edges"]]
    path = written(tmp_path, "g.json", json.dumps(graph))
    assert read_graph(path).topology.links == ()
    with pytest.raises(GraphError, match=r"g.json: links: no path of links leads from memory node '.*' to '.*'; add"):
        read_plannable(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tasks": [{"id": "a", "seconds": {"cpu0": 1e300}}]}, "tasks[0].seconds.cpu0: 1e+300 is not a number of sec"),
        ({"memory_nodes": [{"id": "ram", "capacity_bytes": 10**19 - 1}]}, "write a whole number up to 9,223,372,036,"),
    ],
)
def test_a_number_beyond_all_measure_is_refused_with_its_place(change: dict[str, Any], said: str) -> None:
    devices = {"devices": [{"id": "cpu0", "memory_node": "ram"}], "memory_nodes": [{"id": "ram"}], "links": []}
    with pytest.raises(GraphError, match=re.escape(said)):
        graph_of({"format": "hetero-graph/1", **devices, "tasks": [], "edges": [], **change}, "g.json")


def test_what_is_no_function_or_of_another_graph_is_refused_where_it_is_added() -> None:
    graph, node = Graph(), Graph().add(len, "ab")
    with pytest.raises(BadValueError, match="'lenn' is no function; give a function, then its arguments"):
        graph.add("lenn", [])  # type: ignore[arg-type]
    with pytest.raises(BadValueError, match=r"<Node 0 len> is of another graph; add its task to this graph too"):
        graph.add(len, [node])
    assert len(graph) == 0


def test_a_format_is_known_by_name_or_by_content(tmp_path: Path) -> None:
    stg, dot = written(tmp_path, "x.stg", STG), written(tmp_path, "y", DOT)
    assert len(convert(stg, "2").tasks) == len(convert(dot, "2").tasks) == 4
    assert len(convert(written(tmp_path, "w", json.dumps(WORKFLOW)), "3").tasks) == 2
    assert convert(written(tmp_path, "g", json.dumps(DOCUMENT))) == GRAPH
    with pytest.raises(BadValueError, match="'sgt' is not a format of graphs; did you mean 'stg'"):
        convert(stg, "2", "sgt")
    with pytest.raises(BadValueError, match="names no devices; give --devices"):
        convert(stg)
    with pytest.raises(GraphError, match="hetero graph convert"):
        read_graph(stg)


def test_a_cycle_in_a_converted_file_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "x.dot", "digraph { node [seconds=1] a -> b -> c -> a }")
    with pytest.raises(GraphError, match="the tasks make a cycle: a → b → c → a"):
        convert(path, "1")


def test_a_sound_schedule_has_no_faults() -> None:
    assert violations(GRAPH, SOUND) == []


def moved(which: str, /, **fields: Any) -> Schedule:
    rows = tuple(row._replace(**fields) if row.task == which else row for row in SOUND.placements)
    return Schedule(rows, max(row.finish_s for row in rows), 5.0, "")


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (moved("b", device="gpu"), "task 'b' cannot run on 'gpu'"),
        (moved("b", device="tpu"), "the graph has no device 'tpu'"),
        (moved("b", task="z"), "task 'z' is not in the graph"),
        (moved("b", task="z"), "task 'b' is not placed"),
        (moved("c", task="a"), "task 'a' is placed twice"),
        (moved("b", finish_s=6.5), "task 'b' takes 2.5 s on 'cpu', the table says 3 s"),
        (moved("a", start_s=-1.0, finish_s=0.0), "task 'a' starts at -1 s"),
        (moved("a", start_s=math.nan), "task 'a' starts at nan s"),
        (moved("c", start_s=0.5, finish_s=1.5), "'gpu' runs 'a' and 'c' at 0.5 s"),
        (moved("c", start_s=0.5, finish_s=1.5), "task 'c' starts at 0.5 s, and what it needs from 'a' is there at 1 s"),
        (moved("b", start_s=3.5, finish_s=6.5), "task 'b' starts at 3.5 s, and what it needs from 'a' is there at 4 s"),
        (Schedule(SOUND.placements, 6.0, 5.0, ""), "the makespan is said to be 6 s, the last task finishes at 7 s"),
        (Schedule(SOUND.placements, 7.0, 7.5, ""), "the lower bound 7.5 s is above the makespan 7 s"),
        (Schedule((), 0.0, 0.0, ""), "task 'a' is not placed"),
    ],
)
def test_the_checker_finds_a_planted_fault(schedule: Schedule, said: str) -> None:
    assert any(said in each for each in violations(GRAPH, schedule))


def test_the_checker_shares_no_code_with_the_planner() -> None:
    ours = {"hetero.model.graph", "hetero.model.schedule", "hetero.model.topology"}
    tree = ast.parse((PROJECT / "src" / "hetero" / "graphs" / "check.py").read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert {module for module in imported if module.startswith("hetero")} <= ours


def test_a_plan_written_is_the_plan_read() -> None:
    assert plan_of(json.loads(json.dumps(plan_document(SOUND))), "p.json") == SOUND


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"format": "x"}, "p.json: format: 'x' is not 'hetero-plan/1'"),
        ([], "p.json: format: [] is not"),
        ({**plan_document(SOUND), "placements": 3}, "p.json: placements: 3 is not a list"),
        ({**plan_document(SOUND), "placements": [{"task": "a"}]}, "p.json: placements[0]: the key 'device' is missing"),
        ({**plan_document(SOUND), "makespan_s": None}, "p.json: makespan_s: None is not a number of seconds"),
    ],
)
def test_a_mistake_of_a_plan_is_told_with_its_place(document: Any, said: str) -> None:
    with pytest.raises(GraphError) as caught:
        plan_of(document, "p.json")
    assert str(caught.value).startswith(said)


def test_a_chart_has_a_row_a_device_and_keeps_to_its_width() -> None:
    lines = gantt(GRAPH, SOUND, 60)
    assert len(lines) == len(GRAPH.devices) + 1
    assert all(len(line) <= 60 for line in lines)
    assert lines[0] == "cpu │                           [─────────b─────────]│  43%"


def test_the_shared_graphs_all_read() -> None:
    folder = data_folder() / "graphs"
    assert len(convert(folder / "stg" / "proto000.stg", "4").tasks) == 453
    assert len(convert(folder / "wfinstances" / "sarek-dirt02-001.json.gz", "4").tasks) == 26
    for path in [*folder.glob("stg/*.stg"), *folder.glob("wfinstances/*.json.gz")]:
        graph = convert(path, "3")
        assert graph == graph_of(parse_json(json.dumps(document_of(graph)), path.name), path.name)
    assert read_text(folder / "stg" / "spec_nodt.txt")


def test_the_largest_number_of_bytes_is_one_and_a_bandwidth_that_overflows_every_time_is_refused() -> None:
    assert DocumentPlace("f").whole(UNLIMITED_BYTES, "a number of bytes") == UNLIMITED_BYTES
    with pytest.raises(GraphError, match="write a whole number up to 9,223,372,036,854,775,807"):
        DocumentPlace("f").whole(UNLIMITED_BYTES + 1, "a number of bytes")
    with pytest.raises(GraphError, match=re.escape("1e-300 is not a bandwidth; write a number > 1e-19")):
        graph_of(changed("links", 0, "bandwidth_bytes_per_s", to=1e-300), "g.json")
