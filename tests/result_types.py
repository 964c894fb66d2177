"""What a type checker sees of results, checked by mypy in `make lint`; nothing here is run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import hetero
from hetero.session.task_context import NestedFuture


def double(x: int) -> int:
    return 2 * x


@hetero.task
def half(x: float) -> float:
    return x / 2


@hetero.task(retries=2)
def text(x: int) -> str:
    return str(x)


def program(ctx: hetero.Context) -> None:
    assert_type(ctx.submit(double, 3), hetero.Future[int])
    assert_type(ctx.submit(text, 3).result(), str)
    assert_type(ctx.run(double, 3), int)
    assert_type(ctx.run(half, ctx.submit(double, 3)), float)
    assert_type(ctx.map(double, [1, 2]), Iterator[int])
    assert_type(ctx.put([1, 2]), hetero.Future[list[int]])
    assert_type(half(3.0), float)
    assert_type(half.options(retries=1)(3.0), float)
    with ctx.lease(count=1) as lease:
        assert_type(lease.run(double, 3), int)


async def coroutine(ctx: hetero.Context) -> None:
    assert_type(await ctx.arun(double, 3), int)
    assert_type(await ctx.submit(half, 3.0), float)
    assert_type(ctx.amap(double, [1, 2]), AsyncIterator[int])


def nested() -> None:
    inside = hetero.current_context()
    if isinstance(inside, hetero.tasks.TaskContext):
        assert_type(inside.submit(double, 3), NestedFuture[int])
        assert_type(inside.run(text, 3), str)


def bare(future: hetero.Future) -> None:
    assert_type(future.result(), Any)
