"""map keeps the order and groups items by their cost; reduce combines near the data; gather keeps the form."""

from __future__ import annotations

import gc
import itertools
import operator
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.drive.trace_read import read_trace
from hetero.errors import BadValueError, TaskLostError
from hetero.model.device import HOST_NODE
from hetero.model.events import TaskSubmitted
from hetero.session.mapping import chunk_size


@pytest.fixture(params=["thread", "process", "inline"], scope="module")
def ctx(request: pytest.FixtureRequest) -> Iterator[hetero.Context]:
    way = {"engine": "inline"} if request.param == "inline" else {"isolation": request.param}
    with hetero.Context(devices="2xcpu", history=False, **way) as context:
        yield context


@pytest.fixture
def threads() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as context:
        yield context


def square(x: Any) -> Any:
    return x * x


@pytest.mark.parametrize("chunk", ["auto", 1, 3, 1000])
def test_map_gives_the_results_in_order(ctx: hetero.Context, chunk: Any) -> None:
    assert list(ctx.map(square, range(100), chunk=chunk)) == [x * x for x in range(100)]


@pytest.mark.parametrize("items", [[], [4], (1, 2), range(3), iter([1, 2, 3]), {1: "a"}])
def test_map_takes_any_iterable(ctx: hetero.Context, items: Any) -> None:
    items = list(items) if isinstance(items, Iterator) else items
    assert list(ctx.map(square, iter(items))) == [x * x for x in items]


def test_map_ends_with_the_shortest_iterable(ctx: hetero.Context) -> None:
    assert list(ctx.map(operator.add, range(10), [1, 2, 3])) == [1, 3, 5]


def test_map_over_an_array_runs_over_its_rows(ctx: hetero.Context, rng: np.random.Generator) -> None:
    rows = rng.random((60, 8))
    np.testing.assert_allclose(list(ctx.map(np.sum, rows)), rows.sum(axis=1))


def test_cheap_items_are_grouped_and_costly_ones_are_not() -> None:
    assert chunk_size(1e-4, 10_000, 2) == 20
    assert chunk_size(1e-6, 800, 2) == 100
    assert chunk_size(5e-3, 800, 2) == 1
    assert chunk_size(1e-6, 3, 2) == 1


def test_ten_thousand_cheap_items_make_few_tasks(threads: hetero.Context) -> None:
    first = threads.driver.new_id()
    assert sum(threads.map(square, range(10_000))) == sum(x * x for x in range(10_000))
    assert threads.driver.new_id() - first < 1_000


def test_costly_items_make_a_task_each(threads: hetero.Context) -> None:
    first = threads.driver.new_id()
    list(threads.map(lambda _: time.sleep(0.005), range(20)))
    assert threads.driver.new_id() - first - 1 == 20


