"""hetero: one Python program of tasks, run over every unequal device of a host.

In: names that users write. Out: the objects that they stand for, imported when first used: here what a first program
needs, the rest by subject in `hetero.tasks`, `hetero.train`, `hetero.batch`, `hetero.graphs`, `hetero.plan`,
`hetero.collectives`, `hetero.inspect` and `hetero.cluster`. `import hetero` must stay quick.
"""

from __future__ import annotations

import sys

from hetero.floor.lazy import lazy_names

if "hetero_run" in sys._xoptions:
    from hetero.floor.script_runs import begin

    begin()
    del begin
del sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import as_completed as as_completed
    from concurrent.futures import wait as wait
    from typing import Any

    from hetero import batch as batch
    from hetero import cluster as cluster
    from hetero import collectives as collectives
    from hetero import errors as errors
    from hetero import graphs as graphs
    from hetero import inspect as inspect
    from hetero import jax as jax
    from hetero import keras as keras
    from hetero import plan as plan
    from hetero import tasks as tasks
    from hetero import train as train
    from hetero.drive.checkpoints import checkpoint as checkpoint
    from hetero.drive.checkpoints import restore as restore
    from hetero.report.api import report as report
    from hetero.session.context import Context as Context
    from hetero.session.futures import Future as Future
    from hetero.session.task_api import get_current_device as get_current_device
    from hetero.session.task_context import current_context as current_context
    from hetero.session.tasks import task as task
    from hetero.train.trainer import Trainer as Trainer

    __version__: str

_NAMESPACES = ("batch", "cluster", "collectives", "graphs", "inspect", "jax", "keras", "plan", "tasks", "train")
_PLACES = {
    "hetero": (*_NAMESPACES, "errors", "report"),
    "concurrent.futures": ("as_completed", "wait"),
    "hetero.drive.checkpoints": ("checkpoint", "restore"),
    "hetero.session.context": ("Context",),
    "hetero.session.futures": ("Future",),
    "hetero.session.task_api": ("get_current_device",),
    "hetero.session.task_context": ("current_context",),
    "hetero.session.tasks": ("task",),
    "hetero.train.trainer": ("Trainer",),
}

_MOVED = {
    "concurrent.futures": ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"),
    "hetero.batch": ("File", "Files", "Images", "Tables", "map_batches", "pipeline"),
    "hetero.cluster": ("Pool", "Pressure", "on_pressure", "pressure", "topology"),
    "hetero.collectives": (
        "Group",
        "MpiGroup",
        "all_gather",
        "all_reduce",
        "best_group",
        "broadcast",
        "open_rendezvous",
        "rank",
        "recv",
        "reduce_scatter",
        "send",
        "world_size",
    ),
    "hetero.errors": ("HeteroError",),
    "hetero.graphs": ("Graph", "graph"),
    "hetero.inspect": (
        "Device",
        "get_device_list",
        "get_memory_usage",
        "metrics_server",
        "set_log_level",
        "snapshot",
    ),
    "hetero.plan": ("Estimate", "Workload", "estimate", "footprint", "match", "training_time"),
    "hetero.tasks": (
        "Executor",
        "Kernel",
        "TaskContext",
        "TaskFunction",
        "namespace",
        "register_joblib",
        "resumable",
        "worker_state",
    ),
    "hetero.train": (
        "Split",
        "check_sample_log",
        "compress",
        "load_parameters",
        "pad_samples",
        "read_sample_log",
        "split",
    ),
}
"""Names that stood here in version 0.1, by where they are now; with the next version they go."""

_get, __dir__, _names = lazy_names(
    __name__,
    _PLACES,
    {name: f"{place}.{name}" for place, names in _MOVED.items() for name in names} | {"search": "hetero.train.tune"},
)
__all__ = [name for name in _names if name not in _NAMESPACES]  # `from hetero import *` would hide Python's `inspect`


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from hetero.floor.extras import own_version

        return own_version()
    return _get(name)
