"""Configuration text to plain values, and settings laid over them.

In: YAML text, 'key=value' settings. Out: a tree of dicts, lists and scalars, and the place of each key.
It must not know what any key means, and whatever the text is, the only thing it raises is ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero.floor import yaml_tree
from hetero.floor.errors import ConfigError
from hetero.floor.units import shown
from hetero.floor.yaml_tree import DEEPEST, Key, Tree, yaml_value

__all__ = ["Key", "Tree", "copied", "lay_over", "lay_value", "read_yaml", "tree_of"]


def read_yaml(text: str, name: str) -> Tree:
    r"""Read one YAML document of a configuration; see `hetero.floor.yaml_tree.read_yaml`.

    Raises
    ------
    ConfigError
        The text is not YAML, is too large, or repeats a key; the message begins with `name`:line.
    """
    return yaml_tree.read_yaml(text, name, ConfigError)


def tree_of(value: Mapping[str, object], name: str) -> Tree:
    """Take a configuration that is already a dict, copied as far as settings may change it."""
    return Tree(copied(value, name), {(): name}, name)


def copied(value: object, name: str, depth: int = 0) -> object:
    """Return a copy of nested mappings and lists as dicts and lists; refuses what contains itself."""
    if depth > DEEPEST:
        raise ConfigError(f"{name}: this is nested deeper than {DEEPEST} levels")
    if isinstance(value, Mapping):
        return {str(key): copied(child, name, depth + 1) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [copied(child, name, depth + 1) for child in value]
    return value


def lay_over(tree: Tree, setting: str) -> None:
    """Lay one 'key.path=value' over a tree; the value is read as YAML, an index counts from 0.

    Raises
    ------
    ConfigError
        It is not of that form, or the path leads nowhere.

    Examples
    --------
    >>> tree = read_yaml("devices: [{type: cpu}]", "a.yaml")
    >>> lay_over(tree, "devices.0.cores=2")
    >>> tree.value
    {'devices': [{'type': 'cpu', 'cores': 2}]}
    """
    path, equals, text = setting.partition("=")
    name = f"--set {shown(setting)[1:-1]}"
    if not equals:
        raise _formless(setting)
    lay_value(tree, path, yaml_value(text, name, tuple(path.strip().split(".")), ConfigError), name)


def lay_value(tree: Tree, path: str, value: object, name: str) -> None:
    """Lay a value over a tree at 'key.path'; messages call it `name`."""
    words = path.strip().split(".")
    if not all(words) or len(words) > DEEPEST:
        raise _formless(path)
    _assign(tree, words, copied(value, name), name)


def _formless(setting: str) -> ConfigError:
    return ConfigError(
        f"--set {shown(setting)} is not of the form key.path=value", remedy="write it like devices.0.cores=2"
    )


def _assign(tree: Tree, words: list[str], value: object, name: str) -> None:
    here: Any = tree.value
    key: Key = ()
    for position, word in enumerate(words[:-1]):
        step = _step(here, word, ".".join(words[:position]), name)
        if isinstance(here, dict) and here.get(step) is None:
            here[step] = [] if words[position + 1].isdecimal() else {}
        here, key = here[step], (*key, step)
    step = _step(here, words[-1], ".".join(words[:-1]), name)
    here[step] = value
    key = (*key, step)
    for known in [known for known in tree.places if known[: len(key)] == key]:
        del tree.places[known]
    tree.places[key] = name


def _step(here: object, word: str, path: str, name: str) -> str | int:
    """Return the dict key or list index that a word means; a list grows by one at its end."""
    if isinstance(here, dict):
        return word
    if not isinstance(here, list):
        raise ConfigError(f"{name}: {path or 'the configuration'} is {shown(here)}, and has no part {word!r}")
    if not word.isdecimal() or len(word) > 6 or int(word) > len(here):
        raise ConfigError(
            f"{name}: {path} has no entry {word!r}", remedy=f"it has {len(here)}, counted from 0; {len(here)} adds one"
        )
    if int(word) == len(here):
        here.append({})
    return int(word)
