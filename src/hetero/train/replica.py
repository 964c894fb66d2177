"""One device's copy of the model: it computes its part of a step, and applies the sum of all parts.

In: ids of samples, the summed gradients. Out: sums over its samples, seconds that it was busy, its state.
It must not know who else takes part.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch

from hetero.backends.torch import is_out_of_memory
from hetero.comm.group import Group
from hetero.floor.contexts import transparent
from hetero.floor.errors import BadValueError, HeteroError, OutOfDeviceMemoryError
from hetero.floor.units import shown
from hetero.train.activation_checkpointing import recompute_blocks
from hetero.train.compatibility import check_closure, check_parameters, set_values
from hetero.train.data import Batches, Samples
from hetero.train.gradients import FINEST, BitwiseGradients, Gradients
from hetero.train.keyed_random import KeyedPasses, KeyedRandom
from hetero.train.losses import SummedLoss
from hetero.train.memory import PassLimit
from hetero.train.schedules import load_schedule, make_schedule, schedule_state
from hetero.train.state import load_state, pack
from hetero.train.values import NotANumberError, TrainOptions

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from hetero.train.losses import LossSums

__all__ = [
    "HALF",
    "HEADER",
    "ConvolutionLayout",
    "Judge",
    "ModelReplica",
    "Parts",
    "call_model",
    "count_right",
    "made_on",
    "mixing_layers",
    "training_modes",
]

HEADER = 6
"""Numbers that ride with the gradients before the seconds of each rank: see `Parts.header`."""

_FIRST_SCALE = 2.0**16
_GROWS_AFTER = 2000
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What a precision computes in where that is safe; 'fp32' is the model's own."""

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_CONVOLUTIONS = (torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)


