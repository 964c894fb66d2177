"""What a script has drawn, and where: what tells numbers for rows of a batch from others of as many by chance.

In: the shape of each draw, as it is here and as it is for the whole batch. Out: which draws are of one size whatever
the batch, and which one processes have drawn differently. It must not draw, nor talk to others.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from zlib import crc32

import torch
from torch import Tensor

__all__ = ["MOST_DRAWS", "DrawLog", "Drawn", "Place", "place_of_script"]

MOST_DRAWS = 256
_MOST_FIXED = 4096
_MOST_SEEN = 4096
_BITS = 0xFFFFFF  # that travel with gradients of float32, unchanged
_LIBRARIES = tuple(
    str(each) for path in (Path(torch.__file__).parent, Path(__file__).parents[1]) for each in (path, path.resolve())
)

Place = tuple[CodeType, int, int]
"""Code that draws, its instruction and its line."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A draw of this process.

    Attributes
    ----------
    words
        What was drawn and where.
    shape, whole
        As it is here, and for the whole batch.
    """

    words: str
    shape: tuple[int, ...]
    whole: tuple[int, ...]


class DrawLog:
    """The draws since the last exchange, and the shapes that have no rows of a batch, place by place.

    Attributes
    ----------
    is_compared
        Whether what is drawn now is compared with one device.
    new
        What is drawn in places that were not there while it was, and whose shapes do not tell the own rows.
    seen, seen_at
        A number, 0 for none, by the values that dropout without rows was given, and where the last of them was.

    Examples
    --------
    >>> log, place = DrawLog(), place_of_script()
    >>> log.fix("randn", (6, 3), place)
    >>> log.is_fixed("randn", (6, 3), place), log.is_fixed("randn", (7, 3), place)
    (True, False)
    """

    def __init__(self) -> None:
        self._recent: list[Drawn] = []
        self._known: set[tuple[str, CodeType, int]] = set()
        self.new: list[str] = []
        self.is_compared = True
        self.seen = 0.0
        self.seen_at = ""
        self._fixed: set[tuple[str, tuple[int, ...], CodeType | None, int]] = set()

    def add(
        self, name: str, shape: tuple[int, ...], whole: tuple[int, ...], place: Place | None, *, is_sure: bool = True
    ) -> None:
        """Record a draw of a function of torch's.

        Parameters
        ----------
        is_sure
            Whether its shape says which of its numbers belong to the own rows.
        """
        if place is not None and (self.is_compared or not is_sure):
            key = (name, place[0], place[1])
            if not self.is_compared and key not in self._known:
                self.new.append(f"torch.{name} of shape {shape} ({place[0].co_filename}, line {place[2]})")
            self._known.add(key)
        if len(self._recent) < MOST_DRAWS:
            where = "" if place is None else f" ({place[0].co_filename}, line {place[2]})"
            self._recent.append(Drawn(f"torch.{name} of shape {shape}{where}", shape, whole))

    def fix(self, name: str, shape: tuple[int, ...], place: Place | None) -> None:
        """Record a shape in which nothing is as many as the own rows."""
        if len(self._fixed) >= _MOST_FIXED:
            self._fixed.clear()
        self._fixed.add(_key(name, shape, place))

    def see(self, values: Tensor, place: Place | None) -> None:
        """Record values that something was drawn for alike in all processes: they must be the same in all."""
        some = values.detach().reshape(-1)
        some = some[:: max(1, len(some) // _MOST_SEEN)].to("cpu", torch.float64)
        length = float(torch.linalg.vector_norm(some))
        self.seen += 2.0 + float(torch.arange(1.0, len(some) + 1, dtype=torch.float64).sin() @ some) / (length or 1.0)
        self.seen_at = "" if place is None else f" ({place[0].co_filename}, line {place[2]})"

    def is_fixed(self, name: str, shape: tuple[int, ...], place: Place | None) -> bool:
        """Return whether so many numbers were drawn there when this process had another number of rows."""
        return _key(name, shape, place) in self._fixed

    def drop_last(self) -> None:
        """Forget a draw that another one stands for."""
        del self._recent[-1:]

    def begin(self) -> None:
        """Forget the draws until now, after an exchange."""
        self._recent.clear()
        self.seen, self.seen_at = 0.0, ""

    @property
    def codes(self) -> list[float]:
        """A number for each of the first draws as they are for the whole batch, then NaN."""
        codes = [_code(each.whole) for each in self._recent]
        return codes + [math.nan] * (MOST_DRAWS - len(codes))

    def first_apart(self, others: Sequence[Sequence[float]]) -> tuple[Drawn | None, bool]:
        """Return the first draw that another process has not drawn so, and whether it was taken for rows by mistake.

        Parameters
        ----------
        others
            The codes of each process.
        """
        for drawn, codes in zip(self._recent, zip(*others, strict=True), strict=False):
            if any(code != _code(drawn.whole) for code in codes):
                return drawn, drawn.shape != drawn.whole and _code(drawn.shape) in codes
        return None, False


def place_of_script() -> Place | None:
    """Return where the script, or a library other than torch, calls what draws; None where it does not."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_of_torch(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti, frame.f_lineno)


@lru_cache(maxsize=1024)
def _is_of_torch(filename: str) -> bool:
    return filename.startswith(_LIBRARIES)


def _key(name: str, shape: tuple[int, ...], place: Place | None) -> tuple[str, tuple[int, ...], CodeType | None, int]:
    return name, shape, None if place is None else place[0], 0 if place is None else place[1]


def _code(shape: tuple[int, ...]) -> float:
    return float(crc32(str(shape).encode()) & _BITS)
