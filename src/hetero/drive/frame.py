"""What a running task can know of itself: its device, rank and checkpoints.

In: the runner enters a frame around each call. Out: `current()` for the functions that users call inside a task.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.thread import _worker
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hetero.engines.base import Channel, Nest, Spread
from hetero.floor.clock import TaskClock
from hetero.floor.errors import BadValueError
from hetero.model.annotations import CheckpointKept, CollectiveDone, NestedRun, TaskNote
from hetero.model.device import Device

if TYPE_CHECKING:
    from hetero.backends.base import Backend
    from hetero.drive.call_environment import EnvironmentFound
    from hetero.drive.checkpoints import _Loops

__all__ = [
    "KEPT_MARK",
    "MOST_DEEP",
    "Deeper",
    "Frame",
    "called_key",
    "current",
    "enter",
    "follow_threads",
    "kept_key",
    "refuse_deeper",
    "running_frame",
    "starter",
    "where",
]

MOST_DEEP = 500
"""How deep tasks may be nested: each level takes some kilobytes of the thread's stack."""

_FRAMES = 200
"""Calls of Python that each nested task may make beyond those of its parent."""


KEPT_MARK = "!"
"""In each part of a task's key between its number, which draws its seed, and what names its checkpoints."""


def called_key(task_key: str) -> str:
    """Return what of a task's key tells its number among the calls of its name.

    Examples
    --------
    >>> called_key("night/f-2!f-12ab-1"), kept_key("night/f-2!f-12ab-1"), kept_key("unnamed-7/f-2")
    ('night/f-2', 'night/f-12ab-1', 'unnamed-7/f-2')
    """
    return "/".join([part.partition(KEPT_MARK)[0] for part in task_key.split("/")])


def kept_key(task_key: str) -> str:
    """Return what of a task's key names its checkpoints."""
    return "/".join([part.rpartition(KEPT_MARK)[2] for part in task_key.split("/")])


@dataclass(slots=True)
class Frame:
    """One attempt of one task, seen from inside.

    Attributes
    ----------
    device
        The device that runs it.
    backend
        The open back end of that device.
    task, attempt
        Ids.
    task_key
        Names the task's number and its checkpoints, '' for none.
    channel
        How to talk to the other members of a group task, None outside of one.
    used_namespace
        True once the task asked for the device's array namespace.
    loops
        Where its resumable loops stand, None before the first.
    talk
        How it takes part in collectives, None before the first; closed when the attempt ends.
    throttled_cpu_s
        CPU seconds after which the task has slept by itself, as the device's throttle asks.
    began_s
        Seconds of this host's monotonic clock at which the call began.
    notes
        Collectives, checkpoints and nested tasks of the attempt, with times since `began_s`.
    late
        Make further notes once the attempt has ended, None for nothing to tell.
    state
        What the worker keeps for its tasks, the same dict for all of them.
    spread
        Has nested tasks run on any device, None where all of them run here.
    inside
        Runs a nested call in a frame of its own, None where no task can be nested.
    path, root_key
        Of a nested task, how its ancestors came to submit it, and the key of the outermost of them.
    kept_path
        The same path by what the calls compute.
    item
        Of a chunk of a map, which of its items runs, -1 outside of one.
    depth
        How many tasks it is nested in.
    children
        How many tasks of each name, and of each name and identity, it has submitted, None before the first.
    profile
        By what the attempt is to be profiled: 'torch' or ''.
    timing
        The clock of the attempt, None where the engine keeps none.
    found
        What a task with variables or a seed of its own has found, for those that run on top of it.
    own
        Gives the attempt a copy of an argument that it may change, where arguments are private already: one that lies
        where its result will; None where there is no such place.
    """

    device: Device
    backend: Backend
    task: int = 0
    attempt: int = 0
    task_key: str = ""
    channel: Channel | None = None
    used_namespace: bool = False
    loops: _Loops | None = None
    talk: Any = None
    throttled_cpu_s: float = 0.0
    began_s: float = 0.0
    notes: list[CollectiveDone | CheckpointKept | NestedRun] = field(default_factory=list)
    late: list[Callable[[], TaskNote | None]] = field(default_factory=list)
    state: dict[str, object] = field(default_factory=dict)
    spread: Spread | None = None
    inside: Callable[..., object] | None = None
    path: str = ""
    root_key: str = ""
    kept_path: str = ""
    item: int = -1
    depth: int = 0
    children: Counter[str] | None = None
    profile: str = ""
    timing: TaskClock | None = None
    found: EnvironmentFound | None = None
    own: Callable[[object], object] | None = None

    def child(self, name: str, identity: str) -> Frame:
        """Return the frame of a task that this one submits; its checkpoints lie beside those of the outermost task.

        Parameters
        ----------
        name
            Of the task.
        identity
            What it computes: its code and its arguments.
        """
        if self.children is None:
            self.children = Counter()
        same = f"{name}-{identity}"
        self.children[name] += 1
        self.children[same] += 1
        path, kept = f"{self.path}/{name}-{self.children[name]}", f"{self.kept_path}/{same}-{self.children[same]}"
        if not self.depth and self.item >= 0:
            kept = f"item{self.item}{kept}"
        root_key = self.root_key if self.depth else self.task_key
        key = f"{root_key}/in-{_short(path)}{KEPT_MARK}in-{_short(kept)}" if root_key else ""
        child = self.again()
        child.task_key, child.path, child.root_key, child.kept_path = key, path, root_key, kept
        child.depth, child.item = self.depth + 1, -1
        return child

    @property
    def nest(self) -> Nest:
        """How this task came to be, for those that it submits."""
        return Nest(self.path, self.kept_path, self.root_key, self.depth)

    def again(self) -> Frame:
        """Return a frame like this one that nothing has happened in; what it notes is told with this attempt."""
        return Frame(  # `dataclasses.replace` takes ten times as long, in every nested task
            self.device,
            self.backend,
            self.task,
            self.attempt,
            self.task_key,
            began_s=self.began_s,
            notes=self.notes,
            late=self.late,
            state=self.state,
            spread=self.spread,
            inside=self.inside,
            path=self.path,
            root_key=self.root_key,
            kept_path=self.kept_path,
            item=self.item,
            depth=self.depth,
            profile=self.profile,
            timing=self.timing,
        )

    def ended(self, child: Frame) -> None:
        """Take over from a nested task what concerns the whole attempt."""
        self.used_namespace |= child.used_namespace
        self.throttled_cpu_s += child.throttled_cpu_s


