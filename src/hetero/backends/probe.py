"""Probes and measurements in a child process, so that a vendor's library that crashes or hangs is a reason.

In: names of back ends, devices. Out: findings and speeds. The parent imports no framework; the child is
`python -m hetero.backends.probe` and prints one JSON document.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hetero
from hetero.backends import registry
from hetero.backends.base import Found, Speed
from hetero.floor.clock import monotonic_s
from hetero.floor.errors import HeteroError
from hetero.floor.platform import child_environment, die_with_parent, environment
from hetero.model.device import Device, DeviceType

if TYPE_CHECKING:
    from hetero.floor.documents import JsonObject

__all__ = ["Answer", "ask", "device_from", "device_to", "found_from", "found_to", "measure", "probe"]

DEADLINE_S = 60.0
_KILLED_S = 5.0
_ELSEWHERE = (
    "import sys, importlib.util as u; root = sys.argv.pop(1); "
    "s = u.spec_from_file_location('hetero', root + '/__init__.py', submodule_search_locations=[root]); "
    "m = u.module_from_spec(s); sys.modules['hetero'] = m; s.loader.exec_module(m); "
    "import runpy; runpy.run_module('hetero.backends.probe', run_name='__main__')"
)
"""Runs this module in a Python that has no hetero, from our files and with that Python's own packages."""


class Answer(NamedTuple):
    """What a child said: its JSON document, or why there is none."""

    document: Any
    trouble: str = ""


def ask(questions: Sequence[Sequence[str]], python: str = "", deadline_s: float = DEADLINE_S) -> tuple[Answer, ...]:
    """Ask one child a question, all at the same time.

    Parameters
    ----------
    questions
        Arguments of each child.
    python
        The Python that they run in, '' for this one.
    deadline_s
        Seconds that all of them together have; later ones are killed.
    """
    end = monotonic_s() + deadline_s
    root = Path(hetero.__file__).parent
    children: list[subprocess.Popen[str] | OSError] = []
    for question in questions:
        start = ["-c", _ELSEWHERE, str(root)] if python else ["-P", "-m", "hetero.backends.probe"]
        command = [python or sys.executable, *start, *question, str(os.getpid())]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        try:
            children.append(
                subprocess.Popen(
                    command,
                    stdin=null,
                    stdout=pipe,
                    stderr=pipe,
                    text=True,
                    errors="replace",
                    env=None if python else child_environment(str(root.parent), environment()),
                )
            )
        except OSError as error:
            children.append(error)
    try:
        return tuple(_answer(child, end - monotonic_s(), deadline_s) for child in children)
    finally:
        for child in children:
            if isinstance(child, subprocess.Popen) and child.poll() is None:
                child.kill()
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_KILLED_S)


def _answer(child: subprocess.Popen[str] | OSError, left_s: float, deadline_s: float) -> Answer:
    if isinstance(child, OSError):
        return Answer(None, f"no Python to ask: {child}")
    try:
        out, err = child.communicate(timeout=max(left_s, 0.01))
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # what it started may hold its output open
            child.communicate(timeout=_KILLED_S)
        return Answer(None, f"the probe gave no answer within {deadline_s:g} s")
    if child.returncode == 0:
        try:
            return Answer(json.loads(out))
        except ValueError:
            return Answer(None, "the probe's answer cannot be read")
    return Answer(None, _death(child.returncode, err))


def _death(code: int, said: str) -> str:
    if code < 0:
        return f"the probe died of {signal.Signals(-code).name}"
    lines = said.strip().splitlines()
    return f"the probe failed: {lines[-1][:200] if lines else f'exit status {code}'}"


def probe(
    names: Sequence[str], python: str = "", deadline_s: float = DEADLINE_S
) -> dict[str, tuple[list[Found], bool]]:
    """Probe back ends, each in a child of its own.

    Returns
    -------
    dict
        by name: what was found, and whether the child answered
    """
    answers = ask([("probe", name) for name in names], python, deadline_s)
    return {name: _findings(name, answer) for name, answer in zip(names, answers, strict=True)}


def _findings(name: str, answer: Answer) -> tuple[list[Found], bool]:
    trouble = answer.trouble
    if not trouble:
        try:
            return [found_from(plain) for plain in answer.document], True
        except (KeyError, TypeError, ValueError):
            trouble = "the probe's answer cannot be read"
    return [Found(None, name, trouble, registry.load(name).remedy)], False


def measure(device: Device, deadline_s: float = DEADLINE_S) -> tuple[Speed | None, str]:
    """Measure a device in a child that is bound to the device's CPUs; return its speed, or None and why not."""
    (answer,) = ask([("measure", json.dumps(device_to(device)))], device.python, deadline_s)
    try:
        return Speed(*answer.document), ""
    except TypeError:
        return None, answer.trouble or "the probe's answer cannot be read"


def _child_probe(name: str) -> object:
    return [found_to(found) for found in registry.load(name).probe()]


def _child_measure(text: str) -> object:
    device = device_from(json.loads(text))
    if device.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, device.cpus)
    backend = registry.backend_of(device)
    backend.open()
    speed = backend.measure()
    backend.close()
    return list(speed)


def main(arguments: Sequence[str]) -> int:
    """Answer one question on standard output; whatever else a library prints goes to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    what, given, parent = arguments
    if not die_with_parent(int(parent)):
        return 0
    try:
        document = _child_probe(given) if what == "probe" else _child_measure(given)
    except HeteroError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    with os.fdopen(out, "w", encoding="utf-8") as stream:
        json.dump(document, stream)
    sys.stdout.flush()
    return 0


# --- portable runtimes --------------------------------------------------------------------------------------

_TUPLES = ("cpus", "silicon")
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "DeviceType": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (float, int),
    "int | None": (int, type(None)),
    "float | None": (float, int, type(None)),
}


def device_to(device: Device) -> dict[str, object]:
    """Return a device as plain values.

    Examples
    --------
    >>> gpu = Device("h0/cuda:0", "cuda", DeviceType("GPU"), "torch", silicon=("h0/cuda0",))
    >>> device_from(device_to(gpu)) == gpu
    True
    """
    plain = {field.name: getattr(device, field.name) for field in fields(device)}
    return plain | {name: list(plain[name]) for name in _TUPLES} | {"type": str(device.type)}


def device_from(plain: JsonObject) -> Device:
    """Create a device of plain values; raises KeyError, TypeError or ValueError when they do not describe one."""
    given = dict(plain)
    for name in _TUPLES:
        given[name] = tuple(given[name])
    for field in fields(Device):
        kinds = _KINDS.get(str(field.type))
        if kinds is not None and field.name in given and type(given[field.name]) not in kinds:
            raise TypeError(f"{field.name} of a device is {given[field.name]!r}")
    if not all(isinstance(chip, str) for chip in given["silicon"]):
        raise TypeError("the silicon of a device is named by texts")
    given["type"] = DeviceType(given["type"])
    return Device(**given)


def found_to(found: Found) -> dict[str, object]:
    """Return a finding as plain values."""
    return found._asdict() | {"device": None if found.device is None else device_to(found.device)}


def found_from(plain: JsonObject) -> Found:
    """Create a finding of plain values; raises as `device_from` does."""
    device = plain["device"]
    texts = [plain["backend"], plain["reason"], plain["remedy"]]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a finding's words are text")
    return Found(None if device is None else device_from(device), *texts)


if __name__ == "__main__":
    # A driver's library may crash while it unloads, after the answer was given.
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
