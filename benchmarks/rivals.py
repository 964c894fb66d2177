"""The rivals, started once a run: Ray and Dask distributed with two workers of one core each, on this host only.

In: nothing. Out: context managers. Ray gets its own temporary folder and never joins another cluster.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

__all__ = ["dask_client", "ray_module"]


@contextlib.contextmanager
def ray_module(cpus: int = 2) -> Iterator[Any]:
    """Start Ray with this many CPUs; returns the module."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    folder = tempfile.mkdtemp(prefix="ray-")
    ray.init(
        address="local", num_cpus=cpus, include_dashboard=False, _temp_dir=folder, log_to_driver=False,
        logging_level=logging.ERROR, object_store_memory=1_000_000_000,
    )  # fmt: skip
    try:
        yield ray
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def dask_client(workers: int = 2) -> Iterator[Any]:
    """Start a Dask distributed cluster of worker processes with one thread each; returns the client."""
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.worker.daemon": True})
    with tempfile.TemporaryDirectory(prefix="dask-") as folder:
        cluster = LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None,
            silence_logs=logging.CRITICAL, local_directory=folder,
        )  # fmt: skip
        try:
            with Client(cluster) as client:
                yield client
        finally:
            cluster.close()
