"""The Ray engine: carries out commands on actors, one a device, wherever its host is.

In: commands and calls. Out: events. It never chooses a device, and Ray chooses none either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hetero.engines.base import Call, NodeUsage, Reach, Report, WorkerEntry
from hetero.engines.ray.actor import RayContext
from hetero.engines.ray.actor_proxy import START_S, ActorProxy
from hetero.engines.ray.cluster import OWN_HOST, Cluster, Host
from hetero.engines.ray.heartbeats import SILENT_S, HostMonitor
from hetero.engines.ray.object_store import ObjectStore, StoredPayload
from hetero.engines.shared.engine import Done, PayloadEngine
from hetero.engines.shared.groups import GroupTask
from hetero.engines.shared.items import HeldItem, Replica
from hetero.floor.clock import Clock
from hetero.model.commands import Launch, Transfer
from hetero.model.device import HOST_NODE, Device

__all__ = ["RayEngine"]


class RayEngine(PayloadEngine[ActorProxy]):
    """Runs tasks on the actors of a Ray cluster, one a device.

    Parameters
    ----------
    address
        'local' for a cluster of this program's own on this host, 'auto', or 'host:port'.
    memory_pool_bytes
        Bytes of the object store of a cluster of its own.
    start_s
        Seconds that a worker may take to start.
    note
        Told what the user should know, in one line each.
    joined
        Called with each host that joins while it runs, in the thread that carries all news; None leaves it aside.

    Attributes
    ----------
    counters
        How often things happened: copies and copied_bytes (into the object store), shared (copies saved), messages
        (calls of actors that carried attempts), functions (sent to a worker), transfers.
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
        super().__init__(memory_pool_bytes, start_s, note)
        self._joined = joined
        self._address = address
        self._context: RayContext

    def start(self, devices: Sequence[Device], worker: WorkerEntry, clock: Clock, report: Report) -> None:
        """Be part of the cluster, and start an actor for each device without waiting for it.

        Raises
        ------
        EngineError
            There is no such cluster, or it cannot be used.
        """
        cluster = Cluster.open(self._address, self._pool_bytes)
        store = ObjectStore(cluster.store_bytes, self.counters)
        shared, hosts = self._shared(store, worker, clock, report), [device.host for device in devices]
        self._context = RayContext(
            **shared,
            cluster=cluster,
            store=store,
            monitor=HostMonitor(shared["hub"], cluster, hosts, self._silent, self._joined),
        )
        limited = [device for device in devices if device.is_host and device.memory_limit_bytes]
        self._note_unlimited(limited, "belongs to Ray")
        self._start_workers(devices)

    def add(self, devices: Sequence[Device]) -> None:
        """Start an actor for each of some more devices."""
        self._devices = {**self._devices, **{device.id: device for device in devices}}
        self._workers = {**self._workers, **{device.id: ActorProxy(self._context, device) for device in devices}}

    def _silent(self, host: str) -> None:
        for worker in list(self._workers.values()):
            if worker.device.host == host:
                worker.lose(f"its host did not answer for {SILENT_S:g} s")

    def _stored(self, value: object) -> StoredPayload:
        return self._context.store.payload(value)

    def run(self, device: str, launches: Sequence[tuple[Launch, Call]]) -> None:
        """Run these attempts on the device, one after the other in this order."""
        self._workers[device].run(launches)

    def run_group(self, devices: Sequence[str], launch: Launch, call: Call) -> None:
        """Run one attempt on all devices together; the position of a device is its rank."""
        members = [self._workers[device] for device in devices]
        group, peers = GroupTask(launch.task, members), tuple([member.handle for member in members])
        for rank, member in enumerate(members):
            member.run([(launch, call)], group, rank, peers)

    def _start_worker(self, device: str) -> None:
        self._workers[device] = ActorProxy(self._context, self._devices[device])

    # -- data -------------------------------------------------------------------------------------------------

    def load(self, item: int) -> object:
        """Return the value of a data item, from wherever it is; may wait for a copy."""
        found = self._context.items.find(item)
        if found.payload is not None:
            return self._read(item, found.payload)
        answer = self._wait_for_export(item, found.replicas[0])
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

    def _can_bring(self, order: Transfer, item: HeldItem) -> bool:
        return item.payload is not None

    def _export(self, replica: Replica, done: Done) -> None:
        assert isinstance(replica.holder, ActorProxy)
        replica.holder.transfers.export_value(replica.key, done)

    def _exported(self, order: Transfer, item: HeldItem, answer: HeldItem) -> None:
        item.payload = answer.payload

    def _bring(self, order: Transfer, item: HeldItem, started_s: float, so_far_s: float) -> None:
        """Copy what lies in the object store to where it is wanted: a host's memory, or a device's own."""
        now_s = self._context.clock.now_s()
        if order.dst == HOST_NODE:
            self._arrived(order, now_s - so_far_s, so_far_s)
            return
        worker = next((one for one in self._workers.values() if one.device.memory_node == order.dst), None)
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

    def _release(self) -> None:
        self._context.monitor.stop()
        super()._release()
        self._context.store.clear()
        self._context.cluster.close()
