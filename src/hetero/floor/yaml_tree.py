"""YAML text to plain values, each with the place where it was written.

In: YAML text. Out: a tree of dicts, lists and scalars, and the place of each key. It must not know what any key
means, and whatever the text is, the only thing that it raises is the kind of error that the caller names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hetero.floor.documents import MOST_DIGITS, Fault, parse_json, read_text
from hetero.floor.errors import FileError, HeteroError
from hetero.floor.text import has_control
from hetero.floor.units import shown

__all__ = ["DEEPEST", "Key", "Tree", "read_document", "read_yaml", "yaml_value"]

Key = tuple[str | int, ...]
"""The path of a value: ('devices', 0, 'cores')."""

DEEPEST = 16
"""The most lists and mappings inside one another."""

_MOST_CHARACTERS = 256 * 1024
_MOST_VALUES = 50_000
_LONGEST_KEY = 300
_PREFIX = "tag:yaml.org,2002:"


@dataclass(slots=True)
class Tree:
    """Plain values and where each was written.

    Attributes
    ----------
    value
        Dicts, lists and scalars.
    places
        'file:line' per path; a path that is missing has the place of its nearest parent.
    name
        What the whole is called in messages: the file, or 'Context(config=...)'.
    """

    value: Any
    places: dict[Key, str] = field(default_factory=dict)
    name: str = "configuration"

    def place(self, key: Key) -> str:
        """Return the place of a path, or of its nearest known parent."""
        for end in range(len(key), -1, -1):
            if key[:end] in self.places:
                return self.places[key[:end]]
        return self.name


class _Loader(yaml.SafeLoader):
    """Composes nodes of limited depth, so that no text exhausts the stack."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > 2 * DEEPEST:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"it is nested deeper than {DEEPEST} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_yaml(text: str, name: str, fault: Fault = FileError) -> Tree:
    r"""Read one YAML document.

    Parameters
    ----------
    text
        The document.
    name
        What messages call it, a file name.
    fault
        What to raise.

    Returns
    -------
    Tree
        An empty document gives an empty dict.

    Raises
    ------
    HeteroError
        Of the kind `fault`: the text is not YAML, is too large, or repeats a key; the message begins with `name`:line.

    Examples
    --------
    >>> tree = read_yaml("devices:\n- type: CPU\n  cores: 2\n", "a.yaml")
    >>> tree.value, tree.place(("devices", 0, "cores"))
    ({'devices': [{'type': 'CPU', 'cores': 2}]}, 'a.yaml:3')
    """
    if len(text) > _MOST_CHARACTERS:
        remedy = f"a YAML file has at most {_MOST_CHARACTERS}"
        raise fault(f"{name}: {len(text)} characters are too many", remedy=remedy)
    tree = Tree({}, {(): f"{name}:1"}, name)
    try:
        node, loader = _compose(text, name, fault)
        if node is not None:
            tree.value = _Walk(loader, tree, name, fault).value(node, ())
    except MemoryError as error:
        problem = f"{name}: reading it takes more memory than this process may have"
        raise fault(problem, remedy="raise the limit (ulimit -v)") from error
    return tree


def read_document(file: Path, fault: Fault = FileError) -> object:
    """Read a file that holds one document: JSON where its name ends so, YAML else.

    Raises
    ------
    HeteroError
        Of the kind `fault`: the file cannot be read, or is beyond a limit; the message begins with its place.
    """
    text = read_text(file, fault)
    return parse_json(text, str(file), fault) if file.suffix == ".json" else read_yaml(text, str(file), fault).value


def yaml_value(text: str, name: str, key: Key, fault: Fault = FileError) -> object:
    """Read a value that stands alone, as a setting gives it for a key; None for no text."""
    node, loader = _compose(text, name, fault)
    return None if node is None else _Walk(loader, Tree(None), name, fault).value(node, key)


def _compose(text: str, name: str, fault: Fault) -> tuple[yaml.Node | None, _Loader]:
    try:
        loader = _Loader(text)
        return loader.get_single_node(), loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        if error.problem and error.context and error.context_mark is not None:
            problem += f" {error.context}, begun in line {error.context_mark.line + 1}"
        raise fault(f"{_place(name, mark)}: this is not YAML: {problem}", remedy=_yaml_remedy(problem)) from error
    except yaml.reader.ReaderError as error:
        line_number = text.count("\n", 0, error.position) + 1
        raise fault(f"{name}:{line_number}: this is not text: it holds the character {error.character!r}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise fault(f"{name}: this is not YAML: {' '.join(str(error).split())}") from error


def _place(name: str, mark: yaml.Mark | None) -> str:
    """Return 'file:line'; a setting has no lines."""
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

    def __init__(self, loader: _Loader, tree: Tree, name: str, fault: Fault) -> None:
        self.fault = fault
        self.loader = loader
        self.tree = tree
        self.name = name
        self.count = 0

    def value(self, node: yaml.Node, key: Key) -> object:
        """Return the value of a node and note its place."""
        self.count += 1
        if self.count > _MOST_VALUES:
            raise self.wrong(node, f"aliases make this more than {_MOST_VALUES} values", "write the values out")
        if len(key) > DEEPEST:
            raise self.wrong(node, f"this is nested deeper than {DEEPEST} levels", "write it flatter")
        self.tree.places.setdefault(key, _place(self.name, node.start_mark))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*key, index)) for index, child in enumerate(node.value)]
        return self.scalar(node, key)

    def mapping(self, node: yaml.Node, key: Key) -> dict[str, object]:
        """Return a dict; keys are text and occur once."""
        given: dict[str, object] = {}
        for key_node, child in node.value:
            word = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if word is None:
                raise self.wrong(key_node, "a key must be a word", "write 'key: value'")
            if len(word) > _LONGEST_KEY or has_control(word):
                raise self.wrong(key_node, f"{shown(word)} is no key", "write a short word on one line")
            if word in given:
                first = self.tree.place((*key, word)).rpartition(":")[2]
                raise self.wrong(
                    key_node, f"the key {shown(word)} is here twice, first in line {first}", "keep one of them"
                )
            self.tree.places[(*key, word)] = _place(self.name, key_node.start_mark)
            given[word] = self.value(child, (*key, word))
        return given

    def scalar(self, node: yaml.Node, key: Key) -> object:
        """Return a number, a truth value, None or text; `type: null` is the word 'null'."""
        tag = node.tag.removeprefix(_PREFIX)
        if tag == "null" and node.value and key[-1:] == ("type",):
            return "null"
        if tag == "timestamp":
            return node.value
        if tag not in ("null", "bool", "int", "float", "str"):
            raise self.wrong(node, f"the tag {shown(node.tag)} is not allowed", "write plain values")
        if tag == "int" and len(node.value) > MOST_DIGITS:
            raise self.wrong(node, f"{shown(node.value)} has more than {MOST_DIGITS} digits", "write a smaller number")
        try:
            return self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError, KeyError, IndexError) as error:
            raise self.wrong(
                node, f"{shown(node.value)} is not a value of the kind {tag}", "quote it if it is text"
            ) from error

    def wrong(self, node: yaml.Node, problem: str, remedy: str) -> HeteroError:
        """Word a mistake with its place."""
        return self.fault(f"{_place(self.name, node.start_mark)}: {problem}", remedy=remedy)
