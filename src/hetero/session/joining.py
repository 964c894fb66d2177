"""Hosts that join while a program runs: what they have becomes part of its fleet.

In: a host, as the engine heard of it. Out: its devices, in the driver. It must not hold up the thread that brings news.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hetero.floor.errors import HeteroError
from hetero.session import hosts
from hetero.session.fleet_speed import remembered

if TYPE_CHECKING:
    from hetero.engines.ray.cluster import Host
    from hetero.model.device import Device
    from hetero.session.config import Config

__all__ = ["Joining"]

_log = logging.getLogger("hetero")


class Joining:
    """Asks hosts that join for their devices, each in a thread of its own.

    Parameters
    ----------
    config : of the Context
    found : called with the devices of a host that has any
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
