"""Each item's result is committed once, whole parts only, and only to the job that they are of."""

from __future__ import annotations

import errno
import json
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hetero.batch import committing
from hetero.batch.base import BadRecord, Found, Job, Part, Place, Sink
from hetero.batch.committing import Committer, Entry, Journal, MergeSink
from hetero.batch.merges import Fold, Sum
from hetero.batch.sinks import (
    MANIFEST,
    QUARANTINE,
    UNFINISHED,
    CallSink,
    CollectSink,
    FolderSink,
    JsonLinesSink,
    NpySink,
)
from hetero.errors import BadValueError, HeteroError
from hetero.floor.errors import FileError, SerialisationError
from hetero.stores.files import FileStore, ForeignFileError

JOB = Job("key of job A", part_items=4, length=10, source="numbers")
OTHER = Job("key of job B", part_items=4, length=10, source="numbers")


def entry(begin: int, end: int, bad: Sequence[int] = ()) -> Entry:
    """Return what the items from begin to end gave: their own numbers times ten."""
    records = tuple(BadRecord(item, Place("numbers", item), "odd") for item in bad)
    results = [10 * item for item in range(begin, end) if item not in bad]
    return Entry(begin, end, results or None, records)


class Recorded(Sink):
    """A sink in memory that records what it is told, in order."""

    def __init__(self, there: dict[int, int] | None = None) -> None:
        self.there = there or {}
        self.parts: list[Part] = []
        self.ended = ""

    def open(self, job: Job, found: Found) -> dict[int, int]:
        return self.there

    def write(self, part: Part) -> None:
        self.parts.append(part)

    def close(self) -> str:
        self.ended = "closed"
        return "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def bad(self) -> tuple[BadRecord, ...]:
        return (BadRecord(0, Place("numbers", 0), "of before"),) if self.there else ()

    def rows(self) -> list[tuple[int, int, int, list[int]]]:
        return [(p.number, p.begin, p.end, [each for result in p.results for each in result]) for p in self.parts]


class Durable(Recorded):
    """A sink that keeps its parts by number."""

    durable: ClassVar[bool] = True


def committed(
    sink: Sink, entries: Sequence[Entry], *, job: Job = JOB, journal: Journal | None = None, ordered: bool = True,
    spill: bool = False, seconds: float = 0.0,
) -> Committer:  # fmt: skip
    committer = Committer(sink, job, journal, ordered, spill)
    committer.resume({})
    for each in entries:
        committer.take(each, seconds)
    committer.finish()
    return committer


# --- parts -------------------------------------------------------------------------------------------------


def test_batches_that_end_in_any_order_become_whole_parts_in_the_order_of_the_items() -> None:
    sink = Recorded()
    done = committed(sink, [entry(8, 10), entry(6, 8), entry(2, 4), entry(4, 6), entry(0, 2)])
    assert sink.rows() == [(0, 0, 4, [0, 10, 20, 30]), (1, 4, 8, [40, 50, 60, 70]), (2, 8, 10, [80, 90])]
    assert sink.ended == "closed"
    assert done.held_bytes == 0
    assert done.writing == 0


@pytest.mark.parametrize(("sink", "ordered"), [(Durable(), True), (Recorded(), False)])
def test_a_part_need_not_wait_for_those_before_it_where_its_sink_keeps_numbers(sink: Recorded, ordered: bool) -> None:
    committed(sink, [entry(4, 8), entry(0, 4), entry(8, 10)], ordered=ordered)
    assert [part.number for part in sink.parts] == [1, 0, 2]


def test_a_part_is_written_only_when_its_last_item_is_there() -> None:
    sink = Recorded()
    committer = Committer(sink, JOB, None, True, False)
    committer.take(entry(0, 2), 0.0)
    committer.take(entry(3, 4), 0.0)
    committer._writer.submit(int).result()
    assert not sink.parts
    assert committer.held_bytes > 0
    committer.take(entry(2, 3), 0.0)
    committer._writer.submit(int).result()
    assert [part.number for part in sink.parts] == [0]
    assert committer.held_bytes == 0
    committer.abort()
    assert sink.ended == "aborted"


def test_the_last_part_of_a_source_of_unknown_length_is_written_at_the_end() -> None:
    sink = Recorded()
    committed(sink, [entry(0, 4), entry(4, 6)], job=Job("key", 4, None))
    assert sink.rows() == [(0, 0, 4, [0, 10, 20, 30]), (1, 4, 6, [40, 50])]


