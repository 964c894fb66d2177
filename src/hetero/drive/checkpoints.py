"""Checkpoints as a running task uses them: checkpoint, restore, resumable loops.

In: calls from inside a task. Out: states on disk, below HETERO_HOME, under the key of the task's frame.
It must not decide when a task runs again; it only makes the next attempt shorter.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from hetero.drive.annotations import record_checkpoint
from hetero.drive.frame import Frame, current, kept_key
from hetero.floor import clock, settings
from hetero.floor.errors import BadValueError, HeteroError
from hetero.stores.checkpoints import Checkpoints
from hetero.stores.files import FileStore

__all__ = ["Resumable", "checkpoint", "clear", "restore", "resumable"]

T = TypeVar("T")

_ITSELF = object()
"""Stands for a checkpoint without a state."""


def checkpoint(name: str, state: object = _ITSELF) -> None:
    """Keep a state, durably, from which a later attempt of this task can go on.

    Parameters
    ----------
    name
        Any text; the same name replaces its own earlier state, other names stay beside it.
    state
        What `restore` will give; left out, the name itself, which says how far the task came.

    Raises
    ------
    BadValueError
        The name is empty or too long.
    HeteroError
        Called outside of a task, or the disk refuses.
    SerialisationError
        The state holds something that cannot be kept.

    Notes
    -----
    When the call returns, the state survives the death of the worker, of the program and of the machine:
    it was written to a temporary file, waited for, renamed, and the folder waited for. Values and NumPy arrays
    are kept without pickle; anything else by cloudpickle. The checkpoints of a task go when its result is
    committed. A task outside of a named run keeps its checkpoints until the program ends.

    Examples
    --------
    >>> def fit(data, epochs):
    ...     epoch, weights = hetero.restore() or (0, start(data))
    ...     while epoch < epochs:
    ...         weights, epoch = improve(weights, data), epoch + 1
    ...         hetero.checkpoint("epoch", (epoch, weights))
    ...     return weights
    """
    frame = _frame("checkpoint")
    key = _key(frame)
    if key:
        begun_s = clock.monotonic_s()
        nbytes = _kept().save(key, name, name if state is _ITSELF else state)
        record_checkpoint(frame, name, nbytes, begun_s)


def restore(name: str | None = None) -> Any:
    """Return the state of the last checkpoint of this task, written by this or an earlier attempt.

    Parameters
    ----------
    name
        The last checkpoint of this name; left out, the last of all.

    Returns
    -------
    Any
        the state; the name where the checkpoint had no state; None where there is no checkpoint

    Raises
    ------
    HeteroError
        Called outside of a task.

    Examples
    --------
    >>> import hetero
    >>> def count():
    ...     done = hetero.restore() or 0
    ...     hetero.checkpoint("counted", state=done + 1)
    ...     return hetero.restore()
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
    ...     ctx.run(count)
    1
    """
    key = _key(_frame("restore"))
    saved = _kept().last(key, name) if key else None
    return None if saved is None else saved.state


def resumable(items: Iterable[T], *, every: int = 1, state: object = None) -> Resumable[T]:
    """Loop over items so that a later attempt goes on after the last item that is known to be done.

    Parameters
    ----------
    items
        What to loop over; a later attempt must find the same items in the same order.
    every
        >= 1; the position is kept each time that so many items are done, and at the end of the loop.
    state
        What the loop builds up, kept with its position; read and write it as `.state` of the loop.

    Returns
    -------
    Resumable
        loop over it once

    Raises
    ------
    BadValueError
        The items cannot be looped over, or `every` is not a whole number from 1.
    HeteroError
        Called outside of a task.

    Notes
    -----
    An item is done when the loop asks for the next one. Only `.state` comes back in a later attempt, local
    variables do not. Loops may stand inside one another: the positions and states of all loops of the task
    are kept together, so they always belong to the same moment.

    Examples
    --------
    >>> def total(files):
    ...     loop = hetero.tasks.resumable(files, every=10, state=0)
    ...     for file in loop:
    ...         loop.state += count(file)
    ...     return loop.state
    """
    frame = _frame("resumable")
    if not isinstance(items, Iterable):
        raise BadValueError(f"{items!r} cannot be looped over", remedy="give a list, a range or another iterable")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise BadValueError(f"every={every!r} is not a whole number from 1", remedy="write it like every=10")
    return Resumable(_loops_of(frame), items, every, state)


def clear(task_key: str) -> None:
    """Drop the checkpoints of a task, or of a whole run where the key is that of a run; '' drops nothing."""
    if task_key:
        _kept().clear(kept_key(task_key))


class Resumable(Generic[T]):
    """A loop whose position and state are kept; made by `resumable`.

    Attributes
    ----------
    state
        What the loop builds up; assign to it or change it in place.
    done
        Number of items done.
    name
        Its place among the loops of the task.
    """

    def __init__(self, loops: _Loops, items: Iterable[T], every: int, state: object) -> None:
        self._loops = loops
        self._items = items
        self._every = every
        self.name = loops.open(self)
        self.done, self.state = loops.found.pop(self.name, (0, state))

    def __len__(self) -> int:
        """Return the number of items left."""
        if not isinstance(self._items, Sequence):
            raise TypeError(f"a loop over a {type(self._items).__name__} has no length")
        return max(0, len(self._items) - self.done)

    def __iter__(self) -> Iterator[T]:
        """Yield the items that are not known to be done, and keep the position as they get done."""
        kept = self.done
        for item in _after(self._items, self.done):
            self._loops.within.append(self)
            try:
                yield item
            finally:
                self._loops.within.remove(self)
            self.done += 1
            self._loops.forget_inside(self)
            if self.done % self._every == 0:
                self._loops.save()
                kept = self.done
        if kept != self.done:
            self._loops.save()


def _after(items: Iterable[T], done: int) -> Iterable[T]:
    if isinstance(items, Sequence):
        return (items[index] for index in range(done, len(items)))
    return itertools.islice(items, done, None)


class _Loops:
    """All loops of one attempt: where each stands, kept as one value.

    A loop is named by its place: the loops that it stands in with the item that each is at, and its number
    among the loops opened there. So the same call has the same name in every attempt.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._task_key = task_key = _key(frame)
        self.found: dict[str, tuple[int, object]] = (_kept().loops(task_key) if task_key else None) or {}
        self.within: list[Resumable[Any]] = []
        self._open: dict[str, Resumable[object]] = {}
        self._counts: dict[str, int] = {}

    def open(self, loop: Resumable[Any]) -> str:
        place = "".join(f"{each.name}@{each.done}/" for each in self.within)
        self._counts[place] = self._counts.get(place, 0) + 1
        name = f"{place}{self._counts[place]}"
        self._open[name] = loop
        return name

    def forget_inside(self, loop: Resumable[Any]) -> None:
        """Forget the loops that stood inside the item that is now done."""
        inside = "".join(f"{each.name}@{each.done}/" for each in self.within) + f"{loop.name}@{loop.done - 1}/"
        names: dict[str, Any]
        for names in (self._open, self.found, self._counts):
            for name in [each for each in names if each.startswith(inside)]:
                del names[name]

    def save(self) -> None:
        if self._task_key:
            positions = {name: (loop.done, loop.state) for name, loop in self._open.items()}
            begun_s = clock.monotonic_s()
            nbytes = _kept().save_loops(self._task_key, {**self.found, **positions})
            record_checkpoint(self._frame, "", nbytes, begun_s)


def _loops_of(frame: Frame) -> _Loops:
    if frame.loops is None:
        frame.loops = _Loops(frame)
    loops = frame.loops
    return loops


def _frame(word: str) -> Frame:
    frame = current()
    if frame is None:
        remedy = f"call hetero.{word} inside a function that runs as a task"
        raise HeteroError(f"{word}() works only inside a task", remedy=remedy)
    return frame


def _key(frame: Frame) -> str:
    """Return the key of the frame's checkpoints; each member of a group task, and each item of a map, has its own."""
    key = kept_key(frame.task_key)
    if key and frame.item >= 0:
        key = f"{key}/item{frame.item}"
    return f"{key}/rank{frame.channel.rank}" if key and frame.channel is not None else key


def _kept() -> Checkpoints:
    return Checkpoints(FileStore(settings.home() / "checkpoints", own_only=True))
