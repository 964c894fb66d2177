"""Signatures: the key under which a call's measured times are kept, and what they should grow with.

In: a function's key and the arguments of one call. Out: a text and a size.
It must not read an array's contents, and must cost a few microseconds at most.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Described", "describe", "describe_value", "register"]

Described = tuple[str, float]
"""One value's part of a signature, and its size: bytes of arrays and buffers, or the number itself."""

_SAMPLED = 8
_LARGEST = 1e300
_CACHED_SHAPES = 4096

_array_texts: dict[tuple[object, ...], str] = {}


def describe(function_key: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Described:
    """Return the signature and the size of one call.

    Parameters
    ----------
    function_key
        The function's name and the digest of its code.
    args, kwargs
        The arguments of the call.

    Returns
    -------
    tuple
        'key|part,part,…' from the exact types, shapes and dtypes, and the size: bytes of arrays and buffers
        plus the absolute values of numbers.

    Examples
    --------
    >>> describe("demo.f@12", (np.zeros((4, 2)), 3), {"axis": 0})
    ('demo.f@12|float64[4,2],int,axis=int', 67.0)
    >>> describe("demo.f@12", (), {})
    ('demo.f@12|', 0.0)
    """
    if not args and not kwargs:
        return f"{function_key}|", 0.0
    parts: list[str] = []
    total = 0.0
    for value in args:
        text, size = describe_value(value)
        parts.append(text)
        total += size
    for name in sorted(kwargs) if len(kwargs) > 1 else kwargs:
        text, size = describe_value(kwargs[name])
        parts.append(f"{name}={text}")
        total += size
    return f"{function_key}|{','.join(parts)}", min(total, _LARGEST)


def describe_value(value: object) -> Described:
    """Return one value's part of a signature, and its size.

    Examples
    --------
    >>> describe_value("hello"), describe_value([1.0, 2.0, 3.0])
    (('str<=8', 5.0), ('list<=4:float', 24.0))
    """
    kind = type(value)
    describer = _describers.get(kind)
    if describer is None:
        describer = _describers[kind] = _choose(kind)
    return describer(value)


class _Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> object: ...


def register(kind: type, describer: Callable[..., Described]) -> None:
    """Register the function that describes values of exactly this type."""
    _describers[kind] = describer


def _number(value: complex) -> Described:
    try:
        size = float(abs(value))
    except OverflowError:
        size = _LARGEST
    return type(value).__name__, size if math.isfinite(size) else 0.0


def _bare(value: object) -> Described:
    return type(value).__name__, 0.0


def _bucket(length: int) -> int:
    return 1 << (length - 1).bit_length() if length > 0 else 0


def _text(value: str | bytes | bytearray) -> Described:
    length = len(value)
    return f"{type(value).__name__}<={_bucket(length)}", float(length)


def _ndarray(value: NDArray[np.generic]) -> Described:
    key = (value.dtype, value.shape)
    text = _array_texts.get(key)
    if text is None:
        text = _remember(key, "", str(value.dtype), value.shape)
    return text, float(value.nbytes)


def _array(value: _Shaped) -> Described:
    kind = type(value)
    shape = tuple(value.shape)
    key = (kind, value.dtype, shape)
    text = _array_texts.get(key)
    if text is None:
        root = kind.__module__.partition(".")[0]
        text = _remember(key, f"{root}.", str(value.dtype).rpartition(".")[2], shape)
    nbytes = getattr(value, "nbytes", None)
    return text, float(nbytes if isinstance(nbytes, int) else math.prod(shape))


def _remember(key: tuple[object, ...], prefix: str, dtype: str, shape: tuple[int, ...]) -> str:
    if len(_array_texts) >= _CACHED_SHAPES:
        _array_texts.clear()
    text = f"{prefix}{dtype}[{','.join(map(str, shape))}]"
    _array_texts[key] = text
    return text


def _table(value: _Shaped) -> Described:
    shape = tuple(value.shape)
    return f"{type(value).__qualname__}[{','.join(map(str, shape))}]", 8.0 * math.prod(shape)


def _buffer(value: bytes | bytearray | memoryview) -> Described:
    nbytes = memoryview(value).nbytes
    return f"{type(value).__name__}<={_bucket(nbytes)}", float(nbytes)


def _element(value: object) -> Described:
    kind = type(value)
    if kind in _NUMBERS:
        return kind.__name__, 8.0
    return _sized(value) if kind in _PLAIN_CONTAINERS else describe_value(value)


def _sequence(value: Sequence[object]) -> Described:
    length = len(value)
    name = f"{type(value).__name__}<={_bucket(length)}"
    if length == 0:
        return name, 0.0
    if length <= _SAMPLED:
        return _with_elements(name, length, value)
    return _with_elements(name, length, [value[i * (length - 1) // (_SAMPLED - 1)] for i in range(_SAMPLED)])


def _mapping(value: Mapping[object, object]) -> Described:
    length = len(value)
    name = f"{type(value).__name__}<={_bucket(length)}"
    if length == 0:
        return name, 0.0
    return _with_elements(name, length, islice(value.values(), _SAMPLED))


def _with_elements(name: str, length: int, sample: Iterable[object]) -> Described:
    values = iter(sample)
    text, total = _element(next(values))
    count = 1
    for value in values:
        total += _size(value)
        count += 1
    return f"{name}:{text}", total * length / count


def _size(value: object) -> float:
    """Return the size that `_element` gives; most words of elements are not asked for."""
    kind = type(value)
    if kind in _NUMBERS:
        return 8.0
    if kind is str:
        return float(len(value))  # type: ignore[arg-type]
    return 8.0 * len(value) if kind in _PLAIN_CONTAINERS else describe_value(value)[1]  # type: ignore[arg-type]


def _sized(value: Any) -> Described:
    length = len(value)
    return f"{type(value).__name__}<={_bucket(length)}", 8.0 * length


def _function(value: object) -> Described:
    return getattr(value, "__qualname__", type(value).__name__), 0.0


def _object(value: object) -> Described:
    kind = type(value)
    nbytes = getattr(value, "nbytes", 0)
    return f"{kind.__module__}.{kind.__qualname__}", float(nbytes) if isinstance(nbytes, int) else 0.0


_NUMBERS = frozenset({int, float, complex})
_PLAIN_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})

_describers: dict[type, Callable[..., Described]] = {
    int: _number,
    float: _number,
    complex: _number,
    bool: _bare,
    type(None): _bare,
    str: _text,
    bytes: _text,
    bytearray: _text,
    memoryview: _buffer,
    np.ndarray: _ndarray,
    list: _sequence,
    tuple: _sequence,
    range: _sized,
    dict: _mapping,
    set: _sized,
    frozenset: _sized,
    types.FunctionType: _function,
    types.BuiltinFunctionType: _function,
    type: _function,
}


def _choose(kind: type) -> Callable[..., Described]:
    if issubclass(kind, np.bool_):
        return _bare
    if issubclass(kind, np.number):
        return _number
    if hasattr(kind, "shape"):
        return _array if hasattr(kind, "dtype") else _table
    if issubclass(kind, tuple | list):
        return _sequence
    if issubclass(kind, dict):
        return _mapping
    if kind.__module__ == "array" or kind.__module__ == "mmap":
        return _buffer
    return _object
