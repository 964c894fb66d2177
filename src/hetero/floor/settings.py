"""Every environment switch of hetero, registered once.

In: the environment. Out: typed values. Nothing else in the package reads `os.environ`.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hetero.floor.contexts import transparent
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.files import local_path

__all__ = [
    "RUN_OPTION",
    "SWITCHES",
    "Switch",
    "check_level",
    "chooses_devices",
    "debug_level",
    "default_config",
    "default_devices",
    "device_variables",
    "given",
    "home",
    "lent",
    "misspelt",
    "offer",
    "overrides",
    "present",
    "progress",
    "read",
    "replaced",
    "seed",
    "switch_on",
    "test_data",
    "trace_errors",
]


@dataclass(frozen=True, slots=True)
class Switch:
    """One environment variable.

    Attributes
    ----------
    name
        Of the variable.
    default
        Its text where it is not set.
    meaning
        What it does, in words.
    for_users
        False for what hetero's own processes or its tests set; docs/index.md leaves these out.
    """

    name: str
    default: str
    meaning: str
    for_users: bool = True


SWITCHES: tuple[Switch, ...] = (
    Switch(
        "HETERO_DEBUG",
        "0",
        "1 devices found and why others not; 2 placements and transfers; 3 events and commands; 4 policy scores",
    ),
    Switch(
        "HETERO_TRACE",
        "",
        "file that the trace of every run is written to; in its name {pid} is the process, {n} the Context's number",
    ),
    Switch(
        "HETERO_TRACE_ERRORS", "0", "1 writes the text of tasks' exceptions into traces, which may hold what is yours"
    ),
    Switch("HETERO_CHECK", "0", "1 checks every invariant of the core after every event"),
    Switch(
        "HETERO_DEVICES", "", "the fleet, as in '1xcpu,1xcpu*0.25,8xnull'; default: every sound device of this host"
    ),
    Switch("HETERO_ENGINE", "", "engine when none is named: local, inline or ray"),
    Switch("HETERO_CONFIG", "", "configuration file when none is named"),
    Switch(
        "HETERO_SET",
        "",
        "settings laid over the configuration, as in 'policy=eft devices.0.cores=2'; quoted as for a shell",
    ),
    Switch("HETERO_PROGRESS", "", "1 shows the progress of every run, 0 of none; default: of runs under 'hetero run'"),
    Switch("HETERO_LAUNCHED", "", "what 'hetero launch' passes to the processes that it starts", for_users=False),
    Switch("HETERO_SEED", "0", "seed of every random choice"),
    Switch("HETERO_HOME", "~/.hetero", "folder of measured times, probes and checkpoints"),
    Switch(
        "HETERO_REQUIRE",
        "",
        "what must be present in a test run, as in 'opencl,vulkan,netns,chromium'; absent means failure",
        for_users=False,
    ),
    Switch("HETERO_TEST_DATA", "", "folder of the data that tests and benchmarks read", for_users=False),
)

RUN_OPTION = "hetero_run"
"""Of `python -X`: by it a script of `hetero run` knows itself; processes that it starts do not inherit it."""

_BY_NAME = {switch.name: switch for switch in SWITCHES}


def read(name: str) -> str:
    """Return the text of a registered switch, or its default.

    Examples
    --------
    >>> read("HETERO_SEED").isdigit()
    True
    """
    return os.environ.get(name, "").strip() or _BY_NAME[name].default


def _whole(name: str, least: int, most: int) -> int:
    text = read(name)
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise BadValueError(
            f"{name}={text!r} is not a whole number from {least} to {most}",
            remedy=f"set {name}={_BY_NAME[name].default}",
        )
    return int(text)


def debug_level() -> int:
    """Return HETERO_DEBUG, 0 to 4."""
    return _whole("HETERO_DEBUG", 0, 4)


def check_level() -> int:
    """Return HETERO_CHECK, 0 or 1."""
    return _whole("HETERO_CHECK", 0, 1)


def progress() -> int | None:
    """Return HETERO_PROGRESS, 0 or 1; where it is not set 1 in a script of `hetero run`, else None."""
    if read("HETERO_PROGRESS"):
        return _whole("HETERO_PROGRESS", 0, 1)
    return 1 if RUN_OPTION in sys._xoptions else None


def seed() -> int:
    """Return HETERO_SEED."""
    return _whole("HETERO_SEED", 0, 2**32 - 1)


def home() -> Path:
    """Return the folder of everything that hetero keeps between runs; one that cannot be, where the user has no home.

    Raises
    ------
    BadValueError
        HETERO_HOME is the address of an object store, or below the home of a user that there is not.
    """
    try:
        Path("~").expanduser()
    except RuntimeError:
        if "HETERO_HOME" not in os.environ:
            return Path(os.devnull) / "hetero"
    return local_path(read("HETERO_HOME"), "HETERO_HOME")


def trace_errors() -> bool:
    """Return whether HETERO_TRACE_ERRORS asks for the text of exceptions in traces."""
    return _whole("HETERO_TRACE_ERRORS", 0, 1) == 1


def default_devices() -> str:
    """Return HETERO_DEVICES as it was written, or ''."""
    return read("HETERO_DEVICES")


def default_config() -> Path | None:
    """Return the file named by HETERO_CONFIG, or None."""
    text = read("HETERO_CONFIG")
    return Path(text).expanduser() if text else None


def overrides() -> tuple[str, ...]:
    """Return the 'key=value' settings of HETERO_SET.

    Raises
    ------
    BadValueError
        A quotation mark is not closed.
    """
    try:
        return tuple(shlex.split(read("HETERO_SET")))
    except ValueError as error:
        raise BadValueError(
            f"HETERO_SET={read('HETERO_SET')!r} cannot be read: {error}", remedy="quote it as for a shell"
        ) from error


def switch_on(name: str, text: str) -> None:
    """Set a registered switch for this process and for those that it starts."""
    os.environ[_BY_NAME[name].name] = text


def test_data() -> Path | None:
    """Return the folder named by HETERO_TEST_DATA, or None."""
    text = read("HETERO_TEST_DATA")
    return Path(text) if text else None


_DEVICE_PREFIXES: tuple[str, ...] = (
    "CUDA_",
    "HIP_",
    "ROCR_",
    "HSA_",
    "GPU_DEVICE",
    "ONEAPI_",
    "ZE_",
    "SYCL_",
    "JAX_PLATFORM",
    "PJRT_",
)
_DEVICE_PREFIXES += ("XLA_FLAGS", "TPU_VISIBLE", "TPU_CHIPS", "OCL_", "OPENCL_", "POCL_", "VK_", "WGPU_", "LD_LIBRARY_")


def device_variables() -> tuple[str, ...]:
    """Return the environment variables, as 'NAME=value', by which others' runtimes choose devices and drivers."""
    return tuple(f"{name}={value}" for name, value in sorted(os.environ.items()) if chooses_devices(name))


