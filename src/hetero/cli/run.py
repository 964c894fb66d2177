"""`hetero run`: runs a script with the fleet, engine and settings of the command line.

In: a script, its arguments, options. Out: what the script does, and its exit code.
It must not import the script as a module: the script is `__main__`, as under `python SCRIPT`.
"""

from __future__ import annotations

import builtins
import os
import sys
import types
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from hetero.cli.options import Address, Config, Devices, Engine, Policy, Settings, Trace, as_setting
from hetero.cli.output import say, tell_error
from hetero.floor import settings
from hetero.floor.errors import BadValueError, ExitCode, HeteroError
from hetero.floor.terminal import leave_characters

__all__ = ["run"]


def run(
    script: Annotated[str, typer.Argument(help="Python file to run; '-' reads it from standard input.")],
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
    code = _compiled(script)
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
    if settings.progress() is None:
        settings.switch_on("HETERO_PROGRESS", "1")
    _listen({} if submitted else typed)  # those of a submitted program are none that its user typed
    try:
        _execute(code, script, args or [])
    finally:
        _tell_unheard(script)


def _listen(typed: dict[str, str]) -> None:
    """From now on, note which options of the command line the program's Contexts take."""
    if typed:
        from hetero.session.config import command_line

        command_line.options, command_line.heard = typed, False


def _tell_unheard(script: str) -> None:
    config = sys.modules.get("hetero.session.config")
    unheard = config.command_line.unheard() if config is not None else ""
    if unheard:
        print(
            f"hetero: {script} opened no hetero.Context itself, so these had no effect on it: {unheard}",
            file=sys.stderr,
        )


def _compiled(script: str) -> types.CodeType:
    from hetero.floor.documents import MOST_BYTES, read_bytes

    source = sys.stdin.buffer.read(MOST_BYTES) if script == "-" else read_bytes(Path(script), BadValueError)
    try:
        return compile(source, "<stdin>" if script == "-" else _in_full(script), "exec", dont_inherit=True)
    except SyntaxError as error:
        _end_with_traceback(error, own_frames=1)
    except ValueError as error:
        raise BadValueError(f"{script}: this is not Python: {error}") from error


def _in_full(script: str) -> str:
    """Return a script's path as Python itself gives it to the script: absolute, links and dots left as they are."""
    return os.path.join(os.getcwd(), script)


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


def _execute(code: types.CodeType, script: str, args: list[str]) -> None:
    main = types.ModuleType("__main__")
    if script == "-":
        named: dict[str, object] = {"__file__": "<stdin>"}
    else:
        named = {"__file__": _in_full(script), "__loader__": SourceFileLoader("__main__", _in_full(script))}
    main.__dict__.update(named, __builtins__=builtins, __cached__=None)
    sys.argv = [script, *args]
    sys.path[0] = "" if script == "-" else str(Path(script).resolve().parent)
    sys.modules["__main__"] = main
    leave_characters()
    try:
        exec(code, main.__dict__)
    except HeteroError as error:
        raise typer.Exit(tell_error(error)) from None
    except KeyboardInterrupt:
        say("hetero: interrupted", to=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  the script's own, told as python tells it
        _end_with_traceback(error, own_frames=1)


def _end_with_traceback(error: BaseException, own_frames: int) -> NoReturn:
    """Print an exception without our own frames, as python would, and exit 1."""
    told = _told(error, own_frames)
    sys.last_type, sys.last_value, sys.last_traceback = told
    with suppress(Exception):  # what was printed before comes first, also where both go to one file
        sys.stdout.flush()
    try:
        sys.excepthook(*told)
    except SystemExit:
        raise
    except BaseException as other:  # noqa: BLE001  what the script has put there may do anything
        missing = not hasattr(sys, "excepthook")
        print("sys.excepthook is missing" if missing else "Error in sys.excepthook:", file=sys.stderr)
        if not missing:
            other.__context__ = None if other.__context__ is error else other.__context__
            sys.__excepthook__(*_told(other, 1))
            print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(*told)
    raise typer.Exit(ExitCode.FAILED)


def _told(
    error: BaseException, own_frames: int
) -> tuple[type[BaseException], BaseException, types.TracebackType | None]:
    """Return what an excepthook takes, without our own frames."""
    trace = error.__traceback__
    for _ in range(own_frames):
        trace = trace.tb_next if trace is not None else None
    return type(error), error.with_traceback(trace), trace
