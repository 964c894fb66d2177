"""Tasks that submit tasks: what `hetero.current_context()` gives inside a task.

In: functions and arguments. Out: futures. A nested task goes to any device of the fleet where the engine can do that
and it is worth the way; else it runs at once, in the worker of the task that submits it. Who waits gives the device up.
"""

from __future__ import annotations

import concurrent.futures
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import frexp
from typing import TYPE_CHECKING, Any, NoReturn
from zlib import crc32

import numpy as np

from hetero.core.obstacles import obstacle, refusal
from hetero.drive.frame import Frame, current, refuse_deeper, starter
from hetero.engines.base import Asked, Ended, Function, ItemRef, Spread
from hetero.engines.shared.exceptions import one_line
from hetero.floor import clock
from hetero.floor.containers import contents, is_container, rebuild
from hetero.floor.errors import BadValueError, HeteroError, NothingFitsError, OutOfDeviceMemoryError, SerialisationError
from hetero.session.futures import R, RaisingFuture, exception_of
from hetero.session.gathering import gather
from hetero.session.identity import call_identity, read_as_future
from hetero.session.mapping import check_chunk
from hetero.session.signature import describe, register
from hetero.session.tasks import TaskFunction, as_task

if TYPE_CHECKING:
    from concurrent.futures._base import _Waiter

    from hetero.model.device import Device
    from hetero.session.context import Context

__all__ = ["SHORT_S", "NestedFuture", "TaskContext", "current_context"]

SHORT_S = 2e-3
"""A nested task of a class whose runs take less than this, what they nest included, is not worth the way elsewhere."""

MIDDLE_S = 20e-3
"""One that takes less than this goes elsewhere only while few of its worker's are out: `OUT` for each other device.

One whose function submits tasks itself does not go at all: longer ones of these may go in its place.
"""

OUT = 2

_CLASSES = 4096

_Kind = tuple[str, float, int]
"""A class of nested tasks: signature, and size in steps of a tenth."""


