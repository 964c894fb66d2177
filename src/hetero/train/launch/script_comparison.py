"""A training script run on one device and over several, and where the two part: `hetero train check`.

In: a script, devices, a number of steps. Out: how far losses, gradients and values are apart, by step and parameter.
It must not know how a script is run on several devices, nor import torch.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hetero.floor import platform
from hetero.floor.errors import BadValueError, ExitCode, HeteroError
from hetero.floor.platform import describe_exit
from hetero.floor.text import single_line
from hetero.model.device import Device
from hetero.train.launch.host_processes import LAUNCHED, RECORD, LaunchOptions, device_environment, in_child
from hetero.train.launch.launcher import by_speed, check_script, launch

__all__ = ["ScriptComparison", "ScriptEndedError", "StepDifference", "compare_script"]

_WORST = 10
_LEAST = 1e-30
_OF_ROUNDING = 3.0
_KINDS = ("initial value", "gradient", "value")

Numbers = NDArray[np.float64]


class ScriptEndedError(HeteroError):
    """A script failed before it had done the steps that are compared."""

    def __init__(self, problem: str, *, remedy: str = "", code: int = ExitCode.FAILED) -> None:
        super().__init__(problem, remedy=remedy)
        self.exit_code = code


@dataclass(frozen=True, slots=True)
class StepDifference:
    """How far something that a step gave is apart in two runs.

    Attributes
    ----------
    step
        From 1.
    what
        'initial value', 'loss', 'gradient' or 'value'.
    parameter
        Its name, '' for the loss.
    difference
        The largest, relative to the largest number of that kind in the runs so far.
    tolerance
        What rounding may make of it.
    """

    step: int
    what: str
    parameter: str
    difference: float
    tolerance: float

    @property
    def parts(self) -> bool:
        """Return whether it is more than rounding."""
        return not self.difference <= self.tolerance


@dataclass(frozen=True, slots=True)
class ScriptComparison:
    """A script on one device and on several.

    Attributes
    ----------
    script
        As it was given.
    one, devices
        Short names of the one device, and of all.
    steps
        How many were compared.
    differences
        The largest of each step and kind, in the order of the steps.
    worst
        The ten parameters that are furthest apart in the step and the kind where the runs part first.
    unknown
        Steps whose loss for the whole batch is not known, and is not compared.
    """

    script: str
    one: str
    devices: tuple[str, ...]
    steps: int
    differences: tuple[StepDifference, ...]
    worst: tuple[StepDifference, ...]
    unknown: tuple[int, ...]

    @property
    def first(self) -> StepDifference | None:
        """Where the runs part first, None where they do not; a parameter says more than the loss of the same step."""
        parted = [each for each in self.differences if each.parts]
        soonest = [each for each in parted if each.step == parted[0].step]
        return min(soonest, key=lambda each: not each.parameter, default=None)

    def as_dict(self) -> dict[str, object]:
        """Return it for programs."""
        found = asdict(self)
        found |= {
            "differences": list(map(_for_programs, self.differences)),
            "worst": list(map(_for_programs, self.worst)),
        }
        first = self.first
        return {**found, "is_equal": first is None, "first": None if first is None else _for_programs(first)}


def _for_programs(each: StepDifference) -> dict[str, object]:
    """Return a difference as JSON can write it: what is not finite is null."""
    finite = math.isfinite(each.difference)
    return {**asdict(each), "difference": each.difference if finite else None, "parts": each.parts}


def compare_script(
    script: str,
    args: Sequence[str],
    devices: Sequence[Device],
    steps: int,
    options: LaunchOptions,
    *,
    is_module: bool = False,
) -> ScriptComparison:
    """Run a script under plain Python on the fastest device, then over all of them, and compare what its steps gave.

    Parameters
    ----------
    steps
        Of optimizers, all counted together, after which both runs end.
    options
        For the run over all devices.
    is_module
        Whether `script` is the name of a module, run as by ``python -m``.

    Raises
    ------
    BadValueError
        There is one device, the script ends before it has done the steps, or two runs on one device part, too.
    ScriptEndedError
        It failed on one device.
    SystemExit
        It failed over all devices; why was said on standard error.

    Notes
    -----
    The numbers of two runs differ in their last bits, as they are summed in another order, and some scripts make more
    of that: Adam of a gradient that is nothing but rounding. Where the runs part, the one on one device is done again
    with gradients that are changed in their last bits, and three times what that changes is allowed.
    """
    check_script(script, is_module=is_module)
    if len(devices) < 2:
        raise BadValueError(
            f"there is one device ({devices[0].short}), and nothing to compare it with",
            remedy="give two or more, as in --devices '1xcpu,1xcpu*0.5'",
        )
    words = ("-m", script, *args) if is_module else (script, *args)
    found = by_speed(devices)
    one = found[0]
    with tempfile.TemporaryDirectory(prefix="hetero-check-") as folder, _output_apart():
        alone, together, again = (_RecordedSteps(script, steps, Path(folder) / name) for name in ("1", "2", "3"))
        alone.check(_run_alone(words, one, alone.wanted), f"on {one.short} alone")
        recorded = replace(options, strict=False, record=together.wanted)
        code = launch(script, args, found, recorded, is_module=is_module)
        if code:
            raise SystemExit(code)
        together.check(0, "over all devices")
        every = list(_differences(alone, together, steps))
        if any(each.parts for each in every):
            again.disturb(_noise(alone, together, steps))
            again.check(_run_alone(words, one, again.wanted), f"on {one.short}, done again,")
            every = _by_rounding(script, every, list(_differences(alone, again, steps)))
    return ScriptComparison(script, one.short, tuple(device.short for device in found), steps, *_told(every))


@contextmanager
def _output_apart() -> Iterator[None]:
    """Have what is written to standard output, by a script that is run in here too, go to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _run_alone(words: Sequence[str], device: Device, wanted: str) -> int:
    """Run a script under plain Python, with one device to see; returns its exit code."""
    given = {**platform.environment(), **device_environment(device), LAUNCHED: f"{RECORD}{wanted}"}
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        env={name: text for name, text in given.items() if text is not None},
        preexec_fn=None if sys.platform == "win32" else partial(in_child, os.getpid(), device.cpus),
    )
    try:
        return process.wait()
    finally:
        process.kill()


