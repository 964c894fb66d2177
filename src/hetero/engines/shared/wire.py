"""How values, exceptions and messages become bytes and back.

In: Python values. Out: a pickle with its large buffers apart, or frames on a socket.
NumPy's own pickle format is not used for arrays: the other side may have another version of NumPy.
"""

from __future__ import annotations

import functools
import io
import operator
import pickle
import struct
import sys
import threading
import typing
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from hetero.engines.base import ItemRef
from hetero.floor.containers import is_container, rebuild
from hetero.floor.errors import SerialisationError
from hetero.floor.platform import same_bytes

if TYPE_CHECKING:
    import torch

__all__ = [
    "LARGE_BYTES",
    "NONE",
    "READ_BYTES",
    "BufferPlace",
    "Copies",
    "Frames",
    "Message",
    "WireValue",
    "as_bytes",
    "cloud_pickler",
    "dump",
    "frame",
    "fresh",
    "is_one_buffer",
    "load",
]

LARGE_BYTES = 64 * 1024
"""Buffers of this size and more travel through shared memory."""

READ_BYTES = 64 * 1024
"""Bytes that are read from a socket at once; a larger buffer would come from the system anew each time."""

_HEADER = struct.Struct("<Q")
_LARGEST_BYTES = 1 << 40
_PLAIN_KINDS = frozenset("biufc")
_TEXT_KINDS = frozenset("MmSU")
_VIEW_KINDS = frozenset("cbBhHiIlLqQnNfdP?")  # what memoryview.cast takes


Message = tuple[Any, ...]
"""A message as it was read, or fields of one: what they are follows from its tag, which comes first."""

Kept = TypeVar("Kept")


class BufferPlace(NamedTuple):
    """Where in shared memory a buffer lies."""

    segment: int
    offset: int
    nbytes: int


class WireValue(NamedTuple):
    """A value as it travels: its pickle, and where its large buffers lie; a body of None is the first of them."""

    body: bytes | None
    places: tuple[BufferPlace, ...] = ()


class _NotPlainError(Exception):
    """The value needs cloudpickle."""


_items = threading.local()


def _item(item: int) -> object:
    return _items.values[item]


def _array(data: memoryview, dtype: str, shape: tuple[int, ...], order: Literal["C", "F"]) -> NDArray[np.generic]:
    if 0 in shape:
        return np.empty(shape, dtype)
    flat: NDArray[np.generic] = np.frombuffer(data, dtype)
    return (flat if flat.flags.writeable else flat.copy()).reshape(shape, order=order)


def _scalar(dtype: str, data: bytes) -> object:
    return np.frombuffer(data, dtype)[0]


def _view(data: bytearray | bytes, kind: str, shape: tuple[int, ...]) -> memoryview:
    flat = memoryview(data)
    return flat.cast(kind) if 0 in shape else flat.cast(kind, shape)  # type: ignore[call-overload,no-any-return]


def _tensor(array: NDArray[np.generic]) -> object:
    import torch

    return torch.from_numpy(array)


@functools.lru_cache(maxsize=256)
def _named(dtype: np.dtype[np.generic]) -> bool:
    """Return whether the text of a dtype says all about it."""
    return dtype.kind in _PLAIN_KINDS | _TEXT_KINDS and dtype.itemsize > 0 and np.dtype(dtype.str) == dtype


def is_one_buffer(value: object) -> TypeGuard[NDArray[np.generic]]:
    """Return whether a value is an array that travels as one large buffer, its own bytes as they lie there."""
    return (
        type(value) is np.ndarray
        and value.nbytes >= LARGE_BYTES
        and value.dtype.kind in _PLAIN_KINDS
        and value.flags.forc
        and _named(value.dtype)
    )


def _reduce_array(array: NDArray[np.generic]) -> object:
    if not _named(array.dtype):
        return array.__reduce_ex__(5)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    whole = array if array.flags.c_contiguous or order == "F" else np.ascontiguousarray(array)
    plain: Any = whole if array.dtype.kind in _PLAIN_KINDS else whole.ravel(order="K").view(np.uint8)
    return _array, (pickle.PickleBuffer(plain), array.dtype.str, array.shape, order)


