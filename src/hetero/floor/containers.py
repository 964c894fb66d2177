"""Values inside containers: which types are taken apart, what lies in them, and the same container with other contents.

In: a value. Out: what it holds, or a copy of it with elements replaced. It must not change what it is given.
"""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["contents", "is_container", "rebuild"]

_KNOWN_KINDS = 4096
_containers: dict[type, bool] = {}
_EXACT = frozenset({list, tuple, dict, set, frozenset, deque, OrderedDict, defaultdict})


def is_container(kind: type) -> bool:
    """Return whether futures and items are looked for inside values of a type: `rebuild` takes it apart."""
    known = _containers.get(kind)
    if known is None:
        if len(_containers) >= _KNOWN_KINDS:
            _containers.clear()
        known = kind in _EXACT or (issubclass(kind, tuple) and hasattr(kind, "_fields")) or is_dataclass(kind)
        _containers[kind] = known
    return known


def contents(value: Any) -> Collection[object]:
    """Return what lies directly inside a container: elements, the values of a mapping, the fields of a dataclass."""
    if isinstance(value, Mapping):
        return value.values()
    if is_dataclass(value):
        return [getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)]
    return value  # type: ignore[no-any-return]


def rebuild(value: Any, replace: Callable[[object], object]) -> object:
    """Return a container of the same type with each element replaced; itself where nothing was.

    Parameters
    ----------
    value
        Whatever `is_container` is true of.
    replace
        Called once for each element, each value of a mapping and each field of a dataclass.

    Examples
    --------
    >>> rebuild({"a": 1, "b": 2}, lambda value: -value), rebuild((1, 2), lambda value: value)
    ({'a': -1, 'b': -2}, (1, 2))
    """
    kind = type(value)
    if isinstance(value, Mapping):
        fresh = {key: replace(each) for key, each in value.items()}
        if all(fresh[key] is value[key] for key in value):
            return value
        return fresh if kind is dict else _copied(value, lambda other: other.update(fresh))
    if is_dataclass(value):
        names = [each.name for each in fields(value) if hasattr(value, each.name)]
        changed = {name: new for name in names if (new := replace(old := getattr(value, name))) is not old}
        return _copied(value, lambda other: _set_fields(other, changed)) if changed else value
    new = [replace(each) for each in value]
    if all(map(operator.is_, new, value)):
        return value
    if kind is deque:
        return deque(new, value.maxlen)
    return kind._make(new) if kind not in _EXACT else new if kind is list else kind(new)


def _copied(value: object, change: Callable[..., None]) -> object:
    other = copy.copy(value)
    change(other)
    return other


def _set_fields(value: object, changed: Mapping[str, object]) -> None:
    """Set fields of a dataclass, a frozen one too: it is a copy of ours that nobody has seen yet."""
    for name, each in changed.items():
        object.__setattr__(value, name, each)
