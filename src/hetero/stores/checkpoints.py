"""Checkpoints at rest: the state of a task as bytes, and where a store keeps it.

In: a task's key, a name and a state. Out: the state of the last sound checkpoint.
It must not know what a task is, nor when to write.
"""

from __future__ import annotations

import json
import re
import tokenize
import warnings
from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from hetero.floor.errors import BadValueError, FileError, HeteroError, SerialisationError
from hetero.stores.base import Store

__all__ = ["Checkpoints", "Saved", "decode_state", "encode_state"]

_MAGIC = b"hetero-state 1\n"
_LOOPS = "loops"
_NUMBERED = re.compile(r"(\d{8,})\.([A-Za-z0-9_-]+)")
_MAX_NAME = 180
_MAX_BITS = 10_000
"""Longer whole numbers are more digits than Python reads from text."""


class Saved(NamedTuple):
    """A checkpoint that was found: its name and its state."""

    name: str
    state: object


class Checkpoints:
    """The checkpoints of all tasks, in a store.

    Notes
    -----
    Keys are TASK/NUMBER.NAME: a higher number was written later, so the last checkpoint is found without
    reading the others. A name written again replaces itself, the new one first. The positions of a task's
    loops are one value, TASK/loops.

    Examples
    --------
    >>> import tempfile
    >>> from hetero.stores.files import FileStore
    >>> kept = Checkpoints(FileStore(tempfile.mkdtemp()))
    >>> nbytes = kept.save("run/7", "epoch", {"step": 3})
    >>> kept.last("run/7")
    Saved(name='epoch', state={'step': 3})
    >>> kept.clear("run/7")
    >>> kept.last("run/7") is None
    True
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def save(self, task_key: str, name: str, state: object) -> int:
        """Keep a state as the last checkpoint of the task; return its bytes.

        Raises
        ------
        BadValueError
            The name is not a word, or too long.
        SerialisationError
            The state cannot be kept.
        """
        folder, word = _escape_path(task_key), _escape(name)
        found = self._numbered(folder)
        number = found[-1][0] + 1 if found else 1
        data = encode_state(state)
        self._store.put(f"{folder}/{number:08d}.{word}", data)
        for older, other, key in found:
            if other == word and older < number:
                self._store.delete(key)
        return len(data)

    def last(self, task_key: str, name: str | None = None) -> Saved | None:
        """Return the last checkpoint, or the last of that name, None where there is none.

        A damaged one is left out, with a warning, in favour of the one before it. Where one was replaced by a
        newer one since the names were listed, they are listed again.
        """
        wanted, folder, damaged = None if name is None else _escape(name), _escape_path(task_key), set[str]()
        while True:
            found = [row for row in self._numbered(folder) if wanted in (None, row[1]) and row[2] not in damaged]
            if not found:
                return None
            _, word, key = found[-1]
            saved = self._read(key, damaged)
            if saved is not None:
                return Saved(_unescape(word), saved[0])

    def save_loops(self, task_key: str, positions: object) -> int:
        """Keep the positions and states of the task's loops; return their bytes."""
        data = encode_state(positions)
        self._store.put(f"{_escape_path(task_key)}/{_LOOPS}", data)
        return len(data)

    def loops(self, task_key: str) -> Any:
        """Return the positions and states of the task's loops, None where there are none."""
        saved = self._read(f"{_escape_path(task_key)}/{_LOOPS}", set())
        return None if saved is None else saved[0]

    def clear(self, task_key: str) -> None:
        """Drop every checkpoint of a task, or of a whole run where the key is that of a run."""
        for key in self._store.list(f"{_escape_path(task_key)}/"):
            self._store.delete(key)

    def _numbered(self, folder: str) -> list[tuple[int, str, str]]:
        found = []
        for key in self._store.list(f"{folder}/"):
            match = _NUMBERED.fullmatch(key[len(folder) + 1 :])
            if match is not None:
                found.append((int(match[1]), match[2], key))
        return sorted(found)

    def _read(self, key: str, damaged: set[str]) -> tuple[object] | None:
        """Return what a key holds; None where it is gone, or damaged, which is noted."""
        try:
            data = self._store.get(key)
        except HeteroError as error:
            damaged.add(key)
            warnings.warn(f"a checkpoint is left out: {error}", stacklevel=2)
            return None
        return None if data is None else (decode_state(data),)