class _Event(threading.Event):
    """An event that a task waits for by giving its device up: those of `concurrent.futures.wait` and its kin."""

    def __init__(self, spread: Spread) -> None:
        super().__init__()
        self._spread = spread

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set."""
        return self._spread.wait(self.is_set, timeout)


class _Waiters(list["_Waiter"]):
    """Those that wait for a nested future, by an event like that."""

    def __init__(self, spread: Spread) -> None:
        super().__init__()
        self._spread = spread

    def append(self, waiter: _Waiter) -> None:
        """Add one."""
        if not isinstance(waiter.event, _Event):
            waiter.event = _Event(self._spread)
        super().append(waiter)


class NestedFuture(RaisingFuture[R]):
    """The result of a nested task.

    Attributes
    ----------
    number
        By which the worker knows the task, 0 where it ran at once and has ended.
    """

    number = 0

    def __await__(self) -> NoReturn:
        raise BadValueError(
            "the future of a nested task cannot be awaited: its task waits in its own thread",
            remedy="call result(), or gather",
        )

    def __reduce__(self) -> NoReturn:
        raise SerialisationError("the future of a nested task cannot leave its task", remedy="return its result()")


class _SpreadFuture(NestedFuture):
    """The result of a nested task that may run on another device.

    Attributes
    ----------
    _task_key, _identity
        Name what it computes, as those of `hetero.session.futures.Future`.

    Notes
    -----
    Who waits for it, also by `concurrent.futures.wait` and `as_completed`, gives the device up meanwhile. Only the
    thread of the task that submitted it may.
    """

    _identity = ""

    def __init__(self, spread: Spread, name: str, task_key: str) -> None:
        super().__init__()
        self._task_key = task_key
        self._spread = spread
        self._name = name
        self._load: Callable[[], object] | None = None
        self._waiters = _Waiters(spread)

    def _end(self, ended: Ended) -> None:
        """Take the end of the task."""
        if ended.failure is not None:
            self.set_exception(exception_of(ended.failure, ended.task, self._name))
        else:
            self._load = ended.load
            self.set_result(None)

    def done(self) -> bool:
        """Return whether the task has ended; one that asks in a loop keeps its device, and may keep others waiting."""
        if not super().done() and self._is_inside():
            self._spread.poll()
        return super().done()

    def result(self, timeout: float | None = None) -> Any:
        """Return the value, waiting for it with the device given up."""
        self._await(timeout)
        load, self._load = self._load, None
        if load is not None:
            try:
                self._result = load()
            except Exception as error:  # noqa: BLE001  of reading the value, or of a device that was lost with it
                self._exception = error
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception that the task raised, or None, waiting for its end with the device given up."""
        self._await(timeout)
        return super().exception(0)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call a function with this future, which must have ended.

        Raises
        ------
        BadValueError
            It has not ended: while its task computes, nobody in the worker would learn of its end.
        """
        if not self.done():
            raise BadValueError(
                f"{self._name} has not ended, and a nested task calls nobody back",
                remedy="wait for it: result(), gather, concurrent.futures.wait or as_completed",
            )
        super().add_done_callback(fn)

    def cancel(self) -> bool:
        """Stop the task; True unless it had ended before."""
        if self.done():
            return self.cancelled()
        self._spread.cancel(self.number)
        super().cancel()
        self.set_running_or_notify_cancel()
        return True

    def _await(self, timeout: float | None) -> None:
        if super().done():
            return
        if not self._is_inside():
            raise BadValueError(
                f"another thread would wait for {self._name}, a nested task", remedy="wait in the task's own thread"
            )
        if not self._spread.wait(super().done, timeout, self.number):
            raise TimeoutError(f"{self._name} has not ended within {timeout:g} s")

    def _is_inside(self) -> bool:
        frame = current()
        return frame is not None and frame.spread is self._spread

    def __del__(self) -> None:
        if self.number:
            self._spread.release(self.number)


class TaskContext:
    """The verbs of a Context inside a task.

    Notes
    -----
    With the local engine, where all devices of the Context have processes of their own, a nested task is placed like
    any other. The task that waits for it gives its device up meanwhile, and what is nested in it runs there on top
    of it, others only where nothing would go on otherwise, so that nothing waits for ever. A task that returns waits
    for what it has submitted; when it fails, or is stopped, that is stopped; when it is lost with its worker, that is
    dropped, and a new attempt submits it again.

    A nested task runs at once in the worker of the task that submits it, its time a part of its parent's, where that
    is the only device that could run it, where its class is known to take less than two milliseconds, or less than 20
    where the function submits tasks itself or enough of them are out to keep the other devices at work, and always
    with the inline engine, on Ray, with worker threads, and in group tasks and exclusive ones. `retries` counts there
    as well; the death of the worker is then that of the parent where there is one device, else that of its class.

    Examples
    --------
    >>> import hetero
    >>> def both(a, b):
    ...     ctx = hetero.current_context()
    ...     return ctx.gather([ctx.submit(abs, a), ctx.submit(abs, b)])
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
    ...     ctx.run(both, -1, -2)
    [1, 2]
    """

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices to which nested tasks may go."""
        frame = _frame()
        return (frame.device,) if frame.spread is None else frame.spread.devices

    def submit(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> NestedFuture[R]:
        """Submit one call of a function and return its future.

        Raises
        ------
        NothingFitsError
            No device that it may go to can meet the request.
        SerialisationError
            The function or an argument cannot travel.
        BadValueError
            The request is one that only the program can make, or this is no task any more.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.run(lambda: hetero.current_context().submit(abs, -1).result())
        1
        """
        frame, task = _frame(), as_task(function)
        if frame.spread is None:
            _refuse(frame, task)
            return _ran(frame, task, args, kwargs)
        task.source.current()  # before the first time it has no key
        signature, size = describe(task.source.model_key, args, kwargs)
        mantissa, exponent = frexp(size)
        kind = (signature, round(mantissa, 1), exponent)
        if not _stays(frame.spread, frame, task, kind, args, kwargs):
            return _spread(frame.spread, frame, task, (args, kwargs), (signature, size, kind))
        begun_s, waits = clock.monotonic_s(), frame.spread.waits
        before = frame.spread.at_once(_mark(signature))
        try:
            future = _ran(frame, task, args, kwargs)
        finally:
            frame.spread.at_once(before)
        if frame.spread.waits == waits:  # else others may have run on top of it
            _note_time(kind, clock.monotonic_s() - begun_s, task.source.nests)
        return future

    def run(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> R:
        """Run one call of a function and return its result.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.run(lambda: hetero.current_context().run(abs, -1))
        1
        """
        return self.submit(function, *args, **kwargs).result()

    def map(
        self,
        function: Callable[..., R],
        /,
        *iterables: Iterable[object],
        chunk: int | str = "auto",
        timeout: float | None = None,
    ) -> Iterator[R]:
        """Run a function over the items and yield the results in order.

        Parameters
        ----------
        chunk
            As in the program; here each item is a task of its own.
        timeout
            Seconds from now within which each result must be there; a task that has begun at once is not stopped.

        Raises
        ------
        TimeoutError
            From the iterator: a result was not there in time. What is left is stopped then, as after an exception.

        Notes
        -----
        All are handed in at once where they may go to other devices, else each runs when its result is asked for.

        Examples
        --------
        >>> import hetero
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.run(lambda: list(hetero.current_context().map(abs, [-1, -2])))
        [1, 2]
        """
        check_chunk(chunk)
        until_s = None if timeout is None else clock.monotonic_s() + timeout
        items = zip(*iterables, strict=False)
        if _frame().spread is None:
            return _in_turn(functools.partial(self.run, function), items, until_s)
        return _results([self.submit(function, *each) for each in items][::-1], until_s)

    def put(self, value: R) -> NestedFuture[R]:
        """Return a future of a value, which nested tasks take as an argument.

        Examples
        --------
        >>> import hetero
        >>> def largest(values):
        ...     ctx = hetero.current_context()
        ...     return ctx.run(max, ctx.put(values))
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.run(largest, [3, 1, 2])
        3
        """
        future: NestedFuture[R] = NestedFuture()
        future.set_result(value)
        return future

    def gather(self, futures: object, *, return_exceptions: bool = False) -> list[Any]:
        """Return the values of futures as `Context.gather` does.

        Examples
        --------
        >>> import hetero
        >>> def absolutes(values):
        ...     ctx = hetero.current_context()
        ...     return ctx.gather([ctx.submit(abs, value) for value in values])
        >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...     ctx.run(absolutes, [-1, -2])
        [1, 2]
        """
        return gather(futures, return_exceptions)

    def __getattr__(self, name: str) -> NoReturn:
        from hetero.session.context import Context

        if hasattr(Context, name):
            raise BadValueError(
                f"{name} is not possible inside a task", remedy="there are submit, run, map, put and gather"
            )
        raise AttributeError(f"'TaskContext' object has no attribute {name!r}")

    def __repr__(self) -> str:
        frame = current()
        return "<hetero.tasks.TaskContext>" if frame is None else f"<hetero.tasks.TaskContext of task {frame.task}>"


_inside = TaskContext()


def current_context() -> Context | TaskContext:
    """Return the Context to submit to: inside a task the one of that task, in the program the one that is open.

    Raises
    ------
    BadValueError
        In the program, where none is open, or more than one.

    Examples
    --------
    >>> import hetero
    >>> def fib(n):
    ...     if n < 2:
    ...         return n
    ...     ctx = hetero.current_context()
    ...     left, right = ctx.submit(fib, n - 1), ctx.submit(fib, n - 2)
    ...     return left.result() + right.result()
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
    ...     ctx.run(fib, 10)
    55
    """
    if current() is not None or starter() is not None:
        _frame()
        return _inside
    from hetero.session.runs import open_contexts

    found = open_contexts()
    if len(found) != 1:
        raise BadValueError(
            f"{len(found) or 'no'} Context{'s are' if len(found) > 1 else ' is'} open",
            remedy="use the one that you opened: with hetero.Context() as ctx; in a task, submit from its own thread",
        )
    return found[0]


def _frame() -> Frame:
    frame = current()
    if frame is None or frame.inside is None:
        raise BadValueError("tasks can be nested only inside a running task, in its own thread", remedy="submit there")
    return frame


def _in_turn(run: Callable[..., R], items: Iterable[tuple[object, ...]], until_s: float | None) -> Iterator[R]:
    for each in items:
        if until_s is not None and clock.monotonic_s() > until_s:
            raise TimeoutError("map: the next result was not there in time")
        yield run(*each)


def _results(futures: list[NestedFuture[R]], until_s: float | None) -> Iterator[R]:
    try:
        while futures:
            value = futures[-1].result(None if until_s is None else max(0.0, until_s - clock.monotonic_s()))
            futures.pop()
            yield value
    finally:
        for each in futures:
            each.cancel()


_expected_s: dict[_Kind, float] = {}


def _note_time(kind: _Kind, seconds: float, nests: bool) -> None:
    """Learn how long a class of nested tasks takes; a single run that the system held up counts little.

    Where the function submits tasks itself the shortest run counts fully: what it waited for elsewhere made the others
    longer, and what is long in it may still go elsewhere.
    """
    known_s = _expected_s.get(kind)
    if known_s is None and len(_expected_s) >= _CLASSES:
        _expected_s.clear()
    share = 1.0 if known_s is None or (nests and seconds < known_s) else 0.25
    _expected_s[kind] = (known_s or 0.0) + share * (seconds - (known_s or 0.0))


def _stays(
    spread: Spread,
    frame: Frame,
    task: TaskFunction[..., object],
    kind: _Kind,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> bool:
    """Return whether a nested task runs at once in the worker of its parent."""
    request = task.request
    if request.near or request.apart:
        wrong = " and ".join(word for word in ("near=", "apart=") if getattr(request, word[:-1]))
        raise BadValueError(
            f"{task.name} is nested in another task, where {wrong} cannot be met", remedy="submit it from the program"
        )
    if request.devices > 1 or request.exclusive or request.timeout_s:
        return False
    able = _able(spread, task)
    if frame.device.id not in able or spread.is_deadly(_mark(kind[0])):
        return False
    if len(able) > 1 and not _is_short(spread, kind, MIDDLE_S if task.source.nests else SHORT_S, OUT * (len(able) - 1)):
        return False
    return len(able) == 1 or not any(_is_open(each) for each in (*args, *kwargs.values()))


@functools.lru_cache(_CLASSES)
def _mark(signature: str) -> int:
    """Return the number by which workers name a class of nested tasks to each other: never 0, for none."""
    return crc32(signature.encode(errors="replace")) + 1


def _is_short(spread: Spread, kind: _Kind, least_s: float, out: int) -> bool:
    """Return whether a nested task is not worth the way to another device, where so many at most shall be out."""
    expected_s = _expected_s.get(kind, MIDDLE_S)
    if least_s <= expected_s < MIDDLE_S and spread.out >= out:
        spread.poll()
        return spread.out >= out
    return expected_s < least_s


_known_able: dict[int, tuple[object, object, tuple[str, ...]]] = {}


def _able(spread: Spread, task: TaskFunction[..., object]) -> tuple[str, ...]:
    """Return the devices that can run a task."""
    request = task.request
    known = _known_able.get(id(request))
    if known is not None and known[0] is request and known[1] is spread:
        return known[2]
    obstacles = [(each.id, obstacle(each, request, each.memory_limit_bytes or None)) for each in spread.devices]
    able = tuple(name for name, reason in obstacles if not reason)
    if not able:
        problem = refusal(task.name, request, obstacles)
        raise NothingFitsError(problem, remedy="run 'hetero devices' to see what is here")
    if len(_known_able) >= _CLASSES:
        _known_able.clear()
    _known_able[id(request)] = (request, spread, able)
    return able


def _is_open(value: object) -> bool:
    """Return whether a value is, or holds, a nested future that has not ended."""
    if isinstance(value, NestedFuture):
        return not value.done()
    if not is_container(type(value)):
        return False
    return any(map(_is_open, contents(value)))


def _ran(frame: Frame, task: TaskFunction[..., object], args: object, kwargs: object) -> NestedFuture:
    """Run a nested task at once; return its future, which has ended."""
    source, future = task.source, NestedFuture()
    code = Function(f"{task.name} {len(source.implementations)}", task.name, source.callable, source.implementations)
    if task.surroundings is not None:
        code = task.surroundings.of(code)
    try:
        given, named = _taken(args), _taken(kwargs)
        child = frame.child(code.name, call_identity(task, given, named))
        try:
            future.set_result(_tried(child, code, given, named, task.request.retries))
        finally:
            source.nests = source.nests or child.children is not None
    except (Exception, SystemExit) as error:  # noqa: BLE001  handed on by result() and exception()
        raised: BaseException = error
        if error.__cause__ is None and not isinstance(error, HeteroError) and frame.backend.is_out_of_memory(error):
            problem = f"{task.name} does not fit into the memory of {frame.device.short}: {one_line(error)}"
            raised = OutOfDeviceMemoryError(problem, remedy="raise memory_limit, or give it less at a time")
            raised.__cause__ = error
        future.set_exception(raised)
    return future


def _spread(
    spread: Spread,
    frame: Frame,
    task: TaskFunction[..., object],
    call: tuple[object, object],
    described: tuple[str, float, _Kind],
) -> NestedFuture:
    """Hand a nested task in with the program; return its future."""
    refuse_deeper(frame.depth + 1)
    signature, size, kind = described
    numbers: list[int] = []
    failed = NestedFuture()
    try:
        known = tuple(_with_values(part) for part in call)
        args, kwargs = (_with_references(part, numbers) for part in known)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a future among the arguments has failed, and so does this
        failed.set_exception(error)
        return failed
    code = task.source.current()
    if task.surroundings is not None:
        code = task.surroundings.of(code)
    child = frame.child(code.name, call_identity(task, *known))
    future = _SpreadFuture(spread, task.name, child.task_key)
    whole = [future]

    def ended(end: Ended) -> None:
        if end.failure is None:
            _note_time(kind, end.seconds, task.source.nests)
        whole.pop()._end(end)

    asked = Asked(task.name, signature, size, task.request)
    future.number = spread.submit(
        code, asked, (args, kwargs), tuple(dict.fromkeys(numbers)), (child.task_key, child.nest), ended
    )
    return future


def _with_values(value: object) -> Any:
    """Return an argument with values for the futures whose values are here."""
    if isinstance(value, NestedFuture):
        return value if value.number else value.result()
    if isinstance(value, concurrent.futures.Future):
        return value.result()
    return rebuild(value, _with_values) if is_container(type(value)) else value


def _with_references(value: object, numbers: list[int]) -> object:
    """Return an argument with references for the futures of tasks that were handed in."""
    if isinstance(value, NestedFuture):
        if value.done() and (value.cancelled() or value.exception() is not None):
            value.result()
        numbers.append(value.number)
        return ItemRef(value.number)
    return rebuild(value, lambda each: _with_references(each, numbers)) if is_container(type(value)) else value


def _refuse(frame: Frame, task: TaskFunction[..., object]) -> None:
    request, device = task.request, frame.device
    reason = obstacle(device, request, device.memory_limit_bytes or None)
    if reason:
        raise NothingFitsError(
            f"{task.name} is nested in a task on {device.id}, and runs there or nowhere: {reason}",
            remedy="submit it from the program",
        )
    wishes: dict[str, object] = {"devices": request.devices > 1, "timeout": request.timeout_s}
    wishes |= {"exclusive": request.exclusive, "near": request.near, "apart": request.apart}
    wrong = [f"{option}=" for option, wish in wishes.items() if wish]
    if wrong:
        raise BadValueError(
            f"{task.name} is nested in another task, where {' and '.join(wrong)} cannot be met",
            remedy="submit it from the program, or give that to the outer task",
        )


def _tried(frame: Frame, code: Function, args: object, kwargs: object, retries: int) -> object:
    inside = frame.inside
    assert inside is not None
    for _ in range(retries):
        try:
            return inside(frame, code, args, kwargs)
        except Exception:  # noqa: BLE001  tried again
            frame = frame.again()
    return inside(frame, code, args, kwargs)


def _taken(value: object) -> Any:
    """Return an argument as a nested task gets it: values for futures, copies of arrays and of what holds them."""
    if isinstance(value, concurrent.futures.Future):
        return value.result()
    if isinstance(value, np.ndarray):
        return value.copy()
    return rebuild(value, _taken) if is_container(type(value)) else value


register(_SpreadFuture, lambda future: ("future", 0.0))
read_as_future(_SpreadFuture)
