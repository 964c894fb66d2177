"""Programs for Keras with torch, for tests/engine/test_frameworks.py; each prints its numbers."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

import runpy
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import dtypes

import hetero

fleet = hetero.train.init()
dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"  # else Keras computes in single precision with torch
FOLDER = Path(os.environ["HETERO_HOME"]) / ("launched" if fleet.world_size > 1 else "alone")


def told(name: str, *values: Any) -> None:
    fleet.print(name, *(repr(float(value)) for value in values))


def size(model: Any) -> float:
    return float(sum((w * np.arange(1.0, w.size + 1).reshape(w.shape)).sum() for w in model.get_weights()))


def images(rows: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(5)
    return draw.normal(size=(rows, 6, 6)), draw.integers(0, 10, size=rows)


def a_model_with_penalties_and_weights() -> None:
    layers = keras.layers
    penalty = keras.regularizers.L2(0.01)
    with hetero.keras.distribute():
        model = keras.Sequential(
            [
                layers.Flatten(),
                layers.Dense(16, activation="relu", kernel_regularizer=penalty),
                layers.Dropout(0.3),
                layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.AdamW(0.02, clipnorm=0.5),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
            metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(k=2)],
            weighted_metrics=["accuracy"],
        )
    x, y = images(70)
    rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.02 / (1 + epoch))
    kept = keras.callbacks.ModelCheckpoint(FOLDER / "best.weights.h5", save_weights_only=True, save_best_only=True)
    history = model.fit(
        x, y, 16, 3, class_weight={n: 1.0 + n / 3 for n in range(10)}, validation_split=0.2, callbacks=[rate, kept],
        verbose=0,
    )  # fmt: skip
    for name, values in history.history.items():
        told(name, *values)
    told("evaluated", *model.evaluate(x, y, 9, verbose=0))
    told("predicted", np.abs(model.predict(x, 33, verbose=0)).sum(), size(model))
    fleet.wait()
    model.load_weights(FOLDER / "best.weights.h5")
    told("best", size(model))


def sequences_with_a_mask() -> None:
    layers = keras.layers
    with hetero.keras.distribute():
        model = keras.Sequential(
            [layers.Embedding(20, 8, mask_zero=True), layers.Dense(6, activation="tanh"), layers.Dense(20)]
        )
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        ids = np.random.default_rng(5).integers(0, 20, size=(41, 7))
        history = model.fit(ids, ids[:, ::-1].copy(), 8, 2, verbose=0)
    told("masked", *history.history["loss"], *history.history["accuracy"], size(model))


def refused(use: Any) -> None:
    """Print what is refused; under plain python nothing is."""
    try:
        with hetero.keras.distribute():
            use()
    except hetero.errors.HeteroError as error:
        fleet.print("refused", error)


class Own(keras.Model):
    """A model with a step of its own."""

    def call(self, x: Any) -> Any:
        return x

    def train_step(self, data: Any) -> Any:
        return {}


def what_is_refused() -> None:
    x, y = np.ones((8, 3)), np.ones((8, 3))

    def fitted(*layers: Any, callbacks: Any = None, **options: Any) -> None:
        model = keras.Sequential([*layers, keras.layers.Dense(3)])
        model.compile("sgd", "mse", **options)
        model.fit(x, y, verbose=0, callbacks=callbacks)

    refused(lambda: fitted(keras.layers.BatchNormalization(name="norm")))
    refused(lambda: fitted(keras.layers.Dense(3, activity_regularizer="l2", name="heavy")))
    refused(lambda: Own().compile("sgd", "mse"))
    refused(lambda: fleet.world_size > 1 and fitted(jit_compile=True))
    refused(lambda: fitted(callbacks=[keras.callbacks.BackupAndRestore(FOLDER / "backup")]))


def main() -> None:
    for name in sys.argv[1:]:
        keras.utils.set_random_seed(7)
        if name.endswith(".py"):
            keras.config.set_floatx("float32")
            runpy.run_path(name)
        else:
            keras.config.set_floatx("float64")
            globals()[name]()


if __name__ == "__main__":
    main()
