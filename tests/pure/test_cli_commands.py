"""The list of commands says what each of them says of itself, and imports none."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from hetero.cli.main import COMMANDS, app

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