def test_bad_records_travel_with_their_part_and_count_as_items() -> None:
    sink = Recorded()
    done = committed(sink, [entry(2, 4, bad=[2, 3]), entry(0, 2, bad=[1]), entry(4, 8), entry(8, 10)])
    assert sink.rows()[0] == (0, 0, 4, [0])
    assert [record.item for record in sink.parts[0].bad] == [1, 2, 3]
    assert [record.item for record in done.bad] == [2, 3, 1]
    assert [len(part.results) for part in sink.parts] == [1, 1, 1]
    assert done.held_bytes == 0


def test_what_a_write_raises_reaches_whoever_goes_on() -> None:
    class Full(Recorded):
        def write(self, part: Part) -> None:
            raise HeteroError("the disk is full")

    committer = Committer(Full(), JOB, None, True, False)
    committer.take(entry(0, 4), 0.0)
    committer._writer.submit(int).result()
    with pytest.raises(HeteroError, match="the disk is full"):
        committer.check()
    committer.take(entry(4, 8), 0.0)
    with pytest.raises(HeteroError, match="the disk is full"):
        committer.finish()
    committer.abort()


def test_a_run_whose_write_failed_takes_no_further_part() -> None:
    class Full(Recorded):
        def write(self, part: Part) -> None:
            raise HeteroError("the disk is full")

    committer = Committer(Full(), JOB, None, True, False)
    committer.take(entry(0, 4), 0.0)
    committer._writer.submit(int).result()
    with pytest.raises(HeteroError, match="the disk is full"):
        committer.take(entry(4, 8), 0.0)
    committer.abort()


def test_the_last_part_of_a_known_length_is_written_when_its_items_are_there() -> None:
    sink = Durable()
    committer = Committer(sink, JOB, None, True, False)
    committer.take(entry(8, 10), 0.0)
    committer._writer.submit(int).result()
    assert sink.rows() == [(2, 8, 10, [80, 90])]
    committer.abort()


def test_writes_that_wait_are_counted_and_written_before_the_end() -> None:
    go = threading.Event()

    class Slow(Recorded):
        def write(self, part: Part) -> None:
            assert go.wait(60)
            super().write(part)

    sink = Slow()
    committer = Committer(sink, JOB, None, True, False)
    for each in (entry(0, 4), entry(4, 8)):
        committer.take(each, 0.0)
    assert committer.writing == 2
    committer.check()
    go.set()
    committer.abort()
    assert committer.writing == 0
    assert [part.number for part in sink.parts] == [0, 1]


# --- resuming ----------------------------------------------------------------------------------------------


def test_a_resumed_run_takes_no_item_of_a_part_that_is_there_again(tmp_path: Path) -> None:
    """Batches of a part that is written may still lie in the journal when a run is killed between the two."""
    journal = Journal(tmp_path)
    journal.put(entry(0, 2))
    journal.put(entry(4, 6, bad=[5]))
    sink = Recorded({0: 4})
    committer = Committer(sink, JOB, journal, True, False)
    assert committer.resume({0: 4}) == [(0, 4), (4, 6)]
    assert [record.item for record in committer.bad] == [0, 5]
    committer.take(entry(6, 8), 0.0)
    committer.take(entry(8, 10), 0.0)
    committer.finish()
    assert sink.rows() == [(1, 4, 8, [40, 60, 70]), (2, 8, 10, [80, 90])]
    assert [each.begin for each in Journal(tmp_path).entries()] == [0], "only a written part's batches are dropped"


def test_done_items_of_an_earlier_run_are_told_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for each in (entry(9, 10), entry(6, 8), entry(1, 2)):
        journal.put(each)
    committer = Committer(Recorded(), JOB, journal, True, False)
    assert committer.resume({1: 8}) == [(1, 2), (4, 8), (9, 10)]
    committer.abort()


def test_parts_go_on_in_order_behind_those_of_an_earlier_run() -> None:
    sink = Recorded({1: 8})
    committer = Committer(sink, JOB, None, True, False)
    committer.resume({1: 8})
    committer.take(entry(8, 10), 0.0)
    committer.take(entry(0, 4), 0.0)
    committer.finish()
    assert [part.number for part in sink.parts] == [0, 2]


# --- the journal -------------------------------------------------------------------------------------------


