"""The joblib back end: `with joblib.parallel_backend("hetero")` runs scikit-learn's n_jobs on a Context.

In: joblib's batches. Out: futures. It must not import joblib before it is registered.
"""

from __future__ import annotations

import concurrent.futures
import functools
import io
import math
import os
import pickle
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.drive.frame import current
from hetero.engines.base import Function
from hetero.engines.shared.wire import cloud_pickler
from hetero.floor.errors import BadValueError
from hetero.floor.extras import need
from hetero.session.functions import FunctionSource
from hetero.session.futures import Future, RaisingFuture
from hetero.session.sharing import LARGE_BYTES, SharedOnce
from hetero.session.signature import register as register_description
from hetero.session.tasks import TaskFunction

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["register_joblib"]


def register_joblib(ctx: Context | None = None, name: str = "hetero") -> None:
    """Make a Context known to joblib under a name.

    Parameters
    ----------
    ctx
        The Context; None uses the one that is open when joblib needs it.
    name
        For `joblib.parallel_backend` and `joblib.parallel_config`.

    Raises
    ------
    HeteroError
        joblib is not installed.

    Examples
    --------
    >>> import hetero, joblib
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
    ...     hetero.tasks.register_joblib(ctx)
    ...     with joblib.parallel_backend("hetero"):
    ...         joblib.Parallel()(joblib.delayed(abs)(i) for i in (-1, -2))
    [1, 2]
    """
    need("joblib", "this back end")
    import joblib

    reference: Callable[[], Context | None] = staticmethod(lambda: None) if ctx is None else weakref.ref(ctx)
    joblib.register_parallel_backend(
        name, type("HeteroBackend", (_backend_class(),), {"reference": reference, "name": name})
    )


def _context(reference: Callable[[], Context | None]) -> Context:
    from hetero.session.runs import open_contexts

    ctx = reference()
    if ctx is None or ctx.closed:
        contexts = open_contexts()
        if len(contexts) != 1:
            raise BadValueError(
                f"joblib's back end 'hetero' finds {len(contexts)} open Contexts",
                remedy="call hetero.tasks.register_joblib(ctx)",
            )
        return contexts[0]
    return ctx


class _Setup(NamedTuple):
    """What each worker calls before its first batch of the loops that name it."""

    key: tuple[int, int]
    initializer: Callable[..., object]
    initargs: tuple[object, ...]


_set_up: set[tuple[int, int]] = set()
_setups: list[_Setup] = []


def _setup_of(options: Mapping[str, Any]) -> _Setup | None:
    """Return the set-up that a loop asks for, the last one again for the same function and arguments."""
    initializer, initargs = options.get("initializer"), tuple(options.get("initargs") or ())
    if initializer is None:
        return None
    for known in _setups:
        same = len(known.initargs) == len(initargs) and all(map(is_, known.initargs, initargs))
        if known.initializer is initializer and same:
            return known
    number = _setups[0].key[1] + 1 if _setups else 0
    _setups[:] = [_Setup((os.getpid(), number), initializer, initargs)]
    return _setups[0]


def _run_batch(batch: Callable[[], object], name: str, setup: _Setup | None) -> object:
    """Run a batch, with the back end's name known in the worker too: loops of the batch run one call after another."""
    from joblib import parallel

    if name not in parallel.BACKENDS:
        register_joblib(None, name)
    if setup is not None and setup.key not in _set_up:
        setup.initializer(*setup.initargs)
        _set_up.add(setup.key)
    return _unpacked(*batch)() if isinstance(batch, _Packed) else batch()


class _Packed(NamedTuple):
    """A batch as it travels: it arrives in a worker process as the batch itself.

    Attributes
    ----------
    body
        Its pickle.
    shared
        The arrays that it has in common with other batches of its loop.
    buffers
        Its other large buffers.
    writable
        Whether its calls may write into the shared arrays, of which each batch has its own copy.
    calls
        How many calls it makes.
    """

    body: bytes
    shared: Sequence[object]
    buffers: Sequence[pickle.PickleBuffer]
    writable: bool
    calls: int

    def __reduce__(self) -> tuple[object, ...]:
        return _unpacked, tuple(self)


