"""What users call inside tasks, and about this host: the current device, group members, memory, logging.

In: the frame of the running task, or this host outside of one. Out: values.
It must not start workers.
"""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hetero.drive.frame import current
from hetero.engines.base import Channel, NodeUsage
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.model.device import Device
from hetero.session.debug_log import log_to_stderr

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
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
]

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def get_current_device() -> Device:
    """Return the device that runs this task; outside of tasks this host's CPU.

    Examples
    --------
    >>> get_current_device().type == "cpu"
    True
    """
    frame = current()
    return _host_device() if frame is None else frame.device


@functools.cache
def _host_device() -> Device:
    from hetero.session.fleet import survey

    found = survey(only=("cpu",))
    device = found[0].device
    assert device is not None, "every host has a CPU"
    return device


def get_device_list() -> list[Device]:
    """Return every sound device of this host, whether or not a Context is open; none that computes nothing.

    Examples
    --------
    >>> import hetero
    >>> any(device.type == "cpu" for device in hetero.inspect.get_device_list())
    True
    """
    from hetero.session.fleet import survey

    sound = (found.device for found in survey() if not found.reason)
    return [device for device in sound if device is not None and not device.simulated]


def namespace() -> ModuleType:
    """Return the array-API module of the current device: NumPy's, torch's, JAX's or CuPy's.

    Raises
    ------
    BadValueError
        The device takes kernels and has no arrays of its own.

    Examples
    --------
    >>> xp = namespace()
    >>> float(xp.sum(xp.ones(3)))
    3.0
    """
    frame = current()
    if frame is None:
        return import_module("array_api_compat.numpy")
    module = frame.backend.namespace()
    if module is None:
        kernels = not frame.backend.runs_python
        raise BadValueError(
            f"{frame.device.id} {'takes kernels and ' if kernels else ''}has no array namespace",
            remedy="give the task a hetero.tasks.Kernel for it"
            if kernels
            else "use NumPy, or the device's own package",
        )
    frame.used_namespace = True
    return module


def rank() -> int:
    """Return the number of this member of a group task, 0 outside of one.

    Examples
    --------
    >>> import hetero
    >>> hetero.collectives.rank(), hetero.collectives.world_size()
    (0, 1)
    """
    frame = current()
    return 0 if frame is None or frame.channel is None else frame.channel.rank


def world_size() -> int:
    """Return how many members the group task has, 1 outside of one.

    Examples
    --------
    >>> import hetero
    >>> @hetero.task(devices=2)
    ... def sizes():
    ...     return hetero.collectives.world_size()
    >>> with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
    ...     ctx.run(sizes)
    2
    """
    frame = current()
    return 1 if frame is None or frame.channel is None else frame.channel.world_size


def send(value: object, to: int) -> None:
    """Send a value to another member of this group task.

    Parameters
    ----------
    to
        Rank of the other member.

    Raises
    ------
    BadValueError
        There is no such member, or this is no group task.

    Examples
    --------
    >>> import hetero
    >>> @hetero.task(devices=2)
    ... def greeting():
    ...     if hetero.collectives.rank() == 1:
    ...         return hetero.collectives.send("hello", to=0)
    ...     return hetero.collectives.recv(from_=1)
    >>> with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
    ...     ctx.run(greeting)
    'hello'
    """
    channel = _channel("send", to)
    channel.send(value, to)


def recv(from_: int) -> Any:
    """Wait for the next value that another member of this group task sends.

    Parameters
    ----------
    from_
        Rank of the other member.

    Raises
    ------
    BadValueError
        There is no such member, or this is no group task.

    Examples
    --------
    >>> import hetero
    >>> @hetero.task(devices=2)
    ... def swapped():
    ...     other = 1 - hetero.collectives.rank()
    ...     hetero.collectives.send(hetero.collectives.rank(), to=other)
    ...     return hetero.collectives.recv(from_=other)
    >>> with hetero.Context(devices="2xcpu", isolation="thread", history=False) as ctx:
    ...     ctx.run(swapped)
    1
    """
    channel = _channel("recv", from_)
    frame = current()
    return channel.recv(from_) if frame is None or frame.talk is None else frame.talk.recv(from_)


def _channel(word: str, other: int) -> Channel:
    frame = current()
    channel = None if frame is None else frame.channel
    if channel is None:
        raise BadValueError(f"{word}() works only inside a group task", remedy="declare it: @hetero.task(devices=2)")
    if (
        isinstance(other, bool)
        or not isinstance(other, int)
        or not 0 <= other < channel.world_size
        or other == channel.rank
    ):
        others = ", ".join(str(each) for each in range(channel.world_size) if each != channel.rank)
        raise BadValueError(f"{word}(): rank {other!r} is no other member", remedy=f"the others are {others}")
    return channel


def worker_state() -> dict[str, object]:
    """Return the dict that belongs to this worker: what the initializer or a task puts there, later tasks find.

    It lives as long as the worker. After a restart it is empty again, and the initializer fills it.

    Raises
    ------
    BadValueError
        This is neither a task nor an initializer.

    Examples
    --------
    >>> import hetero
    >>> def load(weight):
    ...     hetero.tasks.worker_state()["weight"] = weight
    >>> filled = hetero.tasks.ContextOptions(initializer=load, initargs=(3,))
    >>> with hetero.Context(devices="1xcpu", isolation="thread", options=filled) as ctx:
    ...     ctx.run(lambda x: hetero.tasks.worker_state()["weight"] * x, 2)
    6
    """
    frame = current()
    if frame is None:
        raise BadValueError(
            "worker_state() works only inside a task or an initializer",
            remedy="fill it there: hetero.Context(options=hetero.tasks.ContextOptions(initializer=load_model))",
        )
    return frame.state


def get_memory_usage() -> dict[str, NodeUsage]:
    """Return for each memory node of the open Contexts its capacity, bytes in use, peak and fragmentation.

    Returns
    -------
    dict
        by memory node; where several Contexts use one node, their bytes are added up

    Examples
    --------
    >>> import hetero
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
    ...     sorted(hetero.inspect.get_memory_usage())
    ['h0/ram']
    """
    from hetero.session.runs import open_contexts

    total: dict[str, NodeUsage] = {}
    for ctx in open_contexts():
        for node, usage in ctx.usage.items():
            total[node] = _added(total[node], usage) if node in total else usage
    return total


def _added(one: NodeUsage, other: NodeUsage) -> NodeUsage:
    return NodeUsage(
        one.capacity_bytes + other.capacity_bytes,
        one.used_bytes + other.used_bytes,
        one.peak_bytes + other.peak_bytes,
        max(one.fragmentation_frac, other.fragmentation_frac),
    )


def set_log_level(level: str | int) -> None:
    """Set how much hetero's loggers tell: 'DEBUG', 'INFO', 'WARNING', 'ERROR' or 'CRITICAL'.

    Raises
    ------
    BadValueError
        There is no such level.

    Examples
    --------
    >>> before = logging.getLogger("hetero").level
    >>> set_log_level("warning")
    >>> logging.getLogger("hetero").level == logging.WARNING
    True
    >>> logging.getLogger("hetero").setLevel(before)
    """
    word = logging.getLevelName(level) if isinstance(level, int) else str(level).strip().upper()
    if word not in _LEVELS:
        raise BadValueError(
            f"{level!r} is no log level{did_you_mean(word, _LEVELS)}", remedy=f"allowed: {', '.join(_LEVELS)}"
        )
    log_to_stderr(word)
