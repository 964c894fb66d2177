"""Options of the command line: as settings of a configuration, and refused where they would have no effect.

In: what was typed. Out: 'key=value' as `--set` takes it, or an error. It must not read the configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from hetero.floor.errors import BadValueError

if TYPE_CHECKING:
    import typer

__all__ = ["as_setting", "refuse_unused"]

_PLAIN = re.compile(r"(?:[A-Za-z/]|\d+x[A-Za-z])[\w./*,-]*(:[\w./*,-]+)*")
_YAML_WORDS = ("null", "true", "false", "yes", "no", "on", "off")


def as_setting(key: str, text: str) -> str:
    r"""Write an option as a setting whose value YAML reads as text.

    Examples
    --------
    >>> as_setting("devices", "1xcpu,1xcpu*0.25"), as_setting("trace", "a b"), as_setting("devices", "null")
    ('devices=1xcpu,1xcpu*0.25', "trace='a b'", "devices='null'")
    >>> print(as_setting("trace", chr(10)))
    trace="\n"
    """
    if _PLAIN.fullmatch(text) and text.casefold() not in _YAML_WORDS:
        return f"{key}={text}"
    if not text.isprintable():
        return f"{key}={json.dumps(text)}"
    escaped = text.replace("'", "''")
    return f"{key}='{escaped}'"


def refuse_unused(context: typer.Context, used: Collection[str], why: str) -> None:
    """Refuse an option that was typed and that this form of a command does not read.

    Parameters
    ----------
    used
        Names of the parameters that it reads.
    why
        Which form that is, as in 'with --once'.

    Raises
    ------
    BadValueError
        Another option was typed.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in used:
            raise BadValueError(f"{parameter.opts[0]} has no effect {why}", remedy="leave it out")
