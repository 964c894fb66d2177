"""The joblib back end: `with joblib.parallel_backend("hetero")` runs scikit-learn's n_jobs on a Context.

In: joblib's batches. Out: futures. It must not import joblib before it is registered.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

from hetero.drive.frame import current
from hetero.floor.errors import BadValueError, MissingPackageError
from hetero.session.functions import Source
from hetero.session.futures import Future
from hetero.session.tasks import TaskFunction

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["register_joblib"]


def register_joblib(ctx: Context | None = None, name: str = "hetero") -> None:
    """Make a Context known to joblib under a name.

    Parameters
    ----------
    ctx : the Context; None uses the one that is open when joblib needs it
    name : for `joblib.parallel_backend` and `joblib.parallel_config`

    Raises
    ------
    HeteroError
        joblib is not installed.

    Examples
    --------
    >>> import hetero, joblib
    >>> with hetero.Context(devices="1xcpu", engine="inline") as ctx:
    ...     hetero.register_joblib(ctx)
    ...     with joblib.parallel_backend("hetero"):
    ...         joblib.Parallel()(joblib.delayed(abs)(i) for i in (-1, -2))
    [1, 2]
    """
    try:
        import joblib
    except ImportError as error:
        raise MissingPackageError("joblib is not installed", remedy="pip install joblib") from error
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
                remedy="call hetero.register_joblib(ctx)",
            )
        return contexts[0]
    return ctx


class _Setup(NamedTuple):
    """What each worker calls before its first batch of the loops that name it."""

    key: tuple[int, int]
    initializer: Callable[..., object]
    initargs: tuple[Any, ...]


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


def _run_batch(batch: Callable[[], Any], name: str, setup: _Setup | None) -> Any:
    """Run a batch, with the back end's name known in the worker too: loops of the batch run one call after another."""
    from joblib import parallel

    if name not in parallel.BACKENDS:
        register_joblib(None, name)
    if setup is not None and setup.key not in _set_up:
        setup.initializer(*setup.initargs)
        _set_up.add(setup.key)
    return batch()


def _batch_task(batch: Any) -> TaskFunction[..., Any]:
    """Give the task of a batch, named after the function in it, so that its times are kept apart."""
    items = getattr(batch, "items", None)
    inner = items[0][0] if items else batch
    inner = getattr(inner, "function", inner)
    name = getattr(inner, "__qualname__", type(inner).__name__)
    made: TaskFunction[..., Any] = TaskFunction(_run_batch, {"name": name}, _BatchSource(name))
    return made


class _BatchSource(Source):
    """The source of all batches, with a key of measured times of its own for each inner function."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(_run_batch, {}, name)

    def current(self) -> Any:
        """Give the function; only the key of its times differs."""
        function = super().current()
        self.model_key = f"joblib.{self.name}"
        return function


def _backend_class() -> Any:
    from joblib._parallel_backends import FallbackToBackend, SequentialBackend
    from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

    class HeteroBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
        """joblib's view of a Context."""

        supports_retrieve_callback = True
        default_n_jobs = -1
        reference: Callable[[], Context | None] = staticmethod(lambda: None)
        name = "hetero"

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._setup: _Setup | None = None
            self._waiting: weakref.WeakSet[Future] = weakref.WeakSet()

        def __reduce__(self) -> tuple[Any, ...]:
            return _sequential, ()

        def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
            """Return the number of calls at a time; 1, and no task at all, inside a task and in a forked process.

            A loop inside a task would wait for the device that the task itself keeps.
            """
            if _is_nested(type(self).reference, n_jobs):
                raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
            self._setup = _setup_of({**self.backend_kwargs, **options})
            return int(super().configure(n_jobs, parallel, **options))

        def terminate(self) -> None:
            """End a loop: what was learned of its batches says nothing of the next one's."""
            self.reset_batch_stats()

        def effective_n_jobs(self, n_jobs: int | None) -> int:
            """Return the number of devices, or fewer when fewer are asked for."""
            if n_jobs == 0:
                raise ValueError("n_jobs == 0 in Parallel has no meaning")
            if current() is not None:
                return 1
            devices = len(_context(type(self).reference).devices)
            return devices if n_jobs is None or n_jobs < 0 else min(n_jobs, devices)

        def submit(self, func: Any, callback: Callable[[Future], None] | None = None) -> Future:
            """Hand in one batch."""
            future = _context(type(self).reference).submit_call(_batch_task(func), (func, self.name, self._setup), {})
            self._waiting.add(future)
            if callback is not None:
                future.add_done_callback(callback)
            return future

        def retrieve_result_callback(self, out: Future) -> Any:
            """Give the result of a batch that has ended."""
            return out.result()

        def abort_everything(self, ensure_ready: bool = True) -> None:
            """Stop the batches that are left."""
            for future in list(self._waiting):
                future.cancel()

    return HeteroBackend


def _is_nested(reference: Callable[[], Context | None], n_jobs: int) -> bool:
    if current() is not None:
        return True
    ctx = reference()
    if ctx is None or not ctx.is_forked:
        return False
    if n_jobs != 1:
        warnings.warn("hetero-backed parallel loops cannot run in a forked process, setting n_jobs=1", stacklevel=5)
    return True


def _sequential() -> Any:
    from joblib._parallel_backends import SequentialBackend

    return SequentialBackend(nesting_level=1)
