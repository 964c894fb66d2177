"""The `concurrent.futures.Executor` over a Context, for programs that know that interface.

In: submit, map, shutdown. Out: the Context's own futures.
It must not close a Context that somebody else opened.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hetero.floor.errors import BadValueError
from hetero.session.futures import Future

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["Executor"]


class Executor(concurrent.futures.Executor):
    """An executor that runs its calls on the devices of a Context.

    Parameters
    ----------
    ctx : the Context; None opens one of its own, which `shutdown` closes

    Examples
    --------
    >>> import hetero
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx, hetero.Executor(ctx) as pool:
    ...     list(pool.map(abs, [-1, -2]))
    [1, 2]
    """

    def __init__(self, ctx: Context | None = None) -> None:
        if ctx is None:
            from hetero.session.context import Context

            ctx, self._owns = Context(), True
        else:
            self._owns = False
        self.ctx = ctx
        self._submitted: set[Future] = set()
        self._shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Hand in one call and give its future."""
        self._refuse_when_shut()
        future = self.ctx.submit(fn, *args, **kwargs)
        self._submitted.add(future)
        future.add_done_callback(self._submitted.discard)
        return future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        **_: Any,
    ) -> Iterator[Any]:
        """Give the results in order; `chunksize` items make a task."""
        self._refuse_when_shut()
        return self.ctx.map(fn, *iterables, chunk=chunksize, timeout=timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; wait for those handed in, or cancel them."""
        self._shut = True
        left = list(self._submitted)
        if cancel_futures:
            for future in left:
                future.cancel()
        if wait:
            concurrent.futures.wait(left)
        if self._owns:
            self.ctx.close(wait)

    def _refuse_when_shut(self) -> None:
        if self._shut:
            raise BadValueError("this Executor is shut down", remedy="make another one: hetero.Executor(ctx)")
