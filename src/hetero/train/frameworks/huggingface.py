"""`accelerate.Accelerator` and `transformers.Trainer` in a process of `hetero launch`.

In: an object of theirs, as the script made it. Out: the same object, whose class also knows of the other processes.
Both go on to believe that they are alone: sizes, steps and counts are those of one process; what they do of a batch is
cut, and what one process writes the main one writes. It must not import either unless the script has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from hetero.floor import clock
from hetero.floor.errors import BadValueError
from hetero.train.launch import process_states as states
from hetero.train.launch.fleet import is_made_by
from hetero.train.launch.shared_loader import Batch, map_tensors, samples_in

if TYPE_CHECKING:
    from transformers import Trainer as _Base

    from hetero.train.launch.launched import Member
else:
    _Base = object

__all__ = ["CutLoader", "joined"]

_SIGN_OF_LIFE_S = 30.0
_OF_PAIRS = ("trl.trainer.dpo_trainer.DPOTrainer", "trl.trainer.reward_trainer.RewardTrainer")


def joined(given: Batch, fleet: Member) -> Batch:
    """Return an Accelerator or a Trainer that works with the other processes; it is the object that was given.

    Raises
    ------
    BadValueError
        It is set to something that cannot be done here.
    """
    if isinstance(given, _Joined):
        return given
    if is_made_by(given, "accelerate.accelerator.Accelerator"):
        _refuse_launchers(given)
        _number_processes(fleet)
        _read_alike(given)
        _join(given, _Accelerator, fleet)
        fleet.keep_all()
        return given
    _refuse_settings(given)
    _number_processes(fleet)
    arguments = given.args
    vars(arguments)["_setup_devices"] = fleet.device
    arguments._n_gpu = min(arguments.n_gpu, 1)
    given._train_batch_size = arguments.train_batch_size
    given.state.is_world_process_zero = given.state.is_local_process_zero = fleet.is_main
    if given.place_model_on_device:
        given._move_model_to_device(given.model, fleet.device)
    _read_alike(given.accelerator)
    _join(given.accelerator, _Accelerator, fleet)
    given.accelerator.cuts_loaders = False
    given.gather_function = given.accelerator.gather_for_metrics
    _join(given, _Trainer, fleet)
    return given


class _Joined(_Base):  # type: ignore[misc]
    """What both have of the fleet; the class of the object that was given comes behind it."""

    _hetero: Member


def _join(given: Batch, with_: type[_Joined], fleet: Member) -> None:
    kind = type(given)
    given._hetero = fleet
    given.__class__ = type(kind.__name__, (with_, kind), {"__module__": kind.__module__})


def _number_processes(fleet: Member) -> None:
    """Set this process's number and device in accelerate's state, also where that is made anew."""
    from accelerate.state import AcceleratorState, PartialState

    known = {"process_index": fleet.rank, "local_process_index": fleet.rank, "device": fleet.device}
    for state in (PartialState, AcceleratorState):
        if state._shared_state:
            state._shared_state.update(known)
    begin: Callable[..., None] = PartialState.__init__
    if getattr(begin, "is_hetero", False):
        return

    def begun(self: Batch, *args: Batch, **options: Batch) -> None:
        is_new = not PartialState._shared_state
        begin(self, *args, **options)
        if is_new:
            PartialState._shared_state.update(known)

    begun.is_hetero = True  # type: ignore[attr-defined]
    PartialState.__init__ = begun
    PartialState.wait_for_everyone = lambda self: fleet.wait()


def _read_alike(accelerator: Batch) -> None:
    """Have every process read streams itself: by itself Accelerate hands out what its first process reads."""
    accelerator.dataloader_config.dispatch_batches = False


def _refuse_launchers(accelerator: Batch) -> None:
    kind = accelerator.distributed_type.value
    if kind != "NO":
        raise BadValueError(
            f"the Accelerator is set to {kind}, and hetero launch exchanges gradients itself",
            remedy="take DeepSpeed, FSDP, tensor parallelism and process groups out of its settings",
        )


def _refuse_settings(trainer: Batch) -> None:
    """Refuse by name what a Trainer cannot do in parts of a batch."""
    arguments = trainer.args
    _refuse_launchers(trainer.accelerator)
    optimizer = str(getattr(arguments.optim, "value", arguments.optim))
    fused = "lomo" in optimizer or "layerwise" in optimizer
    pairs = f"{type(trainer).__name__}, whose batches have what was rejected in rows of their own behind the chosen,"
    for is_set, what, remedy in (
        (is_made_by(trainer, *_OF_PAIRS), pairs, "start it with python"),
        (arguments.auto_find_batch_size, "auto_find_batch_size", "give a batch size that fits the smallest device"),
        (fused, f"optim={optimizer!r}, which updates weights within backward,", "take an optimizer that has a step"),
        (trainer.is_model_parallel, "a model spread over several devices", "load it without device_map"),
    ):
        if is_set:
            raise BadValueError(f"{what} cannot be had under hetero launch", remedy=remedy)


class _Accelerator(_Joined):
    """What an Accelerator does otherwise among several processes."""

    cuts_loaders = True
    is_cut = went_back = False
    _is_saving = False

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Batch:
        found = super().prepare_model(model, device_placement, evaluation_mode)
        return found if evaluation_mode else self._hetero.prepare(found)

    def prepare_optimizer(self, optimizer: Batch, device_placement: bool | None = None) -> Batch:
        found = super().prepare_optimizer(optimizer, device_placement)
        self._hetero.prepare(found.optimizer)
        return found

    def prepare_data_loader(self, data_loader: Batch, *args: Batch, **options: Batch) -> Batch:
        if isinstance(data_loader, CutLoader):
            return data_loader
        found = super().prepare_data_loader(data_loader, *args, **options)
        return CutLoader(found, self) if self.cuts_loaders else found

    def skip_first_batches(self, dataloader: Batch, num_batches: int = 0) -> Batch:
        if not isinstance(dataloader, CutLoader):
            return super().skip_first_batches(dataloader, num_batches)
        return CutLoader(super().skip_first_batches(dataloader.whole, num_batches), self)

    def divided(self, batch: Batch, *, trains: bool) -> Batch:
        """Return this process's part of a batch, or all of it where no model is being trained."""
        self.is_cut, self.went_back = trains or any(model.training for model in self._models), False
        return self._hetero.split(batch) if self.is_cut else self._hetero.undivided(batch)

    def between_batches(self) -> None:
        self._hetero.between_batches()

    def backward(self, loss: Tensor, **options: Batch) -> None:
        """Go backwards with the fleet; the loss is that of the whole batch afterwards, as in one process."""
        self.went_back = True
        scale = float(self.scaler.get_scale()) if self.scaler is not None else 1.0
        factor = scale / self.gradient_accumulation_steps
        scaled = loss if factor == 1.0 else loss * factor
        self._hetero.backward(scaled, **options)
        if scaled is not loss:
            loss.detach().copy_(scaled.detach() / factor)

    def gather(self, tensor: Batch) -> Batch:
        if not self.is_cut:
            return super().gather(tensor)
        return self._hetero.gather(map_tensors(self._rows_to_send, tensor))

    def gather_for_metrics(self, input_data: Batch, use_gather_object: bool = False) -> Batch:
        if not self.is_cut:
            return super().gather_for_metrics(input_data, use_gather_object)
        if use_gather_object or not _are_tensors(input_data):
            raise BadValueError(
                "gather_for_metrics was given something else than tensors, of a part of a batch",
                remedy="give tensors, or call it in an evaluation: each process has the whole batch there",
            )
        return self.gather(input_data)

    def reduce(self, tensor: Batch, reduction: str = "sum", scale: float = 1.0) -> Batch:
        if not self.is_cut:
            return super().reduce(tensor, reduction, scale)
        if reduction not in ("sum", "mean"):
            raise BadValueError(f"reduce: {reduction!r} is not offered here", remedy="take 'sum' or 'mean'")
        parts = 1 if reduction == "sum" else self._hetero.world_size
        return map_tensors(lambda each: self._hetero.sum(self._rows_to_send(each)) / parts, tensor)

    def pad_across_processes(self, tensor: Batch, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Batch:
        if not self.is_cut:
            return super().pad_across_processes(tensor, dim, pad_index, pad_first)
        return map_tensors(lambda each: self._padded(each, dim, pad_index, pad_first), tensor)

    def _rows_to_send(self, given: Tensor) -> Tensor:
        """Return what is to be gathered, with a first dimension; what is no row and comes too early is told."""
        if given.dim() or self.went_back or not given.is_floating_point():
            return given if given.dim() else given.reshape(1)
        if given.requires_grad:
            raise BadValueError(
                "a loss is gathered before backward(), where it is that of the own rows of the batch",
                remedy="call accelerator.backward(loss) first: then the loss is that of the whole batch",
            )
        self._hetero.note(
            "numbers that are gathered before backward() are those of each process's own rows, and their mean is not "
            "that of the batch: gather them after it"
        )
        return given.reshape(1)

    def _padded(self, given: Tensor, dim: int, pad_index: int, pad_first: bool) -> Tensor:
        if given.dim() <= dim:
            return given
        sizes = self._hetero.gather(torch.tensor([given.shape[dim]]))
        missing = int(max([*sizes.tolist(), given.shape[dim]])) - given.shape[dim]
        widths = [0, 0] * (given.dim() - dim - 1) + ([missing, 0] if pad_first else [0, missing])
        return torch.nn.functional.pad(given, widths, value=pad_index)

    def wait_for_everyone(self) -> None:
        if not self._is_saving:
            self._hetero.wait()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        with self._hetero.main_first():
            yield

    local_main_process_first = main_process_first

    def save_state(self, output_dir: str | None = None, safe_serialization: bool = True, **options: Batch) -> Batch:
        found = None
        if self._hetero.is_main:
            self._is_saving = True
            try:
                found = super().save_state(output_dir, safe_serialization, **options)
            finally:
                self._is_saving = False
        else:
            self.project_configuration.iteration += 1
        return self._hetero.broadcast(found)

    def load_state(self, *args: Batch, **options: Batch) -> None:
        with _as_main_process(self._hetero):
            super().load_state(*args, **options)


class Cutter(Protocol):
    """What cuts the batches of a loader, and knows whether the last one was trained on."""

    went_back: bool

    def divided(self, batch: Batch, *, trains: bool) -> Batch:
        """Return the own part of a batch, or all of it where no model is being trained."""
        ...

    def between_batches(self) -> None:
        """Record that the next batch is read."""
        ...


class CutLoader:
    """A loader of a framework whose batches are cut where a model is trained; else each process has all of them.

    Parameters
    ----------
    whole
        The loader, which every process reads.
    cutter
        What cuts.
    """

    def __init__(self, whole: DataLoader[Batch], cutter: Cutter) -> None:
        self.whole = whole
        self._cutter = cutter
        self._trains = False

    def __getattr__(self, name: str) -> Batch:
        if name.startswith("__") or name == "whole":
            raise AttributeError(name)
        return getattr(self.whole, name)

    def __len__(self) -> int:
        return len(self.whole)

    def __iter__(self) -> Iterator[Batch]:
        return self._parts(iter(self.whole))

    def _parts(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            _refuse_uneven(batch)
            yield self._cutter.divided(batch, trains=self._trains)
            self._trains |= self._cutter.went_back
            self._cutter.between_batches()


class _Trainer(_Joined):
    """What a Trainer does otherwise among several processes."""

    _reads_alike: bool | None = None

    def get_train_dataloader(self) -> Batch:
        self._reads_alike = None
        with _as_main_process(self._hetero):  # whose number seeds the workers of a loader
            return super().get_train_dataloader()

    def get_batch_samples(self, *args: Batch, **options: Batch) -> Batch:
        """Return the batches of the next step; those of the main process where the others read other ones."""
        found = super().get_batch_samples(*args, **options)
        if self._reads_alike is None:
            self._reads_alike = self._hetero.is_same(states.checksum(found[0]))
        if self._reads_alike:
            return found
        self._hetero.note("the processes read different batches, so those of the main process are taken by all")
        return self._hetero.broadcast(map_tensors(Tensor.cpu, found))

    def training_step(self, model: torch.nn.Module, inputs: Batch, *args: Batch, **options: Batch) -> Tensor:
        """Do a step on the own rows of a batch, which all have read whole; return the loss of all of it."""
        _refuse_uneven(inputs)
        own = self._hetero.split(inputs)
        self.accelerator.is_cut, self.accelerator.went_back = True, False
        try:
            loss: Tensor = super().training_step(model, own, *args, **options)
        finally:
            self.accelerator.is_cut = False
            self._hetero.between_batches()
        return loss

    def evaluation_loop(self, *args: Batch, **options: Batch) -> Batch:
        """Evaluate in the main process, on its device and in whole batches; all get what comes of it."""
        work = super().evaluation_loop
        self._told_s = clock.monotonic_s()
        return _done_by_main(self._hetero, lambda: work(*args, **options))

    def prediction_step(self, *args: Batch, **options: Batch) -> Batch:
        now_s = clock.monotonic_s()
        if now_s - self._told_s > _SIGN_OF_LIFE_S:
            self._told_s = now_s
            self._hetero.broadcast(None)
        return super().prediction_step(*args, **options)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Batch) -> None:
        if self._hetero.is_main:
            super()._save_checkpoint(model, trial)
        else:
            self.store_flos()
        self.state.best_model_checkpoint = self._hetero.broadcast(self.state.best_model_checkpoint)

    def hyperparameter_search(self, *args: Batch, **options: Batch) -> Batch:
        raise BadValueError(
            "hyperparameter_search would search in each process by itself under hetero launch",
            remedy="start it with python, or search with hetero.train.tune",
        )


def _done_by_main(fleet: Member, work: Callable[[], Batch]) -> Batch:
    """Return in all processes what the main one computes, and its random numbers.

    The others wait; None says that the main process is still at it.
    """
    if fleet.is_main:
        found = work()
        fleet.broadcast((found, _generators(fleet)))
        return found
    told = None
    while told is None:
        told = fleet.broadcast(None)
    found, generators = told
    _set_generators(fleet, generators)
    return found


def _generators(fleet: Member) -> tuple[Batch, ...]:
    device = fleet.device
    own = None if device.type == "cpu" else getattr(torch, device.type).get_rng_state()
    return torch.get_rng_state(), np.random.get_state(), random.getstate(), device.type, own


def _set_generators(fleet: Member, states: Sequence[Batch]) -> None:
    torchs, numpys, pythons, kind, own = states
    torch.set_rng_state(torchs)
    np.random.set_state(numpys)
    random.setstate(pythons)
    if own is not None and kind == fleet.device.type:
        getattr(torch, kind).set_rng_state(own)


@contextmanager
def _as_main_process(fleet: Member) -> Iterator[None]:
    """Make accelerate and transformers take this process for the main one, where they read or number things."""
    from accelerate.state import AcceleratorState, PartialState

    states = [state._shared_state for state in (PartialState, AcceleratorState) if state._shared_state]
    try:
        for state in states:
            state.update(process_index=0, local_process_index=0)
        yield
    finally:
        for state in states:
            state.update(process_index=fleet.rank, local_process_index=fleet.rank)


def _are_tensors(given: Batch) -> bool:
    if isinstance(given, dict):
        return all(_are_tensors(each) for each in given.values())
    if isinstance(given, list | tuple):
        return all(_are_tensors(each) for each in given)
    return isinstance(given, Tensor)


def _refuse_uneven(inputs: Batch) -> None:
    """Refuse a batch of which a part has other rows than the samples, as patches of all images in one row each."""
    if not hasattr(inputs, "items"):
        return
    sizes = {name: len(each) for name, each in inputs.items() if isinstance(each, Tensor) and each.dim()}
    samples = sizes.get("labels", samples_in(inputs))
    for name, size in sizes.items():
        if samples not in (size, 1) and size != 1:
            raise BadValueError(
                f"{name!r} has {size} rows in a batch of {samples} samples, so it cannot be cut into parts of a batch",
                remedy="let the collator return tensors whose first dimension is the samples",
            )
