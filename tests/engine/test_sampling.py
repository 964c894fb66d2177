from __future__ import annotations

import time
from pathlib import Path

import pytest

import hetero
from hetero.drive.trace import read_trace
from hetero.model.annotations import DeviceSampled
from hetero.report.html import curves
from hetero.report.trace_reader import read_run
from hetero.session import opening as sampling

WAIT_S = 90.0


def samples(path: Path) -> list[DeviceSampled]:
    return [record for _, record in read_trace(path) if isinstance(record, DeviceSampled)]


def test_a_run_with_a_trace_tells_how_the_host_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    monkeypatch.setattr(sampling, "_PERIOD_S", 0.05)
    path = tmp_path / "a.trace.jsonl.gz"
    with hetero.Context(devices="1xcpu,1xnull", isolation="thread", trace=path) as ctx:
        deadline_s = time.monotonic() + WAIT_S
        while len(samples(path)) < 3 and time.monotonic() < deadline_s:
            ctx.run(time.sleep, 0.05)
            ctx.flush_trace()
    found = samples(path)
    assert {each.device for each in found} == {sampling.HOST}
    assert all(each.used_bytes > 0 for each in found)
    assert "in use" in {each.group for each in curves(read_run(path))}


def test_a_run_without_a_trace_asks_nobody() -> None:
    with hetero.Context(devices="1xcpu", isolation="thread") as ctx:
        assert ctx._opened._sampler is None