def test_a_dear_batch_is_kept_until_its_part_is_written(tmp_path: Path) -> None:
    journal, sink = Journal(tmp_path), Recorded()
    committer = Committer(sink, JOB, journal, True, False)
    committer.take(entry(0, 2), 60.0)
    committer._writer.submit(int).result()
    assert [(each.begin, each.results) for each in journal.entries()] == [(0, [0, 10])]
    committer.take(entry(2, 4), 60.0)
    committer._writer.submit(int).result()
    assert journal.entries() == []
    assert sink.rows() == [(0, 0, 4, [0, 10, 20, 30])]
    committer.abort()


def test_a_batch_leaves_the_journal_only_when_its_part_is_in_the_sink(tmp_path: Path) -> None:
    """A run that is killed between the two finds the batch in one of them."""
    journal, seen = Journal(tmp_path), []

    class Watching(Recorded):
        def write(self, part: Part) -> None:
            seen.append([each.begin for each in journal.entries()])
            super().write(part)

    sink = Watching()
    committed(sink, [entry(0, 4), entry(4, 8), entry(8, 10)], journal=journal, seconds=100.0)
    assert [begins[0] for begins in seen] == [0, 4, 8]
    assert journal.entries() == []


def test_a_cheap_batch_is_done_again_rather_than_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    committer = Committer(Recorded(), JOB, journal, True, False)
    committer.take(entry(0, 2), 0.0)
    committer._writer.submit(int).result()
    assert journal.entries() == []
    assert committer.held_bytes > 0
    committer.abort()


def test_a_batch_is_worth_writing_from_four_times_the_time_that_writing_takes(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    write_s = 5e-3 + 1e8 / 100e6
    assert not journal.worth(3.99 * write_s, 10**8)
    assert journal.worth(4.01 * write_s, 10**8)
    assert not journal.worth(0.0199, 0)
    assert journal.worth(0.0201, 0)


@pytest.mark.parametrize(("items", "took_s"), [(2, 1.005), (2, 0.0), (10_000, 0.0)])
def test_a_journal_learns_how_fast_its_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, items: int, took_s: float
) -> None:
    journal, told = Journal(tmp_path), iter([100.0, 100.0 + took_s])
    monkeypatch.setattr(committing, "monotonic_s", lambda: next(told))
    batch = entry(0, items)
    journal.put(batch)
    nbytes = len(pickle.dumps(batch, protocol=5))
    seen = nbytes / 1.0 if took_s else min(nbytes / 1e-6, 1e9)
    assert journal._bytes_per_s == pytest.approx(0.5 * (100e6 + seen))


def test_a_damaged_batch_is_done_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put(entry(0, 2))
    journal.put(entry(2, 4))
    first = min(path for path in tmp_path.iterdir() if path.is_file())
    first.write_bytes(first.read_bytes()[:-1])
    assert [each.begin for each in journal.entries()] == [2]
    assert not first.exists()
    assert journal.get(2) == [20, 30]


def test_what_others_may_change_is_not_unpickled(tmp_path: Path) -> None:
    """A pickle is a program: whoever may write it, runs as the user who resumes."""
    journal = Journal(tmp_path / "batches")
    journal.put(entry(0, 2))
    merged(tmp_path / "merge", [entry(0, 4)])
    for path in tmp_path.rglob("*="):
        path.chmod(0o666)
    with pytest.raises(ForeignFileError, match="may be changed by others"):
        Journal(tmp_path / "batches").entries()
    with pytest.raises(ForeignFileError, match="may be changed by others"):
        MergeSink(Sum(), tmp_path / "merge").open(JOB, "resume")


def test_the_key_of_a_batch_sorts_by_number() -> None:
    assert committing._key(7) == "000000000000007"


def test_a_spilled_batch_of_bad_records_alone_has_no_results(tmp_path: Path) -> None:
    sink = Recorded()
    committed(sink, [entry(0, 2), entry(2, 4, bad=[2, 3])], journal=Journal(tmp_path), spill=True)
    assert [part.results for part in sink.parts] == [[[0, 10]]]
    assert [record.item for record in sink.parts[0].bad] == [2, 3]


def test_spilled_results_are_on_disk_and_not_in_memory(tmp_path: Path) -> None:
    journal, sink = Journal(tmp_path), Recorded()
    committer = Committer(sink, JOB, journal, True, True)
    committer.take(entry(0, 2), 0.0)
    committer._writer.submit(int).result()
    assert committer.held_bytes == 0
    assert [each.results for each in committer._open[0].entries] == [committing._SPILLED]
    committer.take(entry(2, 4, bad=[2]), 0.0)
    committer._writer.submit(int).result()
    assert sink.rows() == [(0, 0, 4, [0, 10, 30])]
    assert committer.held_bytes == 0
    committer.abort()


