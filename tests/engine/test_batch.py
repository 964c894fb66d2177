"""Bulk work over real workers: results in order, bad records found, merges the same to the last bit."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.batch.base import BadRecordsError, Piece, PriceLimitError, Source, TimeLimitError
from hetero.batch.merges import Histogram, TopK
from hetero.batch.options import BatchLimits, BatchOptions
from hetero.errors import BadValueError, HeteroError, NothingFitsError
from tests.flat_options import batch_options


@pytest.fixture(scope="module")
def ctx() -> Iterator[hetero.Context]:
    with hetero.Context(devices="1xcpu,1xcpu*0.5", history=False) as context:
        yield context


@pytest.fixture(scope="module")
def threads() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as context:
        yield context


def doubled(batch: list[int]) -> list[int]:
    return [2 * x for x in batch]


@pytest.mark.parametrize("batch", ["auto", 1, 7, 1000, {"cpu:0": 3, "cpu": 50}])
def test_results_come_in_the_order_of_the_records(ctx: hetero.Context, batch: Any) -> None:
    assert ctx.map_batches(doubled, range(500), batch=batch).value == [2 * x for x in range(500)]


def test_a_function_gets_no_more_records_than_the_size_that_was_asked_for(threads: hetero.Context) -> None:
    found = threads.map_batches(
        lambda batch: [len(batch)] * len(batch), range(100), batch=8, options=BatchOptions(learn=False)
    )
    assert max(found.value) == 8


def test_arrays_come_in_as_arrays_and_go_out_as_one(ctx: hetero.Context, rng: np.random.Generator) -> None:
    rows = rng.random((3000, 8))
    np.testing.assert_array_equal(ctx.map_batches(lambda x: x.sum(1), rows).value, rows.sum(1))


def test_columns_come_in_and_go_out_as_columns(threads: hetero.Context) -> None:
    table = {"a": np.arange(100), "b": np.arange(100) / 2}
    found = threads.map_batches(lambda batch: {"c": batch["a"] + batch["b"]}, table).value
    np.testing.assert_array_equal(found["c"], table["a"] + table["b"])


def test_a_generator_is_read_as_its_records_are_needed(threads: hetero.Context) -> None:
    made: list[int] = []

    def numbers() -> Iterator[bytes]:
        for number in range(400):
            made.append(number)
            yield b"x" * 100_000

    taken, ahead = [0], [0]

    def take(sizes: list[int]) -> None:
        taken[0] += len(sizes)
        ahead.append(len(made) - taken[0])
        time.sleep(0.01)

    threads.map_batches(
        lambda batch: [len(x) for x in batch],
        numbers(),
        output=take,
        options=BatchOptions(part=10),
        limits=BatchLimits(memory="10MB"),
        batch=5,
    )
    assert taken == [400]
    assert max(ahead) < 200


def test_a_class_is_set_up_once_on_each_worker(ctx: hetero.Context, tmp_path: Path) -> None:
    class Model:
        def setup(self, device: hetero.inspect.Device) -> None:
            self.where = device.short
            with (tmp_path / "setups").open("a") as file:
                file.write(f"{device.short}\n")

        def __call__(self, batch: list[int]) -> list[str]:
            time.sleep(0.01)
            return [self.where] * len(batch)

    found = ctx.map_batches(Model, range(100), batch=5).value
    setups = (tmp_path / "setups").read_text().split()
    assert sorted(setups) == sorted(set(setups))
    assert set(found) <= set(setups) <= {"cpu:0", "cpu:1"}


def test_the_sizes_found_are_begun_with_the_next_time(threads: hetero.Context) -> None:
    def work(batch: list[int]) -> list[int]:
        time.sleep(0.002 + 1e-5 * len(batch))
        return batch

    first = threads.map_batches(work, range(8000))
    second = threads.map_batches(work, range(8000))
    assert sum(stats.calls for stats in second.devices) < sum(stats.calls for stats in first.devices)


def refuses(bad: set[int]) -> Any:
    def work(batch: list[int]) -> list[int]:
        if bad.intersection(batch):
            raise ValueError("a bad one")
        return batch

    return work


@pytest.mark.parametrize("bad", [{7}, {0, 999}, {400, 401, 402}])
def test_bad_records_are_set_aside_and_all_others_have_results(ctx: hetero.Context, bad: set[int]) -> None:
    outcome = ctx.map_batches(refuses(bad), range(1000), batch=64, errors=3)
    assert [record.item for record in outcome.bad] == sorted(bad)
    assert outcome.value == [x for x in range(1000) if x not in bad]
    assert outcome.bad[0].reason == "ValueError: a bad one"


def test_one_bad_record_costs_two_calls_for_each_halving(threads: hetero.Context) -> None:
    outcome = threads.map_batches(refuses({777}), range(4096), batch=256, errors=1, options=BatchOptions(learn=False))
    assert sum(stats.again for stats in outcome.devices) <= 2 * 8


def test_one_bad_record_more_than_allowed_stops_the_run_and_is_named(threads: hetero.Context) -> None:
    with pytest.raises(
        BadRecordsError, match=r"record 31 \(items\[31\]\): ValueError: a bad one; .*errors=10"
    ) as caught:
        threads.map_batches(refuses({31}), range(100))
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_that_happens_once_costs_no_record(threads: hetero.Context, tmp_path: Path) -> None:
    mark = tmp_path / "failed"

    def flaky(batch: list[int]) -> list[int]:
        if 50 in batch and not mark.exists():
            mark.touch()
            raise OSError("just now")
        return batch

    assert threads.map_batches(flaky, range(100), batch=1).value == list(range(100))
    assert mark.exists()


def test_results_that_are_not_finite_are_set_aside_when_asked(threads: hetero.Context) -> None:
    rows = np.ones((100, 3))
    rows[17, 1], rows[60, 0] = 0.0, -1.0

    def logarithm(x: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.log(x)

    outcome = threads.map_batches(logarithm, rows, errors="5%", options=BatchOptions(check_finite=True))
    assert [(record.item, record.reason) for record in outcome.bad] == [
        (17, "the result holds an infinity"),
        (60, "the result holds NaN"),
    ]
    assert len(outcome.value) == 98


def test_a_batch_that_does_not_fit_is_halved_and_the_size_is_remembered(
    threads: hetero.Context, tmp_path: Path
) -> None:
    refused = tmp_path / "refused"

    def work(batch: list[int]) -> list[int]:
        if len(batch) > 20:
            with refused.open("a") as file:
                file.write("x")
            raise MemoryError(f"{len(batch)} do not fit")
        return batch

    assert threads.map_batches(work, range(2000), batch=100).value == list(range(2000))
    first = refused.stat().st_size
    assert 1 <= first < 20
    assert threads.map_batches(work, range(2000), batch=100).value == list(range(2000))
    assert refused.stat().st_size == first


def test_a_batch_that_kills_its_worker_is_found_like_any_other(ctx: hetero.Context) -> None:
    def deadly(batch: list[int]) -> list[int]:
        if 123 in batch:
            os._exit(9)
        return batch

    outcome = ctx.map_batches(deadly, range(200), batch=50, errors=1)
    assert [record.item for record in outcome.bad] == [123]
    assert "died" in outcome.bad[0].reason
    assert len(outcome.value) == 199


def test_fewer_results_than_records_are_refused_with_the_place(threads: hetero.Context) -> None:
    with pytest.raises(BadRecordsError, match="the function gave 0 results for 1 records"):
        threads.map_batches(lambda batch: [x for x in batch if x != 9], range(50))
    kept = threads.map_batches(
        lambda batch: [x for x in batch if x % 2], range(50), options=BatchOptions(same_count=False)
    )
    assert kept.value == list(range(1, 50, 2))


def test_a_sum_is_the_same_to_the_last_bit_however_it_is_cut(ctx: hetero.Context, rng: np.random.Generator) -> None:
    values = rng.standard_normal(5000) * 10.0 ** rng.integers(-8, 8, 5000)
    totals = {ctx.map_batches(lambda x: x, values, merge="sum", batch=size).value for size in (1000, 37, "auto")}
    assert len(totals) == 1
    assert totals.pop() == pytest.approx(values.sum())


def test_merges_are_what_the_whole_would_have_given(threads: hetero.Context, rng: np.random.Generator) -> None:
    values = rng.random(3000)
    work = threads.map_batches
    assert work(lambda x: x, values, merge="mean").value == pytest.approx(values.mean())
    assert work(lambda x: x > 0.5, values, merge="count").value == int((values > 0.5).sum())
    best = [item for item, _ in work(lambda x: x, values, merge=TopK(5)).value]
    assert best == np.argsort(-values, kind="stable")[:5].tolist()
    edges = [0.0, 0.2, 0.7, 1.0]
    np.testing.assert_array_equal(
        work(lambda x: x, values, merge=Histogram(edges)).value, np.histogram(values, edges)[0]
    )
    words = [chr(97 + number % 26) for number in range(300)]
    assert work(lambda batch: batch, words, merge=lambda a, b: a + b, batch=7).value == "".join(words)


def test_a_merge_that_is_not_associative_is_refused_when_asked(threads: hetero.Context) -> None:
    with pytest.raises(BadValueError, match="not associative"):
        threads.map_batches(
            lambda x: x, np.arange(10.0), merge=lambda a, b: a - b, options=BatchOptions(check_merge=True)
        )
    found = threads.map_batches(
        doubled, (x for x in range(10)), merge=lambda a, b: a + b, options=BatchOptions(check_merge=True)
    )
    assert found.value == 90


def test_a_merge_brings_home_less_than_the_results(ctx: hetero.Context) -> None:
    rows = np.ones((4000, 50))
    outcome = ctx.map_batches(lambda x: x, rows, merge="sum", batch=500)
    np.testing.assert_array_equal(outcome.value, rows.sum(0))
    assert sum(stats.raw_bytes for stats in outcome.devices) == rows.nbytes
    assert sum(stats.home_bytes for stats in outcome.devices) < rows.nbytes / 10


def test_a_device_far_too_slow_does_not_hold_the_others_up() -> None:
    def work(batch: list[int]) -> list[int]:
        time.sleep((60.0 if hetero.get_current_device().index else 0.001) * len(batch))
        return batch

    with hetero.Context(devices="2xcpu", history=False) as ctx:
        begin_s = time.monotonic()
        assert ctx.map_batches(work, range(300)).value == list(range(300))
        assert time.monotonic() - begin_s < 20.0


def test_a_function_takes_results_in_order_while_the_run_goes_on(threads: hetero.Context) -> None:
    taken: list[int] = []
    threads.map_batches(doubled, range(1000), output=taken.extend, options=BatchOptions(part=100))
    assert taken == [2 * x for x in range(1000)]


def test_a_time_limit_ends_the_run_and_says_how_far_it_came(threads: hetero.Context) -> None:
    def slow(batch: list[int]) -> list[int]:
        time.sleep(0.05)
        return batch

    with pytest.raises(TimeLimitError, match=r"not done within 0.3 s: [0-9]+ records have results"):
        threads.map_batches(slow, range(10_000), batch=1, limits=BatchLimits(time_limit=0.3))


def test_a_share_leaves_the_device_to_others_for_the_rest_of_the_time(threads: hetero.Context) -> None:
    def slow(batch: list[int]) -> list[int]:
        time.sleep(0.01)
        return batch

    outcome = threads.map_batches(
        slow, range(40), batch=1, limits=BatchLimits(share="25%"), options=BatchOptions(learn=False)
    )
    assert outcome.seconds > 0.9 * 40 * 0.04 / 2


def test_outside_of_its_hours_a_run_begins_no_batch(threads: hetero.Context) -> None:
    later = datetime.now() + timedelta(hours=2)
    hours = f"{later:%H:%M}-{later + timedelta(hours=1):%H:%M}"
    with pytest.raises(TimeLimitError, match=r"0 records have results"):
        threads.map_batches(doubled, range(10), limits=BatchLimits(hours=hours, time_limit=0.2))


class Ends(Source):
    """Says that it has ten records and gives four."""

    length = 10

    def identity(self) -> str:
        return "ends"

    def read(self, begin: int = 0) -> Iterator[Piece]:
        yield Piece([0, 1, 2, 3], "some.file", 0)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([], "the source is empty"),
        (iter([]), "the source is empty"),
        (7, "a int gives no records"),
        ("there/is/none.npy", "cannot be read as an array"),
        ("some.xyz", "is of no kind that can be read"),
        (Ends(), "the source ended after 4 of 10 records"),
    ],
)
def test_a_source_that_cannot_be_read_is_told_in_one_line(threads: hetero.Context, source: Any, words: str) -> None:
    with pytest.raises(HeteroError, match=words) as caught:
        threads.map_batches(doubled, source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "batch=0 is not allowed"),
        ({"batch": "atuo"}, "batch='atuo' is not allowed"),
        ({"errors": "many"}, "errors='many' is not allowed"),
        ({"merge": "summ"}, "merge='summ' is not allowed; did you mean 'sum'"),
        ({"output": "folder", "form": "jsonn"}, "'jsonn' is no format of results; did you mean 'jsonl'"),
        ({"resume": True, "overwrite": True}, "resume and overwrite exclude one another"),
        ({"share": 0}, "share=0 is not allowed"),
        ({"hours": "25:00-3"}, "hours='25:00-3' is not allowed"),
        ({"precision": "int3"}, "precision='int3' is not allowed"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(
    threads: hetero.Context, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadValueError, match=words):
        threads.map_batches(doubled, [1], **batch_options(**options))


def test_devices_that_run_no_python_are_refused() -> None:
    with pytest.raises(NothingFitsError, match="runs Python functions"):
        hetero.batch.map_batches(doubled, [1], devices="2xnull")


def test_files_are_written_with_a_manifest_and_a_quarantine(threads: hetero.Context, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = threads.map_batches(refuses({3}), range(10), output=out, options=BatchOptions(part=4), errors=1)
    assert outcome.value == out
    assert sorted(path.name for path in out.iterdir()) == [
        "manifest.json", "part-00000.jsonl", "part-00001.jsonl", "part-00002.jsonl", "quarantine.jsonl",
    ]  # fmt: skip
    lines = [line for part in sorted(out.glob("part-*")) for line in part.read_text().splitlines()]
    assert lines == [str(x) for x in range(10) if x != 3]
    assert json.loads((out / "quarantine.jsonl").read_text())["item"] == 3
    assert json.loads((out / "manifest.json").read_text())["rows"] == 9


def test_a_folder_that_holds_something_is_refused_resumed_or_overwritten(
    threads: hetero.Context, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    threads.map_batches(doubled, range(10), output=out)
    with pytest.raises(BadValueError, match="holds a complete run; resume, overwrite"):
        threads.map_batches(doubled, range(10), output=out)
    assert threads.map_batches(doubled, range(10), output=out, resume=True).resumed == 10
    with pytest.raises(BadValueError, match=r"holds results of sequence of 10, .*; the source is now sequence of 11"):
        threads.map_batches(doubled, range(11), output=out, resume=True)
    threads.map_batches(doubled, range(11), output=out, options=BatchOptions(overwrite=True))
    assert len((out / "part-00000.jsonl").read_text().splitlines()) == 11


def test_files_of_others_are_never_removed(threads: hetero.Context, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    for way in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(BadValueError, match=r"files of others, such as letter.txt"):
            threads.map_batches(doubled, range(10), output=tmp_path, **batch_options(**way))
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_arrays_are_written_as_arrays(threads: hetero.Context, tmp_path: Path) -> None:
    rows = np.arange(20.0).reshape(10, 2)
    threads.map_batches(lambda x: 2 * x, rows, output=tmp_path / "out", form="npy", options=BatchOptions(part=6))
    parts = [np.load(path) for path in sorted((tmp_path / "out").glob("*.npy"))]
    np.testing.assert_array_equal(np.concatenate(parts), 2 * rows)


def test_a_result_that_does_not_go_into_json_is_named_and_nothing_half_written(
    threads: hetero.Context, tmp_path: Path
) -> None:
    with pytest.raises(HeteroError, match="result 0 of items 0 to 10 does not go into JSON"):
        threads.map_batches(lambda batch: [{1, 2}] * len(batch), range(10), output=tmp_path / "out")
    assert not list((tmp_path / "out").glob("part-*"))


def test_records_of_equal_cost_are_packed_not_of_equal_number(threads: hetero.Context) -> None:
    texts = ["x" * (1 + number % 97) for number in range(500)]
    costs = threads.map_batches(
        lambda batch: [sum(map(len, batch))] * len(batch), texts, options=BatchOptions(cost=len, learn=False), batch=200
    ).value
    assert len(costs) == len(texts)
    assert max(costs) <= 200


def test_ended_by_an_exception_of_the_sink_it_leaves_no_thread(threads: hetero.Context) -> None:
    def full(_: Any) -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        threads.map_batches(doubled, range(100_000), output=full, options=BatchOptions(part=10))
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("hetero-reader", "hetero-writer"))]


def test_a_run_that_costs_more_than_allowed_ends_and_goes_on_when_more_is_allowed(
    threads: hetero.Context, tmp_path: Path
) -> None:
    out, prices = tmp_path / "out", {"cpu:0": 1800.0, "cpu": 1800.0}

    def slowly(batch: list[int]) -> list[int]:
        time.sleep(0.01 * len(batch))
        return batch

    with pytest.raises(PriceLimitError, match=r"not done for \$0.3: \d+ records have results"):
        threads.map_batches(
            slowly,
            range(200),
            batch=4,
            options=BatchOptions(part=10),
            output=out,
            limits=BatchLimits(price=0.3, usd_per_hour=prices),
        )
    found = threads.map_batches(
        slowly,
        range(200),
        batch=4,
        options=BatchOptions(part=10),
        output=out,
        resume=True,
        limits=BatchLimits(usd_per_hour=prices),
    )
    lines = [line for path in sorted(out.glob("part-*")) for line in path.read_text().splitlines()]
    assert lines == [str(x) for x in range(200)]
    assert 0.0 < found.usd <= found.seconds


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"price": 1.0}, "price=1.0 needs to know what devices cost"),
        ({"price": -1, "usd_per_hour": {"cpu": 1}}, "price=-1 is not allowed"),
        ({"usd_per_hour": {"cpu": 0}}, r"usd_per_hour\['cpu'\]=0 is not allowed"),
        ({"share": "fre"}, "share='fre' is not allowed"),
    ],
)
def test_wrong_limits_are_told_before_anything_runs(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadValueError, match=words):
        hetero.batch.map_batches(doubled, range(3), **batch_options(**options))


def test_a_run_that_takes_what_others_leave_gives_the_same(ctx: hetero.Context) -> None:
    assert ctx.map_batches(doubled, range(300), limits=BatchLimits(share="free")).value == [2 * x for x in range(300)]


def scaled(factor: float) -> Callable[[list[Any]], list[Any]]:
    return lambda batch: [factor * x for x in batch]


class Times:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, batch: list[Any]) -> list[Any]:
        return [self.factor * x for x in batch]


def times(factor: float, batch: list[Any]) -> list[Any]:
    return [factor * x for x in batch]


def numbers(last: int) -> Callable[[], Iterator[int]]:
    return lambda: iter([*range(199), last])


def changed(places: int, value: int) -> list[int]:
    return [value if place == places else place for place in range(200)]


OTHERS: dict[str, Callable[[int], tuple[Any, Any, dict[str, Any]]]] = {
    "a closure": lambda n: (scaled(n), range(200), {}),
    "an object": lambda n: (Times(n), range(200), {}),
    "a partial": lambda n: (functools.partial(times, n), range(200), {}),
    "a stage": lambda n: (hetero.batch.pipeline(scaled(1), scaled(n)), range(200), {}),
    "a record in a list": lambda n: (scaled(1), changed(4, n), {}),
    "a record in an array": lambda n: (scaled(1), np.array(changed(4, n)), {}),
    "a record in a column": lambda n: (lambda b: b["a"], {"a": np.array(changed(4, n))}, {}),
    "what a generator makes": lambda n: (scaled(1), numbers(n), {}),
    "whether results are checked": lambda n: (scaled(1), range(200), {"check_finite": n > 1}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_run_that_is_resumed_takes_no_results_of_another_job(
    what: str, threads: hetero.Context, tmp_path: Path
) -> None:
    def run(number: int, resume: bool) -> Any:
        fn, source, options = OTHERS[what](number)
        return threads.map_batches(
            fn, source, output=tmp_path / "out", options=BatchOptions(part=50, **options), resume=resume
        )

    assert run(1, resume=False).resumed == 0
    assert run(1, resume=True).resumed == 200
    with pytest.raises(BadValueError, match=r"another function or other options|the source is now"):
        run(2, resume=True)


@pytest.mark.parametrize(("k", "resumed"), [(2, True), (5, False)])
def test_a_merge_that_is_resumed_takes_no_states_of_another_merge(
    k: int, resumed: bool, threads: hetero.Context, tmp_path: Path
) -> None:
    out, mended = tmp_path / "out", tmp_path / "mended"

    def fails_at_the_end(batch: list[int]) -> list[int]:
        if 0 in batch and not mended.exists():
            deadline_s = time.monotonic() + 30
            while not any(out.glob("states/**/part-0*")) and time.monotonic() < deadline_s:
                time.sleep(0.01)
            raise ValueError("not yet")
        return batch

    def top(k: int) -> Any:
        source = range(199, -1, -1)
        return threads.map_batches(
            fails_at_the_end, source, merge=TopK(k), output=out, options=BatchOptions(part=50), batch=10, resume=True
        )

    with pytest.raises(BadRecordsError):
        top(2)
    mended.touch()
    found = top(k)
    assert found.value == [(place, 199 - place) for place in range(k)]
    assert bool(found.resumed) is resumed


def test_a_plain_iterator_is_not_taken_for_another_one(threads: hetero.Context, tmp_path: Path) -> None:
    def run(last: int) -> Any:
        source = (x for x in [*range(199), last])
        return threads.map_batches(
            scaled(1), source, output=tmp_path / "out", options=BatchOptions(part=50), resume=True
        )

    run(1)
    with pytest.raises(BadValueError, match="without name="):
        run(2)
