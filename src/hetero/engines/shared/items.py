"""Where the value of each data item is: as bytes on the host, as an object of this process, or on devices.

In: results, commits, losses. Out: values, and what to send to a worker. It must not start a copy by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from hetero.engines.base import ItemRef, NodeUsage
from hetero.engines.shared.memory_pool import Payload
from hetero.engines.shared.wire import LARGE_BYTES, WireValue
from hetero.floor.containers import is_container, rebuild
from hetero.floor.errors import DeviceLostError, SerialisationError
from hetero.model.device import Device

__all__ = ["MISSING", "HeldItem", "Holder", "Items", "NodeMeter", "Packer", "Replica", "resolve", "sizeof"]


class _Missing:
    __slots__ = ()


MISSING = _Missing()


def resolve(value: Any, values: Mapping[int, object]) -> object:
    """Return a value with the items themselves in place of references to them, inside containers too."""
    kind = type(value)
    if kind is ItemRef:
        return values[value.item]
    return rebuild(value, lambda each: resolve(each, values)) if is_container(kind) else value


def sizeof(value: object) -> int:
    """Return the bytes of the arrays in a value, 0 where they are few enough for a message."""
    if isinstance(value, list | tuple):
        total = sum([sizeof(item) for item in value]) if len(value) <= 4096 else 0
    elif isinstance(value, dict):
        total = sum([sizeof(item) for item in value.values()]) if len(value) <= 4096 else 0
    else:
        try:
            nbytes = getattr(value, "nbytes", 0)
        except BaseException:  # noqa: BLE001  it may be a property of the user's
            return 0
        total = nbytes if isinstance(nbytes, int) else 0
    return total if total >= LARGE_BYTES else 0


class Holder(Protocol):
    """A worker that keeps values on its device's memory node."""

    device: Device

    def drop(self, key: object) -> None:
        """Forget a kept value."""
        ...


class Packer(Protocol):
    """Turns values into bytes that travel."""

    def payload(self, value: object) -> Payload:
        """Return a value as bytes; raises whatever its pickling raises."""
        ...


class Replica(NamedTuple):
    """A value kept by a worker under a key."""

    holder: Holder
    key: object
    nbytes: int


class NodeMeter:
    """How much lies on each memory node of a device."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        self._peak: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, node: str, nbytes: int) -> None:
        """Count bytes that came, or went when negative."""
        with self._lock:
            used = self._used[node] = self._used.get(node, 0) + nbytes
            self._peak[node] = max(used, self._peak.get(node, 0))

    def usage(self, device: Device) -> NodeUsage:
        """Return the use of a device's node."""
        capacity = device.memory_limit_bytes or device.memory_bytes or 0
        return NodeUsage(capacity, self._used.get(device.memory_node, 0), self._peak.get(device.memory_node, 0), 0.0)


class HeldItem:
    """One value: any of its three forms may be there."""

    __slots__ = ("payload", "replicas", "value")

    def __init__(self, payload: Payload | None = None, value: object = MISSING, replica: Replica | None = None) -> None:
        self.payload = payload
        self.value = value
        self.replicas: tuple[Replica, ...] = (replica,) if replica else ()

    @property
    def on_host(self) -> bool:
        """Return whether the host has it."""
        return self.payload is not None or self.value is not MISSING

    def on(self, holder: Holder) -> Replica | None:
        """Return the replica that a worker keeps."""
        return next((replica for replica in self.replicas if replica.holder is holder), None)