# --- values of merges --------------------------------------------------------------------------------------


def merged(folder: Path | None, entries: Sequence[Entry], job: Job = JOB, found: Found = "resume") -> Any:
    """Combine sums of results in a sink of one job; return the sink."""
    sink = MergeSink(Sum(), folder)
    parts = sink.open(job, found)
    for each in entries:
        number = each.begin // job.part_items
        if number not in parts:
            state = Sum().start(each.results, each.begin, each.end, [record.item for record in each.bad])
            sink.write(Part(number, each.begin, each.end, [state], each.bad))
    return sink


def test_the_states_of_another_job_are_dropped(tmp_path: Path) -> None:
    """The guard that keeps job B from resuming the parts of job A."""
    merged(tmp_path, [entry(0, 4)])
    Journal(tmp_path / "batches").put(entry(4, 6))
    sink = MergeSink(Sum(), tmp_path)
    assert sink.open(OTHER, "resume") == {}
    assert sink.bad() == ()
    assert Journal(tmp_path / "batches").entries() == []
    sink.write(Part(0, 0, 4, [Sum().start([1, 1, 1, 1], 0, 4)]))
    assert sink.close() == 4


def test_the_states_of_the_same_job_are_resumed(tmp_path: Path) -> None:
    merged(tmp_path, [entry(4, 8, bad=[5]), entry(8, 10, bad=[8])])
    Journal(tmp_path / "batches").put(entry(8, 9))
    sink = MergeSink(Sum(), tmp_path)
    assert sink.journal == tmp_path / "batches"
    assert sink.open(JOB, "resume") == {1: 8, 2: 10}
    assert [record.item for record in sink.bad()] == [5, 8]
    assert [each.begin for each in Journal(tmp_path / "batches").entries()] == [8]
    sink.write(Part(0, 0, 4, [Sum().start([0, 10], 0, 2), Sum().start([20, 30], 2, 4)]))
    assert sink.close() == 60 + 40 + 60 + 70 + 90
    assert not tmp_path.exists()


def test_overwriting_drops_the_states_of_the_same_job(tmp_path: Path) -> None:
    merged(tmp_path, [entry(0, 4)])
    assert MergeSink(Sum(), tmp_path).open(JOB, "overwrite") == {}
    assert MergeSink(Sum(), tmp_path).open(JOB, "resume") == {}


def test_states_are_combined_in_the_order_of_the_parts_and_kept_nowhere_without_a_folder() -> None:
    sink = MergeSink(Fold(lambda one, other: one + other), None)
    assert sink.journal is None
    assert sink.open(JOB, "refuse") == {}
    fold = Fold(lambda one, other: one + other)
    sink.write(Part(1, 3, 4, [fold.start(["d"], 3, 4)]))
    sink.write(Part(0, 0, 3, [fold.start(["a"], 0, 1), fold.start(["b"], 1, 2), fold.start(["c"], 2, 3)]))
    assert sink.close() == "abcd"
    assert MergeSink(Sum(), None).close() == Sum().finish(Sum().start(None, 0, 0))


# --- folders -----------------------------------------------------------------------------------------------


def part(number: int, results: Sequence[Any], bad: Sequence[int] = (), begin: int | None = None) -> Part:
    begin = number * JOB.part_items if begin is None else begin
    records = tuple(BadRecord(item, Place("numbers", item), "odd") for item in bad)
    return Part(number, begin, begin + JOB.part_items, list(results), records)


def written(folder: Path, parts: Sequence[Part], job: Job = JOB) -> JsonLinesSink:
    sink = JsonLinesSink(folder)
    sink.open(job, "refuse")
    for each in parts:
        sink.write(each)
    return sink


