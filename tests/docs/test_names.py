"""One name for each concept: the tables of docs/names.md against every option, key and public parameter."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from typing import Any, get_args

import pytest
import typer

import hetero
from hetero.advise import fit
from hetero.batch import recipe as batch_recipe
from hetero.batch.options import BatchLimits, BatchOptions
from hetero.cli.grammar import COMMANDS
from hetero.cli.main import app
from hetero.floor.errors import EXIT_MEANINGS
from hetero.model.workload import WorkloadSpec
from hetero.privacy import recipe as privacy_recipe
from hetero.recipes import training
from hetero.recipes import tune as tune_recipe
from hetero.session import config_schema
from tests.needs import PROJECT
from tests.pure.test_cli_commands import walk

PAGE = (PROJECT / "docs" / "names.md").read_text(encoding="utf-8")
COMMANDS_PAGE = PROJECT / "docs" / "commands.md"
PYTHON, YAML, OPTION, INSTEAD = range(1, 5)


def _table(columns: int) -> list[list[list[str]]]:
    """Return the cells of every row with so many columns, each as the words that it has between backticks."""
    lines = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")]
    return [[re.findall(r"`([^`]+)`", cell) for cell in cells] for cells in lines if len(cells) == columns]


ROWS = _table(5)
KEYS_ALONE = {key for row in _table(2) for key in row[1]}
REFUSED = {word for row in ROWS for word in row[INSTEAD]}


def _options() -> Iterator[tuple[str, Any]]:
    """Yield every option that `--help` shows, with its command."""
    group = typer.main.get_command(app)
    for words, _ in walk(COMMANDS):
        command: Any = group
        for word in words:
            command = command.commands[word]
        for param in command.params:
            if param.param_type_name == "option" and not param.hidden:
                yield " ".join(words), param


def _long(param: Any) -> str:
    return next(name for name in param.opts if name.startswith("--"))


def _keys() -> set[str]:
    """Return every key that a recipe or a configuration may have."""
    models = [each for each in vars(config_schema).values() if isinstance(each, type) and hasattr(each, "model_fields")]
    config = {key for model in models for key in model.model_fields}
    recipes = {*training._OWN, *training._DATA, *training._TRAIN, *tune_recipe._KEYS}
    jobs = {*batch_recipe._OWN, *batch_recipe._KEYWORDS}
    jobs |= {each.name for options in (BatchOptions, BatchLimits) for each in fields(options)}
    return (config | recipes | jobs | privacy_recipe.KEYS) - {"train"}


def _parameters() -> Iterator[tuple[str, str]]:
    """Yield the parameters of all public functions and methods."""
    named = {name: getattr(hetero, name) for name in hetero.__all__}
    for space in hetero._NAMESPACES:
        module = import_module(f"hetero.{space}")
        named |= {name: getattr(module, name) for name in module.__all__}
    named |= {"WorkloadSpec": WorkloadSpec, "does_it_fit": fit.does_it_fit}
    assert len(named) > 60
    for name, made in named.items():
        parts = [(name, made)]
        if inspect.isclass(made):
            parts += [(f"{name}.{word}", part) for word, part in vars(made).items() if word[0] != "_"]
        for label, part in parts:
            if callable(part):
                try:
                    yield from ((label, parameter) for parameter in inspect.signature(part).parameters)
                except (TypeError, ValueError):
                    continue


def test_every_option_has_its_row_and_every_row_its_option() -> None:
    used = {_long(param) for _, param in _options()}
    listed = [option for row in ROWS for option in row[OPTION]]
    assert sorted(used - set(listed)) == [], "add a row to docs/names.md, or take the name of the concept there"
    assert sorted(set(listed) - used) == [], "docs/names.md lists options that no command has"
    assert len(listed) == len(set(listed)), "an option means one thing"


def test_every_key_has_its_row_and_every_row_its_key() -> None:
    listed = [key for row in ROWS for key in row[YAML]]
    workload = set(inspect.signature(WorkloadSpec).parameters) | {"needs", "streams", "usd_per_hour", "framework"}
    topology = {"topology"}
    assert sorted(_keys() - set(listed) - KEYS_ALONE) == [], "add the key to docs/names.md"
    assert sorted(({*listed} | KEYS_ALONE) - _keys() - workload - topology) == [], "docs/names.md lists unknown keys"
    assert len(listed) == len(set(listed)), "a key means one thing"


def test_a_name_is_the_same_word_in_python_yaml_and_on_the_command_line() -> None:
    for row in ROWS:
        words = {option.removeprefix("--").replace("-", "_") for option in row[OPTION]} | set(row[YAML])
        if row[PYTHON] and words and row[PYTHON][0] not in words:
            assert (row[PYTHON][0], *sorted(words)) in {
                ("count", "group"),
                ("exchanged_bytes", "gradients"),
                ("usd_per_hour", "prices"),
            }


def test_no_option_and_no_key_is_a_synonym() -> None:
    wrong = [
        f"{command}: {_long(param)}" for command, param in _options() if _long(param)[2:].replace("-", "_") in REFUSED
    ]
    assert wrong + sorted(_keys() & REFUSED) == []


def test_no_parameter_of_a_public_function_is_a_synonym() -> None:
    kept = {
        ("Kernel", "out"),  # what a kernel writes, as NumPy's `out`
        ("Split", "fleet"),  # made by `split` alone
    }
    found = {(label, name) for label, name in _parameters() if name in REFUSED}
    assert sorted(found - kept) == []


def test_an_option_has_one_kind_of_value_wherever_it_stands() -> None:
    kinds: dict[str, dict[str, list[str]]] = {}
    for command, param in _options():
        kinds.setdefault(_long(param), {}).setdefault(_kind(param), []).append(command)
    assert {option: found for option, found in kinds.items() if len(found) > 1} == {}


def _kind(param: Any) -> str:
    """Return the type of a value, of one where the option can be repeated."""
    annotation = param.type_descriptor.annotation
    annotation = (get_args(annotation) or (annotation,))[0]
    return getattr(annotation, "__name__", str(annotation))


def test_a_synonym_would_be_found() -> None:
    assert {"fleet", "out", "optimiser", "tokens", "quantise"} <= REFUSED
    assert {option for row in ROWS for option in row[OPTION]}.isdisjoint({f"--{word}" for word in REFUSED})
    assert set(KEYS_ALONE).isdisjoint(REFUSED)


def test_the_documented_exit_codes_are_those_of_the_code(request: pytest.FixtureRequest) -> None:
    begin, end = "<!-- exit codes -->", "<!-- end of exit codes -->"
    rows = [f"| {code} | {meaning} |" for code, meaning in EXIT_MEANINGS.items()]
    table = "\n".join(["| code | meaning |", "|---|---|", *rows])
    before, _, rest = COMMANDS_PAGE.read_text(encoding="utf-8").partition(begin)
    written, _, after = rest.partition(end)
    if request.config.getoption("--accept"):
        COMMANDS_PAGE.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")
        return
    assert written.strip() == table, f"run pytest {request.node.nodeid} --accept"
