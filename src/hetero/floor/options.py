"""Options objects: their fields checked by their annotations, and arguments that take such an object.

In: a dataclass of options, or what a function was given for one. Out: the same, or a BadValueError that names the
field or argument. It must not know any options class; ranges and words are checked by the class itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from inspect import Parameter, signature
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from hetero.floor.errors import BadValueError
from hetero.floor.units import shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["check_fields", "options_argument", "shows_fields", "shows_keywords"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])
Annotation: TypeAlias = Any
_ANYTHING: tuple[Annotation, ...] = (Any, object)

_WORDS: dict[Annotation, tuple[str, str]] = {
    str: ("a text", "texts"),
    bool: ("True or False", "True or False"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    Path: ("a path", "paths"),
    NoneType: ("None", "None"),
    Callable: ("a function", "functions"),
}


def options_argument(name: str, given: object, kind: type[T]) -> T | None:
    """Return what was given for an argument that takes an options object, or None.

    Raises
    ------
    BadValueError
        It is of another class.

    Examples
    --------
    >>> from fractions import Fraction
    >>> options_argument("options", {"numerator": 1}, Fraction)
    Traceback (most recent call last):
    hetero.floor.errors.BadValueError: options={'numerator': 1} is no Fraction; write options=Fraction(numerator=…)
    """
    if given is None or isinstance(given, kind):
        return given
    inside = ", ".join(f"{key}=…" for key in given) if isinstance(given, Mapping) else "…"
    raise BadValueError(
        f"{name}={shown(given)} is no {kind.__qualname__}", remedy=f"write {name}={kind.__qualname__}({inside})"
    )


def check_fields(made: DataclassInstance) -> None:
    """Check that each field of an options object holds what its annotation says; to be called as it is made.

    Raises
    ------
    BadValueError
        A field does not; the message names it and what may be given.
    """
    for name, hint in _hints(type(made)).items():
        given = getattr(made, name)
        if not _fits(given, hint):
            raise BadValueError(f"{name}={shown(given)} is not allowed", remedy=f"give {_in_words(hint)}")


def shows_keywords(shown: Sequence[Parameter]) -> Callable[[F], F]:
    """Return a decorator that shows in the signature of a function which keywords its `**keywords` stand for.

    Type checkers read annotations; `inspect.signature`, help and notebooks read `__signature__`.

    Examples
    --------
    >>> @shows_keywords([Parameter("rank", Parameter.KEYWORD_ONLY, default=4)])
    ... def train(model, **options):
    ...     return options
    >>> str(signature(train))
    '(model, *, rank=4)'
    """

    def decorate(function: F) -> F:
        own = signature(function)
        kept = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        more = [each for each in shown if each.name not in own.parameters]
        function.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def shows_fields(kind: type[DataclassInstance]) -> Callable[[F], F]:
    """Return a decorator that shows in the signature of a function the fields that its `**keywords` stand for."""
    return shows_keywords(
        [each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature(kind).parameters.values()][1:]
    )


@cache
def _hints(kind: type[DataclassInstance]) -> dict[str, Annotation]:
    """Return the annotations by field; a class that only type checkers import stands for any."""
    unknown: dict[str, Annotation] = {}
    while True:
        try:
            hints = get_type_hints(kind, localns=unknown)
        except NameError as error:
            unknown[str(error.name)] = object
        else:
            return {each.name: hints[each.name] for each in fields(kind)}


def _parts(hint: Annotation) -> tuple[Annotation, tuple[Annotation, ...]]:
    """Return the class of an annotation and what stands in its brackets."""
    return get_origin(hint) or hint, get_args(hint)


def _fits(given: object, hint: Annotation) -> bool:
    origin, inner = _parts(hint)
    if origin in (Union, UnionType):
        return any(_fits(given, each) for each in inner)
    if origin in (int, float):
        return isinstance(given, Integral if origin is int else Real) and not isinstance(given, bool)
    if origin is Mapping:
        return isinstance(given, Mapping) and all(
            _fits(key, inner[0]) and _fits(value, inner[1]) for key, value in given.items()
        )
    if origin in (Sequence, tuple):
        many = not isinstance(given, str | bytes | Mapping) and isinstance(given, Iterable)
        return many and (not isinstance(given, tuple | list) or all(_fits(each, inner[0]) for each in given))
    if origin is Iterable:  # may be long, or be gone once it is looked at
        return isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    if origin is Callable:
        return callable(given)
    return hint in _ANYTHING or isinstance(given, PathLike if origin is Path else origin)


def _in_words(hint: Annotation, many: bool = False) -> str:
    """Return what an annotation allows, for people."""
    origin, inner = _parts(hint)
    if origin in (Union, UnionType):
        words = [_in_words(each, many) for each in inner]
        return f"{', '.join(words[:-1])} or {words[-1]}"
    if origin is Mapping:
        return f"a dict from {_in_words(inner[0], True)} to {_in_words(inner[1], True)}"
    if origin in (Sequence, tuple, Iterable):
        return f"{'a tuple' if origin is tuple else 'a list'} of {_in_words(inner[0], True)}"
    if origin in _WORDS:
        return _WORDS[origin][many]
    return "any values" if hint in _ANYTHING else f"a {origin.__qualname__}"
