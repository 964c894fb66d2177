"""The Ray engine: carries out commands on actors, one a device, wherever its host is.

In: commands and calls. Out: events. It never chooses a device, and Ray chooses none either.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hetero.engines.base import Call, NodeUsage, Reach, Report, WorkerEntry
from hetero.engines.ray.actor_proxy import START_S, RemoteWorker
from hetero.engines.ray.cluster import OWN_HOST, Cluster, Host
from hetero.engines.ray.context import RayContext
from hetero.engines.ray.heartbeats import SILENT_S, HostMonitor
from hetero.engines.ray.object_store import ObjectStore, StoredPayload
from hetero.engines.shared.engine import PayloadEngine
from hetero.engines.shared.groups import Group
from hetero.engines.shared.hub import Hub
from hetero.engines.shared.items import Item, Items, Meter, Replica
from hetero.floor.clock import Clock
from hetero.floor.errors import DeviceLostError, HeteroError
from hetero.model.commands import Launch, Transfer
from hetero.model.device import HOST_NODE, Device

__all__ = ["RayEngine"]


class RayEngine(PayloadEngine):
    """Runs tasks on the actors of a Ray cluster, one a device.

    Parameters
    ----------
    address : 'local' for a cluster of this program's own on this host, 'auto', or 'host:port'
    memory_pool_bytes : bytes of the object store of a cluster of its own
    start_s : s that a worker may take to start
    note : told what the user should know, in one line each
    joined : called with each host that joins while it runs, in the thread that carries all news; None leaves it aside

    Attributes
    ----------
    counters : how often things happened: copies and copied_bytes (into the object store), shared (copies saved),
        messages (calls of actors that carried attempts), functions (sent to a worker), transfers
    """

    name = "ray"

    def __init__(
        self,
        address: str = "local",
        memory_pool_bytes: int = 1 << 30,
        start_s: float = START_S,
        note: Callable[[str], None] = lambda text: None,
        joined: Callable[[Host], None] | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._joined = joined
        self._address = address
        self._pool_bytes = memory_pool_bytes
        self._start_s = start_s
        self._note = note
        self._context: RayContext
        self._devices: dict[str, Device] = {}
        self._workers: dict[str, RemoteWorker] = {}
        self._pid = 0
        self._stop_lock = threading.Lock()

    def start(self, devices: Sequence[Device], worker: WorkerEntry, clock: Clock, report: Report) -> None:
        """Be part of the cluster, and start an actor for each device without waiting for it.

        Raises
        ------
        EngineError
            There is no such cluster, or it cannot be used.
        """
        cluster = Cluster.open(self._address, self._pool_bytes)
        store, meter = ObjectStore(cluster.store_bytes, self.counters), Meter()
        items, hub = Items(store, meter), Hub(report)
        monitor = HostMonitor(hub, cluster, [device.host for device in devices], self._silent, self._joined)
        self._context = RayContext(
            hub, cluster, store, items, meter, clock, self.counters, worker, report, self._start_s, monitor, self.tell,
            self.log,
            self.tell_parts,
        )  # fmt: skip
        self._pid = os.getpid()
        self._devices = {device.id: device for device in devices}
        limited = [device.short for device in devices if device.kind == "cpu" and device.memory_limit_bytes]
        if limited:
            self._note(
                f"the memory_limit of {', '.join(limited)} keeps out tasks that ask for more, but does not stop one "
                "that takes more: its worker belongs to Ray"
            )
        hub.start()
        self._end_with_program()
        for device in devices:
            self._workers[device.id] = RemoteWorker(self._context, device)

    def add(self, devices: Sequence[Device]) -> None:
        """Start an actor for each of some more devices."""
        self._devices = {**self._devices, **{device.id: device for device in devices}}
        self._workers = {**self._workers, **{device.id: RemoteWorker(self._context, device) for device in devices}}

    def _silent(self, host: str) -> None:
        for worker in list(self._workers.values()):
            if worker.device.host == host:
                worker.lose(f"its host did not answer for {SILENT_S:g} s")

    @property
    def _site(self) -> RayContext:
        return self._context

    def _stored(self, value: Any) -> StoredPayload:
        return self._context.store.payload(value)

    def run(self, device: str, launches: Sequence[tuple[Launch, Call]]) -> None:
        """Run these attempts on the device, one after the other in this order."""
        self._workers[device].run(launches)

    def run_group(self, devices: Sequence[str], launch: Launch, call: Call) -> None:
        """Run one attempt on all devices together; the position of a device is its rank."""
        members = [self._workers[device] for device in devices]
        group, peers = Group(launch.task, members), tuple([member.handle for member in members])
        for rank, member in enumerate(members):
            member.run([(launch, call)], group, rank, peers)

    def _start_worker(self, device: str) -> None:
        self._workers[device] = RemoteWorker(self._context, self._devices[device])

    # -- data -------------------------------------------------------------------------------------------------

    def load(self, item: int) -> Any:
        """Return the value of a data item, from wherever it is; may wait for a copy."""
        found = self._context.items.find(item)
        if found.payload is not None:
            return self._read(item, found.payload)
        replica = found.replicas[0]
        answer = self._exported(item, lambda done: _worker_of(replica).transfers.export_value(replica.key, done))
        assert answer.payload is not None
        return self._read(item, answer.payload)

    def pids(self) -> Mapping[str, int]:
        """Return the process id of each worker that is on this host."""
        return {name: worker.pid for name, worker in self._workers.items() if worker.pid}

    def reach(self) -> Reach:
        """Return the addresses of hosts: those of the cluster, where devices are on several."""
        if all(device.host == OWN_HOST for device in self._devices.values()):
            return Reach()
        cluster = self._context.cluster
        of_hosts = cluster.addresses()
        workers = {name: of_hosts[device.host] for name, device in self._devices.items()}
        return Reach(of_hosts[OWN_HOST], workers, cluster.certificates)

    def usage(self) -> Mapping[str, NodeUsage]:
        """Return how full each memory node is."""
        found = {HOST_NODE: self._context.store.usage()}
        for device in self._devices.values():
            if device.memory_node != f"{device.host}/ram":
                found[device.memory_node] = self._context.meter.usage(device)
        return found

    # -- transfers, in the hub's thread -----------------------------------------------------------------------

    def _transfer(self, order: Transfer) -> None:
        try:
            item = self._context.items.find(order.item)
            if item.payload is None:
                replica = next(r for r in item.replicas if r.holder.device.memory_node == order.src)
                _worker_of(replica).transfers.export_value(replica.key, lambda *answer: self._on_export(order, *answer))
            else:
                self._bring(order, item, 0.0)
        except StopIteration:
            self._transfer_failed(order, f"data item {order.item} is not on {order.src}")
        except HeteroError as error:
            self._transfer_failed(order, str(error))

    def _on_export(self, order: Transfer, problem: str, started_s: float, seconds: float, answer: Item | None) -> None:
        if answer is None:
            self._transfer_failed(order, problem)
            return
        with suppress(DeviceLostError):
            self._context.items.find(order.item).payload = answer.payload
        self._bring(order, answer, seconds)

    def _bring(self, order: Transfer, item: Item, so_far_s: float) -> None:
        """Copy what lies in the object store to where it is wanted: a host's memory, or a device's own."""
        now_s = self._context.clock.now_s()
        if order.dst == HOST_NODE:
            self._arrived(order, now_s - so_far_s, so_far_s)
            return
        worker = next((one for one in self._workers.values() if _serves(one.device, order.dst)), None)
        if worker is None or item.payload is None:
            self._transfer_failed(order, f"no worker has the memory node {order.dst}")
            return
        key, own = (order.item, 0, order.dst), worker.device.memory_node == order.dst
        own = own and order.dst != f"{worker.device.host}/ram"

        def arrived(problem: str, started_s: float, seconds: float, _: object) -> None:
            if problem:
                self._transfer_failed(order, problem)
                return
            if own:
                self._context.items.add_replica(order.item, Replica(worker, key, order.nbytes))
            self._arrived(order, now_s - so_far_s, so_far_s + seconds)

        if own:
            worker.transfers.import_value(key, item.payload, arrived)
        else:
            worker.transfers.touch(item.payload, arrived)

    # -- the end ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End every actor and leave the cluster; safe to call twice."""
        if self._pid != os.getpid():  # in a forked process nobody would ever release the lock
            return
        with self._stop_lock:
            if not self._pid:
                return
            self._pid = 0
        self._context.hub.stop()
        for worker in self._workers.values():
            worker.stop()
        self._context.monitor.stop()
        self._context.items.clear()
        self._context.store.clear()
        self._context.cluster.close()


def _serves(device: Device, node: str) -> bool:
    return node == device.memory_node


def _worker_of(replica: Replica) -> RemoteWorker:
    assert isinstance(replica.holder, RemoteWorker)
    return replica.holder
