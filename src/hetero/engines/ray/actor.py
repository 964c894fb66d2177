"""The Ray actor of a device: its class, starting it on its host, transfers through it, and why it ended.

In: a device and a host; values and keys. Out: an actor on its way; a call of `done(error, started_s, seconds, item)` in
the hub's thread for each transfer. It does not wait and knows no tasks.

Ray wraps each method of an actor's class, also those that only the class itself calls, which costs time and shows in
tracebacks: so the actor's class only forwards to its `ActorWorker`.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hetero.engines.base import WorkerEntry
from hetero.engines.ray.actor_worker import MESSAGES, TRANSFERS, ActorWorker, Greeting
from hetero.engines.ray.cluster import OWN_HOST, Cluster, Host
from hetero.engines.ray.heartbeats import HostMonitor
from hetero.engines.ray.object_store import ActorWire, CallBundle, ObjectStore, StoredPayload
from hetero.engines.shared.engine import EngineContext
from hetero.engines.shared.items import HeldItem
from hetero.engines.shared.memory_pool import Payload
from hetero.floor import settings
from hetero.model.device import HOST_NODE, Device

if TYPE_CHECKING:
    import ray
    from ray.actor import ActorHandle

__all__ = ["THREADS", "ActorTransfers", "DeviceActor", "Done", "RayContext", "start_actor", "why_ended"]


@dataclass(slots=True, kw_only=True)
class RayContext(EngineContext):
    """What all parts of one Ray engine share."""

    cluster: Cluster
    store: ObjectStore
    monitor: HostMonitor


THREADS = {MESSAGES: 1, TRANSFERS: 1}
"""Beside the one that runs tasks: for orders and messages, and for copies."""

Answer = tuple[bytes, tuple[object, ...] | None]


class DeviceActor:
    """The actor of one device; its methods are those of `ActorWorker`."""

    def __init__(self, entry: WorkerEntry, device: Device, path: Sequence[str], address: str) -> None:
        self._worker = ActorWorker(entry, device, path, address)

    def greet(self) -> Greeting:
        """Return who this is, and on which of Ray's nodes."""
        import ray

        return self._worker.greet(ray.get_runtime_context().get_node_id())

    def now(self) -> float:
        """Return the time on this host's clock."""
        return self._worker.now_s()

    def run(self, batch: bytes, *parts: object) -> Answer:
        """Run attempts one after the other."""
        return self._worker.run(batch, (), parts)

    def run_group(self, batch: bytes, peers: Sequence[object], *parts: object) -> Answer:
        """Run an attempt together with others."""
        return self._worker.run(batch, peers, parts)

    def recv(self, which: tuple[int, int], sender: int, body: bytes | None, *buffers: object) -> None:
        """Take a value from another member of a group."""
        self._worker.recv(which, sender, body, *buffers)

    def peer_left(self, which: tuple[int, int], sender: int, reason: str) -> None:
        """Learn that another member of a group has ended."""
        self._worker.peer_left(which, sender, reason)

    def withdraw(self, seqs: Sequence[int]) -> None:
        """Return attempts that have not started to the scheduler."""
        self._worker.withdraw(seqs)

    def cancel(self, seq: int) -> None:
        """Stop an attempt."""
        self._worker.cancel(seq)

    def import_value(self, key: object, wire: ActorWire, *parts: object) -> tuple[float, float]:
        """Copy a value to the device's memory node."""
        return self._worker.import_value(key, wire, parts)

    def export_value(self, key: object) -> Answer:
        """Copy a kept value to the host."""
        return self._worker.export_value(key)

    def drop(self, key: object) -> None:
        """Forget a kept value."""
        self._worker.drop(key)

    def touch(self, *parts: object) -> None:
        """Do nothing: the parts are on this host now."""


_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_OTHERS = ("RAY_", "HETERO_", "PYTHON", "LD_", "CUDA_VISIBLE", "ROCR_", "HIP_", *_THREAD_COUNTS)
"""Variables of which an actor has its own."""
_PLACES = ("HETERO_HOME", "HETERO_CONFIG", "HETERO_TRACE", "HETERO_TEST_DATA")
"""Switches that name files, which another host need not have."""


