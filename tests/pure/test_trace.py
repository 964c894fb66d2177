from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from hetero.drive import trace as trace_module
from hetero.drive import trace_read
from hetero.drive.trace import TraceWriter, read_trace, summary
from hetero.drive.trace_format import CODES, KINDS, LAYOUTS, layout
from hetero.floor.errors import BadValueError, TraceError
from hetero.model.annotations import NOTES
from hetero.model.commands import COMMANDS, Commit, Fail, Launch, Run, SetTimer, Warn
from hetero.model.device import Device, DeviceType
from hetero.model.events import (
    EVENTS,
    DeviceAdded,
    TaskFailed,
    TaskFinished,
    TaskSubmitted,
    TimerFired,
    TransferFinished,
)
from hetero.model.leases import LeaseRequest
from hetero.model.tasks import Failure, Near, Request, Task
from hetero.model.topology import Link, MemoryNode, Topology
from tests.needs import PROJECT

DEVICE = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu", name="a CPU", cores=2, cpus=(0, 1), silicon=("core0",))
REQUEST = Request(on=("cpu",), near=(Near("host", 3),), memory_bytes=5, splittable=True)

VALUES: dict[str, Any] = {
    "int": 7,
    "bool": True,
    "float": 0.25,
    "str": "h0/cpu:0",
    "ints": (3, 4),
    "floats": (0.5, math.inf, -0.25),
    "strs": ("h0/cpu:0", "h0/cpu:1"),
    "request": REQUEST,
    "launch": Launch(7, 1, 0.5),
    "launches": (Launch(7, 1, 0.5), Launch(8, 1, math.inf)),
    "failure": Failure("timeout", "f ran longer than its limit of 1 s"),
    "device": DEVICE,
    "wish": LeaseRequest(on=("gpu",), count=2, together="host", lease_s=0.5),
}


def one_of_each() -> list[tuple[float, Any]]:
    """Return every event, command and note, each column filled with a value of its kind."""
    records = []
    for number, each in enumerate(LAYOUTS):
        at_s = number / 8
        values = [VALUES[column.kind] for column in each.columns]
        if each.nested:
            records.append((at_s, each.record(at_s, Task(*values))))
        else:
            records.append((at_s, each.record(*([at_s] if each.timed else []), *values)))
    return records


def write(path: Path, records: Iterable[tuple[float, Any]], **head: Any) -> Path:
    writer = TraceWriter(path, **head)
    for record in records:
        writer.write(record)
    writer.close()
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_every_record_comes_back_as_it_was_in_order(tmp_path: Path, name: str) -> None:
    records = one_of_each()
    assert {type(record) for _, record in records} == {*EVENTS, *COMMANDS, *NOTES}
    trace = read_trace(write(tmp_path / name, records))
    assert list(trace) == records
    assert list(trace) == records, "a trace can be read twice"
    assert not trace.torn
    assert list(trace.unknown()) == []


