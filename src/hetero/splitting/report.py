"""What a split looks like: its stages, what was predicted of them and measured, and the best device alone beside it.

In: a choice, what passes took. Out: frozen figures, and a table for people. It must not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from hetero.floor.units import format_bytes, format_seconds
from hetero.model.device import Device

__all__ = ["SplitReport", "StageReport", "device_note"]


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage.

    Attributes
    ----------
    device
        Its short id.
    note
        What is not real about its speed, '' where all is.
    layers
        Names of the first and the last layer.
    count
        How many layers.
    predicted_s, measured_s
        Seconds of a micro-batch, its share of the crossings included in the prediction only; what was measured is the
        median of the passes, None before the first.
    need_bytes
        Memory that its layers take.
    """

    device: str
    note: str
    layers: tuple[str, str]
    count: int
    predicted_s: float
    measured_s: float | None
    need_bytes: int


@dataclass(frozen=True, slots=True)
class SplitReport:
    """A split as a whole.

    Attributes
    ----------
    model
        Name of its class.
    training
        True where it is trained, so that times are those of both passes.
    stages
        In order.
    micro_batch
        Samples of one.
    micro_batches
        Of a batch, as the figures below have them: of the last pass, or as was planned for.
    predicted_samples_per_s
        Of the split.
    measured_samples_per_s
        Median of the passes, call included; None before the first.
    passes
        How many the measured figures are of, the last 100 at most.
    alone
        Short id of the best device alone, None where the model fits on none.
    alone_samples_per_s
        Predicted for it, None where there is none.
    reason
        Why one device runs all of it, '' where it is split.
    notes
        What else is to be known.
    """

    model: str
    training: bool
    stages: tuple[StageReport, ...]
    micro_batch: int
    micro_batches: int
    predicted_samples_per_s: float
    measured_samples_per_s: float | None
    passes: int
    alone: str | None
    alone_samples_per_s: float | None
    reason: str
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join([self._title(), *self._rows(), self._speed(), self._alone(), *self.notes])

    def _title(self) -> str:
        how = "forward and backward" if self.training else "forward"
        where = f"{len(self.stages)} devices" if len(self.stages) > 1 else "one device"
        return f"{self.model} on {where}, {self.micro_batches} micro-batches of {self.micro_batch}, {how}"

    def _rows(self) -> list[str]:
        heads = ("device", "layers", "", "predicted", "measured", "memory")
        rows = [heads, *(_row(stage) for stage in self.stages)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    def _speed(self) -> str:
        predicted = f"predicted {_rate(self.predicted_samples_per_s)}"
        if self.measured_samples_per_s is None:
            return f"{predicted}, not measured yet"
        return f"{predicted}, measured {_rate(self.measured_samples_per_s)} (median of {self.passes})"

    def _alone(self) -> str:
        if self.alone_samples_per_s is None:
            return "the model fits on none of the devices alone"
        if self.reason:
            return f"not split: {self.reason}"
        gain = self.predicted_samples_per_s / self.alone_samples_per_s
        return f"best device alone: {self.alone}, predicted {_rate(self.alone_samples_per_s)}; split: {gain:.2f} ×"


def _rate(samples_per_s: float) -> str:
    shown = f"{samples_per_s:,.0f}" if samples_per_s >= 100 else f"{samples_per_s:.3g}"
    return f"{shown} samples/s"


def _row(stage: StageReport) -> tuple[str, ...]:
    layers = stage.layers[0] if stage.count == 1 else " … ".join(stage.layers)
    measured = "" if stage.measured_s is None else format_seconds(stage.measured_s)
    device = f"{stage.device} ({stage.note})" if stage.note else stage.device
    return device, layers, str(stage.count), format_seconds(stage.predicted_s), measured, format_bytes(stage.need_bytes)


def device_note(device: Device, slow: Mapping[str, float]) -> str:
    """Return what is not real about a device's speed.

    Examples
    --------
    >>> from hetero.model.device import Device, DeviceType
    >>> device_note(Device("h0/cpu:0", "cpu", DeviceType("CPU"), "cpu", throttle_frac=0.5), {"Linear": 0.02})
    'throttled to 0.5; emulated: Linear at 0.02 of its speed'
    """
    parts: Sequence[str] = (
        f"throttled to {device.throttle_frac:g}" if device.throttle_frac < 1.0 else "",
        "emulated: " + ", ".join(f"{kind} at {frac:g} of its speed" for kind, frac in slow.items()) if slow else "",
    )
    return "; ".join(part for part in parts if part)
