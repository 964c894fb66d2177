"""`hetero.graphs.Graph` on real workers, and the graph of a run as `hetero.graphs.graph` shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import hetero
from hetero.floor.errors import BadValueError, SerialisationError


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hetero.Context]:
    trace = tmp_path_factory.mktemp("graph") / "run.trace.jsonl.gz"
    with hetero.Context(
        devices="1xcpu,1xcpu*0.5", isolation="thread", policy="planned", trace=trace, history=False
    ) as made:
        yield made


def joined(*parts: str) -> str:
    return "(" + "".join(parts) + ")"


def failing(*parts: str) -> str:
    raise ArithmeticError("no")


def test_a_graph_gives_the_results_of_the_tasks_that_nobody_reads(ctx: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    a = graph.add(joined, "a")
    b, c = graph.add(joined, "b", a), graph.add(joined, a, "c")
    graph.add("".join, [b, c])
    assert len(graph) == 4
    assert graph.run(ctx) == ["(b(a))((a)c)"]
    assert graph.run(ctx) == ["(b(a))((a)c)"]


def test_a_failure_reaches_whoever_needs_the_task_and_nobody_else(ctx: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    good, bad = graph.add(joined, "x"), graph.add(failing)
    after = graph.add(joined, bad)
    futures = graph.submit(ctx)
    assert futures[good].result(60) == "(x)"
    with pytest.raises(ArithmeticError):
        futures[after].result(60)


def test_a_graph_of_which_one_task_cannot_travel_does_not_run_at_all(ctx: hetero.Context, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    graph = hetero.graphs.Graph()
    graph.add(mark.touch)
    graph.add(joined, (item for item in "ab"))
    with pytest.raises((SerialisationError, BadValueError)):
        graph.submit(ctx)
    assert ctx.run(joined, "after") == "(after)"
    assert not mark.exists()


def test_a_task_of_another_graph_is_refused() -> None:
    node = hetero.graphs.Graph().add(joined)
    with pytest.raises(BadValueError, match="another graph"):
        hetero.graphs.Graph().add(joined, [node])


def test_a_graph_from_a_file_calls_the_function_with_each_id_and_what_it_needs(
    ctx: hetero.Context, tmp_path: Path
) -> None:
    path = tmp_path / "g.json"
    tasks = [{"id": name, "seconds": {"d": 1.0}} for name in ("end", "left", "right", "begin")]
    pairs = [("begin", "left"), ("begin", "right"), ("left", "end"), ("right", "end")]
    edges = [{"src": src, "dst": dst} for src, dst in pairs]
    fleet = {"devices": [{"id": "d", "memory_node": "m"}], "memory_nodes": [{"id": "m"}], "links": []}
    path.write_text(json.dumps({"format": "hetero-graph/1", **fleet, "tasks": tasks, "edges": edges}))
    graph = hetero.graphs.Graph.from_file(path, joined)
    assert graph.run(ctx) == ["(end(left(begin))(right(begin)))"]


def test_the_graph_that_is_shown_has_every_task_with_what_it_needed_and_where_it_ran(ctx: hetero.Context) -> None:
    before = len(hetero.graphs.graph(ctx).tasks)
    first = ctx.submit(joined, "1")
    second = ctx.submit(joined, first)
    assert second.result(60) == "((1))"
    shown = hetero.graphs.graph(ctx).tasks[before:]
    assert [(task.name, task.needs, task.state) for task in shown] == [
        ("joined", (), "finished"),
        ("joined", (first.task_id,), "finished"),
    ]
    assert all(task.device in {device.id for device in ctx.devices} for task in shown)
    assert hetero.graphs.graph(ctx).svg.count("<rect") == len(hetero.graphs.graph(ctx).tasks)


def test_a_context_without_a_trace_is_told_how_to_get_one() -> None:
    plain = hetero.Context(devices="1xcpu", engine="inline", history=False)
    with plain, pytest.raises(BadValueError, match="trace=FILE"):
        hetero.graphs.graph(plain)
