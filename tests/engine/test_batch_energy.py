"""Limits of energy: told, counted by the kernel, catalogued, or known to nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hetero
from hetero.backends.host import PackageEnergy
from hetero.batch.base import EnergyLimitError
from hetero.batch.budget import EnergyMeter
from hetero.batch.options import BatchLimits, BatchOptions
from hetero.batch.recipe import read_batch_recipe
from hetero.floor.errors import BadValueError
from hetero.model.device import Device, DeviceType


@pytest.fixture(scope="module")
def threads() -> Iterator[hetero.Context]:
    with hetero.Context(devices="2xcpu", isolation="thread", history=False) as context:
        yield context


def counters(root: Path, **microjoules: int) -> PackageEnergy:
    """Write what the kernel shows, and read it."""
    for number, (name, count) in enumerate(microjoules.items()):
        folder = root / f"sys/class/powercap/intel-rapl:{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(f"{name.replace('_', '-')}\n")
        (folder / "max_energy_range_uj").write_text("10000000\n")
        (folder / "energy_uj").write_text(f"{count}\n")
    return PackageEnergy(root)


def test_joules_of_all_packages_are_counted_also_when_a_counter_goes_round(tmp_path: Path) -> None:
    packages = counters(tmp_path, package_0=9_000_000, package_1=0, psys=5)
    assert packages.readable
    counters(tmp_path, package_0=1_000_000, package_1=500_000, psys=9_000_000)
    assert packages.joules() == pytest.approx(2.5)
    assert packages.joules() == pytest.approx(2.5)


def test_a_host_without_counters_is_not_readable(tmp_path: Path) -> None:
    assert not PackageEnergy(tmp_path).readable
    assert not counters(tmp_path, psys=5).readable


def test_what_the_user_says_goes_before_counters_and_these_before_the_catalog(tmp_path: Path) -> None:
    cpu = Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu", name="a CPU", cores=1)
    packages = counters(tmp_path, package_0=0)
    assert EnergyMeter(cpu, 65.0, packages).origin == "told"
    assert EnergyMeter(cpu, None, packages).origin == "counted"
    assert EnergyMeter(cpu, None, PackageEnergy(tmp_path / "none")).origin == ""
    gpu = Device("h0/cuda:0", "cuda", DeviceType("GPU"), "cuda", name="H100-SXM", simulated=True)
    assert EnergyMeter(gpu, None, packages).origin == "catalog"


def test_a_run_that_takes_more_energy_than_allowed_ends_and_goes_on_when_more_is_allowed(
    threads: hetero.Context, tmp_path: Path
) -> None:
    out, watts = tmp_path / "out", {"cpu:0": 36_000.0, "cpu": 36_000.0}

    def slowly(batch: list[int]) -> list[int]:
        time.sleep(0.01 * len(batch))
        return batch

    with pytest.raises(EnergyLimitError, match=r"not done with 5 Wh: \d+ records have results"):
        threads.map_batches(
            slowly,
            range(200),
            batch=4,
            options=BatchOptions(part=10),
            output=out,
            limits=BatchLimits(energy="5Wh", watts=watts),
        )
    found = threads.map_batches(
        slowly,
        range(200),
        batch=4,
        options=BatchOptions(part=10),
        output=out,
        resume=True,
        limits=BatchLimits(watts=watts),
    )
    lines = [line for path in sorted(out.glob("part-*")) for line in path.read_text().splitlines()]
    assert lines == [str(x) for x in range(200)]
    assert 0.0 < found.energy_j <= 72_000.0 * found.seconds
    assert found.as_dict()["energy_j"] == found.energy_j


def test_nothing_is_counted_where_nobody_asked(threads: hetero.Context) -> None:
    assert threads.map_batches(lambda batch: batch, range(10)).energy_j == 0.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"energy": 5}, "5 has no unit"),
        ({"energy": "5 kw"}, "no known unit"),
        ({"energy": "0Wh"}, "energy='0Wh' is not allowed"),
        ({"energy": "5Wh", "watts": {"cpu": 0}}, r"watts\['cpu'\]=0 is not allowed"),
        ({"energy": "5Wh", "watts": {"cpuu": 5}}, "watts='cpuu'"),
    ],
)
def test_wrong_limits_of_energy_are_told_before_anything_runs(
    threads: hetero.Context, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadValueError, match=words):
        threads.map_batches(lambda batch: batch, range(10), limits=BatchLimits(**options))


def test_a_limit_of_energy_on_a_device_whose_power_nobody_knows_is_refused_in_one_line(
    threads: hetero.Context, tmp_path: Path
) -> None:
    if PackageEnergy().readable:
        pytest.skip("this host counts what its processors draw")
    out = tmp_path / "out"
    with pytest.raises(BadValueError, match=r"a limit of energy needs to know what cpu:1 draws.*watts=\{'cpu:1': 65\}"):
        threads.map_batches(
            lambda batch: batch, range(10), output=out, limits=BatchLimits(energy="5Wh", watts={"cpu:0": 65})
        )
    assert not out.exists()


def test_a_job_in_a_file_limits_energy_with_the_same_words(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def work(batch):\n    return batch\n")
    job = tmp_path / "job.yaml"
    job.write_text("function: job.py:work\nsource: [1, 2, 3]\nenergy: 2kWh\nwatts: {cpu: 65}\n")
    read = read_batch_recipe(job)
    found = hetero.batch.map_batches(
        read.function, read.source, devices="1xcpu", options=read.options, limits=read.limits
    )
    assert found.value == [1, 2, 3]
    assert found.energy_j > 0.0