def test_a_folder_holds_numbered_parts_a_quarantine_and_a_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    sink = written(folder, [part(1, [[3]], bad=[4, 5]), part(0, [[1, "é"], [{"a": 2}]]), part(2, [], bad=[8])])
    assert sink.journal == folder / UNFINISHED / "batches"
    assert not (folder / MANIFEST).exists()
    assert sink.close() == folder
    assert sorted(path.name for path in folder.iterdir()) == [
        MANIFEST, "part-00000.jsonl", "part-00001.jsonl", QUARANTINE,
    ]  # fmt: skip
    assert (folder / "part-00000.jsonl").read_text(encoding="utf-8") == '1\n"é"\n{"a": 2}\n'
    manifest = json.loads((folder / MANIFEST).read_text())
    assert (manifest["job"], manifest["source"], manifest["rows"], manifest["bad"]) == ("key of job A", "numbers", 4, 3)
    assert [(each["part"], each["file"], each["begin"], each["end"], each["rows"]) for each in manifest["parts"]] == [
        (0, "part-00000.jsonl", 0, 4, 3), (1, "part-00001.jsonl", 4, 8, 1), (2, "", 8, 12, 0),
    ]  # fmt: skip
    assert manifest["parts"][0]["bytes"] == len((folder / "part-00000.jsonl").read_bytes())
    assert (manifest["parts"][2]["bytes"], manifest["parts"][2]["sha256"]) == (0, "")
    lines = [json.loads(line) for line in (folder / QUARANTINE).read_text().splitlines()]
    assert lines[0] == {"item": 4, "file": "numbers", "row": 4, "reason": "odd"}
    assert [line["item"] for line in lines] == [4, 5, 8]


def test_a_run_without_bad_records_has_no_quarantine(tmp_path: Path) -> None:
    written(tmp_path / "out", [part(0, [[1]])]).close()
    assert not (tmp_path / "out" / QUARANTINE).exists()
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["bad"] == 0


def test_closing_twice_changes_nothing(tmp_path: Path) -> None:
    sink = written(tmp_path / "out", [part(0, [[1]])])
    sink.close()
    before = (tmp_path / "out" / MANIFEST).read_bytes()
    again = JsonLinesSink(tmp_path / "out")
    assert again.open(JOB, "resume") == {0: 4}
    assert again.close() == tmp_path / "out"
    assert (tmp_path / "out" / MANIFEST).read_bytes() == before
    assert not (tmp_path / "out" / UNFINISHED).exists()


def test_an_unfinished_run_is_resumed_by_the_same_job_only(tmp_path: Path) -> None:
    """The guard that keeps job B from resuming the parts of job A."""
    folder = tmp_path / "out"
    written(folder, [part(1, [[3]], bad=[4]), part(0, [[1]])])
    assert JsonLinesSink(folder).open(JOB, "resume") == {0: 4, 1: 8}
    assert [record.item for record in JsonLinesSink(folder).bad()] == [4]
    assert JsonLinesSink(folder).bad()[0].place == Place("numbers", 4)
    with pytest.raises(BadValueError, match="another function or other options"):
        JsonLinesSink(folder).open(OTHER, "resume")
    with pytest.raises(BadValueError, match="results of numbers; the source is now letters"):
        JsonLinesSink(folder).open(Job(JOB.key, 4, 10, "letters"), "resume")