def _escape(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise BadValueError(f"{name!r} is not the name of a checkpoint", remedy="give a word, as 'epoch'")
    word = re.sub(
        r"[^A-Za-z0-9-]",
        lambda match: "".join(f"_{byte:02x}" for byte in match[0].encode(errors="surrogatepass")),
        name,
    )
    if len(word) > _MAX_NAME:
        raise BadValueError(f"the name of a checkpoint is too long: {name[:40]!r}…", remedy="use at most 60 characters")
    return word


def _escape_path(task_key: str) -> str:
    return "/".join(_escape(part) for part in task_key.split("/"))


def _unescape(word: str) -> str:
    def text(match: re.Match[str]) -> str:
        return bytes.fromhex(match[0].replace("_", "")).decode(errors="surrogatepass")

    return re.sub(r"(?:_[0-9a-f]{2})+", text, word)


class _NotPlainValueError(Exception):
    """The state holds something that only pickle can keep."""


def encode_state(state: object) -> bytes:
    """Write a state as bytes.

    Notes
    -----
    None, truth values, numbers, text, bytes, lists, tuples, dicts, sets, NumPy scalars and NumPy arrays, in any
    nesting, are written as JSON with the arrays beside it in NumPy's own format: nothing in them is code.
    A state that holds anything else, or the same list, dict or array in two places, is written whole by
    cloudpickle, so that what was shared stays shared.

    Raises
    ------
    SerialisationError
        The state holds something that cannot be kept, such as an open file.

    Examples
    --------
    >>> decode_state(encode_state({"step": 3, ("a", 1): np.arange(2.0)}))
    {'step': 3, ('a', 1): array([0., 1.])}
    """
    writer = _Writer()
    try:
        tree = writer.tree(state)
    except (_NotPlainValueError, RecursionError):
        writer = _Writer()
        tree = {"pickle": writer.block(_pickled(state))}
    head = json.dumps({"tree": tree, "blocks": [len(block) for block in writer.blocks]}).encode()
    return b"".join([_MAGIC, len(head).to_bytes(8, "little"), head, *writer.blocks])


def decode_state(data: bytes) -> object:
    """Read what `encode_state` wrote.

    Raises
    ------
    FileError
        The bytes are of another version, or damaged.
    """
    start = len(_MAGIC)
    if data[:start] != _MAGIC:
        raise FileError("a checkpoint was written by another version of hetero", remedy="use another run name")
    end = start + 8 + int.from_bytes(data[start : start + 8], "little")
    try:
        head = json.loads(data[start + 8 : end])
        blocks, view = [], memoryview(data)
        for length in head["blocks"]:
            blocks.append(view[end : end + length])
            end += length
        return _read_tree(head["tree"], blocks)
    except _DAMAGED as error:
        problem = f"a checkpoint is damaged ({type(error).__name__})"
        raise FileError(problem, remedy="clear the run's checkpoints, or go on from an earlier one") from error


_DAMAGED = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError, MemoryError,
    SyntaxError, tokenize.TokenError,
)  # fmt: skip
"""What reading a state raises whose bytes were changed; NumPy reads the head of an array as Python."""


def _pickled(state: object) -> bytes:
    try:
        return bytes(cloudpickle.dumps(state))
    except Exception as error:
        problem = f"the state of a checkpoint, a {type(state).__name__}, cannot be kept: {error}"
        raise SerialisationError(problem, remedy="give values, arrays or objects that can be pickled") from error


def _unpickled(block: memoryview) -> object:
    try:
        return cloudpickle.loads(block)
    except Exception as error:
        problem = f"a checkpoint cannot be read any more: {type(error).__name__}: {error}"
        raise SerialisationError(
            problem, remedy="restore the code that wrote it, or clear the run's checkpoints"
        ) from error


class _Writer:
    """Turns a plain state into JSON values; arrays and bytes go into blocks beside it."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self._met: set[int] = set()

    def block(self, data: bytes) -> int:
        self.blocks.append(data)
        return len(self.blocks) - 1

    def tree(self, value: Any) -> object:
        kind = type(value)
        if value is None or kind in (bool, float, str) or (kind is int and value.bit_length() < _MAX_BITS):
            return value
        if kind in (list, dict, set, np.ndarray):
            if id(value) in self._met:
                raise _NotPlainValueError
            self._met.add(id(value))
        write = _WRITERS.get(kind)
        if write is not None:
            return write(self, value)
        if isinstance(value, np.generic) and _is_plain(value.dtype):
            return {"scalar": self.block(_array_bytes(np.asarray(value)))}
        raise _NotPlainValueError

    def array(self, value: NDArray[np.generic]) -> object:
        if not _is_plain(value.dtype):
            raise _NotPlainValueError
        return {"array": self.block(_array_bytes(value))}


_WRITERS: dict[type, Callable[..., object]] = {
    list: lambda writer, value: [writer.tree(each) for each in value],
    tuple: lambda writer, value: {"tuple": [writer.tree(each) for each in value]},
    set: lambda writer, value: {"set": [writer.tree(each) for each in value]},
    frozenset: lambda writer, value: {"frozenset": [writer.tree(each) for each in value]},
    dict: lambda writer, value: {"dict": [[writer.tree(key), writer.tree(each)] for key, each in value.items()]},
    bytes: lambda writer, value: {"bytes": writer.block(value)},
    complex: lambda _, value: {"complex": [value.real, value.imag]},
    np.ndarray: _Writer.array,
}

_READERS: dict[str, Callable[..., object]] = {
    "tuple": lambda tree, blocks: tuple(_read_tree(each, blocks) for each in tree),
    "set": lambda tree, blocks: {_read_tree(each, blocks) for each in tree},
    "frozenset": lambda tree, blocks: frozenset(_read_tree(each, blocks) for each in tree),
    "dict": lambda tree, blocks: {_read_tree(key, blocks): _read_tree(each, blocks) for key, each in tree},
    "bytes": lambda tree, blocks: bytes(blocks[tree]),
    "complex": lambda tree, _: complex(*tree),
    "array": lambda tree, blocks: _read_array(blocks[tree]),
    "scalar": lambda tree, blocks: _read_array(blocks[tree])[()],
    "pickle": lambda tree, blocks: _unpickled(blocks[tree]),
}


def _read_tree(tree: object, blocks: list[memoryview]) -> object:
    if isinstance(tree, list):
        return [_read_tree(each, blocks) for each in tree]
    if isinstance(tree, dict):
        ((kind, content),) = tree.items()
        return _READERS[kind](content, blocks)
    return tree


def _is_plain(dtype: np.dtype[np.generic]) -> bool:
    return dtype.kind in "biufcSUmM" and dtype.names is None


def _array_bytes(value: NDArray[np.generic]) -> bytes:
    buffer = BytesIO()
    np.lib.format.write_array(buffer, value, allow_pickle=False)
    return buffer.getvalue()


def _read_array(block: memoryview) -> NDArray[np.generic]:
    array: NDArray[np.generic] = np.lib.format.read_array(BytesIO(block), allow_pickle=False)
    return array
