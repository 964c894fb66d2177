"""`ctx.map`: items in chunks, so that a task is worth its dispatch.

In: a task and iterables. Out: an iterator of results in order. Chunks are sized by measured cost.
It must not hold more than the results that are not read yet.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetero.drive.frame import Frame, current
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import BadValueError, TaskLostError
from hetero.session.functions import FunctionSource
from hetero.session.futures import Future
from hetero.session.sharing import SharedOnce, is_large
from hetero.session.tasks import TaskFunction

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["ChunkRunner", "Results", "check_chunk", "chunk_size", "start_map"]

WORTH_S = 2e-3
"""Seconds that a chunk should be worth."""

CHUNKS_A_DEVICE = 4


class ChunkRunner:
    """Runs a function over the items of one chunk; gives the seconds of an item and the results."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def __call__(self, *columns: Sequence[object]) -> tuple[float, list[object]]:
        """Run the function over the columns' items."""
        begin, frame = monotonic_s(), current()
        if frame is not None and frame.depth == 0:
            items = zip(_marked(frame, columns[0]), *columns[1:], strict=False)
        else:
            items = zip(*columns, strict=False)
        results = [self.function(*each) for each in items]  # map() would end at a StopIteration
        return (monotonic_s() - begin) / max(1, len(results)), results


def _marked(frame: Frame, items: Sequence[object]) -> Iterator[object]:
    """Yield the items, and tell the task which of them runs: each has loops and checkpoints of its own."""
    for frame.item, item in enumerate(items):
        frame.loops = None
        yield item


def start_map(
    ctx: Context,
    task: TaskFunction[..., object],
    iterables: Sequence[Iterable[object]],
    chunk: int | str,
    timeout_s: float | None,
) -> Iterator[Any]:
    """Submit the chunks and give the iterator of their results."""
    check_chunk(chunk)
    if not iterables:
        raise BadValueError(f"map got no items for {task.name}", remedy=f"write ctx.map({task.name}, items)")
    columns = _columns(iterables)
    if not task.request.splittable:
        columns = _with_items(ctx, columns)
    length = min(map(len, columns))
    until_s = None if timeout_s is None else monotonic_s() + timeout_s
    results = Results(ctx, task, columns, length, until_s)
    results.start(chunk if isinstance(chunk, int) else None)
    return results


def check_chunk(chunk: int | str) -> None:
    """Raise BadValueError where the items of a chunk are neither a whole number from 1 nor 'auto'."""
    if chunk != "auto" and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise BadValueError(f"chunk={chunk!r} is not allowed", remedy="give 'auto' or a whole number from 1")


