"""Nested tasks as the live driver takes them: what a running task submits becomes a task like any other.

In: calls that engines hand in for running tasks. Out: tasks, with a parent and a depth, for the core.
It must not decide anything; whether the parent still runs, the core knows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hetero.engines.base import Asked, Call
from hetero.floor.errors import HeteroError
from hetero.model.commands import Launch
from hetero.model.events import Event, TaskSubmitted
from hetero.model.tasks import Failure, Request, Task

if TYPE_CHECKING:
    from hetero.drive.live import Driver
    from hetero.drive.loop import OutcomeSink

__all__ = ["NestedTasks"]

_MOST = 4096


class NestedTasks:
    """Makes tasks of what running ones submit; see `hetero.engines.base.Submitter`.

    Attributes
    ----------
    timeout_s : of tasks that have no limit of their own, 0 for none
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._requests: dict[tuple[Request, int, int], Request] = {}
        self.timeout_s = 0.0

    def submit(self, parent: Launch, asked: Asked, call: Call, sink: OutcomeSink) -> tuple[int, Event | None]:
        """Prepare a task; return its id and its event, or None where it was refused, which the sink has been told."""
        driver = self._driver
        item = driver.new_id()
        above = driver.state_of(parent.task)
        request = self._request(asked.request, above.request if above is not None else Request())
        depth = 1 if above is None else above.depth + 1
        which = (parent.task, parent.attempt)
        task = Task(item, asked.name, asked.signature, asked.size, call.refs, call.refs, request, which, depth)
        try:
            driver.adopt(task, call, sink)
        except HeteroError as error:
            sink._failed(Failure("nothing_fits", str(error), error))
            return item, None
        return item, TaskSubmitted(driver.now_s(), task)

    def _request(self, asked: Request, above: Request) -> Request:
        """Return the same request for the same wish; it has at least the priority of the parent, and its lease."""
        key = (asked, above.priority, above.lease)
        request = self._requests.get(key)
        if request is None:
            if len(self._requests) >= _MOST:
                self._requests.clear()
            priority = max(asked.priority, above.priority)
            request = replace(asked, priority=priority, lease=above.lease, timeout_s=asked.timeout_s or self.timeout_s)
            self._requests[key] = request
        return request

    def release(self, item: int) -> None:
        """Record that nobody wants a result any more."""
        self._driver.release(item)
