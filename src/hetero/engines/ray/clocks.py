"""By how much the clock of another host is ahead of the run's.

In: an actor there that tells its time. Out: seconds, told to whoever asked. It must not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from hetero.engines.ray.seat import TALK

__all__ = ["QUESTIONS", "compare_clocks"]

QUESTIONS = 8

InHub = Callable[[Callable[[Any], None]], Callable[[Any], None]]


def compare_clocks(handle: Any, now_s: Callable[[], float], in_hub: InHub, done: Callable[[Any], None]) -> None:
    """Ask an actor for its time some times over, and tell `done` the difference, or the exception that came.

    Parameters
    ----------
    handle : of an actor that is up
    now_s : the run's clock
    in_hub : has a handler of an answer run in the hub's thread

    Notes
    -----
    The other clock was read between question and answer, and is taken to have been read in the middle: the error is
    at most half of the quickest answer's way.

    References
    ----------
    F. Cristian, "Probabilistic clock synchronization", Distributed Computing 3 (1989), 146-158.
    """
    _ask(handle, now_s, in_hub, done, QUESTIONS, (inf, 0.0))


def _ask(
    handle: Any,
    now_s: Callable[[], float],
    in_hub: InHub,
    done: Callable[[Any], None],
    left: int,
    best: tuple[float, float],
) -> None:
    if not left:
        done(best[1])
        return
    asked_s = now_s()

    def told(answer: Any) -> None:
        if isinstance(answer, Exception):
            done(answer)
            return
        heard_s = now_s()
        found = (heard_s - asked_s, answer - (asked_s + heard_s) / 2.0)
        _ask(handle, now_s, in_hub, done, left - 1, min(best, found))

    handle.now.options(concurrency_group=TALK).remote()._on_completed(in_hub(told))