def _reduce_own(value: torch.Tensor) -> object:
    """Reduce what both picklers know: arrays, NumPy scalars, references to items."""
    kind = type(value)
    if kind is np.ndarray:
        return _reduce_array(value)
    if kind is ItemRef:
        return _item, (value.item,)
    if isinstance(value, np.generic) and _named(value.dtype):
        return _scalar, (value.dtype.str, value.tobytes())
    return _reduce_view(value) if kind is memoryview else NotImplemented


def _reduce_view(value: memoryview) -> object:
    """Reduce a view to a copy of its bytes, of the same format and shape; raises TypeError where none can be made."""
    kind, shape = value.format.lstrip("@"), value.shape or ()
    if kind not in _VIEW_KINDS or (0 in shape and len(shape) > 1):
        raise TypeError(f"cannot pickle a memoryview of format {value.format!r} and shape {shape}")
    return _view, (value.tobytes() if value.readonly else bytearray(value.tobytes()), kind, shape)


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:
        reduced = _reduce_own(value)
        if reduced is NotImplemented and not (type(value) is FunctionType and value.__module__ == __name__):
            raise _NotPlainError
        return reduced


@functools.cache
def cloud_pickler() -> Any:
    """Return the pickler of what plain pickle cannot carry, made when it is first needed."""
    import ctypes

    import cloudpickle

    class CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: object) -> object:
            reduced = _reduce_own(value)
            if reduced is NotImplemented and type(value).__module__ == "torch":
                reduced = _reduce_tensor(value)
            if reduced is NotImplemented:
                reduced = _reduce_by_value(value)
            if reduced is not NotImplemented:
                return reduced
            reduced = super().reducer_override(value)
            if isinstance(value, type) and "__slots__" in vars(value) and isinstance(reduced, tuple):
                return _with_slots(value, reduced)
            if type(value) in (type(ctypes.Structure), type(ctypes.Union)) and isinstance(reduced, tuple):
                return _with_fields(reduced)
            return reduced

    return CloudPickler


def _with_slots(kind: type, reduced: tuple[Any, ...]) -> tuple[object, ...]:
    """Return how a class travels by value, with slots also where it arrives.

    cloudpickle makes a class without slots first and sets `__slots__` as an attribute of it: its instances would
    have a `__dict__` there, which those of the class itself cannot take.
    """
    make, (*given, keywords, tracker, extra), (content, *others), *rest = reduced
    names = vars(kind)["__slots__"]
    if not isinstance(keywords, dict) or not isinstance(content, dict):  # an enumeration has no slots of its own
        return reduced
    if typing.NamedTuple in vars(kind).get("__orig_bases__", ()):  # it makes its slots, and takes none
        return reduced
    slots = names if isinstance(names, str | dict) else tuple(names)
    content = {
        name: value
        for name, value in content.items()
        if name != "__slots__" and getattr(value, "__objclass__", None) is not kind
    }
    return make, (*given, {**keywords, "__slots__": slots}, tracker, extra), (content, *others), *rest


def _reduce_by_value(value: Any) -> object:
    """Reduce what holds functions and classes of the program and is none itself; NotImplemented for anything else."""
    if type(value) is functools._lru_cache_wrapper and _is_of_program(value):
        sized = value.cache_parameters()
        held = {**vars(value), "__wrapped__": value.__wrapped__}
        return _cached, (sized["maxsize"], sized["typed"]), held, None, None, _set_cached
    if type(value) is FunctionType and value.__code__ is _DISPATCHING and _is_of_program(value):
        return _dispatching, (), dict(vars(value)["registry"]), None, None, _set_dispatching
    if isinstance(value, functools.cached_property):  # until Python 3.12 it has a lock
        return type(value), (value.func,), {name: each for name, each in vars(value).items() if name != "lock"}
    if type(value).__module__ == "_ctypes" and isinstance(value, type):
        of, length = getattr(value, "_type_", None), getattr(value, "_length_", None)
        if length is not None and of * length is value:
            return operator.mul, (of, length)
    if type(value) is type and value.__module__ == "_ctypes" and issubclass(value, type):
        import ctypes

        return type, (next(each for each in (ctypes.Structure, ctypes.Union, ctypes.Array) if type(each) is value),)
    return NotImplemented