register_description(_Packed, lambda packed: ("calls", float(packed.calls)))

_arriving = threading.local()


def _unpacked(
    body: bytes,
    shared: Sequence[NDArray[np.generic]],
    buffers: Sequence[pickle.PickleBuffer],
    writable: bool,
    calls: int,
) -> object:
    """Return a batch of so many calls as it was before it travelled."""
    for array in shared:
        array.flags.writeable = writable
    _arriving.shared = shared
    try:
        return pickle.loads(body, buffers=buffers)
    finally:
        _arriving.shared = None


def _shared(number: int) -> object:
    return _arriving.shared[number]


@functools.cache
def _batch_pickler() -> Any:
    """Return the pickler of batches, made when it is first needed."""

    class BatchPickler(cloud_pickler()):  # type: ignore[misc]
        """Puts references in place of the arrays that `share` gives an item for, and of files that are mapped."""

        share: Callable[[object], object]

        def reducer_override(self, value: object) -> object:
            if type(value) in _ARRAYS and (reduced := self.share(value)) is not None:
                return reduced
            return super().reducer_override(value)

    return BatchPickler


_ARRAYS = frozenset({np.ndarray, np.memmap})


_Call = tuple[TaskFunction[..., object], tuple[object, ...], dict[str, object]]


class _Loop:
    """One loop of joblib: its options, the batches that it waits for, and the large arrays that they share.

    Notes
    -----
    As with loky, an array of more than `max_nbytes` is taken as it is when its loop first meets it, and calls may
    not write into it unless `mmap_mode` is 'c'; smaller ones are taken as they are when their batch is handed in.
    Arrays in files that are mapped by `numpy.memmap` are mapped by the workers too, and written into the file.
    """

    def __init__(self, ctx: Context, jobs: int, options: Mapping[str, Any]) -> None:
        self.ctx = ctx
        self._setup = _setup_of(options)
        self._jobs = jobs
        self._lock = threading.Lock()
        self._running: set[Future] = set()
        self._handing_in = 0
        self._waiting: deque[tuple[_Call, concurrent.futures.Future[object]]] = deque()
        ids = [device.id for device in ctx.devices]
        self._on = ids[:jobs] if jobs < len(ids) else []
        self._packs = ctx.driver.engine.copies_arguments
        self._here = ctx.engine == "local"
        self._writable = options.get("mmap_mode", "r") != "r"
        largest = options.get("max_nbytes")
        self._least_bytes = math.inf if largest is None else max(int(largest) + 1, LARGE_BYTES)
        self._once = SharedOnce(ctx)

    def start(self) -> None:
        """Start a call of `Parallel`: what is shared from now on is looked at anew."""
        self._once = SharedOnce(self.ctx)

    def submit(self, batch: object, name: str, ended: concurrent.futures.Future[object]) -> None:
        """Take a batch, and hand it in as soon as fewer than `n_jobs` run; its outcome goes into the future."""
        try:
            call: _Call = (_batch_task(batch, self._on), (self._pack(batch), name, self._setup), {})
        except Exception as error:  # noqa: BLE001  a value's pickling may raise anything
            ended.set_exception(error)
            return
        self._waiting.append((call, ended))
        self._hand_in()

    def _hand_in(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or len(self._running) + self._handing_in >= self._jobs:
                    return
                call, ended = self._waiting.popleft()
                self._handing_in += 1
            future: Future | None = None
            try:
                future = self.ctx._submit_call(*call)
            except Exception as error:  # noqa: BLE001  told by the future, for this may be a thread of the Context's
                ended.set_exception(error)
            finally:
                with self._lock:
                    self._handing_in -= 1
                    if future is not None:
                        self._running.add(future)
            if future is not None:
                future.add_done_callback(functools.partial(self._ended, ended))

    def _ended(self, ended: concurrent.futures.Future[object], future: Future) -> None:
        with self._lock:
            self._running.discard(future)
        self._hand_in()
        try:
            ended.set_result(future.result())
        except BaseException as error:  # noqa: BLE001  whatever a call raises is its own
            ended.set_exception(error)

    def stop(self) -> None:
        """Stop the batches that are left."""
        with self._lock:
            self._waiting.clear()
            running = list(self._running)
        for future in running:
            future.cancel()

    def _pack(self, batch: object) -> object:
        """Return a batch as it travels; itself where nothing does."""
        if not self._packs:
            return batch
        shared: list[Future] = []
        numbers: dict[int, int] = {}
        buffers: list[pickle.PickleBuffer] = []

        def share(array: object) -> object:
            if self._here and (reduced := _reduce_mapped(array)) is not None:
                return reduced
            if type(array) is not np.ndarray or array.nbytes < self._least_bytes or array.dtype.hasobject:
                return None
            future = self._once.future(array)
            if future is None:
                return None
            if future.item not in numbers:
                numbers[future.item] = len(shared)
                shared.append(future)
            return _shared, (numbers[future.item],)

        file = io.BytesIO()
        pickler = _batch_pickler()(file, 5, buffer_callback=buffers.append)
        pickler.share = share
        pickler.dump(batch)
        calls = len(batch) if hasattr(batch, "__len__") else 1
        return _Packed(file.getvalue(), shared, buffers, self._writable, calls)


def _reduce_mapped(array: object) -> object:
    """Return how an array in a file that is mapped travels, None for one that is in no file or differs from it."""
    from joblib import _memmapping_reducer as mapped

    backing = mapped._get_backing_memmap(array)
    if type(backing) is not np.memmap or backing.mode == "c" or backing.filename is None:
        return None
    return mapped._reduce_memmap_backed(array, backing)


def _batch_task(batch: object, on: list[str]) -> TaskFunction[..., object]:
    """Return the task of a batch, named after the function in it, so that its times are kept apart."""
    items = getattr(batch, "items", None)
    inner = items[0][0] if items else batch
    inner = getattr(inner, "function", inner)
    name = getattr(inner, "__qualname__", type(inner).__name__)
    options: dict[str, object] = {"name": name, "on": on} if on else {"name": name}
    made: TaskFunction[..., object] = TaskFunction(_run_batch, options, _BatchSource(name))
    return made


class _BatchSource(FunctionSource):
    """The source of all batches, with a key of its own for each inner function: workers know them by name, too."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(_run_batch, {}, name)

    def current(self) -> Function:
        """Return the function; only its name and keys differ."""
        function = super().current()
        self.model_key = f"joblib.{self.name}"
        return Function(f"{function.key}|{self.name}", self.name, function.default, function.implementations)


def _backend_class() -> Any:
    from joblib._parallel_backends import FallbackToBackend, SequentialBackend
    from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

    class HeteroBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
        """joblib's view of a Context."""

        supports_retrieve_callback = True
        default_n_jobs = -1
        reference: Callable[[], Context | None] = staticmethod(lambda: None)
        name = "hetero"

        def __init__(self, **options: object) -> None:
            super().__init__(**options)
            _refuse_unknown(self.backend_kwargs)
            self._loop: _Loop | None = None
            self._user: Callable[[], object] = lambda: None

        def __reduce__(self) -> tuple[object, ...]:
            return _sequential, ()

        def configure(self, n_jobs: int = 1, parallel: object = None, **options: object) -> int:
            """Return the number of calls at a time; 1, and no task at all, inside a task and in a forked process.

            A loop inside a task would wait for the device that the task itself keeps.
            """
            level = self.nesting_level
            if _is_nested(type(self).reference, n_jobs) or (jobs := self.effective_n_jobs(n_jobs)) == 1:
                raise FallbackToBackend(SequentialBackend(nesting_level=level))
            if self._user() not in (None, parallel):  # a loop that goes on has this one
                raise FallbackToBackend(type(self)(nesting_level=level, **self.backend_kwargs))
            options = {**self.backend_kwargs, **options}
            _refuse_unknown(options)
            self.parallel = parallel
            self._user = (lambda: None) if parallel is None else weakref.ref(parallel)
            self._loop = _Loop(_context(type(self).reference), jobs, options)
            return jobs

        def start_call(self) -> None:
            """Begin one call of a `Parallel`."""
            self._current().start()

        def stop_call(self) -> None:
            """End one call of a `Parallel`: what its batches shared is given back."""
            self._current().start()

        def terminate(self) -> None:
            """End a loop: what was learned of its batches says nothing of the next one's."""
            self._user = lambda: None
            self.reset_batch_stats()

        def effective_n_jobs(self, n_jobs: int | None) -> int:
            """Return the number of devices, or fewer when fewer are asked for; -2 is one less than all."""
            if n_jobs == 0:
                raise ValueError("n_jobs == 0 in Parallel has no meaning")
            if current() is not None:
                return 1
            devices = len(_context(type(self).reference).devices)
            jobs = self.default_n_jobs if n_jobs is None else n_jobs
            return max(1, devices + 1 + jobs) if jobs < 0 else min(jobs, devices)

        def submit(
            self, func: object, callback: Callable[[concurrent.futures.Future[object]], None] | None = None
        ) -> object:
            """Submit one batch; one that cannot be handed in fails in its future, wherever it was asked for."""
            ended: concurrent.futures.Future[object] = RaisingFuture()
            if callback is not None:
                ended.add_done_callback(callback)
            self._current().submit(func, self.name, ended)
            return ended

        def retrieve_result_callback(self, out: concurrent.futures.Future[object]) -> object:
            """Return the result of a batch that has ended."""
            return out.result()

        def abort_everything(self, ensure_ready: bool = True) -> None:
            """Stop the batches that are left."""
            self._current().stop()

        def _current(self) -> _Loop:
            assert self._loop is not None, "joblib configures a back end before it uses it"
            return self._loop

    return HeteroBackend


_OPTIONS = frozenset({"initializer", "initargs"})
_OF_JOBLIB = frozenset({"max_nbytes", "mmap_mode", "temp_folder", "prefer", "require", "verbose", "context"})
"""Options that joblib itself gives to each back end."""


def _refuse_unknown(options: Mapping[str, object]) -> None:
    """Refuse options that would have no effect.

    Raises
    ------
    BadValueError
        An option is unknown, or arrays are to be shared for writing.
    """
    if unknown := sorted(options.keys() - _OPTIONS - _OF_JOBLIB):
        raise BadValueError(
            f"joblib's back end 'hetero' has no option {', '.join(unknown)}; it has initializer and initargs",
            remedy="leave it out, or set it where the Context is opened",
        )
    if (mode := options.get("mmap_mode", "r")) not in ("r", "c", None):
        raise BadValueError(
            f"mmap_mode={mode!r} lets calls write into arrays of others, which hetero does not share for writing",
            remedy="give 'c' for a copy in each batch, or an array of numpy.memmap for results in a file",
        )


def _is_nested(reference: Callable[[], Context | None], n_jobs: int) -> bool:
    if current() is not None:
        return True
    ctx = reference()
    if ctx is None or not ctx._is_forked:
        return False
    if n_jobs != 1:
        warnings.warn("hetero-backed parallel loops cannot run in a forked process, setting n_jobs=1", stacklevel=5)
    return True


def _sequential() -> object:
    from joblib._parallel_backends import SequentialBackend

    return SequentialBackend(nesting_level=1)