def _short(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:24]


_local = threading.local()
_limit = threading.Lock()


class Deeper:
    """Restarts Python's count of recursion for a nested task.

    It is no generator: contextlib sets an attribute of what passes through one, which a user's class may refuse.

    Raises
    ------
    BadValueError
        It is nested too deep.
    """

    def __init__(self, depth: int) -> None:
        refuse_deeper(depth)

    def __enter__(self) -> None:
        _move_limit(_FRAMES)

    def __exit__(self, *ended: object) -> None:
        _move_limit(-_FRAMES)


def refuse_deeper(depth: int) -> None:
    """Raise BadValueError where a task is nested too deep."""
    if depth > MOST_DEEP:
        raise BadValueError(f"tasks are nested {MOST_DEEP} deep", remedy="let tasks split their work into halves")


def _move_limit(frames: int) -> None:
    with _limit:
        sys.setrecursionlimit(sys.getrecursionlimit() + frames)


def current() -> Frame | None:
    """Return the frame of the task that this thread runs, None outside of tasks."""
    return getattr(_local, "frame", None)


def running_frame() -> Frame:
    """Return the frame of the task that this thread runs, for code of ours that runs in tasks alone."""
    frame = current()
    assert frame is not None, "it runs as a task"
    return frame


def enter(frame: Frame | None) -> Frame | None:
    """Make a frame the current one; returns the one before, to be entered again afterwards."""
    before: Frame | None = getattr(_local, "frame", None)
    _local.frame = frame
    if _following.needs:
        _works_for.set(None if frame is None else (_local.__dict__, _which(frame)))
    return before


_Came = tuple[dict[str, Any], tuple[int, int]]
"""Where work comes from: what is local to the thread of the task that started it, and that task and its attempt."""


_works_for: ContextVar[_Came | None] = ContextVar("_works_for", default=None)
"""As a thread's `_local.came`; what a task schedules on the event loop of another thread has a copy of it."""


