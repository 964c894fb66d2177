"""How a value goes from one member of a group to another: in pieces of at most `communication.buffer_size`.

In: a value, or pieces in their order. Out: pieces, or the value. It must not know where a piece lies on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from hetero.engines.local.wire import LARGE_BYTES, dump, load
from hetero.floor.errors import SerialisationError

__all__ = ["Assembly", "Piece", "Talk", "Whole", "cut"]


class Talk(NamedTuple):
    """How group members talk.

    Attributes
    ----------
    pooled : True sends large arrays through the shared-memory pool, False everything inside messages
    piece_bytes : bytes; the most that one message carries of a large array
    """

    pooled: bool = True
    piece_bytes: int = 4_000_000


class Whole(NamedTuple):
    """A value on its way within one process."""

    value: Any


class Piece(NamedTuple):
    """A part of a value on its way.

    Attributes
    ----------
    head : of the first piece: the pickle and the bytes of each large buffer; None for the others.
        A pickle that is large itself is None there, and the first of the buffers.
    buffer, offset : which buffer it is a part of, and from which byte on
    left : pieces of this value that follow
    data : the bytes, or what stands for them on the way
    """

    head: tuple[bytes | None, tuple[int, ...]] | None
    buffer: int
    offset: int
    left: int
    data: Any


def cut(value: Any, piece_bytes: int) -> Iterator[Piece]:
    """Cut a value into pieces whose data are parts of its own memory.

    Raises
    ------
    SerialisationError
        The value cannot be pickled.

    Examples
    --------
    >>> [piece.data.nbytes for piece in cut(np.zeros(125_000), 400_000)]
    [400000, 400000, 200000]
    >>> [(piece.left, piece.data) for piece in cut("a word", 1000)]
    [(0, b'')]
    """
    try:
        body, buffers = dump(value)
    except Exception as error:
        raise SerialisationError(
            f"what is sent to another member cannot be pickled: {error}", remedy="send plain values or arrays"
        ) from error
    large = len(body) >= LARGE_BYTES
    if large:
        buffers.insert(0, memoryview(body))
    head = (None if large else body, tuple([buffer.nbytes for buffer in buffers]))
    if not buffers:
        yield Piece(head, 0, 0, 0, b"")
        return
    spans = [(number, at) for number, size in enumerate(head[1]) for at in range(0, size, piece_bytes)]
    for position, (number, at) in enumerate(spans, start=1):
        first = head if position == 1 else None
        yield Piece(first, number, at, len(spans) - position, buffers[number][at : at + piece_bytes])


class Assembly:
    """Puts one value together.

    Parameters
    ----------
    copy : copies what stands for the data of a piece into a buffer
    """

    def __init__(self, copy: Callable[[Any, memoryview], None]) -> None:
        self._copy = copy
        self._body: bytes | None = b""
        self._buffers: list[memoryview] = []

    def add(self, piece: Piece) -> bool:
        """Take the next piece; True when it was the last."""
        if piece.head is not None:
            self._body = piece.head[0]
            self._buffers = [np.empty(size, np.uint8).data for size in piece.head[1]]
        if self._buffers:
            self._copy(piece.data, self._buffers[piece.buffer][piece.offset :])
        return piece.left == 0

    def value(self) -> Any:
        """Return the value; its arrays are writable and shared with nobody."""
        return load(self._buffers.pop(0), self._buffers) if self._body is None else load(self._body, self._buffers)
