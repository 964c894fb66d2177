"""Devices: one schedulable compute unit each, as a value.

In: facts from a probe or a configuration. Out: a frozen value. It must not talk to hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "HOST_NODE",
    "KINDS",
    "TYPE_WORDS",
    "Device",
    "DeviceKind",
    "DeviceStatus",
    "DeviceType",
    "index_of",
    "is_host_kind",
    "is_id",
]

HOST_NODE = "h0/ram"
"""The memory node of this host's main memory."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """What the devices of one kind have in common; whoever needs to know asks here and never for a name.

    Attributes
    ----------
    name
        As in 'cuda': the word in ids, requests and configurations; letters, digits, '_' and '-', in lower case.
    type
        Broad type of its devices where nothing more is known: 'CPU', 'GPU', 'TPU', 'NPU', 'FPGA', or another word.
    runs_python
        False where its devices take kernels and no Python functions.
    shares_memory
        True where an array that is copied in may share the bytes of the host's array that it was made from.
    is_host
        True where its devices compute on the host's cores in the host's memory: cores are handed out among them, and a
        limit of memory is one of their process.
    unified_memory
        True where host and device use the same memory.
    float64
        True where its devices compute with float64 in every runtime that hetero knows but JAX.
    torch
        torch's name of such a device, as in 'cuda:{index}'; '' where torch cannot use it.
    collectives
        torch's library that adds up tensors between such devices, as in 'nccl'; '' where they go by way of the host.
    onnx
        ONNX Runtime's execution provider for such devices; '' where it computes on the host.
    visible
        Environment variable that lists the devices which a process may see, '' where there is none.

    Examples
    --------
    >>> KINDS["rocm"].torch_place(1), KINDS["mps"].torch_place(0), KINDS["tpu"].torch_place(0)
    ('cuda:1', 'mps', '')
    """

    name: str
    type: str = "GPU"
    runs_python: bool = True
    shares_memory: bool = False
    is_host: bool = False
    unified_memory: bool = False
    float64: bool = False
    torch: str = ""
    collectives: str = ""
    onnx: str = ""
    visible: str = ""

    def torch_place(self, index: int) -> str:
        """Return torch's name of the device with this index, '' where torch cannot use it."""
        return self.torch.format(index=index)


KINDS: Mapping[str, DeviceKind] = {
    kind.name: kind
    for kind in (
        DeviceKind("cpu", "CPU", shares_memory=True, is_host=True, unified_memory=True, float64=True, torch="cpu"),
        DeviceKind(
            "cuda",
            float64=True,
            torch="cuda:{index}",
            collectives="nccl",
            onnx="CUDAExecutionProvider",
            visible="CUDA_VISIBLE_DEVICES",
        ),
        DeviceKind(
            "rocm",
            float64=True,
            torch="cuda:{index}",
            collectives="nccl",
            onnx="ROCMExecutionProvider",
            visible="HIP_VISIBLE_DEVICES",
        ),
        DeviceKind("xpu", torch="xpu:{index}", collectives="xccl", visible="ZE_AFFINITY_MASK"),
        DeviceKind("mps", unified_memory=True, torch="mps"),
        DeviceKind("tpu", "TPU"),
        DeviceKind("npu", "NPU", torch="npu:{index}"),
        DeviceKind("hpu", torch="hpu:{index}"),
        DeviceKind("neuron"),
        DeviceKind("fpga", "FPGA", runs_python=False),
        DeviceKind("opencl", runs_python=False),
        DeviceKind("vulkan", runs_python=False),
        DeviceKind("null", "NULL", shares_memory=True),
    )
}
"""The device kinds that hetero brings; packages declare others, see `hetero.backends.registry.kinds`."""

TYPE_WORDS = ("cpu", "gpu", "tpu", "npu", "fpga", "null", "any")
"""The broad types of devices as requests name them, and the word for all of them."""

_INDEX = re.compile("0|[1-9][0-9]{0,8}")
_ID = re.compile(rf"(?:[^:/\s]+/)?[^:/\s]+:(?:{_INDEX.pattern})")


def index_of(text: str) -> int | None:
    """Return the index of a device as it is written in ids: no sign, no blank, no leading zero; None for others.

    Examples
    --------
    >>> index_of("12"), index_of("01"), index_of("+1"), index_of("\u0661")
    (12, None, None, None)
    """
    return int(text) if _INDEX.fullmatch(text) else None


def is_id(text: str) -> bool:
    """Return whether a text is written like the id of a device, with its host or without.

    Examples
    --------
    >>> is_id("h0/cuda:1"), is_id("cpu:0"), is_id("cpu: 0"), is_id("h0/cpu")
    (True, True, False, False)
    """
    return _ID.fullmatch(text) is not None


def is_host_kind(name: str) -> bool:
    """Return whether a kind of `KINDS` computes on the host's cores.

    Examples
    --------
    >>> is_host_kind("cpu"), is_host_kind("cuda"), is_host_kind("another")
    (True, False, False)
    """
    return name in KINDS and KINDS[name].is_host


