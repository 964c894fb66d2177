"""Tasks that submit tasks: what `hetero.current_context()` gives inside a task.

In: functions and arguments. Out: futures that have ended: a nested task runs at once, on the device of the task that
submits it. It must not leave the worker, so it waits for nobody and nobody can wait for it in vain.
"""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hetero.core.eligible import obstacle
from hetero.drive.frame import Frame, current
from hetero.engines.base import Function, is_container, rebuild
from hetero.floor.errors import BadValueError, NothingFitsError, SerialisationError
from hetero.session.gathering import gather
from hetero.session.identity import call_identity
from hetero.session.tasks import TaskFunction, as_task

if TYPE_CHECKING:
    from hetero.model.device import Device
    from hetero.session.context import Context

__all__ = ["NestedFuture", "TaskContext", "current_context"]


class NestedFuture(concurrent.futures.Future[Any]):
    """The result of a nested task, which has ended."""

    def __reduce__(self) -> NoReturn:
        raise SerialisationError("the future of a nested task cannot leave its task", remedy="return its result()")


class TaskContext:
    """The verbs of a Context inside a task.

    Notes
    -----
    A nested task runs in the worker of the task that submits it, before `submit` returns: the device works for it
    while its parent waits, so nothing can wait for ever, and of a recursion only the path from its root is held at a
    time. Its time is part of its parent's. When the parent is stopped, or is lost with its worker, so are its nested
    tasks, and a new attempt of the parent runs them again.
    """

    @property
    def devices(self) -> tuple[Device, ...]:
        """The device of this task."""
        return (_frame().device,)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> NestedFuture:
        """Run one call of a function and return its future.

        Raises
        ------
        NothingFitsError
            The device of this task cannot meet the request.
        BadValueError
            The request is one that only the program can make, or this is no task any more.
        """
        frame, task = _frame(), as_task(function)
        _refuse(frame, task)
        code = Function(f"{task.name} {len(task.source.implementations)}", task.name, task.source.callable,
                        task.source.implementations)  # fmt: skip
        if task.surroundings is not None:
            code = task.surroundings.of(code)
        future = NestedFuture()
        try:
            given, named = _taken(args), _taken(kwargs)
            identity = call_identity(task, given, named)
            future.set_result(_tried(frame, code, identity, given, named, task.request.retries))
        except (Exception, SystemExit) as error:  # noqa: BLE001  handed on by result() and exception()
            future.set_exception(error)
        return future

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run one call of a function and return its result."""
        return self.submit(function, *args, **kwargs).result()

    def map(self, function: Callable[..., Any], /, *iterables: Iterable[Any], **_: Any) -> Iterator[Any]:
        """Run a function over the items, each when its result is asked for, in order."""
        return map(functools.partial(self.run, function), *iterables)

    def put(self, value: Any) -> NestedFuture:
        """Return a future of a value, which nested tasks take as an argument."""
        future = NestedFuture()
        future.set_result(value)
        return future

    def gather(self, futures: Any, *, return_exceptions: bool = False) -> list[Any]:
        """Return the values of futures as `Context.gather` does."""
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
        return "<hetero.TaskContext>" if frame is None else f"<hetero.TaskContext of task {frame.task}>"


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
    if current() is not None:
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


def _refuse(frame: Frame, task: TaskFunction[..., Any]) -> None:
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


def _tried(frame: Frame, code: Function, identity: str, args: Any, kwargs: Any, retries: int) -> Any:
    assert frame.inside is not None
    child = frame.child(code.name, identity)
    for _ in range(retries):
        try:
            return frame.inside(child.again(), code, args, kwargs)
        except Exception:  # noqa: BLE001  tried again
            continue
    return frame.inside(child.again(), code, args, kwargs)


def _taken(value: Any) -> Any:
    """Return an argument as a nested task gets it: values for futures, copies of arrays and of what holds them."""
    if isinstance(value, concurrent.futures.Future):
        return value.result()
    if isinstance(value, np.ndarray):
        return value.copy()
    return rebuild(value, _taken) if is_container(type(value)) else value
