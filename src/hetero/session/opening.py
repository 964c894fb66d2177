"""Opening a fleet: from a configuration to a running driver, and everything back at the end.

In: a checked configuration. Out: `Opened`, which owns what a Context needs below it.
It must not wait for workers: they start while the program goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING

from hetero.backends import host
from hetero.backends.cpu import CpuLoad
from hetero.drive.frame import follow_threads, where
from hetero.drive.live import Driver
from hetero.drive.worker import WorkerFactory
from hetero.engines.shared.messages import Transport
from hetero.floor import logs, settings
from hetero.floor.clock import JOIN_S, TraceSink, WallClock
from hetero.floor.errors import HeteroError, HistoryError
from hetero.floor.logs import warn_once
from hetero.model.annotations import DeviceSampled
from hetero.plan.performance.cost_model import CostModel
from hetero.plan.policies import registry
from hetero.plan.policies.base import Policy, traits
from hetero.session import fleet, hosts
from hetero.session.debug_log import DebugLog, TaskCounts, WatchedPolicy, joined, log_to_stderr, tell_devices
from hetero.session.fleet import choose_protocol
from hetero.session.fleet_speed import remembered, status_of

if TYPE_CHECKING:
    from hetero.drive.live import Driver
    from hetero.drive.trace import TraceWriter
    from hetero.engines.base import Engine
    from hetero.engines.ray.cluster import Cluster, Host
    from hetero.engines.shared.worker_setup import WorkerSetup
    from hetero.model.device import Device, DeviceStatus
    from hetero.model.topology import Topology
    from hetero.session.config import Config
    from hetero.session.progress import ProgressView

__all__ = ["HOST", "Joining", "Opened", "Sampler"]

_log = logging.getLogger("hetero")
PLENTY = 4
"""A device is told to be left out when the program had so many tasks a device."""


class Opened:
    """A running driver with what belongs to it.

    Parameters
    ----------
    config
        What was asked for.
    setup
        What workers take over from the program.
    split
        Cuts a task that ran out of memory.
    history
        True reads the times measured in earlier runs, and keeps those of this one.
    progress
        True shows the progress, None shows that of longer runs where HETERO_PROGRESS says so.

    Attributes
    ----------
    devices
        The fleet.
    driver
        Started.
    engine_name
        For people.
    policy_reason
        Why this policy, in words.
    """

    def __init__(
        self,
        config: Config,
        setup: WorkerSetup,
        split: Callable[[int], bool],
        *,
        history: bool,
        progress: bool | None,
    ) -> None:
        self._setup = setup
        self._leave_threads: Callable[[], object] = lambda: None
        level = settings.debug_level()
        if level:
            log_to_stderr(logging.DEBUG)
        with hosts.reached(config) as cluster:
            self.devices = _devices(config, cluster)
            if level:
                tell_devices(self.devices)
            self._topology = hosts.over_network(fleet.topology(self.devices), hosts.network_links(cluster))
            if cluster is not None and cluster.address != "local":
                self._topology = hosts.open_to_more(self._topology)
            self._open(config, split, level, history=history, progress=progress)

    def _open(
        self, config: Config, split: Callable[[int], bool], level: int, *, history: bool, progress: bool | None
    ) -> None:
        self.engine_name = config.engine or "local"
        self._prepare()
        topology = self._topology
        policy, reason = _policy(config.policy, self.devices)
        self.policy_reason = f"{policy.name}: {reason}"
        clock = WallClock()
        self._trace = _trace(config, self.devices, topology, policy, clock)
        self._debug = DebugLog(level) if level >= 2 else None
        self._view, sinks = _sinks(self.devices, self._trace, self._debug, progress)
        self._cost = CostModel(self.devices)
        self._history = _History.opened(self._cost, self.devices) if history else None
        self.driver = Driver(
            devices=self.devices,
            topology=topology,
            engine=_engine(self.engine_name, config, self._joined if topology.elsewhere is not None else None),
            worker=WorkerFactory(self._setup),
            policy=WatchedPolicy(policy) if level >= 4 else policy,
            cost=self._cost,
            clock=clock,
            trace=joined(sinks),
            warn=_log.warning,
            split=split,
            watch=traits(policy).watches_use or self._trace is not None,
        )
        if self._debug is not None:
            self._debug.machine = self.driver.ask(lambda machine: machine)
        self.driver.start()
        self._end_tags = logs.tag_output(where) if self._setup.tag_output else lambda: None
        self._sampler = Sampler(self.driver, self.devices) if self._trace is not None else None

    def _prepare(self) -> None:
        """Have log records of tasks in this process marked, and the initializer captured for other processes."""
        logs.mark_records(where)
        initializer = self._setup.initializer
        elsewhere = self.engine_name != "inline" and any(device.isolation != "thread" for device in self.devices)
        if self.engine_name == "inline" or any(device.isolation == "thread" for device in self.devices):
            self._leave_threads = follow_threads(self)
        if initializer is not None and elsewhere:
            initializer.pack()

    def _joined(self, devices: tuple[Device, ...]) -> None:
        self.driver.join(devices)
        self.devices = (*self.devices, *devices)

    def left_out(self) -> list[tuple[str, str]]:
        """Return the devices that ran nothing although there was plenty, each with the reason."""
        plenty = PLENTY * len(self.devices)
        return self.driver.ask(lambda machine: machine.left_out() if machine.counts.committed >= plenty else [])

    def flush_trace(self) -> None:
        """Write to the file what the trace holds so far."""
        if self._trace is not None:
            self._trace.flush()

    def close(self, wait: bool) -> None:
        """End the driver, then what watched it; tell which devices were left out."""
        left_out = [f"left out: {device.partition('/')[2]}: {reason}" for device, reason in self.left_out()]
        self.driver.close(wait)
        self._end_tags()
        self._leave_threads()
        for line in left_out:
            _log.info(line)
        if self._view is not None:
            self._view.close(left_out)
        if self._sampler is not None:
            self._sampler.close()
        if self._trace is not None:
            self._trace.close()
            if self._trace.problem:
                _log.warning(self._trace.problem)
        if self._history is not None:
            self._history.keep(self.driver.ask(lambda machine: machine.rows.absent))


class _History:
    """Times and sizes of results of earlier runs, handed to a cost model; what this run saw, kept at its end."""

    def __init__(self, cost: CostModel, devices: tuple[Device, ...]) -> None:
        from hetero.stores.history import FILE, HistoryStore

        self._cost = cost
        self._store, trouble = HistoryStore.open_or_aside(settings.home() / FILE)
        if trouble:
            _log.warning(trouble)
        cost.load(self._store.load({device.model_key for device in devices}))
        cost.result_bytes.update(self._store.result_bytes())

    @classmethod
    def opened(cls, cost: CostModel, devices: tuple[Device, ...]) -> _History | None:
        """Open the history; where that is not possible, say so once and give None: the run goes on without."""
        try:
            return cls(cost, devices)
        except HistoryError as error:
            warn_once(f"{error.problem}: nothing is remembered of this run ({error.remedy})")
            return None

    def keep(self, absent: Mapping[str, Mapping[tuple[str, str, str], str]]) -> None:
        """Write what was learned; a disk that refuses costs the history and not the program."""
        from hetero.stores.history import Absence

        try:
            self._store.add(self._cost.new_samples())
            self._store.add_results(self._cost.result_bytes)
            self._store.add_absences(
                Absence(function.partition("@")[0], python, label, message)
                for function, where in absent.items()
                for (_, python, label), message in where.items()
            )
        except HistoryError as error:
            warn_once(f"{error.problem}: nothing is remembered of this run ({error.remedy})")


def _policy(name: str | None, devices: tuple[Device, ...]) -> tuple[Policy, str]:
    """Return the policy and why."""
    if name != registry.AUTO:
        return registry.get(name or registry.DEFAULT), "it was asked for" if name else "it is the default"
    policy, reason = registry.choose(devices)
    _log.info("policy auto takes %s: %s", policy.name, reason)
    return policy, reason


def _devices(config: Config, cluster: Cluster | None) -> tuple[Device, ...]:
    notes: list[str] = []
    devices = hosts.devices_of(cluster, config, notes)
    for note in (*notes, *fleet.remarks(devices)):
        _log.info(note)
    return remembered(devices)


def _engine(name: str, config: Config, found: Callable[[tuple[Device, ...]], None] | None) -> Engine:
    pool_bytes = config.memory_pool_size_bytes or hosts.POOL_BYTES
    if name == "inline":
        from hetero.engines.inline import InlineEngine

        return InlineEngine()
    if name == "ray":
        from hetero.engines.ray.engine import RayEngine

        joined = None if found is None else Joining(config, found).hear
        return RayEngine(config.address or "local", pool_bytes, note=_log.warning, joined=joined)
    from hetero.engines.local.engine import LocalEngine

    return LocalEngine(pool_bytes, note=_log.warning, transport=_transport(config))


def _transport(config: Config) -> Transport:
    """Return how group members talk: all of them are on this host, where RDMA and NCCL have nothing to carry."""
    asked = config.communication
    protocol = choose_protocol(asked.protocol, config.source)
    if protocol in ("rdma", "nccl"):
        _log.info("the members of a group task are on one host: they talk through shared memory, not %s", protocol)
    return Transport(protocol != "tcp", asked.buffer_size_bytes)


def _trace(
    config: Config, devices: tuple[Device, ...], topology: Topology, policy: Policy, clock: WallClock
) -> TraceWriter | None:
    if config.trace is None:
        return None
    from hetero.drive.trace import TraceWriter

    return TraceWriter(
        config.trace,
        devices=devices,
        topology=topology,
        policy=policy.name,
        run=config.name or "",
        clock_origin_s=clock.origin_s,
    )


def _sinks(
    devices: tuple[Device, ...], trace: TraceWriter | None, debug: DebugLog | None, progress: bool | None
) -> tuple[ProgressView | None, list[TraceSink]]:
    sinks: list[TraceSink] = [sink for sink in (trace, debug) if sink is not None]
    if not (settings.progress() if progress is None else progress):
        return None, sinks
    from hetero.session.progress import ProgressView

    counts = TaskCounts()
    sinks.append(counts)
    return ProgressView(counts, devices, short=progress is not None), sinks


# --- hosts that join ----------------------------------------------------------------------------------------


class Joining:
    """Asks hosts that join for their devices, each in a thread of its own.

    Parameters
    ----------
    config
        Of the Context.
    found
        Called with the devices of a host that has any.
    """

    def __init__(self, config: Config, found: Callable[[tuple[Device, ...]], None]) -> None:
        self._config = config
        self._found = found

    def hear(self, host: Host) -> None:
        """Record a host that joined."""
        threading.Thread(target=self._survey, args=(host,), name=f"hetero-{host.name}", daemon=True).start()

    def _survey(self, host: Host) -> None:
        try:
            with hosts.reached(self._config) as cluster:
                assert cluster is not None
                devices = remembered(hosts.devices_on(cluster, host, self._config))
                if devices:
                    _log.info("%s (%s) joined: %s", host.name, host.address, ", ".join(one.id for one in devices))
                    self._found(devices)
        except HeteroError as error:
            _log.warning("%s (%s) joined and is not used: %s", host.name, host.address, error)


# --- utilisation of devices ---------------------------------------------------------------------------------

HOST = "host"
"""Stands for all processors and the memory of this machine."""
_PERIOD_S = 1.0


class Sampler:
    """Samples from a thread of its own until it is closed.

    Parameters
    ----------
    driver
        Takes the notes.
    devices
        The fleet; simulated devices and processors are not asked, the host is.
    """

    def __init__(self, driver: Driver, devices: Sequence[Device]) -> None:
        self._driver = driver
        self._devices = [each for each in devices if each.type != "CPU" and not each.simulated]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="hetero-sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; safe to call twice, also from its own thread."""
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    def _loop(self) -> None:
        load = CpuLoad(())
        load.busy_frac()
        while not self._closing.wait(_PERIOD_S):
            self._note(HOST, host.cpu_status(load.busy_frac()))
            for device in self._devices:
                self._note(device.id, status_of(device))

    def _note(self, name: str, status: DeviceStatus) -> None:
        values = (status.utilisation_frac, status.used_bytes, status.temperature_c, status.power_w)
        if any(value is not None for value in values):
            known = (nan if value is None else float(value) for value in values)
            self._driver.record(DeviceSampled(self._driver.now_s(), name, *known))
