"""`hetero run`: runs a script with the fleet, engine and settings of the command line.

In: a script, its arguments, options. Out: the process itself, which becomes `python SCRIPT` with the settings in its
environment. It must not run the script here: our frames, modules and streams would show.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import zipfile
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from hetero.cli.options import Address, Config, Devices, Engine, Policy, Settings, Trace, as_setting
from hetero.cli.output import say
from hetero.floor import settings
from hetero.floor.errors import BadValueError, HeteroError
from hetero.floor.files import open_input
from hetero.floor.script_runs import python_command
from hetero.floor.text import single_line

__all__ = ["run"]


def run(
    script: Annotated[str, typer.Argument(help="What python runs: a file, a folder or archive of one, or '-'.")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    config: Config = None,
    devices: Devices = None,
    engine: Engine = None,
    address: Address = None,
    policy: Policy = None,
    trace: Trace = None,
    set_: Settings = None,
    submitted: Annotated[bool, typer.Option("--submitted", hidden=True)] = False,
) -> None:
    """Run a script on the devices of this host.

    The options are the defaults of every hetero.Context() in the script.
    What the script itself gives to Context wins over the options, with a warning, and the options win over
    the configuration file. Where the script opens no Context the options have no effect, and a warning says so.
    """
    _check(script)
    options = {
        "devices": devices,
        "engine": engine,
        "address": address,
        "policy": policy,
        "trace": str(trace.absolute()) if trace else None,
    }
    chosen = [as_setting(key, value) for key, value in options.items() if value is not None]
    _hand_down(config, [*chosen, *(set_ or [])])
    typed = {key: f"--{key} {value}" for key, value in {**options, "config": config, "trace": trace}.items() if value}
    typed |= {line.partition("=")[0].strip(): f"--set {line}" for line in set_ or []}
    shown = {} if submitted else typed  # those of a submitted program are none that its user typed
    _tell_unused(script, shown)
    _become(python_command(script, args or [], shown))


def _check(script: str) -> None:
    """Refuse a script that is not there, in our words; what it is Python says."""
    if script == "-":
        return
    path, shown = Path(script), single_line(script) or "''"
    try:
        if script and path.is_dir():
            if not any((path / f"__main__.{end}").is_file() for end in ("py", "pyc")):
                raise BadValueError(f"{shown} is a folder without a __main__.py", remedy="give a script")
            return
        if not script:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with open_input(path) as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode) and not file.isatty() and script != os.devnull:
                raise BadValueError(f"{shown} is a device, and no script", remedy="give a script")
    except HeteroError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadValueError(f"{shown} cannot be read: {reason}", remedy="check the path") from error


def _tell_unused(script: str, options: dict[str, str]) -> None:
    """Print a note where the script itself cannot open a Context: the options are for those that it imports then."""
    path = Path(script) / "__main__.py" if Path(script).is_dir() else Path(script)
    if not options or script == "-" or not path.is_file() or zipfile.is_zipfile(path):
        return
    if b"hetero" not in path.read_bytes():
        words = ", ".join(options.values())
        text = "does not name hetero: only a Context that a module which it imports opens takes"
        say(f"hetero: {script} {text} {words}", to=sys.stderr)


def _hand_down(config: Path | None, chosen: list[str]) -> None:
    """Pass the settings to every Context of this process and its children, after checking them."""
    import shlex

    if config is not None:
        settings.switch_on("HETERO_CONFIG", str(config.absolute()))
    if chosen:
        settings.switch_on("HETERO_SET", shlex.join([*settings.overrides(), *chosen]))
    if config is not None or chosen:
        from hetero.session.config import load

        load(config)


def _become(command: list[str]) -> NoReturn:
    """Go on as another process; where that is not possible, run it and end as it ends."""
    _flush_streams()
    if os.name == "posix":
        os.execv(command[0], command)
    import subprocess

    raise typer.Exit(subprocess.run(command, check=False).returncode)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