def start_actor(entry: WorkerEntry, device: Device, host: Host) -> ActorHandle:
    """Start the actor of a device; it is pinned softly, so that nothing waits for a host that is dead.

    Notes
    -----
    Ray restarts nothing and retries nothing: that is decided by the core. Nor does it keep a record of each call, which
    nobody would read and which takes a tenth of a round trip.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0, concurrency_groups=THREADS)(DeviceActor)
    inside = device if device.memory_node != f"{device.host}/ram" else replace(device, memory_node=HOST_NODE)
    return actor.options(
        enable_task_events=False,
        scheduling_strategy=NodeAffinitySchedulingStrategy(host.node_id, soft=True),
        runtime_env={"env_vars": {**_variables(device, host), "PYTHONHASHSEED": entry.setup.hash_seed}},
    ).remote(_for_host(entry, host), inside, entry.setup.path, host.address)


def _for_host(entry: WorkerEntry, host: Host) -> WorkerEntry:
    """Return the entry for a host: one that is not the program's keeps its own environment and working folder."""
    there, setup = copy(entry), entry.setup
    if host.name != OWN_HOST:
        there.setup = replace(setup, environment={}, folder="")
        return there
    folder = setup.folder if os.path.isdir(setup.folder) else ""
    own = {name: text for name, text in setup.environment.items() if not name.startswith(_OTHERS)}
    there.setup = replace(setup, environment=own, folder=folder)
    return there


def _variables(device: Device, host: Host) -> dict[str, str]:
    switches = settings.given()
    if host.name != OWN_HOST:
        switches = {name: text for name, text in switches.items() if name not in _PLACES}
    if device.cpus or device.is_host:
        switches |= dict.fromkeys(_THREAD_COUNTS, str(device.cores))
    return switches


def why_ended(error: Exception) -> str:
    """Return why an actor ended, in one line."""
    text = str(error)
    if "No module named 'hetero'" in text:
        return "hetero is not installed on its host: install the same version there"
    if "node" in text and ("died" in text or "dead" in text) and "worker process has died" not in text:
        return "its host went away"
    if "worker process has died" in text or "exit type: SYSTEM_ERROR" in text:
        return "its worker process ended without a word, as after SIGKILL or a crash"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


Done = Callable[[str, float, float, HeldItem | None], None]


class ActorTransfers:
    """The copies of one actor.

    Attributes
    ----------
    handle
        The actor, None before it is ready and after its end.
    """

    def __init__(self, context: RayContext, device: str) -> None:
        self.handle: Any = None
        self._context = context
        self._device = device
        self._numbers = itertools.count(1)
        self._orders: dict[int, tuple[object, Done]] = {}

    def import_value(self, key: object, payload: Payload, done: Done) -> None:
        """Copy a value to the device's memory node."""
        bundle = CallBundle()
        wire = bundle.wire(payload)
        refs = bundle.refs
        self._order(done, lambda group: (self.handle.import_value.options(**group).remote(key, wire, *refs), None))

    def export_value(self, key: object, done: Done) -> None:
        """Copy a kept value to its host's main memory; `done` gets it as an item."""
        self._order(done, lambda group: self.handle.export_value.options(num_returns=2, **group).remote(key))

    def touch(self, payload: Payload, done: Done) -> None:
        """Copy a value to the main memory of the actor's host."""
        bundle = CallBundle()
        bundle.wire(payload)
        self._order(done, lambda group: (self.handle.touch.options(**group).remote(*bundle.refs), None))

    def end(self) -> None:
        """Fail every copy under way."""
        self.handle = None
        orders, self._orders = self._orders, {}
        for _, done in orders.values():
            done(self._gone, 0.0, 0.0, None)

    @property
    def _gone(self) -> str:
        return f"the worker of {self._device} went away"

    def _order(self, done: Done, call: Callable[[dict[str, str]], tuple[ray.ObjectRef, object]]) -> None:
        if self.handle is None:
            self._context.hub.call(lambda: done(self._gone, 0.0, 0.0, None))
            return
        asked_s = self._context.clock.now_s()
        ref, data = call({"concurrency_group": TRANSFERS})
        number = next(self._numbers)
        self._orders[number] = ((ref, data), done)
        ref._on_completed(lambda answer: self._context.hub.call(partial(self._copied, number, data, asked_s, answer)))

    def _copied(self, number: int, data: object, asked_s: float, answer: bytes | Exception) -> None:
        order = self._orders.pop(number, None)
        if order is None:
            return
        done, now_s = order[1], self._context.clock.now_s()
        if isinstance(answer, Exception):
            done(why_ended(answer), 0.0, 0.0, None)
            return
        self._context.counters["transfers"] += 1
        item = None
        if data is not None:
            _, _, body, sizes = pickle.loads(answer)
            parts = [self._context.store.part(data, place, size) for place, size in enumerate(sizes)]
            item = HeldItem(StoredPayload(body, parts))
        done("", asked_s, now_s - asked_s, item)