def test_a_complete_run_is_resumed_by_the_same_job_only(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    written(folder, [part(0, [[1]])]).close()
    assert JsonLinesSink(folder).open(JOB, "resume") == {0: 4}
    with pytest.raises(BadValueError, match="another function or other options"):
        JsonLinesSink(folder).open(OTHER, "resume")


@pytest.mark.parametrize(("close", "words"), [(True, "a complete run"), (False, "an unfinished run")])
def test_a_run_that_is_there_is_refused_unless_it_may_be_overwritten(tmp_path: Path, close: bool, words: str) -> None:
    folder = tmp_path / "out"
    sink = written(folder, [part(0, [[1]], bad=[2]), part(1, [])])
    if close:
        sink.close()
    with pytest.raises(BadValueError, match=words):
        JsonLinesSink(folder).open(OTHER, "refuse")
    (folder / "mine.txt").write_text("not of the run")
    with pytest.raises(BadValueError, match="1 files of others, such as mine"):
        JsonLinesSink(folder).open(OTHER, "overwrite")
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    (folder / "mine.txt").unlink()
    assert JsonLinesSink(folder).open(OTHER, "overwrite") == {}
    assert json.loads((folder / UNFINISHED / "job.json").read_text()) == {"job": "key of job B", "source": "numbers"}


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text("")
    for found in ("refuse", "resume", "overwrite"):
        with pytest.raises(BadValueError, match="2 files of others, such as a"):
            JsonLinesSink(tmp_path).open(JOB, found)  # type: ignore[arg-type]
    with pytest.raises(BadValueError, match="is a file"):
        JsonLinesSink(tmp_path / "a").open(JOB, "refuse")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_folder_with_nothing_but_what_a_killed_run_began_is_empty(tmp_path: Path) -> None:
    (tmp_path / UNFINISHED).mkdir()
    assert JsonLinesSink(tmp_path).open(JOB, "refuse") == {}


def test_a_note_that_names_a_file_of_others_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    written(folder, [part(0, [[1]])])
    note = folder / UNFINISHED / "part-00000.json"
    row = json.loads(note.read_text())
    for name in ("../mine", "part-00000", "part-1.jsonl"):
        note.write_text(json.dumps({**row, "file": name}))
        with pytest.raises(FileError, match="no file that a run writes"):
            JsonLinesSink(folder).open(JOB, "resume")
    note.write_text(json.dumps({**row, "bad": [{"item": 1}]}))
    with pytest.raises(FileError):
        JsonLinesSink(folder).bad()


def test_a_part_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sink = written(folder, [part(0, [[1]])])
    with pytest.raises(SerialisationError, match="result 1 of items 4 to 8"):
        sink.write(part(1, [[1, object()]]))
    assert sorted(path.name for path in (folder / UNFINISHED).iterdir()) == ["job.json", "part-00000.json"]
    assert JsonLinesSink(folder).open(JOB, "resume") == {0: 4}


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk is full"), (errno.EIO, "cannot")]
)
def test_what_the_file_system_refuses_is_worded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    sink = written(tmp_path / "out", [])

    def refuse(path: Path, part: Part) -> int:
        raise OSError(number, "no")

    monkeypatch.setattr(sink, "_write_file", refuse)
    with pytest.raises(HeteroError, match=words):
        sink.write(part(0, [[1]]))


class Table:
    """As an Arrow table, as far as lines of JSON need it."""

    def to_pylist(self) -> list[Any]:
        return [{"a": 1}]


def test_every_form_of_results_becomes_lines(tmp_path: Path) -> None:
    results = [Table(), {"x": np.array([1, 2]), "y": ["p", "q"]}, np.array([0.5, 1.5]), [np.float32(2.0)]]
    sink = written(tmp_path / "out", [part(0, results)])
    lines = [json.loads(line) for line in (sink.folder / "part-00000.jsonl").read_text().splitlines()]
    assert lines == [{"a": 1}, {"x": 1, "y": "p"}, {"x": 2, "y": "q"}, 0.5, 1.5, 2.0]


def test_frames_become_lines_too(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2]})
    sink = written(tmp_path / "out", [part(0, [frame, frame["a"]])])
    lines = [json.loads(line) for line in (sink.folder / "part-00000.jsonl").read_text().splitlines()]
    assert lines == [{"a": 1}, {"a": 2}, 1, 2]


def test_arrays_are_written_as_arrays(tmp_path: Path) -> None:
    sink: FolderSink = NpySink(tmp_path / "out")
    sink.open(JOB, "refuse")
    sink.write(part(0, [np.ones((2, 3)), np.zeros((1, 3))]))
    assert np.load(tmp_path / "out" / "part-00000.npy").tolist() == [[1.0] * 3, [1.0] * 3, [0.0] * 3]
    assert sink._notes()[0]["rows"] == 3
    for results in ([[[1], [1, 2]]], [[{}, object()]]):
        with pytest.raises(SerialisationError, match="are no array"):
            sink.write(part(1, results))


def test_results_are_collected_in_the_order_of_the_parts() -> None:
    sink = CollectSink()
    assert sink.open(JOB, "refuse") == {}
    assert CollectSink().close() == []
    sink.write(part(1, [[3]]))
    sink.write(part(0, [[1], [2]]))
    assert sink.close() == [1, 2, 3]


def test_a_function_is_called_once_a_part_that_has_results() -> None:
    calls: list[Any] = []
    sink = CallSink(calls.append)
    assert sink.part_bytes == 1 << 20
    assert sink.open(JOB, "refuse") == {}
    for each in (part(0, [[1], [2]]), part(1, [])):
        sink.write(each)
    sink.close()
    assert calls == [[1, 2]]


def test_a_store_of_states_keeps_the_job_that_it_is_of(tmp_path: Path) -> None:
    merged(tmp_path, [entry(0, 4)])
    store = FileStore(tmp_path / "states")
    assert store.get("job") == b"key of job A"
    assert store.list("part") == ("part-0",)
