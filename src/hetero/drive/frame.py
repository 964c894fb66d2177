"""What a running task can know of itself: its device, rank and checkpoints.

In: the runner enters a frame around each call. Out: `current()` for the functions that users call inside a task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hetero.engines.base import Channel
from hetero.model.device import Device
from hetero.model.notes import CheckpointKept, CollectiveDone, TaskNote

__all__ = ["Frame", "current", "enter", "where"]


@dataclass(slots=True)
class Frame:
    """One attempt of one task, seen from inside.

    Attributes
    ----------
    device : the device that runs it
    backend : the open back end of that device
    task, attempt : ids
    task_key : names the task's checkpoints, '' for none
    channel : how to talk to the other members of a group task, None outside of one
    used_namespace : True once the task asked for the device's array namespace
    loops : where its resumable loops stand, None before the first
    talk : how it takes part in collectives, None before the first; closed when the attempt ends
    throttled_cpu_s : CPU seconds after which the task has slept by itself, as the device's throttle asks
    began_s : s of this host's monotonic clock at which the call began
    notes : collectives and checkpoints of the attempt, with times since `began_s`
    late : make further notes once the attempt has ended, None for nothing to tell
    state : what the worker keeps for its tasks, the same dict for all of them
    profile : by what the attempt is to be profiled: 'torch' or ''
    """

    device: Device
    backend: Any
    task: int = 0
    attempt: int = 0
    task_key: str = ""
    channel: Channel | None = None
    used_namespace: bool = False
    loops: Any = None
    talk: Any = None
    throttled_cpu_s: float = 0.0
    began_s: float = 0.0
    notes: list[CollectiveDone | CheckpointKept] = field(default_factory=list)
    late: list[Callable[[], TaskNote | None]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    profile: str = ""


_local = threading.local()


def current() -> Frame | None:
    """Give the frame of the task that this thread runs, None outside of tasks."""
    return getattr(_local, "frame", None)


def enter(frame: Frame | None) -> Frame | None:
    """Make a frame the current one; gives the one before, to be entered again afterwards."""
    before = current()
    _local.frame = frame
    return before


def where() -> tuple[int | None, str]:
    """Return the task that this thread runs, None outside of tasks, and its device."""
    frame = current()
    return (None, "") if frame is None else (frame.task, frame.device.id)