class Items:
    """All data items and uncommitted results of one engine."""

    def __init__(self, pool: Packer, meter: NodeMeter) -> None:
        self._pool = pool
        self._meter = meter
        self._items: dict[int, HeldItem] = {}
        self._results: dict[int, list[tuple[int, HeldItem]]] = {}
        self._lock = threading.Lock()

    def finished(self, task: int, attempt: int, item: HeldItem) -> None:
        """Keep a result until it is committed or discarded."""
        with self._lock:
            results = self._results.get(task)
            if results is None:
                self._results[task] = [(attempt, item)]
            else:
                results.append((attempt, item))
        for replica in item.replicas:
            self._meter.add(replica.holder.device.memory_node, replica.nbytes)

    def commit(self, task: int, attempt: int) -> None:
        """Make a result the data item; drop the task's others."""
        with self._lock:
            results = self._results.pop(task, ())
            before = self._items.get(task)
            if len(results) == 1 and results[0][0] == attempt and before is None:
                self._items[task] = results[0][1]
                return
            unwanted = [item for number, item in results if number != attempt]
            for number, item in results:
                if number == attempt:
                    self._items[task] = item
                    unwanted.extend([before] if before else [])
        for item in unwanted:
            self._drop(item)

    def discard(self, task: int, attempt: int) -> None:
        """Drop the result of one attempt."""
        with self._lock:
            results = self._results.pop(task, [])
            rest = [row for row in results if row[0] != attempt]
            if rest:
                self._results[task] = rest
        for number, item in results:
            if number == attempt:
                self._drop(item)

    def put(self, number: int, item: HeldItem) -> None:
        """Keep a value of the user's."""
        self._items[number] = item

    def forget(self, number: int) -> None:
        """Drop an item, and what was not committed of its task."""
        with self._lock:
            item = self._items.pop(number, None)
            results = self._results.pop(number, ())
        for dropped in ([item] if item else []) + [row[1] for row in results]:
            self._drop(dropped)

    def find(self, number: int) -> HeldItem:
        """Return an item.

        Raises
        ------
        DeviceLostError
            It is not there, or not any more.
        """
        item = self._items.get(number)
        if item is None or (item.value is MISSING and item.payload is None and not item.replicas):
            raise DeviceLostError(f"data item {number} is not there any more: the device that held it was lost")
        return item

    def add_replica(self, number: int, replica: Replica) -> None:
        """Record that a worker now keeps an item."""
        with self._lock:
            item = self._items.get(number)
            if item is not None:
                item.replicas = (*item.replicas, replica)
        if item is None:
            replica.holder.drop(replica.key)
        else:
            self._meter.add(replica.holder.device.memory_node, replica.nbytes)

    def free(self, number: int, node: str, on_host: bool) -> None:
        """Drop an item's replica on one memory node."""
        item = self._items.get(number)
        if item is None:
            return
        if on_host:
            item.payload, item.value = None, MISSING
            return
        with self._lock:
            gone = [replica for replica in item.replicas if replica.holder.device.memory_node == node]
            item.replicas = tuple([replica for replica in item.replicas if replica not in gone])
        self._release(gone)

    def lost(self, holder: Holder) -> None:
        """Forget what a worker that went away had kept."""
        with self._lock:
            for item in self._all():
                for replica in item.replicas:
                    if replica.holder is holder:
                        self._meter.add(holder.device.memory_node, -replica.nbytes)
                item.replicas = tuple([replica for replica in item.replicas if replica.holder is not holder])

    def payload(self, number: int) -> Payload:
        """Return an item as bytes, which are made when a thread had left it as an object.

        Raises
        ------
        DeviceLostError, SerialisationError
            It is not on the host, or cannot travel.
        """
        item = self.find(number)
        if item.payload is None:
            if item.value is MISSING:
                raise DeviceLostError(f"data item {number} is not on the host")
            try:
                item.payload = self._pool.payload(item.value)
            except Exception as error:
                raise SerialisationError(f"data item {number} cannot travel to a worker process: {error}") from error
        return item.payload

    def for_worker(self, number: int, holder: Holder) -> tuple[tuple[WireValue | None, object], Payload | None]:
        """Return how an item goes to a worker, and what must be kept until the worker is done."""
        replica = self.find(number).on(holder)
        if replica is not None:
            return (None, replica.key), None
        payload = self.payload(number)
        return (payload.wire(), None), payload

    def for_thread(self, number: int, kept: Callable[[object], object], holder: Holder) -> object:
        """Return the value of an item to a worker thread."""
        item = self.find(number)
        replica = item.on(holder)
        if replica is not None:
            return kept(replica.key)
        if item.value is not MISSING:
            return item.value
        return self.payload(number).value()

    def clear(self) -> None:
        """Forget everything."""
        self._items.clear()
        self._results.clear()

    def _all(self) -> Iterator[HeldItem]:
        yield from self._items.values()
        for rows in self._results.values():
            for _, item in rows:
                yield item

    def _drop(self, item: HeldItem) -> None:
        self._release(item.replicas)
        item.payload, item.value, item.replicas = None, MISSING, ()

    def _release(self, replicas: tuple[Replica, ...] | list[Replica]) -> None:
        for replica in replicas:
            self._meter.add(replica.holder.device.memory_node, -replica.nbytes)
            replica.holder.drop(replica.key)
