"""What only a system package, a device or a data folder gives to a test.

In: the name of a part. Out: nothing when it is there; a skip with one clear line when it is absent, and a
failure where `HETERO_REQUIRE` names it. It must not take a part's word for it: each probe uses the part.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hetero.floor import settings
from tests import cgroups

__all__ = [
    "PARTS",
    "PROJECT",
    "absent",
    "chromium",
    "data_folder",
    "foreign_tests",
    "import_or_fail",
    "in_ci",
    "mpiexec",
    "need",
    "required",
]

PROJECT = Path(__file__).resolve().parent.parent
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

_OPENCL = "import pyopencl as cl; assert any(p.get_devices() for p in cl.get_platforms())"
_VULKAN = (
    "import wgpu; assert any(a.info['backend_type'] == 'Vulkan' for a in wgpu.gpu.enumerate_adapters_sync()),"
    " 'no Vulkan adapter'"
)
_CUDA = "import torch; assert torch.cuda.is_available(), 'torch finds no CUDA device'"


def _outcome(command: list[str], timeout_s: float = 60.0) -> str:
    """Run a command; return '' when it succeeds, else the last line of what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
    return said[-1]


def _import_trouble(name: str) -> str:
    return _outcome([sys.executable, "-c", f"import {name}"])


def _namespace_trouble() -> str:
    name = f"hetero-probe-{os.getpid()}"
    trouble = _outcome(["ip", "netns", "add", name])
    return trouble or _outcome(["ip", "netns", "delete", name])


def _browser() -> str | None:
    return next((path for path in map(shutil.which, _BROWSERS) if path), None)


def _browser_trouble() -> str:
    path = _browser()
    return _outcome([path, "--version"]) if path else f"none of {', '.join(_BROWSERS)} is on the PATH"


def mpiexec() -> str:
    """Return the path of MPI's launcher, beside this Python or on the PATH; '' where there is none."""
    return shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec") or ""


def _mpi_trouble() -> str:
    command = [mpiexec() or "mpiexec", "-n", "1", sys.executable, "-c", "from mpi4py import MPI"]
    return _outcome(command)


def foreign_tests(name: str) -> Path | None:
    """Return the folder with the interpreter's own package `test` in which a test module is, or Debian's; or None."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = (Path(os.__file__).parent, Path("/usr/lib") / version)
    return next((folder for folder in folders if (folder / "test" / f"{name}.py").is_file()), None)


def _foreign_trouble() -> str:
    return "" if foreign_tests("test_concurrent_futures") else "no test_concurrent_futures.py beside this Python"


def _ceph_trouble() -> str:
    commands = ("ceph-mon", "ceph-osd", "radosgw", "ceph")
    return next((trouble for name in commands if (trouble := _outcome([name, "--version"]))), "")


def _joblib_trouble() -> str:
    return _outcome([sys.executable, "-c", "import joblib.test.test_parallel"])


def _data() -> Path:
    return settings.test_data() or PROJECT.parent / "shared" / "data"


def _data_trouble() -> str:
    return "" if _data().is_dir() else f"{_data()} is not a folder"


PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "opencl": (
        "an OpenCL platform with a device (Debian: pocl-opencl-icd)",
        lambda: _outcome([sys.executable, "-c", _OPENCL]),
    ),
    "vulkan": (
        "a Vulkan adapter (Debian: mesa-vulkan-drivers)",
        lambda: _outcome([sys.executable, "-c", _VULKAN]),
    ),
    "cuda": ("an NVIDIA GPU that torch can use", lambda: _outcome([sys.executable, "-c", _CUDA])),
    "netns": ("network namespaces (root, and Debian: iproute2)", _namespace_trouble),
    "mpi": ("MPI (pip install mpi4py mpich, or Debian: mpich)", _mpi_trouble),
    "accelerate": (
        "accelerate and transformers (pip install accelerate transformers)",
        lambda: _outcome([sys.executable, "-c", "import accelerate, transformers"]),
    ),
    "gpuhunt": (
        "gpuhunt (pip install 'hetero-core[prices]')",
        lambda: _outcome([sys.executable, "-c", "import gpuhunt"]),
    ),
    **{
        name: (f"{name} (pip install 'hetero-core[{name}]')", partial(_import_trouble, name))
        for name in ("tensorboard", "mlflow", "wandb")
    },
    "chromium": ("Chromium (Debian: chromium)", _browser_trouble),
    "ceph": ("Ceph (Debian: ceph-mon ceph-osd radosgw)", _ceph_trouble),
    "cgroup": ("memory cgroups (root, and the memory controller below the own group)", cgroups.trouble),
    "cpython-tests": (
        "CPython 3.11's own tests (Debian: libpython3.11-testsuite)",
        _foreign_trouble,
    ),
    "joblib-tests": ("joblib's own tests (pip install joblib: they come with it)", _joblib_trouble),
    "data": ("the test data (HETERO_TEST_DATA, or shared/data beside the checkout)", _data_trouble),
}
"""What can be needed: in words with the way to get it, and the probe that gives '' or the trouble."""


@functools.cache
def absent(part: str) -> str:
    """Return '' when the part is there and works, else one line: what is absent, and why."""
    words, trouble = PARTS[part]
    found = trouble()
    return f"needs {words}: {found}" if found else ""


def in_ci() -> bool:
    """Return whether this is continuous integration, where nothing that pip installs may be absent."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def required() -> tuple[str, ...]:
    """Return the parts that a test run must find, from HETERO_REQUIRE."""
    return tuple(word.strip() for word in settings.read("HETERO_REQUIRE").split(",") if word.strip())


def _is_required(part: str) -> bool:
    return part in required() or (part == "data" and in_ci())


def import_or_fail(name: str, *_: object, **__: object) -> Any:
    """Import a module for `pytest.importorskip`; where it is absent the test fails and is not passed over."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.fail(f"continuous integration lacks {name}: {error}", pytrace=False)


def need(part: str) -> None:
    """Go on when the part is there; else skip, or fail where `HETERO_REQUIRE` names it.

    Parameters
    ----------
    part : one of `PARTS`
    """
    if part not in PARTS:
        raise ValueError(f"{part!r} is not something that a test can need; known: {', '.join(PARTS)}")
    line = absent(part)
    if line and _is_required(part):
        pytest.fail(line, pytrace=False)
    if line:
        pytest.skip(line)


def data_folder() -> Path:
    """Return the folder of other people's data; skips where it is absent, fails in continuous integration."""
    need("data")
    return _data()


def chromium() -> str:
    """Return the path of the browser; skips or fails where there is none."""
    need("chromium")
    return _browser() or ""
