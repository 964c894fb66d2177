"""The `concurrent.futures.Executor` over a Context, for programs that know that interface.

In: submit, map, shutdown. Out: the Context's own futures.
It must not close a Context that somebody else opened, nor lose a call that was handed in.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from concurrent.futures.thread import BrokenThreadPool
from types import FunctionType
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from hetero.engines.shared.exceptions import UNREAD, dump_error, load_error, one_line
from hetero.engines.shared.wire import Message, as_bytes, load
from hetero.floor.errors import (
    BadValueError,
    HeteroError,
    NothingFitsError,
    SerialisationError,
    ShutDownRuntimeError,
    TaskLostError,
)
from hetero.session.futures import Future
from hetero.session.requests import TaskOptions
from hetero.session.tasks import TaskFunction, as_task

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext, SpawnProcess

    from hetero.session.context import Context

__all__ = ["Executor"]


class Executor(concurrent.futures.Executor):
    """An executor that runs its calls on the devices of a Context.

    Parameters
    ----------
    ctx
        The Context; None opens one of its own, which `shutdown` closes; a number is `max_workers`.
    max_workers
        At most so many calls run at a time; without a Context, and where nothing else names a fleet, so many CPU
        devices are opened.
    mp_context
        A start method of multiprocessing other than 'fork': workers are new processes.
    initializer, initargs
        Called by each worker before its first call, only without a Context.
    max_tasks_per_child
        Calls run in a process below the worker, which is replaced after so many.

    Notes
    -----
    As `concurrent.futures` does, and unlike a Context: a call that runs is not cancelled, calls that were handed in
    are done before the program ends, and after `shutdown` a RuntimeError is raised. A call whose worker ends fails
    with a BrokenProcessPool and is not run again, unless it is a `hetero.task`; the executor stays of use. Where no
    worker is left, as after an initializer that raises, it is broken: calls fail with a `BrokenPoolError`.

    Examples
    --------
    >>> import hetero
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx, hetero.tasks.Executor(ctx) as pool:
    ...     list(pool.map(abs, [-1, -2]))
    [1, 2]
    """

    def __init__(
        self,
        ctx: Context | int | None = None,
        *,
        max_workers: int | None = None,
        mp_context: BaseContext | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[object, ...] = (),
        max_tasks_per_child: int | None = None,
    ) -> None:
        if ctx is not None and not hasattr(ctx, "devices"):  # as concurrent.futures takes it
            if max_workers is not None:
                raise BadValueError(f"{ctx!r} is no Context, and max_workers={max_workers!r} is given beside it")
            ctx, max_workers = None, cast(int, ctx)
        given = cast("Context | None", ctx)
        _check(given, max_workers, mp_context, initializer, max_tasks_per_child)
        self._owns = given is None
        self.ctx: Context = _own_context(max_workers, initializer, initargs) if given is None else given
        ids = [device.id for device in self.ctx.devices]
        self._on = tuple(ids[:max_workers]) if max_workers is not None and max_workers < len(ids) else ()
        self._per_child = max_tasks_per_child or 0
        self._calls = _Calls(self.ctx, self._owns, self._on)
        weakref.finalize(self, self._calls.shut).atexit = False

    def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> concurrent.futures.Future[Any]:
        """Submit one call and return its future; one that cannot travel to a worker fails in its future.

        Raises
        ------
        ShutDownRuntimeError
            The executor is shut down, its Context is closed, or the program ends.
        BrokenPoolError
            No worker is left; the message says why.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx, ctx.executor() as pool:
        ...     pool.submit(abs, -1).result()
        1
        """
        try:
            return self._calls.submit(self._task(fn), args, kwargs)
        except SerialisationError as error:
            failed: concurrent.futures.Future[object] = concurrent.futures.Future()
            failed.set_exception(error)
            return failed

    def _task(self, fn: Callable[..., object]) -> TaskFunction[..., object]:
        """Return the call's task; for the same function the same one each time, so that nothing is checked again.

        Of what is no function, such as a method, nothing is kept, which a cycle would hold.
        """
        task = as_task(_InChild(fn, self._per_child) if self._per_child else fn)
        options: TaskOptions = {} if task is fn else {"crashes": 0}
        if self._on and not task.request.on:
            options["on"] = self._on
        if not options:
            return task
        source, known = task.source, task.source.pooled
        if known is not None and known[0] is task.request and known[1] == self._on:
            return known[2]
        made = task.options(**options)
        if isinstance(source.callable, FunctionType):
            source.pooled = (task.request, self._on, made)
        return made

    def map(
        self,
        fn: Callable[..., object],
        *iterables: Iterable[object],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Any]:
        """Return the results in order; `chunksize` items make a task.

        Raises
        ------
        BadValueError
            The chunk size is below 1.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx, ctx.executor() as pool:
        ...     list(pool.map(abs, [-1, -2], chunksize=2))
        [1, 2]
        """
        if chunksize < 1:
            raise BadValueError("chunksize must be >= 1.")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        chunks = _chunks(zip(*iterables, strict=False), chunksize)
        return itertools.chain.from_iterable(super().map(_Chunk(fn), chunks, timeout=timeout))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; wait for those handed in.

        Parameters
        ----------
        wait
            False returns at once; what was handed in is done all the same, before the program ends.
        cancel_futures
            True cancels the calls that do not run yet.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     pool = ctx.executor()
        ...     future = pool.submit(abs, -1)
        ...     pool.shutdown()
        ...     future.done()
        True
        """
        left = self._calls.shut()
        if cancel_futures:
            # where the workers still start, each has its first call already
            spared = 0 if any(future.running() for future in left) else len(self._on or self.ctx.devices)
            for future in left[spared:]:
                future.cancel()
        if wait:
            concurrent.futures.wait(left)
            self._calls.end()


