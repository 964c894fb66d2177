"""The actor of one device as the program sees it: starting, sending, replies, its clock, and noticing its end.

In: attempts. Out: events; results that wait for being committed. A thread of its own waits for the replies, which come
in order.
"""

from __future__ import annotations

import itertools
import pickle
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from hetero.engines.base import Call
from hetero.engines.ray.actor import ActorTransfers, RayContext, start_actor, why_ended
from hetero.engines.ray.actor_worker import MESSAGES, ActorCall, Greeting
from hetero.engines.ray.cluster import OWN_HOST, Host
from hetero.engines.ray.object_store import ActorWire, CallBundle, StoredPayload
from hetero.engines.shared import messages as msg
from hetero.engines.shared.exceptions import failure_of
from hetero.engines.shared.groups import GroupTask
from hetero.engines.shared.in_flight import InFlight, InFlightProxy, Shipped, next_batch
from hetero.engines.shared.items import HeldItem, Holder, Replica
from hetero.engines.shared.memory_pool import Payload
from hetero.engines.shared.wire import Message
from hetero.floor import logs, platform
from hetero.floor.clock import Times, WallClock
from hetero.floor.errors import HeteroError
from hetero.model.annotations import set_in_time
from hetero.model.commands import Launch
from hetero.model.device import Device
from hetero.model.events import DeviceLost, DeviceReady, Event, TaskFailed, TaskFinished, TaskWithdrawn
from hetero.model.tasks import Failure

if TYPE_CHECKING:
    import ray
    from ray.actor import ActorHandle

__all__ = [
    "QUESTIONS",
    "START_S",
    "ActorProxy",
    "Replies",
    "compare_clocks",
]

START_S = 120.0
STARTS = 3
"""How often an actor may be killed while it starts, one time after the other, before its device is given up."""
STOP_S = 5.0
AWAY_S = 0.5
"""How often to look whether a host that went away is there again."""
DEEP = 2
"""Calls that an actor has at a time: it runs one while the other waits, and what comes meanwhile leaves together."""


class _Sent(NamedTuple):
    """A call of the actor that has not been answered, and what must be kept until it is."""

    requests: tuple[InFlight, ...]
    rows: object
    data: object
    holds: tuple[Payload, ...]


