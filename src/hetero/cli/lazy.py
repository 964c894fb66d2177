"""Commands that are imported when they are called, so that a list of them costs nothing.

In: a table of names, places and lines of help. Out: a group of commands for typer. It must not import a command itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from hetero.cli.old_names import OldOption, Renamed, accept_old_options, note, warn_of_noted

__all__ = ["SETTINGS", "CommandEntry", "GroupEntry", "lazy_group"]

SETTINGS: Mapping[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
"""How every command words its help."""

Rename = Callable[[list[str]], Renamed | None]


class CommandEntry(NamedTuple):
    """Where a command is.

    Attributes
    ----------
    place
        'module:name' of a function.
    help
        First line of its help.
    section
        Heading under which its group lists it.
    context
        Settings of its context.
    old_options
        Options by the names that they had.
    """

    place: str
    help: str
    section: str = "Commands"
    context: Mapping[str, object] = {}
    old_options: Mapping[str, OldOption] = {}


class GroupEntry(NamedTuple):
    """Commands below a command.

    Attributes
    ----------
    help
        First line of its help.
    commands
        The commands, in the order of its help.
    section
        Heading under which its group lists it.
    renamed
        Returns the words of today for words with a name of the past.
    """

    help: str
    commands: Mapping[str, CommandEntry]
    section: str = "Commands"
    renamed: Rename = lambda words: None


def lazy_group(
    entries: Mapping[str, CommandEntry | GroupEntry], renamed: Rename = lambda words: None
) -> type[TyperGroup]:
    """Return the class of a group that has these commands, in this order; the name of one may be two words."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = _Imported(entries)

        def list_commands(self, ctx: object) -> list[str]:
            return list(entries)

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            today = renamed(args)
            if today is not None:
                program = ctx.find_root().command_path
                note(ctx, f"{program} {today.old}", f"{program} {today.new}")
            words = args if today is None else today.words
            two = " ".join(words[:2])
            try:
                return super().parse_args(ctx, [two, *words[2:]] if two in entries else words)
            except BaseException:
                warn_of_noted(ctx)
                raise

        def format_commands(self, ctx: object, formatter: Any) -> None:
            for section in dict.fromkeys(entry.section for entry in entries.values()):
                with formatter.section(section):
                    formatter.write_dl([(name, each.help) for name, each in entries.items() if each.section == section])

    return LazyGroup


class HeteroCommand(TyperCommand):
    """A command that takes the old names of its options too, with a warning."""

    old_options: Mapping[str, OldOption] = {}

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser of the command line."""
        parser = super().make_parser(ctx)
        if self.old_options:
            accept_old_options(parser, ctx, self.get_params(ctx), self.old_options)
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line, and warn of old names in it, of the command's groups too."""
        try:
            return super().parse_args(ctx, args)
        finally:
            warn_of_noted(ctx)

    def invoke(self, ctx: Any) -> object:
        """Run the command; where nobody reads its output any more it ends quietly."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            from hetero.cli.output import closed_pipe

            raise typer.Exit(closed_pipe()) from None


def _be_quiet(wanted: bool) -> None:
    if wanted:
        from hetero.cli.output import be_quiet

        be_quiet()


def _be_verbose(count: int) -> None:
    if count:
        from hetero.floor import settings

        settings.switch_on("HETERO_DEBUG", str(min(4, max(count, settings.debug_level()))))


def _every_command(
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", callback=_be_quiet, expose_value=False, help="Print results and mistakes only."),
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            show_default=False,
            callback=_be_verbose,
            expose_value=False,
            help="Print decisions and tracebacks too; up to -vvvv, as HETERO_DEBUG.",
        ),
    ] = 0,
) -> None:
    """Take the options that every command has."""


class _Imported(MutableMapping[str, Any]):
    """Commands by name, each imported when it is first asked for."""

    def __init__(self, entries: Mapping[str, CommandEntry | GroupEntry]) -> None:
        self._entries = entries
        self._made: dict[str, object] = {}

    def __getitem__(self, name: str) -> object:
        if name not in self._made:
            entry = self._entries[name]
            self._made[name] = _group(name, entry) if isinstance(entry, GroupEntry) else _command(name, entry)
        return self._made[name]

    def __setitem__(self, name: str, command: object) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _group(name: str, entry: GroupEntry) -> object:
    made = lazy_group(entry.commands, entry.renamed)
    return made(name=name, help=entry.help, no_args_is_help=True, rich_markup_mode=None)


def _command(name: str, entry: CommandEntry) -> object:
    module, _, attribute = entry.place.partition(":")
    part = typer.Typer(add_completion=False, **SETTINGS)
    settings = dict(entry.context)
    part.command(name, cls=HeteroCommand, context_settings=settings)(getattr(import_module(module), attribute))
    command = typer.main.get_command(part)
    assert isinstance(command, HeteroCommand)
    command.old_options = entry.old_options
    command.params += _shared_params()
    return command


@cache
def _shared_params() -> list[Any]:
    part = typer.Typer(add_completion=False, **SETTINGS)
    part.command()(_every_command)
    return typer.main.get_command(part).params
