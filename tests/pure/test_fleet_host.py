"""What a host tells of itself, read from files as the kernel writes them, and NVML's plain values."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero.backends import host
from hetero.backends.nvidia import GpuReading, NvLink, links_of, pcie_bytes_per_s, status_of
from hetero.backends.probe import found_from
from hetero.model.device import DeviceStatus
from hetero.session.disk_cache import DiskCache
from hetero.session.fleet import _remembered


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cpu_files(cpu: int, package: int, core: int) -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu}"
    return {
        f"{folder}/topology/physical_package_id": f"{package}\n",
        f"{folder}/topology/core_id": f"{core}\n",
        f"{folder}/node{package}/cpulist": "",
    }


def test_the_threads_of_one_core_are_neighbours(tmp_path: Path) -> None:
    for cpu, (package, core) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)] * 2):
        write(tmp_path, cpu_files(cpu, package, core))
    assert host.cpus(tmp_path, range(8)) == (0, 4, 1, 5, 2, 6, 3, 7)
    assert host.numa_node(6, tmp_path) == 1


@pytest.mark.parametrize(("quota", "count"), [("max 100000", 4), ("150000 100000", 2), ("10000 100000", 1), ("", 4)])
def test_a_quota_of_the_control_group_cuts_the_cores(tmp_path: Path, quota: str, count: int) -> None:
    write(tmp_path, {"sys/fs/cgroup/cpu.max": quota})
    assert len(host.cpus(tmp_path, range(4))) == count


def test_groups_are_equal_where_they_can_be_and_lose_no_core() -> None:
    for total in range(1, 200):
        parts = host.groups(range(total))
        sizes = [len(part) for part in parts]
        assert [cpu for part in parts for cpu in part] == list(range(total))
        assert len(parts) == total if total <= 8 else 4 <= len(parts) <= 8
        assert max(sizes) - min(sizes) <= 1


def test_a_memory_limit_of_the_control_group_counts(tmp_path: Path) -> None:
    assert host.ram_bytes(write(tmp_path, {"sys/fs/cgroup/memory.max": "1000000\n"})) == 1_000_000
    assert host.ram_bytes(write(tmp_path, {"sys/fs/cgroup/memory.max": "max\n"})) > 1_000_000


def pci(address: str, kind: str, vendor: str, device: str) -> dict[str, str]:
    folder = f"sys/bus/pci/devices/{address}"
    return {f"{folder}/class": kind, f"{folder}/vendor": vendor, f"{folder}/device": device}


def test_one_card_has_one_silicon_id_whichever_runtime_sees_it(tmp_path: Path) -> None:
    write(tmp_path, pci("0000:01:00.0", "0x030000", "0x10de", "0x2204"))
    write(tmp_path, pci("0000:02:00.0", "0x030200", "0x10de", "0x2204"))
    write(tmp_path, pci("0000:03:00.0", "0x038000", "0x1002", "0x744c"))
    write(tmp_path, pci("0000:04:00.0", "0x020000", "0x8086", "0x1521"))
    assert [one.address[5:7] for one in host.pci_accelerators(tmp_path)] == ["01", "02", "03"]
    assert host.chip(0x10DE, 0x2204, 1, tmp_path) == host.pci_silicon("00000000:02:00.0")
    assert host.chip(0x1002, None, 0, tmp_path) == "h0/pci:0000:03:00.0"
    assert host.chip(0x10DE, None, 0, tmp_path) == "h0/gpu:10de:0"


def test_amd_status_reads_what_is_there_and_leaves_the_rest_unknown(tmp_path: Path) -> None:
    folder = "sys/bus/pci/devices/0000:03:00.0"
    write(tmp_path, {f"{folder}/mem_info_vram_total": "1000", f"{folder}/mem_info_vram_used": "400"})
    assert host.amd_status("0000:03:00.0", tmp_path) == DeviceStatus(used_bytes=400, free_bytes=600)
    sensors = {f"{folder}/hwmon/hwmon3/temp1_input": "45000", f"{folder}/hwmon/hwmon3/power1_average": "75000000"}
    write(tmp_path, sensors | {f"{folder}/gpu_busy_percent": "50"})
    assert host.amd_status("0000:03:00.0", tmp_path) == DeviceStatus(400, 600, 0.5, 45.0, 75.0)
    assert host.amd_status("0000:09:00.0", tmp_path) == DeviceStatus()


def test_what_nvml_does_not_tell_is_unknown_and_not_zero() -> None:
    assert status_of(GpuReading("T4", "0000:01:00.0")) == DeviceStatus()
    full = GpuReading("T4", "0000:01:00.0", "550", 10, 4, 6, 0, 40, 70_500)
    assert status_of(full) == DeviceStatus(4, 6, 0.0, 40.0, 70.5)


def test_pcie_bandwidth_is_lanes_times_generation_and_unknown_stays_unknown() -> None:
    assert pcie_bytes_per_s(3, 16) == pytest.approx(15.76e9)
    assert pcie_bytes_per_s(9, 16) is None
    assert pcie_bytes_per_s(None, 16) is None
    assert pcie_bytes_per_s(4, None) is None


NODES = {f"h0/pci:0000:0{n}:00.0": f"h0/cuda:{n}" for n in range(3)}


def test_nvlinks_of_a_pair_add_up_and_go_both_ways() -> None:
    gpus = [
        GpuReading("A", "00000000:00:00.0", nvlinks=(NvLink(3, "00000000:01:00.0"), NvLink(3, "0000:01:00.0"))),
        GpuReading("A", "00000000:01:00.0", nvlinks=(NvLink(3, "00000000:00:00.0"), NvLink(3, "0000:00:00.0"))),
        GpuReading("B", "00000000:02:00.0", pcie_generation=4, pcie_width=8),
    ]
    links = links_of(gpus, NODES)
    assert [(link.src, link.dst, link.kind, link.bandwidth_bytes_per_s) for link in links] == [
        ("h0/ram", "h0/cuda:2", "pcie", 8 * 1.969e9),
        ("h0/cuda:2", "h0/ram", "pcie", 8 * 1.969e9),
        ("h0/cuda:0", "h0/cuda:1", "nvlink", 50e9),
        ("h0/cuda:1", "h0/cuda:0", "nvlink", 50e9),
    ]


def test_through_a_switch_every_pair_is_linked_and_each_gpu_shares_its_own_links() -> None:
    gpus = [GpuReading("H", f"0000:0{n}:00.0", nvlinks=(NvLink(4, ""),) * 18) for n in range(3)]
    links = links_of(gpus, NODES)
    assert len(links) == 6
    assert {(link.bandwidth_bytes_per_s, link.bus) for link in links if link.src == "h0/cuda:0"} == {
        (450e9, "h0/cuda:0/nvlink")
    }


@pytest.mark.parametrize("damage", ["{", "[]", "3", "\udcff", ""])
def test_a_damaged_memory_is_as_good_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setenv("HETERO_HOME", str(tmp_path))
    kept = DiskCache("probes.json")
    assert kept.read() == {}
    kept.path.write_text(damage, errors="surrogateescape")
    assert kept.read() == {}
    kept.update({"a": 1})
    kept.update({"b": [2]})
    assert kept.read() == {"a": 1, "b": [2]}
    assert [path.name for path in tmp_path.iterdir()] == ["probes.json"]


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HETERO_HOME", str(tmp_path / "file" / "home"))
    DiskCache("probes.json").update({"a": 1})
    assert DiskCache("probes.json").read() == {}


@pytest.mark.parametrize("entry", [3, {}, {"key": "x"}, {"key": "x", "answered": True, "at_s": 0, "found": [{}]}, None])
def test_an_entry_that_is_no_finding_is_forgotten(entry: object) -> None:
    assert _remembered({"torch": entry}, ["torch"], "") == {}


@pytest.mark.parametrize("plain", [{}, {"device": None, "backend": 3, "reason": "", "remedy": ""}])
def test_what_is_no_finding_is_refused(plain: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        found_from(plain)
