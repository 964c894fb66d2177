"""Starting the actor of a device on its host, and the words for its end.

In: a device and a host. Out: an actor that is on its way. It must not wait for it.
"""

from __future__ import annotations

import os
from copy import copy
from dataclasses import replace
from typing import Any

from hetero.engines.base import WorkerEntry
from hetero.engines.ray.actor import THREADS, Worker
from hetero.engines.ray.cluster import OWN_HOST, Host
from hetero.floor import settings
from hetero.model.device import HOST_NODE, Device

__all__ = ["start_seat", "why_ended"]

_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_OTHERS = ("RAY_", "HETERO_", "PYTHON", "LD_", "CUDA_VISIBLE", "ROCR_", "HIP_", *_THREAD_COUNTS)
"""Variables of which an actor has its own."""
_PLACES = ("HETERO_HOME", "HETERO_CONFIG", "HETERO_TRACE", "HETERO_TEST_DATA")
"""Switches that name files, which another host need not have."""


def start_seat(entry: WorkerEntry, device: Device, host: Host) -> Any:
    """Start the actor of a device; it is pinned softly, so that nothing waits for a host that is dead.

    Notes
    -----
    Ray restarts nothing and retries nothing: that is decided by the core. Nor does it keep a record of each call, which
    nobody would read and which takes a tenth of a round trip.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0, concurrency_groups=THREADS)(Worker)
    inside = device if device.memory_node != f"{device.host}/ram" else replace(device, memory_node=HOST_NODE)
    return actor.options(
        enable_task_events=False,
        scheduling_strategy=NodeAffinitySchedulingStrategy(host.node_id, soft=True),
        runtime_env={"env_vars": _variables(device, host)},
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
    if device.cpus or device.kind == "cpu":
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
