"""Identity: what a call computes, as a digest of its code and its arguments, under which its checkpoints are kept.

In: a task and the arguments of one call. Out: a text, the same in every program that makes the same call.
It must not give two calls the same text that differ; what it cannot read gets a text that never comes again.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import sys
import types
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from copyreg import dispatch_table
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hetero.drive.frame import KEPT_MARK
from hetero.session.functions import FunctionSource, travels_by_name, used_names
from hetero.session.futures import Future
from hetero.session.tasks import TaskFunction

if TYPE_CHECKING:
    import torch

__all__ = ["call_identity", "read_as_future", "value_identity"]

_SIMPLE = frozenset({type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented)})
_MOST_KNOWN = 1024

_known: dict[str, tuple[object, str]] = {}


def call_identity(task: TaskFunction[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """Return the digest of a call: of the code, what it takes along, what it asks for, and the arguments.

    Notes
    -----
    A future counts as the call that it comes from, a value that was put by its bytes, a file by its name.
    """
    named = [part for name in sorted(kwargs) for part in (name, kwargs[name])]
    around = task.surroundings
    wishes = [task.request.devices, *([] if around is None else [sorted(around.env.items()), around.seed])]
    return value_identity([_code_identity(task.source), wishes, list(args), named])


def value_identity(value: object) -> str:
    """Return the digest of a value; one that never comes again where it cannot be read.

    Examples
    --------
    >>> value_identity([1, {"a": 2.0}]) == value_identity([1, {"a": 2.0}]) != value_identity([1, {"a": 2}])
    True
    """
    reader = _Reader()
    try:
        reader.value(value)
    except Exception:  # noqa: BLE001  whatever an object raises when it is taken apart: it cannot be told from others
        return uuid.uuid4().hex[:24]
    return reader.digest.hexdigest()


def _code_identity(source: FunctionSource) -> str:
    """Return the digest of a function, found again for as long as neither it nor what it can change has changed."""
    function = source.current()
    if "#" in function.key:  # it takes along values that can change in place
        return value_identity(source)
    found = _known.get(function.key)
    if found is None or found[0] is not function:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[function.key] = (function, value_identity(source))
    return found[1]


class _Reader:
    """Reads values into one digest, each part with its type and its length, so that no two read alike."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=12)
        self._seen: dict[int, int] = {}
        self._held: list[object] = []

    def value(self, value: object) -> None:
        """Read one value."""
        kind = type(value)
        if kind in _SIMPLE:
            self._word(kind.__name__, repr(value).encode(errors="surrogatepass"))
            return
        if id(value) in self._seen:
            self._word("again", str(self._seen[id(value)]).encode())
            return
        self._seen[id(value)] = len(self._seen)
        self._held.append(value)
        read = _readers.get(kind)
        if read is not None:
            read(self, value)
        elif kind.__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage"):
            self._tensor(value)
        else:
            self._object(value)

    def _word(self, label: str, data: bytes | memoryview) -> None:
        self.digest.update(f"{label}:{len(data)}:".encode())
        self.digest.update(data)

    def _items(self, value: Collection[object]) -> None:
        self._word(type(value).__name__, str(len(value)).encode())
        if set(map(type, value)) <= _SIMPLE:
            self._word("plain", repr(list(value)).encode(errors="surrogatepass"))
        else:
            for item in value:
                self.value(item)

    def _mapping(self, value: Mapping[object, object]) -> None:
        self._word(type(value).__name__, str(len(value)).encode())
        for key, item in value.items():
            self.value(key)
            self.value(item)

    def _set(self, value: Iterable[object]) -> None:
        self._word(type(value).__name__, "".join(sorted(map(value_identity, value))).encode())

    def _buffer(self, value: bytes | bytearray) -> None:
        self._word(type(value).__name__, bytes(value))

    def _view(self, value: memoryview) -> None:
        self._word("format", f"{value.format} {value.shape}".encode())
        self._word("memoryview", value.tobytes())

    def _array(self, value: NDArray[np.generic]) -> None:
        if value.dtype.hasobject or value.dtype.kind in "mM":
            self._word("dtype", str(value.dtype).encode())
            self._word("shape", repr(value.shape).encode())
            self.value(value.ravel().tolist() if value.dtype.hasobject else value.tobytes())
            return
        self._word("dtype", repr(value.dtype.descr if value.dtype.names else value.dtype.str).encode())
        self._word("shape", repr(value.shape).encode())
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        self.digest.update(data.data)

    def _tensor(self, value: torch.Tensor) -> None:
        import torch

        self._word("tensor", f"{type(value)} {value.dtype} {value.requires_grad} {value.device}".encode())
        self._word("shape", repr(tuple(value.shape)).encode())
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        self.digest.update(flat.data)

    def _future(self, value: Future) -> None:
        if value._identity:
            self._word("future", value._identity.encode())
        elif value._task_key:
            self._word("future", value._task_key.rpartition(KEPT_MARK)[2].encode())
        else:
            self._word("unknown", uuid.uuid4().bytes)

    def _task(self, value: TaskFunction[..., object]) -> None:
        self.value(value.source)
        around = value.surroundings
        self.value([] if around is None else [sorted(around.env.items()), around.seed])

    def _source(self, value: FunctionSource) -> None:
        for part in value.parts():
            self.value(part)
        value.current()  # before the first time it has no key
        self._word("parts", value.model_key[-2:].encode())

    def _function(self, value: types.FunctionType) -> None:
        self._word("def", f"{value.__module__}.{value.__qualname__}".encode())
        self.value(value.__code__)
        self.value(value.__defaults__)
        self.value(value.__kwdefaults__)
        if travels_by_name(value) or _wrapped_by_name(value):
            self._word("module", _module_digest(value.__module__))
        else:
            names = value.__globals__
            self.value([(name, names[name]) for name in sorted(used_names(value.__code__)) if name in names])
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            self.value(content)

    def _code(self, value: types.CodeType) -> None:
        self._word("code", value.co_code)
        self.value([value.co_names, value.co_varnames, value.co_freevars, value.co_argcount, value.co_kwonlyargcount])
        self.value(value.co_consts)

    def _method(self, value: types.MethodType) -> None:
        self.value(value.__func__)
        self.value(value.__self__)

    def _builtin(self, value: types.BuiltinFunctionType) -> None:
        owner = getattr(value, "__self__", None)
        self._word("builtin", f"{value.__module__}.{value.__qualname__}".encode())
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.value(owner)

    def _module(self, value: types.ModuleType) -> None:
        self._word("import", value.__name__.encode())

    def _class(self, value: type) -> None:
        self._word("class", f"{value.__module__}.{value.__qualname__}".encode())
        if travels_by_name(value):
            self._word("module", _module_digest(value.__module__))
            return
        for base in value.__bases__:
            self.value(base)
        for name, member in sorted(vars(value).items()):
            if name not in _CLASS_OWN and not isinstance(member, _DESCRIPTORS):
                self.value([name, member])

    def _wrapper(self, value: property | classmethod[object, ..., object] | staticmethod[..., object]) -> None:
        self._word(type(value).__name__, b"")
        self.value([value.fget, value.fset, value.fdel] if isinstance(value, property) else value.__func__)

    def _object(self, value: object) -> None:
        """Read an object by what pickle would keep of it."""
        if isinstance(value, type):
            self._class(value)
            return
        reduce = dispatch_table.get(type(value))
        parts = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(parts, str):
            self._word("global", f"{type(value).__module__}.{parts}".encode())
            return
        self._word("object", str(len(parts)).encode())
        self._held.append(parts)
        for part in itertools.islice(parts, 3):
            self.value(part)
        for rest in parts[3:5]:
            self.value(None if rest is None else list(rest))


