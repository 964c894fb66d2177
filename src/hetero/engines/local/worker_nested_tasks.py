"""The worker's side of nested tasks that go to any device: handed in with the program, waited for on top of others.

In: calls of the running task, results from the program. Out: messages. It must not choose where a task runs.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from hetero.engines.base import Asked, Ended, Function, Nest
from hetero.engines.shared import messages as msg
from hetero.engines.shared.exceptions import load_error, one_line
from hetero.engines.shared.in_flight import FUNCTIONS_KEPT, pack_function
from hetero.engines.shared.memory_pool import Views, lengths, store
from hetero.engines.shared.messages import Cancelled
from hetero.engines.shared.wire import WireValue
from hetero.floor import clock
from hetero.floor.clock import TaskClock
from hetero.floor.errors import OutOfDeviceMemoryError, SerialisationError
from hetero.model.tasks import Failure

if TYPE_CHECKING:
    from hetero.engines.local.worker_process import WorkerProcess

__all__ = ["Spreading"]


@dataclass(slots=True)
class _Attempt:
    """What one attempt has submitted, by number: whom to tell of the end of what is open."""

    clock: TaskClock
    open: dict[int, Callable[[Ended], None]] = field(default_factory=dict)


class Spreading:
    """Submits and waits for the tasks of one worker; see `hetero.engines.base.Spread`."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.devices = worker.hello.fleet
        self._worker = worker
        self.waits = 0
        self._marked = worker.segments.nested_slot(worker.hello.running_slot)
        self._deadly = worker.segments.deadly
        self._numbers = 0
        self._attempts: dict[int, _Attempt] = {}
        self._of: dict[int, int] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        self._fetched: dict[int, msg.Message | None] = {}
        self._released: deque[int] = deque()

    @property
    def out(self) -> int:
        """How many tasks were handed in and have not ended, as far as is known here."""
        return len(self._of)

    def submit(
        self,
        function: Function,
        asked: Asked,
        call: tuple[object, object],
        refs: tuple[int, ...],
        nest: tuple[str, Nest],
        ended: Callable[[Ended], None],
    ) -> int:
        """Submit a task; return its number."""
        worker = self._worker
        seq, blob = worker.running, b""
        with worker.shield():
            if function.key not in self._known:
                blob = pack_function(function)
            wire = self._stored(seq, function, call)
            self._numbers += 1
            number = self._numbers
            task_key, come = nest
            worker.send(
                msg.NestedSubmitted(
                    seq, number, function.key, blob, tuple(asked), tuple(wire), refs, task_key, tuple(come)
                )
            )
            if blob and "#" not in function.key:  # others are made anew so often that nobody keeps them
                self._known[function.key] = None
                if len(self._known) > FUNCTIONS_KEPT:
                    self._known.popitem(last=False)
            attempt = self._attempts.get(seq)
            if attempt is None:
                attempt = self._attempts[seq] = _Attempt(worker.timing)
            attempt.open[number] = ended
            self._of[number] = seq
            if self._released:
                self._tell_released()
        return number

    def _stored(self, seq: int, function: Function, call: tuple[object, object]) -> WireValue:
        try:
            return store(call, self._worker.segments, lambda buffers: self._worker.lease(seq, lengths(buffers), False))
        except msg.NoRoomError as error:
            remedy = "wait for results before more is submitted, or raise memory_pool_size"
            raise OutOfDeviceMemoryError(str(error), remedy=remedy) from None
        except MemoryError:
            raise
        except Exception as error:
            raise SerialisationError(
                f"an argument of {function.name!r} cannot travel to a worker: {one_line(error)}",
                remedy="give arrays, numbers, strings or plain containers",
            ) from error

    def _tell_released(self) -> None:
        numbers = []
        while self._released:
            numbers.append(self._released.popleft())
        self._worker.send(msg.ReleaseNested(numbers))

    def wait(self, done: Callable[[], bool], timeout_s: float | None, number: int = 0) -> bool:
        """Release the device until something is so; False where that was not so in time."""
        worker = self._worker
        try:
            self.poll()
        except (EOFError, ConnectionError):
            raise Cancelled from None
        if done():
            return True
        until_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        seq = worker.running
        self.waits += 1
        before, mark = worker.suspend(number), self.at_once(0)
        try:
            while not done():
                if seq in worker.doomed:
                    break
                left_s = None if until_s is None else until_s - clock.monotonic_s()
                if left_s is not None and left_s <= 0.0:
                    return False
                worker.step(left_s)
        except (EOFError, ConnectionError):
            raise Cancelled from None  # the program has gone, and whatever waits here with it
        finally:
            self.at_once(mark)
            worker.resume(before)
        return True

    def poll(self) -> None:
        """Take in what has come, without waiting."""
        self._worker.poll()

    def is_deadly(self, mark: int) -> bool:
        """Return whether a class has ended a worker in which it ran at once."""
        deadly = self._deadly
        return deadly[0] > 0 and mark in deadly[1 : deadly[0] + 1]

    def at_once(self, mark: int) -> int:
        """Note the class of which a task runs at once from now on, 0 for none; return the one before."""
        before: int = self._marked[0]
        self._marked[0] = mark
        return before

    def answer(self, end: msg.NestedEnded) -> None:
        """Take the end of a task, or the value that was asked for."""
        number, task, seconds, how, rest = end
        if number in self._fetched:
            self._fetched[number] = rest
            return
        seq = self._of.pop(number, None)
        if seq is None:
            return
        attempt = self._attempts[seq]
        ended = attempt.open.pop(number)
        attempt.clock.below_s += seconds
        if how == msg.FAILED:
            kind, message, blob, text = rest
            error = None if blob is None else load_error(blob, message, text)
            ended(Ended(task, seconds, None, Failure(kind, message, error)))
        else:
            load = partial(self._value, *rest) if how == msg.VALUE else partial(self._fetch, number)
            ended(Ended(task, seconds, load, None))

    def _value(self, wire: msg.Message | None, key: object) -> object:
        """Read a value; its buffers are copied, since their places are the program's."""
        if wire is None:
            return self._worker.control.kept(key)
        views: Views = []
        value = self._worker.segments.value(WireValue(*wire), views)
        self._worker.segments.release(views)
        return value

    def _fetch(self, number: int) -> object:
        """Ask for a value that lies on a device, and wait for it."""
        self._fetched[number] = None
        try:
            with self._worker.shield():
                self._worker.send(msg.FetchNested(number))
            self.wait(lambda: self._fetched[number] is not None, None)
            found = self._fetched[number] or ()
        finally:
            del self._fetched[number]
        if len(found) > 2:
            _, message, blob, text = found
            raise load_error(blob, message, text)
        return self._value(*found)

    def cancel(self, number: int) -> None:
        """Stop a task; nobody is told of its end."""
        seq = self._of.pop(number, None)
        if seq is not None:
            self._attempts[seq].open.pop(number)
            with self._worker.shield():
                self._worker.send(msg.CancelNested(number))

    def release(self, number: int) -> None:
        """Record that nobody wants a result any more."""
        self._released.append(number)

    def finish(self, seq: int) -> None:
        """Wait for what an attempt has submitted, as it has returned: what it began is done when it is."""
        attempt = self._attempts.get(seq)
        while attempt is not None and attempt.open:
            number = next(iter(attempt.open))
            self.wait(partial(_is_over, attempt, number), None, number)

    def drop(self, seq: int) -> None:
        """Forget what an attempt that is over has submitted; the program stops what is still open."""
        self._marked[0] = 0
        attempt = self._attempts.pop(seq, None)
        if attempt is not None:
            for number, ended in attempt.open.items():
                del self._of[number]
                ended(Ended(0, 0.0, None, Failure("cancelled", "cancelled: the task that submitted it has ended")))
            attempt.open.clear()


def _is_over(attempt: _Attempt, number: int) -> bool:
    return number not in attempt.open