def chooses_devices(name: str) -> bool:
    """Return whether others' runtimes choose devices and drivers by an environment variable.

    Examples
    --------
    >>> chooses_devices("CUDA_VISIBLE_DEVICES"), chooses_devices("PATH")
    (True, False)
    """
    return name.startswith(_DEVICE_PREFIXES)


def offer(name: str, value: str) -> None:
    """Set a variable of another program's runtime for this process, unless the user has set it."""
    os.environ.setdefault(name, value)


@transparent
def lent(name: str, value: str) -> Iterator[None]:
    """Set a variable that the user has not set, for the `with` block only."""
    unset = name not in os.environ
    offer(name, value)
    try:
        yield
    finally:
        if unset:
            os.environ.pop(name, None)


def present(names: Iterable[str]) -> dict[str, str | None]:
    """Return variables of other programs' runtimes as they are set now, None for unset."""
    return {name: os.environ.get(name) for name in names}


@transparent
def replaced(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of other programs' runtimes for the `with` block, None for unset, and set them back afterwards."""
    before = present(values)
    _set_all(values)
    try:
        yield
    finally:
        _set_all(before)


def _set_all(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def misspelt() -> tuple[str, ...]:
    """Return, in words, the variables that are set, are no switch and are named almost like one."""
    names = sorted(name for name in os.environ if name.startswith("HETERO_") and name not in _BY_NAME)
    stems = [name.removeprefix("HETERO_") for name in _BY_NAME]
    hints = {name: did_you_mean(name.removeprefix("HETERO_"), stems) for name in names}
    return tuple(
        f"{name} is no switch of hetero and has no effect{hint.replace(chr(39), chr(39) + 'HETERO_', 1)}"
        for name, hint in hints.items()
        if hint
    )


def given() -> dict[str, str]:
    """Return the registered switches that are set, for workers that do not inherit them."""
    return {name: os.environ[name] for name in _BY_NAME if name in os.environ}
