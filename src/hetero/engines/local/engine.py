"""The local engine: carries out commands on the workers of this host, in processes and threads.

In: commands and calls. Out: events. It never chooses a device.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hetero.engines.base import Call, NodeUsage, Report, WorkerEntry
from hetero.engines.local.context import LocalContext
from hetero.engines.local.process_proxy import START_S, ProcessWorker
from hetero.engines.local.worker_thread import ThreadWorker
from hetero.engines.shared.engine import PayloadEngine
from hetero.engines.shared.groups import Group
from hetero.engines.shared.hub import Hub
from hetero.engines.shared.items import MISSING, Item, Items, Meter, Replica
from hetero.engines.shared.memory_pool import MemoryPool, Payload
from hetero.engines.shared.messages import Transport
from hetero.floor.clock import Clock, WallClock
from hetero.floor.errors import DeviceLostError, HeteroError
from hetero.floor.platform import FEATURES
from hetero.model.commands import Launch, Transfer
from hetero.model.device import HOST_NODE, Device

__all__ = ["LocalEngine"]

Worker = ProcessWorker | ThreadWorker


class LocalEngine(PayloadEngine):
    """Runs tasks on this host, one worker a device.

    Parameters
    ----------
    memory_pool_bytes : bytes of the pool through which arrays travel
    isolation : 'process' or 'thread' for all devices, '' for what each device says
    start_s : s that a worker may take to start
    note : told what the user should know, in one line each
    transport : how the members of a group exchange values

    Attributes
    ----------
    counters : how often things happened: copies, copied_bytes, shared (copies saved), messages, functions (sent
        to a worker), transfers, spills, spilled_bytes, pieces (of what group members said to processes), pieces_in_pool
    """

    name = "local"
    other_remedy = ", or use isolation: thread"

    def __init__(
        self,
        memory_pool_bytes: int = 1 << 30,
        isolation: str = "",
        start_s: float = START_S,
        note: Callable[[str], None] = lambda text: None,
        transport: Transport = Transport(),  # noqa: B008
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._pool_bytes = memory_pool_bytes
        self._isolation = isolation
        self._start_s = start_s
        self._note = note
        self._transport = transport
        self._context: LocalContext
        self._devices: dict[str, Device] = {}
        self._workers: dict[str, Worker] = {}
        self._travelling: dict[tuple[int, int, str], Payload] = {}
        self._bytes_needed = False
        self._pid = 0
        self._stop_lock = threading.Lock()

    def start(self, devices: Sequence[Device], worker: WorkerEntry, clock: Clock, report: Report) -> None:
        """Start a worker for each device, without waiting."""
        pool, meter, hub = MemoryPool(self._pool_bytes, self._note, self.counters), Meter(), Hub(report)
        origin_s = WallClock(0.0).now_s() - clock.now_s()
        items = Items(pool, meter)
        self._context = LocalContext(
            hub, pool, items, meter, clock, self.counters, worker, report, origin_s, self._start_s, self._transport,
            self.tell, self.log, self.tell_parts, self.submitter, self._spreads_over(devices),
        )  # fmt: skip
        pool.closed_segments = self._segment_closed
        self._pid = os.getpid()
        self._devices = {device.id: device for device in devices}
        self._bytes_needed = any(self._in_process(device) for device in devices)
        if not FEATURES.fd_passing and any(self._wants_process(device) for device in devices):
            self._note("this system cannot hand open files to a worker process: every device gets a thread instead")
        unbound = [d.short for d in devices if d.kind == "cpu" and d.memory_limit_bytes and not self._limits(d)]
        if unbound:
            self._note(
                f"the memory_limit of {', '.join(unbound)} keeps out tasks that ask for more, but does not stop one "
                "that takes more: its worker is no process that this system can limit"
            )
        hub.start()
        self._end_with_program()
        for device in devices:
            self._workers[device.id] = self._make(device)

    def _spreads_over(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """Return the devices to which nested tasks may go: all or, where that would be one or threads, none."""
        spreads = self.submitter is not None and len(devices) > 1 and all(map(self._in_process, devices))
        return tuple(devices) if spreads else ()

    def _wants_process(self, device: Device) -> bool:
        return (self._isolation or device.isolation) == "process"

    def _in_process(self, device: Device) -> bool:
        return self._wants_process(device) and FEATURES.fd_passing

    def _limits(self, device: Device) -> bool:
        return self._in_process(device) and FEATURES.data_limit

    def _make(self, device: Device) -> Worker:
        kind = ProcessWorker if self._in_process(device) else ThreadWorker
        return kind(self._context, device)

    @property
    def _site(self) -> LocalContext:
        return self._context

    def _stored(self, value: Any) -> Payload:
        return self._context.pool.payload(value)

    @property
    def copies_arguments(self) -> bool:
        """Return whether some worker is a process."""
        return self._bytes_needed

    def encode(self, call: Call) -> None:
        """Capture the arguments as they are now, where a worker process may run the call."""
        if self._bytes_needed:
            super().encode(call)

    def run(self, device: str, launches: Sequence[tuple[Launch, Call]]) -> None:
        """Run these attempts on the device, one after the other in this order."""
        self._workers[device].run(launches)

    def run_group(self, devices: Sequence[str], launch: Launch, call: Call) -> None:
        """Run one attempt on all devices together; the position of a device is its rank."""
        group = Group(launch.task, [self._workers[device] for device in devices])
        with group.lock:
            for rank, device in enumerate(devices):
                self._workers[device].run([(launch, call)], group, rank)

    def _start_worker(self, device: str) -> None:
        self._workers[device] = self._make(self._devices[device])

    def commit(self, task: int, attempt: int) -> None:
        """Make the result of this attempt the data item `task`; later results of the task are dropped."""
        self._context.items.commit(task, attempt)

    # -- data -------------------------------------------------------------------------------------------------

    def load(self, item: int) -> Any:
        """Return the value of a data item, from wherever it is; may wait for a copy."""
        found = self._context.items.find(item)
        value, payload = found.value, found.payload
        if value is not MISSING:
            return value
        if payload is None:
            replica = found.replicas[0]
            found = self._exported(item, lambda done: self._worker_of(replica).export_value(replica.key, done))
            return found.value if found.payload is None else self._read(item, found.payload)
        return self._read(item, payload)

    def pids(self) -> Mapping[str, int]:
        """Return the process id of each worker that is a process."""
        workers = [worker for worker in self._workers.values() if isinstance(worker, ProcessWorker)]
        return {worker.device.id: pid for worker in workers if (pid := worker.pid)}

    def usage(self) -> Mapping[str, NodeUsage]:
        """Return how full each memory node is."""
        found = {HOST_NODE: self._context.pool.usage()}
        for device in self._devices.values():
            if device.memory_node != HOST_NODE:
                found[device.memory_node] = self._context.meter.usage(device)
        return found

    # -- transfers, in the hub's thread -----------------------------------------------------------------------

    def _transfer(self, order: Transfer) -> None:
        now_s = self._context.clock.now_s()
        try:
            item = self._context.items.find(order.item)
            if order.dst == HOST_NODE or not item.on_host:
                replica = next(r for r in item.replicas if r.holder.device.memory_node == order.src)
                self._worker_of(replica).export_value(replica.key, lambda *answer: self._on_export(order, *answer))
            else:
                self._bring(order, item, now_s, 0.0)
        except StopIteration:
            self._transfer_failed(order, f"data item {order.item} is not on {order.src}")
        except HeteroError as error:
            self._transfer_failed(order, str(error))

    def _on_export(self, order: Transfer, problem: str, started_s: float, seconds: float, answer: Item | None) -> None:
        if answer is None:
            self._transfer_failed(order, problem)
        elif order.dst == HOST_NODE:
            with suppress(DeviceLostError):
                item = self._context.items.find(order.item)
                item.payload, item.value = answer.payload, answer.value
            self._arrived(order, started_s, seconds)
        else:
            self._bring(order, answer, started_s, seconds)

    def _bring(self, order: Transfer, item: Item, started_s: float, so_far_s: float) -> None:
        worker = next((w for w in self._workers.values() if w.device.memory_node == order.dst), None)
        if worker is None:
            self._transfer_failed(order, f"no worker has the memory node {order.dst}")
            return
        key = (order.item, 0, order.dst)

        def arrived(problem: str, start: float, seconds: float, _: object) -> None:
            self._travelling.pop(key, None)
            if problem:
                self._transfer_failed(order, problem)
                return
            self._context.items.add_replica(order.item, Replica(worker, key, order.nbytes))
            self._arrived(order, started_s if so_far_s else start, so_far_s + seconds)

        if isinstance(worker, ThreadWorker):
            worker.import_value(key, item.value if item.payload is None else item.payload, arrived)
        else:
            payload = item.payload or self._payload(item.value, f"data item {order.item}")
            self._travelling[key] = payload
            worker.import_value(key, payload, arrived)

    def _worker_of(self, replica: Replica) -> Worker:
        assert isinstance(replica.holder, ProcessWorker | ThreadWorker)
        return replica.holder

    def _segment_closed(self, number: int) -> None:
        for worker in self._workers.values():
            worker.drop_segment(number)

    # -- the end ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End every worker and give back every resource; safe to call twice."""
        if self._pid != os.getpid():  # in a forked process nobody would ever release the lock
            return
        with self._stop_lock:
            if not self._pid:
                return
            self._pid = 0
        for worker in self._workers.values():
            worker.ask_to_stop()
        self._context.hub.stop()
        for worker in self._workers.values():
            worker.stop()
        self._context.items.clear()
        self._context.pool.close()
