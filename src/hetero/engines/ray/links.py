"""How fast arrays go from this host to another of the cluster, and back.

In: a host of the cluster. Out: two measured links. It measures what the engine does: an array through the object store.
"""

from __future__ import annotations

from hetero.engines.ray.cluster import OWN_HOST, Host
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import EngineError
from hetero.model.topology import Link

__all__ = ["measure_links"]

_NBYTES = 8_000_000
_TRIPS = 5
_PATIENCE_S = 60.0


class _Mirror:
    """The actor at the other end."""

    def touch(self, *parts: object) -> None:
        """Do nothing: the parts are on this host now."""

    def array(self) -> object:
        """Return an array."""
        import numpy as np

        return np.ones(_NBYTES, np.uint8)


def measure_links(host: Host) -> tuple[Link, Link]:
    """Measure the links from this host's main memory to another's, and back.

    Raises
    ------
    EngineError
        The host does not answer.
    """
    import numpy as np
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    place = NodeAffinitySchedulingStrategy(host.node_id, soft=False)
    mirror = ray.remote(num_cpus=0, max_restarts=0)(_Mirror).options(scheduling_strategy=place).remote()
    try:
        ray.get(mirror.touch.remote(), timeout=_PATIENCE_S)
        trip_s = min([_seconds(mirror.touch.remote()) for _ in range(_TRIPS)])
        there_s = _seconds(mirror.touch.remote(ray.put(np.ones(_NBYTES, np.uint8))))
        array = mirror.array.remote()
        ray.wait([array], timeout=_PATIENCE_S, fetch_local=False)
        back_s = _seconds(array)
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"host {host.name} ({host.address}) does not answer", remedy="see whether it is overloaded"
        ) from error
    finally:
        ray.kill(mirror, no_restart=True)
    here, far = f"{OWN_HOST}/ram", f"{host.name}/ram"
    rates = [_NBYTES / max(seconds - trip_s / 2, 1e-6) for seconds in (there_s, back_s)]
    return (
        Link(here, far, trip_s / 2, rates[0], kind="network"),
        Link(far, here, trip_s / 2, rates[1], kind="network"),
    )


def _seconds(ref: object) -> float:
    import ray

    begin_s = monotonic_s()
    ray.get(ref, timeout=_PATIENCE_S)
    return monotonic_s() - begin_s
