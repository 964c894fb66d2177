"""The exceptions of hetero, under the name by which users import them.

In: nothing. Out: the classes of the floor. It must not define any of its own.
"""

from hetero.floor.errors import (
    BadValueError,
    ConfigError,
    DeviceError,
    DeviceLostError,
    EngineError,
    GraphError,
    GroupError,
    HeteroError,
    HistoryError,
    NothingFitsError,
    OutOfDeviceMemoryError,
    RemoteTracebackError,
    SerialisationError,
    TaskCancelledError,
    TaskLostError,
    TaskTimeoutError,
    TraceError,
)

__all__ = [
    "BadValueError",
    "ConfigError",
    "DeviceError",
    "DeviceLostError",
    "EngineError",
    "GraphError",
    "GroupError",
    "HeteroError",
    "HistoryError",
    "NothingFitsError",
    "OutOfDeviceMemoryError",
    "RemoteTracebackError",
    "SerialisationError",
    "TaskCancelledError",
    "TaskLostError",
    "TaskTimeoutError",
    "TraceError",
]
