"""What the catalog knows of a device, as values.

In: checked rows. Out: frozen values; an empty figure is None and means that no source was opened. It must not read
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetero.model.device import KINDS, is_host_kind

__all__ = ["CatalogSource", "DeviceSpec", "Pod", "Price", "Slice"]

_WORKING_SET_FRAC = {"small": 2 / 3, "large": 3 / 4}
"""What Metal offers of the memory: two thirds up to 36 GiB, three quarters above (sources metal-16, -32, -96)."""

_METAL_LARGE_BYTES = 36 * 2**30
_USABLE_FRAC = 0.98
"""What a driver leaves of a device's memory where nothing was read: declared."""


@dataclass(frozen=True, slots=True)
class CatalogSource:
    """A page or file that was opened while a row was written.

    Attributes
    ----------
    id
        As rows name it.
    title, address
        What and where it is.
    opened
        The day, year-month-day.
    printed
        The figure as printed there, by 'ROW.key'.
    """

    id: str
    title: str
    address: str
    opened: str
    printed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Price:
    """One price hint.

    Attributes
    ----------
    usd
        US dollars, per hour where `per_hour`.
    per_hour
        Rented rather than bought.
    month
        What the price was printed for, '' where the source does not say.
    source
        Id of the source.
    """

    usd: float
    per_hour: bool
    month: str
    source: str


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a pod that can be had.

    Attributes
    ----------
    shape
        As in '4x4x8'.
    chips, hosts
        How many.
    """

    shape: str
    chips: int
    hosts: int


@dataclass(frozen=True, slots=True)
class Pod:
    """How chips are joined.

    Attributes
    ----------
    chips
        In a whole pod.
    shape, connection
        Of the whole pod, as in '16x16' and 'torus'.
    chips_per_host
        How many.
    slices
        What can be had.
    """

    chips: int | None
    shape: str
    connection: str
    chips_per_host: int
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device and SKU.

    Attributes
    ----------
    name, vendor, kind, form, unit
        What it is; kind is one of `hetero.model.device.KINDS`.
    aliases
        Other names.
    year
        Of its launch.
    memory_bytes, memory_usable_bytes
        Bytes, and what programs were seen to get of them.
    bandwidth_bytes_per_s
        Of its memory.
    link, link_bytes_per_s
        To others of its kind, one direction.
    host_link, host_bytes_per_s
        To the host, one direction.
    power_w
        Watts.
    cuda_cores, tensor_cores, compute_capability, processors
        Where they exist.
    flop_per_s
        Dense operations/s by precision; 'fp16_acc16' and 'fp8_acc16' are FP16 and FP8 with FP16 accumulate, the others
        add up in FP32 or INT32; 'fp16_vector' FP16 outside of the matrix units.
    accumulate
        The accumulate type by precision, where it was printed.
    capabilities, uses
        Words.
    prices
        Hints.
    pod
        How chips are joined, None for single devices.
    note, explains
        What a reader should know; why a figure differs from another table or seems odd.
    sources
        Id of the source by key.
    """

    name: str
    vendor: str
    kind: str
    form: str = ""
    unit: str = "card"
    aliases: tuple[str, ...] = ()
    year: int | None = None
    memory_bytes: int | None = None
    memory_usable_bytes: int | None = None
    bandwidth_bytes_per_s: float | None = None
    link: str = ""
    link_bytes_per_s: float | None = None
    host_link: str = ""
    host_bytes_per_s: float | None = None
    power_w: float | None = None
    cuda_cores: int | None = None
    tensor_cores: int | None = None
    compute_capability: str | None = None
    processors: int | None = None
    flop_per_s: Mapping[str, float | None] = field(default_factory=dict)
    accumulate: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    prices: tuple[Price, ...] = ()
    pod: Pod | None = None
    note: str = ""
    explains: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def shared_memory(self) -> bool:
        """Return whether host and device use the same memory."""
        return self.kind in KINDS and KINDS[self.kind].unified_memory

    @property
    def is_host(self) -> bool:
        """Return whether it computes on the host's cores, as a CPU does."""
        return is_host_kind(self.kind)

    @property
    def usable_bytes(self) -> int | None:
        """What a program may allocate: as read, else a declared part of the memory, None where that is unknown.

        Examples
        --------
        >>> DeviceSpec("x", "y", "cuda", memory_bytes=100).usable_bytes
        98
        """
        if self.memory_usable_bytes is not None or self.memory_bytes is None:
            return self.memory_usable_bytes
        if self.kind == "mps":
            size = "large" if self.memory_bytes > _METAL_LARGE_BYTES else "small"
            return int(self.memory_bytes * _WORKING_SET_FRAC[size])
        return int(self.memory_bytes * _USABLE_FRAC)

    def rate(self, *precisions: str) -> float | None:
        """Return the first known rate of these precisions, operations/s."""
        known = (self.flop_per_s.get(name) for name in precisions)
        return next((rate for rate in known if rate is not None), None)

    def price(self, per_hour: bool) -> Price | None:
        """Return the price hint of that sort."""
        return next((price for price in self.prices if price.per_hour is per_hour), None)

    def cells(self) -> dict[str, float | None]:
        """Return every figure by key, None where it is empty."""
        names = ["year", "memory_bytes", "bandwidth_bytes_per_s", "power_w"]
        names += [] if self.link in ("", "none") else ["link_bytes_per_s"]
        names += [] if self.host_link in ("", "shared") else ["host_bytes_per_s"]
        names += ["cuda_cores", "compute_capability"] if self.vendor == "NVIDIA" else []
        names += ["tensor_cores"] if self.vendor == "NVIDIA" and "tensor_cores" in self.capabilities else []
        figures = {name: getattr(self, name) for name in names}
        figures |= {f"flop_per_s.{name}": rate for name, rate in self.flop_per_s.items()}
        extra = ("memory_usable_bytes", "processors")
        return figures | {name: getattr(self, name) for name in extra if getattr(self, name) is not None}
