"""Models of Keras 3 in a process of `hetero launch`: own rows go forward, the loss is that of all rows.

In: a compiled model. Out: the same model, whose steps cut the batch. Each process has the predictions for all rows of a
batch, its own with a graph, so that any loss and metric is that of one process. It must not import Keras unless the
script has, and works with the back end torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hetero.floor.errors import BadValueError
from hetero.train.launch.fleet import TrainingFleet, init, is_made_by
from hetero.train.launch.shared_loader import Batch, map_tensors, samples_in

if TYPE_CHECKING:
    from hetero.train.launch.launched import Member

__all__ = ["distribute"]

_WRITERS = tuple(f"keras.src.callbacks.{name}" for name in ("csv_logger.CSVLogger", "tensorboard.TensorBoard"))
_REFUSED_LAYERS = {
    "keras.src.layers.normalization.batch_normalization.BatchNormalization": (
        "normalises by the statistics of its own rows",
        "take LayerNormalization or GroupNormalization",
    ),
    "keras.src.layers.normalization.spectral_normalization.SpectralNormalization": (
        "changes its weights in the forward pass",
        "leave it out",
    ),
}
_STEPS = ("train_step", "test_step", "predict_step")


@contextmanager
def distribute() -> Iterator[TrainingFleet]:
    """Divide the batches of the models that are compiled in this scope over the devices of `hetero launch`.

    `fit`, `evaluate` and `predict` may be called in the scope or after it. Under plain ``python`` nothing changes.

    Returns
    -------
    Iterator
        A context manager that gives the fleet, as `hetero.train.init` does.

    Raises
    ------
    BadValueError
        A model cannot be divided, or Keras has another back end than torch.

    Examples
    --------
    >>> import hetero
    >>> with hetero.keras.distribute() as fleet:  # compile models in here
    ...     print(fleet.devices)
    ('cpu:0',)
    """
    fleet = init()
    if fleet.world_size == 1:
        yield fleet
        return
    keras = importlib.import_module("keras")
    if keras.backend.backend() != "torch":
        raise BadValueError(
            f"Keras has the back end {keras.backend.backend()!r}, and hetero.keras divides models of torch",
            remedy="set KERAS_BACKEND=torch",
        )
    model, compiled = keras.Model, keras.Model.compile

    def compile_and_join(self: Batch, *args: Batch, **options: Batch) -> None:
        compiled(self, *args, **options)
        _KerasModel(self, fleet)  # type: ignore[arg-type]

    own = vars(model).get("compile")
    model.compile = compile_and_join
    try:
        with keras.device(str(fleet.device)):
            yield fleet
    finally:
        if own is None:
            del model.compile
        else:
            model.compile = own


class _KerasModel:
    """Takes the steps of a model over."""

    def __init__(self, model: Batch, fleet: Member) -> None:
        self._model = model
        self._fleet = fleet
        self._keras = importlib.import_module("keras")
        self._is_prepared = False
        for name in _STEPS:
            _refuse_own_step(self._keras, model, name)
            setattr(model, name, getattr(self, f"_{name}"))
        if model.jit_compile:
            raise BadValueError(
                "compile(jit_compile=True): a compiled step cannot be divided", remedy="leave jit_compile out"
            )
        self._fit, model.fit = type(model).fit.__get__(model), self._fitted
        for name in ("save", "save_weights", "export"):
            setattr(model, name, self._by_main(getattr(type(model), name).__get__(model)))

    def _fitted(self, *args: Batch, callbacks: Batch = None, **options: Batch) -> Batch:
        """Train as Keras does; files that callbacks write, the main process writes."""
        listed = list(callbacks) if isinstance(callbacks, Sequence) else [callbacks] if callbacks else None
        for each in listed or ():
            if is_made_by(each, "keras.src.callbacks.backup_and_restore.BackupAndRestore"):
                raise BadValueError(
                    "BackupAndRestore would back up in each process", remedy="take ModelCheckpoint and initial_epoch"
                )
        if listed is not None and not self._fleet.is_main:
            listed = [each for each in listed if not is_made_by(each, *_WRITERS)]
        with self._keras.device(str(self._fleet.device)):
            return self._fit(*args, callbacks=listed, **options)

    def _by_main(self, save: Batch) -> Batch:
        def saved(*args: Batch, **options: Batch) -> Batch:
            return save(*args, **options) if self._fleet.is_main else None

        return saved

    # --- steps ---------------------------------------------------------------------------------------------

    def _train_step(self, data: Batch) -> Batch:
        if not self._is_prepared:
            self._prepare()
        model = self._model
        x, y, weights = _unpacked(self._keras, data)
        model.zero_grad()
        own = self._forward(self._fleet.split(data), training=True)
        whole = map_tensors(self._spliced, own)
        loss = model._compute_loss(x=x, y=y, y_pred=whole, sample_weight=weights, training=True)
        model._loss_tracker.update_state(loss.detach(), sample_weight=samples_in(x))
        # A process counts by its rows. Its gradient, by its own predictions, counts fully; penalties are alike in all.
        count, factor = 1.0, 1.0
        if self._fleet.parts > 1:
            count = float(self._fleet.rows.count)
            factor = self._fleet.rows.whole / count if count else 1.0
        total = loss * factor + sum(model.losses) * (1.0 - factor)
        if not count:
            total = total + 0.0 * sum(each.sum() for each in _leaves(own))
        # Keras computes in single precision with torch, whatever floatx is.
        self._fleet.backward(model.optimizer.scale_loss(total.float()), weight=count)
        self._fleet.between_batches()
        trained = model.trainable_weights[:]
        with torch.no_grad():
            model.optimizer.apply([each.value.grad for each in trained], trained)
            return model.compute_metrics(x, y, whole, sample_weight=weights)

    def _test_step(self, data: Batch) -> Batch:
        model = self._model
        x, y, weights = _unpacked(self._keras, data)
        whole = self._predicted(data)
        loss = model._compute_loss(x=x, y=y, y_pred=whole, sample_weight=weights, training=False)
        model._loss_tracker.update_state(loss, sample_weight=samples_in(x))
        return model.compute_metrics(x, y, whole, sample_weight=weights)

    def _predict_step(self, data: Batch) -> Batch:
        return self._predicted(data)

    def _predicted(self, data: Batch) -> Batch:
        """Return the predictions for all rows of a batch, of which each process computes its own."""
        own = self._forward(self._fleet.split(data), training=False)
        whole = map_tensors(self._spliced, own)
        self._fleet.between_batches()
        return whole

    def _forward(self, data: Batch, *, training: bool) -> Batch:
        x, _, _ = _unpacked(self._keras, data)
        return self._model(x, training=training) if self._model._call_has_training_arg else self._model(x)

    def _spliced(self, own: Tensor) -> Tensor:
        """Return the rows of all processes, the own ones with their graph."""
        rows = self._fleet.rows
        if self._fleet.parts == 1:
            return own
        found = self._with_others(own[: rows.count])
        mask = self._keras.src.backend.get_keras_mask(own)
        if mask is not None:
            self._keras.src.backend.set_keras_mask(found, mask=self._with_others(mask[: rows.count]))
        return found

    def _with_others(self, own: Tensor) -> Tensor:
        rows = self._fleet.rows
        whole = self._fleet.gathered(own)
        return torch.cat([whole[: rows.begin], own, whole[rows.begin + rows.count :]])

    # --- the beginning -------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        for layer in self._model._flatten_layers():
            for name, (what, remedy) in _REFUSED_LAYERS.items():
                if is_made_by(layer, name):
                    raise BadValueError(f"{type(layer).__name__} {layer.name!r} {what}", remedy=remedy)
            if getattr(layer, "activity_regularizer", None) is not None or layer._losses:
                raise BadValueError(
                    f"{layer.name!r} adds a loss of its own rows, by add_loss or an activity regularizer",
                    remedy="put it into the loss of compile(), or penalise weights",
                )
        self._fleet.prepare(self._model)
        self._is_prepared = True


def _refuse_own_step(keras: Batch, model: Batch, name: str) -> None:
    if getattr(type(model), name) is not getattr(keras.Model, name):
        raise BadValueError(
            f"{type(model).__name__} has a {name} of its own, which cannot be divided",
            remedy="write the loop in torch, with fleet.prepare(model) and fleet.split(batch)",
        )


def _unpacked(keras: Batch, data: Batch) -> tuple[Batch, Batch, Batch]:
    found: tuple[Batch, Batch, Batch] = keras.utils.unpack_x_y_sample_weight(data)
    return found


def _leaves(batch: Batch) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(found.append, batch)
    return found