class CallLostError(TaskLostError, BrokenProcessPool):
    """A worker ended during a call, or the call or its result could not be read; other calls go on."""


class BrokenPoolError(NothingFitsError, BrokenProcessPool, BrokenThreadPool):
    """No worker of an executor is left, in processes or in threads; the message says why for each."""


def _lost(error: BaseException, was_there: bool) -> BaseException:
    """Return what a process pool of the standard library raises in the place of an error of one call."""
    unread = not isinstance(error, HeteroError) or isinstance(error, SerialisationError)
    if isinstance(error, TaskLostError):
        lost = CallLostError(str(error))
    elif (was_there and unread) or UNREAD in getattr(error, "__notes__", ()):
        lost = CallLostError(f"a call or its result could not be read: {one_line(error)}")
    else:
        return error
    lost.__cause__ = error
    return lost


class _Calls:
    """The calls of one executor; outlives it until they are done.

    Parameters
    ----------
    on
        Ids of the devices that it uses, empty for all.
    """

    def __init__(self, ctx: Context, owns: bool, on: tuple[str, ...]) -> None:
        self.ctx = ctx
        self._owns = owns
        self._on = on
        self._left: dict[int, Future] = {}
        self._shut = False
        self._lock = threading.Lock()
        _open.add(self)
        atexit.unregister(_finish_all)  # what is registered last is called first, before the engine is stopped
        atexit.register(_finish_all)

    def submit(self, task: TaskFunction[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> Future:
        with self._lock:
            if self._shut:
                raise ShutDownRuntimeError(
                    "cannot schedule new futures after shutdown: this Executor is shut down",
                    remedy="make another one: hetero.tasks.Executor()",
                )
            if _ended.is_set():
                raise ShutDownRuntimeError("cannot schedule new futures after interpreter shutdown")
            try:
                future = self.ctx._submit_call(task, args, kwargs)
            except HeteroError as error:
                refusal = self._refusal(error)
                raise refusal from (None if refusal is error else error)
            future._spare_running = True
            self._left[future.item] = future
        future._reword(self._reworded)
        future._ended = functools.partial(self._ended, future.item)
        if future.done():
            self._ended(future.item)
        return future

    def _refusal(self, error: HeteroError) -> BaseException:
        """Return what an executor of the standard library raises where a call is not taken."""
        if not self.ctx.closed or self.ctx._is_forked:
            return self._reworded(error, False)
        return ShutDownRuntimeError(
            "cannot schedule new futures after shutdown: the Context of this Executor is closed",
            remedy="open another Context, and take its executor()",
        )

    def _reworded(self, error: BaseException, was_there: bool) -> BaseException:
        if not isinstance(error, NothingFitsError) or isinstance(error, BrokenPoolError) or not self._is_broken():
            return _lost(error, was_there)
        return BrokenPoolError(error.problem, remedy=error.remedy)

    def _is_broken(self) -> bool:
        there = {device.id for device in self.ctx.driver.present()}
        return not (there & set(self._on) if self._on else there)

    def _ended(self, item: int) -> None:
        self._left.pop(item, None)  # takes no lock: called wherever the future is told
        if self._shut and not self._left:
            self._end_soon()

    def _end_soon(self) -> None:
        """Close the Context from a thread of its own: those of the Context cannot wait for themselves."""
        if self._owns and self in _open:
            threading.Thread(target=self.end, name="hetero executor end", daemon=True).start()

    def shut(self) -> list[Future]:
        """Take no more calls; return those that are left."""
        with self._lock:
            first, self._shut = not self._shut, True
            left = list(self._left.values())
        if first and not left:
            self._end_soon()
        return left

    def end(self) -> None:
        """Close the Context where it is the executor's own; safe to call twice, and waits for who closes it."""
        if self._owns:
            with _closing:
                self.ctx.close()
        _open.discard(self)


_open: set[_Calls] = set()
_closing = threading.RLock()
_ended = threading.Event()


def _finish_all() -> None:
    """Do what was handed in before the program ends."""
    _ended.set()
    for calls in list(_open):
        concurrent.futures.wait(calls.shut())
        calls.end()


def _check(
    ctx: Context | None,
    max_workers: int | None,
    mp_context: BaseContext | None,
    initializer: Callable[..., object] | None,
    max_tasks_per_child: int | None,
) -> None:
    if isinstance(max_workers, bool) or not isinstance(max_workers, SupportsIndex | None):
        raise BadValueError(f"max_workers={max_workers!r} is not allowed", remedy="give a whole number, 1 or more")
    if max_workers is not None and max_workers <= 0:
        raise BadValueError("max_workers must be greater than 0")
    if initializer is not None and not callable(initializer):
        raise TypeError("initializer must be a callable")
    if initializer is not None and ctx is not None:
        raise BadValueError(
            "initializer= is of an executor's own workers, and this one uses those of a Context",
            remedy="give it to the Context: hetero.Context(options=hetero.tasks.ContextOptions(initializer=...))",
        )
    if mp_context is not None and not hasattr(mp_context, "get_start_method"):
        raise BadValueError(
            f"mp_context={mp_context!r} is not allowed", remedy="give multiprocessing.get_context('spawn') or none"
        )
    if mp_context is not None and mp_context.get_start_method(allow_none=False) == "fork":
        raise BadValueError(
            "workers are new processes and never forks of the program",
            remedy="give multiprocessing.get_context('spawn'), or leave mp_context out",
        )
    if max_tasks_per_child is not None and not isinstance(max_tasks_per_child, int):
        raise TypeError("max_tasks_per_child must be an integer")
    if max_tasks_per_child is not None and max_tasks_per_child <= 0:
        raise BadValueError("max_tasks_per_child must be >= 1")


def _own_context(
    max_workers: int | None, initializer: Callable[..., object] | None, initargs: tuple[object, ...]
) -> Context:
    from hetero.session.config import load
    from hetero.session.context import Context
    from hetero.session.fleet_build import most_cpu_devices
    from hetero.session.options import ContextOptions

    config = load()
    named = config.devices is not None or config.spec
    devices = None if max_workers is None or named else f"{min(max_workers, most_cpu_devices())}xcpu"
    return Context(devices=devices, options=ContextOptions(initializer=initializer, initargs=initargs))


def _chunks(items: Iterable[object], size: int) -> Iterator[tuple[object, ...]]:
    source = iter(items)
    while chunk := tuple(itertools.islice(source, size)):
        yield chunk


class _Chunk:
    """Calls a function for each item of a chunk, and goes by its name."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, chunk: Iterable[Iterable[object]]) -> list[object]:
        return [self.function(*items) for items in chunk]


class _InChild:
    """Calls a function in a process below the worker, which ends after so many calls."""

    def __init__(self, function: Callable[..., object], calls: int) -> None:
        self.function, self.calls = function, calls
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *args: object, **kwargs: object) -> object:
        child = _children.setdefault(self.calls, _Child(self.calls))
        well, *parts = child.answer(as_bytes((self.function, args, kwargs)))
        if not well:
            raise load_error(*parts)
        return load(*parts)


class _Child:
    """A process that makes one call after another and is replaced after so many."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._left = 0
        self._process: SpawnProcess | None = None
        self._line: Any = None

    def answer(self, packed: bytes) -> Message:
        if self._left == 0:
            self._replace()
        self._left -= 1
        assert self._process is not None
        self._line.send_bytes(packed)
        try:
            found: Message = self._line.recv()
        except (EOFError, ConnectionResetError) as error:
            self._left = 0
            self._process.join()
            raise concurrent.futures.BrokenExecutor(
                f"the process of the call ended with exit code {self._process.exitcode}"
            ) from error
        return found

    def _replace(self) -> None:
        import multiprocessing

        if self._process is not None:
            self._line.close()
            self._process.join()
        context = multiprocessing.get_context("spawn")
        self._line, end = context.Pipe()
        self._process = context.Process(target=_serve_calls, args=(end,), daemon=True)
        self._process.start()
        end.close()
        self._left = self._calls


_children: dict[int, _Child] = {}


def _serve_calls(line: Connection) -> None:
    while True:
        try:
            packed = line.recv_bytes()
        except EOFError:
            return
        line.send(_call_packed(packed))


def _call_packed(packed: bytes) -> tuple[object, ...]:
    try:
        function, args, kwargs = load(packed)
        return True, as_bytes(function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001  whatever a call raises is its own
        blob, text = dump_error(error)
        return False, blob, one_line(error), text