def test_an_exception_comes_from_the_iterator_after_the_results_before_it(threads: hetero.Context) -> None:
    results = threads.map(lambda x: 1 // x, [1, 1, 0, 1], chunk=1)
    assert [next(results), next(results)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("chunk", [1, 2, 5, "auto"])
def test_a_function_that_raises_stop_iteration_does_not_end_the_loop_over_its_results(
    threads: hetero.Context, chunk: Any
) -> None:
    def unlucky(item: int) -> int:
        if item == 2:
            raise StopIteration("out of luck")
        return item

    with pytest.raises(RuntimeError, match="generator raised StopIteration") as caught:
        list(threads.map(unlucky, range(5), chunk=chunk))
    assert isinstance(caught.value.__cause__, StopIteration)
    assert caught.value.__cause__.args == ("out of luck",)


def test_map_raises_when_a_result_is_late(ctx: hetero.Context) -> None:
    if ctx.config.engine == "inline":
        assert list(ctx.map(square, [1], timeout=0.0)) == [1]
        return
    with pytest.raises(TimeoutError):
        list(ctx.map(lambda _: time.sleep(0.3), range(3), timeout=0.05))


def test_map_of_futures_gives_their_tasks_results(ctx: hetero.Context) -> None:
    assert list(ctx.map(square, [ctx.submit(square, i) for i in range(4)])) == [0, 1, 16, 81]


def test_map_runs_also_when_nobody_reads_it() -> None:
    done: list[int] = []
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
        ctx.map(done.append, range(50))
    assert sorted(done) == list(range(50))


def test_results_of_a_map_can_be_read_after_the_with_block() -> None:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
        results = ctx.map(square, range(500))
    assert list(results) == [x * x for x in range(500)]


def test_a_map_that_is_closed_early_stops_the_tasks_left(threads: hetero.Context) -> None:
    done: list[int] = []
    results = threads.map(lambda i: time.sleep(0.05) or done.append(i), range(200), chunk=1)
    next(results)
    results.close()  # type: ignore[attr-defined]
    time.sleep(0.5)
    assert len(done) < 50


@pytest.mark.parametrize("chunk", [0, -1, 1.5, True, "big"])
def test_a_chunk_that_is_no_number_is_refused(ctx: hetero.Context, chunk: Any) -> None:
    with pytest.raises(BadValueError, match="give 'auto' or a whole number"):
        ctx.map(square, [1], chunk=chunk)


def test_map_over_a_number_is_refused(ctx: hetero.Context) -> None:
    with pytest.raises(BadValueError, match="map got a int"):
        ctx.map(square, 5)  # type: ignore[arg-type]


def unless(bad: int, x: int) -> int:
    if x == bad:
        os.kill(os.getpid(), signal.SIGSEGV)
    return x


@pytest.mark.parametrize("chunk", [4, 1])
def test_an_item_that_ends_its_worker_fails_alone_and_is_named(chunk: int) -> None:
    with hetero.Context(devices="2xcpu", isolation="process", history=False) as ctx:
        results = ctx.map(unless, [6] * 12, range(12), chunk=chunk)
        assert [next(results) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
        with pytest.raises(TaskLostError, match=r"^item 6 of the map: unless .*SIGSEGV"):
            next(results)
        assert list(ctx.map(unless, [-1] * 12, range(12), chunk=chunk)) == list(range(12))


def test_map_of_a_group_task_is_never_chunked() -> None:
    with hetero.Context(devices="2xcpu", history=False) as ctx:
        pair = hetero.task(lambda x: (hetero.collectives.rank(), hetero.collectives.world_size(), x), devices=2)
        assert list(ctx.map(pair, [5, 6])) == [(0, 2, 5), (0, 2, 6)]


def test_gather_keeps_the_form(ctx: hetero.Context) -> None:
    one, two = ctx.submit(square, 1), ctx.submit(square, 2)
    assert ctx.gather([one, [two, (one,)], {"k": two}, 7]) == [1, [4, (1,)], {"k": 4}, 7]


def test_gather_of_one_future_is_told(ctx: hetero.Context) -> None:
    with pytest.raises(BadValueError, match="give a list of futures"):
        ctx.gather(ctx.submit(square, 1))


def test_gather_raises_the_first_exception_in_order(ctx: hetero.Context) -> None:
    with pytest.raises(ZeroDivisionError):
        ctx.gather([ctx.submit(square, 1), ctx.submit(operator.truediv, 1, 0)])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_reduce_keeps_the_order_of_the_operands(ctx: hetero.Context, count: int) -> None:
    leaves = [ctx.submit(str, i) for i in range(count)]
    assert ctx.reduce(operator.add, leaves).result(120) == "".join(map(str, range(count)))


def test_reduce_takes_values_too(ctx: hetero.Context) -> None:
    assert ctx.reduce(operator.add, [1, ctx.submit(square, 2), 3]).result(120) == 8


def test_reduce_of_nothing_is_told(ctx: hetero.Context) -> None:
    with pytest.raises(BadValueError, match="nothing to combine"):
        ctx.reduce(operator.add, [])


def test_reduce_without_order_combines_on_each_memory_node_first(tmp_path: Path) -> None:
    """Eight arrays lie on two slow memory nodes, by turns: in order every pair of them lies on both."""
    devices = [{"type": "cpu", "cores": 1, "link": {"bandwidth": "10MB/s"}}] * 2
    pairs: dict[bool, int] = {}
    for ordered in (True, False):
        trace = tmp_path / f"{ordered}.trace.jsonl.gz"
        with hetero.Context({"devices": devices}, history=False, trace=trace) as ctx:
            where = [device.id for device in ctx.devices]
            leaves = [ctx.submit(hetero.task(np.ones, on=where[i % 2]), 100_000) for i in range(8)]
            hetero.wait(leaves, 60)
            nodes = {leaf.item: ctx.driver.where(leaf.item) for leaf in leaves}
            assert list(nodes.values()) == [ctx.devices[i % 2].memory_node for i in range(8)]
            assert ctx.reduce(np.add, leaves, ordered=ordered).result(60)[0] == 8.0
        inputs = [fact.task.inputs for _, fact in read_trace(trace) if isinstance(fact, TaskSubmitted)]
        of_leaves = [two for two in inputs if two and nodes.keys() >= set(two)]
        pairs[ordered] = sum(nodes[one] == nodes[other] for one, other in of_leaves)
    assert pairs == {True: 0, False: 4}


def test_map_reads_as_far_as_the_shortest_lasts(ctx: hetero.Context) -> None:
    assert list(ctx.map(operator.add, range(3), itertools.repeat(10))) == [10, 11, 12]
    assert list(ctx.map(operator.add, itertools.count(), [1, 2, 3], chunk=2)) == [1, 3, 5]
    assert list(ctx.map(operator.add, [], itertools.count())) == []


def last(array: Any, number: int) -> float:
    total = float(array[-1]) + number
    array[-1] = -1.0
    return total


def test_an_array_that_comes_again_in_a_map_is_copied_once_and_taken_as_it_is_at_the_call() -> None:
    with hetero.Context(devices="2xcpu", history=False) as own:
        counters = own.driver.engine.counters
        array = np.arange(100_000.0)
        results = own.map(last, [array] * 40, range(40), chunk=1)
        array[-1] = 7.0
        assert list(results) == [99_999.0 + number for number in range(40)]
        assert (counters["copies"], counters["shared"]) == (1, 0)
        assert list(own.map(last, [array, np.zeros(9_000), array], range(3), chunk=1)) == [7.0, 1.0, 9.0]
        assert array[-1] == 7.0
        del results, array
        gc.collect()
        deadline_s = time.monotonic() + 60.0
        while own.usage[HOST_NODE].used_bytes and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert own.usage[HOST_NODE].used_bytes == 0
