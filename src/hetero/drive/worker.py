"""The worker's entry point: opens a device, and runs calls on it one after the other.

In: a device, functions with arguments. Out: values, left on the device where it has memory of its own.
It must not know which engine it works for, and it imports nothing heavy before the device needs it.
"""

from __future__ import annotations

import dis
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any

from hetero.drive.annotations import record_nested
from hetero.drive.frame import Deeper, Frame, current, enter
from hetero.drive.throttle import Throttle
from hetero.engines.base import Channel, Function, Nest, Outcome, Spread
from hetero.engines.shared.exceptions import add_note, one_line
from hetero.engines.shared.worker_setup import Initializer, WorkerSetup
from hetero.floor import clock, platform
from hetero.floor.clock import TaskClock
from hetero.floor.errors import DeviceError, HeteroError
from hetero.model.annotations import TaskNote, set_in_time
from hetero.model.device import HOST_NODE, Device
from hetero.model.tasks import FailureKind

if TYPE_CHECKING:
    from hetero.backends.base import Backend

__all__ = ["DeviceRunner", "WorkerFactory", "main"]

_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class DeviceRunner:
    """Runs calls on one open device; see `hetero.engines.base.Runner`."""

    def __init__(self, device: Device, backend: Backend, initializer: Initializer | None = None) -> None:
        from hetero.backends.base import Backend

        self.device = device
        self._state: dict[str, object] = {}
        self._initializer = initializer
        self.backend = backend
        self.spread: Spread | None = None
        self.shares_memory = backend.kind.shares_memory
        self._own_memory = device.memory_node != HOST_NODE
        self._throttle = Throttle(device.throttle_frac)
        words = (device.id, device.short, device.label, device.kind, device.backend, device.type.casefold(), "any")
        self._words = tuple(dict.fromkeys(words))
        self._reported: Frame | None = None
        self.timing: TaskClock | None = None
        self.own: Callable[[object], object] | None = None
        self._always_active = type(backend).activate is Backend.activate

    def initialize(self) -> None:
        """Call the initializer, which finds what it keeps in the state of this worker.

        Raises
        ------
        DeviceError
            It raised something; the message names that.
        """
        if self._initializer is None:
            return
        before = enter(Frame(self.device, self.backend, state=self._state))
        try:
            with self.backend.activate(), _EndingForks():
                self._initializer()
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            traceback.print_exc()
            raise DeviceError(
                f"the initializer {self._initializer.name} raised {one_line(error)}",
                remedy="mend it: a device runs nothing before its initializer has returned",
            ) from error
        finally:
            enter(before)

    def run(
        self,
        function: Function,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        task: int,
        attempt: int,
        task_key: str = "",
        channel: Channel | None = None,
        nest: Nest = Nest(spreads=False),  # noqa: B008  it is a tuple
    ) -> Outcome:
        """Run one attempt, perhaps on top of one that waits."""
        implementation = self._choose(function) if function.implementations else function.default
        frame = Frame(
            self.device,
            self.backend,
            task,
            attempt,
            task_key,
            channel,
            state=self._state,
            inside=self._run_inside,
            timing=self.timing,
            own=self.own,
        )
        if self.spread is not None:
            frame.path, frame.kept_path, frame.root_key, frame.depth, spreads, _ = nest
            frame.spread = self.spread if spreads else None
        before = enter(frame)
        if before is not None:
            return self._run_on_top(before, frame, implementation, args, kwargs)
        return self._run(None, frame, implementation, args, kwargs)

    def _run_on_top(
        self, below: Frame, frame: Frame, implementation: object, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Outcome:
        """Run an attempt on top of one that waits, whose throttle does not count its time."""
        cpu_s = clock.thread_cpu_s()
        try:
            with Deeper(1), _surroundings(below):
                return self._run(below, frame, implementation, args, kwargs)
        finally:
            below.throttled_cpu_s += clock.thread_cpu_s() - cpu_s

    def _run(
        self,
        before: Frame | None,
        frame: Frame,
        implementation: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Outcome:
        backend = self.backend
        cpu_s = clock.thread_cpu_s() if self._throttle.active else 0.0
        started_s = frame.began_s = clock.monotonic_s()
        forks = platform.FORKS.count
        try:
            if self._always_active:
                value = backend.run(implementation, args, kwargs)
            else:
                with backend.activate():
                    value = backend.run(implementation, args, kwargs)
            if forks != platform.FORKS.count:
                platform.leave_fork(None)
            if backend.heavy:
                backend.synchronize()
        except BaseException as error:
            if forks != platform.FORKS.count:
                platform.leave_fork(error)
            if issubclass(type(error), TypeError) and frame.used_namespace and backend.heavy:
                add_note(error, f"arguments reach {self.device.id} as NumPy arrays: write x = xp.asarray(x) first")
            raise
        finally:
            if self._throttle.active:
                clock.sleep(self._throttle.idle_s(clock.thread_cpu_s() - cpu_s - frame.throttled_cpu_s))
            enter(before)
            self._reported = frame
            if frame.talk is not None:
                frame.talk.close()
        if value is not None and (self._own_memory or frame.used_namespace or not backend.runs_python):
            return self._outcome(value, started_s)
        return Outcome(value, clock.monotonic_s() - started_s)

    def _run_inside(
        self, frame: Frame, function: Function, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """Run a nested call on top of the task that submits it, whose throttle and clock go on."""
        implementation = self._choose(function) if function.implementations else function.default
        parent = current()
        assert parent is not None
        begun_s = clock.monotonic_s() if frame.depth == 1 else 0.0
        enter(frame)
        try:
            with Deeper(frame.depth), _surroundings(parent), _EndingForks():
                return self.backend.run(implementation, args, kwargs)
        finally:
            enter(parent)
            parent.ended(frame)
            if frame.talk is not None:
                frame.talk.close()
            if frame.depth == 1:
                record_nested(parent, function.name, begun_s)

    def notes(self, began_s: float) -> list[TaskNote]:
        """Take what the last attempt told of its inside."""
        frame, self._reported = self._reported, None
        if frame is None or not (frame.notes or frame.late):
            return []
        late = [note for make in frame.late if (note := make()) is not None]
        return [set_in_time(note, began_s) for note in (*frame.notes, *late)]

    def _outcome(self, value: object, started_s: float) -> Outcome:
        owned_bytes = _sum_bytes(value, self.backend.owns) if self._own_memory else 0
        resident = owned_bytes > 0
        value = value if resident else self.to_host(value)
        return Outcome(value, clock.monotonic_s() - started_s, resident, owned_bytes)

    def _choose(self, function: Function) -> object:
        for word in self._words:
            if word in function.implementations:
                return function.implementations[word]
        if function.default is None:
            known = ", ".join(sorted(function.implementations))
            raise HeteroError(
                f"{function.name!r} has no implementation for {self.device.id}", remedy=f"it has some for: {known}"
            )
        return function.default

    def to_host(self, value: object) -> object:
        """Return a value with the device's arrays as NumPy arrays."""
        with self.backend.activate():
            return _mapped(value, self.backend.owns, self.backend.copy_out)

    def to_device(self, value: object) -> object:
        """Return a value with its NumPy arrays on the device, those whose dtype can live there."""
        import numpy as np

        backend = self.backend

        def fits(one: object) -> bool:
            return type(one) is np.ndarray and backend._dtype_ok(one.dtype)

        with backend.activate():
            return _mapped(value, fits, backend.copy_in)

    def classify(self, error: BaseException) -> FailureKind:
        """Return what kind of failure an exception is."""
        if type(error) is ModuleNotFoundError and error.name and _imports_of_its_own(error):
            return "missing_package"
        try:
            return "out_of_memory" if self.backend.is_out_of_memory(error) else "exception"
        except BaseException:  # noqa: BLE001  a user's exception may raise anything when it is asked what it is
            return "exception"

    def broken(self) -> str:
        """Return why the device answers nothing any more in this process, '' where it does.

        A kernel that failed leaves CUDA's context unusable for as long as the process lives.
        """
        if not self.backend.heavy:
            return ""
        try:
            self.backend.synchronize()
        except Exception as error:  # noqa: BLE001  whatever the framework raises says that
            return one_line(error)
        return ""

    def close(self) -> None:
        """Close the device."""
        self.backend.close()


def _surroundings(below: Frame) -> AbstractContextManager[None]:
    """Return a context in which variables and generators are as they were before the task below began."""
    return nullcontext() if below.found is None else below.found.again()


class _EndingForks:
    """Ends the processes that the body forks where the body is left in them.

    It is no generator: contextlib sets an attribute of what passes through one, which a user's class may refuse.
    """

    def __enter__(self) -> None:
        self._forks = platform.FORKS.count

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._forks != platform.FORKS.count:
            platform.leave_fork(error)


def _imports_of_its_own(error: ImportError) -> bool:
    """Return whether an import failed that the function always makes: its own, or its module's.

    Notes
    -----
    What the function imports after a branch, or through another function, depends on its data.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    steps = [step.tb_lasti for step in _steps(error.__traceback__)]
    codes = [frame.f_code for frame in frames]
    if DeviceRunner.run.__code__ in codes:
        start = 1 + max(place for place, code in enumerate(codes) if code.co_filename.startswith(_OURS))
        own = list(zip(codes[start:], steps[start:], strict=True))
        return bool(own) and all(_is_import(*step) for step in own) and all(c.co_name == "<module>" for c, _ in own[1:])
    return all(code.co_name == "<module>" or code.co_filename.startswith(_OURS) for code in codes)


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_import(code: CodeType, place: int) -> bool:
    """Return whether this instruction imports, and is reached whatever the data: a module's body may branch."""
    for step in dis.get_instructions(code):
        if step.offset == place:
            return step.opname == "IMPORT_NAME"
        if code.co_name != "<module>" and step.opcode in _JUMPS:
            return False
    return False


def _mapped(value: Any, wanted: Callable[[object], bool], change: Callable[..., object]) -> object:
    kind = type(value)
    if kind is list or kind is tuple:
        return kind([_mapped(item, wanted, change) for item in value])
    if kind is dict:
        return {key: _mapped(item, wanted, change) for key, item in value.items()}
    return change(value) if wanted(value) else value


def _sum_bytes(value: Any, wanted: Callable[[object], bool]) -> int:
    kind = type(value)
    if kind is list or kind is tuple:
        return sum([_sum_bytes(item, wanted) for item in value])
    if kind is dict:
        return sum([_sum_bytes(item, wanted) for item in value.values()])
    return int(getattr(value, "nbytes", 0)) if wanted(value) else 0


class WorkerFactory:
    """How engines come by runners; see `hetero.engines.base.WorkerEntry`."""

    module = "hetero.drive.worker"

    def __init__(self, setup: WorkerSetup | None = None) -> None:
        self.setup = setup or WorkerSetup()

    def make(self, device: Device) -> DeviceRunner:
        """Open the device in this process.

        Raises
        ------
        DeviceError
            It cannot be opened.
        """
        from hetero.backends.registry import backend_of

        backend = backend_of(device)
        backend.open()
        return DeviceRunner(device, backend, self.setup.initializer)


def main(data_fd: str, control_fd: str, threads: str, cpus: str) -> None:
    """Be a worker process.

    Parameters
    ----------
    data_fd, control_fd
        The two sockets to the program.
    threads
        How many threads numerical libraries may use, '0' for as many as they like.
    cpus
        CPU numbers to be bound to, separated by commas, '' for all.
    """
    if cpus:
        platform.bind_to_cpus(map(int, cpus.split(",")))
    if threads != "0":
        platform.set_environment(dict.fromkeys(_THREAD_COUNTS, threads))
    from hetero.engines.local.worker_process import serve

    serve(WorkerFactory(), int(data_fd), int(control_fd))


if __name__ == "__main__":
    # The module that tasks see as hetero.drive.worker must be this one, not a second copy of it.
    from hetero.drive import worker

    worker.main(*sys.argv[1:])