def test_a_bare_command_has_the_time_of_the_event_before_it(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a")
    for record in (TimerFired(1.5), Commit(1, 1, "d"), TimerFired(2.5), Commit(2, 1, "d"), Commit(3, 1, "d")):
        writer.write(record)
    writer.close()
    assert [at_s for at_s, _ in read_trace(tmp_path / "a")] == [1.5, 1.5, 2.5, 2.5, 2.5]


def test_a_gzipped_trace_is_read_whatever_its_name(tmp_path: Path) -> None:
    packed = write(tmp_path / "a.gz", one_of_each())
    assert gzip.decompress(packed.read_bytes()).startswith(b'{"format": "hetero-trace"')
    assert list(read_trace(packed.rename(tmp_path / "a.txt"))) == one_of_each()


def test_the_head_tells_all_that_a_reader_needs(tmp_path: Path) -> None:
    topology = Topology((MemoryNode("h0/ram", 10),), (Link("h0/ram", "h0/cuda:0", 1e-6, 1e9),))
    path = write(tmp_path / "a", [], devices=[DEVICE], topology=topology, policy="eft", run="mine", clock_origin_s=5.0)
    trace = read_trace(path)
    assert {"hetero", "python", "host", "started"} < set(trace.head)
    assert (trace.head["policy"], trace.head["run"], trace.head["clock_origin_s"]) == ("eft", "mine", 5.0)
    assert trace.devices() == (DEVICE,)
    assert trace.head["topology"]["links"][0]["dst"] == "h0/cuda:0"
    assert trace.head["records"]["done"] == ["Commit", [["task", "int"], ["attempt", "int"], ["device", "str"]]]


def test_a_payload_is_never_written(tmp_path: Path) -> None:
    failure = Failure("exception", "ValueError", payload=ValueError("the user's secret"))
    path = write(tmp_path / "a", [(1.0, TaskFailed(1.0, 1, 1, "h0/cpu:0", 0.5, 0.5, failure))])
    assert b"secret" not in path.read_bytes()
    ((_, found),) = read_trace(path)
    assert found.failure == Failure("exception", "ValueError")


@pytest.mark.parametrize("kind", ["exception", "out_of_memory", "unserialisable", "missing_package"])
def test_the_text_of_an_exception_is_written_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    failure = Failure(kind, "app.StrangeError: no row of /home/me in 'the secret'")  # type: ignore[arg-type]
    records = [(1.0, TaskFailed(1.0, 1, 1, "h0/cpu:0", 0.5, 0.5, failure)), (1.0, Fail(1, failure))]
    path = write(tmp_path / "a", records)
    assert b"secret" not in path.read_bytes()
    assert b"/home/me" not in path.read_bytes()
    assert [record.failure.message for _, record in read_trace(path)] == ["app.StrangeError"] * 2
    monkeypatch.setenv("HETERO_TRACE_ERRORS", "1")
    assert [record.failure for _, record in read_trace(write(tmp_path / "b", records))] == [failure] * 2


def test_a_text_and_a_request_are_written_once(tmp_path: Path) -> None:
    task = Task(1, "function", "function(float64[3])", 24.0, (), (), Request(on=("cpu",)))
    path = write(
        tmp_path / "a",
        [(1.0, TaskSubmitted(1.0, task._replace(id=each, request=Request(on=("cpu",))))) for each in range(50)],
    )
    assert path.read_bytes().count(b"float64[3]") == 1
    assert path.read_bytes().count(b'"req",') == 1
    assert [record.task.id for _, record in read_trace(path)] == list(range(50))


def test_more_texts_than_the_table_holds_are_written_where_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "_TABLE_MAX", 3)
    records = [(1.0, Warn(f"text {each} \n \u2028 \ud800")) for each in range(9)] + [(1.0, Warn("x" * 5000))]
    records += [(2.0, TaskSubmitted(2.0, Task(1, "f", "f", 0.0, (), (), Request(priority=each)))) for each in range(9)]
    assert list(read_trace(write(tmp_path / "a", records))) == records


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300, 0.0, 1e-12, 123456.7])
def test_numbers_that_json_has_no_words_for_come_back(tmp_path: Path, value: float) -> None:
    records = [(1.0, SetTimer(value)), (1.0, Run("nan", (Launch(1, 1, value),)))]
    path = write(tmp_path / "a", records)
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    found = [record for _, record in read_trace(path)]
    assert found[0].at_s == pytest.approx(value, abs=1e-7)
    assert found[1].launches[0].predicted_s == pytest.approx(value, rel=1e-6)


