"""The program's side of nested tasks that the tasks of one worker process submit: calls in, results out.

In: what the worker asks for. Out: events, and messages to the worker. It must not choose where a task runs.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hetero.engines.base import Asked, Call, Function, Nest
from hetero.engines.local.context import LocalContext
from hetero.engines.shared import messages as msg
from hetero.engines.shared.exceptions import dump_error, one_line
from hetero.engines.shared.in_flight import FUNCTIONS_KEPT
from hetero.engines.shared.memory_pool import Payload
from hetero.engines.shared.wire import WireValue
from hetero.floor.errors import DeviceLostError
from hetero.model.commands import Launch
from hetero.model.events import CancelRequested, Event
from hetero.model.tasks import Failure

if TYPE_CHECKING:
    from hetero.engines.local.process_proxy import ProcessProxy

__all__ = ["Nested"]


class _Reply:
    """Where the outcome of one nested task goes: back to the worker, under its number there.

    Attributes
    ----------
    inputs
        The replies of the tasks whose results it was given, until it has ended.
    failure
        Why it failed, None where it did not, or has not yet.

    Notes
    -----
    The result is released with the reply: the calls of the tasks that read it hold it, as they hold the futures of
    the program, until they need not be sent again.
    """

    __slots__ = ("ended", "failure", "holds", "inputs", "item", "load", "number", "owner", "seq", "wanted")

    def __init__(self, owner: Nested, seq: int, number: int) -> None:
        self.owner = owner
        self.seq = seq
        self.number = number
        self.item = 0
        self.wanted = True
        self.ended = False
        self.load: Callable[[], object] | None = None
        self.holds: Payload | None = None
        self.inputs: tuple[_Reply, ...] = ()
        self.failure: Failure | None = None

    def __del__(self) -> None:
        if self.item:
            self.owner.drop_result(self.item)

    @property
    def input_failure(self) -> Failure | None:
        """Why one of the tasks whose results it was given failed."""
        return next((each.failure for each in self.inputs if each.failure is not None), None)

    def _committed(self, load: Callable[[], object]) -> None:
        """Take the result."""
        self.load = load
        self.owner.committed(self)

    def _failed(self, failure: Failure) -> None:
        """Take the failure: that of an input where it failed just as this task was handed in."""
        self.failure = self.input_failure or failure
        self.owner.failed(self, self.failure)


class Nested:
    """What the tasks of one worker have submitted.

    Parameters
    ----------
    send, announce
        Send the worker a message, and the files among a payload's segments.

    Attributes
    ----------
    by_attempt
        By number of an attempt that runs, the numbers of what it has submitted.
    """

    def __init__(
        self,
        context: LocalContext,
        worker: ProcessProxy,
        send: Callable[[msg.WorkerMessage], None],
        announce: Callable[[Payload], None],
    ) -> None:
        self._context = context
        self._worker = worker
        self._send = send
        self._announce = announce
        self._replies: dict[int, _Reply] = {}
        self.by_attempt: defaultdict[int, list[int]] = defaultdict(list)
        self._functions: dict[str, Function] = {}
        self._lock = threading.Lock()

    def submit(self, launch: Launch, message: msg.NestedSubmitted, payload: Payload) -> Event | None:
        """Take a task that an attempt submits; return what to tell."""
        seq, number, key, blob, asked, _, refs, task_key, nest = message
        submitter, reply, wish = self._context.submitter, _Reply(self, seq, number), Asked(*asked)
        assert submitter is not None
        with self._lock:
            self._replies[number] = reply
            self.by_attempt[seq].append(number)
            known = {each: self._replies[each] for each in refs if each in self._replies}
        names = {each.item: ref for ref, each in known.items()}
        reply.inputs = tuple(known.values())
        call = Call(
            self._function(key, blob, wish.name, number), (), {}, tuple(names), payload, task_key, reply.inputs,
            nest=Nest._make(nest)._replace(spreads=not wish.request.exclusive, above=launch.task), names=names,
        )  # fmt: skip
        if len(names) < len(refs):
            reply._failed(Failure("cancelled", f"{wish.name} was given the result of a task that was cancelled"))
            return None
        if reply.input_failure is not None:
            reply._failed(reply.input_failure)
            return None
        reply.item, event = submitter.submit(launch, wish, call, reply)
        return event

    def item(self, number: int) -> int:
        """Return the id of a task by its number, 0 for none."""
        reply = self._replies.get(number)
        return 0 if reply is None else reply.item

    def _function(self, key: str, blob: bytes, name: str, number: int) -> Function:
        """Return a function; one whose key is of that worker alone gets another, and is not kept."""
        if "#" in key:
            return Function(f"{key}/{self._worker.device.id}/{self._worker.pid}/{number}", name, None, {}, blob)
        if blob:
            self._functions[key] = Function(key, name, None, {}, blob)
            if len(self._functions) > FUNCTIONS_KEPT:  # the worker forgets the same one
                del self._functions[next(iter(self._functions))]
        return self._functions[key]

    def unwanted(self, number: int) -> Event | None:
        """Return what to tell where a task is not wanted any more."""
        reply = self._replies.get(number)
        if reply is None or not reply.item:
            return None
        self.release([number])
        return CancelRequested(self._context.clock.now_s(), reply.item)

    def release(self, numbers: list[int]) -> None:
        """Record that nobody wants some results any more."""
        for number in numbers:
            with self._lock:
                reply = self._replies.get(number)
                if reply is None:
                    continue
                reply.wanted = False
                ended = reply.ended
                if ended:
                    del self._replies[number]
            if ended:
                self._forget(reply)

    def over(self, seq: int) -> None:
        """Record that an attempt is over, and with it whoever could ask for the results."""
        self.release(self.by_attempt.pop(seq, []))

    def clear(self) -> None:
        """Record that the worker is over."""
        for seq in list(self.by_attempt):
            self.over(seq)

    @staticmethod
    def _forget(reply: _Reply) -> None:
        reply.holds = reply.load = None

    def drop_result(self, item: int) -> None:
        """Release a result that nobody wants and no task reads any more; the garbage collector may call it."""
        if self._context.submitter is not None:
            self._context.submitter.release(item)

    def _is_wanted(self, reply: _Reply) -> bool:
        """Record that a task has ended; False where nobody waits for it."""
        with self._lock:
            reply.ended, reply.inputs = True, ()
            wanted = reply.wanted
            if not wanted:
                self._replies.pop(reply.number, None)
        if not wanted:
            self._forget(reply)
        return wanted

    def committed(self, reply: _Reply) -> None:
        """Hand a result to the worker, or only say that it is there where it lies on another device."""
        seconds = self._context.below_s.pop(reply.item, 0.0)
        if self._is_wanted(reply):
            end = partial(msg.NestedEnded, reply.number, reply.item, seconds)
            try:
                self._send(end(msg.VALUE, self._travelling(reply)))
            except DeviceLostError:
                self._send(end(msg.RESIDENT, ()))
            except Exception as error:  # noqa: BLE001  a value that a thread left may not be picklable
                self._send(end(msg.FAILED, ("unserialisable", one_line(error), *dump_error(error))))

    def _travelling(self, reply: _Reply) -> tuple[object, ...]:
        (wire, key), payload = self._context.items.for_worker(reply.item, self._worker)
        if payload is not None:
            reply.holds = payload
            self._announce(payload)
        return (None if wire is None else tuple(wire), key)

    def failed(self, reply: _Reply, failure: Failure) -> None:
        """Report to the worker why a task failed."""
        self._context.below_s.pop(reply.item, None)
        if self._is_wanted(reply):
            error = failure.payload if isinstance(failure.payload, BaseException) else None
            told = (None, "") if error is None else dump_error(error)
            rest = (failure.kind, failure.message, *told)
            self._send(msg.NestedEnded(reply.number, reply.item, 0.0, msg.FAILED, rest))

    def fetch(self, number: int) -> None:
        """Copy a value from another device, in a thread of its own, since that may wait for a lost one."""
        reply = self._replies.get(number)
        if reply is not None and reply.load is not None:
            threading.Thread(target=self._bring, args=(reply,), name="hetero-fetch", daemon=True).start()

    def _bring(self, reply: _Reply) -> None:
        end = partial(msg.NestedEnded, reply.number, reply.item, 0.0, msg.VALUE)
        try:
            assert reply.load is not None
            payload = reply.holds = self._context.pool.payload(reply.load())
            self._announce(payload)
            self._send(end((tuple(WireValue(*payload.wire())), None)))
        except BaseException as error:  # noqa: BLE001  whatever it is, the task that waits must learn of it
            self._send(end(("crash", one_line(error), *dump_error(error))))
