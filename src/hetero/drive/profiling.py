"""Operators inside an attempt, as the profiler of torch sees them.

In: a frame, and the code that runs between the beginning and the end of a `with` block. Out: a note, made after the
attempt has ended. It must not fail a task, and torch is imported only where it was asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hetero.drive.frame import Frame, current
from hetero.engines.base import Function
from hetero.floor import clock, platform
from hetero.floor.extras import need
from hetero.model.annotations import OperatorsRun

if TYPE_CHECKING:
    import torch
    from torch.autograd.profiler_util import FunctionEvent

__all__ = ["KEPT", "Profiled", "Profiling", "TorchProfile"]

KEPT = 2000
"""Slices that are told of one profile, the longest; the sums are over all."""
_OPERATORS = 100
_QUIET = {"KINETO_LOG_LEVEL": "6"}
"""Else each profile writes two lines to standard error."""
_MARK = "hetero: begin"
_MARKS = 5
"""The clocks are laid side by side where a mark was made soonest: the first one takes milliseconds."""
_one_at_a_time = threading.Lock()


class Profiled:
    """A function whose attempts are profiled; one that sees to it itself is told so by `Frame.profile`.

    Parameters
    ----------
    function
        What is called; with an attribute `profiles_itself` that is True it is only told.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the function."""
        frame = current()
        if frame is None:
            return self.function(*args, **kwargs)
        frame.profile = "torch"
        if getattr(self.function, "profiles_itself", False):
            return self.function(*args, **kwargs)
        with TorchProfile(frame):
            return self.function(*args, **kwargs)


class TorchProfile:
    """Profiles what its thread runs inside the `with` block; in a process one block at a time.

    Parameters
    ----------
    frame
        Of the attempt; gets the note.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._profile: torch.profiler.profile | None = None
        self._marked_s: list[float] = []

    def __enter__(self) -> None:
        if not _one_at_a_time.acquire(blocking=False):
            return
        platform.set_environment(_QUIET)
        try:
            from torch.profiler import profile, record_function, supported_activities

            self._profile = profile(activities=list(supported_activities()))
            self._profile.__enter__()
            for _ in range(_MARKS):
                with record_function(_MARK):
                    self._marked_s.append(clock.monotonic_s() - self._frame.began_s)
        except BaseException:
            _one_at_a_time.release()
            raise

    def __exit__(self, *_: object) -> None:
        if self._profile is None:
            return
        try:
            self._profile.__exit__(None, None, None)
        finally:
            _one_at_a_time.release()
        profile, self._profile = self._profile, None
        self._frame.late.append(lambda: _note(self._frame, profile, self._marked_s))


def _note(frame: Frame, profile: torch.profiler.profile, marked_s: Sequence[float]) -> OperatorsRun | None:
    events = list(profile.events())
    marks = [each for each in events if each.name == _MARK]
    if len(marks) != len(marked_s):
        return None
    took_us, at_s, mark = min(
        ((_took_us(each), at_s, each) for each, at_s in zip(marks, marked_s, strict=True)), key=lambda each: each[0]
    )
    begin_us = mark.time_range.start + took_us / 2.0
    seen = [each for each in events if each.time_range.start >= marks[-1].time_range.end]
    kept = sorted(seen, key=_took_us, reverse=True)[:KEPT]
    kept.sort(key=lambda each: (each.time_range.start, -each.time_range.end))
    sums = _sums(seen)
    return OperatorsRun(
        0.0,
        frame.task,
        frame.attempt,
        frame.device.id,
        at_s,
        tuple(each.name for each in kept),
        tuple(_lane(each, mark) for each in kept),
        tuple((each.time_range.start - begin_us) * 1e-6 for each in kept),
        tuple(_took_us(each) * 1e-6 for each in kept),
        tuple(sums),
        tuple(calls for calls, _ in sums.values()),
        tuple(seconds for _, seconds in sums.values()),
    )


def _took_us(event: FunctionEvent) -> float:
    return float(event.time_range.end - event.time_range.start)


def _on_processor(event: FunctionEvent) -> bool:
    return bool(event.device_type.name == "CPU")


def _lane(event: FunctionEvent, mark: FunctionEvent) -> str:
    if not _on_processor(event):
        return f"{event.device_type.name.lower()} stream {event.device_resource_id}"
    return "" if event.thread == mark.thread else f"thread {event.thread}"


def _sums(events: Iterable[FunctionEvent]) -> Mapping[str, tuple[int, float]]:
    """Return calls and own seconds by operator, the longest first; what kernels took counts as theirs."""
    sums: dict[str, tuple[int, float]] = {}
    for each in events:
        own_us = each.self_cpu_time_total if _on_processor(each) else _took_us(each)
        calls, seconds = sums.get(each.name, (0, 0.0))
        sums[each.name] = (calls + 1, seconds + own_us * 1e-6)
    longest = sorted(sums, key=lambda name: (-sums[name][1], name))[:_OPERATORS]
    return {name: sums[name] for name in longest}


_MOST = 1024


class Profiling:
    """Gives the profiled version of each function, the same one for the same function.

    Parameters
    ----------
    profiler
        'torch'.

    Raises
    ------
    BadValueError
        torch is not installed.
    """

    def __init__(self, profiler: str) -> None:
        need("torch", f"profile={profiler!r}")
        self._known: dict[str, Function] = {}

    def of(self, function: Function) -> Function:
        """Return a function that is profiled where it runs Python."""
        found = self._known.get(function.key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            parts = function.implementations.items()
            implementations = {word: Profiled(each) if callable(each) else each for word, each in parts}
            default = None if function.default is None else Profiled(function.default)
            found = Function(f"{function.key}|profiled", function.name, default, implementations)
            self._known[function.key] = found
        return found