def chunk_size(item_s: float, left: int, devices: int) -> int:
    """Return the items of a chunk: worth 2 ms, but at least four chunks a device.

    Parameters
    ----------
    item_s
        Seconds, one item.
    left
        Items left.
    devices
        >= 1.

    Examples
    --------
    >>> chunk_size(1e-4, 10_000, 2), chunk_size(1e-6, 800, 2), chunk_size(0.1, 800, 2)
    (20, 100, 1)
    """
    worth = math.ceil(WORTH_S / max(item_s, 1e-9))
    return max(1, min(worth, left // (CHUNKS_A_DEVICE * devices)))


def _columns(iterables: Sequence[Iterable[object]]) -> list[Sequence[object]]:
    """Read the iterables as far as the shortest lasts: others may be without end."""
    if len(iterables) == 1 or all(isinstance(iterable, Sized) for iterable in iterables):
        return [_column(iterable) for iterable in iterables]
    for iterable in iterables:
        _refuse_no_items(iterable)
    rows = list(zip(*iterables, strict=False))
    return list(zip(*rows, strict=True)) or [() for _ in iterables]


def _with_items(ctx: Context, columns: list[Sequence[object]]) -> list[Sequence[object]]:
    """Put items in place of the large arrays that come more than once: they are the same for all, and read once."""
    once = SharedOnce(ctx)
    return [_with_shared(once, column) if once.shares and _holds_arrays(column) else column for column in columns]


def _holds_arrays(column: Sequence[object]) -> bool:
    return isinstance(column, list | tuple) and np.ndarray in set(map(type, column))


def _with_shared(once: SharedOnce, column: Sequence[object]) -> Sequence[object]:
    counts = Counter([id(value) for value in column if is_large(value)])
    return [once.future(value) if counts[id(value)] > 1 and is_large(value) else value for value in column]


def _refuse_no_items(iterable: object) -> None:
    if not isinstance(iterable, Iterable):
        raise BadValueError(
            f"map got a {type(iterable).__name__} for its items", remedy="give a list or another iterable"
        )


def _column(iterable: Iterable[object]) -> Sequence[object]:
    if isinstance(iterable, list | tuple | range) or (isinstance(iterable, np.ndarray) and iterable.ndim):
        return iterable  # type: ignore[return-value]
    _refuse_no_items(iterable)
    return list(iterable)


class _Part(NamedTuple):
    """The items from `begin` to `end` as one task; `chunked` where it gives a list of their results."""

    future: Future
    begin: int
    end: int
    chunked: bool


class Results(Iterator[Any]):
    """The results of a map, in order; closed or dropped half read, it stops the tasks that are left."""

    def __init__(
        self,
        ctx: Context,
        task: TaskFunction[..., object],
        columns: list[Sequence[object]],
        length: int,
        until_s: float | None,
    ) -> None:
        self._ctx = ctx
        self._task = task
        self._chunked: TaskFunction[..., object] | None = None
        self._columns = columns
        self._length = length
        self._until_s = until_s
        self._given = 0
        self._parts: deque[_Part] = deque()
        self._ready: deque[object] = deque()
        self._more = threading.Condition()
        self._waiting_for_probe = False
        self._trouble: Exception | None = None
        self._reading = False
        self._closed = False

    def start(self, size: int | None) -> None:
        """Submit everything, or, where the size is to be measured, one item a device."""
        in_callback = self._ctx._callbacks.is_own_thread  # which would hand in the rest, and may read the results first
        if size is None and (in_callback or not _can_be_chunked(self._task)):
            size = 1
        if size is not None:
            self._hand_in(size, self._length)
            return
        self._chunked = _chunked(self._task)
        probes = min(self._length, len(self._ctx.devices))
        self._waiting_for_probe = probes < self._length
        futures = [self._submit_chunk(i, i + 1) for i in range(probes)]
        self._given = probes
        if self._waiting_for_probe:
            for future in futures:
                future.add_done_callback(self._probed)

    def _probed(self, future: Future) -> None:
        """Submit the rest, once the first item has been measured."""
        with self._more:
            first, self._waiting_for_probe = self._waiting_for_probe, False
            if first and not self._closed:
                try:
                    item_s = 1.0 if future.cancelled() or future.exception() is not None else future.result()[0]
                    self._hand_in(chunk_size(item_s, self._length - self._given, len(self._ctx.devices)), self._length)
                except Exception as error:  # noqa: BLE001  told to the reader
                    self._trouble = error
            self._more.notify_all()

    def _hand_in(self, size: int, end: int) -> None:
        if size == 1 and self._chunked is None:
            self._parts.extend(self._submit_items(self._given, end))
        else:
            self._chunked = self._chunked or _chunked(self._task)
            for begin in range(self._given, end, size):
                self._submit_chunk(begin, min(begin + size, end))
        self._given = end

    def _submit_chunk(self, begin: int, end: int) -> Future:
        assert self._chunked is not None
        future = self._ctx._submit_call(self._chunked, tuple([column[begin:end] for column in self._columns]), {})
        self._parts.append(_Part(future, begin, end, chunked=True))
        return future

    def _submit_items(self, begin: int, end: int) -> list[_Part]:
        """Submit items one by one."""
        items = enumerate(itertools.islice(zip(*self._columns, strict=False), begin, end), begin)
        return [_Part(self._ctx._submit_call(self._task, each, {}), i, i + 1, chunked=False) for i, each in items]

    def __next__(self) -> object:
        self._reading = True
        if not self._ready:
            self._take()
        return self._ready.popleft()

    def _take(self) -> None:
        if not self._parts:
            self._await_probe()
        if self._trouble is not None:
            raise self._trouble
        if not self._parts:
            if self._waiting_for_probe:
                raise TimeoutError("map: the first results were not there in time")
            raise StopIteration
        part = self._parts.popleft()
        try:
            result = part.future.result(self._left_s())
        except TaskLostError as error:
            if part.end - part.begin > 1 and not self._ctx.closed:
                self._parts.extendleft(reversed(self._submit_items(part.begin, part.end)))
                return self._take()
            self.close()
            raise _lost(error, part) from error
        except StopIteration as error:  # which would end the loop that reads the results
            self.close()
            raise RuntimeError("generator raised StopIteration") from error
        except BaseException:
            part.future.cancel()
            self.close()
            raise
        self._ready.extend(result[1] if part.chunked else (result,))

    def _await_probe(self) -> None:
        """Wait until the rest was handed in, in vain or not, or the Context closed without the callback that does."""
        with self._more:
            while self._waiting_for_probe and not self._ctx.closed and self._left_s() != 0.0:
                self._more.wait_for(lambda: not self._waiting_for_probe, min(1.0, self._left_s() or 1.0))
            if self._waiting_for_probe and self._ctx.closed:
                self._ctx._refuse()

    def _left_s(self) -> float | None:
        return None if self._until_s is None else max(0.0, self._until_s - monotonic_s())

    def close(self) -> None:
        """Stop the tasks that are left."""
        with self._more:
            self._closed = True
            while self._parts:
                self._parts.popleft().future.cancel()

    def __del__(self) -> None:
        if self.__dict__.get("_reading"):
            self.close()


def _lost(error: TaskLostError, part: _Part) -> TaskLostError:
    """Return the error with the index of the item that ends its worker, or of those among which it is."""
    which = f"item {part.begin}" if part.end - part.begin == 1 else f"one of the items {part.begin} to {part.end - 1}"
    return TaskLostError(f"{which} of the map: {error.problem}", remedy=error.remedy)


def _can_be_chunked(task: TaskFunction[..., object]) -> bool:
    request, around = task.request, task.surroundings
    if around is not None and around.seed is not None:
        return False
    kernels = any(not callable(code) for code in task.source.implementations.values())
    return not (kernels or task.source.callable is None or request.devices > 1 or request.timeout_s or request.retries)


def _chunked(task: TaskFunction[..., object]) -> TaskFunction[..., object]:
    source = task.source
    if source.chunked is None:
        shipped = source.callable if source.shipped is None else source.shipped
        assert shipped is not None
        runners = {word: ChunkRunner(code) for word, code in source.implementations.items() if callable(code)}
        source.chunked = FunctionSource(ChunkRunner(shipped), runners, task.name, of=source)
    chunked: TaskFunction[..., object] = TaskFunction(source.chunked.callable, {"name": task.name}, source.chunked)
    chunked.request, chunked.surroundings = task.request, task.surroundings
    return chunked
