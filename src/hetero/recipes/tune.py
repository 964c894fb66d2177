"""A search as a YAML file says it: ranges inside a recipe of `hetero train`, or a function and its space.

In: a file and settings laid over it. Out: an objective, a plan, and where to put what was found.
It must not run a trial.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from hetero.floor import settings
from hetero.floor.errors import BadValueError, ConfigError, HeteroError, did_you_mean
from hetero.floor.files import atomic_write
from hetero.floor.units import shown
from hetero.model.device import Device
from hetero.recipes.mnist import Digits
from hetero.recipes.training import Recipe, read_tree, recipe_of
from hetero.session.config_yaml import Key, Tree, copied
from hetero.session.options import ContextOptions
from hetero.train.values import Evaluation
from hetero.tune.search import run_search, takes_python
from hetero.tune.space import Range, Space, corners, is_range, read_range
from hetero.tune.trial import Trial
from hetero.tune.values import FORMER_GOALS, SearchListener, SearchPlan, SearchResult

if TYPE_CHECKING:
    from hetero.floor.documents import JsonObject
    from hetero.train.replica import ModelReplica

__all__ = ["METRICS", "RecipeObjective", "SearchOutcome", "SearchRecipe", "carry_out_search", "read_search"]

_log = logging.getLogger("hetero")
METRICS = ("test_accuracy", "test_loss")
_KEYS = ("objective", "metric", "trials", "sampler", "pruner", "goal", "seed")
_ALL = 10**5
_USUAL = 20
_EVALUATE_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class RecipeObjective:
    """Trains a recipe whose ranges are replaced by a trial's values.

    Attributes
    ----------
    tree
        The recipe, ranges and all.
    name
        Of the file.
    metric
        One of `METRICS`.
    digits
        What is trained on; None before it is read.
    """

    tree: Tree
    name: str
    metric: str
    digits: Digits | None = None

    def settled(self, params: Mapping[str, object]) -> Tree:
        """Return the recipe with these values in place of its ranges."""
        value = copied(self.tree.value, self.tree.name)
        for path, chosen in params.items():
            *sections, key = path.split(".")
            here = value
            for section in sections:
                here = here.get(section) if isinstance(here, dict) else None
            if not isinstance(here, dict):
                raise ConfigError(
                    f"{self.tree.name}: {shown(path)} is no key of a range", remedy="write it without '.'"
                )
            here[key] = chosen
        return Tree(value, self.tree.places, self.tree.name)

    def recipe(self, params: Mapping[str, object]) -> Recipe:
        """Return the recipe of a trial."""
        return recipe_of(self.settled(params), self.name)

    def __call__(self, trial: Trial) -> float:
        """Train, and report after each epoch but the last."""
        assert self.digits is not None
        recipe = self.recipe(trial.params)
        value = 0.0
        for epoch, tested in enumerate(train_here(recipe, self.digits), 1):
            value = tested.loss if self.metric == "test_loss" else float(tested.accuracy or 0.0)
            if epoch < recipe.epochs:
                trial.report(epoch, value)
        return value


def train_here(recipe: Recipe, digits: Digits) -> Iterator[Evaluation]:
    """Train on this task's device alone, epoch by epoch, and yield the test after each.

    Raises
    ------
    NotANumberError
        The loss is not a number.

    Notes
    -----
    It is the loop of a training member without its group: a seed yields what `hetero train` yields on that device.
    """
    from hetero.comm.group import Group
    from hetero.train.data import as_samples

    options = recipe.options
    replica = _replica(recipe)
    group, batch = Group(0, 1), options.global_batch
    train, test = as_samples(digits.train), as_samples(digits.test)
    for epoch in range(recipe.epochs):
        ids = train.order(options, epoch)
        for begin in range(0, len(ids), batch):
            piece = ids[begin : begin + batch]
            total, _ = replica.reduce(group, replica.compute(train, piece, len(piece)), [])
            replica.apply(total, len(piece))
            replica.step += 1
        replica.end_epoch()
        with replica.averaged():
            sums = replica.evaluate(test, range(len(test)), _EVALUATE_AT_ONCE)
        accuracy = sums.right / sums.classes if sums.classes else None
        yield Evaluation(len(test), sums.loss / sums.weight, accuracy)


def _replica(recipe: Recipe) -> ModelReplica:
    import cloudpickle
    import torch

    from hetero.backends.registry import torch_place
    from hetero.drive.frame import current
    from hetero.recipes.run import make_model, make_optimizer
    from hetero.train.replica import ModelReplica

    frame = current()
    torch.manual_seed(recipe.options.seed)
    parts = cloudpickle.dumps((make_model(recipe.model), torch.nn.CrossEntropyLoss(), make_optimizer(recipe)))
    return ModelReplica(parts, recipe.options, "cpu" if frame is None else torch_place(frame.device), 0)


@dataclass(frozen=True, slots=True)
class SearchRecipe:
    """A search as a file says it.

    Attributes
    ----------
    objective
        Of a trial.
    plan
        What is asked.
    output
        Folder of the study and of what was found.
    context
        What is left, for the Context.
    """

    objective: Callable[[Trial], object]
    plan: SearchPlan
    output: Path
    context: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a search came to, and its files.

    Attributes
    ----------
    found
        The trials.
    results
        JSON file of them.
    recipe
        The best recipe, None where a function was searched.
    """

    found: SearchResult
    results: Path
    recipe: Path | None

    def as_dict(self) -> dict[str, object]:
        """Return the figures for a program."""
        recipe = None if self.recipe is None else str(self.recipe)
        return {**self.found.as_dict(), "results": str(self.results), "recipe": recipe}