class _Following:
    """Has threads and pools know the task that they work for while somebody needs that; see `follow_threads`.

    Attributes
    ----------
    needs
        How many need that.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finaliser may come in the middle of it
        self.needs = 0
        self._wraps: list[tuple[type, str, object, object]] = []

    def begin(self) -> None:
        """Wrap what starts threads and what hands work to pools, unless that is so already."""
        with self._lock:
            self.needs += 1
            for owner, name, wrap in _followed():
                found = getattr(owner, name)
                if not any(found is ours for *_, ours in self._wraps):
                    ours = wrap(found)
                    self._wraps.append((owner, name, vars(owner).get(name), ours))
                    setattr(owner, name, ours)

    def end(self) -> None:
        """Put back what was there where nobody needs this any more; what others have wrapped since stays as it is."""
        with self._lock:
            self.needs -= 1
            if self.needs:
                return
            for owner, name, found, ours in reversed(self._wraps):
                if getattr(owner, name) is ours and found is not None:
                    setattr(owner, name, found)
                elif getattr(owner, name) is ours:  # it was inherited
                    delattr(owner, name)
            self._wraps.clear()


_following = _Following()


def follow_threads(owner: object) -> Callable[[], object]:
    """Have threads know the task that they work for, where tasks run in threads of the program's process.

    There, a thread that a task waits for would else be taken for one of the program: it would wait for a task of the
    program, which may wait for the device. A thread works for the task that started it, and what a task hands to a
    `ThreadPoolExecutor`, a `ThreadPool` or an event loop works for that task, whoever has started the thread. What
    reaches a thread of others by a queue of the user's own cannot be told from work of the program.

    Parameters
    ----------
    owner
        Needs that for as long as it lives, or until what is returned is called.
    """
    _following.begin()
    ended = weakref.finalize(owner, _following.end)
    ended.atexit = False
    return ended


def _came() -> _Came | None:
    """Return where what this thread does comes from."""
    frame = current()
    if frame is not None:
        return _local.__dict__, _which(frame)
    came: _Came | None = getattr(_local, "came", None)
    return came or _works_for.get()


def _started(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(start)
    def start_followed(thread: threading.Thread) -> None:
        came = _came()
        if came is not None and not hasattr(vars(thread).get("run"), "came") and not _follows_by_itself(thread):
            _inherit(thread, came)
        start(thread)

    return start_followed


def _follows_by_itself(thread: threading.Thread) -> bool:
    """Return whether a thread is one of hetero's own, or of a pool, whose calls come from different tasks."""
    target = getattr(thread, "_target", None)
    if target is _worker:
        pool = thread._args[0]()  # type: ignore[attr-defined]
        return getattr(pool, "_initializer", thread) is None
    made = type(thread) if target is None else target
    return str(getattr(made, "__module__", "")).startswith("hetero.")


def _inherit(thread: threading.Thread, came: _Came) -> None:
    """Have a thread remember first of all where it comes from."""
    run = thread.run

    def begin() -> None:
        del thread.run
        _local.came = came
        run()

    begin.came = came  # type: ignore[attr-defined]
    thread.run = begin  # type: ignore[method-assign]


def _followed() -> Iterator[tuple[type, str, Callable[..., object]]]:
    """Yield what starts threads, and what hands work to threads that others may have started."""
    from multiprocessing.pool import ThreadPool

    yield threading.Thread, "start", _started
    yield ThreadPoolExecutor, "submit", _handed
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):  # all others of its methods call these
        yield ThreadPool, name, _handed


def _handed(submit: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(submit)
    def submit_followed(pool: object, /, *args: Any, **kwargs: object) -> object:
        came = _came()
        if came is None or not args:
            return submit(pool, *args, **kwargs)
        return submit(pool, functools.partial(_call_for, came, args[0]), *args[1:], **kwargs)

    return submit_followed


def _call_for(came: _Came, function: Callable[..., object], /, *args: object, **kwargs: object) -> object:
    """Call what a task has handed to a pool, in a thread that may have come from elsewhere."""
    before = getattr(_local, "came", None)
    _local.came = came
    try:
        return function(*args, **kwargs)
    finally:
        _local.came = before


def _which(frame: Frame) -> tuple[int, int]:
    return frame.task, frame.attempt


def starter() -> Frame | None:
    """Return the frame of the task that this thread works for and that still runs, None where there is none."""
    came: _Came | None = getattr(_local, "came", None) or _works_for.get()
    frame: Frame | None = None if came is None else came[0].get("frame")
    return frame if came is not None and frame is not None and _which(frame) == came[1] else None


def where() -> tuple[int | None, str]:
    """Return the task that this thread runs, None outside of tasks and in an initializer, and its device."""
    frame = current()
    return (None, "") if frame is None else (frame.task or None, frame.device.id)