class ActorProxy(InFlightProxy):
    """One actor of one device; a new one is made for each start."""

    def __init__(self, context: RayContext, device: Device) -> None:
        super().__init__(context.hub, device)
        self.handle: Any = None
        self.pid = 0
        self.transfers = ActorTransfers(context, device.id)
        self._context = context
        self._lock = threading.RLock()
        self._seqs = itertools.count(1)
        self._runs: Callable[..., tuple[ray.ObjectRef, object]]
        self._greeting: Any = None
        self._by_attempt: dict[tuple[int, int], int] = {}
        self._waiting: deque[InFlight] = deque()
        self._unwanted: list[int] = []
        self._sent = 0
        self._due: _Sent | None = None
        self._sent_calls: queue.SimpleQueue[_Sent | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"hetero-{device.short}", daemon=True)
        self._shipped = Shipped(context.counters)
        self._drops = 0
        self._levels = context.entry.setup.levels
        self._replies = Replies(context, self)
        self._ready = False
        self._stopping = False
        self._why = ""
        context.hub.call(self._start)

    # -- starting ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the actor if its host is there; else look again a little later."""
        if self._stopping or self._ended:
            return
        host = self._context.monitor.there(self.device.host)
        if host is None:
            self._context.hub.at(AWAY_S, self._start)
            return
        handle = self.handle = start_actor(self._context.entry, self.device, host)
        self._runs = handle.run.options(num_returns=2).remote
        self._greeting = handle.greet.remote()
        self._greeting._on_completed(self._in_hub(partial(self._greeted, handle, host)))
        self._context.hub.at(self._context.start_s, partial(self._too_late, handle))

    def _in_hub(self, handler: Callable[[object], None]) -> Callable[..., None]:
        return lambda answer: self._context.hub.call(partial(handler, answer))

    def _too_late(self, handle: object) -> None:
        if handle is self.handle and not self._ready and not self._ended:
            self._kill(f"it was not ready after {self._context.start_s:g} s")

    def _start_again(self) -> None:
        _kill(self.handle)
        self.handle = None
        self._context.hub.at(AWAY_S, self._start)

    def _greeted(self, handle: object, host: Host, greeting: Greeting | Exception) -> None:
        if self._ended or handle is not self.handle:
            return
        elsewhere = isinstance(greeting, Greeting) and greeting.node_id != host.node_id
        if elsewhere or self._context.monitor.there(self.device.host) != host:
            self._start_again()
        elif isinstance(greeting, Exception):
            self._end(self._why or why_ended(greeting), again=not self._why)
        elif self.device.host == OWN_HOST:
            self.pid = greeting.pid
            self._settle(handle, greeting, WallClock(0.0).now_s() - self._now_s())
        else:
            compare_clocks(handle, self._now_s, self._in_hub, partial(self._settle, handle, greeting))

    def _settle(self, handle: object, greeting: Greeting, shift_s: float | Exception) -> None:
        if self._ended or handle is not self.handle:
            return
        if isinstance(shift_s, Exception):
            self._end(self._why or why_ended(shift_s), again=not self._why)
            return
        self._replies.shift_s = shift_s
        own = ".".join(map(str, sys.version_info[:2]))
        if greeting.trouble or greeting.python.split(".")[:2] != own.split("."):
            versions = f"its Python is {greeting.python} and the program's is {own}"
            fit = not greeting.trouble or (greeting.opened and self._worked())
            self._end(greeting.trouble or versions, opened=fit)
            return
        self._ready = True
        self._context.worked.add(self.device.id)
        self.transfers.handle = self.handle
        self._reader.start()
        del self._context.failed_starts[self.device.id]
        self._context.hub.emit(DeviceReady(self._now_s(), self.device.id))

    # -- what the engine asks ---------------------------------------------------------------------------------

    def run(
        self,
        launches: Sequence[tuple[Launch, Call]],
        group: GroupTask | None = None,
        rank: int = 0,
        peers: tuple[object, ...] = (),
    ) -> None:
        """Send attempts, as soon as the actor has little left to do."""
        with self._lock:
            for launch, call in launches:
                request = InFlight(next(self._seqs), launch, call, group, rank, (), peers)
                self._in_flight[request.seq] = request
                self._by_attempt[launch.task, launch.attempt] = request.seq
                self._waiting.append(request)
            self._push()

    def withdraw(self, task: int, attempt: int) -> None:
        """Ask for an attempt back."""
        with self._lock:
            seq = self._by_attempt.get((task, attempt))
            if seq is None or self._taken_back(seq, TaskWithdrawn(self._now_s(), task, attempt, self.device.id)):
                return
            self._unwanted.append(seq)
            if len(self._unwanted) == 1:
                self._context.hub.call(self._withdraw_all)

    def _withdraw_all(self) -> None:
        with self._lock:
            unwanted, self._unwanted = self._unwanted, []
        self._order("withdraw", unwanted)

    def cancel(self, task: int, attempt: int) -> None:
        """Stop an attempt: by an exception first, then by ending the actor."""
        failure = Failure("cancelled", "cancelled before it started")
        now_s = self._now_s()
        with self._lock:
            seq = self._by_attempt.get((task, attempt))
            event = TaskFailed(now_s, task, attempt, self.device.id, now_s, 0.0, failure)
            if seq is None or self._taken_back(seq, event):
                return
        self._order("cancel", seq)
        self._insist_later(seq)

    def _taken_back(self, seq: int, event: Event) -> bool:
        """Take an attempt back that has not left yet, and tell so."""
        request = self._in_flight[seq]
        if request not in self._waiting:
            return False
        self._waiting.remove(request)
        self._forget(request)
        self._emit(event)
        return True

    def _is_first(self, seq: int) -> bool:
        return next(iter(self._in_flight), 0) == seq

    def drop(self, key: object) -> None:
        """Forget a kept value."""
        if self._ready and not self._ended:
            self._drops += 1
            self._order("drop", key)

    def recv(self, task: int, sender: int, content: object) -> None:
        """Do nothing: members talk without the program."""

    def peer_left(self, task: int, sender: int, reason: str) -> None:
        """Notify the actor that another member of a group failed or was lost."""
        which = next((which for which in list(self._by_attempt) if which[0] == task), None)
        if which is not None:
            self._order("peer_left", which, sender, reason)

    def _order(self, method: str, *arguments: object) -> None:
        if not self._ended:
            getattr(self.handle, method).options(concurrency_group=MESSAGES).remote(*arguments)

    def _now_s(self) -> float:
        return self._context.clock.now_s()

    # -- sending ----------------------------------------------------------------------------------------------

    def _push(self) -> None:
        while self._waiting and self._sent < DEEP and not self._ended:
            self._send(next_batch(self._waiting))

    def _send(self, batch: list[InFlight]) -> None:
        functions: list[tuple[str, bytes]] = []
        bundle, holds, jobs = CallBundle(), list[Payload](), list[tuple[object, ...]]()
        going = [request for request in batch if self._pack(request, functions, bundle, holds, jobs)]
        if not going:
            return
        again = any(request.launch.attempt > 1 for request in going)
        now = logs.levels()
        changed, self._levels = (None if now is self._levels else now), now
        message = pickle.dumps((functions, jobs, self._drops if again else 0, changed), 5)
        self._context.counters["messages"] += 1
        if going[0].peers:
            rows, data = self.handle.run_group.options(num_returns=2).remote(message, going[0].peers, *bundle.refs)
        else:
            rows, data = self._runs(message, *bundle.refs)
        self._sent += 1
        self._sent_calls.put(_Sent(tuple(going), rows, data, tuple(holds)))

    def _pack(
        self,
        request: InFlight,
        functions: list[tuple[str, bytes]],
        bundle: CallBundle,
        holds: list[Payload],
        jobs: list[tuple[object, ...]],
    ) -> bool:
        """Pack an attempt; one whose input is not there any more is given back."""
        call, launch, items = request.call, request.launch, dict[int, tuple[ActorWire | None, object]]()
        try:
            for item in call.refs:
                items[item] = self._item(item, bundle, holds)
        except HeteroError as error:
            self._return(request, str(error))
            return False
        holds.append(call.encoded)
        group = (request.rank, request.group.size) if request.group is not None else None
        key = self._shipped.use(call.function, functions)
        wire = bundle.wire(call.encoded)
        jobs.append(tuple(ActorCall(request.seq, launch.task, launch.attempt, key, call.task_key, wire, items, group)))
        return True

    def _item(self, item: int, bundle: CallBundle, holds: list[Payload]) -> tuple[ActorWire | None, object]:
        replica = self._context.items.find(item).on(self)
        if replica is not None:
            return None, replica.key
        payload = self._context.items.payload(item)
        holds.append(payload)
        return bundle.wire(payload), None

    # -- replies, in the reader's thread ----------------------------------------------------------------------

    def _read(self) -> None:
        import ray

        platform.hold_interrupt(True)
        while (sent := self._sent_calls.get()) is not None and not self._ended:
            self._due = sent
            try:
                rows, notes, records = pickle.loads(ray.get(sent.rows))
            except ray.exceptions.RayActorError as error:
                self._end(self._why or why_ended(error))
            except ray.exceptions.RayError as error:
                self._not_brought(sent, str(error))
            else:
                self._context.annotate([set_in_time(note, -self._replies.shift_s) for note in notes])
                self._context.log(records)
                self._answered(sent, rows)

    def _answered(self, sent: _Sent, rows: list[Message]) -> None:
        events, failed = list[Event](), list[tuple[GroupTask, int]]()
        with self._lock:
            self._sent -= 1
            self._push()
            for row in rows:
                request = self._in_flight.get(row[0])
                if request is not None:
                    self._forget(request)
                    events.append(self._replies.event(request, sent.data, *row[1:]))
                    if request.group is not None and type(events[-1]) is not TaskFinished:
                        failed.append((request.group, request.rank))
        if events:
            self._context.report(events)
        for group, rank in failed:
            group.leave(rank, f"rank {rank} failed")

    def _not_brought(self, sent: _Sent, reason: str) -> None:
        """Return attempts whose inputs were lost with their host; the core soon learns of that."""
        with self._lock:
            self._sent -= 1
            for request in sent.requests:
                self._forget(request)
            self._push()
        for request in sent.requests:
            self._context.hub.at(AWAY_S, partial(self._return, request, reason))

    def _return(self, request: InFlight, reason: str) -> None:
        self._forget(request)
        task, attempt = request.launch.task, request.launch.attempt
        self._emit(TaskWithdrawn(self._now_s(), task, attempt, self.device.id))

    def _emit(self, event: Event) -> None:
        self._context.hub.call(lambda: self._context.hub.emit(event))

    def _forget(self, request: InFlight) -> None:
        self._in_flight.pop(request.seq, None)
        self._by_attempt.pop((request.launch.task, request.launch.attempt), None)

    # -- the end ----------------------------------------------------------------------------------------------

    def lose(self, why: str) -> None:
        """Abandon the actor: its host does not answer."""
        if self._ready:
            self._end(why)
        elif not self._ended and self.handle is not None:
            self._start_again()

    def _kill(self, why: str) -> None:
        self._why = why
        _kill(self.handle)
        self._end(why, again=self._ready or self._worked())

    def _worked(self) -> bool:
        return self.device.id in self._context.worked

    def _end(self, why: str, again: bool = True, opened: bool = True) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            requests, self._in_flight = self._in_flight, {}
            first = [each for each in self._due.requests if each.seq in requests] if self._due is not None else []
            ran = first[0].launch.task if len(first) == 1 else -len(first[:1])
            self._by_attempt.clear()
            self._waiting.clear()
            self._sent_calls.put(None)
        if not self._ready:
            self._context.failed_starts[self.device.id] += 1
            why = f"its worker did not start: {why}" if opened else why
            again = again and opened and (self._worked() or self._context.failed_starts[self.device.id] < STARTS)
        _kill(self.handle)
        self._context.items.lost(self)
        if not self._stopping:
            self._emit(DeviceLost(self._now_s(), self.device.id, why, not again, ran))
        for request in requests.values():
            if request.group is not None:
                request.group.leave(request.rank, f"rank {request.rank} was lost")
        self.transfers.end()

    def stop(self) -> None:
        """End the actor; called after the hub has stopped."""
        self._stopping = True
        if not self._ended:
            self._ended = True
            self._sent_calls.put(None)
            _kill(self.handle)
        if self._reader.is_alive() and threading.current_thread() is not self._reader:
            self._reader.join(STOP_S)


