"""Arguments of a call: futures become references to data items, and what cannot be an argument is refused.

In: the arguments as given. Out: `Bound`. It must not copy or pickle a value.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hetero.engines.base import ItemRef
from hetero.floor.containers import contents, is_container, rebuild
from hetero.floor.errors import BadValueError
from hetero.session.futures import Future

__all__ = ["Bound", "bind"]


class Bound(NamedTuple):
    """The arguments of one call, ready to travel.

    Attributes
    ----------
    args, kwargs : as given, with an `ItemRef` for each future
    refs : ids of the items
    after : ids of those that are results of tasks
    keep : the futures
    failed : a future among them that has failed already, else None
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    refs: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    keep: tuple[Future, ...] = ()
    failed: Future | None = None


_ONE_PASS = (
    types.GeneratorType,
    types.AsyncGeneratorType,
    types.CoroutineType,
    map,
    filter,
    zip,
    enumerate,
    reversed,
)
_REFUSED = frozenset(_ONE_PASS)
_PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None), np.ndarray})
_LOOKED_INTO = frozenset({list, tuple, dict, set, frozenset})
_MOST_LOOKED_INTO = 64


def _is_leaf(kind: type) -> bool:
    """Return whether values of a type are neither futures, nor refused, nor contain either."""
    return kind is not Future and kind not in _REFUSED and not is_container(kind)


def _all_leaves(values: Iterable[Any]) -> bool:
    return all(map(_is_leaf, set(map(type, values)) - _PLAIN))


def _nothing_to_bind(values: Iterable[Any]) -> bool:
    """Return whether there are leaves only, also in a few plain containers; False where a quick look does not tell."""
    waiting = [values]
    for each in waiting:  # which grows meanwhile
        kinds = set(map(type, each)) - _PLAIN
        if kinds and not all(map(_is_leaf, kinds)):
            if not kinds <= _LOOKED_INTO or len(waiting) > _MOST_LOOKED_INTO:
                return False
            waiting.extend([value.values() if type(value) is dict else value for value in each if type(value) in kinds])
    return True


def bind(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], resolve: Callable[[Future], Any]) -> Bound:
    """Put references in place of futures, at any depth of lists, tuples, dicts, sets, named tuples and dataclasses.

    Parameters
    ----------
    name : of the function, for messages
    resolve : gives an `ItemRef`, or the value of a future that belongs to another Context

    Raises
    ------
    BadValueError
        A generator, or a container that contains itself.
    """
    if _nothing_to_bind(args) and (not kwargs or _nothing_to_bind(kwargs.values())):
        return Bound(args, kwargs)
    binder = _Binder(name, resolve)
    new_args = tuple([binder.replace(value, f"argument {i}") for i, value in enumerate(args, start=1)])
    new_kwargs = {word: binder.replace(value, f"argument {word}=") for word, value in kwargs.items()}
    futures = tuple(binder.found.values())
    return Bound(
        new_args,
        new_kwargs,
        tuple(binder.found),
        tuple([item for item, found in binder.found.items() if found.task_id is not None]),
        futures,
        next((found for found in futures if found._has_failed()), None),
    )


class _Binder:
    def __init__(self, name: str, resolve: Callable[[Future], Any]) -> None:
        self.name = name
        self.resolve = resolve
        self.found: dict[int, Future] = {}
        self.open: set[int] = set()

    def replace(self, value: Any, place: str) -> Any:
        kind = type(value)
        if kind is Future:
            return self._reference(value)
        if is_container(kind):
            return self._container(value, place)
        if kind is types.CoroutineType:
            raise BadValueError(
                f"{place} of {self.name} is a coroutine, which nobody has awaited",
                remedy="await it first, and give its result",
            )
        if kind in _REFUSED:
            raise BadValueError(
                f"{place} of {self.name} is a {kind.__name__}, which can be read only once and here only",
                remedy=f"give a list: list(…), or call ctx.map({self.name}, …) to run once an item",
            )
        return value

    def _reference(self, value: Future) -> Any:
        reference = self.resolve(value)
        if type(reference) is ItemRef:
            self.found[reference.item] = value
        return reference

    def _container(self, value: Any, place: str) -> Any:
        if id(value) in self.open:
            raise BadValueError(
                f"{place} of {self.name} contains itself",
                remedy="a task cannot wait for its own argument: break the circle",
            )
        if _all_leaves(contents(value)):
            return value
        self.open.add(id(value))
        try:
            return rebuild(value, lambda item: self.replace(item, place))
        except RecursionError:
            raise BadValueError(f"{place} of {self.name} is nested too deeply", remedy="give flatter lists") from None
        finally:
            self.open.discard(id(value))
