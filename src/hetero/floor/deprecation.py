"""Keywords that moved into options objects, renamed ones, renamed values: for one version they work and warn.

In: a function as it is now, and which of its former keywords are fields of which options object, or renamed.
Out: the function, which still takes them. It must not know any options class.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from hetero.floor.errors import BadValueError

__all__ = ["Moved", "moved_keywords", "renamed_keywords", "renamed_values"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Moved:
    """Former keywords of a function that are fields of an options object now.

    Attributes
    ----------
    parameter
        The parameter that takes the object.
    make
        Its class, or a function of its fields.
    fields
        The field by keyword. A keyword that the function still has goes into the object together with former ones.
    """

    parameter: str
    make: Callable[..., object]
    fields: Mapping[str, str]


def moved_keywords(*moved: Moved) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator by which a function still takes keywords that became fields of options objects.

    Raises
    ------
    BadValueError
        The decorated function was given both a former keyword and the object that replaces it.

    Examples
    --------
    >>> @dataclass
    ... class Options:
    ...     rank: int = 4
    >>> @moved_keywords(Moved("options", Options, {"rank": "rank"}))
    ... def train(model, options=None):
    ...     return options
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     train("a model", rank=8)
    Options(rank=8)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__")
        parameters = frozenset(signature(function).parameters)
        former = {keyword for one in moved for keyword in one.fields} - parameters

        @wraps(function)
        def accept(*args: P.args, **kwargs: P.kwargs) -> R:
            if not former.isdisjoint(kwargs):
                for one in moved:
                    _fold(name, one, former, kwargs)
            return function(*args, **kwargs)

        return accept

    return decorate


def renamed_keywords(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator by which a function still takes keywords under the names that they had.

    Parameters
    ----------
    names
        The name of today by the name of the last version.

    Raises
    ------
    BadValueError
        The decorated function was given a keyword under both names.

    Examples
    --------
    >>> @renamed_keywords(optimiser="optimizer")
    ... def train(model, optimizer="adam"):
    ...     return optimizer
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     train("a model", optimiser="sgd")
    'sgd'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def accept(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in [each for each in names if each in kwargs]:
                if names[old] in kwargs:
                    raise BadValueError(f"{name} was given both {old}= and {names[old]}=", remedy=f"leave {old}= out")
                warnings.warn(
                    f"{name}({old}=) is deprecated: write {names[old]}=", DeprecationWarning, stacklevel=_callers()
                )
                kwargs[names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return accept

    return decorate


def renamed_values(**values: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator by which keywords of a function still take the words that they took in the last version.

    Parameters
    ----------
    values
        By keyword: the word of today by the word of the last version.

    Examples
    --------
    >>> @renamed_values(goal={"minimise": "minimize"})
    ... def search(goal="minimize"):
    ...     return goal
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     search(goal="minimise")
    'minimize'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def accept(*args: P.args, **kwargs: P.kwargs) -> R:
            for keyword, former in values.items():
                given = kwargs.get(keyword)
                if isinstance(given, str) and given in former:
                    words = f"{name}({keyword}={given!r}) is deprecated: write {keyword}={former[given]!r}"
                    warnings.warn(words, DeprecationWarning, stacklevel=_callers())
                    kwargs[keyword] = former[given]
            return function(*args, **kwargs)

        return accept

    return decorate


def _callers() -> int:
    """Return how many frames above its caller the decorated function was called, past decorators over each other."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    return level


def _fold(name: str, moved: Moved, former: set[str], kwargs: dict[str, object]) -> None:
    """Put former keywords into the options object, and say how to write it."""
    found = [keyword for keyword in moved.fields if keyword in kwargs and keyword in former]
    if not found:
        return
    given = ", ".join(f"{keyword}=" for keyword in found)
    if moved.parameter not in moved.fields and kwargs.get(moved.parameter) is not None:
        raise BadValueError(
            f"{name} was given both {given} and {moved.parameter}=", remedy=f"put it into {moved.parameter}= alone"
        )
    fields = {moved.fields[keyword]: kwargs.pop(keyword) for keyword in moved.fields if keyword in kwargs}
    made = getattr(moved.make, "__qualname__", str(moved.make))
    now = ", ".join(f"{moved.fields[keyword]}=…" for keyword in found)
    text = f"{name}({given}) is deprecated: write {moved.parameter}={made}({now})"
    warnings.warn(text, DeprecationWarning, stacklevel=_callers())
    kwargs[moved.parameter] = moved.make(**{field: value for field, value in fields.items() if value is not None})
