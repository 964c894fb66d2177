"""The local engine: carries out commands on the workers of this host, in processes and threads.

In: commands and calls. Out: events. It never chooses a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hetero.engines.base import Call, NodeUsage, Report, WorkerEntry
from hetero.engines.local.context import LocalContext
from hetero.engines.local.process_proxy import START_S, ProcessProxy
from hetero.engines.local.worker_thread import ThreadWorker
from hetero.engines.shared.engine import Done, PayloadEngine
from hetero.engines.shared.groups import GroupTask
from hetero.engines.shared.items import MISSING, HeldItem, Replica
from hetero.engines.shared.memory_pool import MemoryPool, Payload
from hetero.engines.shared.messages import Transport
from hetero.floor.clock import Clock, WallClock
from hetero.floor.platform import FEATURES
from hetero.model.commands import Launch, Transfer
from hetero.model.device import HOST_NODE, Device

__all__ = ["LocalEngine"]

Worker = ProcessProxy | ThreadWorker


class LocalEngine(PayloadEngine[Worker]):
    """Runs tasks on this host, one worker a device.

    Parameters
    ----------
    memory_pool_bytes
        Bytes of the pool through which arrays travel.
    isolation
        'process' or 'thread' for all devices, '' for what each device says.
    start_s
        Seconds that a worker may take to start.
    note
        Told what the user should know, in one line each.
    transport
        How the members of a group exchange values.

    Attributes
    ----------
    counters
        How often things happened: copies, copied_bytes, shared (copies saved), messages, functions (sent to a worker),
        transfers, spills, spilled_bytes, pieces (of what group members sent to processes), pieces_in_pool.
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
        super().__init__(memory_pool_bytes, start_s, note)
        self._isolation = isolation
        self._transport = transport
        self._context: LocalContext
        self._travelling: dict[tuple[int, int, str], Payload] = {}
        self._bytes_needed = False

    def start(self, devices: Sequence[Device], worker: WorkerEntry, clock: Clock, report: Report) -> None:
        """Start a worker for each device, without waiting."""
        pool = MemoryPool(self._pool_bytes, self._note, self.counters)
        self._context = LocalContext(
            **self._shared(pool, worker, clock, report),
            pool=pool,
            origin_s=WallClock(0.0).now_s() - clock.now_s(),
            transport=self._transport,
            submitter=self.submitter,
            fleet=self._spreads_over(devices),
        )
        pool.closed_segments = self._segment_closed
        self._bytes_needed = any(self._in_process(device) for device in devices)
        if not FEATURES.fd_passing and any(self._wants_process(device) for device in devices):
            self._note("this system cannot hand open files to a worker process: every device gets a thread instead")
        unbound = [d for d in devices if d.is_host and d.memory_limit_bytes and not self._limits(d)]
        self._note_unlimited(unbound, "is no process that this system can limit")
        self._start_workers(devices)

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

    def _stored(self, value: object) -> Payload:
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
        group = GroupTask(launch.task, [self._workers[device] for device in devices])
        with group.lock:
            for rank, device in enumerate(devices):
                self._workers[device].run([(launch, call)], group, rank)

    def _start_worker(self, device: str) -> None:
        kind = ProcessProxy if self._in_process(self._devices[device]) else ThreadWorker
        self._workers[device] = kind(self._context, self._devices[device])

    # -- data -------------------------------------------------------------------------------------------------

    def load(self, item: int) -> object:
        """Return the value of a data item, from wherever it is; may wait for a copy."""
        found = self._context.items.find(item)
        value, payload = found.value, found.payload
        if value is not MISSING:
            return value
        if payload is None:
            found = self._wait_for_export(item, found.replicas[0])
            return found.value if found.payload is None else self._read(item, found.payload)
        return self._read(item, payload)

    def pids(self) -> Mapping[str, int]:
        """Return the process id of each worker that is a process."""
        workers = [worker for worker in self._workers.values() if isinstance(worker, ProcessProxy)]
        return {worker.device.id: pid for worker in workers if (pid := worker.pid)}

    def usage(self) -> Mapping[str, NodeUsage]:
        """Return how full each memory node is."""
        found = {HOST_NODE: self._context.pool.usage()}
        for device in self._devices.values():
            if device.memory_node != HOST_NODE:
                found[device.memory_node] = self._context.meter.usage(device)
        return found

    # -- transfers, in the hub's thread -----------------------------------------------------------------------

    def _can_bring(self, order: Transfer, item: HeldItem) -> bool:
        return order.dst != HOST_NODE and item.on_host

    def _export(self, replica: Replica, done: Done) -> None:
        assert isinstance(replica.holder, ProcessProxy | ThreadWorker)
        replica.holder.export_value(replica.key, done)

    def _exported(self, order: Transfer, item: HeldItem, answer: HeldItem) -> None:
        if order.dst == HOST_NODE:
            item.payload, item.value = answer.payload, answer.value

    def _bring(self, order: Transfer, item: HeldItem, started_s: float, so_far_s: float) -> None:
        if order.dst == HOST_NODE:
            self._arrived(order, started_s, so_far_s)
            return
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

    def _segment_closed(self, number: int) -> None:
        for worker in self._workers.values():
            worker.drop_segment(number)

    # -- the end ----------------------------------------------------------------------------------------------

    def _ask_to_stop(self) -> None:
        for worker in self._workers.values():
            worker.ask_to_stop()

    def _release(self) -> None:
        super()._release()
        self._context.pool.close()
