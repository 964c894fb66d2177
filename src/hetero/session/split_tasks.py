"""Cutting a task that did not fit into memory: parts are handed in, and their merged result is its result.

In: the future of a splittable task. Out: further tasks. It must not run in the driver's threads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hetero.engines.base import Call, ItemRef
from hetero.floor.errors import OutOfDeviceMemoryError
from hetero.model.tasks import Failure, Request, Task
from hetero.session.futures import Future
from hetero.session.gathering import gather
from hetero.session.signature import describe
from hetero.session.tasks import TaskFunction, as_task

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["cut", "cut_later"]

_MERGE = Request()


def cut_later(ctx: Context | None, item: int) -> bool:
    """Cut a task soon, in the Context's own thread; False when it cannot be cut."""
    future = None if ctx is None else ctx._future_of(item)
    if ctx is None or future is None or future._cut is None:
        return False
    ctx._call_soon(partial(cut, ctx, future))
    return True


def cut(ctx: Context, future: Future) -> None:
    """Submit the parts of a task, and in its place the task that merges them."""
    assert future._cut is not None
    task, args, kwargs = future._cut
    try:
        _hand_in(ctx, future, task, _parts(task, gather(args), dict(zip(kwargs, gather(kwargs.values()), strict=True))))
    except Exception as error:  # noqa: BLE001  the user's split function may raise anything
        future._failed(Failure("exception", str(error), error))
        ctx.driver.cancel(future.item)


def _parts(task: TaskFunction[..., object], args: list[object], kwargs: dict[str, object]) -> list[tuple[object, ...]]:
    assert task.split is not None
    parts = [part if isinstance(part, tuple) else (part,) for part in task.split(*args, **kwargs)]
    if len(parts) < 2:
        raise OutOfDeviceMemoryError(
            f"{task.name} does not fit into the memory of any device, and its split gave {len(parts)} part",
            remedy="let split give two parts or more, or ask for less memory",
        )
    return parts


def _hand_in(ctx: Context, whole: Future, task: TaskFunction[..., object], parts: list[tuple[object, ...]]) -> None:
    futures = [ctx._submit_call(task, part, {}) for part in parts]
    source = as_task(task.merge).source
    function = source.current()
    items = tuple(future.item for future in futures)
    call = Call(function, ([ItemRef(item) for item in items],), {}, items, keep=tuple(futures))
    signature, size = describe(source.model_key, (futures,), {})
    ctx.driver.submit(Task(whole.item, whole.name, signature, size, items, items, _MERGE), call, None)
