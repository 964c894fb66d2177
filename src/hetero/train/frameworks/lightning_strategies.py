"""The strategy "hetero" of Lightning's Trainer and of Fabric, registered by `hetero.train.init`.

In: what a Trainer or Fabric asks of a strategy. Out: the same for the own rows of each batch. Both go on to believe
that they are alone; what they log, save and decide is that of the whole batch. It must not import Lightning unless the
script has.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hetero.floor.errors import BadValueError
from hetero.train.frameworks.huggingface import CutLoader
from hetero.train.launch.fleet import init, is_made_by
from hetero.train.launch.shared_loader import Batch, samples_in

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy as _Base

    from hetero.train.launch.launched import Member
else:
    _Base = object

__all__ = ["PACKAGES", "register"]

PACKAGES = {
    "lightning.pytorch.strategies": ("StrategyRegistry", "lightning.pytorch.accelerators"),
    "lightning.fabric.strategies": ("STRATEGY_REGISTRY", "lightning.fabric.accelerators"),
    "pytorch_lightning.strategies": ("StrategyRegistry", "pytorch_lightning.accelerators"),
    "lightning_fabric.strategies": ("STRATEGY_REGISTRY", "lightning_fabric.accelerators"),
}
"""Where strategies are registered: the name of the registry, and the module of the devices."""


def register() -> None:
    """Register the strategy with those packages of Lightning's that are imported."""
    for place, (registry, accelerators) in PACKAGES.items():
        module = sys.modules.get(place)
        if module is None or "hetero" in getattr(module, registry):
            continue
        mixin = _FabricStrategy if "fabric" in place else _TrainerStrategy
        kind = type(
            "HeteroStrategy",
            (mixin, module.SingleDeviceStrategy),
            {"accelerators": accelerators, "strategy_name": "hetero"},
        )
        getattr(module, registry).register("hetero", kind, description="unequal devices, by hetero launch")


class _Strategy(_Base):  # type: ignore[misc]
    """What both strategies do otherwise among several processes."""

    accelerators = ""
    is_cut = False

    def __init__(self, *args: Batch, **options: Batch) -> None:
        self.fleet: Member = init()  # type: ignore[assignment]
        super().__init__(*args, **{**options, "device": self.fleet.device})
        self.global_rank = self.local_rank = self.fleet.rank
        self.is_divided = self.fleet.world_size > 1
        rank_zero = importlib.import_module(f"{self.accelerators.rpartition('.')[0]}.utilities.rank_zero")
        for module in (rank_zero, importlib.import_module("lightning_utilities.core.rank_zero")):
            module.rank_zero_only.rank = self.fleet.rank

    @property
    def is_global_zero(self) -> bool:
        return self.fleet.is_main

    @property
    def num_nodes(self) -> int:
        return 1

    @num_nodes.setter
    def num_nodes(self, number: int) -> None:
        if number != 1:
            raise BadValueError(f"num_nodes={number}: hetero launch takes one host", remedy="leave it out")

    @property
    def accelerator(self) -> Batch:
        return self._accelerator

    @accelerator.setter
    def accelerator(self, given: Batch) -> None:
        """Take the device that hetero launch has given this process, whatever `accelerator=` says."""
        kinds = importlib.import_module(self.accelerators)
        wanted = {"cpu": "CPUAccelerator", "cuda": "CUDAAccelerator", "mps": "MPSAccelerator"}
        kind = getattr(kinds, wanted.get(self.fleet.device.type, ""), None)
        self._accelerator = given if given is None or kind is None or isinstance(given, kind) else kind()

    def all_gather(self, tensor: Tensor, group: object = None, sync_grads: bool = False) -> Tensor:
        """Return the rows of the whole batch, as one process has them."""
        if not self.is_cut:
            return tensor
        if sync_grads:
            raise BadValueError(
                "all_gather(sync_grads=True) would need gradients of other processes", remedy="leave sync_grads out"
            )
        found: Tensor = self.fleet.gather(tensor) if tensor.dim() else self.fleet.whole_value(tensor)
        return found

    def _reduced(self, value: Batch, operation: object) -> Batch:
        if not self.is_cut or not isinstance(value, Tensor):
            return value
        name = str(operation).lower().rpartition(".")[2]
        if name == "sum":
            return self.fleet.sum(value)
        if name not in ("mean", "avg", "none") or value.numel() != 1:
            raise BadValueError(
                f"{operation!r} of a tensor of shape {tuple(value.shape)} is not offered by the strategy 'hetero'",
                remedy="reduce one number by 'mean' or 'sum', or gather the rows",
            )
        return self.fleet.whole_value(value)

    def barrier(self, *args: object, **options: object) -> None:
        self.fleet.wait()

    def broadcast(self, obj: Batch, src: int = 0) -> Batch:
        return self.fleet.broadcast(obj)


class _FabricStrategy(_Strategy):
    """That of Fabric, whose script owns the loop."""

    def setup_module(self, module: torch.nn.Module) -> torch.nn.Module:
        found = super().setup_module(module)
        self._modules = [*getattr(self, "_modules", []), found]
        return self._prepared(found) if self.is_divided else found

    def _prepared(self, module: torch.nn.Module) -> torch.nn.Module:
        self.fleet.keep_all()
        found: torch.nn.Module = self.fleet.prepare(module)
        return found

    def setup_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return self.fleet.prepare(super().setup_optimizer(optimizer))

    def process_dataloader(self, dataloader: Batch) -> Batch:
        found = super().process_dataloader(dataloader)
        return CutLoader(found, self) if self.is_divided else found

    went_back = False

    def divided(self, batch: Batch, *, trains: bool) -> Batch:
        """Return this process's part of a batch, or all of it where no model is being trained."""
        self.is_cut, self.went_back = trains or any(each.training for each in self._modules), False
        return self.fleet.split(batch) if self.is_cut else self.fleet.undivided(batch)

    def between_batches(self) -> None:
        self.fleet.between_batches()

    def backward(self, tensor: Tensor, module: torch.nn.Module | None, *args: Batch, **options: Batch) -> None:
        self.went_back = True
        super().backward(tensor, module, *args, **options)

    def all_reduce(self, tensor: Batch, group: object = None, reduce_op: object = "mean") -> Batch:
        return self._reduced(tensor, reduce_op)


