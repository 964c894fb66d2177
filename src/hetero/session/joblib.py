"""The joblib back end: `with joblib.parallel_backend("hetero")` runs scikit-learn's n_jobs on a Context.

In: joblib's batches. Out: futures. It must not import joblib before it is registered.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    reference: Callable[[], Context | None] = (lambda: None) if ctx is None else weakref.ref(ctx)
    backend = _backend_class()
    joblib.register_parallel_backend(name, lambda **options: backend(reference, **options))


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


def _run_batch(batch: Callable[[], Any]) -> Any:
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
    from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

    class HeteroBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
        """joblib's view of a Context."""

        supports_retrieve_callback = True
        default_n_jobs = -1

        def __init__(self, reference: Callable[[], Context | None] = lambda: None, **options: Any) -> None:
            super().__init__(**options)
            self._reference = reference
            self._waiting: weakref.WeakSet[Future] = weakref.WeakSet()

        def __reduce__(self) -> tuple[Any, ...]:
            return _sequential, ()

        def effective_n_jobs(self, n_jobs: int | None) -> int:
            """Give the number of devices, or fewer when fewer are asked for."""
            devices = len(_context(self._reference).devices)
            if n_jobs == 0:
                raise ValueError("n_jobs == 0 in Parallel has no meaning")
            return devices if n_jobs is None or n_jobs < 0 else min(n_jobs, devices)

        def submit(self, func: Any, callback: Callable[[Future], None] | None = None) -> Future:
            """Hand in one batch."""
            future = _context(self._reference).submit_call(_batch_task(func), (func,), {})
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


def _sequential() -> Any:
    from joblib._parallel_backends import SequentialBackend

    return SequentialBackend(nesting_level=1)
