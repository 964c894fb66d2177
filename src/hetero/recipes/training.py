"""Recipes: a YAML file that says what to train, on what, how, and where to put it.

In: a file and settings laid over it. Out: one frozen value, and what is left for the Context.
It must not open data or devices.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from hetero.floor.documents import JsonObject
from hetero.floor.errors import BadValueError, ConfigError, did_you_mean
from hetero.floor.units import shown
from hetero.session.config import read_file
from hetero.session.config_yaml import Tree, lay_over
from hetero.train.callbacks import BestWeights, Callback, EarlyStopping, MLflowLogger, TensorBoardLogger, WandbLogger
from hetero.train.values import CHECKPOINT_KEYS, CheckpointOptions, DataOptions, TrainOptions

__all__ = ["CALLBACKS", "OPTIMIZERS", "Recipe", "read_recipe", "read_tree", "recipe_of"]

OPTIMIZERS = ("adam", "adamw", "sgd")
CALLBACKS: dict[str, type[Callback]] = {
    "early_stopping": EarlyStopping,
    "best_weights": BestWeights,
    "tensorboard": TensorBoardLogger,
    "mlflow": MLflowLogger,
    "wandb": WandbLogger,
}
"""Those that `train.callbacks` may name."""
_DATA = ("path", "download")
_STEPS = tuple(each.name for each in fields(TrainOptions))
_READING = ("readers", "sample_log")
_TRAIN = ("epochs", "optimizer", "learning_rate", *_STEPS, *_READING, *CHECKPOINT_KEYS, "resume", "callbacks")
_BATCH = 128
_OWN = ("model", "data", "train", "output")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to train.

    Attributes
    ----------
    name
        Of the run, after the file.
    model
        'mnist', or 'file.py:function' for a function that makes a model.
    data_path
        Folder of MNIST's files, None for scikit-learn's digits.
    download
        True where absent files may be fetched.
    epochs
        ≥ 1.
    optimizer, learning_rate
        One of `OPTIMIZERS`.
    options, data_options, checkpoint, callbacks
        As for the Trainer.
    resume
        True goes on from the newest complete checkpoint, where there is one.
    output
        Folder of the results.
    context
        What is left, for the Context.
    """

    name: str
    model: str = "mnist"
    data_path: Path | None = None
    download: bool = False
    epochs: int = 8
    optimizer: str = "adam"
    learning_rate: float = 0.001
    options: TrainOptions = field(default_factory=lambda: TrainOptions(_BATCH))
    data_options: DataOptions = field(default_factory=DataOptions)
    checkpoint: CheckpointOptions | None = None
    callbacks: tuple[Callback, ...] = ()
    resume: bool = False
    output: Path = Path("mnist-run")
    context: JsonObject = field(default_factory=dict)


