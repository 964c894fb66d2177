"""A trial before training: whether a batch is the sum of its samples for this model and loss, and keeps nothing behind.

In: a model, a loss, a few samples of the first step. Out: why passes must stay whole, or a refusal by name.
It must not change the model that is trained, and costs a few passes over a few samples.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import torch

from hetero.backends.torch import is_out_of_memory
from hetero.floor.errors import BadValueError, HeteroError
from hetero.train.compatibility import dtype_held
from hetero.train.data import Batches
from hetero.train.keyed_random import KeyedPasses, KeyedRandom
from hetero.train.replica import Judge, call_model, made_on, training_modes
from hetero.train.values import TrainOptions

if TYPE_CHECKING:
    from hetero.train.losses import LossSums

__all__ = ["trailing_shapes", "verify"]

_TOLERANCE, _ROUGH_TOLERANCE = 1e-8, 0.02
_LOOKED_AT = 64
"""Samples, spread over the data, of which the shortest and the longest are tried where a `collate_fn` may pad."""
_ONE_DEVICE = "train on one device without accumulate and micro_batch, where each batch stays whole"


def trailing_shapes(batch: object) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a batch's tensors without the number of samples; where a `collate_fn` pads they vary."""
    return tuple([tuple(tensor.shape[1:]) for tensor in _tensors(batch)])


def verify(
    parts: bytes,
    options: TrainOptions,
    place: str,
    samples: Batches,
    ids: Sequence[int],
    *,
    cut: bool,
    more: Sequence[int] = (),
) -> str:
    """Compare passes over some samples together and in two parts, in double precision where the model can.

    Parameters
    ----------
    parts
        Pickled (model, loss, optimizer).
    place
        Torch's name of the device.
    ids
        Samples of a step.
    more
        Samples that may take their places where they are shorter or longer, and a `collate_fn` may pad.
    cut
        True where steps are computed in several passes.

    Returns
    -------
    str
        Why passes must not be cut, '' where they may be.

    Raises
    ------
    BadValueError
        The result would depend on who computes what, or a part of it would be lost.
    RandomRefusedError
        The model draws numbers that cannot be keyed.

    Notes
    -----
    A batch is the sum of its samples where the sum of the losses and its gradients are those over one part of it
    plus those over the rest. A model that fails here is left to fail where it trains, with its own error.
    """
    with dtype_held():
        return _verified(lambda double: _TrialModel(parts, options, place, samples, more, double=double), ids, cut=cut)


def _verified(trial: Callable[[bool], _TrialModel], ids: Sequence[int], *, cut: bool) -> str:
    usual = torch.get_default_dtype()
    for double in (True, False):
        torch.set_default_dtype(torch.float64 if double else usual)
        try:
            return trial(double).judge(ids, cut=cut)
        except HeteroError:
            raise
        except Exception as error:  # it may be that it cannot be computed in double precision
            if cut and not double and not is_out_of_memory(error):
                raise
        finally:
            torch.set_default_dtype(usual)
    return ""


@dataclass(slots=True)
class _TrialPass:
    """What a pass over some samples came to.

    Attributes
    ----------
    sums
        Of the losses, and its weight.
    gradients
        By parameter.
    buffers
        Names of those that the pass changed.
    """

    sums: tuple[float, float]
    gradients: list[torch.Tensor]
    buffers: list[str]

    def __add__(self, other: _TrialPass) -> _TrialPass:
        sums = (self.sums[0] + other.sums[0], self.sums[1] + other.sums[1])
        pairs = zip(self.gradients, other.gradients, strict=True)
        return _TrialPass(sums, [a + b for a, b in pairs], [*self.buffers, *other.buffers])

    def differs(self, other: _TrialPass) -> float:
        """Return the largest relative difference of the sums and of all gradients taken together."""
        numbers = [abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in zip(self.sums, other.sums, strict=True)]
        apart = [a - b for a, b in zip(self.gradients, other.gradients, strict=True)]
        size = max(_norm(self.gradients), _norm(other.gradients), 1e-30)
        return max(*numbers, _norm(apart) / size)


