from __future__ import annotations

import importlib
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hetero.drive.frame import current
from hetero.drive.worker import DeviceRunner, WorkerFactory
from hetero.engines.base import Function
from hetero.engines.shared.exceptions import kind_here
from hetero.floor.errors import DeviceError, HeteroError
from hetero.model.device import Device, DeviceType
from hetero.testing.engine import two_devices

CPU = two_devices()[0]


def run(runner: DeviceRunner, function: Any, *args: Any, **implementations: Any) -> Any:
    words = {word.replace("_", "-"): given for word, given in implementations.items()}
    return runner.run(Function("key", "name", function, words), args, {}, task=1, attempt=1)


def test_the_nearest_word_names_the_implementation() -> None:
    runner = WorkerFactory().make(CPU)
    words = {"any": "any", "cpu": "kind"}
    outcome = runner.run(
        Function("k", "f", lambda: "plain", {w: (lambda v=v: v) for w, v in words.items()}), (), {}, task=1, attempt=1
    )
    assert outcome.value == "kind"
    words["h0/cpu:0"] = "id"
    outcome = runner.run(
        Function("k", "f", lambda: "plain", {w: (lambda v=v: v) for w, v in words.items()}), (), {}, task=1, attempt=1
    )
    assert outcome.value == "id"
    assert run(runner, lambda: "plain", opencl=lambda: "other").value == "plain"
    with pytest.raises(HeteroError, match="it has some for: opencl"):
        run(runner, None, opencl=lambda: "other")
    runner.close()


def test_a_task_sees_its_frame_and_nothing_remains_of_it() -> None:
    runner = WorkerFactory().make(CPU)

    def look() -> tuple[str, int]:
        frame = current()
        assert frame is not None
        return frame.device.id, frame.attempt

    assert run(runner, look).value == ("h0/cpu:0", 1)
    with pytest.raises(ZeroDivisionError):
        run(runner, lambda: 1 / 0)
    assert current() is None
    runner.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_throttled_device_sleeps_in_proportion_to_the_cpu_time_of_a_task(fails: bool) -> None:
    runner = WorkerFactory().make(replace(CPU, throttle_frac=0.25))

    def work() -> float:
        before = time.thread_time()
        total = sum(math.sqrt(number) for number in range(200_000))
        used = time.thread_time() - before
        if fails:
            raise ValueError(used)
        return used + 0.0 * total

    started, cpu_started = time.monotonic(), time.thread_time()
    try:
        used = run(runner, work).value
    except ValueError as error:
        used = error.args[0]
    assert time.monotonic() - started >= 0.99 * 4.0 * used
    assert time.thread_time() - cpu_started < 2.0 * used
    runner.close()


def _imports_first() -> None:
    import hetero_has_no_such_package  # type: ignore[import-not-found]  # noqa: F401


def _imports_in_another_function() -> None:
    _imports_first()


def _imports_after_a_branch(given: int = 2) -> None:
    if given > 1:
        import hetero_has_no_such_package  # noqa: F401


def _imports_by_name() -> None:
    importlib.import_module("hetero_has_no_such_package")


def _raises_it() -> None:
    raise ModuleNotFoundError("No module named 'weights'", name="weights")


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (_imports_first, "missing_package"),
        (_imports_in_another_function, "exception"),
        (_imports_after_a_branch, "exception"),
        (_imports_by_name, "exception"),
        (_raises_it, "exception"),
    ],
)
def test_only_an_import_that_the_function_always_makes_is_a_missing_package(function: Any, kind: str) -> None:
    runner = WorkerFactory().make(CPU)
    with pytest.raises(ModuleNotFoundError) as caught:
        run(runner, function)
    assert runner.classify(caught.value) == kind
    assert kind_here(runner.classify(caught.value), caught.value) == "exception", "the program lacks it too"
    runner.close()


def test_lack_of_memory_is_told_from_other_exceptions() -> None:
    runner = WorkerFactory().make(CPU)
    assert runner.classify(MemoryError()) == "out_of_memory"
    assert runner.classify(ValueError()) == "exception"
    runner.close()


def test_a_device_with_memory_of_its_own_keeps_its_results() -> None:
    runner = WorkerFactory().make(two_devices()[1])
    outcome = run(runner, lambda: {"a": [np.zeros(1000)], "b": 1})
    assert (outcome.resident, outcome.nbytes) == (True, 8000)
    assert not run(runner, lambda: 5).resident
    runner.close()


def test_results_of_a_frameworks_device_that_shares_the_hosts_memory_are_numpy_arrays() -> None:
    import torch

    device = Device("h0/torch-cpu:0", "cpu", DeviceType("CPU"), "torch", name="torch")
    runner = WorkerFactory().make(device)

    def work(a: Any) -> Any:
        import hetero

        xp = hetero.tasks.namespace()
        return xp.asarray(a) * 2, {"sum": xp.sum(xp.asarray(a))}

    value = run(runner, work, np.ones(5)).value
    assert type(value[0]) is np.ndarray
    assert value[0].tolist() == [2.0] * 5
    plain = run(runner, lambda a: torch.as_tensor(a), np.ones(5)).value
    assert isinstance(plain, torch.Tensor)
    runner.close()


def test_a_device_that_cannot_be_opened_is_an_error_of_ours() -> None:
    with pytest.raises((DeviceError, HeteroError)):
        WorkerFactory().make(Device("h0/cuda:99", "cuda", DeviceType("GPU"), "torch", index=99))
