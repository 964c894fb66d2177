"""Traces that are cut, newer, foreign, empty or malicious: each command opens them or refuses them with one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hetero.cli.profiler import entry
from hetero.drive.trace import TraceWriter
from tests.sim.report_runs import run

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m"
COMMANDS = ("html", "summary", "gantt", "chrome", "compare")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    records, devices = run(4, rough=False, count=25)
    path = tmp_path_factory.mktemp("bad") / "sound.trace.jsonl"
    writer = TraceWriter(path, devices=devices)
    for each in records:
        writer.write(each)
    writer.close()
    return path.read_bytes()


def _head(trace: bytes, **changed: object) -> bytes:
    first, _, rest = trace.partition(b"\n")
    return json.dumps({**json.loads(first), **changed}).encode() + b"\n" + rest


def _with_a_wrong_line(trace: bytes) -> bytes:
    lines = trace.split(b"\n")
    lines[len(lines) // 2] = b'["nonsense", 1]'
    return b"\n".join(lines)


OPENED: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda trace: trace[: 2 * len(trace) // 3],
    "corrupt": _with_a_wrong_line,
    "odd head": lambda trace: _head(trace, started=5, host=None, topology="x", run=EVIL),
    "html": lambda trace: trace.replace(b'"large"', json.dumps(EVIL).encode()),
}
REFUSED: dict[str, Callable[[bytes], bytes]] = {
    "newer": lambda trace: _head(trace, version=2),
    "empty": lambda trace: b"",
    "chrome's": lambda trace: b'{"traceEvents": []}',
    "picture": lambda trace: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9,
    "odd fleet": lambda trace: _head(trace, fleet=[{"id": 1}]),
}


def _profiler(monkeypatch: pytest.MonkeyPatch, folder: Path, command: str) -> int:
    traces = ["bad.trace.jsonl"] * (2 if command == "compare" else 1)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["hetero-profiler", command, *traces])
    with pytest.raises(SystemExit) as end:
        entry()
    return int(end.value.code or 0)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", OPENED)
def test_what_can_be_read_is_shown_and_nothing_of_it_is_markup_or_steers_the_terminal(
    sound: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    kind: str, command: str,
) -> None:  # fmt: skip
    (tmp_path / "bad.trace.jsonl").write_bytes(OPENED[kind](sound))
    assert _profiler(monkeypatch, tmp_path, command) == 0
    told = capsys.readouterr().out
    assert told
    assert "\x1b[31m" not in told
    if command == "html":
        assert "<script>alert" not in (tmp_path / "bad.report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_trace_of_ours_is_refused_with_one_line(
    sound: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    kind: str, command: str,
) -> None:  # fmt: skip
    (tmp_path / "bad.trace.jsonl").write_bytes(REFUSED[kind](sound))
    assert _profiler(monkeypatch, tmp_path, command) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hetero: bad.trace.jsonl")
    assert captured.err.count("\n") == 1


def test_a_trace_that_breaks_off_before_any_task_ended_says_so(
    sound: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = sound.split(b"\n")
    last = next(at for at, line in enumerate(lines) if line.startswith(b'["fin"'))
    (tmp_path / "bad.trace.jsonl").write_bytes(b"\n".join([*lines[:last], b""]))
    assert _profiler(monkeypatch, tmp_path, "summary") == 0
    assert "handed in and none had ended when the trace broke off." in capsys.readouterr().out