class _TrainerStrategy(_Strategy):
    """That of Lightning's Trainer, which owns the loop."""

    _loss: Tensor | None = None
    _own_loss: Tensor | None = None

    def setup_optimizers(self, trainer: Batch) -> None:
        super().setup_optimizers(trainer)
        if self.is_divided:
            module = self.lightning_module
            self.fleet.prepare(module)
            for optimizer in self.optimizers:
                self.fleet.prepare(optimizer)
            for each in module.modules():
                if is_made_by(each, "torchmetrics.metric.Metric"):
                    each.update = self._of_whole_rows(getattr(each.update, "original", each.update))
            module.log = self._of_whole_batch(getattr(module.log, "original", module.log))

    def _of_whole_rows(self, update: Batch) -> Batch:
        """Return what updates a metric with the rows of all processes."""

        def updated(*args: Batch, **options: Batch) -> None:
            if self.is_cut:
                args, options = self.fleet.gathered(args), self.fleet.gathered(options)
            update(*args, **options)

        updated.original = update  # type: ignore[attr-defined]
        return updated

    def _of_whole_batch(self, log: Batch) -> Batch:
        """Return what logs numbers of the whole batch, given those of the own rows."""

        def logged(name: str, value: Batch, *args: Batch, **options: Batch) -> None:
            is_number = value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float)
            if self.is_cut and is_number:
                value = self._logged(name, value, _operation(options.get("reduce_fx", "mean")))
            elif options.get("sync_dist") and self.lightning_module.trainer.training:
                self.fleet.note(
                    f"self.log({name!r}, sync_dist=True) outside of training_step logs the number of the main process: "
                    "what comes of what training_step kept is of its own rows; keep self.all_gather(...) of that"
                )
            log(name, value, *args, **options)

        logged.original = log  # type: ignore[attr-defined]
        return logged

    def _logged(self, name: str, value: Tensor | float, operation: str) -> Tensor | float:
        """Return a number for the rows of all; a line says which is no mean of those of the parts."""
        given = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
        if operation != "mean":
            found: Tensor = self._reduced(given, operation)
        else:
            found, mean = self.fleet.whole_and_mean(given)
            if not math.isclose(float(found), mean, rel_tol=1e-6):
                self.fleet.note(
                    f"self.log({name!r}) in training_step is {float(found):.4g} for a whole batch, and {mean:.4g} as "
                    'the mean of its parts, which is logged later on: log sums with reduce_fx="sum", and make what is '
                    "neither of self.all_gather(...)"
                )
        return found if isinstance(value, Tensor) else float(found)

    def training_step(self, *args: Batch, **options: Batch) -> Batch:
        """Do a step on the own rows of a batch; return its loss with the value that it has for all rows."""
        if not self.is_divided:
            return super().training_step(*args, **options)
        batch, *others = args
        _refuse_several(batch)
        with self._in_step():
            found = super().training_step(self.fleet.split(batch), *others, **options)
            loss = found["loss"] if isinstance(found, dict) else found
            if not isinstance(loss, Tensor) or not loss.requires_grad:
                return found
            self._loss, self._own_loss = self.fleet.whole_value(loss), loss
            loss = loss + (self._loss - loss.detach())
        return {**found, "loss": loss} if isinstance(found, dict) else loss

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        self.is_cut = True
        try:
            yield
        finally:
            self.is_cut = False

    def post_backward(self, closure_loss: Tensor) -> None:
        super().post_backward(closure_loss)
        if self.is_divided and self._loss is not None:
            self.fleet.set_loss(float(self._loss))
            if self._own_loss is not None:  # which the module may have kept
                self._own_loss.detach().copy_(self._loss)
                self._own_loss = None
            self.fleet.between_batches()

    def all_gather(self, tensor: Tensor, group: object = None, sync_grads: bool = False) -> Tensor:
        trainer = self.lightning_module.trainer if self.lightning_module is not None else None
        if self.is_divided and not self.is_cut and trainer is not None and trainer.training:
            raise BadValueError(
                "all_gather() between training steps: what a process holds there, it has of its own rows",
                remedy="call all_gather() in training_step",
            )
        return super().all_gather(tensor, group, sync_grads)

    def reduce(self, tensor: Batch, group: object = None, reduce_op: object = "mean") -> Batch:
        return self._reduced(tensor, reduce_op)


def _refuse_several(batch: Batch) -> None:
    """Refuse batches of several loaders that have not the same number of samples: they cannot be cut alike."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    sizes = {samples_in(each) for each in parts if isinstance(each, Mapping | list | tuple)} - {None}
    if len(sizes) > 1:
        raise BadValueError(
            f"training_step gets batches of {' and '.join(map(str, sorted(sizes)))} samples at once, which cannot be "  # type: ignore[type-var]
            "cut alike",
            remedy="give the loaders of a CombinedLoader the same batch size, and drop_last=True",
        )


def _operation(given: Batch) -> str:
    return given if isinstance(given, str) else str(getattr(given, "__name__", given))
