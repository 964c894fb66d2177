"""What the operating system tells of this host: cores, memory, display adapters, driver versions.

In: /proc, /sys, /dev and psutil. Out: plain values. It must not load a vendor's library.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hetero.model.device import DeviceStatus

__all__ = [
    "PackageEnergy",
    "PciDevice",
    "amd_status",
    "chip",
    "core_ids",
    "cpu_name",
    "cpu_status",
    "cpus",
    "driver_facts",
    "file_text",
    "groups",
    "numa_node",
    "pci_accelerators",
    "pci_silicon",
    "ram_bytes",
]

ROOT = Path("/")
_ACCELERATOR_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")


class PciDevice(NamedTuple):
    """A display adapter or accelerator on the PCI bus; ids as the kernel writes them, in lower case."""

    address: str
    vendor_id: int
    device_id: int
    driver: str


def file_text(path: Path) -> str:
    """Return what a file of the system holds, without blanks around it; '' where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = file_text(path)
    return int(text) if text.lstrip("-").isdigit() else None


def _allowed_cpus() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _quota_cores(root: Path) -> int | None:
    quota, _, period = file_text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    if not (quota.isdigit() and period.isdigit()) or int(period) == 0:
        return None
    return max(1, math.ceil(int(quota) / int(period)))


def numa_node(cpu: int, root: Path = ROOT) -> int | None:
    """Return the NUMA node of a CPU number, None where the kernel does not tell."""
    nodes = sorted((root / f"sys/devices/system/cpu/cpu{cpu}").glob("node[0-9]*"))
    return int(nodes[0].name[4:]) if nodes else None


def cpus(root: Path = ROOT, allowed: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the CPU numbers that this process may use, near ones side by side.

    Parameters
    ----------
    allowed
        CPU numbers to order, None for those of this process.

    Returns
    -------
    tuple
        Ordered by NUMA node, socket, core and number, so that the threads of one core are neighbours; cut to
        the quota of the control group, rounded up.
    """

    def place(cpu: int) -> tuple[int, int, int, int]:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        package, core = _number(topology / "physical_package_id"), _number(topology / "core_id")
        return (numa_node(cpu, root) or 0, package or 0, cpu if core is None else core, cpu)

    ordered = sorted(_allowed_cpus() if allowed is None else allowed, key=place)
    return tuple(ordered[: _quota_cores(root)])


def groups(numbers: Sequence[int], most: int = 8) -> tuple[tuple[int, ...], ...]:
    """Cut CPU numbers into one group a core up to `most`, else into equal groups.

    Notes
    -----
    The number of groups is the largest from `most` down to half of it that divides the cores; where none
    does there are `most` groups, the first ones of one core more.

    Examples
    --------
    >>> groups((0, 1)), [len(group) for group in groups(range(12))], [len(group) for group in groups(range(11))]
    (((0,), (1,)), [2, 2, 2, 2, 2, 2], [2, 2, 2, 1, 1, 1, 1, 1])
    """
    total = len(numbers)
    if total <= most:
        return tuple((number,) for number in numbers)
    count = next((n for n in range(most, most // 2 - 1, -1) if total % n == 0), most)
    size, extra = divmod(total, count)
    starts = [index * size + min(index, extra) for index in range(count + 1)]
    return tuple(tuple(numbers[start:end]) for start, end in pairwise(starts))


def core_ids(numbers: Iterable[int]) -> tuple[str, ...]:
    """Return the silicon ids of CPU numbers.

    Examples
    --------
    >>> core_ids((0, 3))
    ('h0/core0', 'h0/core3')
    """
    return tuple(f"h0/core{number}" for number in numbers)


@cache
def cpu_name(root: Path = ROOT) -> str:
    """Return the maker's name of the CPU."""
    for line in file_text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return " ".join(value.split())
    return platform.processor() or platform.machine()


def ram_bytes(root: Path = ROOT) -> int:
    """Return the bytes of main memory that this process may use: the host's, or the control group's limit."""
    import psutil

    total = int(psutil.virtual_memory().total)
    limit = _number(root / "sys/fs/cgroup/memory.max")
    return total if limit is None else min(total, limit)


def cpu_status(busy_frac: float | None) -> DeviceStatus:
    """Return the host's memory and CPU temperature, with a utilisation that the caller measured."""
    import psutil

    memory = psutil.virtual_memory()
    return DeviceStatus(int(memory.total - memory.available), int(memory.available), busy_frac, _cpu_temperature_c())


def _cpu_temperature_c() -> float | None:
    import psutil

    if not hasattr(psutil, "sensors_temperatures"):
        return None
    sensors = psutil.sensors_temperatures()
    found = [
        entry.current for name in ("coretemp", "k10temp", "zenpower", "cpu_thermal") for entry in sensors.get(name, ())
    ]
    return float(max(found)) if found else None


def pci_accelerators(root: Path = ROOT) -> tuple[PciDevice, ...]:
    """Return the display adapters and accelerators on the PCI bus, in order of address."""
    found = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        if not file_text(folder / "class").startswith(_ACCELERATOR_CLASSES):
            continue
        vendor, device = file_text(folder / "vendor"), file_text(folder / "device")
        driver = folder / "driver"
        name = driver.resolve().name if driver.exists() else ""
        found.append(PciDevice(folder.name.lower(), int(vendor, 16), int(device, 16), name))
    return tuple(found)


def pci_silicon(address: str) -> str:
    """Return the silicon id of a PCI address, whatever its spelling.

    Examples
    --------
    >>> pci_silicon("00000000:3B:00.0"), pci_silicon("0000:3b:00.0")
    ('h0/pci:0000:3b:00.0', 'h0/pci:0000:3b:00.0')
    """
    domain, _, rest = address.lower().partition(":")
    return f"h0/pci:{domain[-4:]}:{rest}"


def amd_status(address: str, root: Path = ROOT) -> DeviceStatus:
    """Read what the amdgpu driver tells of the device at a PCI address; what it does not tell is None."""
    folder = root / "sys/bus/pci/devices" / address
    total, used = _number(folder / "mem_info_vram_total"), _number(folder / "mem_info_vram_used")
    busy = _number(folder / "gpu_busy_percent")
    sensors = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder / "none")
    temperature = _number(sensors / "temp1_input")
    power = _number(sensors / "power1_average") or _number(sensors / "power1_input")
    return DeviceStatus(
        used_bytes=used,
        free_bytes=None if total is None or used is None else total - used,
        utilisation_frac=None if busy is None else busy / 100,
        temperature_c=None if temperature is None else temperature / 1000,
        power_w=None if power is None else power / 1e6,
    )


