"""What the commands print: no character of a file steers a terminal, and poor encodings do not raise."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hetero.drive.trace import TraceWriter
from hetero.model.device import Device, DeviceType
from tests.sim.report_runs import run as simulated

EVIL = "[red]x[/red] [/] :bomb: \x1b[31mred\x1b]0;t\x07 \x9b1m \u202egnp.exe \u2066 a\nFAKE b\r"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
POOR = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LATIN = {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace, a graph, a fleet, prices, a topology and a configuration whose every name is hostile."""
    folder = tmp_path_factory.mktemp("printed")
    records, devices = simulated(4, rough=True, count=12)
    writer = TraceWriter(folder / "plain.trace.jsonl", devices=devices)
    for each in records:
        writer.write(each)
    writer.close()
    data = (folder / "plain.trace.jsonl").read_text(encoding="utf-8")
    hostile = re.sub(r'"(large|small|f|g|h0/cpu:0)"', lambda found: json.dumps(f"{found[1]} {EVIL}"), data)
    assert hostile != data
    (folder / "evil.trace.jsonl").write_text(hostile, encoding="utf-8")
    name = json.dumps(EVIL)
    nodes = f'"memory_nodes": [{{"id": {name}}}], "links": []'
    device = f'"devices": [{{"id": {name}, "memory_node": {name}}}]'
    task = f'"tasks": [{{"id": {name}, "seconds": {{{name}: 1}}}}], "edges": []'
    (folder / "graph.json").write_text(f'{{"format": "hetero-graph/1", {device}, {nodes}, {task}}}')
    (folder / "prices.yaml").write_text(f"{name}: 2.0\n")
    (folder / "fleet.yaml").write_text(f"devices: [{{name: {name}}}]\n")
    (folder / "topology.yaml").write_text(f"format: hetero-topology/1\nparts: [{{id: {name}, kind: device}}]\n")
    (folder / "config.yaml").write_text(f"{name}: 1\nengine: {name}\n")
    return folder


def _run(folder: Path, command: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    module, *words = command.split()
    program = "hetero.cli.profiler" if module == "hetero-profiler" else "hetero"
    environment = {**os.environ, "HETERO_HOME": str(folder / "home"), "COLUMNS": "120", "FORCE_COLOR": "", **more}
    return subprocess.run(
        [sys.executable, "-m", program, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )


HOSTILE = (
    "hetero-profiler summary evil.trace.jsonl",
    "hetero-profiler gantt evil.trace.jsonl",
    "hetero-profiler compare evil.trace.jsonl evil.trace.jsonl",
    "hetero graph plan graph.json",
    "hetero graph whatif graph.json --add x",
    "hetero graph simulate graph.json",
    "hetero plan choose Llama-3.1-8B --devices fleet.yaml",
    "hetero plan choose Llama-3.1-8B --devices 1xRTX-4090 --prices prices.yaml",
    "hetero topo --topology topology.yaml",
    "hetero config check config.yaml",
    "hetero train config.yaml",
    "hetero batch config.yaml",
)


@pytest.mark.parametrize("command", HOSTILE)
def test_no_name_in_a_file_steers_the_terminal(folder: Path, command: str) -> None:
    done = _run(folder, command)
    text = (done.stdout + done.stderr).decode("utf-8")
    assert text
    assert not STEERS.search(text), STEERS.search(text)
    assert not any(line.startswith("FAKE") for line in text.splitlines())
    assert "Traceback" not in text
    assert done.returncode in (0, 3)


ENCODED = (
    "hetero --help",
    "hetero devices",
    "hetero doctor",
    "hetero-profiler summary plain.trace.jsonl",
    "hetero-profiler gantt plain.trace.jsonl",
    "hetero catalog show H100-SXM",
    "hetero plan choose Llama-3.1-8B --devices 2xRTX-4090",
    "hetero graph plan absent-größe.json",
)


@pytest.mark.parametrize("encoding", [POOR, LATIN], ids=["ascii", "latin-1"])
@pytest.mark.parametrize("command", ENCODED)
def test_a_poor_encoding_shows_something_alike(folder: Path, command: str, encoding: dict[str, str]) -> None:
    done = _run(folder, command, **encoding)
    text = (done.stdout + done.stderr).decode("latin-1")
    assert text
    assert "Traceback" not in text
    assert "Error" not in text
    if encoding is POOR:
        assert text.isascii()


def test_a_device_that_is_named_by_its_driver_steers_no_terminal() -> None:
    from rich.text import Text

    from hetero.floor.terminal import console
    from hetero.report.record import RunRecord
    from hetero.report.timeline import gantt

    out = console(width=60)
    device = Device(f"h0/{EVIL}", "cpu", DeviceType("CPU"), "cpu")
    with out.capture() as captured:
        out.print(EVIL, Text(EVIL), *gantt(RunRecord((device,)), 60))
    assert not STEERS.search(captured.get())
    assert "[red]x[/red] [/] :bomb:" in captured.get()
