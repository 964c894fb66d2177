"""Probes in child processes: what crashes or hangs is a reason, and answers are remembered as long as they hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from hetero.backends import probe, registry
from hetero.floor import settings
from hetero.session import fleet
from hetero.session.disk_cache import DiskCache

pytestmark = pytest.mark.slow

_PLUGIN = """
import os, time
from hetero.backends.base import Found
from hetero.backends.null import NullBackend

class Crash(NullBackend):
    name = "crash"
    heavy = True

    @classmethod
    def _probe(cls):
        os.abort()

class Hang(NullBackend):
    name = "hang"
    heavy = True

    @classmethod
    def _probe(cls):
        print("a library talks on standard output")
        time.sleep(600)

class Exits(NullBackend):
    name = "exits"
    heavy = True

    @classmethod
    def _probe(cls):
        raise SystemExit("licence expired")
"""
_ENTRIES = """[hetero.backends]
crash = vendor:Crash
hang = vendor:Hang
exits = vendor:Exits
gone = vendor_that_is_gone:Backend
cpu = vendor:Crash
odd = json:dumps
"""


@pytest.fixture
def vendor(tmp_path: Path) -> dict[str, str]:
    """Install a package with broken back ends for child processes; return their environment."""
    (tmp_path / "vendor.py").write_text(_PLUGIN)
    info = tmp_path / "vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_ENTRIES)
    return os.environ | {"PYTHONPATH": str(tmp_path)}


def _python(code: str, env: dict[str, str]) -> str:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_back_ends_of_other_packages_are_found_and_broken_ones_carry_their_reason(vendor: dict[str, str]) -> None:
    out = _python(
        """
        from hetero.backends import registry
        print(registry.names())
        for found in registry.broken():
            print(found.backend, "|", found.reason)
        """,
        vendor,
    )
    names, *broken = out.splitlines()
    assert "'crash'" in names
    assert "'gone'" not in names
    assert any(line.startswith("gone | ") and "ModuleNotFoundError" in line for line in broken)
    assert any(line.startswith("cpu | ") and "the name 'cpu' is taken" in line for line in broken)
    assert any(line.startswith("odd | ") and "is no subclass" in line for line in broken)


def test_a_probe_that_crashes_hangs_or_exits_is_a_reason_and_leaves_no_process(vendor: dict[str, str]) -> None:
    out = _python(
        """
        import json, psutil
        from hetero.backends import probe
        found = probe.probe(("crash", "exits")) | probe.probe(("hang",), deadline_s=2.0)
        print(json.dumps({name: [one.reason for one in answer[0]] for name, answer in found.items()}))
        print(len(psutil.Process().children()))
        """,
        vendor,
    )
    reasons, children = out.splitlines()
    assert json.loads(reasons) == {
        "crash": ["the probe died of SIGABRT"],
        "hang": ["the probe gave no answer within 2 s"],
        "exits": ["the probe failed: licence expired"],
    }
    assert children == "0"


def test_a_python_that_is_not_there_is_a_reason() -> None:
    found, answered = probe.probe(("torch",), python="/no/such/python")["torch"]
    assert not answered
    assert "/no/such/python" in found[0].reason


def test_a_probe_in_a_child_finds_what_a_probe_here_finds() -> None:
    here = registry.load("torch").probe()
    found, answered = probe.probe(("torch",))["torch"]
    assert answered
    assert found == here


def test_a_survey_is_remembered_and_loads_no_framework() -> None:
    fleet.survey()
    out = _python(
        """
        import sys
        from hetero.backends import probe
        from hetero.session import fleet
        def refuse(questions, *args):
            assert not questions, "asked again"
            return ()
        probe.ask = refuse
        found = fleet.survey()
        fleet.choose(found)
        heavy = {"torch", "jax", "ray", "numba", "scipy", "pyopencl", "wgpu"}
        print(len(found), sorted(heavy & set(sys.modules)))
        """,
        dict(os.environ),
    )
    assert out.split(maxsplit=1)[1].strip() == "[]"


def test_a_damaged_file_of_probes_is_ignored_and_written_anew() -> None:
    path = settings.home() / "probes.json"
    before = fleet.survey(only=["torch"])
    path.write_text('{"torch": {"key": "x", "fo')
    assert fleet.survey(only=["torch"]) == before
    assert json.loads(path.read_text())["torch"]["answered"] is True


def test_a_changed_variable_of_a_vendor_makes_a_probe_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.survey(only=["torch"])
    asked = DiskCache("probes.json").read()["torch"]["at_s"]
    fleet.survey(only=["torch"])
    assert DiskCache("probes.json").read()["torch"]["at_s"] == asked
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    fleet.survey(only=["torch"])
    assert DiskCache("probes.json").read()["torch"]["at_s"] > asked


def test_speeds_are_measured_once_for_equal_devices_and_scale_with_the_throttle() -> None:
    devices = fleet.from_spec("1xcpu,1xcpu*0.25,1xnull")
    full, quarter, null = fleet.measure(devices)
    assert full.flop_per_s
    assert full.bytes_per_s
    assert quarter.flop_per_s == full.flop_per_s * 0.25
    assert quarter.bytes_per_s == full.bytes_per_s * 0.25
    assert null.flop_per_s is None
    assert fleet.measure(devices) == (full, quarter, null)


def test_a_link_of_an_opencl_device_on_the_cpu_is_measured_and_its_node_has_its_size() -> None:
    from tests.needs import need

    need("opencl")
    devices = [one for one in fleet.measure(fleet.from_spec("1xcpu,1xopencl")) if one.type == "CPU"]
    topology = fleet.topology(devices)
    link = topology.link("h0/ram", "h0/opencl:0")
    assert link is not None
    assert link.kind == "memory"
    assert link.bandwidth_bytes_per_s > 0
    assert topology.nodes[1].capacity_bytes == devices[1].memory_bytes


def test_status_of_devices_that_are_not_open_is_sane() -> None:
    cpu, null = fleet.status(fleet.from_spec("1xcpu,1xnull"))
    assert cpu.used_bytes
    assert cpu.free_bytes
    assert null.as_dict() == dict.fromkeys(null.as_dict())


def test_another_python_is_probed_with_its_own_packages(tmp_path: Path) -> None:
    import venv

    import numpy as np

    venv.create(tmp_path / "other", with_pip=False)
    python = tmp_path / "other" / "bin" / "python"
    packages = next((tmp_path / "other" / "lib").glob("python*/site-packages"))
    for name in ("numpy", "numpy.libs"):
        source = Path(np.__file__).parent.parent / name
        if source.exists():
            (packages / name).symlink_to(source)
    (found,) = fleet.survey(only=["torch"], python=str(python))
    assert "'torch' is not installed" in found.reason
    device = replace(fleet.from_spec("1xcpu")[0], python=str(python))
    (measured,) = fleet.measure([device])
    assert measured.flop_per_s
