"""What goes in and out of the live driver: sinks for outcomes, tasks that come together, explanations.

In: nothing. Out: types and values. It must not know the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from hetero.model.events import TaskSubmitted
from hetero.model.tasks import Failure
from hetero.plan.cost import Estimate

__all__ = ["Explanation", "Sink", "Together"]


class Sink(Protocol):
    """Where the outcome of one task goes."""

    def committed(self, load: Callable[[], Any]) -> None:
        """Take the result; `load()` gives the value. Called once, from any thread."""
        ...

    def failed(self, failure: Failure) -> None:
        """Take the failure; its payload may be the user's exception. Called once, from any thread."""
        ...


class Together(tuple[TaskSubmitted, ...]):
    """Tasks that are handed in at once."""

    __slots__ = ()


class Explanation(NamedTuple):
    """What is expected of one device for one task.

    Attributes
    ----------
    device : id
    estimate : the estimate, None where the device cannot run the task
    reason : why it cannot, '' where it can
    """

    device: str
    estimate: Estimate | None
    reason: str
