"""Data handles of `hetero.graphs.Graph`: what comes of a graph is what its tasks give one after another."""

from __future__ import annotations

import operator
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hetero
from hetero.floor.errors import BadValueError, NothingFitsError, SerialisationError
from hetero.model.device import HOST_NODE

LARGE = 9_000
"""Numbers of an array that is large enough to travel in shared memory."""

HANDLES = 4
FLEETS: dict[str, dict[str, Any]] = {
    "inline": {"devices": "1xcpu", "engine": "inline"},
    "threads": {"devices": "3xcpu", "isolation": "thread", "policy": "planned"},
    "processes": {"devices": "2xcpu"},
    "own memory": {"config": {"devices": [{"type": "cpu", "cores": 1, "link": {"bandwidth": "5GB/s"}}] * 2}},
}

MODES = ("readwrite", "commute", "write", "reduce")
"""In the order in which `mixed` gets its arguments and returns its values."""


class Step(NamedTuple):
    """One task of a random program: the mode of each handle that it uses, and a number of its own."""

    number: int
    modes: tuple[str, ...]

    def of(self, *modes: str) -> list[int]:
        return [at for mode in modes for at in range(HANDLES) if self.modes[at] == mode]


@pytest.fixture(scope="module", params=sorted(FLEETS))
def ctx(request: pytest.FixtureRequest) -> Iterator[hetero.Context]:
    with hetero.Context(**FLEETS[request.param], history=False) as made:
        yield made


@pytest.fixture(scope="module")
def inline() -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as made:
        yield made


def mixed(number: int, changed: int, commuted: int, made: int, *arrays: Any) -> Any:
    """Change arrays in place, add to others, make more, and return all of these: a tuple where they are several."""
    seen = number + sum(int(array.sum()) * place for place, array in enumerate(arrays[changed + commuted :], start=1))
    for array in arrays[:changed]:
        array *= 31
    for array in arrays[: changed + commuted]:
        array += seen
        array %= 10_007
    new = [np.full(5, (seen * 7 + place) % 10_007) for place in range(made)]
    values = (*arrays[: changed + commuted], *new)
    return values[0] if len(values) == 1 else values


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    modes = st.tuples(*[st.sampled_from((*MODES, "read", ""))] * HANDLES).filter(lambda used: {*used} & {*MODES})
    return [Step(number, draw(modes)) for number in range(draw(st.integers(1, 10)))]


def one_after_another(steps: list[Step], values: list[Any]) -> list[list[int]]:
    values = [value.copy() for value in values]
    for step in steps:
        counts = len(step.of("readwrite")), len(step.of("commute")), len(step.of("write", "reduce"))
        made = mixed(step.number, *counts, *(values[at].copy() for at in step.of("readwrite", "commute", "read")))
        for place, at in enumerate(step.of(*MODES)):
            value = made[place] if sum(counts) > 1 else made
            values[at] = values[at] + value if step.modes[at] == "reduce" else value
    return [value.tolist() for value in values]


@settings(max_examples=16)
@given(steps=programs(), large=st.booleans())
def test_what_comes_of_a_graph_is_what_its_tasks_give_one_after_another(
    ctx: hetero.Context, steps: list[Step], large: bool
) -> None:
    values = [np.full((LARGE, 5) if large else 5, at) for at in range(HANDLES)]
    graph = hetero.graphs.Graph()
    data = [graph.data(value, operator=np.add) for value in values]
    for step in steps:
        counts = len(step.of("readwrite")), len(step.of("commute")), len(step.of("write", "reduce"))
        used = [getattr(data[at], step.modes[at]) for at in (*step.of(*MODES), *step.of("read"))]
        graph.add(mixed, step.number, *counts, *used)
    assert graph.run(ctx) == []
    assert [handle.result().tolist() for handle in data] == one_after_another(steps, values)
    assert [int(value.max()) for value in values] == [0, 1, 2, 3]  # the program's own arrays are left alone


def late(seconds: float, word: str) -> list[str]:
    time.sleep(seconds)
    return [word]


