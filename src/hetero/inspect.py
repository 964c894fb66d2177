"""What users ask a running program: its devices, its memory, its state and metrics, its log.

In: nothing or a Context. Out: values that describe it. It must not define anything of its own.
"""

from __future__ import annotations

from hetero.floor.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.drive.trace_read import read_trace as read_trace
    from hetero.drive.trace_read import summary as summary
    from hetero.model.device import Device as Device
    from hetero.session.metrics import metrics_server as metrics_server
    from hetero.session.snapshot import snapshot as snapshot
    from hetero.session.task_api import get_device_list as get_device_list
    from hetero.session.task_api import get_memory_usage as get_memory_usage
    from hetero.session.task_api import set_log_level as set_log_level
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "hetero.drive.trace_read": ("read_trace", "summary"),
            "hetero.model.device": ("Device",),
            "hetero.session.task_api": ("get_device_list", "get_memory_usage", "set_log_level"),
            "hetero.session.metrics": ("metrics_server",),
            "hetero.session.snapshot": ("snapshot",),
        },
    )