def read_search(path: Path | str, set: Sequence[str] = ()) -> SearchRecipe:
    """Read a search.

    Raises
    ------
    ConfigError
        The file cannot be read, a key, a range or a value is wrong, or nothing is left open to search.
    """
    tree = _of_today(read_tree(path, set))
    section = _section(tree)
    name = Path(path).stem
    tree.value.pop("tune", None)
    output = Path(str(tree.value.get("output") or f"{name}-search")).expanduser()
    word = section.get("objective")
    if word is None:
        if isinstance(tree.value.get("train"), dict) and tree.value["train"].get("callbacks"):
            raise ConfigError(
                f"{tree.place(('train', 'callbacks'))}: train.callbacks: trials have none, as tune.pruner ends those "
                "that are behind",
                remedy="write them into the recipe that is found",
            )
        objective, space = _of_recipe(tree, name, section)
        plan = _plan(tree, section, _what(tree, objective), space, _goal_of(objective.metric))
        return SearchRecipe(objective, plan, output, objective.recipe(corners(space)[0]).context)
    space = _space(tree, _ranges_of(tree, ("space",)))
    plan = _plan(tree, section, str(word), space, "minimize")
    context = {key: value for key, value in tree.value.items() if key not in ("space", "output")}
    return SearchRecipe(_function(tree, word), plan, output, context)


def _of_today(tree: Tree) -> Tree:
    """Return a recipe whose section `search`, the name of the last version, is called `tune`."""
    if "search" not in tree.value:
        return tree
    _log.warning("%s: 'search' is now 'tune'; the next version no longer takes the old name", tree.name)
    value = {key: part for key, part in tree.value.items() if key != "search"}
    old, new = tree.value["search"], value.get("tune")
    value["tune"] = {**new, **old} if isinstance(new, dict) and isinstance(old, dict) else old
    places = {("tune", *key[1:]) if key[:1] == ("search",) else key: place for key, place in tree.places.items()}
    return Tree(value, places, tree.name)


def _section(tree: Tree) -> dict[str, object]:
    section = tree.value.get("tune") or {}
    if not isinstance(section, dict):
        raise ConfigError(
            f"{tree.place(('tune',))}: tune: {shown(section)} is not a mapping",
            remedy=f"allowed keys: {', '.join(_KEYS)}",
        )
    for key in section:
        if key not in _KEYS:
            raise ConfigError(
                f"{tree.place(('tune', key))}: tune.{key}: there is no such key{did_you_mean(key, _KEYS)}",
                remedy=f"allowed keys: {', '.join(_KEYS)}",
            )
    return {key: value for key, value in section.items() if value is not None}


# --- ranges ------------------------------------------------------------------------------------------------


def _ranges_of(tree: Tree, key: Key) -> Iterator[tuple[Key, object]]:
    section = tree.value.get(key[0])
    if isinstance(section, dict):
        yield from (((*key, name), value) for name, value in section.items())


def _in_recipe(tree: Tree) -> Iterator[tuple[Key, object]]:
    """Yield the places of a recipe that may be left open, those that hold a mapping."""
    for key, value in [(("model",), tree.value.get("model")), *_ranges_of(tree, ("train",))]:
        if is_range(value) or (isinstance(value, dict) and key not in (("train", "shares"), ("train", "schedule"))):
            yield key, value


def _space(tree: Tree, given: Iterator[tuple[Key, object]]) -> dict[str, Range]:
    space: dict[str, Range] = {}
    for key, value in given:
        name = ".".join(map(str, key)).removeprefix("space.")
        try:
            space[name] = read_range(name, value)
        except BadValueError as error:
            raise ConfigError(f"{tree.place(key)}: {error.problem}", remedy=error.remedy) from error
    if not space:
        raise ConfigError(
            f"{tree.name}: nothing is left open to search",
            remedy="write a range, as in train.learning_rate: {log: [1e-4, 1e-1]}; see examples/tune.yaml",
        )
    return space


