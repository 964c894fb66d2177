"""Names that commands and options had in the last version: still taken, hidden, with one line of warning.

In: the words of a command line. Out: the words of today. The next version drops this file and what refers to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from hetero.floor.errors import BadValueError
from hetero.floor.terminal import say

if TYPE_CHECKING:
    from typer import Context

__all__ = [
    "OF_CHOICE",
    "OF_GRAPH",
    "OF_ONE_DEVICE",
    "OF_TASKS",
    "OF_TOPOLOGY",
    "OF_TRAINING",
    "OldOption",
    "Renamed",
    "accept_old_options",
    "note",
    "of_hetero",
    "of_plan",
    "of_report",
    "only",
    "warn",
    "warn_of_noted",
]


class Renamed(NamedTuple):
    """A command under the name of today.

    Attributes
    ----------
    old, new
        Words of the two names.
    words
        The command line, after the name of the program, that says the same today.
    """

    old: str
    new: str
    words: list[str]


class OldOption(NamedTuple):
    """An option under a name of the past.

    Attributes
    ----------
    new
        Name of today.
    convert
        Returns today's value for the old one and for the value that today's option has by then; None where the old
        value is taken as it is.
    flag
        Whether it took no value.
    many
        Whether it could be repeated.
    """

    new: str
    convert: Callable[..., object] | None = None
    flag: bool = False
    many: bool = False


def warn(*names: tuple[str, str]) -> None:
    """Warn on standard error, in one line, that names have changed: pairs of what was written and what to write."""
    if names:
        changed = ", ".join(f"'{old}' is now '{new}'" for old, new in names)
        taken = "name is" if len(names) == 1 else "names are"
        say(f"hetero: {changed}; the old {taken} taken by this version, and not by the next", to=sys.stderr)


def note(context: Context, old: str, new: str) -> None:
    """Keep an old name of a command line for the one line of warning that `warn_of_noted` writes."""
    if not context.resilient_parsing:
        context.meta.setdefault(__name__, []).append((old, new))


def warn_of_noted(context: Context) -> None:
    """Warn of the old names of a command line, once."""
    warn(*context.meta.pop(__name__, ()))


# --- commands ------------------------------------------------------------------------------------------------

_COMMANDS: Mapping[str, str] = {
    "search": "tune",
    "schedule": "graph plan",
    "simulate": "graph simulate",
    "whatif": "graph whatif",
    "node start": "cluster start",
    "node stop": "cluster stop",
    "node certs": "cluster certificates",
    "node": "cluster",
    "submit": "cluster submit",
    "jobs ls": "cluster jobs",
    "jobs logs": "cluster logs",
    "jobs cancel": "cluster cancel",
    "jobs serve": "cluster serve",
    "jobs": "cluster",
}


def of_hetero(words: Sequence[str]) -> Renamed | None:
    """Return a command line of `hetero` in the words of today, None where it has no old word.

    Examples
    --------
    >>> of_hetero(["node", "certs", "folder"]).words, of_hetero(["schedule", "g.json", "--check", "p.json"]).words
    (['cluster', 'certificates', 'folder'], ['graph', 'check', 'g.json', 'p.json'])
    """
    for old, new in _COMMANDS.items():
        given = old.split()
        if list(words[: len(given)]) == given:
            rest = list(words[len(given) :])
            if old == "schedule" and (checked := _taken(rest, "--check")):
                return Renamed(old, "graph check", ["graph", "check", *_graph_and_plan(checked)])
            if old == "simulate" and _taken(rest, "--hosts"):
                return Renamed(old, "plan tasks", ["plan", "tasks", *rest])
            return Renamed(old, new, [*new.split(), *rest])
    return None


def of_plan(words: Sequence[str]) -> Renamed | None:
    """Return a command line of `hetero plan` in the words of today, None where it has no old word.

    Examples
    --------
    >>> of_plan(["--workload", "Llama-3.1-8B", "--batch", "4"]).words
    ['choose', 'Llama-3.1-8B', '--batch', '4']
    >>> of_plan(["--accuracy", "a.csv", "b.csv", "--json"]).words
    ['accuracy', 'a.csv', 'b.csv', '--json']
    """
    if found := _taken(words, "--workload"):
        value, rest = found
        return Renamed("plan --workload", "plan choose", ["choose", value, *rest])
    if words and words[0].partition("=")[0] == "--accuracy":
        rest = [word.removeprefix("--accuracy=") for word in words if word != "--accuracy"]
        return Renamed("plan --accuracy", "plan accuracy", ["accuracy", *rest])
    return None


def of_report(words: Sequence[str]) -> Renamed | None:
    """Return a command line of `hetero-profiler` in the words of today, None where it has no old word."""
    return Renamed("report", "html", ["html", *words[1:]]) if words[:1] == ["report"] else None


def _taken(words: Sequence[str], option: str) -> tuple[str, list[str]] | None:
    """Return the value of an option and the words without it, None where it is not among them."""
    for at, word in enumerate(words):
        name, given, value = word.partition("=")
        if name == option and given:
            return value, [*words[:at], *words[at + 1 :]]
        if word == option and at + 1 < len(words):
            return words[at + 1], [*words[:at], *words[at + 2 :]]
    return None


def _graph_and_plan(checked: tuple[str, list[str]]) -> list[str]:
    plan, rest = checked
    names = [word for word in rest if not word.startswith("-")]
    return [*names, plan, *(word for word in rest if word.startswith("-"))]


# --- options -------------------------------------------------------------------------------------------------


def accept_old_options(parser: Any, context: Context, params: Sequence[Any], old: Mapping[str, OldOption]) -> None:
    """Have the parser of a command take old names of its options.

    Raises
    ------
    BadValueError
        When it parses a line with an option under both names.
    """
    named = {name: param for param in params for name in param.opts}
    for name, option in old.items():
        param = named[option.new]
        repeated = option.many or (param.multiple and option.convert is None)
        action = "store_const" if option.flag else "append" if repeated else "store"
        parser.add_option(obj=param, opts=[name], dest=name, action=action, nargs=param.nargs, const=True)
    parse = parser.parse_args

    def parse_args(args: list[str]) -> object:
        values, rest, order = parse(args)
        given = [name for name in old if name in values]
        for name, option in old.items():
            if name in values:
                _take_over(values, name, option, named[option.new])
        for new in dict.fromkeys(option.new for name, option in old.items() if name in given):
            names = " ".join(name for name in given if old[name].new == new)
            note(context, names, _written(new, values.get(named[new].name)))
        return values, rest, order

    parser.parse_args = parse_args


def _take_over(values: dict[str, Any], name: str, option: OldOption, param: Any) -> None:
    given, today = values.pop(name), values.get(param.name)
    today = today if param.name in values else None
    if option.convert is not None:
        values[param.name] = option.convert(given, today)
    elif param.multiple:
        values[param.name] = [*(today or ()), *given]
    elif today is not None:
        raise BadValueError(f"{name} is the old name of {option.new}, and both are given", remedy=f"leave {name} out")
    else:
        values[param.name] = given


def _written(option: str, value: object) -> str:
    """Return an option as it is to be written with the value that it has now.

    Examples
    --------
    >>> _written("--devices", "2xA,B C"), _written("--apart", ["a@rack", "b@rack"])
    ("--devices '2xA,B C'", '--apart a@rack --apart b@rack')
    """
    each = value if isinstance(value, list | tuple) else [value]
    return " ".join(f"{option} {quote(str(one))}" for one in each if one is not None) or option


def only(options: Mapping[str, OldOption], *names: str) -> dict[str, OldOption]:
    """Return the options of these names.

    Examples
    --------
    >>> only(OF_GRAPH, "--out")["--out"].new
    '--output'
    """
    return {name: options[name] for name in names}


def _counted(count: object, devices: object) -> object:
    return ",".join(f"{count}x{name}" for name in str(devices).split(",")) if devices else devices


OF_ONE_DEVICE = {
    "--device": OldOption("--devices", lambda given, _: ",".join(given), many=True),
    "--count": OldOption("--devices", _counted),
    "--engine": OldOption("--framework"),
    "--optimiser": OldOption("--optimizer"),
}
OF_CHOICE = {
    "--fleet": OldOption("--devices"),
    "--catalog": OldOption("--devices", lambda given, today: "catalog", flag=True),
    "--tokens": OldOption("--context"),
    "--engine": OldOption("--framework"),
    "--apart-by": OldOption("--apart", lambda scope, words: [f"{word}@{scope}" for word in words or ()]),
}
OF_TRAINING = {
    "--node": OldOption("--samples-per-s"),
    "--batch": OldOption("--global-batch"),
    "--link": OldOption("--network"),
}
OF_TASKS = {"--data": OldOption("--input-bytes"), "--link": OldOption("--network")}
OF_GRAPH = {
    "--fleet": OldOption("--devices"),
    "--out": OldOption("--output"),
    "--model": OldOption("--transfer-model"),
    "--policy": OldOption("--planner"),
}
OF_TOPOLOGY = {
    "--from": OldOption("--topology"),
    "--within": OldOption("--together"),
    "--png": OldOption("--output"),
}