# --- what was recorded -----------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """What one step gave.

    Attributes
    ----------
    optimizer
        Its number.
    names, tolerances
        Of its parameters.
    loss
        None where it is not known.
    """

    optimizer: int
    names: list[str]
    tolerances: list[float]
    loss: float | None


class _RecordedSteps:
    """The steps of one run of a script, as `hetero.train.launch.step_records` has written them.

    Attributes
    ----------
    wanted
        What the run is told.
    """

    def __init__(self, script: str, steps: int, folder: Path) -> None:
        folder.mkdir()
        self.wanted = f"{steps} {folder}"
        self._script = single_line(script)
        self._steps = steps
        self._folder = folder

    def disturb(self, noise: Mapping[int, Sequence[float]]) -> None:
        """Have the run change each gradient by at most so much."""
        (self._folder / "noise.json").write_text(json.dumps(noise))

    def check(self, code: int, how: str) -> None:
        """Raise unless a run that ended with an exit code has done all steps."""
        done = sum(each.suffix == ".npz" for each in self._folder.iterdir())
        if done == self._steps and not code:
            return
        if code:
            problem = f"{self._script} failed {how}, with {done} of {self._steps} steps done: {describe_exit(code)}"
            raise ScriptEndedError(problem, code=code if code > 0 else 128 - code)
        if not (self._folder / "begun").exists():
            raise BadValueError(
                f"{self._script} did not call hetero.train.init()",
                remedy="call it at the beginning, and prepare model, optimizer and loader with what it returns",
            )
        if not done:
            raise BadValueError(
                f"{self._script} ended {how} without a step of an optimizer of torch", remedy="check one that trains"
            )
        words = f"{self._script} ended {how} after {done} of {self._steps} steps of optimizers"
        raise BadValueError(words, remedy=f"give --steps {done}, or the script more data")

    def step(self, number: int) -> tuple[_Step, Mapping[str, Numbers]]:
        """Return what a step gave, and the numbers of its parameters; see `hetero.train.launch.step_records`."""
        arrays = np.load(self._folder / f"step-{number}.npz")
        return _Step(**json.loads(str(arrays["about"]))), arrays


# --- comparing -------------------------------------------------------------------------------------------------


def _differences(one: _RecordedSteps, other: _RecordedSteps, steps: int) -> Iterator[StepDifference]:
    """Yield how far the steps of two runs are apart, by step, kind and parameter."""
    sizes: dict[tuple[int, str], float] = {}
    for number in range(1, steps + 1):
        (about, arrays), (about_other, arrays_other) = one.step(number), other.step(number)
        if (about.optimizer, len(about.names)) != (about_other.optimizer, len(about_other.names)):
            yield StepDifference(number, "value", "another optimizer, or other parameters", math.inf, 0.0)
            return
        limits = [max(pair) for pair in zip(about.tolerances, about_other.tolerances, strict=True)]
        found: dict[str, list[StepDifference]] = {}
        for kind in (each for each in _KINDS if f"{each}-0" in arrays):
            pairs = [(arrays[f"{kind}-{at}"], arrays_other[f"{kind}-{at}"]) for at in range(len(about.names))]
            key = about.optimizer, kind.removeprefix("initial ")
            sizes[key] = size = max(sizes.get(key, _LEAST), *(_size(each) for pair in pairs for each in pair))
            found[kind] = [
                StepDifference(number, kind, name, _apart(*pair) / size, limit)
                for name, pair, limit in zip(about.names, pairs, limits, strict=True)
            ]
        if about.loss is not None and about_other.loss is not None:
            pair = np.array([about.loss]), np.array([about_other.loss])
            key = about.optimizer, "loss"  # one whose terms cancel out is as exact as its gradients are
            largest = sizes.get((about.optimizer, "gradient"), _LEAST)
            sizes[key] = size = max(sizes.get(key, largest), *map(_size, pair))
            found["loss"] = [StepDifference(number, "loss", "", _apart(*pair) / size, max(limits))]
        for kind in ("initial value", "loss", "gradient", "value"):
            yield from found.get(kind, ())


def _size(numbers: Numbers) -> float:
    """Return the largest absolute value that is finite."""
    return float(np.max(np.abs(numbers), initial=0.0, where=np.isfinite(numbers)))


def _apart(one: Numbers, other: Numbers) -> float:
    """Return the largest difference; numbers that have overflown in both are alike."""
    if one.shape != other.shape:
        return math.inf
    alike = ~np.isfinite(one) & ~np.isfinite(other)
    with np.errstate(invalid="ignore"):
        found = np.abs(one.astype(np.float64) - other)
    found = np.where(alike, 0.0, np.where(np.isnan(found), math.inf, found))
    return float(np.max(found, initial=0.0))


def _told(
    every: Sequence[StepDifference],
) -> tuple[tuple[StepDifference, ...], tuple[StepDifference, ...], tuple[int, ...]]:
    """Return the largest difference of each step and kind, the worst of the first that parts, steps without a loss."""
    groups: dict[tuple[int, str], list[StepDifference]] = {}
    for each in every:
        groups.setdefault((each.step, each.what), []).append(each)
    parted = [group for group in groups.values() if any(each.parts for each in group)]
    first = next((each for each in parted if each[0].step == parted[0][0].step and each[0].parameter), [])
    worst = sorted(first, key=lambda each: each.difference, reverse=True)[:_WORST]
    unknown = [step for step in dict.fromkeys(step for step, _ in groups) if (step, "loss") not in groups]
    return tuple(max(group, key=_severity) for group in groups.values()), tuple(worst), tuple(unknown)


def _severity(each: StepDifference) -> tuple[bool, float]:
    return each.parts, each.difference


def _noise(one: _RecordedSteps, other: _RecordedSteps, steps: int) -> dict[int, list[float]]:
    """Return by how much the gradients of each optimizer's first step differ, at least by a last bit of the largest.

    What is apart by more than rounding counts as a last bit.
    """
    found: dict[int, list[float]] = {}
    for number in range(1, steps + 1):
        (about, arrays), (_, others) = one.step(number), other.step(number)
        if about.optimizer in found or f"gradient-{len(about.names) - 1}" not in others:
            continue
        pairs = [(arrays[f"gradient-{at}"], others[f"gradient-{at}"]) for at in range(len(about.names))]
        largest = max(_size(each) for each, _ in pairs)
        found[about.optimizer] = [
            max(apart if apart <= limit * largest else 0.0, _size(pair[0]) * float(np.finfo(pair[0].dtype).eps))
            for pair, limit in zip(pairs, about.tolerances, strict=True)
            for apart in [_apart(*pair)]
        ]
    return found


def _by_rounding(
    script: str, every: Sequence[StepDifference], disturbed: Sequence[StepDifference]
) -> list[StepDifference]:
    """Return differences of which as much is allowed as rounding has made of itself on one device, and some more.

    Raises
    ------
    BadValueError
        The runs on one device part before anything was changed in one of them.
    """
    first = next((each for each in disturbed if each.parts and each.step == 1 and each.what != "value"), None)
    if first is not None:
        of = f" of {first.parameter}" if first.parameter else ""
        raise BadValueError(
            f"{single_line(script)} gives another {first.what}{of} in each run on one device, too: it draws random "
            "numbers that are not seeded",
            remedy="seed them where it begins: torch.manual_seed(0), and random.seed(0) and numpy.random.seed(0) where "
            "it draws by these",
        )
    floor: dict[tuple[int, str], float] = {}
    for each in disturbed:
        key = each.step, each.what
        floor[key] = max(floor.get(key, 0.0), _OF_ROUNDING * each.difference)
    return [replace(one, tolerance=max(one.tolerance, floor.get((one.step, one.what), 0.0))) for one in every]
