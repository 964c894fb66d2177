"""`hetero devices`: what people and programs are shown of devices that are sound, left out, broken or missing."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hetero.backends import probe
from hetero.backends.base import Found
from hetero.cli.devices import DeviceRow, notes, rows_of, table
from hetero.cli.main import app
from hetero.model.device import Device, DeviceType

CPU = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu", name="AMD Ryzen 9 7950X 16-Core", memory_bytes=64 * 10**9)
GPU = Device("h0/cuda:0", "cuda", DeviceType("GPU"), "torch", name="NVIDIA GeForce RTX 4090", memory_bytes=24 * 10**9)
OLD = Device("h0/cuda:1", "cuda", DeviceType("GPU"), "torch", name="NVIDIA GeForce GTX 680", memory_bytes=2 * 10**9)
POCL = Device("h0/opencl:0", "opencl", DeviceType("CPU"), "opencl", name="pocl [cpu]")
FOUND = (
    Found(CPU, "cpu"),
    Found(GPU, "torch"),
    Found(OLD, "torch", "its compute capability 3.0 is too old for torch 2.13.0", "install a torch built for it"),
    Found(POCL, "opencl"),
    Found(None, "jax", "jax is not installed", "pip install jax"),
)


def rows() -> tuple[DeviceRow, ...]:
    return rows_of(FOUND, (CPU, GPU), [(POCL, "same silicon as h0/cpu:0")])


def printed(width: int) -> str:
    out = Console(width=width, file=io.StringIO(), color_system=None)
    out.print(table(rows(), width))
    for line in notes(rows(), ["h0/cpu:0 is throttled to 0.25"]):
        out.print(line)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def hetero(*words: str, **switches: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hetero", *words],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={**os.environ, "COLUMNS": "80", **switches},
    )


def test_every_device_is_one_row_the_usable_first() -> None:
    assert [(row.device.short if row.device else row.backend, row.status) for row in rows()] == [
        ("cpu:0", "ready"),
        ("cuda:0", "ready"),
        ("opencl:0", "left out"),
        ("cuda:1", "broken"),
        ("jax", "missing"),
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_the_table_fits_the_terminal(width: int) -> None:
    assert max(len(line.rstrip()) for line in printed(width).splitlines()) <= width


def test_eighty_columns_cut_names_and_nothing_else() -> None:
    text = printed(80)
    for word in ("cuda:0", "NVIDIA GeForce", "24 GB", "GFLOP/s", "left out", "broken"):
        assert word in text


def test_a_wide_terminal_cuts_nothing() -> None:
    assert "…" not in printed(120)
    assert "NVIDIA GeForce RTX 4090" in printed(120)


def test_what_cannot_be_used_says_why_and_how_to_get_it() -> None:
    text = " ".join(printed(80).split())
    assert "same silicon as h0/cpu:0 → to use it, name it, as in: --devices opencl" in text
    assert "too old for torch 2.13.0 → install a torch built for it" in text
    assert "jax is not installed → pip install jax" in text


def test_a_name_with_brackets_is_shown_as_it_is() -> None:
    assert "pocl [cpu]" in printed(120)


def test_the_json_of_this_host_is_one_document_with_every_back_end() -> None:
    done = hetero("devices", "--json")
    listed = json.loads(done.stdout)["devices"]
    assert done.returncode == 0, done.stderr
    assert {"cpu", "null"} <= {device["backend"] for device in listed}
    ready = [device for device in listed if device["status"] == "ready"]
    assert ready
    assert all(device["reason"] for device in listed if device["status"] != "ready")
    assert all(device["now"]["temperature_c"] != 0 for device in listed)


def test_a_named_fleet_is_shown_with_its_throttle() -> None:
    done = hetero("devices", "--devices", "1xcpu,1xcpu*0.25,null")
    assert "× 0.25" in done.stdout
    assert "h0/cpu:1 is throttled to 0.25" in done.stdout
    assert "simulated" in done.stdout


def test_a_probe_measures_and_the_result_is_kept(tmp_path: Path) -> None:
    words = ("devices", "--devices", "1xcpu", "--json")
    home = {"HETERO_HOME": str(tmp_path)}
    (unmeasured,) = json.loads(hetero(*words, **home).stdout)["devices"]
    (measured,) = json.loads(hetero(*words, "--probe", **home).stdout)["devices"]
    (remembered,) = json.loads(hetero(*words, **home).stdout)["devices"]
    assert unmeasured["flop_per_s"] is None
    assert measured["flop_per_s"] > 1e8
    assert remembered["flop_per_s"] == measured["flop_per_s"]


def test_a_device_that_cannot_be_measured_is_listed_with_the_reason_and_not_told_to_probe_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    why = "the probe failed: h0/cpu:0 cannot be measured: TypeError: unsupported operand type(s) for @"
    asked: list[str] = []

    def measured(device: Device) -> tuple[None, str]:
        asked.append(device.short)
        return None, why

    monkeypatch.setenv("HETERO_HOME", str(tmp_path))
    monkeypatch.setattr(probe, "measure", measured)
    words = ["devices", "--devices", "1xcpu,1xcpu*0.5"]
    told = " ".join(CliRunner().invoke(app, [*words, "--probe"]).stdout.split())
    assert f"cpu:0 could not be measured: {why} cpu:1 could not be measured: {why}" in told
    assert "hetero devices --probe" not in told
    assert asked == ["cpu:0"]
    document = json.loads(CliRunner().invoke(app, [*words, "--probe", "--json"]).stdout)
    assert f"cpu:1 could not be measured: {why}" in document["notes"]
    assert "hetero devices --probe" in CliRunner().invoke(app, words).stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("command", [("devices",), ("devices", "--json"), ("doctor",), ("doctor", "--json")])
def test_a_terminal_of_any_encoding_shows_the_list(encoding: str, command: tuple[str, ...]) -> None:
    done = hetero(*command, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fleet_that_is_not_here_exits_with_the_reason() -> None:
    done = hetero("devices", "--devices", "cpu/1000cores")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hetero: 'cpu/1000cores' is absent: it asks for 1000 cores")


def test_a_configuration_that_names_absent_devices_gives_one_that_works(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "devices:\n- {type: FPGA, id: 7}\n- {type: TPU}\n- {type: NPU, optional: true}\n- {type: CPU, cores: 1}\n"
        "communication: {protocol: rdma}\n"
    )
    done = hetero("devices", "--config", str(tmp_path / "a.yaml"))
    assert done.returncode == 3
    first, _, works = done.stderr.partition("devices:\n")
    assert first.startswith("hetero: 2 configured devices are absent:")
    assert "a.yaml:2: fpga 7" in first
    assert "a.yaml:3: tpu" in first
    assert "communication.protocol: 'rdma' is not available" in first
    (tmp_path / "works.yaml").write_text(f"devices:\n{works}")
    assert hetero("devices", "--config", str(tmp_path / "works.yaml")).returncode == 0
