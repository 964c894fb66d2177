from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.engines.local.engine import LocalEngine
from hetero.model.events import DeviceLost, TaskFailed
from hetero.testing.engine import Bench, two_devices

OTHER_NUMPY = "1.26.4"
NEEDED = (f"numpy=={OTHER_NUMPY}", "cloudpickle", "psutil", "threadpoolctl", "array-api-compat")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def other_python() -> str:
    """Return the Python of an environment with another NumPy; it is made once, and that needs a package index."""
    folder = Path(sys.prefix) / "other-numpy"
    python = folder / "bin" / "python"
    works = [str(python), "-c", f"import numpy, cloudpickle, psutil; assert numpy.__version__ == {OTHER_NUMPY!r}"]
    if not python.exists() or subprocess.run(works, capture_output=True, check=False).returncode:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        made = subprocess.run(
            [str(python), "-m", "pip", "install", "-q", *NEEDED], capture_output=True, text=True, check=False
        )
        if made.returncode:
            pytest.fail(f"an environment with NumPy {OTHER_NUMPY} could not be made: {made.stderr[-500:]}", False)
    return str(python)


@pytest.fixture
def bench(other_python: str, no_leaks: None) -> Iterator[Bench]:
    first, second = two_devices()
    bench = Bench(LocalEngine(64_000_000), [replace(first, python=other_python), second])
    bench.ready()
    yield bench
    bench.engine.stop()


def test_arrays_cross_between_two_versions_of_numpy(bench: Bench) -> None:
    assert bench.value(lambda: __import__("numpy").__version__) == OTHER_NUMPY
    assert bench.value(lambda: __import__("numpy").__version__, on=1) == np.__version__
    for array in (np.arange(100_000.0), np.arange(6).reshape(2, 3), np.array(["a", "b"]), np.ones(9, np.float16)):
        there = bench.value(lambda value: value * 1 if value.dtype.kind != "U" else value, array)
        assert there.dtype == array.dtype
        np.testing.assert_array_equal(there, array)


def test_results_of_one_environment_are_arguments_in_the_other(bench: Bench) -> None:
    from hetero.engines.base import ItemRef

    made = bench.run(lambda: __import__("numpy").arange(50_000.0))
    assert bench.value(lambda value: float(value.sum()), ItemRef(made), on=1, refs=(made,)) == 1249975000.0


def test_values_captured_by_a_function_cross_too(bench: Bench) -> None:
    weights = np.arange(20_000.0)
    assert bench.value(lambda: float(weights.sum()) + float(np.float64(1.0))) == 199990001.0


def test_a_package_of_the_program_is_missing_in_the_other_environment(bench: Bench) -> None:
    def imports() -> str:
        import hypothesis

        return hypothesis.__name__

    (task,) = bench.launch(bench.call(imports))
    assert bench.expect(TaskFailed, lambda event: event.task == task).failure.kind == "missing_package"
    assert bench.value(imports, on=1) == "hypothesis"
    (task,) = bench.launch(bench.call(lambda: __import__("hypothesis").__name__))
    assert bench.expect(TaskFailed, lambda event: event.task == task).failure.kind == "exception"


def test_a_python_that_does_not_exist_loses_its_device_for_good() -> None:
    first, _ = two_devices()
    bench = Bench(LocalEngine(1_000_000), [replace(first, python="/no/such/python")])
    lost = bench.expect(DeviceLost)
    assert lost.permanent
    assert "/no/such/python" in lost.reason
    bench.engine.stop()


def test_a_python_without_the_needed_packages_says_which(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    first, _ = two_devices()
    bench = Bench(LocalEngine(1_000_000), [replace(first, python=str(tmp_path / "bare" / "bin" / "python"))])
    lost = bench.expect(DeviceLost)
    assert lost.permanent
    assert "No module named 'numpy'" in lost.reason
    bench.engine.stop()