def read_recipe(path: Path | str, set: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Parameters
    ----------
    set
        Settings laid over it, 'data.path=FOLDER'.

    Raises
    ------
    ConfigError
        The file cannot be read, or a key or value is wrong; the message begins with its place.
    """
    return recipe_of(read_tree(path, set), Path(path).stem)


def read_tree(path: Path | str, set: Sequence[str] = ()) -> Tree:
    """Read a file of a recipe and lay settings over it, its keys not looked at.

    Raises
    ------
    ConfigError
        It cannot be read, or is no mapping.
    """
    tree = read_file(path)
    for setting in set:
        lay_over(tree, setting)
    if not isinstance(tree.value, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of keys to values", remedy="see examples/mnist.yaml")
    return tree


def recipe_of(tree: Tree, name: str) -> Recipe:
    """Check the keys of a recipe.

    Parameters
    ----------
    name
        Of the run.

    Raises
    ------
    ConfigError
        A key or value is wrong; the message begins with its place.
    """
    value = {key: part for key, part in tree.value.items() if part is not None}
    given = {key: value.pop(key) for key in _OWN if key in value}
    data = _section(tree, given, "data", _DATA)
    train = _section(tree, given, "train", _TRAIN)
    optimizer = train.pop("optimizer", "adam")
    if optimizer not in OPTIMIZERS:
        raise _wrong(tree, "train", "optimizer", optimizer, f"allowed: {', '.join(OPTIMIZERS)}", OPTIMIZERS)
    recipe = Recipe(
        name=name,
        model=_text(tree, given, "model", "mnist"),
        data_path=None if "path" not in data else Path(_text(tree, data, "path", "", "data")).expanduser(),
        download=_truth(tree, data, "download", "data"),
        epochs=_whole(tree, train, "epochs", 8),
        optimizer=optimizer,
        learning_rate=_positive(tree, train, "learning_rate", 0.001),
        resume=_truth(tree, train, "resume", "train"),
        options=_options(tree, train),
        data_options=_data_options(tree, train),
        checkpoint=_checkpoint(tree, train),
        callbacks=_callbacks(tree, train.get("callbacks", {})),
        output=Path(_text(tree, given, "output", f"{name}-run")).expanduser(),
        context=value,
    )
    if recipe.download and recipe.data_path is None:
        raise _wrong(tree, "data", "download", True, "give data.path, the folder that the files go to")
    if recipe.resume and recipe.checkpoint is None:
        raise _wrong(tree, "train", "resume", True, "give train.checkpoint, the folder of the checkpoints")
    return recipe


def _section(tree: Tree, given: Mapping[str, object], name: str, allowed: Sequence[str]) -> dict[str, object]:
    section = given.get(name, {})
    if not isinstance(section, dict):
        raise ConfigError(
            f"{tree.place((name,))}: {name}: {shown(section)} is not a mapping", remedy=f"allowed: {', '.join(allowed)}"
        )
    for key in section:
        if key not in allowed:
            raise ConfigError(
                f"{tree.place((name, key))}: {name}.{key}: there is no such key{did_you_mean(key, allowed)}",
                remedy=f"allowed keys: {', '.join(allowed)}",
            )
    return {key: value for key, value in section.items() if value is not None}


def _wrong(tree: Tree, section: str, key: str, given: object, remedy: str, words: Sequence[str] = ()) -> ConfigError:
    path = (section, key) if section else (key,)
    return ConfigError(
        f"{tree.place(path)}: {'.'.join(path)}: {shown(given)} is not allowed{did_you_mean(given, words)}",
        remedy=remedy,
    )


def _text(tree: Tree, given: Mapping[str, object], key: str, usual: str, section: str = "") -> str:
    value = given.get(key, usual)
    if not isinstance(value, str) or (key in given and not value.strip()):
        raise _wrong(tree, section, key, value, "give a word or a path")
    return value


def _options(tree: Tree, train: JsonObject) -> TrainOptions:
    given = {key: train[key] for key in _STEPS if key in train}
    try:
        return TrainOptions(**{"global_batch": _BATCH, **given})
    except BadValueError as error:
        key = error.problem.partition("=")[0]
        place = tree.place(("train", key) if key in given else ("train",))
        raise ConfigError(f"{place}: train.{error.problem}", remedy=error.remedy) from error


def _data_options(tree: Tree, train: JsonObject) -> DataOptions:
    log = _text(tree, train, "sample_log", "", "train") if "sample_log" in train else None
    return DataOptions(readers=train.get("readers"), sample_log=log)


def _checkpoint(tree: Tree, train: dict[str, object]) -> CheckpointOptions | None:
    given: JsonObject = {}
    for key, name in CHECKPOINT_KEYS.items():
        if key in train:
            given[name] = _text(tree, train, key, "", "train") if name == "folder" else _whole(tree, train, key, 1)
    if "folder" in given or not given:
        return CheckpointOptions(**given) if given else None
    key = next(key for key, name in CHECKPOINT_KEYS.items() if name in given)
    raise _wrong(tree, "train", key, given[CHECKPOINT_KEYS[key]], "give train.checkpoint, the folder, too")


def _callbacks(tree: Tree, given: object) -> tuple[Callback, ...]:
    allowed = ", ".join(CALLBACKS)
    if not isinstance(given, dict):
        raise _wrong(tree, "train", "callbacks", given, f"give a mapping of names to arguments, of {allowed}")
    return tuple(_callback(tree, name, {} if arguments is None else arguments) for name, arguments in given.items())


def _callback(tree: Tree, name: str, arguments: object) -> Callback:
    if name not in CALLBACKS:
        raise _wrong(tree, "train", "callbacks", name, f"allowed: {', '.join(CALLBACKS)}", tuple(CALLBACKS))
    signature = inspect.signature(CALLBACKS[name])
    words = tuple(signature.parameters)
    where, place = f"train.callbacks.{name}", tree.place(("train", "callbacks", name))
    if not isinstance(arguments, dict):
        raise ConfigError(f"{place}: {where}: {shown(arguments)} is not a mapping", remedy=f"give {', '.join(words)}")
    for key in arguments:
        if key not in words:
            raise ConfigError(
                f"{place}: {where}.{key}: there is no such key{did_you_mean(key, words)}",
                remedy=f"allowed keys: {', '.join(words)}",
            )
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{place}: {where}: {error}", remedy=f"give {', '.join(words)}") from error
    try:
        return CALLBACKS[name](**arguments)
    except BadValueError as error:
        raise ConfigError(f"{place}: {where}.{error.problem}", remedy=error.remedy) from error


def _truth(tree: Tree, given: Mapping[str, object], key: str, section: str) -> bool:
    value = given.get(key, False)
    if not isinstance(value, bool):
        raise _wrong(tree, section, key, value, "write true or false")
    return value


def _whole(tree: Tree, train: dict[str, object], key: str, usual: int) -> int:
    value = train.pop(key, usual)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(tree, "train", key, value, "give a whole number, 1 or more")
    return value


def _positive(tree: Tree, train: dict[str, object], key: str, usual: float) -> float:
    value = train.pop(key, usual)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise _wrong(tree, "train", key, value, "give a number above 0")
    return float(value)