def _kill(handle: object) -> None:
    if handle is not None:
        import ray

        ray.kill(handle, no_restart=True)


class Replies:
    """The replies of one actor.

    Parameters
    ----------
    holder
        Whose results these are.

    Attributes
    ----------
    shift_s
        The clock of the actor's host minus the run's, s.
    """

    def __init__(self, context: RayContext, holder: Holder) -> None:
        self.shift_s = 0.0
        self._context = context
        self._holder = holder

    def event(
        self, request: InFlight, data: object, started_s: float, parts: tuple[float, ...], how: int, *rest: Any
    ) -> Event:
        """Return the event of a row, and keep its result; `data` stands for the large buffers of the whole call."""
        task, attempt, device = request.launch.task, request.launch.attempt, self._holder.device
        now_s = self._context.clock.now_s()
        started_s, times = started_s - self.shift_s if parts else now_s, Times(*parts)
        seconds = times.seconds
        if parts:
            self._context.report_parts(task, attempt, device.id, started_s, times)
        if how == msg.VALUE:
            nbytes = self._keep(request, data, *rest)
            node = f"{device.host}/ram" if nbytes else ""
            return TaskFinished(now_s, task, attempt, device.id, started_s, seconds, nbytes, node)
        if how == msg.RESIDENT:
            nbytes = self._resident(request, rest[0])
            return TaskFinished(now_s, task, attempt, device.id, started_s, seconds, nbytes, device.memory_node)
        if how == msg.WITHDRAWN:
            return TaskWithdrawn(now_s, task, attempt, device.id)
        failure = failure_of(*rest) if how == msg.FAILED else Failure("cancelled", "cancelled before it started")
        return TaskFailed(now_s, task, attempt, device.id, started_s, seconds, failure)

    def _keep(self, request: InFlight, data: object, body: bytes | None, first: int, sizes: tuple[int, ...]) -> int:
        if request.rank:
            return 0
        store, launch = self._context.store, request.launch
        parts = [store.part(data, first + place, size) for place, size in enumerate(sizes)]
        self._context.items.finished(launch.task, launch.attempt, HeldItem(StoredPayload(body, parts)))
        return sum(sizes)

    def _resident(self, request: InFlight, nbytes: int) -> int:
        key = (request.launch.task, request.launch.attempt)
        if request.rank:
            self._holder.drop(key)
            return 0
        self._context.items.finished(*key, HeldItem(replica=Replica(self._holder, key, nbytes)))
        return nbytes


QUESTIONS = 8

InHub = Callable[[Callable[..., None]], Callable[..., None]]


def compare_clocks(handle: object, now_s: Callable[[], float], in_hub: InHub, done: Callable[..., None]) -> None:
    """Ask an actor for its time some times over, and tell `done` the difference, or the exception that came.

    Parameters
    ----------
    handle
        Of an actor that is up.
    now_s
        The run's clock.
    in_hub
        Has a handler of an answer run in the hub's thread.

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
    handle: ActorHandle,
    now_s: Callable[[], float],
    in_hub: InHub,
    done: Callable[..., None],
    left: int,
    best: tuple[float, float],
) -> None:
    if not left:
        done(best[1])
        return
    asked_s = now_s()

    def answered(answer: float | Exception) -> None:
        if isinstance(answer, Exception):
            done(answer)
            return
        heard_s = now_s()
        found = (heard_s - asked_s, answer - (asked_s + heard_s) / 2.0)
        _ask(handle, now_s, in_hub, done, left - 1, min(best, found))

    handle.now.options(concurrency_group=MESSAGES).remote()._on_completed(in_hub(answered))
