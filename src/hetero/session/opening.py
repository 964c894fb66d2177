"""Opening a fleet: from a configuration to a running driver, and everything back at the end.

In: a checked configuration. Out: `Opened`, which owns what a Context needs below it.
It must not wait for workers: they start while the program goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from hetero.drive.live import Driver
from hetero.drive.worker import WorkerFactory
from hetero.engines.local.pieces import Talk
from hetero.floor import settings
from hetero.floor.clock import TraceSink, WallClock
from hetero.floor.errors import HistoryError
from hetero.plan.cost import CostModel
from hetero.plan.policies import registry
from hetero.session import fleet
from hetero.session.config_here import choose_protocol, find_devices
from hetero.session.fleet_speed import remembered
from hetero.session.watching import Counts, DebugLog, WatchedPolicy, joined

if TYPE_CHECKING:
    from hetero.drive.trace import TraceWriter
    from hetero.engines.base import Engine
    from hetero.model.device import Device
    from hetero.model.topology import Topology
    from hetero.plan.policies.base import Policy
    from hetero.session.config import Config
    from hetero.session.progress import ProgressView

__all__ = ["Opened"]

_log = logging.getLogger("hetero")
_POOL_BYTES = 1_000_000_000


class Opened:
    """A running driver with what belongs to it.

    Parameters
    ----------
    config : what was asked for
    split : cuts a task that ran out of memory
    history : True reads the times measured in earlier runs, and keeps those of this one
    progress : True shows the progress, None shows that of longer runs where HETERO_PROGRESS says so

    Attributes
    ----------
    devices : the fleet
    driver : started
    engine_name : for people
    """

    def __init__(self, config: Config, split: Callable[[int], bool], *, history: bool, progress: bool | None) -> None:
        self.devices = _devices(config)
        self.engine_name = config.engine or "local"
        topology = fleet.topology(self.devices)
        policy = registry.get(config.policy or "eft")
        clock = WallClock()
        self._trace = _trace(config, self.devices, topology, policy, clock)
        self._view, sinks = _sinks(self.devices, self._trace, progress)
        self._cost = CostModel(self.devices)
        self._history = _History(self._cost, self.devices) if history else None
        self.driver = Driver(
            devices=self.devices,
            topology=topology,
            engine=_engine(self.engine_name, config),
            worker=WorkerFactory(),
            policy=WatchedPolicy(policy) if settings.debug_level() >= 4 else policy,
            cost=self._cost,
            clock=clock,
            trace=joined(sinks),
            warn=_log.warning,
            split=split,
        )
        self.driver.start()

    def close(self, wait: bool) -> None:
        """End the driver, then what watched it."""
        self.driver.close(wait)
        if self._view is not None:
            self._view.close()
        if self._trace is not None:
            self._trace.close()
        if self._history is not None:
            self._history.keep()


class _History:
    """Times measured in earlier runs, handed to a cost model; and what this run measured, kept at its end."""

    def __init__(self, cost: CostModel, devices: tuple[Device, ...]) -> None:
        from hetero.stores.history import FILE, HistoryStore

        self._cost = cost
        self._store, trouble = HistoryStore.open_or_aside(settings.home() / FILE)
        if trouble:
            _log.warning(trouble)
        cost.load(self._store.load({device.model_key for device in devices}))

    def keep(self) -> None:
        """Write what was learned; a disk that refuses costs the history and not the program."""
        try:
            self._store.add(self._cost.new_samples())
        except HistoryError as error:
            _log.warning(str(error))


def _devices(config: Config) -> tuple[Device, ...]:
    notes: list[str] = []
    devices = find_devices(config, notes)
    for note in (*notes, *fleet.remarks(devices)):
        _log.info(note)
    return remembered(devices)


def _engine(name: str, config: Config) -> Engine:
    pool_bytes = config.memory_pool_size_bytes or _POOL_BYTES
    if name == "inline":
        from hetero.engines.inline import InlineEngine

        return InlineEngine()
    from hetero.engines.local.engine import LocalEngine

    return LocalEngine(pool_bytes, note=_log.warning, talk=_talk(config))


def _talk(config: Config) -> Talk:
    """Say how group members talk: all of them are on this host, where RDMA and NCCL have nothing to carry."""
    asked = config.communication
    protocol = choose_protocol(asked.protocol, config.source)
    if protocol in ("rdma", "nccl"):
        _log.info("the members of a group task are on one host: they talk through shared memory, not %s", protocol)
    return Talk(protocol != "tcp", asked.buffer_size_bytes)


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
    devices: tuple[Device, ...], trace: TraceWriter | None, progress: bool | None
) -> tuple[ProgressView | None, list[TraceSink]]:
    sinks: list[TraceSink] = [] if trace is None else [trace]
    if settings.debug_level() >= 2:
        sinks.append(DebugLog(settings.debug_level()))
    if not (settings.progress() if progress is None else progress):
        return None, sinks
    from hetero.session.progress import ProgressView

    counts = Counts()
    sinks.append(counts)
    return ProgressView(counts, devices, short=progress is not None), sinks