class ConvolutionLayout:
    """The layout of a model's convolutions, which may be changed between two passes.

    Parameters
    ----------
    model
        Whose convolutions are meant.

    Attributes
    ----------
    applies
        Whether it has any.

    Examples
    --------
    >>> model = torch.nn.Conv2d(2, 3, 1)
    >>> layout = ConvolutionLayout(model)
    >>> layout.channels_last = True
    >>> model(torch.zeros(1, 2, 4, 4)).is_contiguous(memory_format=torch.channels_last)
    True
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._convolutions = [module for module in model.modules() if isinstance(module, _CONVOLUTIONS)]
        self._hooks: list[RemovableHandle] = []
        self.applies = bool(self._convolutions)

    @property
    def channels_last(self) -> bool:
        """Return whether convolutions get their inputs with channels last."""
        return bool(self._hooks)

    @channels_last.setter
    def channels_last(self, last: bool) -> None:
        if last == self.channels_last:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks = [module.register_forward_pre_hook(_turned) for module in self._convolutions] if last else []


def _turned(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[object, ...]:
    first = inputs[0]
    form = _LAST.get(first.dim())
    return inputs if form is None else (first.to(memory_format=form), *inputs[1:])


@dataclass(slots=True)
class Parts:
    """Sums over the samples of a part of a batch.

    Attributes
    ----------
    samples, weight, loss, right
        Counts and sums.
    classes
        Samples whose answer could be right or wrong.
    bad
        Passes whose loss is not a number.
    """

    samples: float = 0.0
    weight: float = 0.0
    loss: float = 0.0
    right: float = 0.0
    classes: float = 0.0
    bad: float = 0.0

    @property
    def header(self) -> list[float]:
        """The sums in a row."""
        return [self.samples, self.weight, self.loss, self.right, self.classes, self.bad]


class Judge:
    """A model with its loss on one device, as far as it does not train.

    Parameters
    ----------
    model, loss
        As users give them; loss may be None where only outputs are wanted.
    options
        Of the run.
    place
        Torch's name of the device.
    """

    def __init__(self, model: torch.nn.Module, loss: object, options: TrainOptions, place: str) -> None:
        self.options = options
        self.place = torch.device(place)
        self.model = model.to(self.place)
        self.loss = SummedLoss(_no_loss if loss is None else loss)

    def evaluate(
        self, samples: Samples, ids: Sequence[int], size: int, passes: list[tuple[object, object]] | None = None
    ) -> Parts:
        """Return the sums over some samples, in passes of at most `size`.

        Parameters
        ----------
        passes
            Takes the outputs and targets of each pass, on the host.
        """
        self.model.eval()
        done = Parts()
        with torch.no_grad():
            for begin in range(0, len(ids), size):
                piece = ids[begin : begin + size]
                inputs, targets = self._load(samples.batch(piece, self.options.seed, 0))
                with self.on_device():
                    output = call_model(self.model, inputs)
                    total, weight, _ = self.loss.sums(output, targets)
                if passes is not None:
                    passes.append((_moved(output, "cpu"), _moved(targets, "cpu")))
                right, classes = count_right(output, targets)
                one = Parts(len(piece), float(weight), float(total), right, classes)
                done = Parts(*(a + b for a, b in zip(done.header, one.header, strict=True)))
        return done

    def predict(self, samples: Samples, ids: Sequence[int]) -> torch.Tensor:
        """Return the model's outputs for some samples, on the host."""
        self.model.eval()
        batch = samples.batch(ids, self.options.seed, 0)
        inputs = batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else batch
        with torch.no_grad(), self.on_device():
            found = call_model(self.model, _moved(inputs, self.place))
        if not torch.is_tensor(found) or not found.dim() or len(found) != len(ids):
            shape = f"of shape {tuple(found.shape)}" if torch.is_tensor(found) else "that is no tensor"
            raise BadValueError(
                f"the model gives a {type(found).__name__} {shape} for {len(ids)} samples, and predict puts tensors of "
                "one row a sample together",
                remedy="give a model that returns one such tensor, as one around this that picks it out",
            )
        return found.float().cpu()

    def _load(self, batch: object) -> tuple[object, object]:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise BadValueError("a batch must be (inputs, targets)", remedy="let collate_fn give a pair")
        inputs, targets = batch
        return _moved(inputs, self.place), _moved(targets, self.place)

    @transparent
    def on_device(self) -> Iterator[None]:
        """Compute in the precision of the run; tensors that the model or the loss makes are made on the device."""
        kind = HALF.get(self.options.precision)
        precision = nullcontext() if kind is None else torch.autocast(self.place.type, dtype=kind)
        with made_on(self.place), precision:
            yield


def made_on(place: torch.device) -> AbstractContextManager[object]:
    """Return a context in which new tensors are made on a device; the host's loop around it is not affected."""
    return nullcontext() if place.type == "cpu" else place


def _no_loss(*_: object) -> object:
    raise BadValueError("there is no loss to evaluate with", remedy="give the Trainer one")


