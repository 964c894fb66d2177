"""What tasks use beside `hetero.task`: kernels, arrays of their device, kept state, the interfaces of other libraries.

In: names that users write. Out: the objects that they stand for. It must not define anything of its own.
"""

from __future__ import annotations

from hetero.floor.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.backends.base import Kernel as Kernel
    from hetero.drive.checkpoints import resumable as resumable
    from hetero.session.executor import Executor as Executor
    from hetero.session.joblib import register_joblib as register_joblib
    from hetero.session.options import ContextOptions as ContextOptions
    from hetero.session.task_api import namespace as namespace
    from hetero.session.task_api import worker_state as worker_state
    from hetero.session.task_context import TaskContext as TaskContext
    from hetero.session.tasks import TaskFunction as TaskFunction
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "hetero.backends.base": ("Kernel",),
            "hetero.drive.checkpoints": ("resumable",),
            "hetero.session.executor": ("Executor",),
            "hetero.session.task_api": ("namespace", "worker_state"),
            "hetero.session.joblib": ("register_joblib",),
            "hetero.session.task_context": ("TaskContext",),
            "hetero.session.options": ("ContextOptions",),
            "hetero.session.tasks": ("TaskFunction",),
        },
    )