def test_what_is_reduced_is_combined_in_order_and_with_what_was_there(ctx: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    words, length, new = graph.data(["a"], operator=operator.add), graph.data(), graph.data(operator=operator.add)
    for seconds, word in ((0.1, "b"), (0.0, "c"), (0.05, "d")):
        graph.add(late, seconds, word, words.reduce)
    graph.add(len, words.read, length.write)
    graph.add(late, 0.0, "e", words.reduce)
    graph.add(abs, -1, new.reduce)
    graph.run(ctx)
    assert (words.result(), length.result(), new.result()) == ([*"abcde"], 4, 1)


def added_into(total: Any, more: Any) -> Any:
    total += more
    return total


def same(value: Any) -> Any:
    return value


def test_an_operator_that_adds_in_place_changes_no_value_that_anybody_else_has(ctx: hetero.Context) -> None:
    given = [np.full(3, float(number)) for number in range(4)]
    graph = hetero.graphs.Graph()
    total = graph.data(np.ones(3), operator=added_into)
    before = graph.add(same, total.read)
    parts = [graph.add(same, total.reduce, each) for each in given]
    between = graph.add(same, total.read)
    parts += [graph.add(same, total.reduce, each) for each in given]
    futures = graph.submit(ctx)
    assert total.result().tolist() == [13.0] * 3
    assert [float(futures[each].result()[0]) for each in (before, between, *parts)] == [1, 7, 0, 1, 2, 3, 0, 1, 2, 3]
    assert [float(each[0]) for each in given] == [0, 1, 2, 3]


def test_an_operator_that_returns_nothing_is_told(inline: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    words = graph.data(["a"], name="words", operator=list.extend)
    graph.add(list, "b", words.reduce)
    with pytest.raises(BadValueError, match=r"extend writes words and returned None; return the new value"):
        graph.run(inline)


def with_more(words: list[str], more: list[str]) -> list[str]:
    return [*words, *more]


def test_of_tasks_that_commute_those_that_are_ready_early_go_first(ctx: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    words, kept = graph.data([], name="words"), graph.data(operator=operator.add)
    long_way = graph.add(list, graph.add(list, graph.add(late, 0.1, "long way")))
    graph.add(with_more, words.commute, long_way)
    graph.add(with_more, words.commute, ["at once"])
    graph.add(with_more, words.readwrite, ["in the end"])
    graph.add(with_more, words.commute, ["another"])
    graph.add(list, long_way, kept.reduce)
    graph.add(list, "z", kept.reduce)
    graph.run(ctx)
    assert words.result() == ["at once", "long way", "in the end", "another"]
    assert kept.result() == ["long way", "z"]


def grown(array: Any, mark: str) -> Any:
    """Change an array in place, and end the worker in the middle of that the first time."""
    half = len(array) // 2
    array[:half] += 1
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    array[half:] += 1
    return array


@pytest.mark.parametrize("fleet", ["processes", "own memory"])
def test_a_task_that_is_repeated_after_its_worker_died_sees_the_value_before(fleet: str, tmp_path: Path) -> None:
    with hetero.Context(**FLEETS[fleet], history=False) as ctx:
        graph = hetero.graphs.Graph()
        counts, sums = graph.data(np.zeros(LARGE)), [graph.data() for _ in range(4)]
        for step in range(4):
            graph.add(grown, counts.readwrite, str(tmp_path / str(step % 3)))
            graph.add(np.sum, counts.read, sums[step].write)
        graph.run(ctx)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "1", "2"]
        assert [float(each.result()) for each in sums] == [LARGE, 2 * LARGE, 3 * LARGE, 4 * LARGE]
        assert counts.result().tolist() == [4.0] * LARGE


def test_a_task_that_raises_in_the_middle_and_is_retried_sees_the_value_before(
    ctx: hetero.Context, tmp_path: Path
) -> None:
    def half_done(array: Any, mark: str) -> Any:
        array += 1
        if not os.path.exists(mark):
            open(mark, "w").close()
            raise ArithmeticError("the first time")
        return array

    graph = hetero.graphs.Graph()
    array = graph.data(np.zeros(LARGE))
    graph.add(hetero.task(half_done, retries=1), array.readwrite, str(tmp_path / "mark"))
    graph.run(ctx)
    assert array.result().max() == 1.0


def test_a_list_that_a_task_changes_is_its_own(ctx: hetero.Context) -> None:
    def longer(items: list[object], more: object) -> list[object]:
        items.append(more)
        items[0].add(more)  # type: ignore[attr-defined]
        return items

    given: list[object] = [set()]
    graph = hetero.graphs.Graph()
    items, before = graph.data(given), graph.data()
    graph.add(longer, items.readwrite, 1)
    graph.add(list, items.read, before.write)
    graph.add(longer, more=2, items=items.readwrite)
    graph.run(ctx)
    assert (before.result(), items.result(), given) == ([{1}, 1], [{1, 2}, 1, 2], [set()])


def test_nodes_and_futures_stand_beside_handles(ctx: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    start = graph.add(abs, -3)
    left, right = graph.data(start), graph.data(ctx.submit(abs, -4))
    both = graph.add(sum, [left.read, right.read, start])
    graph.add(divmod, both, 4, left.write, right.write)
    assert graph.run(ctx) == []
    assert (left.result(), right.result()) == (2, 2)
    assert graph.submit(ctx)[both].result() == 10


def test_a_graph_runs_again_from_the_values_that_it_was_given(ctx: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    count = graph.data(np.zeros(3))
    graph.add(np.add, count.readwrite, 1)
    for _ in range(2):
        graph.run(ctx)
        assert count.result().tolist() == [1.0] * 3


def test_run_returns_what_no_task_reads_and_no_handle_holds(inline: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    low = graph.data(-2)
    norm = graph.add(abs, low.read)
    graph.add(min, low.readwrite, -5)
    graph.add(max, 1, norm)
    assert graph.run(inline) == [2]
    assert low.result() == -5


def test_a_failure_reaches_run_also_where_its_value_is_written_over(ctx: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    number = graph.data(name="number")
    graph.add(int, "no", number.write)
    graph.add(int, "7", number.write)
    with pytest.raises(ValueError, match="invalid literal"):
        graph.run(ctx)
    assert number.result() == 7


def test_a_task_waits_for_those_that_it_is_to_come_after(ctx: hetero.Context, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def slow() -> None:
        time.sleep(0.2)
        mark.touch()

    graph = hetero.graphs.Graph()
    first = graph.add(slow)
    graph.add(mark.exists, after=[first])
    graph.add(mark.exists, after=first)
    assert graph.run(ctx) == [None, True, True]


def test_a_task_does_not_run_after_one_that_failed(ctx: hetero.Context, tmp_path: Path) -> None:
    graph = hetero.graphs.Graph()
    graph.add((tmp_path / "mark").touch, after=[graph.add(int, "no")])
    with pytest.raises(ValueError, match="invalid literal"):
        graph.run(ctx)
    assert not (tmp_path / "mark").exists()


def larger(array: Any) -> Any:
    time.sleep(0.05)
    return array + 1


def test_versions_that_only_tasks_read_are_given_back_while_the_graph_runs() -> None:
    with hetero.Context(devices="1xcpu", history=False, memory_pool_size="400MB") as ctx:
        graph = hetero.graphs.Graph()
        array = graph.data(np.zeros(500_000))
        for _ in range(40):  # 160 MB of versions; what is given back is collected twice a second
            graph.add(larger, array.readwrite)
        graph.run(ctx)
        assert max(use.peak_bytes for use in ctx.usage.values()) < 120_000_000
        assert array.result()[0] == 40.0


def test_values_of_handles_that_nobody_holds_are_not_brought_into_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        load = ctx.driver.load
        monkeypatch.setattr(ctx.driver, "load", lambda item: (loaded.append(item), load(item))[1])
        graph = hetero.graphs.Graph()
        kept, scratch = graph.data(np.zeros(LARGE)), graph.data()
        graph.add(np.add, kept.read, 1, scratch.write)
        graph.add(np.add, kept.readwrite, scratch.read)
        graph.add(np.add, scratch.readwrite, 1)
        del scratch
        graph.run(ctx)
        assert loaded == []
    assert len(loaded) == 1
    assert kept.result().tolist() == [1.0] * LARGE


def test_a_task_that_reads_one_of_several_values_gets_that_one_alone(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace.jsonl.gz"
    with hetero.Context(devices="1xcpu", engine="inline", history=False, trace=trace) as ctx:
        graph = hetero.graphs.Graph()
        quotient, rest = graph.data(), graph.data()
        both = graph.add(divmod, 17, 5, quotient.write, rest.write)
        read = graph.add(abs, rest.read)
        futures = graph.submit(ctx)
        assert (futures[both].result(), futures[read].result(), quotient.result()) == ((3, 2), 2, 3)
        tasks = {task.id: task for task in hetero.graphs.graph(ctx).tasks}
        (part,) = tasks[futures[read].item].needs
        assert tasks[part].needs == (futures[both].item,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("one", "writes a, b and returned 1 value"),
        (("one", "two", "three"), "writes a, b and returned 3 values"),
        (("one", None), "writes a, b and returned None"),
        (None, "writes a, b and returned None"),
    ],
)
def test_a_task_that_returns_too_few_or_too_many_values_is_told(
    inline: hetero.Context, values: object, message: str
) -> None:
    def made() -> object:
        return values

    graph = hetero.graphs.Graph()
    a, b = graph.data(name="a"), graph.data(name="b")
    graph.add(made, a.write, b.write)
    with pytest.raises(BadValueError, match=f"made {message}.*return a tuple of 2 values"):
        graph.run(inline)


def test_a_task_that_changes_in_place_and_returns_nothing_is_told(ctx: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    rows = graph.data([2, 1], name="rows")
    graph.add(list.sort, rows.readwrite)
    with pytest.raises(BadValueError, match=r"sort writes rows and returned None; return the new value"):
        graph.run(ctx)


def test_wrong_uses_of_a_handle_are_refused_in_one_line_and_change_nothing(inline: hetero.Context) -> None:
    graph, other = hetero.graphs.Graph(), hetero.graphs.Graph()
    a, new, strange = graph.data(1, name="a"), graph.data(name="new"), other.data(1, name="strange")
    wrong: list[tuple[str, Any]] = [
        ("reads new, which has no value and which no task before it writes", lambda: graph.add(abs, new.read)),
        ("reads new, which has no value", lambda: graph.add(abs, new.readwrite)),
        ("max uses a in two modes, read and write", lambda: graph.add(max, a.read, 2, a.write)),
        ("max uses a in two modes, readwrite and read", lambda: graph.add(max, a.readwrite, [a.read])),
        ("max writes a twice", lambda: graph.add(max, a.readwrite, a.readwrite)),
        ("strange is a handle of another graph", lambda: graph.add(abs, strange.read)),
        ("abs does not say how it uses a", lambda: graph.add(abs, a)),
        ("abs does not say how it uses a", lambda: graph.add(abs, [a])),
        ("a.readwrite stands inside a list or dict that sum gets", lambda: graph.add(sum, [a.readwrite])),
        ("max gets no argument for a.write", lambda: graph.add(max, 1, key=a.write)),
        ("after= was given 3", lambda: graph.add(abs, 1, after=3)),
        ("after= was given <Data a>", lambda: graph.add(abs, 1, after=[a])),
        ("is of another graph", lambda: graph.add(abs, 1, after=[other.add(abs, 1)])),
        ("is of another graph", lambda: graph.data(other.add(abs, 1))),
        ("abs has split= and writes a", lambda: graph.add(hetero.task(abs, split=list, merge=list), 1, a.write)),
        ("a.commute stands inside a list or dict that sum gets", lambda: graph.add(sum, [a.commute])),
        ("reads new, which has no value", lambda: graph.add(abs, new.commute)),
        ("abs reduces a, which has no operator", lambda: graph.add(abs, 1, a.reduce)),
        ("3 is no operator", lambda: graph.data(operator=3)),  # type: ignore[arg-type]
        ("new has no value, and no task writes it", new.result),
        ("a has no value yet; run the graph first", a.result),
        ("graph.data was given the handle <Data a>", lambda: graph.data(a)),
        ("graph.data was given the handle strange.read", lambda: graph.data(strange.read)),
        ("a.read is no function; give it as it is", lambda: graph.add(abs, a.read())),
        ("a graph cannot run on None; give a Context", lambda: graph.run(None)),  # type: ignore[arg-type]
        ("a graph cannot run on 5", lambda: graph.submit(5)),  # type: ignore[arg-type]
    ]
    for message, call in wrong:
        with pytest.raises(BadValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert len(graph) == 0
    graph.run(inline)
    assert a.result() == 1
    with pytest.raises(BadValueError, match=r"new has no value, and no task writes it; give graph.data a value"):
        new.result()


def test_names_that_a_handle_or_a_node_has_not_are_told_with_those_that_it_has() -> None:
    graph = hetero.graphs.Graph()
    rows = graph.data(1, name="rows")
    node = graph.add(abs, rows.read)
    with pytest.raises(
        AttributeError, match=r"rows has no 'readwrit'; did you mean 'readwrite'\?; allowed: read, write"
    ):
        _ = rows.readwrit  # type: ignore[attr-defined]
    with pytest.raises(
        AttributeError, match=r"a node has no 'result'; its future has: graph.submit\(ctx\)\[node\].result"
    ):
        node.result()  # type: ignore[operator]
    assert not hasattr(node, "strange")


def test_a_handle_that_no_task_writes_has_the_value_that_it_had_when_the_graph_was_submitted(
    ctx: hetero.Context,
) -> None:
    numbers, words, late_number = np.arange(4.0), ["a"], ctx.submit(abs, -3)
    graph = hetero.graphs.Graph()
    held = [graph.data(each) for each in (numbers, words, late_number, graph.add(abs, -4))]
    futures = graph.submit(ctx)
    numbers[:] = 5
    words.append("b")
    assert held[0].result().tolist() == [0, 1, 2, 3]
    assert [each.result() for each in held[1:]] == [["a"], 3, 4]
    held[0].result()[:] = 7
    assert numbers.tolist() == [5] * 4
    with pytest.raises(BadValueError, match=r"<Node 1 abs> was not in the graph when it was submitted"):
        futures[graph.add(abs, 1)]


def test_after_a_submission_that_failed_a_handle_has_no_value(inline: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    total = graph.data(1)
    graph.add(abs, total.readwrite)
    graph.run(inline)
    assert total.result(timeout=1) == 1
    graph.add(hetero.task(abs, memory="900TB"), total.readwrite)
    with pytest.raises(NothingFitsError):
        graph.run(inline)
    with pytest.raises(BadValueError, match="has no value yet"):
        total.result()


def test_a_result_is_waited_for_no_longer_than_asked() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        graph = hetero.graphs.Graph()
        words = graph.data()
        graph.add(late, 0.5, "a", words.write)
        graph.submit(ctx)
        with pytest.raises(TimeoutError):
            words.result(timeout=0.001)
        assert words.result(timeout=60) == ["a"]


def test_with_the_inline_engine_versions_are_given_back_as_they_are_read_for_the_last_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with hetero.Context(devices="1xcpu", engine="inline", history=False) as ctx:
        held: list[int] = []

        def seen(array: Any) -> Any:
            held.append(sum(use.used_bytes for use in ctx.driver.engine.usage().values()))
            return array + 1

        graph = hetero.graphs.Graph()
        array = graph.data(np.zeros(LARGE))
        for _ in range(20):
            graph.add(seen, array.readwrite)
        graph.run(ctx)
        assert array.result()[0] == 20.0
        assert max(held) <= 4 * LARGE * 8


def test_a_handle_is_no_argument_of_a_context() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        data = hetero.graphs.Graph().data(1, name="rows")
        for given in (data, data.read):
            with pytest.raises(SerialisationError, match="the handle rows cannot travel"):
                ctx.submit(repr, given)


def laid_out(array: Any) -> tuple[int, ...]:
    strides: tuple[int, ...] = array.strides
    return strides


def test_arrays_keep_their_order_in_memory(ctx: hetero.Context) -> None:
    for shape in ((3, 4), (LARGE, 4)):
        array = np.asfortranarray(np.ones(shape))
        graph = hetero.graphs.Graph()
        handle, strides = graph.data(array), graph.data()
        graph.add(laid_out, handle.read, strides.write)
        graph.add(same, handle.readwrite)
        graph.run(ctx)
        assert strides.result() == handle.result().strides == array.strides


def raised(array: Any, mark: str) -> Any:
    """Raise an array in place; end the worker in the middle of that where the mark is not there yet."""
    array[: len(array) // 2] += 1
    if mark and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    array[len(array) // 2 :] += 1
    return array


def test_a_worker_that_dies_in_the_middle_of_a_change_in_shared_memory_leaves_the_value_before(tmp_path: Path) -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        graph = hetero.graphs.Graph()
        counts, before = graph.data(np.zeros(LARGE)), graph.data()
        for step in range(8):  # the second of those that a worker runs is the first that it runs in shared memory
            graph.add(raised, counts.readwrite, str(tmp_path / str(step)) if step in (3, 6) else "")
            if step == 2:
                graph.add(np.copy, counts.read, before.write)
        graph.run(ctx)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["3", "6"]
        assert counts.result().tolist() == [8.0] * LARGE
        assert before.result().tolist() == [3.0] * LARGE


def shared_mapping(array: Any) -> bool:
    """Return whether an array lies in memory that is shared with other processes."""
    address = array.ctypes.data
    with open("/proc/self/maps") as maps:
        rows = [line.split() for line in maps]
    ranges = [([int(end, 16) for end in row[0].split("-")], row[1]) for row in rows]
    return any(low <= address < high and rights.endswith("s") for (low, high), rights in ranges)


def marked(array: Any) -> Any:
    array[array.sum().astype(int)] = shared_mapping(array)
    return array


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_array_that_is_changed_in_place_lies_where_the_result_will() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        graph = hetero.graphs.Graph()
        given = np.zeros(LARGE)
        array = graph.data(given)
        for _ in range(4):
            graph.add(marked, array.readwrite)
        graph.run(ctx)
        assert array.result()[:4].tolist() == [1, 1, 1, 0]  # the first is not known yet to return what it changes
        assert not given.any()


def kept_here() -> list[Any]:
    """Return what this process keeps."""
    return vars(sys).setdefault("_kept_arrays", [])  # type: ignore[no-any-return]


def kept_and_raised(array: Any) -> Any:
    """Raise an array in place, and every one that was seen before, which only this worker has."""
    for each in kept_here():
        each += 100
    array += 1
    kept_here().append(array)
    return array


def seen_before(array: Any) -> Any:
    return [float(each.max()) for each in kept_here()]


def test_a_task_that_keeps_an_array_changes_no_value_of_the_graph_later() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        graph = hetero.graphs.Graph()
        array, versions = graph.data(np.zeros(LARGE)), [graph.data() for _ in range(5)]
        for each in versions:
            graph.add(kept_and_raised, array.readwrite)
            graph.add(np.copy, array.read, each.write)
        kept = graph.data()
        graph.add(seen_before, array.read, kept.write)
        graph.run(ctx)
        assert [float(each.result().max()) for each in versions] == [1, 2, 3, 4, 5]
        assert array.result().tolist() == [5.0] * LARGE
        assert kept.result() == [401, 302, 203, 104, 5]


def raised_and_other(array: Any, other: Any) -> Any:
    array += 1
    return np.concatenate([array, other])


def test_a_value_that_a_task_changes_and_reads_as_well_is_read_as_it_was(ctx: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    start = graph.add(np.zeros, LARGE)
    array = graph.data(start)
    graph.add(raised_and_other, array.readwrite, start)
    graph.run(ctx)
    assert array.result().tolist() == [1.0] * LARGE + [0.0] * LARGE


def other_form(array: Any, form: str) -> Any:
    """Change an array in place and return it, or a part of it, or another one."""
    array += 1
    return {"same": array, "turned": array.T, "part": array[1:], "other": array + 0, "first": array[:1]}[form]


def test_what_a_task_returns_of_an_array_that_it_changed_is_that_and_nothing_else(ctx: hetero.Context) -> None:
    given = np.arange(300 * 300, dtype=float).reshape(300, 300)
    forms = ["same", "same", "turned", "same", "part", "same", "other", "same", "turned", "first", "same"]
    graph, wanted = hetero.graphs.Graph(), given.copy()
    array, versions = graph.data(given), [graph.data() for _ in forms]
    for each, form in zip(versions, forms, strict=True):
        graph.add(other_form, array.readwrite, form)
        graph.add(np.copy, array.read, each.write)
    graph.run(ctx)
    for each, form in zip(versions, forms, strict=True):
        wanted = other_form(wanted.copy(order="K"), form)
        assert np.array_equal(each.result(), wanted)


def two_raised(one: Any, other: Any) -> Any:
    one += 1
    other += 2
    return other, one


def test_several_arrays_that_are_changed_in_place_change_places_as_they_are_returned(ctx: hetero.Context) -> None:
    graph = hetero.graphs.Graph()
    one, other = graph.data(np.zeros(LARGE)), graph.data(np.ones(LARGE))
    for _ in range(5):
        graph.add(two_raised, one.readwrite, other.readwrite)
    graph.run(ctx)
    expected = 0.0, 1.0
    for _ in range(5):
        expected = expected[1] + 2, expected[0] + 1
    assert (one.result().tolist(), other.result().tolist()) == ([expected[0]] * LARGE, [expected[1]] * LARGE)


def test_a_function_travels_once_for_all_data_that_it_writes() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        graph = hetero.graphs.Graph()
        tiles = [graph.data(np.zeros(5), name=f"tile {at}") for at in range(6)]
        for tile in tiles:
            graph.add(raised, tile.readwrite, "")
        graph.run(ctx)
        assert ctx.driver.engine.counters["functions"] == 1


def test_versions_are_given_back_as_soon_as_nobody_needs_them() -> None:
    with hetero.Context(devices="1xcpu", history=False) as ctx:
        graph = hetero.graphs.Graph()
        array = graph.data(np.zeros(LARGE))
        for _ in range(60):
            graph.add(raised, array.readwrite, "")
        graph.run(ctx)
        assert ctx.driver.engine.usage()[HOST_NODE].peak_bytes < 12 * 8 * (LARGE + 1024)
