"""Does it fit? The answer for people: bytes by category, what is the most that fits, and what to change.

In: a model and a device, by name or as values, and what the model is to do. Out: a report that explains itself.
It must not fill a gap of the catalog: a device of unknown memory is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero.catalog.load import find, find_model
from hetero.catalog.values import DeviceSpec
from hetero.floor.deprecation import renamed_keywords
from hetero.floor.documents import blamed_on, read_json
from hetero.floor.errors import BadValueError
from hetero.floor.options import shows_fields
from hetero.floor.units import format_bytes, shown
from hetero.model.architecture import ModelSpec
from hetero.model.workload import Sharding, WorkloadSpec
from hetero.plan.sizing.footprint import Fit, Room, fit
from hetero.plan.sizing.footprint_search import (
    FittingChange,
    changes,
    devices_needed,
    largest_batch,
    largest_context,
    shardings,
)

__all__ = ["FitReport", "does_it_fit", "read_model", "room_of"]

_MEANING = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "activations": "activations kept for the backward pass",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "buffers": "buffers of one pass",
    "reserve": "driver and libraries",
}


def read_model(model: str | Path | ModelSpec) -> ModelSpec:
    """Return a model by its name in the catalog, or from a config.json or the folder that holds one.

    Raises
    ------
    BadValueError
        No model has that name, or, as a FileError, the file cannot be read as a configuration.

    Examples
    --------
    >>> read_model("Llama-3.1-8B").layers
    32
    """
    if isinstance(model, ModelSpec):
        return model
    if "://" in str(model):
        remedy = "give a model of the catalog, or copy its config.json to this host"
        raise BadValueError(
            f"{shown(str(model))} is no path of this host, and nothing can be read there", remedy=remedy
        )
    path = Path(model)
    try:
        path = path / "config.json" if path.is_dir() else path
    except (OSError, ValueError):  # no name of a file
        return find_model(str(model))
    if path.suffix != ".json":
        return find_model(str(model))
    document = read_json(path)
    with blamed_on(path):
        return ModelSpec.from_config(document, name=path.parent.name or str(model), where=str(path))


def room_of(device: DeviceSpec) -> Room:
    """Return what a device has for a program.

    Raises
    ------
    BadValueError
        The catalog knows no source for its memory.
    """
    usable = device.usable_bytes
    if usable is None:
        raise BadValueError(
            f"the catalog has no source for the memory of {device.name}",
            remedy="give a DeviceSpec with memory_bytes",
        )
    return Room(usable, shared=device.shared_memory)


@dataclass(frozen=True, slots=True)
class FitReport:
    """Whether a workload fits on devices of one sort, and what else would.

    Attributes
    ----------
    work, device, spread
        What was asked.
    fit
        The answer.
    batch, context
        The largest of each that surely fits, the other kept as asked.
    needed
        The fewest devices and how to spread over them, None where no number helps.
    changes
        What makes it fit, the cheapest first.
    """

    work: WorkloadSpec
    device: DeviceSpec
    spread: Sharding
    fit: Fit
    batch: int
    context: int
    needed: tuple[int, Sharding] | None
    changes: tuple[FittingChange, ...]

    @property
    def answer(self) -> str:
        """'fits', 'tight' or 'does not fit'."""
        return self.fit.answer

    def as_dict(self) -> dict[str, object]:
        """Return what a program would read."""
        return {
            "answer": self.answer,
            "model": self.work.model.name,
            "device": self.device.name,
            "devices": self.spread.devices,
            "bytes": self.fit.footprint.as_dict(),
            "total_bytes": self.fit.footprint.total,
            "cautious_bytes": self.fit.footprint.cautious,
            "usable_bytes": self.fit.usable_bytes,
            "largest_batch": self.batch,
            "largest_context": self.context,
            "devices_needed": self.needed[0] if self.needed else None,
            "changes": [{"what": change.what, "price": change.price} for change in self.changes],
        }

    def explain(self) -> str:
        """Return the answer in lines: bytes by category, the most that fits, what to change.

        Examples
        --------
        >>> print(does_it_fit("Llama-3.1-8B", "RTX-3080", weights="Q4_K_M", framework="llama.cpp").explain())
        Llama-3.1-8B, inference in Q4_K_M on RTX-3080: fits
            4.59 GB  weights
             268 MB  KV cache
             263 MB  buffers of one pass
             600 MB  driver and libraries
            5.72 GB  of 10.5 GB usable a device
        largest batch at 2048 tokens: 18; longest context at batch 1: 38011 tokens
        """
        need = self.fit.footprint
        many = f"{self.spread.devices} × " if self.spread.devices > 1 else ""
        doing = f"{self.work.model.name}, {self.work.job} in {self.work.weights}"
        lines = [f"{doing} on {many}{self.device.name}: {self.answer}"]
        lines += [f"  {format_bytes(size):>9}  {_MEANING[name]}" for name, size in need.as_dict().items() if size]
        lines.append(f"  {format_bytes(need.total):>9}  of {format_bytes(self.fit.usable_bytes)} usable a device")
        lines.append(
            f"largest batch at {self.work.context} tokens: {self.batch};"
            f" longest context at batch {self.work.batch}: {self.context} tokens"
        )
        if self.answer == "tight":
            lines.append("tight: what is computed fits, but not with a tenth more activations, buffers and reserve")
        lines += [f"would fit: {change.what} (costs {change.price})" for change in self.changes[:4]]
        if self.answer != "fits" and not self.changes:
            lines.append("nothing that was tried makes it fit")
        return "\n".join(lines)


@renamed_keywords(engine="framework", optimiser="optimizer")
@shows_fields(WorkloadSpec)
def does_it_fit(
    model: str | Path | ModelSpec,
    device: str | DeviceSpec,
    count: int = 1,
    spread: Sharding | None = None,
    **how: Any,
) -> FitReport:
    """Return whether a model does its work on these devices.

    Parameters
    ----------
    model
        Name in the catalog, path of a config.json, or an architecture.
    device
        Name in the catalog, or a device.
    count
        Devices of that sort.
    spread
        How to spread over them; default: the usual way that fits best.
    how
        Fields of `hetero.model.workload.WorkloadSpec`.

    Examples
    --------
    >>> does_it_fit("Llama-3.1-70B", "H100-SXM").answer
    'does not fit'
    >>> does_it_fit("Llama-3.1-70B", "H100-SXM", count=2).answer
    'fits'
    """
    work = WorkloadSpec(read_model(model), **how)
    spec = device if isinstance(device, DeviceSpec) else find(device)
    room = room_of(spec)
    if count < 1:
        raise BadValueError(f"count is {count}", remedy="it must be at least 1")
    chosen = spread or _best(work, room, count)
    return FitReport(
        work=work,
        device=spec,
        spread=chosen,
        fit=fit(work, room, chosen),
        batch=largest_batch(work, room, chosen),
        context=largest_context(work, room, chosen),
        needed=devices_needed(work, room),
        changes=tuple(changes(work, room, chosen)),
    )


def _best(work: WorkloadSpec, room: Room, count: int) -> Sharding:
    if count == 1:
        return Sharding()
    ways = list(shardings(work, count))
    if not ways:
        raise BadValueError(
            f"{work.model.name} cannot be spread over {count} devices", remedy=f"at most {work.model.layers} layers"
        )
    return min(ways, key=lambda way: fit(work, room, way).footprint.total)
