"""Memory of one device while it trains: how many samples a pass may have, and what becomes of running out.

In: what a step needs by estimate, the room that a device has, passes that ran out. Out: sizes of passes that fit.
It must not import torch before it is asked to look at a device.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hetero.backends.registry import torch_place
from hetero.floor import own_memory, settings
from hetero.floor.errors import HeteroError, OutOfDeviceMemoryError
from hetero.floor.units import format_bytes
from hetero.model.device import Device
from hetero.stores.files import FileStore

if TYPE_CHECKING:
    import torch

    from hetero.train.data import Samples
    from hetero.train.footprint import StepFootprint
    from hetero.train.values import TrainOptions

__all__ = [
    "Fitting",
    "KeptPasses",
    "Need",
    "PassLimit",
    "beyond",
    "room_bytes",
]

_DOUBT_FRAC = 0.25
"""How much more than the estimate a pass may take: what convolutions rearrange on a CPU came to 24 % at most."""

_OWED = {"none": 0.0, "fp16": 1.5, "bf16": 1.5, "powersgd": 1.0}
"""What compression keeps and sends, in sizes of the gradients: what is owed of them, and the 16-bit row."""

_BESIDES_BYTES = 24_000_000
"""What is kept free for stacks of threads and what libraries allocate during a pass."""

_FEW, _MORE = 2, 4
_STATES = 4
_PLENTY = 8
_TORCH_BYTES = 140_000_000
"""What importing torch takes of a worker's limit; measured with torch 2.13 on Linux."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a step of a model takes of a device's memory, by estimate.

    Attributes
    ----------
    one
        Bytes by category with one sample a pass.
    held_bytes
        There before the first step: parameters and gradients.
    fixed_bytes
        Of a pass with any number of samples, `held_bytes` left out.
    sample_bytes
        For each sample of a pass.
    step_bytes
        Of the optimizer's step, `held_bytes` left out.

    Examples
    --------
    >>> need = Need({"parameters": 4_000_000}, 8_000_000, 2_000_000, 1_000_000, 25)
    >>> need.samples(39_000_000), need.samples(10)
    (10, 0)
    """

    one: dict[str, int]
    held_bytes: int
    fixed_bytes: int
    sample_bytes: int
    step_bytes: int

    @property
    def least_bytes(self) -> int:
        """Bytes of a step with one sample a pass."""
        return self.held_bytes + max(self.step_bytes, self.fixed_bytes + self.sample_bytes)

    def samples(self, room_bytes: float) -> int:
        """Return the samples of a pass that are sure to fit into what is left when `held_bytes` is there."""
        sure_bytes = (room_bytes - _BESIDES_BYTES) / (1 + _DOUBT_FRAC)
        return max(0, int((sure_bytes - self.fixed_bytes) // max(1, self.sample_bytes)))

    def explain(self) -> str:
        """Return where the bytes of a step with one sample a pass are."""
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.one.items() if size)
        return f"{format_bytes(self.least_bytes)} with one sample a pass ({parts})"


def estimate(model: object, loss: object, optimizer: object, samples: Samples, options: TrainOptions) -> Need | None:
    """Estimate what a step takes; None where a step cannot be followed without computing it."""
    from hetero.train.footprint import footprint

    def of(count: int) -> StepFootprint:
        ids = [sample % len(samples) for sample in range(count)]
        batch = samples.batch(ids, options.seed, 0)
        ways = {"precision": options.precision, "recompute": options.recompute}
        return footprint(model, loss, optimizer, batch, **ways)  # type: ignore[arg-type]

    try:
        one, few, more = of(1), of(_FEW), of(_MORE)
    except Exception:  # noqa: BLE001  a model may raise anything on tensors without contents; then nobody knows
        return None
    per_sample = max(0, more.pass_bytes - few.pass_bytes) // (_MORE - _FEW)
    held = few.parameters + few.gradients
    owed = int(_OWED[options.compression] * few.gradients)
    averages = 0 if options.ema_decay is None else few.gradients
    fixed = max(0, few.pass_bytes - held - _FEW * per_sample) + owed
    parts = {**one.as_dict(), "compression": owed, "averages": averages}
    return Need(parts, held + averages, fixed, per_sample, one.total_bytes - held + owed)


def is_short(device: Device, model: torch.nn.Module) -> bool:
    """Return whether the memory of a device is worth a closer look: limited, its own, or not many times the model."""
    if device.memory_limit_bytes is not None or not device.is_host:
        return True
    states = _STATES * sum(parameter.nbytes for parameter in model.parameters())
    return device.memory_bytes is not None and _PLENTY * states > device.memory_bytes


def beyond(device: Device, need: Need | None) -> str:
    """Return why not even one sample fits on a device, '' where it may."""
    limit = device.memory_limit_bytes or device.memory_bytes
    takes = need.least_bytes if need is not None else 0
    torch_too = device.is_host and device.memory_limit_bytes is not None
    if limit is None or takes + torch_too * _TORCH_BYTES <= limit:
        return ""
    kind = "memory_limit" if device.memory_limit_bytes else "memory"
    also = f", and torch itself {format_bytes(_TORCH_BYTES)}" if torch_too else ""
    return f"its {kind} is {format_bytes(limit)}; one sample takes {format_bytes(takes)}{also}"


class Fitting:
    """What a program knows of the memory that training takes on its devices.

    Parameters
    ----------
    job
        Model, loss, optimizer, samples and options of the run.
    """

    def __init__(self, *job: Any) -> None:
        self._job = job

    @functools.cached_property
    def key(self) -> str:
        """A word for the model and how it is trained, the same in every run."""
        return job_key(*self._job)

    @functools.cached_property
    def need(self) -> Need | None:
        """What a step takes, None where it cannot be foretold."""
        return estimate(*self._job)

    def need_on(self, devices: Sequence[Device]) -> Need | None:
        """Return the memory need of a step if any device might lack it, else None."""
        return self.need if any(is_short(device, self._job[0]) for device in devices) else None

    def left_out(self, devices: Sequence[Device]) -> dict[str, str]:
        """Return why the memory of each lacking device is too small; raises OutOfDeviceMemoryError where all are."""
        need = self.need_on(devices)
        reasons = {device.short: reason for device in devices if (reason := beyond(device, need))}
        if len(reasons) == len(devices):
            raise self.refusal(reasons)
        return reasons

    def refusal(self, reasons: dict[str, str]) -> OutOfDeviceMemoryError:
        """Word that the model fits on no device of a run, with the reason for each."""
        said = "; ".join(f"{device}: {reason}" for device, reason in reasons.items())
        takes = "" if self.need is None else f", which takes {self.need.explain()}"
        return OutOfDeviceMemoryError(
            f"no device can train this model{takes}: {said}",
            remedy="give recompute='blocks' or precision='bf16', or part the model by layers with hetero.train.split",
        )


def room_bytes(device: Device) -> float:
    """Return the bytes that this process may still allocate on its device; inf where nobody knows."""
    if device.is_host:
        return own_memory.data_room_bytes()
    import torch

    module: ModuleType | None = getattr(torch, torch.device(torch_place(device)).type, None)
    if module is None or not hasattr(module, "mem_get_info"):
        return float(device.memory_limit_bytes or inf)
    free, _ = module.mem_get_info(device.index)
    used = module.memory_allocated(device.index)
    idle = module.memory_reserved(device.index) - used
    return float(min(free + idle, (device.memory_limit_bytes or inf) - used))


class PassLimit:
    """Most samples of a pass on one device: halved when memory runs out, and told before it is tried.

    Parameters
    ----------
    most
        To begin with, inf where nothing is known.
    whole
        Why passes must stay as they are, as under `exact: bitwise`; '' where they may be cut.
    tell
        Hears of the size of a pass that is larger than all before.
    keep
        Hears of the size that was settled on after memory ran out.

    Attributes
    ----------
    most
        Samples of a pass.

    Examples
    --------
    >>> limit = PassLimit(24)
    >>> limit.size(64)
    24
    >>> limit.ran_out(24)
    >>> limit.size(64)
    12
    """

    def __init__(
        self,
        most: float = inf,
        whole: str = "",
        tell: Callable[[int], None] = lambda _: None,
        keep: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.most = most
        self.whole = whole
        self._report = tell
        self._keep = keep
        self._largest = 0

    def size(self, wanted: int) -> int:
        """Return the samples of a pass that may have so many."""
        return wanted if self.whole else int(max(1, min(wanted, self.most)))

    def tries(self, samples: int) -> None:
        """Record a pass that is about to be made."""
        if samples > self._largest:
            self._largest = samples
            self._report(samples)

    def expect(self, need: Need, room: float) -> None:
        """Begin with passes that are sure to fit into the room that is left when `need.held_bytes` is there.

        Raises
        ------
        OutOfDeviceMemoryError
            Not even one sample fits.
        """
        if need.least_bytes - need.held_bytes > room:
            has, takes = format_bytes(room + need.held_bytes), format_bytes(need.least_bytes)
            raise OutOfDeviceMemoryError(f"its memory has room for {has}, and one sample takes {takes}")
        if room < inf:
            self.most = min(self.most, max(1, need.samples(room)))

    def ran_out(self, samples: int) -> None:
        """Halve the passes after one that ran out of memory.

        Raises
        ------
        OutOfDeviceMemoryError
            It was of one sample, or must not be cut.
        """
        if self.whole and samples > 1:
            raise OutOfDeviceMemoryError(
                f"memory ran out in a pass of {samples} samples, and {self.whole} forbids to cut it",
                remedy="make the global batch or micro_batch smaller",
            )
        if samples <= 1:
            raise OutOfDeviceMemoryError("memory ran out in a pass of one sample")
        self.most = self._largest = samples // 2
        self._keep(self._largest)


def job_key(model: torch.nn.Module, loss: object, optimizer: object, samples: Samples, options: TrainOptions) -> str:
    """Return a word for a model and how it is trained, the same in every run."""
    one = samples.batch([0], options.seed, 0)
    shapes = [(name, list(tensor.shape), str(tensor.dtype)) for name, tensor in model.state_dict().items()]
    kinds = [type(part).__name__ for part in (model, loss, optimizer)]
    ways = [options.precision, options.recompute, options.compression]
    text = json.dumps([shapes, kinds, ways, _shapes(one)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _shapes(part: Any) -> object:
    if isinstance(part, tuple | list):
        return [_shapes(one) for one in part]
    return [list(part.shape), str(part.dtype)] if hasattr(part, "shape") else type(part).__name__


class KeptPasses:
    """Sizes of passes that were found by running out of memory, kept between runs below HETERO_HOME.

    Parameters
    ----------
    key
        Of the job, '' to keep nothing.
    device
        The size holds for devices like this one with as much memory.

    Notes
    -----
    A folder that cannot be written to costs nothing but the memory of it.
    """

    def __init__(self, key: str, device: Device) -> None:
        self._store = FileStore(settings.home() / "passes")
        about = f"{device.model_key} {device.memory_limit_bytes} {device.memory_bytes}"
        self._key = f"{key}/{hashlib.sha256(about.encode()).hexdigest()[:32]}" if key else ""

    def load(self) -> float:
        """Return the most samples of a pass, inf where nothing is known."""
        with suppress(HeteroError, ValueError):
            found = self._store.get(self._key) if self._key else None
            return inf if found is None else max(1, int(found))
        return inf

    def keep(self, most: int) -> None:
        """Keep the most samples of a pass."""
        if self._key:
            with suppress(HeteroError):
                self._store.put(self._key, str(most).encode())
