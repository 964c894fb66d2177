"""`hetero config check`: says what a configuration means, or everything that is wrong with it.

In: a YAML file and settings laid over it. Out: the configuration in one normal form, or all mistakes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson, Settings
from hetero.cli.output import print_json, say

if TYPE_CHECKING:
    from hetero.floor.errors import HeteroError

__all__ = ["check"]


def check(
    file: Annotated[Path, typer.Argument(help="Configuration file.")],
    set_: Settings = None,
    here: Annotated[bool, typer.Option("--here", help="Also check that this host has what it names.")] = False,
    json: AsJson = False,
) -> None:
    """Print what a configuration means, or all its mistakes; exits 3 when there are any."""
    from hetero.floor.errors import ConfigError

    try:
        checked = _checked(file, set_ or [], here)
    except ConfigError as error:
        if not json:
            raise
        print_json({"valid": False, "mistakes": _mistakes(error)})
        raise typer.Exit(error.exit_code) from None
    print_json({"valid": True, "configuration": checked}) if json else say(_as_yaml(checked), end="")


def _checked(file: Path, set_: list[str], here: bool) -> dict[str, object]:
    from hetero.session.config import parse, read_file
    from hetero.session.config_yaml import lay_over
    from hetero.session.fleet import find_devices

    tree = read_file(file)
    for setting in set_:
        lay_over(tree, setting)
    config, normal = parse(tree)
    if here:
        find_devices(config)
    return normal


def _mistakes(error: HeteroError) -> list[dict[str, str]]:
    found = getattr(error, "mistakes", ())
    if found:
        return [mistake._asdict() for mistake in found]
    return [{"place": "", "key": "", "problem": error.problem, "remedy": error.remedy}]


def _as_yaml(normal: dict[str, object]) -> str:
    """Write the normal form as YAML that reads back as the same."""
    import yaml

    return (
        yaml.safe_dump(_for_people(normal), sort_keys=False, allow_unicode=True) if normal else "{}  # all defaults\n"
    )


def _for_people(value: object, key: str = "") -> object:
    from hetero.floor.units import exact

    if isinstance(value, dict):
        return {name: _for_people(child, name) for name, child in value.items()}
    if isinstance(value, list):
        return [_for_people(child) for child in value]
    units = {
        "memory_limit": "B",
        "memory_pool_size": "B",
        "buffer_size": "B",
        "bandwidth": "B/s",
        "latency": "s",
        "timeout": "s",
    }
    return exact(value, units[key]) if key in units and isinstance(value, int | float) else value
