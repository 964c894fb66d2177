"""What one training step of a real module takes of a device's memory, followed without computing anything.

In: a model, its loss and optimizer, a batch whose shapes count. Out: bytes by category at the fullest moment.
It must not allocate what it measures, nor change what it is given.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hetero.floor.errors import BadValueError
from hetero.floor.units import format_bytes

if TYPE_CHECKING:
    import torch
    from torch.distributed._tools.mem_tracker import MemTracker

__all__ = ["StepFootprint", "footprint"]


@dataclass(frozen=True, slots=True)
class StepFootprint:
    """Bytes of one training step at its fullest moment.

    Attributes
    ----------
    samples
        Of the pass.
    parameters
        Of the model, its buffers included.
    gradients
        Of what is trained.
    optimizer
        Its state, and what its step needs for a moment where that is the fullest one.
    activations
        What the backward pass keeps.
    temporary
        What the backward pass needs for a moment.
    batch
        Inputs and targets.
    pass_bytes
        All of them while the gradients are computed, without the optimizer's step.

    Examples
    --------
    >>> StepFootprint(8, 400, 400, 800, 300, 100, 64, 2064).total_bytes
    2064
    """

    samples: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    temporary: int
    batch: int
    pass_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum of the categories."""
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, int]:
        """Return the bytes by category."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: size for name, size in named.items() if name not in ("samples", "pass_bytes")}

    def explain(self) -> str:
        """Describe in words where the bytes are."""
        parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.as_dict().items() if size)
        return f"{format_bytes(self.total_bytes)} with {self.samples} samples a pass: {parts}"


def footprint(
    model: object,
    loss: object,
    optimizer: object,
    batch: Sequence[object],
    *,
    samples: int | None = None,
    precision: str = "fp32",
    recompute: str | Sequence[str] = "none",
) -> StepFootprint:
    """Return what a training step would take, by following its tensors without their contents.

    Parameters
    ----------
    model
        A `torch.nn.Module`, which may lie on torch's 'meta' device: nothing of it is read but shapes.
    loss, optimizer
        As for `hetero.Trainer`.
    batch
        (inputs, targets), tensors or arrays, of which only shapes and dtypes are looked at.
    samples
        Of a pass, where it is not the first dimension of the batch.
    precision
        'fp32', 'bf16' or 'fp16', as for `hetero.Trainer`.
    recompute
        As for `hetero.Trainer`.

    Returns
    -------
    StepFootprint
        For a step that is not the first: gradients and the optimizer's state are there already.

    Raises
    ------
    BadValueError
        The step depends on what its tensors contain, so that it cannot be followed.

    Notes
    -----
    torch's `MemTracker` counts the storages of fake tensors through a forward and a backward pass and a step of
    the optimizer. What libraries take besides is not in it: workspaces, what convolutions rearrange, what an allocator
    rounds up; nor are the masks of keyed dropout.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(1000, 1000, bias=False)
    >>> pair = torch.zeros(8, 1000), torch.zeros(8, 1000)
    >>> took = footprint(model, torch.nn.MSELoss(), torch.optim.Adam(model.parameters()), pair)
    >>> took.parameters, took.gradients, took.batch
    (4000000, 4000000, 64000)
    """
    import torch
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        twin, stepper = _fakes(model, optimizer)
        inputs, targets = (_like(part, samples) for part in batch)
        try:
            return _followed(twin, loss, stepper, inputs, targets, precision, recompute)
        except (DataDependentOutputException, DynamicOutputShapeException, NotImplementedError) as error:
            said = f"{type(error).__name__} {' '.join(str(error).split())[:120]}"
            raise BadValueError(
                f"the memory of {type(model).__name__} cannot be followed without computing: {said}",
                remedy="measure a real step instead",
            ) from error
        finally:
            torch.clear_autocast_cache()


def _followed(
    model: torch.nn.Module,
    loss: object,
    optimizer: torch.optim.Optimizer,
    inputs: object,
    targets: object,
    precision: str,
    recompute: str | Sequence[str],
) -> StepFootprint:
    import torch
    from torch.distributed._tools.mem_tracker import MemTracker

    from hetero.train.activation_checkpointing import recompute_blocks
    from hetero.train.losses import SummedLoss
    from hetero.train.replica import HALF, call_model

    _free_of_frozen(model)
    recompute_blocks(model, recompute, None)
    summed = SummedLoss(loss)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    tracker = MemTracker()
    tracker.track_external(model, optimizer, *_tensors(inputs), *_tensors(targets))
    half = HALF.get(precision)
    narrow: AbstractContextManager[object] = nullcontext() if half is None else torch.autocast("cpu", dtype=half)
    with tracker:
        with narrow:
            losses = summed.each(call_model(model, inputs), targets)
        losses.sum().backward()
        during = _peak(tracker)
        optimizer.step()
    whole = _peak(tracker)
    return StepFootprint(
        samples=len(_tensors(inputs)[0]),
        parameters=whole["PARAM"] + whole["BUFFER"],
        gradients=whole["GRAD"],
        optimizer=whole["OPT"],
        activations=whole["ACT"],
        temporary=whole["TEMP"],
        batch=whole["OTH"],
        pass_bytes=sum(during.values()),
    )


def _peak(tracker: MemTracker) -> dict[str, int]:
    """Return the bytes by torch's categories at the fullest moment so far."""
    found: dict[str, int] = defaultdict(int)
    for place in tracker.get_tracker_snapshot("peak").values():
        for kind, size in place.items():
            if hasattr(kind, "name"):
                found[kind.name] += size
    return found


def _fakes(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[object, object]:
    """Return a twin of the model without contents, and an optimizer of the twin's parameters."""
    tensors = [*model.parameters(), *model.buffers()]
    memo: dict[int, object] = {id(tensor): _fake(tensor) for tensor in tensors}
    twin = copy.deepcopy(model, memo)
    if hasattr(optimizer, "param_groups"):
        memo[id(optimizer.state)] = defaultdict(dict)
        return twin, copy.deepcopy(optimizer, memo)
    return twin, optimizer([parameter for parameter in twin.parameters() if parameter.requires_grad])


def _free_of_frozen(model: torch.nn.Module) -> None:
    """Make buffers of the parameters that are not trained: torch's tracker asks each parameter for a gradient."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del module._parameters[name]
                module.register_buffer(name, parameter.data, persistent=False)


def _fake(tensor: torch.Tensor) -> object:
    import torch

    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _like(part: Any, samples: int | None) -> object:
    """Return tensors of the shapes of a batch, with another number of samples where one is named."""
    import torch

    if isinstance(part, tuple | list):
        return tuple(_like(one, samples) for one in part)
    if isinstance(part, dict):
        return {name: _like(one, samples) for name, one in part.items()}
    if not hasattr(part, "shape"):
        return part
    dtype = part.dtype if torch.is_tensor(part) else torch.from_numpy(part[:0]).dtype
    rest = tuple(part.shape)[1:]
    return torch.zeros((len(part) if samples is None else samples, *rest), dtype=dtype)


def _tensors(part: object) -> list[torch.Tensor]:
    import torch

    if torch.is_tensor(part):
        return [part]
    if isinstance(part, dict):
        part = list(part.values())
    return [found for one in part for found in _tensors(one)] if isinstance(part, tuple | list) else []
