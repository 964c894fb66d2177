"""What all parts of one Ray engine share.

In: nothing. Out: the cluster, its object store and the watch over its hosts, beside what every engine has.
"""

from __future__ import annotations

from dataclasses import dataclass

from hetero.engines.ray.cluster import Cluster
from hetero.engines.ray.heartbeats import HostMonitor
from hetero.engines.ray.object_store import ObjectStore
from hetero.engines.shared.engine import EngineContext

__all__ = ["RayContext"]


@dataclass(slots=True, kw_only=True)
class RayContext(EngineContext):
    """One running engine."""

    cluster: Cluster
    store: ObjectStore
    monitor: HostMonitor