class ModelReplica(Judge):
    """A model with its loss and optimizer on one device.

    Parameters
    ----------
    parts
        Pickled (model, loss, optimizer); the optimizer may be a function of the parameters.
    options
        Of the run.
    place
        Torch's name of the device.
    ranks
        How many numbers the header has besides `Parts.header`.
    passes
        How many samples a pass may have.

    Attributes
    ----------
    on_batch
        Called with the batch and the samples of each pass before it is computed, or None.
    """

    def __init__(
        self, parts: bytes, options: TrainOptions, place: str, ranks: int, passes: PassLimit | None = None
    ) -> None:
        model, loss, optimizer = cloudpickle.loads(parts)
        self._modes = training_modes(model)
        self.on_batch: Callable[[object, Sequence[int]], None] | None = None
        super().__init__(model, loss, options, place)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            raise BadValueError("the model has no parameter that is trained", remedy="set requires_grad on some")
        self.optimizer = optimizer if hasattr(optimizer, "param_groups") else optimizer(trained)
        if not hasattr(self.optimizer, "param_groups"):
            raise BadValueError(
                f"the optimizer's function returned {shown(self.optimizer)}, which is no optimizer",
                remedy="return torch.optim.Adam(parameters) or its like",
            )
        check_closure(self.optimizer)
        check_parameters(model, self.optimizer)
        self.schedule = None if options.schedule is None else make_schedule(options.schedule, self.optimizer)
        self._averages: dict[str, torch.Tensor] = {}
        kind = BitwiseGradients if options.exact == "bitwise" else Gradients
        self.gradients = kind(trained, HEADER + ranks, options)
        self.random = KeyedRandom(options.seed)
        self.passes = passes or PassLimit()
        whole = "exact='bitwise'" if options.exact == "bitwise" else next(iter(mixing_layers(model)), "")
        self.passes.whole = self.passes.whole or whole
        recompute_blocks(self.model, options.recompute, self.random)
        self.layout = ConvolutionLayout(self.model)
        self.layout.channels_last = options.layout == "channels_last"
        self._drawing = KeyedPasses(self.random, self.model, self.place)
        self.scale = _FIRST_SCALE if options.precision == "fp16" else 1.0
        self._good_steps = 0
        self.step = 0

    # --- a step --------------------------------------------------------------------------------------------

    def compute(self, samples: Batches, ids: Sequence[int], batch: int, group: Group | None = None) -> Parts:
        """Compute the gradients of some samples of this step.

        Parameters
        ----------
        ids
            This device's samples, may be empty.
        batch
            Samples of the step over all devices.
        group
            With whom gradients are added up as they come about; None where only `reduce` does.

        Notes
        -----
        Gradients are those of scale · Σ lᵢ / batch; `apply` corrects for the weight that the loss really has. When
        memory runs out in a pass, the part is computed anew with passes half as large; when one fails for another
        reason under a layout that nobody asked for, it is computed anew in the layout of the model.

        Raises
        ------
        OutOfDeviceMemoryError
            Memory ran out in a pass that cannot be cut.
        """
        self._to_training()
        while True:
            pieces = self.pieces(ids)
            try:
                return self._compute(samples, pieces, batch, group)
            except (MemoryError, RuntimeError) as error:
                full = is_out_of_memory(error)
                if not full and not self._can_turn_back(error):
                    raise
            gc.collect()
            if full:
                self.passes.ran_out(len(pieces[0]))
            else:
                self.layout.channels_last = False

    def _can_turn_back(self, error: Exception) -> bool:
        """Return whether a pass may have failed because activations lie otherwise than the model's code expects."""
        return self.layout.channels_last and self.options.layout == "auto" and not isinstance(error, HeteroError)

    def _compute(self, samples: Batches, pieces: Sequence[Sequence[int]], batch: int, group: Group | None) -> Parts:
        self.gradients.begin(group, (1.0 if self.loss.divides else batch) / self.scale)
        done = Parts()
        for piece in pieces:
            if piece is pieces[-1]:
                self.gradients.last_pass()
            self.passes.tries(len(piece))
            self._pass(samples, piece, batch, done)
            self.gradients.take()
        return done

    def pieces(self, ids: Sequence[int]) -> list[Sequence[int]]:
        """Cut this device's samples of a step into passes."""
        options = self.options
        size = options.unit if options.exact == "bitwise" else -(-len(ids) // options.accumulate)
        if options.micro_batch:
            size = min(size, options.micro_batch)
        size = self.passes.size(size)
        return [ids[begin : begin + size] for begin in range(0, len(ids), size)] if ids else []

    def _pass(self, samples: Batches, ids: Sequence[int], batch: int, done: Parts) -> None:
        found = samples.batch(ids, self.options.seed, self.step)
        if self.on_batch is not None:
            self.on_batch(found, ids)
        inputs, targets = self._load(found)
        with self._drawing.over(self.step, ids) as forward:
            output, (total, weight, _) = forward(lambda: self._forward(inputs, targets))
            (total * (self.scale / batch)).backward()
        done.samples += len(ids)
        done.weight += self._counted(float(weight))
        loss = float(total.detach())
        if loss - loss != 0.0:
            done.bad += 1
            loss = 0.0
        done.loss += self._counted(loss)
        right, classes = count_right(output.detach() if torch.is_tensor(output) else output, targets)
        done.right += right
        done.classes += classes

    def _counted(self, value: float) -> Fraction | float:
        """Return a number to add up: as a multiple of 2⁻⁷² where sums in any order are to be the same bits."""
        if self.options.exact != "bitwise" or value - value != 0.0:
            return value
        return Fraction(round(Fraction(value) * FINEST), FINEST)

    def _forward(self, inputs: object, targets: object) -> tuple[torch.Tensor, LossSums]:
        with self.on_device():
            output = call_model(self.model, inputs)
            return output, self.loss.sums(output, targets)

    def apply(self, total: Parts, batch: int) -> bool:
        """Step the optimizer with the summed gradients; return False where the step is skipped.

        Raises
        ------
        NotANumberError
            The loss is not a number, and the run is to stop.
        OutOfDeviceMemoryError
            The optimizer's step does not fit.
        """
        if self.options.precision == "fp16" and not self.gradients.finite():
            self.scale, self._good_steps = self.scale / 2, 0
            self.gradients.forget()
            return False
        if total.bad:
            if self.options.on_nan == "stop":
                raise NotANumberError(f"the loss or its gradient is not a number at step {self.step}")
            self.gradients.forget()
            return False
        self.gradients.scale(self._factor(total.weight, batch))
        self._clip()
        self._step_optimizer()
        if self.schedule is not None and self.options.schedule_each == "step":
            self.schedule.step()
        self._average()
        self._good_steps += 1
        if self.options.precision == "fp16" and self._good_steps % _GROWS_AFTER == 0:
            self.scale *= 2
        return True

    def end_epoch(self) -> None:
        """Record that the last step of an epoch was made."""
        if self.schedule is not None and self.options.schedule_each == "epoch":
            self.schedule.step()

    def _clip(self) -> None:
        options, parameters = self.options, self.gradients.parameters
        if options.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, options.clip_norm)
        elif options.clip_value is not None:
            torch.nn.utils.clip_grad_value_(parameters, options.clip_value)

    def _average(self) -> None:
        """Have the averages follow the weights: w̄ ← d w̄ + (1 − d) w, with w̄ = w after the first step."""
        if self.options.ema_decay is None:
            return
        weights = {name: each.detach() for name, each in self.model.named_parameters() if each.requires_grad}
        if not self._averages:
            self._averages = {name: each.clone() for name, each in weights.items()}
            return
        follow = torch.optim.swa_utils.get_ema_multi_avg_fn(self.options.ema_decay)
        follow([*self._averages.values()], [weights[name] for name in self._averages], 0)

    @transparent
    def averaged(self) -> Iterator[None]:
        """Have the model hold the averages of its weights where the run keeps them."""
        parameters = {name: each for name, each in self.model.named_parameters() if name in self._averages}
        weights = {name: each.detach().clone() for name, each in parameters.items()}
        with torch.no_grad():
            for name, each in parameters.items():
                each.copy_(self._averages[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, each in parameters.items():
                    each.copy_(weights[name])

    def _step_optimizer(self) -> None:
        try:
            self.optimizer.step()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfDeviceMemoryError("memory ran out in the optimizer's step") from None

    def _factor(self, weight: float, batch: int) -> float:
        divisor = weight if self.loss.divides else 1.0
        return batch / divisor / self.scale if divisor else 0.0

    def reduce(self, group: Group, done: Parts, more: Sequence[float]) -> tuple[Parts, list[float]]:
        """Add up gradients and sums over the group."""
        if isinstance(self.gradients, BitwiseGradients) and self.gradients.overflowed:
            done.bad += 1
        summed = self.gradients.reduce(group, [*done.header, *more])
        return Parts(*summed[:HEADER]), summed[HEADER:]

    def bad_samples(self, samples: Samples, ids: Sequence[int]) -> list[int]:
        """Return the ids of the samples of this step whose loss is not a number."""
        found: list[int] = []
        self._to_training()
        for piece in self.pieces(ids):
            inputs, targets = self._load(samples.batch(piece, self.options.seed, self.step))
            with self._drawing.over(self.step, piece), torch.no_grad():
                each = self._forward(inputs, targets)[1][2]
            bad = ~torch.isfinite(each)
            wrong = bad.reshape(len(piece), -1).any(1) if not bad.numel() % len(piece) else bad.any().expand(len(piece))
            found += [sample for sample, bad in zip(piece, wrong.tolist(), strict=True) if bad]
        return found

    def _to_training(self) -> None:
        for module, training in self._modes:
            module.training = training

    # --- state ---------------------------------------------------------------------------------------------

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The rate of each parameter group."""
        return tuple([float(group.get("lr", 0.0)) for group in self.optimizer.param_groups])

    def take_values(self, values: Mapping[int, Mapping[str, object]]) -> None:
        """Apply settings that the program changed to the optimizer's parameter groups."""
        set_values(self.optimizer, values)

    def state(self) -> bytes:
        """Return everything that the next step depends on."""
        exponents = getattr(self.gradients, "exponents", [])
        numbers = [self.step, self.scale, self._good_steps, *exponents]
        return pack(self.model, self.optimizer, numbers, self._averages, schedule_state(self.schedule))

    def adopt(self, state: bytes) -> None:
        """Take over a state that `state` gave."""
        found = load_state(state, self.model, self.optimizer, self.place)
        load_schedule(self.schedule, found.schedule)
        self._averages = {name: average.clone() for name, average in found.averages.items()}
        step, self.scale, good_steps, *exponents = found.numbers
        self.step, self._good_steps = int(step), int(good_steps)
        if isinstance(self.gradients, BitwiseGradients):
            self.gradients.exponents = [int(exponent) for exponent in exponents]


def call_model(model: torch.nn.Module, inputs: object) -> Any:
    """Call a model on the inputs of a batch; a tuple of them is its arguments."""
    return model(*inputs) if isinstance(inputs, tuple) and not hasattr(inputs, "to") else model(inputs)


def _moved(value: object, place: object) -> object:
    if hasattr(value, "to"):
        return value.to(place)
    if isinstance(value, tuple | list):
        return tuple(_moved(part, place) for part in value)
    if isinstance(value, dict):
        return {name: _moved(part, place) for name, part in value.items()}
    return value


def count_right(output: Any, targets: Any) -> tuple[float, float]:
    """Count the right answers where targets are classes and outputs one score a class; (0, 0) elsewhere."""
    if not torch.is_tensor(output) or not torch.is_tensor(targets):
        return 0.0, 0.0
    if output.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        return 0.0, 0.0
    return float((output.argmax(1) == targets).sum()), float(len(targets))


def training_modes(model: torch.nn.Module) -> list[tuple[torch.nn.Module, bool]]:
    """Return each module with the mode that the program gave it."""
    return [(module, module.training) for module in model.modules()]


def mixing_layers(model: torch.nn.Module, *, all_train: bool = False) -> list[str]:
    """Name the layers that mix the samples of a pass while they train, so that parts differ from the whole.

    Parameters
    ----------
    all_train
        True where all modules train, whatever their modes are.
    """
    kinds = (torch.nn.modules.batchnorm._BatchNorm,)
    found = [(name, m) for name, m in model.named_modules() if isinstance(m, kinds) and (all_train or m.training)]
    return [f"{name} ({type(m).__name__})" for name, m in found]
