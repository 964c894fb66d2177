"""Commands that are imported when they are called, so that a list of them costs nothing.

In: a table of names, places and lines of help. Out: a group of commands for typer. It must not import a command itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

__all__ = ["SETTINGS", "CommandEntry", "lazy_group"]

SETTINGS: Mapping[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
"""How every command words its help."""


class CommandEntry(NamedTuple):
    """Where a command is.

    Attributes
    ----------
    place : 'module:name' of a function, or of a `typer.Typer` with commands of its own
    help : the first line of its help
    context : settings of its context
    """

    place: str
    help: str
    context: Mapping[str, Any] = {}


def lazy_group(entries: Mapping[str, CommandEntry]) -> type[TyperGroup]:
    """Return the class of a group that has these commands, in this order."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = _Imported(entries)

        def list_commands(self, ctx: Any) -> list[str]:
            return list(entries)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()])

    return LazyGroup


class _Imported(MutableMapping[str, Any]):
    """Commands by name, each imported when it is first asked for."""

    def __init__(self, entries: Mapping[str, CommandEntry]) -> None:
        self._entries = entries
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _command(name, self._entries[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _command(name: str, entry: CommandEntry) -> Any:
    module, _, attribute = entry.place.partition(":")
    part = getattr(import_module(module), attribute)
    if not isinstance(part, typer.Typer):
        function, part = part, typer.Typer(add_completion=False, **SETTINGS)
        part.command(name, context_settings=dict(entry.context))(function)
        return typer.main.get_command(part)
    group = typer.Typer(**SETTINGS)
    group.add_typer(part, name=name)
    return typer.main.get_group(group).commands[name]
