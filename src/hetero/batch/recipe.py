"""Jobs of bulk work in files: which function over which source, how, and where the results go.

In: a YAML file and settings laid over it. Out: a frozen value, and what is left for the Context.
It must not open devices, or read records.
"""

from __future__ import annotations

import inspect
import logging
import runpy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from hetero.batch.api import OF_LIMITS, OF_OPTIONS, map_batches
from hetero.batch.base import Source
from hetero.batch.options import BatchLimits, BatchOptions
from hetero.batch.registry import KINDS, kind_of_source
from hetero.batch.sources import GeneratorSource
from hetero.floor.documents import JsonObject
from hetero.floor.errors import BadValueError, ConfigError, HeteroError, did_you_mean
from hetero.floor.text import single_line
from hetero.floor.units import shown
from hetero.session.config import read_file
from hetero.session.config_yaml import lay_over

__all__ = ["BatchRecipe", "read_batch_recipe"]

_log = logging.getLogger("hetero")
_OWN = ("function", "source")
_NOT_HERE = ("ctx", "devices", "options", "limits")
_KEYWORDS = tuple(
    name
    for name, given in inspect.signature(map_batches).parameters.items()
    if given.kind is given.KEYWORD_ONLY and name not in _NOT_HERE
)


@dataclass(frozen=True, slots=True)
class BatchRecipe:
    """What is to be done.

    Attributes
    ----------
    name
        Of the run, after the file.
    function, source
        As `map_batches` takes them.
    keywords
        Of it that are neither options nor limits.
    options, limits
        How it is done, and what it may take.
    context
        What is left, for the Context.
    """

    name: str
    function: object
    source: object
    keywords: JsonObject = field(default_factory=dict)
    options: BatchOptions = field(default_factory=BatchOptions)
    limits: BatchLimits = field(default_factory=BatchLimits)
    context: Mapping[str, object] = field(default_factory=dict)


def read_batch_recipe(path: Path | str, set: Sequence[str] = (), **usual: object) -> BatchRecipe:
    """Read a job; paths in it are taken from its own folder.

    Parameters
    ----------
    set
        Settings laid over it, 'output=FOLDER'.
    **usual
        Options of `BatchOptions` where the job does not say.

    Raises
    ------
    ConfigError
        The file cannot be read, or lacks a key; the message begins with its place.
    """
    tree = read_file(path)
    for setting in set:
        lay_over(tree, setting)
    if not isinstance(tree.value, dict):
        raise ConfigError(f"{path}: a job is a mapping of keys to values", remedy="see examples/embed_folder.yaml")
    given = {key: value for key, value in tree.value.items() if value is not None}
    if "out" in given and "output" not in given:
        _log.warning(
            "%s: the key 'out' is now 'output'; the old name is taken by this version, and not by the next", path
        )
        given["output"] = given.pop("out")
    for key in _OWN:
        if key not in given:
            raise ConfigError(f"{path}: {key} is absent", remedy="name it; see examples/embed_folder.yaml")
    folder = Path(path).parent
    try:
        function, source = _function(folder, given.pop("function")), _source(folder, given.pop("source"))
        if isinstance(given.get("cost"), str):
            given["cost"] = len if given["cost"] == "len" else _named(folder, given["cost"])
        name = given["name"] = str(given.get("name", Path(path).stem))
        options = BatchOptions(**{**usual, **_taken(given, OF_OPTIONS)})
        limits = BatchLimits(**_taken(given, OF_LIMITS))
    except HeteroError as error:
        raise ConfigError(f"{path}: {single_line(error.problem)}", remedy=single_line(error.remedy)) from error
    return BatchRecipe(name, function, source, _taken(given, _KEYWORDS), options, limits, given)


def _taken(given: dict[str, object], names: Iterable[str]) -> JsonObject:
    """Take the keys of these names out of what the job says."""
    return {name: given.pop(name) for name in names if name in given}


def _function(folder: Path, word: object) -> object:
    if str(word).endswith(".onnx"):
        return _beside(folder, str(word))
    return _named(folder, str(word))


def _source(folder: Path, word: object) -> object:
    if isinstance(word, dict) and not word.keys().isdisjoint(KINDS):
        return _described(folder, word)
    if not isinstance(word, str):
        return word
    if ":" in word and "://" not in word:
        return GeneratorSource(_named(folder, word), name=word)
    return _located(folder, word)


def _described(folder: Path, words: Mapping[str, object]) -> Source:
    """Return the source that {'images': 'photos', 'size': [28, 28]} describes."""
    kinds = [kind for kind in KINDS if kind in words]
    if len(kinds) > 1:
        raise BadValueError(f"source names {' and '.join(kinds)}", remedy="name one of them")
    options = {key: value for key, value in words.items() if key != kinds[0]}
    maker, given = kind_of_source(kinds[0]), words[kinds[0]]
    allowed = tuple(inspect.signature(maker).parameters)[1:]
    for key in options:
        if key not in allowed:
            raise BadValueError(
                f"source.{key} is not known{did_you_mean(key, allowed)}",
                remedy=f"with {kinds[0]} go {', '.join(allowed)}",
            )
    paths = [_located(folder, each) for each in given] if isinstance(given, list) else _located(folder, given)
    try:
        return maker(paths, **options)
    except (TypeError, ValueError) as error:
        if isinstance(error, HeteroError):
            raise
        problem = f"source cannot be read as {kinds[0]}: {' '.join(str(error).split())}"
        raise BadValueError(problem, remedy="give each key a value of its kind; see docs/batch.md") from error


def _located(folder: Path, word: object) -> str:
    return str(word) if "://" in str(word) else str(_beside(folder, str(word)))


def _named(folder: Path, word: str) -> Any:
    """Return what 'file.py:name' or 'module:name' names."""
    place, colon, name = word.rpartition(":")
    if not colon:
        raise BadValueError(f"{word!r} names no function", remedy="write 'file.py:name' or 'module:name'")
    if place.endswith(".py"):
        path = _beside(folder, place)
        if not path.is_file():
            raise BadValueError(f"{path}: there is no such file", remedy="give the path from the job's folder")
        found = runpy.run_path(str(path), run_name="hetero_job").get(name)
    else:
        try:
            found = getattr(import_module(place), name, None)
        except (ImportError, TypeError, ValueError) as error:
            raise BadValueError(f"{place} cannot be imported: {error}", remedy="install it, or name a file") from error
    if found is None:
        raise BadValueError(f"{place} has no {name!r}", remedy="write 'file.py:name' or 'module:name'")
    return found


def _beside(folder: Path, word: str) -> Path:
    try:
        path = folder / Path(word).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a NUL, a user who is not known
        raise BadValueError(f"{shown(word)} cannot name a file", remedy="give a path from the job's folder") from error
    return path
