"""Configuration text to plain values, each with the place where it was written.

In: YAML text, 'key=value' settings. Out: a tree of dicts, lists and scalars, and the place of each key.
It must not know what any key means, and whatever the text is, the only thing it raises is ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from hetero.floor.errors import ConfigError
from hetero.floor.units import shown

__all__ = ["Key", "Tree", "copied", "lay_over", "lay_value", "read_yaml", "tree_of"]

Key = tuple[str | int, ...]
"""The path of a value: ('devices', 0, 'cores')."""

_MOST_CHARACTERS = 256 * 1024
_MOST_VALUES = 50_000
_DEEPEST = 16
_PREFIX = "tag:yaml.org,2002:"


@dataclass(slots=True)
class Tree:
    """Plain values and where each was written.

    Attributes
    ----------
    value : dicts, lists and scalars
    places : 'file:line' per path; a path that is missing has the place of its nearest parent
    name : what the whole is called in messages: the file, or 'Context(config=...)'
    """

    value: Any
    places: dict[Key, str] = field(default_factory=dict)
    name: str = "configuration"

    def place(self, key: Key) -> str:
        """Give the place of a path, or of its nearest known parent."""
        for end in range(len(key), -1, -1):
            if key[:end] in self.places:
                return self.places[key[:end]]
        return self.name


class _Loader(yaml.SafeLoader):
    """Composes nodes of limited depth, so that no text exhausts the stack."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > 2 * _DEEPEST:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"it is nested deeper than {_DEEPEST} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_yaml(text: str, name: str) -> Tree:
    r"""Read one YAML document.

    Parameters
    ----------
    text : the document
    name : what messages call it, a file name

    Returns
    -------
    Tree
        An empty document gives an empty dict.

    Raises
    ------
    ConfigError
        The text is not YAML, is too large, or repeats a key; the message begins with `name`:line.

    Examples
    --------
    >>> tree = read_yaml("devices:\n- type: CPU\n  cores: 2\n", "a.yaml")
    >>> tree.value, tree.place(("devices", 0, "cores"))
    ({'devices': [{'type': 'CPU', 'cores': 2}]}, 'a.yaml:3')
    """
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(
            f"{name}: {len(text)} characters are too many", remedy=f"a configuration has at most {_MOST_CHARACTERS}"
        )
    node, loader = _compose(text, name)
    tree = Tree({}, {(): f"{name}:1"}, name)
    if node is not None:
        tree.value = _Walk(loader, tree, name).value(node, ())
    return tree


def _compose(text: str, name: str) -> tuple[Any, _Loader]:
    try:
        loader = _Loader(text)
        return loader.get_single_node(), loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        if error.problem and error.context and error.context_mark is not None:
            problem += f" {error.context}, begun in line {error.context_mark.line + 1}"
        raise ConfigError(f"{_place(name, mark)}: this is not YAML: {problem}", remedy=_yaml_remedy(problem)) from error
    except yaml.reader.ReaderError as error:
        line_number = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{name}:{line_number}: this is not text: it holds the character {error.character!r}"
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"{name}: this is not YAML: {' '.join(str(error).split())}") from error


def _place(name: str, mark: Any) -> str:
    """Give 'file:line'; a setting has no lines."""
    return name if mark is None or name.startswith("--set ") else f"{name}:{mark.line + 1}"


def _yaml_remedy(problem: str) -> str:
    if "'\\t'" in problem:
        return "indent with spaces, not with tabs"
    if "mapping values are not allowed" in problem:
        return "check the indentation, and quote text that holds ': '"
    if "another document" in problem or "but found another" in problem:
        return "keep one document in a file"
    return ""


class _Walk:
    """Turns nodes into values; counts them, so that aliases of aliases cannot explode."""

    def __init__(self, loader: _Loader, tree: Tree, name: str) -> None:
        self.loader = loader
        self.tree = tree
        self.name = name
        self.count = 0

    def value(self, node: Any, key: Key) -> Any:
        """Give the value of a node and note its place."""
        self.count += 1
        if self.count > _MOST_VALUES:
            raise self.wrong(node, f"aliases make this more than {_MOST_VALUES} values", "write the values out")
        if len(key) > _DEEPEST:
            raise self.wrong(node, f"this is nested deeper than {_DEEPEST} levels", "a configuration needs four")
        self.tree.places.setdefault(key, _place(self.name, node.start_mark))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*key, index)) for index, child in enumerate(node.value)]
        return self.scalar(node, key)

    def mapping(self, node: Any, key: Key) -> dict[str, Any]:
        """Give a dict; keys are text and occur once."""
        given: dict[str, Any] = {}
        for key_node, child in node.value:
            word = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if word is None:
                raise self.wrong(key_node, "a key must be a word", "write 'key: value'")
            if word in given:
                first = self.tree.place((*key, word)).rpartition(":")[2]
                raise self.wrong(
                    key_node, f"the key {shown(word)} is here twice, first in line {first}", "keep one of them"
                )
            self.tree.places[(*key, word)] = _place(self.name, key_node.start_mark)
            given[word] = self.value(child, (*key, word))
        return given

    def scalar(self, node: Any, key: Key) -> Any:
        """Give a number, a truth value, None or text; `type: null` is the word 'null'."""
        tag = node.tag.removeprefix(_PREFIX)
        if tag == "null" and node.value and key[-1:] == ("type",):
            return "null"
        if tag == "timestamp":
            return node.value
        if tag not in ("null", "bool", "int", "float", "str"):
            raise self.wrong(node, f"the tag {shown(node.tag)} is not allowed", "write plain values")
        try:
            return self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError, KeyError, IndexError) as error:
            raise self.wrong(
                node, f"{shown(node.value)} is not a value of the kind {tag}", "quote it if it is text"
            ) from error

    def wrong(self, node: Any, problem: str, remedy: str) -> ConfigError:
        """Word a mistake with its place."""
        return ConfigError(f"{_place(self.name, node.start_mark)}: {problem}", remedy=remedy)


def tree_of(value: Mapping[str, Any], name: str) -> Tree:
    """Take a configuration that is already a dict, copied as far as settings may change it."""
    return Tree(copied(value, name), {(): name}, name)


def copied(value: Any, name: str, depth: int = 0) -> Any:
    """Give a copy of nested mappings and lists as dicts and lists; refuses what contains itself."""
    if depth > _DEEPEST:
        raise ConfigError(f"{name}: this is nested deeper than {_DEEPEST} levels")
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
    node, loader = _compose(text, name)
    key = tuple(path.strip().split("."))
    lay_value(tree, path, None if node is None else _Walk(loader, Tree(None), name).value(node, key), name)


def lay_value(tree: Tree, path: str, value: Any, name: str) -> None:
    """Lay a value over a tree at 'key.path'; messages call it `name`."""
    words = path.strip().split(".")
    if not all(words) or len(words) > _DEEPEST:
        raise _formless(path)
    _assign(tree, words, copied(value, name), name)


def _formless(setting: str) -> ConfigError:
    return ConfigError(
        f"--set {shown(setting)} is not of the form key.path=value", remedy="write it like devices.0.cores=2"
    )


def _assign(tree: Tree, words: list[str], value: Any, name: str) -> None:
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


def _step(here: Any, word: str, path: str, name: str) -> Any:
    """Give the dict key or list index that a word means; a list grows by one at its end."""
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
