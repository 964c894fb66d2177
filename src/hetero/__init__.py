"""hetero: one Python program of tasks, run over every unequal device of a host.

In: names that users write. Out: the objects that they stand for, imported when first used.
`import hetero` must stay quick: nothing of the package is imported here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, as_completed, wait

    from hetero import errors
    from hetero.advise.estimate import Estimate, Workload, estimate
    from hetero.advise.match import match
    from hetero.backends.base import Kernel
    from hetero.backends.topology_files import topology
    from hetero.batch.api import map_batches
    from hetero.batch.files import File, Files, Images
    from hetero.batch.stages import pipeline
    from hetero.batch.tables import Tables
    from hetero.comm.group import Group, open_rendezvous
    from hetero.comm.mpi import MpiGroup
    from hetero.compression.compress import compress
    from hetero.compression.files import load_parameters
    from hetero.drive.checkpoints import checkpoint, restore, resumable
    from hetero.floor.errors import HeteroError
    from hetero.graphs.program import Graph
    from hetero.graphs.show import graph
    from hetero.model.device import Device
    from hetero.plan.collectives.groups import best_group
    from hetero.plan.training.speed import training_time
    from hetero.report.context import report
    from hetero.session.collectives import all_gather, all_reduce, broadcast, reduce_scatter
    from hetero.session.context import Context
    from hetero.session.executor import Executor
    from hetero.session.futures import Future
    from hetero.session.inside import (
        get_current_device,
        get_device_list,
        get_memory_usage,
        namespace,
        rank,
        recv,
        send,
        set_log_level,
        worker_state,
        world_size,
    )
    from hetero.session.joblib import register_joblib
    from hetero.session.leases import Pool
    from hetero.session.metrics import metrics_server
    from hetero.session.nesting import TaskContext, current_context
    from hetero.session.pressure import Pressure, on_pressure, pressure
    from hetero.session.snapshot import snapshot
    from hetero.session.tasks import TaskFunction, task
    from hetero.splitting.split import Split, split
    from hetero.train.data import pad_samples
    from hetero.train.footprint import footprint
    from hetero.train.sample_log import check_sample_log, read_sample_log
    from hetero.train.trainer import Trainer
    from hetero.tune.search import search

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "Context",
    "Device",
    "Estimate",
    "Executor",
    "File",
    "Files",
    "Future",
    "Graph",
    "Group",
    "HeteroError",
    "Images",
    "Kernel",
    "MpiGroup",
    "Pool",
    "Pressure",
    "Split",
    "Tables",
    "TaskContext",
    "TaskFunction",
    "Trainer",
    "Workload",
    "all_gather",
    "all_reduce",
    "as_completed",
    "best_group",
    "broadcast",
    "check_sample_log",
    "checkpoint",
    "compress",
    "current_context",
    "errors",
    "estimate",
    "footprint",
    "get_current_device",
    "get_device_list",
    "get_memory_usage",
    "graph",
    "load_parameters",
    "map_batches",
    "match",
    "metrics_server",
    "namespace",
    "on_pressure",
    "open_rendezvous",
    "pad_samples",
    "pipeline",
    "pressure",
    "rank",
    "read_sample_log",
    "recv",
    "reduce_scatter",
    "register_joblib",
    "report",
    "restore",
    "resumable",
    "search",
    "send",
    "set_log_level",
    "snapshot",
    "split",
    "task",
    "topology",
    "training_time",
    "wait",
    "worker_state",
    "world_size",
]

_HOMES = {
    "concurrent.futures": ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION", "as_completed", "wait"),
    "hetero.advise.estimate": ("Estimate", "Workload", "estimate"),
    "hetero.advise.match": ("match",),
    "hetero.backends.base": ("Kernel",),
    "hetero.backends.topology_files": ("topology",),
    "hetero.batch.api": ("map_batches",),
    "hetero.batch.files": ("File", "Files", "Images"),
    "hetero.batch.stages": ("pipeline",),
    "hetero.batch.tables": ("Tables",),
    "hetero.comm.group": ("Group", "open_rendezvous"),
    "hetero.comm.mpi": ("MpiGroup",),
    "hetero.drive.checkpoints": ("checkpoint", "restore", "resumable"),
    "hetero.floor.errors": ("HeteroError",),
    "hetero.graphs.program": ("Graph",),
    "hetero.graphs.show": ("graph",),
    "hetero.model.device": ("Device",),
    "hetero.plan.collectives.groups": ("best_group",),
    "hetero.plan.training.speed": ("training_time",),
    "hetero.session.collectives": ("all_gather", "all_reduce", "broadcast", "reduce_scatter"),
    "hetero.session.context": ("Context",),
    "hetero.session.executor": ("Executor",),
    "hetero.session.futures": ("Future",),
    "hetero.session.inside": (
        "get_current_device",
        "get_device_list",
        "get_memory_usage",
        "namespace",
        "rank",
        "recv",
        "send",
        "set_log_level",
        "worker_state",
        "world_size",
    ),
    "hetero.session.joblib": ("register_joblib",),
    "hetero.session.leases": ("Pool",),
    "hetero.session.metrics": ("metrics_server",),
    "hetero.session.nesting": ("TaskContext", "current_context"),
    "hetero.session.pressure": ("Pressure", "on_pressure", "pressure"),
    "hetero.session.snapshot": ("snapshot",),
    "hetero.session.tasks": ("TaskFunction", "task"),
    "hetero.compression.compress": ("compress",),
    "hetero.train.data": ("pad_samples",),
    "hetero.train.footprint": ("footprint",),
    "hetero.train.sample_log": ("check_sample_log", "read_sample_log"),
    "hetero.compression.files": ("load_parameters",),
    "hetero.tune.search": ("search",),
    "hetero.splitting.split": ("Split", "split"),
    "hetero.train.trainer": ("Trainer",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("errors", "report"):
        return import_module(f"hetero.{name}")
    if name == "__version__":
        from hetero.floor.extras import own_version

        return own_version()
    home = _HOME_OF.get(name)
    if home is None:
        import difflib

        close = difflib.get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"hetero has no {name!r}{hint}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
