"""The commands start quickly: `hetero --help` beside importing typer, `devices` and `plan` beside the dependencies.

Whole processes, alternated; byte code is compiled, and the probe of the devices kept, before the first counted round.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Bench, alternate, arguments, process_s, ratio

CORE = "array_api_compat, cloudpickle, numpy, psutil, pydantic, rich, threadpoolctl, typer, yaml"


def _measured(commands: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    return alternate({name: functools.partial(process_s, command) for name, command in commands.items()}, rounds)


def main() -> None:
    """Measure and print."""
    given = arguments(str(__doc__).splitlines()[0])
    python, hetero = sys.executable, str(Path(sys.executable).with_name("hetero"))
    commands = {
        "hetero --help": [hetero, "--help"],
        "import typer": [python, "-c", "import typer"],
        "hetero devices": [hetero, "devices"],
        "import the core dependencies": [python, "-c", f"import {CORE}"],
        "hetero plan, two devices": [hetero, "plan", "choose", "Llama-3.1-8B", "--devices", "1xH100-SXM,1xL4"],
        "hetero plan, whole catalog": [hetero, "plan", "choose", "Llama-3.1-8B"],
        "python -c pass": [python, "-c", "pass"],
    }
    with tempfile.TemporaryDirectory() as home:
        os.environ["HETERO_HOME"] = home
        first_s = process_s(commands["hetero devices"])
        times_s = _measured(commands, rounds=2 if given.quick else 15)
    bench = Bench("cold_start", "whole processes, from start to exit", ("typer", "pydantic", "rich"), given.out)
    for name, samples in times_s.items():
        bench.measure(name, samples)
    bench.measure("hetero devices, the first time on a host: every back end is probed", [first_s])
    for ours, theirs, at_most in (
        ("hetero --help", "import typer", 2.0),
        ("hetero devices", "import the core dependencies", 1.5),
        ("hetero plan, two devices", "import the core dependencies", 3.0),
        ("hetero plan, whole catalog", "import the core dependencies", 3.0),
    ):
        bench.claim(f"`{ours}`", ratio(times_s[ours], times_s[theirs]), rival=f"`{theirs}`", at_most=at_most)
    bench.finish()


if __name__ == "__main__":
    main()
