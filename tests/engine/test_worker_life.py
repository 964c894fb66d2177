"""What a worker keeps, says and gives back between and around its tasks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Iterator
from typing import Any

import pytest

import hetero


@pytest.fixture(params=["inline", "thread", "process"], scope="module")
def ctx(request: pytest.FixtureRequest) -> Iterator[hetero.Context]:
    engine, isolation = ("inline", None) if request.param == "inline" else (None, request.param)
    with hetero.Context(devices="cpu:1", engine=engine, isolation=isolation, history=False) as context:
        yield context


def identity(x: Any) -> Any:
    return x


def fail(word: str) -> None:
    raise ValueError(word)


# --- gather ------------------------------------------------------------------------------------------------


def test_gather_returns_exceptions_in_the_place_of_values(ctx: hetero.Context) -> None:
    futures = [ctx.submit(identity, 1), ctx.submit(fail, "two"), {"three": (ctx.submit(fail, "three"), 4)}]
    one, two, rest = ctx.gather(futures, return_exceptions=True)
    assert (one, repr(two), repr(rest["three"][0]), rest["three"][1]) == (
        1,
        "ValueError('two')",
        "ValueError('three')",
        4,
    )
    with pytest.raises(ValueError, match="two"):
        ctx.gather(futures)


def test_the_async_twin_of_gather_returns_exceptions_and_takes_what_gather_takes(ctx: hetero.Context) -> None:
    async def both() -> tuple[list[Any], list[Any]]:
        nested = (future for future in [[ctx.submit(identity, 1), 2], {"key": ctx.submit(fail, "three")}])
        other: concurrent.futures.Future[int] = concurrent.futures.Future()
        other.set_result(5)
        return await ctx.agather(nested, return_exceptions=True), await ctx.agather([ctx.submit(identity, 4), other])

    (pair, broken), others = asyncio.run(both())
    assert (pair, repr(broken["key"]), others) == ([1, 2], "ValueError('three')", [4, 5])
    with pytest.raises(ValueError, match="six"):
        asyncio.run(ctx.agather([ctx.submit(fail, "six")]))


def test_gather_returns_the_cancellation_of_a_task() -> None:
    with hetero.Context(devices="cpu:1", isolation="thread", history=False) as ctx:
        running, waiting = ctx.submit(time.sleep, 0.2), ctx.submit(identity, 1)
        waiting.cancel()
        answers = ctx.gather([running, waiting], return_exceptions=True)
        assert answers[0] is None
        assert isinstance(answers[1], concurrent.futures.CancelledError)


# --- coroutines --------------------------------------------------------------------------------------------


async def awaited(x: int) -> int:
    return x


def test_a_coroutine_function_is_refused_when_it_is_submitted(ctx: hetero.Context) -> None:
    for verb in (ctx.submit, ctx.run, lambda function, x: ctx.map(function, [x]), ctx.executor().submit):
        with pytest.raises(
            hetero.errors.BadValueError, match=r"awaited is a coroutine function.*asyncio\.run\(awaited"
        ):
            verb(awaited, 1)
