"""Collecting results: gather, and reduce as a tree over the memory nodes.

In: futures. Out: values in the form in which the futures were given, or the future of a total.
It must not fetch what is only combined.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from hetero.drive.call_environment import Writes
from hetero.floor.containers import contents, is_container, rebuild
from hetero.floor.errors import BadValueError
from hetero.session.futures import Future
from hetero.session.tasks import TaskFunction

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["gather", "reduce", "tree"]

Leaf = TypeVar("Leaf")


def gather(futures: Any, return_exceptions: bool = False) -> list[object]:
    """Return the values of futures as a list; containers inside keep their form."""
    _check(futures)
    return [_value(item, return_exceptions) for item in futures]


async def agather(futures: Any, return_exceptions: bool = False) -> list[object]:
    """Do as `gather` without blocking the event loop; cancelled, it stops the tasks."""
    _check(futures)
    listed = list(futures)
    flat = [each if isinstance(each, Future) else asyncio.wrap_future(each) for each in _futures_in(listed)]
    await asyncio.gather(*flat, return_exceptions=return_exceptions)
    return gather(listed, return_exceptions)


def _check(futures: object) -> None:
    if isinstance(futures, concurrent.futures.Future):
        raise BadValueError(f"{futures!r} is one future", remedy="give a list of futures, or call its result()")
    if isinstance(futures, dict) or not isinstance(futures, Iterable):
        raise BadValueError(
            f"a {type(futures).__name__} is no list of futures", remedy="give a list: ctx.gather([a, b])"
        )


def _value(item: object, return_exceptions: bool = False) -> object:
    if isinstance(item, concurrent.futures.Future):
        return _outcome(item) if return_exceptions else item.result()
    if not is_container(type(item)):
        _refuse_hidden(item)
        return item
    if isinstance(item, Mapping):
        _refuse_hidden(item)
    return rebuild(item, lambda each: _value(each, return_exceptions))


def _refuse_hidden(item: object) -> None:
    """Refuse futures where `gather` does not look: keys, attributes, containers of another kind."""
    inside: list[object] = list(getattr(item, "__dict__", {}).values())
    if isinstance(item, Mapping):
        inside += item if is_container(type(item)) else [*item, *item.values()]
    elif isinstance(item, list | tuple | set | frozenset):
        inside += item
    if any(isinstance(each, concurrent.futures.Future) for each in inside):
        raise BadValueError(
            f"gather does not look for futures in this place of a {type(item).__name__}",
            remedy="put them into lists, tuples, sets, the values of dicts, or the fields of dataclasses",
        )


def _outcome(future: concurrent.futures.Future[object]) -> object:
    """Return a task's value or its exception; an interrupt of the waiting thread itself passes through."""
    try:
        error = future.exception()
    except concurrent.futures.CancelledError as cancelled:
        return cancelled
    return future.result() if error is None else error


def _futures_in(item: object) -> Iterator[concurrent.futures.Future[object]]:
    if isinstance(item, concurrent.futures.Future):
        yield item
    elif is_container(type(item)):
        for each in contents(item):
            yield from _futures_in(each)


def reduce(ctx: Context, task: TaskFunction[..., object], futures: Iterable[object], ordered: bool) -> Future:
    """Combine futures two by two, those on one memory node first; returns the future of the total."""
    leaves = [leaf if isinstance(leaf, Future) and leaf.owner is ctx else ctx.put(_value(leaf)) for leaf in futures]
    if not leaves:
        raise BadValueError("there is nothing to combine", remedy="give at least one future")
    for leaf in leaves:
        leaf._refuse_endless()
    concurrent.futures.wait(leaves)
    located = [(ctx.driver.where(leaf.item), leaf) for leaf in leaves]
    if not ordered:
        located.sort(key=lambda pair: pair[0])
    submit = ctx._submit_call
    parts = [[leaf for _, leaf in group] for _, group in groupby(located, key=lambda pair: pair[0])]
    return tree(submit, task, [tree(submit, task, part) for part in parts])


def tree(
    submit: Callable[..., Leaf], task: TaskFunction[..., object], leaves: list[Leaf], writes: Writes | None = None
) -> Leaf:
    """Combine futures two by two, in their order; returns the future of the total.

    Parameters
    ----------
    submit
        `_submit_call` of a Context, or what takes down its calls.
    writes
        The data of which each call returns a new value, and the argument that it may change in place.
    """
    while len(leaves) > 1:
        pairs = [tuple(leaves[i : i + 2]) for i in range(0, len(leaves), 2)]
        leaves = [submit(task, pair, {}, (), writes) if len(pair) > 1 else pair[0] for pair in pairs]
    return leaves[0]
