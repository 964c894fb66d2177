"""Heartbeats of the other hosts: an actor on each answers once a second, whatever that host's devices compute.

In: the hosts of the fleet. Out: which of them are silent, told once each time. It must not restart anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from hetero.engines.ray.cluster import OWN_HOST, Cluster, Host
from hetero.engines.shared.hub import Hub
from hetero.floor.clock import monotonic_s

if TYPE_CHECKING:
    from ray.actor import ActorHandle

__all__ = ["SILENT_S", "HeartbeatActor", "HostMonitor"]

BEAT_S = 1.0
SILENT_S = 5.0
"""A host that has not answered for so long counts as gone until it answers again."""


class HeartbeatActor:
    """The actor that answers for a host: a task that holds its interpreter's lock does not keep this one silent."""

    def beat(self) -> str:
        """Return the id of the host that this runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


class _Watched:
    """One host: its heartbeat actor, and when it last answered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node_id = ""
        self.actor: ActorHandle | None = None
        self.answered_s = monotonic_s()
        self.asked = False


class HostMonitor:
    """Watches the hosts of a fleet but the program's own; its methods belong to the hub's thread.

    Parameters
    ----------
    names
        Hosts of the fleet.
    silent
        Called with the name of a host that fell silent.
    joined
        Called with each host that the fleet did not have; None where the fleet stays as it is.
    """

    def __init__(
        self,
        hub: Hub,
        cluster: Cluster,
        names: Iterable[str],
        silent: Callable[[str], None],
        joined: Callable[[Host], None] | None = None,
    ) -> None:
        self._hub = hub
        self._cluster = cluster
        self._on_silent = silent
        self._watched = {name: _Watched(name) for name in dict.fromkeys(names) if name != OWN_HOST}
        self._joined = joined
        self._silent: set[str] = set()
        if self._watched or joined is not None:
            hub.call(self._check_hosts)

    def there(self, name: str) -> Host | None:
        """Return a host that is part of the cluster and not silent, None when it is away."""
        return None if name in self._silent else self._cluster.host(name)

    def stop(self) -> None:
        """End the heartbeat actors; called after the hub has stopped."""
        for watched in self._watched.values():
            _end(watched)

    def _check_hosts(self) -> None:
        hosts = {host.name: host for host in self._cluster.hosts()}
        if self._joined is not None:
            for host in [host for host in hosts.values() if host.name not in (OWN_HOST, *self._watched)]:
                self._watched[host.name] = _Watched(host.name)
                self._joined(host)
        for watched in self._watched.values():
            self._ask(watched, hosts.get(watched.name))
            if monotonic_s() - watched.answered_s > SILENT_S and watched.name not in self._silent:
                self._silent.add(watched.name)
                self._on_silent(watched.name)
        self._hub.at(BEAT_S, self._check_hosts)

    def _ask(self, watched: _Watched, host: Host | None) -> None:
        if host is not None and host.node_id != watched.node_id:
            _end(watched)
            watched.node_id, watched.actor, watched.asked = host.node_id, _start_heartbeat(host), False
        if watched.actor is not None and not watched.asked:
            watched.asked = True
            ref = watched.actor.beat.remote()
            ref._on_completed(lambda answer: self._hub.call(partial(self._answered, watched, ref, answer)))

    def _answered(self, watched: _Watched, ref: object, answer: object) -> None:
        watched.asked = False
        if answer == watched.node_id:
            watched.answered_s = monotonic_s()
            self._silent.discard(watched.name)
        else:
            _end(watched)
            watched.node_id = ""


def _start_heartbeat(host: Host) -> object:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = NodeAffinitySchedulingStrategy(host.node_id, soft=True)
    return ray.remote(num_cpus=0, max_restarts=0)(HeartbeatActor).options(scheduling_strategy=place).remote()


def _end(watched: _Watched) -> None:
    if watched.actor is not None:
        import ray

        ray.kill(watched.actor, no_restart=True)
        watched.actor = None