def _plan(tree: Tree, section: JsonObject, what: str, space: Space, goal: str) -> SearchPlan:
    sampler = section.get("sampler", "tpe")
    trials = section.get("trials", _ALL if sampler == "grid" else _USUAL)
    given = section.get("goal", goal)
    if isinstance(given, str) and given in FORMER_GOALS:
        now = FORMER_GOALS[given]
        _log.warning("%s: goal: %r is now %r; the next version no longer takes the old word", tree.name, given, now)
        given = now
    words = (sampler, section.get("pruner", "median"), given)
    try:
        return SearchPlan(what, space, trials, *words, section.get("seed", settings.seed()))
    except BadValueError as error:
        key = error.problem.partition("=")[0]
        raise ConfigError(f"{tree.place(('tune', key))}: tune.{error.problem}", remedy=error.remedy) from error


# --- recipes -----------------------------------------------------------------------------------------------


def _of_recipe(tree: Tree, name: str, section: Mapping[str, object]) -> tuple[RecipeObjective, dict[str, Range]]:
    metric = section.get("metric", METRICS[0])
    if metric not in METRICS:
        raise ConfigError(
            f"{tree.place(('tune', 'metric'))}: tune.metric: {shown(metric)} is not allowed"
            f"{did_you_mean(metric, METRICS)}",
            remedy=f"allowed: {', '.join(METRICS)}",
        )
    objective = RecipeObjective(tree, name, metric)
    space = _space(tree, _in_recipe(tree))
    for corner in corners(space):
        objective.recipe(corner)
    return objective, space


def _goal_of(metric: str) -> str:
    return "minimize" if metric == "test_loss" else "maximize"


def _what(tree: Tree, objective: RecipeObjective) -> str:
    """Name what is trained and all that is not left open, so that a study is not gone on with by another recipe."""
    fixed = {f"train.{key}": value for key, value in (tree.value.get("train") or {}).items()}
    fixed |= {"model": tree.value.get("model", "mnist"), "data": (tree.value.get("data") or {}).get("path")}
    words = [f"{key}={value}" for key, value in sorted(fixed.items()) if value is not None and not is_range(value)]
    return f"{objective.metric} of {', '.join(words)}"


# --- functions ---------------------------------------------------------------------------------------------


def _function(tree: Tree, word: object) -> Callable[[Trial], object]:
    """Return the function that 'file.py:function' or 'module:function' names."""
    place = tree.place(("tune", "objective"))
    home, colon, name = str(word).rpartition(":")
    if not colon or not home or not name:
        raise ConfigError(
            f"{place}: tune.objective: {shown(word)} names no function",
            remedy="write 'file.py:function' or 'module:function'",
        )
    try:
        found = _imported(home).get(name)
    except HeteroError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{place}: tune.objective: {home} cannot be imported: {type(error).__name__}: {error}",
            remedy="give a file from where you are, or a module that Python finds",
        ) from error
    if not callable(found):
        raise ConfigError(f"{place}: tune.objective: {home} has no function {name!r}", remedy="name one that it has")
    function: Callable[[Trial], object] = found
    return function


def _imported(home: str) -> dict[str, object]:
    import importlib
    import runpy
    import sys

    if home.endswith(".py"):
        return runpy.run_path(home, run_name="hetero_objective")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return vars(importlib.import_module(home))


# --- the whole ---------------------------------------------------------------------------------------------


def carry_out_search(wanted: SearchRecipe, listener: SearchListener, *, devices: str | None = None) -> SearchOutcome:
    """Search as a file says, and write what was found.

    Parameters
    ----------
    devices
        The fleet, before what the file says.

    Raises
    ------
    HeteroError
        Whatever is wrong with the data, the devices or the study; no trial finished.
    """
    objective = wanted.objective
    fits: Callable[[Device], bool] = takes_python
    if isinstance(objective, RecipeObjective):
        objective, fits = _with_data(objective, wanted.plan.space), _can_train()
    found = run_search(
        objective,
        wanted.plan,
        wanted.output / "study.sqlite3",
        devices=devices,
        context=ContextOptions(config=wanted.context),
        listener=listener,
        fits=fits,
    )
    results, recipe = wanted.output / "search.json", None
    atomic_write(results, json.dumps(found.as_dict(), indent=2).encode())
    if isinstance(objective, RecipeObjective):
        recipe = wanted.output / "best.yaml"
        text = yaml.safe_dump(objective.settled(found.best.params).value, sort_keys=False, allow_unicode=True)
        head = f"# the best of {len(found.trials)} trials: {objective.metric} {found.best.value:.4f}\n"
        atomic_write(recipe, (head + text).encode())
    return SearchOutcome(found, results, recipe)


def _with_data(objective: RecipeObjective, space: Space) -> RecipeObjective:
    from hetero.recipes.run import load

    recipes = [objective.recipe(corner) for corner in corners(space)]
    digits = load(recipes[0])
    largest = max(recipe.options.global_batch for recipe in recipes)
    if largest > len(digits.train[0]):
        raise BadValueError(
            f"train.global_batch: {largest} is more than the {len(digits.train[0])} samples of the data",
            remedy="make it smaller",
        )
    return RecipeObjective(objective.tree, objective.name, objective.metric, digits)


def _can_train() -> Callable[[Device], bool]:
    from hetero.train.trainer import can_train

    return can_train