class _TrialModel(Judge):
    """A copy of the model that passes are tried on."""

    def __init__(
        self, parts: bytes, options: TrainOptions, place: str, samples: Batches, more: Sequence[int], *, double: bool
    ) -> None:
        model, loss, _ = cloudpickle.loads(parts)
        modes = training_modes(model)
        self._double = double
        if double:
            model = model.double()
            loss = loss.double() if isinstance(loss, torch.nn.Module) else loss
        super().__init__(model, loss, replace(options, precision="fp32"), place)
        for module, training in modes:
            module.training = training
        self._samples = samples
        self._more = more
        self._drawing = KeyedPasses(KeyedRandom(options.seed), self.model, self.place)
        self._trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._held = [
            (name, module, key, buffer, buffer.clone())
            for name, module in self._named()
            for key, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._tolerance = _TOLERANCE if double else _ROUGH_TOLERANCE

    def judge(self, ids: Sequence[int], *, cut: bool) -> str:
        """Do the passes; returns and raises as `verify` does."""
        ids = self._of_all_lengths(ids)
        before, drawn = self._checksums(), _generators()
        whole = self._run(ids)
        changed = [name for name, now in self._checksums().items() if now != before[name] and now == now]
        self._refuse_lost(whole, changed, drew=drawn != _generators())
        if self._apart(self._refuse_other_mean(ids), whole.sums[0]):
            raise BadValueError(
                "a pass gives another result when it is made again: the model keeps something between passes, or draws "
                "numbers that are not torch's",
                remedy="let forward depend on its inputs, the parameters and torch's random numbers alone",
            )
        if whole.buffers:
            return self._stays_whole(f"{whole.buffers[0]}, a buffer that the forward pass changes,", cut=cut)
        cut_at = max(1, len(ids) * 2 // 5)
        halves = (ids[:cut_at], ids[cut_at:])
        if not halves[1]:
            return ""
        try:
            apart = self._run(halves[0]) + self._run(halves[1])
        except (RuntimeError, ValueError) as error:
            if cut or isinstance(error, HeteroError) or is_out_of_memory(error):
                raise
            return "the model fails on a part of a batch, which"
        if whole.differs(apart) > self._tolerance:
            return self._stays_whole(self._across(ids, halves[0]), cut=cut)
        return ""

    def _stays_whole(self, what: str, *, cut: bool) -> str:
        if not cut:
            return what
        raise BadValueError(
            f"{what} depends on which samples are computed together, so parts of a batch do not add up to the batch",
            remedy=f"{_ONE_DEVICE}, or leave it out",
        )

    def _refuse_lost(self, whole: _TrialPass, changed: Sequence[str], *, drew: bool) -> None:
        state = self.model.state_dict()
        lost = [name for name in whole.buffers if name not in state]
        if lost or changed:
            kind = "a buffer that would not come back from the devices" if lost else "a parameter"
            raise BadValueError(
                f"{(lost or changed)[0]}, {kind}, is changed by the forward pass",
                remedy="keep it in a buffer of the model's state, or change it between two calls of fit",
            )
        if drew:
            raise BadValueError(
                "the model or the loss draws random numbers from NumPy or Python, which are not those of the samples",
                remedy="draw with torch.rand or torch.randn, or in the dataset",
            )

    def _apart(self, one: float, other: float) -> bool:
        return abs(one - other) > self._tolerance * max(abs(one), abs(other), 1e-30)

    def _refuse_other_mean(self, ids: Sequence[int]) -> float:
        """Refuse a loss whose own mean is not the sum of its values over its weight; returns that sum."""
        inputs, targets = self._batch(ids)
        with self._drawing.over(0, ids) as forward:
            given, (summed, weight, _) = forward(lambda: self._both(inputs, targets))
        self._restore()
        if not torch.is_tensor(given) or given.dim() != 0:
            return float(summed.detach())
        given, total = given.detach(), float(summed.detach())
        found = total / (float(weight) if self.loss.divides else 1.0) if float(weight) else float("nan")
        if self._apart(found, float(given)):
            raise BadValueError(
                f"the loss gives {float(given):.6g} for {len(ids)} samples, and its values one by one give {found:.6g}",
                remedy="let it return one loss a sample, or give torch's own with ignore_index or weight",
            )
        return total

    def _both(self, inputs: object, targets: object) -> tuple[torch.Tensor, LossSums]:
        with made_on(self.place):
            output = call_model(self.model, inputs)
            return self.loss.as_given(output, targets), self.loss.sums(output, targets)

    def _sums(self, inputs: object, targets: object) -> LossSums:
        with made_on(self.place):
            return self.loss.sums(call_model(self.model, inputs), targets)

    # --- passes --------------------------------------------------------------------------------------------

    def _batch(self, ids: Sequence[int]) -> tuple[object, object]:
        inputs, targets = self._load(self._samples.batch(ids, self.options.seed, 0))
        if any(tensor.requires_grad for tensor in _tensors((inputs, targets))):
            raise BadValueError(
                "the samples require a gradient, which nobody would see",
                remedy="detach them, or make what is trained a parameter of the model",
            )
        return (_doubled(inputs), _doubled(targets)) if self._double else (inputs, targets)

    def _of_all_lengths(self, ids: Sequence[int]) -> Sequence[int]:
        """Return samples in the order of their lengths; where a `collate_fn` may pad, the shortest and longest of many.

        A part without the longest sample shows whether padding counts.
        """
        seen = set(ids)
        if getattr(self._samples, "collate", None) is not None and len(ids) > 1:
            count = len(self._samples)  # type: ignore[arg-type]
            looked = min(_LOOKED_AT, count)
            seen |= {count * part // looked for part in range(looked)} | set(self._more)
        sizes = {sample: self._size(sample) for sample in sorted(seen)}
        ordered = sorted(sizes, key=lambda sample: (sizes[sample], sample))
        if sizes[ordered[0]] == sizes[ordered[-1]]:
            return ids
        short = max(1, len(ids) * 2 // 5)
        return [*ordered[:short], *ordered[short - len(ids) :]]

    def _size(self, sample: int) -> int:
        """Return the numbers in a batch of one sample, 0 where all samples are alike."""
        if not getattr(self._samples, "one_by_one", False):
            return 0
        return sum(tensor.numel() for tensor in _tensors(self._samples.batch([sample], self.options.seed, 0)))

    def _run(self, ids: Sequence[int]) -> _TrialPass:
        inputs, targets = self._batch(ids)
        for parameter in self._trained:
            parameter.grad = None
        with self._drawing.over(0, ids) as forward:
            total, weight, _ = forward(lambda: self._sums(inputs, targets))
            total.backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in self._trained]
        return _TrialPass((float(total.detach()), float(weight)), gradients, self._restore())

    def _restore(self) -> list[str]:
        """Put the buffers back as they were; returns the names of those that had changed."""
        changed = []
        for name, module, key, buffer, kept in self._held:
            now = module._buffers[key]
            if now is None or now.shape != kept.shape or not torch.equal(now, kept):
                changed.append(f"{name}.{key}".lstrip("."))
            with torch.no_grad():
                buffer.copy_(kept)
            module._buffers[key] = buffer
        return changed

    def _named(self) -> list[tuple[str, torch.nn.Module]]:
        loss = self.loss.unreduced
        inside = loss.named_modules(prefix="the loss") if isinstance(loss, torch.nn.Module) else ()
        return [*self.model.named_modules(), *inside]

    def _checksums(self) -> dict[str, tuple[float, float]]:
        """Return two sums of each parameter: one that is changed through `.data` has the version that it had."""
        named = ((name, parameter.detach()) for name, parameter in self.model.named_parameters())
        return {name: (float(p.sum()), float(torch.linalg.vector_norm(p))) for name, p in named}

    # --- who it is -----------------------------------------------------------------------------------------

    def _across(self, ids: Sequence[int], part: Sequence[int]) -> str:
        """Name the first module whose result for some samples is another one where more samples are there."""
        whole, fewer = self._results(ids), self._results(part)
        for name, result in whole.items():
            other = fewer.get(name)
            if other is None or result.shape[1:] != other.shape[1:] or len(result) * len(part) != len(other) * len(ids):
                continue
            apart = _norm([result[: len(other)] - other])
            if apart > self._tolerance * max(_norm([other]), 1e-30):
                return f"the result of {name or 'the model'} ({type(self.model.get_submodule(name)).__name__})"
        return "the loss"

    def _results(self, ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return what each module gives in a pass, those inside before those around them."""
        found: dict[str, torch.Tensor] = {}

        def keep(name: str) -> Callable[[torch.nn.Module, object, object], None]:
            def hook(_: torch.nn.Module, __: object, result: object) -> None:
                if isinstance(result, torch.Tensor) and result.dim() and result.is_floating_point():
                    found.setdefault(name, result.detach())

            return hook

        hooks = [module.register_forward_hook(keep(name)) for name, module in self.model.named_modules()]
        inputs, _ = self._batch(ids)
        with self._drawing.over(0, ids) as forward, made_on(self.place):
            forward(lambda: call_model(self.model, inputs))
        for hook in hooks:
            hook.remove()
        self._restore()
        return found


def _norm(tensors: Sequence[object]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(_dense(tensor), dtype=torch.float64)) for tensor in tensors))


def _dense(tensor: torch.Tensor) -> object:
    return tensor.to_dense() if tensor.is_sparse else tensor.detach()


def _generators() -> tuple[object, object]:
    numpys: Any = np.random.get_state()
    return random.getstate(), (numpys[1].tobytes(), *numpys[2:])


def _tensors(value: object) -> list[torch.Tensor]:
    if torch.is_tensor(value):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _doubled(value: Any) -> object:
    """Return a batch with its floating-point tensors in double precision."""
    if torch.is_tensor(value):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return value.to(torch.float64)
    if isinstance(value, dict):
        return {name: _doubled(part) for name, part in value.items()}
    return type(value)(_doubled(part) for part in value) if type(value) in (tuple, list) else value