def _is_of_program(value: Callable[..., object]) -> bool:
    """Return whether a worker cannot import it: it stands in the program's own module, or inside a function."""
    module, found = sys.modules.get(value.__module__ or ""), None
    if module is None or value.__module__ == "__main__":
        return True
    with suppress(AttributeError):
        found = operator.attrgetter(value.__qualname__)(module)
    return found is not value


class _Deferred:
    """Calls a function that it is given after it was made: by then a function that calls itself can be made."""

    function: Callable[..., object]

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> object:
        return self.function.__get__(instance, owner)  # one of a class may be a class method


def _cached(maxsize: int | None, typed: bool) -> object:
    return functools.lru_cache(maxsize, typed)(_Deferred())


def _set_cached(cached: Any, held: dict[str, Any]) -> None:
    """Have a cache that was made empty call its function."""
    cached.__wrapped__.function = held["__wrapped__"]
    functools.update_wrapper(cached, held["__wrapped__"])
    vars(cached).update(held)


_DISPATCHING = typing.cast("FunctionType", functools.singledispatch(len)).__code__


def _dispatching() -> object:
    return functools.singledispatch(_Deferred())


def _set_dispatching(made: Any, registry: dict[type, Callable[..., object]]) -> None:
    """Have a generic function that was made without implementations call these."""
    made.registry[object].function = registry[object]
    functools.update_wrapper(made, registry[object])
    for kind, each in registry.items():
        if kind is not object:
            made.register(kind, each)


def _with_fields(reduced: tuple[Any, ...]) -> tuple[object, ...]:
    """Return how a structure of C travels by value: made with its fields, which are final from then on."""
    make, (*given, keywords, tracker, extra), (content, *others), *rest = reduced
    content = {name: value for name, value in content.items() if type(value).__name__ != "CField"}
    own = {name: content.pop(name) for name in ("_pack_", "_anonymous_", "_fields_") if name in content}
    return make, (*given, {**keywords, **own}, tracker, extra), (content, *others), *rest


def _reduce_tensor(value: torch.Tensor) -> object:
    if type(value).__name__ != "Tensor" or value.requires_grad or value.device.type != "cpu":
        return NotImplemented
    try:
        return _tensor, (value.numpy(),)
    except (TypeError, RuntimeError):
        return NotImplemented


NONE = pickle.dumps(None, 5)


def dump(value: object) -> tuple[bytes | None, list[memoryview]]:
    """Pickle a value; return the pickle and the large buffers that belong to it, in order: what `load` reads.

    A pickle that is large itself is the first of the buffers, and None stands in its place.

    Raises
    ------
    Exception
        Whatever the value's own pickling raises.
    """
    if value is None:
        return NONE, []
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    try:
        _PlainPickler(file, 5, buffer_callback=keep).dump(value)
    except _NotPlainError:
        buffers.clear()
        file = io.BytesIO()
        cloud_pickler()(file, 5, buffer_callback=keep).dump(value)
    body = file.getvalue()
    return (body, buffers) if len(body) < LARGE_BYTES else (None, [memoryview(body), *buffers])