class DeviceType(str):
    """The broad type of a device, 'CPU', 'GPU', 'TPU', …; it compares without regard to case.

    Examples
    --------
    >>> DeviceType("GPU") == "gpu", DeviceType("GPU") in ("cpu", "gpu"), DeviceType("GPU") != "Gpu"
    (True, True, False)
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.casefold() == other.casefold()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.casefold())


@dataclass(frozen=True, slots=True)
class Device:
    """One schedulable compute unit.

    Attributes
    ----------
    id
        'host/label:index', as in 'h0/cuda:1' The label is the kind, or the back end's own label where one silicon has
        several runtimes ('h0/torch-cpu:0').
    kind
        Name of its `DeviceKind`, as in 'cuda'.
    type
        'CPU', 'GPU', 'TPU', 'NPU', 'FPGA', 'NULL' or what its kind declares; compares without regard to case.
    backend
        Name under which the back end is registered.
    index
        The back end's own number of this device.
    name
        What the maker calls it.
    memory_node
        Id of the memory node that its data lives on.
    memory_bytes
        Bytes of that node, None where unknown.
    memory_limit_bytes
        The most of it that hetero may use, None for all.
    cores
        CPU cores or compute units.
    cpus
        The host's CPU numbers that the device is bound to, empty where it is not bound.
    silicon
        Ids of the cores or chips it uses; devices that share one exclude one another.
    throttle_frac
        0 < f <= 1; below 1 the device is slowed down on purpose, and says so.
    simulated
        True where nothing is computed.
    driver
        Driver and its version, '' where unknown.
    flop_per_s, bytes_per_s
        Measured or catalogued speed, None where unknown.
    isolation
        'process' or 'thread'.
    python
        The Python that its worker runs in, '' for this one.
    link_bytes_per_s, link_latency_s
        An emulated slow link to the host, 0 where there is none.
    rack
        Where the host stands, for affinity.
    takes
        'python' or 'kernels' where that differs from what `KINDS` says of its kind, else ''.
    on_host
        True where its kind is not in `KINDS` and computes on the host's cores; the back end sets it.

    Examples
    --------
    >>> device = Device("h0/cuda:1", "cuda", DeviceType("GPU"), "torch", name="H100", memory_bytes=80_000_000_000)
    >>> device.short, device.host, device.type == "gpu"
    ('cuda:1', 'h0', True)
    """

    id: str
    kind: str
    type: DeviceType
    backend: str
    index: int = 0
    name: str = ""
    memory_node: str = HOST_NODE
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    cores: int = 1
    cpus: tuple[int, ...] = ()
    silicon: tuple[str, ...] = ()
    throttle_frac: float = 1.0
    simulated: bool = False
    driver: str = ""
    flop_per_s: float | None = None
    bytes_per_s: float | None = None
    isolation: str = "process"
    python: str = ""
    link_bytes_per_s: float = 0.0
    link_latency_s: float = 0.0
    rack: str = ""
    takes: str = ""
    on_host: bool = False

    @property
    def runs_python(self) -> bool:
        """True where it runs Python functions; a device that does not takes kernels."""
        if self.takes:
            return self.takes == "python"
        return self.kind not in KINDS or KINDS[self.kind].runs_python

    @property
    def is_host(self) -> bool:
        """True where it computes on its host's cores in its host's memory, as a CPU does."""
        return self.on_host or is_host_kind(self.kind)

    @property
    def host(self) -> str:
        """The host part of the id."""
        return self.id.partition("/")[0]

    @property
    def label(self) -> str:
        """The label part of the id, as in 'cuda' or 'torch-cpu'."""
        return self.id.partition("/")[2].partition(":")[0]

    @property
    def short(self) -> str:
        """The id without its host where that is the program's own: 'cuda:1', and 'h1/cuda:1' of another."""
        return self.id.removeprefix("h0/")

    @property
    def model_key(self) -> str:
        """What devices that should run alike have in common: the key of measured times."""
        cores = f"x{self.cores}" if self.is_host else ""
        throttle = f"*{self.throttle_frac:g}" if self.throttle_frac < 1.0 else ""
        return f"{self.label}/{self.name}{cores}{throttle}"

    @property
    def words(self) -> frozenset[str]:
        """Every word by which a request or an implementation may name this device, in lower case."""
        return frozenset({self.id, self.short, self.label, self.kind, self.backend, self.type.casefold(), "any"})


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """What a device reports of itself now; a field that is unknown is None, never 0.

    Attributes
    ----------
    used_bytes, free_bytes
        Bytes.
    utilisation_frac
        0..1.
    temperature_c
        Degrees Celsius.
    power_w
        W.
    """

    used_bytes: int | None = None
    free_bytes: int | None = None
    utilisation_frac: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}
