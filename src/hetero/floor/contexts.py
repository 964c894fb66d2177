"""Context managers that are written as generators, for code of users to run in.

In: a generator function that yields once. Out: what returns its context manager. It must not touch the exceptions that
pass through: `contextlib.contextmanager` sets an attribute of them, which a user's class may refuse.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import ParamSpec, TypeVar

__all__ = ["transparent"]

P = ParamSpec("P")
T = TypeVar("T")

_fields = vars(BaseException)


class _Transparent(AbstractContextManager[T]):
    """One use of a generator as a context manager.

    Parameters
    ----------
    made
        The generator, not begun.
    """

    __slots__ = ("_made",)

    def __init__(self, made: Generator[T, None, None]) -> None:
        self._made = made

    def __enter__(self) -> T:
        return next(self._made)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            assert next(self._made, self) is self, "the generator yielded twice"
            return False
        try:
            self._made.throw(error)
        except StopIteration as end:
            return end is not error
        except BaseException as raised:
            if raised is not error and not _is_wrapped(error, raised):
                raise
            _fields["__traceback__"].__set__(error, trace)
            return False
        raise AssertionError("the generator yielded twice")


def _is_wrapped(error: BaseException, raised: BaseException) -> bool:
    """Return whether the interpreter put a StopIteration that came out of a generator into a RuntimeError."""
    return issubclass(type(error), StopIteration) and _fields["__cause__"].__get__(raised) is error


def transparent(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Return a function whose `with` block runs where a generator function yields.

    Examples
    --------
    >>> from collections.abc import Iterator
    >>> @transparent
    ... def shown(name: str) -> Iterator[int]:
    ...     print(f"{name} begins")
    ...     try:
    ...         yield 7
    ...     finally:
    ...         print(f"{name} ends")
    >>> with shown("it") as number:
    ...     print(number)
    it begins
    7
    it ends
    """

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        generator = function(*args, **kwargs)
        assert isinstance(generator, Generator)
        return _Transparent(generator)

    return made
