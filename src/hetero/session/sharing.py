"""Large arrays among the arguments, as data items: where devices have memory of their own, the core sees them travel.

In: the arguments of a call. Out: the same with futures in place of large arrays. It must not change an array.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
from numpy.typing import NDArray

from hetero.drive.call_environment import HostArguments
from hetero.engines.base import Function
from hetero.model.device import HOST_NODE
from hetero.session.futures import Future

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hetero.session.context import Context

__all__ = ["LARGE_BYTES", "SharedOnce", "Sharing", "is_large"]

LARGE_BYTES = 1 << 16
"""Smaller arrays travel inside the messages."""


class Sharing:
    """Gives one data item for one array, as long as the array has not changed.

    An array that is handed to several tasks becomes one item: it travels once to each memory node. One that was
    changed between two tasks becomes another item, so that each task sees what it was given.
    """

    def __init__(self, context: Context) -> None:
        self._context = weakref.ref(context)
        self._known: dict[int, tuple[weakref.ref[object], weakref.ref[Future]]] = {}
        self._on_host = HostArguments()

    def shared(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[tuple[object, ...], Mapping[str, object]]:
        """Put futures in place of the large arrays among the arguments."""
        if any(map(is_large, args)):
            args = tuple([self._future(value) if is_large(value) else value for value in args])
        if any(map(is_large, kwargs.values())):
            kwargs = {word: self._future(value) if is_large(value) else value for word, value in kwargs.items()}
        return args, kwargs

    def as_given(self, function: Function, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Function:
        """Return a plain function with the large arrays among these arguments as NumPy arrays, wherever it runs."""
        positions = tuple([place for place, value in enumerate(args) if is_large(value)])
        words = tuple([word for word, value in kwargs.items() if is_large(value)])
        return self._on_host.of(function, positions, words) if positions or words else function

    def _future(self, array: object) -> Future:
        context = self._context()
        assert context is not None
        found = self._known.get(id(array))
        if found is not None and found[0]() is array:
            future = found[1]()
            if future is not None and context.driver.engine.holds(future.item, array):
                return future
        future = context.put(array)
        key = id(array)
        self._known[key] = (weakref.ref(array, lambda _: self._known.pop(key, None)), weakref.ref(future))
        return future


class SharedOnce:
    """Gives one data item for one array, taken as it is when it is first met, for as long as both are there.

    For the calls of one loop, between which the program does not change an array: it is not looked at again.

    Attributes
    ----------
    shares
        False where arrays do not travel as items of the host.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._known: dict[int, tuple[weakref.ref[object], tuple[object, ...], Future]] = {}
        on_host = all(device.memory_node == HOST_NODE for device in ctx.devices)
        self.shares = on_host and ctx.driver.engine.copies_arguments

    def future(self, array: NDArray[np.generic]) -> Future | None:
        """Return the future of an array's item, None where arrays do not travel as items of the host."""
        if not self.shares:
            return None
        key, layout = id(array), (array.__array_interface__["data"], array.shape, array.strides, array.dtype)
        found = self._known.get(key)
        if found is not None and found[0]() is array and found[1] == layout:
            return found[2]
        future = self._ctx.put(array)
        self._known[key] = (weakref.ref(array, lambda _: self._known.pop(key, None)), layout, future)
        return future


def is_large(value: object) -> TypeGuard[NDArray[np.generic]]:
    """Return whether a value is a plain array that may travel as an item."""
    return type(value) is np.ndarray and value.nbytes >= LARGE_BYTES and not value.dtype.hasobject
