"""Checks of the catalog's rows: every number has a source that prints it, and lies where such numbers lie.

In: devices, models and sources. Out: one line a problem. It must not correct anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hetero.catalog.values import CatalogSource, DeviceSpec
from hetero.model.architecture import ModelSpec
from hetero.model.device import KINDS

__all__ = ["PUBLISHED_FRAC", "device_problems", "model_problems", "source_problems"]

PUBLISHED_FRAC = 0.01
"""How far a computed number of parameters may lie from the published one."""

_RANGES = {
    "year": (2010, 2030),
    "memory_bytes": (1e8, 1e12),
    "memory_usable_bytes": (1e8, 1e12),
    "bandwidth_bytes_per_s": (1e10, 1e17),
    "link_bytes_per_s": (1e9, 5e12),
    "host_bytes_per_s": (1e9, 5e11),
    "power_w": (1, 30_000),
    "cuda_cores": (128, 50_000),
    "tensor_cores": (1, 5_000),
    "processors": (1, 2_000_000),
}
_RATES = (1e11, 5e17)
_BALANCE = (15.0, 650.0)
"""Operations a byte of devices that were built for models: below, a rate is missing; above, it counts sparsity."""

_RATIOS = (
    ("fp8", "16 bits", 0.9, 2.2),
    ("fp8_acc16", "fp8", 1.9, 2.1),
    ("fp16_acc16", "16 bits", 1.9, 2.1),
    ("int8", "fp16_acc16", 1.9, 2.1),
    ("int8", "16 bits", 0.9, 4.2),
    ("fp4", "16 bits", 1.8, 6.1),
    ("fp16", "bf16", 0.9, 1.1),
    ("tf32", "16 bits", 0.45, 1.05),
    ("fp16", "fp32", 1.0, 32.0),
    ("bf16", "fp32", 1.0, 32.0),
)
"""Two rates of a device, and between what the first divided by the second lies."""


def _range_of(key: str) -> tuple[float, float] | None:
    return _RATES if key.startswith("flop_per_s.") else _RANGES.get(key)


def device_problems(rows: Iterable[DeviceSpec], sources: Mapping[str, CatalogSource]) -> Iterator[str]:
    """Yield a line for each number without a source that prints it, or out of range, and each doubtful row."""
    for spec in rows:
        figures = {key: value for key, value in spec.cells().items() if value is not None}
        figures |= {f"price.{'usd_per_hour' if price.per_hour else 'usd'}": price.usd for price in spec.prices}
        for key, value in figures.items():
            source = sources.get(spec.sources.get(key, ""))
            if source is None:
                yield f"{spec.name}.{key} has no source"
            elif not source.printed.get(f"{spec.name}.{key}"):
                yield f"{spec.name}.{key}: source {source.id!r} does not say how the figure is printed"
            limits = _range_of(key)
            if limits and not limits[0] <= float(value) <= limits[1]:
                yield f"{spec.name}.{key} is {value:g}, outside of {limits[0]:g} to {limits[1]:g}"
        yield from _doubts(spec)


def _doubts(spec: DeviceSpec) -> Iterator[str]:
    if spec.kind not in KINDS:
        yield f"{spec.name}: {spec.kind!r} is no device kind"
    usable, whole = spec.memory_usable_bytes, spec.memory_bytes
    if usable and whole and usable > whole:
        yield f"{spec.name}: more memory is usable than there is"
    yield from _odd_rates(spec)
    if any(price.usd <= 0 for price in spec.prices):
        yield f"{spec.name}: a price is not above zero"


def _odd_rates(spec: DeviceSpec) -> Iterator[str]:
    """Yield a line for each rate that does not go with another, unless the row explains it.

    Notes
    -----
    Matrix units halve their rate where numbers or sums double their width: 8 bits run at most twice as fast as 16,
    sums of 16 bits twice as fast as sums of 32. What differs counts sparsity, or confuses the kinds of sums.
    """
    if spec.explains:
        return
    rates = {key: rate for key, rate in spec.flop_per_s.items() if rate}
    sixteen = max((rates.get(key, 0.0) for key in ("bf16", "fp16", "fp16_vector")), default=0.0)
    for one, other, least, most in _RATIOS:
        below, above = sixteen if other == "16 bits" else rates.get(other), rates.get(one)
        if above and below and not least <= above / below <= most:
            wrong = "is one of them with sparsity, or with sums of 16 bits?"
            yield f"{spec.name}: {one} is {above / below:.2f} × {other}; {wrong}"
    if "tensor_cores" in spec.capabilities and not sixteen:
        yield f"{spec.name} has tensor cores, and no rate in 16 bits"
    if sixteen and spec.bandwidth_bytes_per_s:
        balance = sixteen / spec.bandwidth_bytes_per_s
        if not _BALANCE[0] <= balance <= _BALANCE[1]:
            yield f"{spec.name} multiplies {balance:.1f} operations in 16 bits a byte of its memory"


def model_problems(rows: Iterable[ModelSpec], sources: Mapping[str, CatalogSource]) -> Iterator[str]:
    """Yield a line for each model without a source, or whose parameters differ from the published number."""
    for spec in rows:
        source = sources.get(spec.source)
        if source is None or not source.printed.get(spec.name):
            yield f"{spec.name} has no source that prints its architecture"
        if not spec.published:
            continue
        by = sources.get(spec.published_source)
        if by is None or not by.printed.get(f"{spec.name}.published"):
            yield f"{spec.name}: the published number has no source that prints it"
        counted = spec.parameters().total
        if abs(counted / spec.published - 1) > PUBLISHED_FRAC:
            yield f"{spec.name}: {counted / 1e9:.2f} G parameters computed, {spec.published / 1e9:.2f} G published"


def source_problems(sources: Mapping[str, CatalogSource]) -> Iterator[str]:
    """Yield a line for each source without an address, a date or a figure."""
    for source in sources.values():
        if not source.address.startswith(("https://", "http://", "package ")):
            yield f"source {source.id!r} has no address"
        if source.opened[:2] != "20" or len(source.opened) != 10:
            yield f"source {source.id!r} has no date"
        if not source.printed:
            yield f"source {source.id!r} is not used"