def test_nothing_is_dropped_when_threads_write_faster_than_the_disk(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a")

    def fill(worker: int) -> None:
        for number in range(40_000):
            writer.write((0.0, Commit(number, worker, "h0/cpu:0")))

    threads = [threading.Thread(target=fill, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    writer.close()
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _, record in read_trace(tmp_path / "a"):
        found[record.attempt].append(record.task)
    assert all(tasks == list(range(40_000)) for tasks in found.values())


def test_the_queue_never_holds_more_than_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "_WAITING_MAX", 100)
    monkeypatch.setattr(trace_module, "_PERIOD_S", 60.0)
    writer = TraceWriter(tmp_path / "a")
    longest = 0
    for number in range(5000):
        writer.write((0.0, Commit(number, 1, "d")))
        longest = max(longest, len(writer._waiting))
    writer.close()
    assert longest <= 100
    assert len(list(read_trace(tmp_path / "a"))) == 5000


def test_closing_twice_and_writing_late_do_no_harm(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a")
    writer.close()
    writer.write((0.0, Commit(1, 1, "d")))
    writer.flush()
    writer.close()
    assert list(read_trace(tmp_path / "a")) == []
    assert not any(thread.name == "hetero-trace" for thread in threading.enumerate())


def test_a_full_disk_ends_the_trace_and_not_the_run() -> None:
    if not Path("/dev/full").exists():
        pytest.fail("this test needs /dev/full")
    writer = TraceWriter("/dev/full")
    writer.write((0.0, Commit(1, 1, "d")))
    writer.close()
    assert writer.problem == "the trace /dev/full ends early: No space left on device"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_trace_cut_anywhere_gives_its_first_records_and_says_that_it_is_torn(tmp_path: Path, suffix: str) -> None:
    records = one_of_each()
    whole = write(tmp_path / f"whole{suffix}", records).read_bytes()
    first, last = (len(whole) // 2, len(whole) - 20) if suffix else (whole.index(b"\n") + 1, len(whole) - 1)
    for length in range(first, last):
        cut = tmp_path / f"cut{suffix}"
        cut.write_bytes(whole[:length])
        with suppress(TraceError) if suffix else nullcontext():  # the head may not be there yet
            trace = read_trace(cut)
            found = list(trace)
            assert found == records[: len(found)]
            assert trace.torn


_KILLED = """
import os, signal, sys
from hetero.drive.trace import TraceWriter
from hetero.model.commands import Commit
writer = TraceWriter(sys.argv[1])
for number in range(20_000):
    writer.write((number / 1000, Commit(number, 1, "h0/cpu:0")))
writer.flush()
for number in range(20_000, 20_100):
    writer.write((number / 1000, Commit(number, 1, "h0/cpu:0")))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_trace_of_a_killed_program_can_be_read(tmp_path: Path, name: str) -> None:
    subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / name)], timeout=250, check=False)
    trace = read_trace(tmp_path / name)
    assert [record.task for _, record in trace][:20_000] == list(range(20_000))
    assert trace.torn


def test_a_program_that_forgets_to_close_has_a_whole_trace(tmp_path: Path) -> None:
    program = _KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "")
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "a")], timeout=250, check=True)
    trace = read_trace(tmp_path / "a")
    assert len(list(trace)) == 20_100
    assert not trace.torn


def _head(**changed: Any) -> str:
    return json.dumps({"format": "hetero-trace", "version": 1, "records": {"done": ["Commit", []]}, **changed}) + "\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty or was cut off before its first line ended"),
        (b"\0" * 4000, "is empty or was cut off"),
        (b"[1]\n", ":1: not the head of a trace; give a file that hetero wrote"),
        (b"hello\n", ":1: not the head of a trace"),
        (b"\xff\xfe\n", ":1: not the head of a trace"),
        (b'{"format": "perfetto"}\n', ":1: not the head of a trace"),
        (b"[" * 100_000 + b"\n", ":1: not the head of a trace"),
        (_head(version=2).encode(), "written by a newer hetero: trace version 2, this one reads up to 1; upgrade"),
        (b"\x1f\x8b" + b"no gzip" * 9, "the compressed bytes after line 0 are damaged"),
    ],
)
def test_what_is_no_trace_is_told_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"import hetero\n", b"\x1f\x8b no gzip", gzip.compress(b"other", mtime=0), b"\0" * 9]
)
def test_a_file_that_is_no_trace_is_not_replaced_by_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "script.py"
    path.write_bytes(content)
    with pytest.raises(BadValueError, match="is there and is no trace"):
        TraceWriter(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_trace_and_an_empty_file_are_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    for policy in ("eft", "heft"):
        TraceWriter(path, policy=policy).close()
        content = path.read_bytes()
        assert policy.encode() in (gzip.decompress(content) if name.endswith("gz") else content)


def test_a_missing_trace_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file or directory; check the path"):
        read_trace(tmp_path / "a")
    with pytest.raises(BadValueError, match="cannot be written: No such file or directory; name a file in a folder"):
        TraceWriter(tmp_path / "absent" / "a")


def test_a_corrupt_line_is_named_and_what_stands_before_it_is_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [(float(each), Commit(each, 1, "d")) for each in range(20)])
    lines = path.read_bytes().split(b"\n")
    lines[10] = lines[10][:-3] + b"\x00\x00\x00"
    path.write_bytes(b"\n".join(lines))
    trace = read_trace(path)
    assert [record.task for _, record in itertools.islice(trace, 8)] == list(range(8))
    with pytest.raises(TraceError, match=r"a:11: not a record of a trace; what stands before it .* head -n 10"):
        list(trace)


def test_a_trace_with_a_line_taken_out_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [(float(each), Commit(each, 1, "d")) for each in range(20)])
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:10] + lines[11:]))
    with pytest.raises(TraceError, match="not a record of a trace"):
        list(read_trace(path))


def test_damaged_bytes_give_no_other_exception(tmp_path: Path) -> None:
    chance = random.Random(1)
    path = tmp_path / "damaged"
    for suffix, turn in itertools.product(("", ".gz"), range(400)):
        name = tmp_path / f"sound{suffix}"
        sound = name.read_bytes() if name.exists() else write(name, one_of_each()).read_bytes()
        damaged = bytearray(sound)
        for _ in range(1 + turn % 5):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        with suppress(TraceError):
            trace = read_trace(path)
            list(trace), list(trace.unknown()), trace.torn, trace.devices(), summary(path)


def test_records_of_a_later_version_are_kept_and_left_out(tmp_path: Path) -> None:
    columns = [["task", "int"], ["attempt", "int"], ["reason", "str"], ["device", "str"]]
    head = _head(records={"done": ["Commit", columns], "new": ["PowerRead", [["watt", "float"]]]})
    lines = ['["str",0,"d"]', '["new",0.5,12.5]', '["done",1.0,7,1,"more is told here",0]', '["end",2]']
    (tmp_path / "a").write_text(head + "\n".join(lines) + "\n")
    trace = read_trace(tmp_path / "a")
    assert list(trace) == [(1.0, Commit(7, 1, "d"))]
    assert list(trace.unknown()) == [(0.5, ("PowerRead", {"watt": 12.5}))]
    assert not trace.torn


def test_every_record_has_a_code_of_its_own() -> None:
    assert len(set(CODES.values())) == len(CODES)
    assert set(CODES) == {record.__name__ for record in (*EVENTS, *COMMANDS, *NOTES)}
    assert not {"str", "req", "end"} & set(CODES.values())


def _table(text: str, heading: str) -> list[tuple[str, ...]]:
    """Return the rows of the table below a heading of a document, without marks of code."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return [tuple(cell.strip().replace("`", "") for cell in row.strip("|").split(" | ")) for row in rows]


@pytest.mark.parametrize(("heading", "records"), [("Events", EVENTS), ("Commands", COMMANDS), ("Notes", NOTES)])
def test_the_document_tells_every_record_with_its_columns(heading: str, records: tuple[type, ...]) -> None:
    told = _table((PROJECT / "docs" / "trace.md").read_text(encoding="utf-8"), heading)
    layouts = [layout(record) for record in records]
    columns = [", ".join(f"{column.name} {column.kind}" for column in each.columns) or "—" for each in layouts]
    expected = [(each.code, each.record.__name__, cells) for each, cells in zip(layouts, columns, strict=True)]
    assert told == expected, "\n".join(f"| `{code}` | `{name}` | {cells} |" for code, name, cells in expected)


def test_the_document_tells_every_kind_of_column() -> None:
    assert _table((PROJECT / "docs" / "trace.md").read_text(encoding="utf-8"), "Kinds") == list(KINDS.items())


def test_the_summary_counts_committed_tasks_busy_seconds_and_bytes(tmp_path: Path) -> None:
    task = Task(1, "f", "f", 0.0, (), (), Request())
    records: list[tuple[float, Any]] = [(0.0, DeviceAdded(0.0, DEVICE))]
    for each, (name, device, started_s, seconds) in enumerate(
        [("f", "a", 1.0, 0.5), ("f", "b", 1.25, 2.0), ("g", "a", 4.0, 1.0)], start=1
    ):
        submitted = TaskSubmitted(started_s - 0.5, task._replace(id=each, name=name))
        finished = TaskFinished(started_s + seconds, each, 1, device, started_s, seconds, 8, "h0/ram")
        moved = TransferFinished(started_s, each, "h0/ram", "h0/cuda:0", 100, started_s, 0.0)
        records += [(0.5, submitted), (started_s, moved), (9.0, finished), (9.0, Commit(each, 1, device))]
    path = write(tmp_path / "a", records)
    found = summary(path)
    assert (found.tasks, found.failed, found.makespan_s, found.bytes_moved, found.torn) == (3, 0, 4.0, 300, False)
    assert (found.busy_s, found.attempts, found.functions) == ({"a": 1.5, "b": 2.0}, {"a": 2, "b": 1}, {"f": 2, "g": 1})
    only = summary(path, names=["f"])
    assert (only.tasks, only.makespan_s, only.bytes_moved, only.busy_s) == (2, 2.25, 200, {"a": 0.5, "b": 2.0})


def test_a_usual_task_takes_less_than_400_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "a", usual_records(1000))
    assert os.path.getsize(path) / 1000 < 400


def usual_records(tasks: int) -> Iterable[tuple[float, Any]]:
    """Yield what the core says about tasks that run once, in the order in which it says it."""
    request = Request()
    for each in range(1, tasks + 1):
        at_s = 100 + each * 1e-4
        yield at_s, TaskSubmitted(at_s, Task(each, "work", "work(float64[512, 512])", 2097152.0, (each,), (), request))
        yield at_s, Run("h0/cpu:0", (Launch(each, 1, 0.00123456),))
        yield at_s, TaskFinished(at_s, each, 1, "h0/cpu:0", at_s - 1e-3, 0.00123456, 2097152, "h0/ram")
        yield at_s, Commit(each, 1, "h0/cpu:0")


def test_an_empty_run_has_an_empty_summary(tmp_path: Path) -> None:
    assert summary(write(tmp_path / "a", [])) == (0, 0, 0.0, {}, {}, {}, 0, False)


def test_a_long_line_without_an_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_read, "_LINE_MAX_BYTES", 100_000)
    path = tmp_path / "a"
    path.write_bytes(b"x" * 1_000_000)
    with pytest.raises(TraceError, match=r"a:1: a line without an end: this is no trace"):
        read_trace(path)


def test_what_compresses_a_thousandfold_is_unpacked_piece_by_piece(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gz", [(0.5, Warn("spaces" + " " * 3_000_000))] * 4)
    assert [len(record.text) for _, record in read_trace(path)] == [3_000_006] * 4


def test_a_broken_line_among_many_is_named_by_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [(1.0, Commit(number, 1, "d")) for number in range(1000)])
    lines = path.read_bytes().split(b"\n")
    for wrong in (b"[", b"1,2", b"[]", b"{}", b'"done"', b"3"):
        path.write_bytes(b"\n".join([*lines[:500], wrong, *lines[501:]]))
        with pytest.raises(TraceError, match="a:501: not a record of a trace"):
            list(read_trace(path))
