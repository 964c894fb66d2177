"""Runs CPython's own tests of `concurrent.futures` with hetero's Executor in place of ProcessPoolExecutor.

In: a folder with the package `test` in it; names of tests, none for all. Out: unittest's report, and its exit
status. Nothing of those tests is kept here: they come from the interpreter, or from Debian's libpython3.11-testsuite.
The flavour is `spawn`, which is what hetero's workers are, with two workers a test.
"""

from __future__ import annotations

import concurrent.futures
import sys
import unittest
from typing import Any

PRIVATE = {
    "test_processes_terminate": "_processes",
    "test_context_manager_shutdown": "_processes",
    "test_del_shutdown": "_executor_manager_thread, _processes, _call_queue",
    "test_shutdown_no_wait": "_executor_manager_thread, _processes, _call_queue",
    "test_killed_child": "_processes",
    "test_saturation": "_max_workers, _processes",
    "test_idle_process_reuse_one": "_max_workers, _processes",
    "test_idle_process_reuse_multiple": "_max_workers, _processes",
    "test_max_tasks_per_child": "_processes",
    "test_max_tasks_per_child_defaults_to_spawn_context": "_mp_context",
    "test_shutdown_deadlock_pickle": "_executor_manager_thread",
    "test_traceback": "concurrent.futures.process._RemoteTraceback",
    "ProcessPoolSpawnFailingInitializerTest.test_initializer": "_broken",
}
"""Tests that are left out, each with the private attribute that it looks at: the only reason there is."""

_SUBSTITUTE = """
import sys
sys.path[:0] = {path!r}
import concurrent.futures, hetero
class ProcessPoolExecutor(hetero.tasks.Executor):
    pass
concurrent.futures.ProcessPoolExecutor = ProcessPoolExecutor
"""


def _put_in(folder: str) -> Any:
    """Import the foreign module with the substitute in it, and in the programs that it starts."""
    source = _SUBSTITUTE.format(path=[folder, *(entry for entry in sys.path if entry)])
    exec(source, globals())
    from test import test_concurrent_futures as foreign

    run = foreign.assert_python_ok

    def with_substitute(option: str, text: str, *more: str, **words: Any) -> Any:
        return run(option, f"{source}\n{text}", *more, HETERO_PROGRESS="0", **words)

    foreign.assert_python_ok = with_substitute
    foreign.ProcessPoolSpawnMixin.executor_type = concurrent.futures.ProcessPoolExecutor
    foreign.ExecutorMixin.worker_count = 2
    return foreign


def _name(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def main() -> int:
    """Run the tests of one flavour but those that look at private attributes."""
    foreign = _put_in(sys.argv[1])
    wanted = sys.argv[2:]
    suite, left_out = unittest.TestSuite(), 0
    for name in sorted(vars(foreign)):
        if not name.startswith("ProcessPoolSpawn") or not name.endswith("Test"):
            continue
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(getattr(foreign, name)):
            full = _name(test)  # type: ignore[arg-type]
            if full in PRIVATE or full.partition(".")[2] in PRIVATE:
                left_out += 1
            elif not wanted or any(word in full for word in wanted):
                suite.addTest(test)
    print(f"{suite.countTestCases()} tests, {left_out} left out for a private attribute", flush=True)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    return int(not result.wasSuccessful())


if __name__ == "__main__":
    sys.exit(main())
