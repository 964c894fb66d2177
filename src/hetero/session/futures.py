"""Futures: what a submitted task will give, and a data item for as long as somebody wants it; and arguments with them.

In: the driver's word that a task was committed or failed. Out: the value, loaded once, or the task's exception.
It must not schedule anything, and must not call users' code from the driver's threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import types
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import numpy as np

from hetero.drive.frame import Frame, current, starter
from hetero.drive.loop import LOGS_S
from hetero.engines.base import ItemRef
from hetero.engines.shared.exceptions import add_note
from hetero.floor.containers import contents, is_container, rebuild
from hetero.floor.errors import (
    BadValueError,
    HeteroError,
    NothingFitsError,
    OutOfDeviceMemoryError,
    RemoteTracebackError,
    SerialisationError,
    TaskCancelledError,
    TaskLostError,
    TaskTimeoutError,
)
from hetero.model.tasks import Failure
from hetero.session.signature import Described, register

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from hetero.drive.live import Driver
    from hetero.session.tasks import TaskFunction

    R = TypeVar("R", default=Any)
else:
    from typing import TypeVar

    R = TypeVar("R")
"""What a future gives; anything where nobody says."""

__all__ = ["Bound", "Future", "Owner", "R", "RaisingFuture", "bind", "exception_of", "refuse_held"]

_PENDING = "PENDING"
_FINISHED = "FINISHED"
_CANCELLED = "CANCELLED_AND_NOTIFIED"
_UNKNOWN: Described = ("future", 0.0)

_ERRORS: dict[str, type[HeteroError]] = {
    "crash": TaskLostError,
    "timeout": TaskTimeoutError,
    "out_of_memory": OutOfDeviceMemoryError,
    "unserialisable": SerialisationError,
    "missing_package": HeteroError,
    "cancelled": TaskCancelledError,
    "nothing_fits": NothingFitsError,
    "exception": HeteroError,
}


class Owner(Protocol):
    """The Context of a future, as far as a future knows it.

    Attributes
    ----------
    held
        The thread whose callbacks must not wait for the devices, and what holds them until it returns.
    """

    driver: Driver
    held: tuple[int, str] | None

    def _let_go(self, item: int) -> None:
        """Record that nobody holds an item any more."""
        ...

    def _call_soon(self, function: Callable[[], object]) -> None:
        """Call a function from the Context's own thread for users' callbacks."""
        ...


def refuse_held(held: tuple[int, str] | None, what: str) -> None:
    """Refuse what would never end: waiting for devices in the very thread that gives them back.

    Raises
    ------
    BadValueError
        This thread is the one that is waited for.
    """
    if held is not None and held[0] == threading.get_ident():
        raise BadValueError(
            f"{held[1]} holds the devices of this Context, and a callback of it cannot {what}",
            remedy="do it after fit(1) in a loop, or in a Context of its own",
        )


class RaisingFuture(concurrent.futures.Future[R]):
    """A future that raises its exception also where that counts as false, as one with a length of 0 does.

    Python 3.11's own takes such a one for none.
    """

    def result(self, timeout: float | None = None) -> R:
        """Return the value, waiting for it, or raise the exception."""
        error = super().exception(timeout)
        if error is None:
            return super().result(0)
        try:
            raise error
        finally:
            del error, self  # else the frame in its traceback would keep both alive


class Future(RaisingFuture[R]):
    """The result of a task, or a value that was put, on whichever device it lies.

    It works wherever a `concurrent.futures.Future` does, and can be awaited. Given as an argument to another
    task, also inside containers, it makes that task wait for this one, and the value goes from
    device to device without passing through the program.

    Attributes
    ----------
    task_id
        Id of the task, None for a value that was put.
    name
        The function's name.

    Notes
    -----
    The value is brought into the program when it is first asked for. A task's own exception comes as itself,
    with the remote traceback as its cause. `cancel` also stops a task that is running.

    Examples
    --------
    >>> import hetero
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
    ...     future = ctx.submit(abs, -1)
    ...     ctx.run(pow, future, 2), future.name, future.done()
    (1, 'abs', True)
    """

    def __init__(self, owner: Owner, item: int, name: str, is_task: bool = True) -> None:
        super().__init__()
        self._mutex = self._condition._lock  # type: ignore[attr-defined]
        self.owner = owner
        self.item = item
        self.name = name
        self.task_id = item if is_task else None
        self._described = _UNKNOWN  # the value's part of a signature
        self._task_key = ""  # names the checkpoints that are dropped once the value is there, '' for none
        self._identity = ""  # digest of the bytes of a value that was put in a run with a name, else ''
        self._spare_running = False  # True where `cancel` leaves a running task alone, as concurrent.futures does
        # the exception to raise for one that the task failed with, which is told whether the value was there
        self._reworded: Callable[[BaseException, bool], BaseException] | None = None
        # called once, by whoever ends the future, before those that wait for it; must not wait
        self._ended: Callable[[], object] | None = None
        # the task and its arguments where it can be cut into parts
        self._cut: tuple[TaskFunction[..., object], tuple[object, ...], Mapping[str, object]] | None = None
        self._load: Callable[[], Any] | None = None

    def result(self, timeout: float | None = None) -> R:
        """Return the value, waiting for it if need be.

        Parameters
        ----------
        timeout
            Seconds, None to wait as long as it takes.

        Raises
        ------
        TimeoutError
            It was not there in time; the task goes on.
        concurrent.futures.CancelledError
            The task was cancelled.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.submit(abs, -1).result(timeout=10)
        1
        """
        if self._state == _PENDING:
            self._wait(timeout)
        if self._load is not None:
            self._fetch()
        if self._state == _FINISHED and self._exception is None:
            return self._result  # type: ignore[return-value]  # it is there: None is a value like others
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception that the task raised, or None, waiting for its end if need be.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.submit(int, "one").exception()
        ValueError("invalid literal for int() with base 10: 'one'")
        """
        if self._state == _PENDING:
            self._wait(timeout)
        if self._load is not None and not self._condition._is_owned():  # type: ignore[attr-defined]
            self._fetch()
        return super().exception(0)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call a function with this future once it has ended, from the Context's own thread.

        Examples
        --------
        >>> import hetero, threading
        >>> ended = threading.Event()
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.submit(abs, -1).add_done_callback(lambda future: ended.set())
        >>> ended.wait(10)
        True
        """
        super().add_done_callback(fn)

    def running(self) -> bool:
        """Return whether the task was given to a device and has not ended.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     future = ctx.submit(abs, -1)
        ...     future.result(), future.running()
        (1, False)
        """
        return self._state == _PENDING and self.task_id is not None and self.owner.driver.has_started(self.item)

    def cancel(self) -> bool:
        """Stop the task, also while it runs; return True unless it had ended before.

        A call of a `hetero.tasks.Executor` that runs is left alone, as `concurrent.futures` does, and False returned.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     future = ctx.submit(abs, -1)
        ...     future.cancel()  # it has ended before
        False
        """
        if self._spare_running and self.running():
            return False
        with self._condition:
            if self._state != _PENDING:
                return self._state == _CANCELLED
            self._state = _CANCELLED
            self._tell_ended()
            for waiter in self._waiters:
                waiter.add_cancelled(self)
            self._condition.notify_all()
        self._invoke_callbacks()
        self.owner.driver.cancel(self.item, self._spare_running)
        return True

    def _has_failed(self) -> bool:
        """Return whether the task has failed or was cancelled."""
        return self._state == _CANCELLED or self._exception is not None

    def _committed(self, load: Callable[[], object]) -> None:
        """Record that the value is there; called by the driver, once."""
        with self._mutex:
            ends = self._state == _PENDING
            if ends:
                self._load = load
                self._end()
        if ends:
            self._invoke_callbacks()
        if self._task_key:
            self.owner._call_soon(self._drop_checkpoints)

    def _failed(self, failure: Failure) -> None:
        """Record that the task failed for good; called by the driver, once."""
        error = exception_of(failure, self.item, self.name)
        if self._reworded is not None:
            error = self._reworded(error, False)
        with self._condition:
            ends = self._state == _PENDING
            if ends:
                self._exception = error
                self._end()
        if ends:
            self._invoke_callbacks()

    def _reword(self, reworded: Callable[[BaseException, bool], BaseException]) -> None:
        """Set the function that rewords exceptions, and apply it to one that is already stored."""
        self._reworded = reworded
        if self._exception is not None:
            self._exception = reworded(self._exception, False)

    def _fail_like(self, other: Future) -> None:
        """Fail as another future has, since this task needs its value."""
        error = None if other.cancelled() else other.exception()
        if error is None:
            words = f"{self.name} needs task {other.item} ({other.name}), which was cancelled"
            self._failed(Failure("cancelled", words))
        else:
            self._failed(Failure("exception", str(error), error))

    def _drop_checkpoints(self) -> None:
        from hetero.drive.checkpoints import clear

        clear(self._task_key)

    def _abandoned(self) -> None:
        """Record that the Context was closed, so that a value which was not read cannot be any more."""
        with self._condition:
            if self._load is not None:
                self._load = self._gone

    def _forked(self, error: HeteroError) -> None:
        """Fail in a process that was forked: whoever would end this future lives in the other one."""
        self._condition = threading.Condition()
        self._mutex = self._condition._lock  # type: ignore[attr-defined]
        self._waiters.clear()
        self._done_callbacks.clear()  # type: ignore[attr-defined]
        if self._state == _PENDING or self._load is not None:
            self._load, self._exception, self._state = None, error, _FINISHED

    def _gone(self) -> NoReturn:
        raise HeteroError(
            f"the Context was closed before the value of task {self.item} ({self.name}) was read",
            remedy="read it before, or close with wait=True",
        )

    def _end(self) -> None:
        self._state = _FINISHED
        self._tell_ended()
        for waiter in self._waiters:
            if self._exception is None:
                waiter.add_result(self)
            else:
                waiter.add_exception(self)
        self._condition.notify_all()

    def _tell_ended(self) -> None:
        told, self._ended = self._ended, None
        if told is not None:
            told()

    def _invoke_callbacks(self) -> None:
        if self._done_callbacks:  # type: ignore[attr-defined]
            self.owner._call_soon(super()._invoke_callbacks)  # type: ignore[misc]

    def _wait(self, timeout: float | None) -> None:
        frame = current()
        if frame is not None and not self.done():
            self._refuse_task(frame)
        self._refuse_endless(timeout)
        with self._mutex:
            if self._state == _PENDING:
                if frame is None and (frame := starter()) is not None:
                    self._refuse_task(frame)
                self._condition.wait(timeout)
        if self._state == _PENDING:
            raise TimeoutError(f"task {self.item} ({self.name}) has not ended within {timeout:g} s")
        if self._load is None:
            self.owner.driver.logs.settle(LOGS_S)

    def _refuse_task(self, frame: Frame) -> NoReturn:
        raise BadValueError(
            f"task {frame.task} would wait for task {self.item} ({self.name}) and keep its device from running it",
            remedy="give the future to a task as an argument, or submit with hetero.current_context()",
        )

    def _refuse_endless(self, timeout: float | None = None) -> None:
        """Refuse to wait without a bound for what cannot begin before this thread goes on; see `refuse_held`."""
        held = getattr(self.owner, "held", None)
        if held is not None and timeout is None and not self.done():
            refuse_held(held, f"wait for task {self.item} ({self.name})")

    def _fetch(self) -> None:
        with self._mutex:
            load = self._load
            if load is None:
                return
            try:
                self._result = load()
            except (Exception, SystemExit) as error:  # noqa: BLE001  handed on by result() and exception()
                self._exception = error if self._reworded is None else self._reworded(error, True)
            self._load = None

    def __await__(self) -> Generator[object, None, R]:
        return self._awaited().__await__()

    async def _awaited(self) -> R:
        if self._state == _PENDING:
            if (frame := current() or starter()) is not None:
                self._refuse_task(frame)
            loop = asyncio.get_running_loop()
            ended = loop.create_future()
            self.add_done_callback(lambda _: _wake(loop, ended))
            try:
                await ended
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._load is not None:
            return await asyncio.to_thread(self.result)
        return self.result()

    def __reduce__(self) -> NoReturn:
        raise SerialisationError(
            f"the future of task {self.item} ({self.name}) cannot travel inside a function or an object",
            remedy="give it as an argument, or in a list, tuple, dict, set, named tuple or dataclass",
        )

    def __del__(self) -> None:
        owner = self.__dict__.get("owner")
        if owner is not None:
            owner._let_go(self.item)

    def __repr__(self) -> str:
        return f"<Future {self.item} {self.name}: {self._word()}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<code>{escape(self.name)}</code> task {self.item}: <b>{self._word()}</b>"

    def _word(self) -> str:
        if self._state == _PENDING:
            return "not finished"
        if self._state == _CANCELLED:
            return "cancelled"
        return f"failed, {type(self._exception).__name__}" if self._exception is not None else "finished"


def _wake(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(_end_wait, ended)


def _end_wait(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def exception_of(failure: Failure, task: int, name: str) -> BaseException:
    """Return the exception that a future raises for a failure of its task."""
    if failure.kind == "out_of_memory" and not _has_own_words(failure.payload):
        unfit = OutOfDeviceMemoryError(failure.message, remedy="raise memory_limit, or give the task split= and merge=")
        unfit.__cause__ = failure.payload if isinstance(failure.payload, BaseException) else None
        return unfit
    if isinstance(failure.payload, BaseException):
        error = failure.payload
        add_note(error, f"raised by task {task} ({name})", unless="raised by task ")
        return error
    return _ERRORS.get(failure.kind, HeteroError)(failure.message)


def _has_own_words(error: object) -> bool:
    """Return True for an exception that a task raised from another one, or that says what does not fit."""
    if issubclass(type(error), OutOfDeviceMemoryError):
        return True
    cause = getattr(error, "__cause__", None)
    return cause is not None and not isinstance(cause, RemoteTracebackError)


register(Future, lambda future: future._described)


class Bound(NamedTuple):
    """The arguments of one call, ready to travel.

    Attributes
    ----------
    args, kwargs
        As given, with an `ItemRef` for each future.
    refs
        Ids of the items.
    after
        Ids of those that are results of tasks.
    keep
        The futures.
    failed
        A future among them that has failed already, else None.
    """

    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    refs: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    keep: tuple[Future, ...] = ()
    failed: Future | None = None


_ONE_PASS = (
    types.GeneratorType,
    types.AsyncGeneratorType,
    types.CoroutineType,
    map,
    filter,
    zip,
    enumerate,
    reversed,
)
_REFUSED = frozenset(_ONE_PASS)
_PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None), np.ndarray})
_LOOKED_INTO = frozenset({list, tuple, dict, set, frozenset})
_MOST_LOOKED_INTO = 64


def _is_leaf(kind: type) -> bool:
    """Return whether values of a type are neither futures, nor refused, nor contain either."""
    return kind is not Future and kind not in _REFUSED and not is_container(kind)


def _all_leaves(values: Iterable[object]) -> bool:
    return all(map(_is_leaf, set(map(type, values)) - _PLAIN))


def _nothing_to_bind(values: Iterable[Any]) -> bool:
    """Return whether there are leaves only, also in a few plain containers; False where a quick look does not tell."""
    waiting = [values]
    for each in waiting:  # which grows meanwhile
        kinds = set(map(type, each)) - _PLAIN
        if not kinds:
            continue
        if kinds <= _LOOKED_INTO and len(waiting) <= _MOST_LOOKED_INTO:
            waiting.extend([value.values() if type(value) is dict else value for value in each if type(value) in kinds])
        elif not all(map(_is_leaf, kinds)):
            return False
    return True


def bind(
    name: str, args: tuple[object, ...], kwargs: Mapping[str, object], resolve: Callable[[Future], object]
) -> Bound:
    """Put references in place of futures, at any depth of lists, tuples, dicts, sets, named tuples and dataclasses.

    Parameters
    ----------
    name
        Of the function, for messages.
    resolve
        Gives an `ItemRef`, or the value of a future that belongs to another Context.

    Raises
    ------
    BadValueError
        A generator, or a container that contains itself.
    """
    if _nothing_to_bind(args) and (not kwargs or _nothing_to_bind(kwargs.values())):
        return Bound(args, kwargs)
    binder = _Binder(name, resolve)
    new_args = tuple([binder.replace(value, f"argument {i}") for i, value in enumerate(args, start=1)])
    new_kwargs = {word: binder.replace(value, f"argument {word}=") for word, value in kwargs.items()}
    futures = tuple(binder.found.values())
    return Bound(
        new_args,
        new_kwargs,
        tuple(binder.found),
        tuple([item for item, found in binder.found.items() if found.task_id is not None]),
        futures,
        next((found for found in futures if found._has_failed()), None),
    )


class _Binder:
    def __init__(self, name: str, resolve: Callable[[Future], object]) -> None:
        self.name = name
        self.resolve = resolve
        self.found: dict[int, Future] = {}
        self.open: set[int] = set()

    def replace(self, value: Any, place: str) -> object:
        kind = type(value)
        if kind is Future:
            return self._reference(value)
        if is_container(kind):
            return self._container(value, place)
        if kind is types.CoroutineType:
            raise BadValueError(
                f"{place} of {self.name} is a coroutine, which nobody has awaited",
                remedy="await it first, and give its result",
            )
        if kind in _REFUSED:
            raise BadValueError(
                f"{place} of {self.name} is a {kind.__name__}, which can be read only once and here only",
                remedy=f"give a list: list(…), or call ctx.map({self.name}, …) to run once an item",
            )
        return value

    def _reference(self, value: Future) -> object:
        reference = self.resolve(value)
        if type(reference) is ItemRef:
            self.found[reference.item] = value
        return reference

    def _container(self, value: object, place: str) -> object:
        if id(value) in self.open:
            raise BadValueError(
                f"{place} of {self.name} contains itself",
                remedy="a task cannot wait for its own argument: break the circle",
            )
        if _all_leaves(contents(value)):
            return value
        self.open.add(id(value))
        try:
            return rebuild(value, lambda item: self.replace(item, place))
        except RecursionError:
            raise BadValueError(f"{place} of {self.name} is nested too deeply", remedy="give flatter lists") from None
        finally:
            self.open.discard(id(value))
