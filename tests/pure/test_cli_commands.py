"""The list of commands says what each of them says of itself, and imports none."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from hetero.cli.main import COMMANDS, app
from hetero.errors import BadValueError

GROUP = typer.main.get_command(app)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_where_the_table_says_and_begins_its_help_alike(name: str) -> None:
    command = GROUP.commands[name]  # type: ignore[attr-defined]
    assert command.name == name
    assert str(command.help).strip().splitlines()[0] == COMMANDS[name].help


def test_help_imports_no_command() -> None:
    code = (
        "import sys\nfrom hetero.cli.main import entry\nsys.argv = ['hetero', '--help']\n"
        "try:\n    entry()\nexcept SystemExit:\n    pass\n"
        "print([name for name in sys.modules if name.startswith('hetero.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout.splitlines()[-1] == "['hetero.cli.lazy', 'hetero.cli.output', 'hetero.cli.main']"
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


def test_a_misspelt_command_gets_the_one_that_was_meant() -> None:
    command = [sys.executable, "-m", "hetero", "devces"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 2
    assert "Did you mean 'devices'?" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("simulate --hosts 1x1xH100-SXM --fail gpu0@1s", "--fail has no effect with --hosts"),
        ("simulate --hosts 1x1xH100-SXM --model free", "--model has no effect with --hosts"),
        ("simulate a.json --tasks 5", "--tasks has no effect on a graph"),
        ("topo --within rack", "--within has no effect without --group"),
        ("topo --between a b --group 2", "--group has no effect with --between"),
        ("topo --gpu H100-SXM", "--gpu has no effect without --from"),
        ("catalog list --models --vendor NVIDIA", "--vendor has no effect with --models"),
        ("schedule a.json --check b.json --policy heft", "--policy has no effect with --check"),
        ("schedule a.json --iterations 5 --budget 2s", "--budget has no effect with --iterations"),
        ("top --once --interval 2", "--interval has no effect with --once"),
        ("plan --accuracy a.csv --batch 4", "--batch has no effect with --accuracy"),
        ("plan --catalog --workload m --fleet here", "--fleet has no effect with --catalog"),
        ("plan --batch 4", "--batch has no effect without --workload"),
        ("plan --batch 4 fit Llama-3.1-8B --device H100-SXM", "--batch has no effect before 'fit'"),
    ],
)
def test_an_option_that_this_form_of_a_command_does_not_read_is_refused(words: str, told: str) -> None:
    result = CliRunner().invoke(app, words.split())
    assert isinstance(result.exception, BadValueError), result.output
    assert str(result.exception).startswith(told)
    assert str(result.exception).endswith("leave it out")
