"""Options of the command line as settings of a configuration.

In: a key and the text that was typed. Out: 'key=value' as `--set` takes it. It must not read the configuration.
"""

from __future__ import annotations

import re

__all__ = ["as_setting"]

_PLAIN = re.compile(r"(?:[A-Za-z/]|\d+x[A-Za-z])[\w./*,-]*(:[\w./*,-]+)*")
_YAML_WORDS = ("null", "true", "false", "yes", "no", "on", "off")


def as_setting(key: str, text: str) -> str:
    """Write an option as a setting whose value YAML reads as text.

    Examples
    --------
    >>> as_setting("devices", "1xcpu,1xcpu*0.25"), as_setting("trace", "a b"), as_setting("devices", "null")
    ('devices=1xcpu,1xcpu*0.25', "trace='a b'", "devices='null'")
    """
    if _PLAIN.fullmatch(text) and text.casefold() not in _YAML_WORDS:
        return f"{key}={text}"
    escaped = text.replace("'", "''")
    return f"{key}='{escaped}'"
