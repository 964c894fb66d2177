"""NVIDIA's management library (NVML): what it says of each GPU, and what that means.

In: plain values as NVML gives them. Out: status and links. `read` alone talks to the library, and gives
nothing where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import permutations
from types import ModuleType
from typing import Any, NamedTuple

from hetero.backends.host import pci_silicon
from hetero.model.device import HOST_NODE, DeviceStatus
from hetero.model.topology import Link

__all__ = ["GpuReading", "NvLink", "links_of", "pcie_bytes_per_s", "read", "status_of"]

PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes/s of one lane in one direction by PCIe generation (PCI-SIG base specifications, after line coding)."""

NVLINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
"""Bytes/s of one NVLink in one direction by version (NVIDIA architecture papers: P100, V100, A100, H100, B200)."""

PCIE_LATENCY_S = 10e-6
NVLINK_LATENCY_S = 5e-6
_MAX_NVLINKS = 18
_SWITCH = 2


class NvLink(NamedTuple):
    """One active NVLink: its version, and the PCI address at its other end, '' where that is a switch."""

    version: int
    remote_pci: str


class GpuReading(NamedTuple):
    """What NVML told of one GPU; a field that it does not tell is None.

    Attributes
    ----------
    name, pci, driver
        Text as NVML writes it.
    total_bytes, used_bytes, free_bytes
        Bytes.
    utilisation_percent
        0..100.
    temperature_c
        Degrees Celsius.
    power_mw
        MW.
    pcie_generation, pcie_width
        The largest that card and slot can do; the present one falls while idle.
    nvlinks
        Active links.
    """

    name: str
    pci: str
    driver: str = ""
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    utilisation_percent: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: tuple[NvLink, ...] = ()


def read() -> tuple[GpuReading, ...]:
    """Ask NVML for every GPU; () where the library, its Python package or a GPU is absent."""
    if find_spec("pynvml") is None:
        return ()
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001  no driver, no library, or one that does not fit
        return ()
    try:
        return tuple(_read_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    except Exception:  # noqa: BLE001  a driver that answers half
        return ()
    finally:
        pynvml.nvmlShutdown()


def _ask(call: Callable[..., object], *args: object) -> Any:
    try:
        answer = call(*args)
    except Exception:  # noqa: BLE001  NVML raises for each thing that a GPU does not tell
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


def _read_gpu(nvml: ModuleType, index: int) -> GpuReading:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    use = _ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    return GpuReading(
        name=_ask(nvml.nvmlDeviceGetName, handle) or "NVIDIA GPU",
        pci=_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        driver=_ask(nvml.nvmlSystemGetDriverVersion) or "",
        total_bytes=getattr(memory, "total", None),
        used_bytes=getattr(memory, "used", None),
        free_bytes=getattr(memory, "free", None),
        utilisation_percent=getattr(use, "gpu", None),
        temperature_c=_ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        power_mw=_ask(nvml.nvmlDeviceGetPowerUsage, handle),
        pcie_generation=_ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_width=_ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        nvlinks=_read_nvlinks(nvml, handle),
    )


def _read_nvlinks(nvml: ModuleType, handle: object) -> tuple[NvLink, ...]:
    found = []
    for number in range(_MAX_NVLINKS):
        version = _ask(nvml.nvmlDeviceGetNvLinkVersion, handle, number)
        if not version or not _ask(nvml.nvmlDeviceGetNvLinkState, handle, number):
            continue
        to_switch = _ask(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number) == _SWITCH
        remote = None if to_switch else _ask(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
        found.append(NvLink(int(version), "" if remote is None else _text(remote.busId)))
    return tuple(found)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def status_of(gpu: GpuReading) -> DeviceStatus:
    """Turn a reading into a status.

    Examples
    --------
    >>> status_of(GpuReading("T4", "0000:00:04.0", used_bytes=5, utilisation_percent=50, power_mw=70_000))
    DeviceStatus(used_bytes=5, free_bytes=None, utilisation_frac=0.5, temperature_c=None, power_w=70.0)
    """
    return DeviceStatus(
        used_bytes=gpu.used_bytes,
        free_bytes=gpu.free_bytes,
        utilisation_frac=None if gpu.utilisation_percent is None else gpu.utilisation_percent / 100,
        temperature_c=None if gpu.temperature_c is None else float(gpu.temperature_c),
        power_w=None if gpu.power_mw is None else gpu.power_mw / 1000,
    )


def pcie_bytes_per_s(generation: int | None, width: int | None) -> float | None:
    """Return the bandwidth of a PCIe link in one direction, None where it is unknown.

    Examples
    --------
    >>> pcie_bytes_per_s(4, 16) / 1e9
    31.504
    """
    lane = PCIE_LANE_BYTES_PER_S.get(generation or 0)
    return None if lane is None or not width else lane * width


def links_of(gpus: Sequence[GpuReading], node_of: Mapping[str, str]) -> tuple[Link, ...]:
    """Derive the directed links of GPUs whose memory nodes are known.

    Parameters
    ----------
    gpus
        One reading a GPU.
    node_of
        Memory node by silicon id, as `pci_silicon` gives it.

    Returns
    -------
    tuple
        PCIe to and from the host, then NVLinks between GPUs. Links of one pair are one link of their summed
        bandwidth. Through a switch a GPU reaches every other with all its links, and its links share one bus.
    """
    known = [(gpu, node_of[pci_silicon(gpu.pci)]) for gpu in gpus if pci_silicon(gpu.pci) in node_of]
    links: list[Link] = []
    for gpu, node in known:
        speed = pcie_bytes_per_s(gpu.pcie_generation, gpu.pcie_width)
        if speed is not None:
            links.append(Link(HOST_NODE, node, PCIE_LATENCY_S, speed, kind="pcie"))
            links.append(Link(node, HOST_NODE, PCIE_LATENCY_S, speed, kind="pcie"))
    for (one, src), (other, dst) in permutations(known, 2):
        direct, switched = _between(one, other), min(_switched(one), _switched(other))
        if direct or switched:
            bus = "" if direct else f"{src}/nvlink"
            links.append(Link(src, dst, NVLINK_LATENCY_S, direct or switched, bus, "nvlink"))
    return tuple(links)


def _between(one: GpuReading, other: GpuReading) -> float:
    target = pci_silicon(other.pci)
    return sum(
        NVLINK_BYTES_PER_S.get(link.version, 0.0)
        for link in one.nvlinks
        if link.remote_pci and pci_silicon(link.remote_pci) == target
    )


def _switched(gpu: GpuReading) -> float:
    return sum(NVLINK_BYTES_PER_S.get(link.version, 0.0) for link in gpu.nvlinks if not link.remote_pci)
