"""What every command promises: JSON, quiet, widths from 60 columns on, poor encodings, closed pipes."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hetero.cli import output
from hetero.cli.main import app, entry
from tests.pure.test_cli_commands import EVERY, GROUP

STREAMS = {
    ("run",): "a script prints",
    ("launch",): "a script prints",
    ("cluster", "submit"): "a script prints",
    ("cluster", "logs"): "a script prints",
    ("report", "run"): "a script prints",
    ("report", "gantt"): "a drawing; the facts are those of report summary",
}
"""Commands that print no facts of hetero, and what they print instead."""


def options(words: tuple[str, ...]) -> set[str]:
    command = GROUP
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]
    return {name for param in command.params for name in param.opts}


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_command_has_what_all_have(words: tuple[str, ...]) -> None:
    have = options(words)
    assert {"--quiet", "-q", "--verbose", "-v"} <= have
    assert ("--json" in have) is (words not in STREAMS)
    assert ("--output" in have) is ("-o" in have)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_help_fits_the_terminal(width: int) -> None:
    for words in [(), *{words[:-1] for words in EVERY}, *EVERY]:
        told = CliRunner().invoke(app, [*words, "--help"], terminal_width=width).output
        assert [line for line in told.splitlines() if len(line) > width] == [], words
        cut = [line for line in told.splitlines() if line.endswith("...") and "{" not in line and "[" not in line]
        assert cut == [], words


def test_help_can_be_written_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in [(), *EVERY]:
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "argv", ["hetero", *words, "--help"])
        with pytest.raises(SystemExit) as ended:
            entry()
        stream.flush()
        assert ended.value.code == 0
        assert b"Usage: hetero" in stream.buffer.getvalue()  # type: ignore[attr-defined]


FACTS = [
    "catalog list",
    "catalog list --models",
    "catalog show H100-SXM",
    "catalog compare H100-SXM RTX-4090",
    "plan fit Llama-3.1-8B --devices H100-SXM",
    "plan speed Llama-3.1-8B --devices H100-SXM,RTX-4090",
    "plan choose Llama-3.1-8B --devices 2xH100-SXM,4xRTX-4090,1xT4",
    "plan training --samples 100 --global-batch 30 --samples-per-s 1 --samples-per-s 2",
    "plan llm Llama-3.1-8B --devices 1xRTX-4090 --framework llama.cpp",
]


@pytest.mark.parametrize("line", FACTS)
def test_tables_keep_their_figures_in_60_columns_and_json_is_one_document(line: str) -> None:
    narrow = CliRunner().invoke(app, line.split(), env={"COLUMNS": "60"})
    assert narrow.exit_code == 0, narrow.output
    cut = [word for word in re.findall(r"\S*…", narrow.stdout) if any(sign.isdigit() for sign in word)]
    assert cut == [], narrow.stdout
    assert "\x1b" not in narrow.stdout
    document = CliRunner().invoke(app, [*line.split(), "--json"])
    assert document.exit_code == 0
    assert json.loads(document.stdout)


def test_quiet_leaves_notes_out_and_verbose_says_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "hetero")  # and back, afterwards
    monkeypatch.setattr(output, "_quiet", False)
    for name in ("HETERO_DEBUG", "HETERO_PROGRESS"):
        monkeypatch.setenv(name, "0")
    graph = {
        "format": "hetero-graph/1",
        "devices": [{"id": "d", "memory_node": "ram"}],
        "memory_nodes": [{"id": "ram"}],
        "links": [],
        "tasks": [{"id": "t", "seconds": {"d": 1}}],
        "edges": [],
    }
    file = tmp_path / "g.json"
    file.write_text(json.dumps(graph))
    line = ["graph", "show", str(file), "--devices", "2"]
    assert "names its own devices" in CliRunner().invoke(app, line).stderr
    shown = CliRunner().invoke(app, [*line, "--quiet"])
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "1 tasks, 0 edges, 1 levels" in shown.stdout
    output.be_quiet(False)
    CliRunner().invoke(app, [*line, "-vv"])
    assert os.environ["HETERO_DEBUG"] == "2"


def test_a_closed_pipe_ends_quietly() -> None:
    for words in (["catalog", "list", "--json"], ["catalog", "list"], ["--help"]):
        read, write = os.pipe()
        os.close(read)
        line = [sys.executable, "-m", "hetero", *words]
        done = subprocess.run(line, stdout=write, stderr=subprocess.PIPE, timeout=250, check=False)
        os.close(write)
        assert (done.returncode, done.stderr) == (141, b"")


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    told = CliRunner().invoke(app, ["doctor"])
    assert re.findall(r"\x1b\[[0-9;]*3[0-7]m", told.stdout) == []


def test_the_callback_of_every_command_is_typed() -> None:
    for words in EVERY:
        command = GROUP
        for word in words:
            command = command.commands[word]  # type: ignore[attr-defined]
        assert isinstance(command, typer.core.TyperCommand)