class Copies(Generic[Kept]):
    """Copies of the large buffers of values: each is made once for as long as the buffer holds the same bytes.

    Parameters
    ----------
    make
        Copies a buffer; what it returns may be shared by several values.
    address
        Returns where a copy lies, to be compared.
    counters
        Counts copies, copied_bytes and shared (a copy saved).

    Notes
    -----
    A copy is found by the address of the bytes and believed only after comparing all of them, so an array changed
    between two calls gives each call its own value.
    """

    def __init__(
        self, make: Callable[[NDArray[np.uint8]], Kept], address: Callable[[Kept], int], counters: Counter[str]
    ) -> None:
        self._make = make
        self._address = address
        self._counters = counters
        self._known: OrderedDict[tuple[int, int], tuple[Kept, object]] = OrderedDict()

    def pack(self, value: object) -> tuple[bytes | None, tuple[Kept, ...]]:
        """Pickle a value as `dump` does; return the pickle and copies of the large buffers.

        Raises
        ------
        Exception
            Whatever the value's own pickling raises.
        """
        body, buffers = dump(value)
        return body, tuple([self.keep(buffer) for buffer in buffers]) if buffers else ()

    def keep(self, buffer: memoryview) -> Kept:
        """Return a copy of these bytes: a new one, or the one made before where it still holds the same."""
        source = np.frombuffer(buffer, np.uint8)
        key = (source.ctypes.data, source.nbytes)
        known = self._known.get(key)
        if known is not None and same_bytes(key[0], self._address(known[0]), source.nbytes):
            self._counters["shared"] += 1
            return known[0]
        made = self._make(source)
        self._counters["copies"] += 1
        self._counters["copied_bytes"] += source.nbytes
        self._remember(key, made, buffer.obj)
        return made

    def _remember(self, key: tuple[int, int], made: Kept, owner: object) -> None:
        def forget(_: object, known: OrderedDict[tuple[int, int], tuple[Kept, object]] = self._known) -> None:
            known.pop(key, None)

        with suppress(TypeError):  # what no weak reference can name is copied each time
            self._known[key] = (made, weakref.ref(owner, forget))

    def drop_oldest(self) -> bool:
        """Forget the oldest copy; False where there is none."""
        if self._known:
            self._known.popitem(last=False)
            return True
        return False

    def clear(self) -> None:
        """Forget all copies that are kept for their next use."""
        self._known.clear()


def as_bytes(value: object) -> bytes:
    """Pickle a value with everything inside."""
    file = io.BytesIO()
    cloud_pickler()(file, 5).dump(value)
    return file.getvalue()


def load(body: Any, buffers: Sequence[object] = (), items: Mapping[int, object] | None = None) -> Any:
    """Read back what `dump` made of a value, with the values of the items that it refers to."""
    if body is None:
        body, *buffers = buffers
    if not items:
        return pickle.loads(body, buffers=buffers)
    _items.values = items
    try:
        return pickle.loads(body, buffers=buffers)
    finally:
        _items.values = None


def fresh(value: Any) -> Any:
    """Return a value whose NumPy arrays, also inside containers, are copies, and so are the containers of those."""
    kind = type(value)
    if kind is np.ndarray:
        return value.copy("A")  # in C or Fortran order, as in a worker process
    if kind is list or kind is tuple:
        return kind(map(fresh, value))
    if kind is dict:
        return {key: fresh(item) for key, item in value.items()}
    return rebuild(value, fresh) if is_container(kind) else value


def frame(message: tuple[object, ...]) -> bytes:
    """Return a message as bytes with its length in front.

    Raises
    ------
    SerialisationError
        It is too large for this machine's memory.
    """
    try:
        body = pickle.dumps(message, 5)
    except MemoryError as error:
        raise SerialisationError("a message to a worker does not fit into memory") from error
    return _HEADER.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into messages."""

    __slots__ = ("_data", "_ready")

    def __init__(self) -> None:
        self._data = bytearray()
        self._ready: deque[Message] = deque()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream; raises anything when they are no messages."""
        data = self._data
        if not data and len(chunk) >= _HEADER.size and _HEADER.unpack_from(chunk)[0] == len(chunk) - _HEADER.size:
            self._ready.append(pickle.loads(memoryview(chunk)[_HEADER.size :]))
            return
        data += chunk
        start = 0
        while len(data) - start >= _HEADER.size:
            size = _HEADER.unpack_from(data, start)[0]
            if size > _LARGEST_BYTES:
                raise ValueError(f"a message of {size} bytes")
            end = start + _HEADER.size + size
            if end > len(data):
                break
            with memoryview(data) as view, view[start + _HEADER.size : end] as body:
                self._ready.append(pickle.loads(body))
            start = end
        if start:
            del data[:start]

    def next(self) -> Message | None:
        """Return the next whole message, or None."""
        return self._ready.popleft() if self._ready else None
