"""`Graph.plan`: calls that are taken down once and run any number of times; graphs that run inside tasks."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.floor.errors import BadValueError
from hetero.graphs.handles import GraphData

FLEETS: dict[str, dict[str, Any]] = {
    "inline": {"devices": "1xcpu", "engine": "inline"},
    "threads": {"devices": "3xcpu", "isolation": "thread", "policy": "planned"},
    "processes": {"devices": "2xcpu", "policy": "planned"},
}


@pytest.fixture(scope="module", params=sorted(FLEETS))
def ctx(request: pytest.FixtureRequest) -> Iterator[hetero.Context]:
    with hetero.Context(**FLEETS[request.param], history=False) as made:
        yield made


@pytest.fixture(scope="module")
def inline() -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as made:
        yield made


def added(value: Any, more: Any) -> Any:
    value += more
    return value


def halves(value: Any) -> Any:
    middle = len(value) // 2
    return value[:middle].copy(), value[middle:].copy()


def program(size: int) -> tuple[hetero.graphs.Graph, GraphData, list[GraphData]]:
    """Return a graph with every mode of access, its input, and its data."""
    graph = hetero.graphs.Graph()
    first = graph.data(np.arange(float(size)), name="first")
    left, right = graph.data(name="left"), graph.data(name="right")
    total = graph.data(np.ones(size // 2), operator=np.add, name="total")
    graph.add(added, first.readwrite, 1)
    graph.add(halves, left.write, right.write, first.read)
    for each in (left, right):
        graph.add(added, each.commute, 2)
        graph.add(added, each.commute, 3)
        graph.add(np.negative, total.reduce, each.read)
    graph.add(np.sum, graph.add(np.add, left.read, total.read))
    return graph, first, [first, left, right, total]


def outcome(values: list[Any], data: list[GraphData]) -> list[Any]:
    return [*map(float, values), *(each.result().tolist() for each in data)]


@pytest.mark.parametrize("size", [8, 20_000])
def test_a_plan_gives_each_time_what_a_graph_of_these_inputs_gives(ctx: hetero.Context, size: int) -> None:
    graph, first, data = program(size)
    plan = graph.plan(ctx)
    assert plan.runs == 0
    for value in (np.zeros(size), np.full(size, 5.0)):
        fresh, into, others = program(size)
        into._first.start = value
        expected = outcome(fresh.run(ctx), others)
        assert outcome(plan.run({first: value}), data) == expected
        assert value.tolist() == [value[0]] * size
    assert outcome(plan.run(), data) == outcome(graph.run(ctx), data)
    assert plan.runs == 3


def test_a_loop_goes_on_from_what_the_run_before_has_made(ctx: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    guess = graph.data(10.0)
    graph.add(lambda x: (x + 2 / x) / 2, guess.readwrite)
    plan, value = graph.plan(ctx), 10.0
    while abs(value * value - 2) > 1e-9:
        plan.run({guess: value})
        value = guess.result()
    assert value == pytest.approx(2**0.5)
    assert plan.runs < 10


def dies_once(mark: str, value: Any) -> Any:
    if not os.path.exists(mark):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return value * 2


def test_a_worker_that_dies_in_a_later_run_changes_no_result(tmp_path: Path) -> None:
    mark = tmp_path / "died"
    mark.touch()
    graph = hetero.graphs.Graph()
    number = graph.data(1)
    for _ in range(6):
        graph.add(dies_once, str(mark), number.readwrite)
        graph.add(abs, number.read)
    with hetero.Context(devices="2xcpu", policy="planned", history=False) as ctx:
        plan = graph.plan(ctx)
        for runs, value in enumerate((1, 3, 5)):
            if runs == 1:
                mark.unlink()
            assert plan.run({number: value}) == [value * 2**count for count in range(1, 7)]
            assert number.result() == value * 64
    assert mark.exists()


def waits_for(path: str) -> int:
    while not os.path.exists(path):
        time.sleep(0.01)
    return 1


def test_a_task_of_a_run_that_is_cancelled_leaves_the_next_run_whole(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    graph = hetero.graphs.Graph()
    first = graph.add(waits_for, str(gate))
    after = graph.add(abs, first)
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        plan = graph.plan(ctx)
        futures = plan.submit()
        assert futures[first].cancel()
        assert futures[after].exception(60) is not None
        gate.touch()
        assert plan.run() == [1]


def test_wrong_inputs_and_a_graph_that_grew_are_refused_in_one_line(inline: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    tile, out, word = graph.data(np.zeros((2, 2)), name="tile"), graph.data(name="out"), graph.data("a", name="word")
    later = graph.data(inline.put(1), name="later")
    graph.add(np.copy, out.write, tile.read)
    graph.add(len, word.read)
    graph.add(abs, later.read)
    plan = graph.plan(inline)
    wrong: list[tuple[Any, str]] = [
        ({tile: np.zeros((3, 2))}, r"tile was planned as float64\[2,2\] and given float64\[3,2\]; plan a graph"),
        ({tile: np.zeros((2, 2), dtype=int)}, r"given int64\[2,2\]"),
        ({tile: 4}, r"tile was planned as float64\[2,2\] and given 4"),
        ({word: np.zeros(3)}, r"word was planned as no array and given float64\[3\]"),
        ({out: 1}, "out takes no input: no task reads a value that it holds at the start"),
        ({later: 1}, "later takes no input"),
        ({"tile": 1}, "'tile' is no handle of this graph; give what graph.data returned"),
        ({hetero.graphs.Graph().data(1): 1}, "is no handle of this graph"),
        ({word: inline.put("b")}, "word was given <Future"),
        ([1], r"\[1\] are no inputs; give a dict"),
    ]
    for inputs, words in wrong:
        with pytest.raises(BadValueError, match=words) as error:
            plan.run(inputs)
        assert "\n" not in str(error.value)
    assert plan.run({word: "abc"}) == [3, 1]
    graph.add(len, word.read)
    with pytest.raises(BadValueError, match="1 tasks were added to the graph since it was planned; plan it again"):
        plan.run()
    assert graph.plan(inline).run() == [1, 1, 1]
    none: Any = None
    with pytest.raises(BadValueError, match="a graph cannot run on None; give a Context"):
        graph.plan(none)


def summed(count: int, seconds: float = 0.0) -> int:
    """Run a graph in the task that calls it."""
    graph = hetero.graphs.Graph()
    total = graph.data(np.zeros(4), operator=added)
    parts = [graph.add(slow_square, number, seconds) for number in range(count)]
    for part in parts:
        graph.add(np.full, 4, total.reduce, part)
    graph.add(added, total.readwrite, 1)
    checked = graph.add(np.max, total.read, after=parts)
    ctx = hetero.current_context()
    values = graph.run(ctx)
    assert len(values) == 1
    plan = graph.plan(ctx)
    assert plan.run({total: np.ones(4)}) == [values[0] + 1]
    assert checked.name
    return int(values[0])


def slow_square(number: int, seconds: float) -> int:
    time.sleep(seconds)
    return number * number


def test_a_graph_runs_inside_a_task(ctx: hetero.Context) -> None:
    assert ctx.run(summed, 4) == 15


def test_tasks_on_every_device_that_wait_for_graphs_of_their_own_all_end() -> None:
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        found = ctx.gather([ctx.submit(summed, count, 0.03) for count in (3, 4, 5, 6)])
    assert found == [sum(n * n for n in range(count)) + 1 for count in (3, 4, 5, 6)]


def test_a_graph_whose_task_runs_it_is_refused(inline: hetero.Context) -> None:
    for fleet in ({"engine": "inline"}, {"isolation": "thread"}):
        graph = hetero.graphs.Graph()
        graph.add(lambda circle: circle.run(hetero.current_context()), Held(graph))
        with hetero.Context(devices="1xcpu", history=False, **fleet) as ctx:  # type: ignore[arg-type]
            with pytest.raises(BadValueError, match=r"of 1 tasks> would wait for itself: task \d+, which runs it"):
                graph.run(ctx)
            assert ctx.run(abs, -1) == 1


class Held:
    """Something of the program's that is handed over as it is."""

    def __init__(self, graph: hetero.graphs.Graph) -> None:
        self._graph = graph

    def run(self, ctx: Any) -> object:
        return self._graph.run(ctx)

    def __deepcopy__(self, memo: object) -> Held:
        return self


def squares_inside(function: Any) -> list[int]:
    graph = hetero.graphs.Graph()
    number = graph.data(3)
    graph.add(function, number.readwrite)
    graph.run(hetero.current_context())
    return [number.result()]


def test_inside_a_task_a_task_with_implementations_writes_no_data(inline: hetero.Context) -> None:
    plain = hetero.task(abs)
    assert inline.run(functools.partial(squares_inside, plain)) == [3]
    special = hetero.task(abs)
    special.implementation("cuda")(abs)
    with pytest.raises(BadValueError, match="has implementations for some devices, and writes data 1 inside a task"):
        inline.run(functools.partial(squares_inside, special))


def test_a_graph_that_is_run_inside_a_task_is_not_submitted_there(inline: hetero.Context) -> None:
    def inside() -> None:
        graph = hetero.graphs.Graph()
        graph.add(abs, -1)
        graph.submit(hetero.current_context())  # type: ignore[arg-type]

    with pytest.raises(BadValueError, match="a graph is run inside a task, not submitted; call run"):
        inline.run(inside)
