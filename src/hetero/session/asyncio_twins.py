"""The verbs of a Context for coroutines.

In: the same functions and arguments. Out: awaitables; a future can also be awaited as it is.
It must not block the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from hetero.session.futures import Future, R

__all__ = ["AsyncTwins"]


class _End(Enum):
    """Stands for the end of an iterator."""

    END = 0


class AsyncTwins:
    """`asubmit`, `arun`, `amap` and `agather`: as their namesakes, without blocking the event loop."""

    if TYPE_CHECKING:
        submit: Callable[..., Future]
        map: Callable[..., Iterator[Any]]

    async def asubmit(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> Future[R]:
        """Submit one call; the arguments are copied in another thread.

        Examples
        --------
        >>> import asyncio, hetero
        >>> async def main():
        ...     with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...         return await (await ctx.asubmit(abs, -1))
        >>> asyncio.run(main())
        1
        """
        return await asyncio.to_thread(self.submit, function, *args, **kwargs)

    async def arun(self, function: Callable[..., R], /, *args: object, **kwargs: object) -> R:
        """Run one call and give its result; cancelled, it stops the task.

        Examples
        --------
        >>> import asyncio, hetero
        >>> async def main():
        ...     with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...         return await ctx.arun(abs, -1)
        >>> asyncio.run(main())
        1
        """
        return await (await self.asubmit(function, *args, **kwargs))

    async def agather(self, futures: object, *, return_exceptions: bool = False) -> list[object]:
        """Return the values of futures as `gather` does; cancelled, it stops their tasks.

        Examples
        --------
        >>> import asyncio, hetero
        >>> async def main():
        ...     with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...         return await ctx.agather([ctx.submit(abs, -1), ctx.submit(abs, -2)])
        >>> asyncio.run(main())
        [1, 2]
        """
        from hetero.session.gathering import agather

        return await agather(futures, return_exceptions)

    async def amap(
        self,
        function: Callable[..., R],
        /,
        *iterables: Iterable[object],
        chunk: int | str = "auto",
        timeout: float | None = None,
    ) -> AsyncIterator[R]:
        """Run a function over the items and give the results in order, as they are there.

        Examples
        --------
        >>> import asyncio, hetero
        >>> async def main():
        ...     with hetero.Context(devices="1xcpu", engine="inline") as ctx:
        ...         return [value async for value in ctx.amap(abs, [-1, -2])]
        >>> asyncio.run(main())
        [1, 2]
        """
        results = await asyncio.to_thread(self.map, function, *iterables, chunk=chunk, timeout=timeout)
        while not isinstance(result := await asyncio.to_thread(next, results, _End.END), _End):
            yield result
