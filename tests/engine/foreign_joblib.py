"""Runs joblib's own tests of `Parallel` with hetero's back end in the place of loky, joblib's default.

In: words of tests' names, none for all. Out: pytest's report, and its exit status. Nothing of those tests is kept
here: they come with the installed joblib. The Context has four devices, because those tests want four calls at a time.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hetero
from hetero.session.options import ContextOptions

LEFT_OUT = {
    "test_error_capture": "looks at the private attributes _pool and _workers",
    "test_auto_memmap_on_arrays_from_generator": "wants arrays of 40 bytes as files mapped by numpy.memmap",
    "test_memmapping_leaks": "wants arrays of 80 bytes as files in joblib's temporary folder",
    "test_parallel_pickling": "wants the words of loky's error",
    "test_nested_parallel_warnings": "wants loky to refuse threads above it, and multiprocessing below it",
    "test_multiple_generator_call_separated_gc": "wants loky to lose the calls of a second loop",
    "test_parallel_with_interactively_defined_functions": "a program of its own, with loky itself",
    "test_parallel_with_interactively_defined_functions_loky": "a program of its own, with loky itself",
    "test_parallel_with_interactively_defined_bound_method_loky": "a program of its own, with loky itself",
    "test_parallel_with_unpicklable_functions_in_args": "programs of their own, with loky itself",
    "test_effective_n_jobs_None[negative-int": "wants as many devices as the machine has CPUs",
    "test_loky_reuse_workers": "compares loky's executors",
    "test_initializer_not_reused": "wants new processes for a new initializer, which the same ones call here",
    "test_threadpool_limitation_in_child_loky": "wants the threads of BLAS to follow n_jobs: a device has its CPUs",
    "test_threadpool_limitation_in_child_context": "wants inner_max_num_threads: a device has its CPUs",
    "test_threadpool_limitation_in_child_override": "shuts loky's executor down to change the workers' environment",
}
"""Tests that are left out, each with the reason: they are about loky itself, or look at private attributes.

A name with a bracket stands for those parameters alone.
"""

OTHERS = frozenset({"multiprocessing", "threading", "sequential", "spawn"})


def stand_in(ctx: hetero.Context | None = None) -> None:
    """Put hetero's back end where loky is, in this process."""
    from joblib import _parallel_backends, parallel

    if ctx is None:  # in a worker: what the tests ask their default back end when they are imported, they ask loky
        importlib.import_module("joblib.test.test_parallel")
    hetero.tasks.register_joblib(ctx, "loky")
    backend = parallel.BACKENDS["loky"]
    backend.__name__ = "LokyBackend"
    if ctx is None:
        parallel.BACKENDS["back_compat_backend"] = backend  # which the tests derive from loky's when they are imported
    backend.default_n_jobs = 1  # as of the one in whose place it stands
    _parallel_backends.LokyBackend = backend


def _is_of_others(item: Any) -> bool:
    """Return whether a test runs with named back ends, none of which is hetero's."""
    from joblib import _parallel_backends as backends

    given = list(item.callspec.params.values()) if hasattr(item, "callspec") else []
    words = {each for each in given if isinstance(each, str)}
    objects = [each for each in given if isinstance(each, backends.ParallelBackendBase) or hasattr(each, "Pool")]
    ours = words & {"loky", "back_compat_backend"} or any(isinstance(each, backends.LokyBackend) for each in objects)
    return bool(words & OTHERS or objects) and not ours


def _is_called(item: Any, name: str) -> bool:
    return bool(item.name.startswith(name) if "[" in name else item.originalname == name)


class Selection:
    """A plug-in of pytest that takes the tests which can run on hetero."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> None:
        """Leave out by name what is about loky itself, and what is about other back ends."""
        named = {name: [item for item in items if _is_called(item, name)] for name in LEFT_OUT}
        if absent := [name for name, found in named.items() if not found]:
            raise pytest.UsageError(
                f"joblib has no tests any more called {', '.join(absent)}: take them out of LEFT_OUT"
            )
        left_out = [item for found in named.values() for item in found]
        others = [item for item in items if item not in left_out and _is_of_others(item)]
        dropped = {*left_out, *others}
        kept = [item for item in items if item not in dropped and self._is_wanted(item.nodeid)]
        print(f"\n{len(kept)} tests, {len(LEFT_OUT)} left out by name, {len(others)} of other back ends", flush=True)
        items[:] = kept

    def _is_wanted(self, name: str) -> bool:
        return not self.words or any(word in name for word in self.words)


def main() -> int:
    """Run them in an empty folder, so that this project's own settings of pytest do not count."""
    with (
        tempfile.TemporaryDirectory() as folder,
        hetero.Context(devices="4xcpu", history=False, options=ContextOptions(initializer=stand_in)) as ctx,
    ):
        stand_in(ctx)
        settings = Path(folder) / "pytest.ini"
        settings.write_text("[pytest]\nmarkers =\n    thread_unsafe: joblib's own\n    no_cover: joblib's own\n")
        options = ["-q", "-c", str(settings), "--rootdir", folder, "-p", "no:cacheprovider", "--timeout=120"]
        options += ["--durations=15", "--pyargs", "joblib.test.test_parallel"]
        return int(pytest.main(options, plugins=[Selection(sys.argv[1:])]))


if __name__ == "__main__":
    sys.exit(main())