_CLASS_OWN = frozenset(
    ("__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__",
     "__abstractmethods__", "_abc_impl", "__annotations__", "__annotate__", "__annotate_func__",
     "__annotations_cache__", "__dataclass_fields__", "__dataclass_params__")
)  # fmt: skip
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)

_readers: dict[type, Callable[..., None]] = {
    list: _Reader._items,
    tuple: _Reader._items,
    dict: _Reader._mapping,
    types.MappingProxyType: _Reader._mapping,
    set: _Reader._set,
    frozenset: _Reader._set,
    bytearray: _Reader._buffer,
    memoryview: _Reader._view,
    np.ndarray: _Reader._array,
    Future: _Reader._future,
    TaskFunction: _Reader._task,
    FunctionSource: _Reader._source,
    types.FunctionType: _Reader._function,
    types.CodeType: _Reader._code,
    types.MethodType: _Reader._method,
    types.BuiltinFunctionType: _Reader._builtin,
    types.ModuleType: _Reader._module,
    type: _Reader._class,
    staticmethod: _Reader._wrapper,
    classmethod: _Reader._wrapper,
    property: _Reader._wrapper,
}


def read_as_future(kind: type) -> None:
    """Register a type whose values are read as futures are."""
    _readers[kind] = _Reader._future


def _wrapped_by_name(function: types.FunctionType) -> bool:
    """Return whether a task of an importable module stands under the name of this function."""
    found = getattr(sys.modules.get(function.__module__), function.__name__, None)
    return function.__module__ != "__main__" and isinstance(found, TaskFunction) and found.source.callable is function


@lru_cache(maxsize=1024)
def _module_digest(name: str) -> bytes:
    """Return the digest of a module's file; that of its name for one of Python's own or installed."""
    module, own = sys.modules.get(name), name.partition(".")[0] in sys.stdlib_module_names
    file = None if module is None or own else inspect.getsourcefile(module)
    if file is None or f"{os.sep}site-packages{os.sep}" in file:
        return name.encode()
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=12).digest()