def driver_facts(root: Path = ROOT) -> tuple[str, ...]:
    """Return what changes when a driver or a device of this host changes: device files, versions, vendor files."""
    facts = [platform.node(), platform.release(), cpu_name(root), str(cpus(root))]
    facts += [
        file_text(root / "proc/driver/nvidia/version").partition("\n")[0],
        file_text(root / "sys/module/amdgpu/version"),
    ]
    for pattern in ("dev/nvidia[0-9]*", "dev/dri/render*", "dev/kfd", "dev/dxg", "dev/accel*", "dev/vfio/*"):
        facts += [str(path) for path in sorted(root.glob(pattern))]
    for pattern in ("etc/OpenCL/vendors/*", "usr/share/vulkan/icd.d/*", "etc/vulkan/icd.d/*"):
        facts += [f"{path}@{path.stat().st_mtime_ns}" for path in sorted(root.glob(pattern)) if path.exists()]
    return tuple(facts)


def chip(vendor_id: int, device_id: int | None, ordinal: int, root: Path = ROOT) -> str:
    """Return the silicon id of a GPU that a runtime knows only by the numbers of its maker and model.

    Parameters
    ----------
    device_id
        The model's number, None where the runtime does not tell it.
    ordinal
        Which of several equal ones, in the runtime's order.

    Notes
    -----
    Where the bus has no such GPU, or several that cannot be told apart, the id is one that nothing shares.
    """
    fitting = [pci for pci in pci_accelerators(root) if pci.vendor_id == vendor_id]
    equal = [pci for pci in fitting if pci.device_id == device_id]
    if ordinal < len(equal):
        return pci_silicon(equal[ordinal].address)
    if device_id is None and len(fitting) == 1:
        return pci_silicon(fitting[0].address)
    return f"h0/gpu:{vendor_id:04x}:{ordinal}"


class PackageEnergy:
    """Adds up the energy of all processor packages, from when it is made; a counter that may not be read is not there.

    Parameters
    ----------
    root
        Of the file system.

    Attributes
    ----------
    readable
        Whether there is a counter that may be read.
    """

    def __init__(self, root: Path = ROOT) -> None:
        folders = sorted((root / "sys/class/powercap").glob("*-rapl:*"))
        packages = [folder for folder in folders if file_text(folder / "name").startswith("package")]
        last = {folder: _number(folder / "energy_uj") for folder in packages}
        self._last = {folder: count for folder, count in last.items() if count is not None}
        self._joules = 0.0
        self.readable = bool(self._last)

    def joules(self) -> float:
        """Return the joules until now; a counter that went round is counted on from 0."""
        for folder, before in self._last.items():
            now = _number(folder / "energy_uj")
            if now is None:
                continue
            grown = now - before
            if grown < 0:
                grown += _number(folder / "max_energy_range_uj") or 0
            self._joules += max(0, grown) * 1e-6
            self._last[folder] = now
        return self._joules
