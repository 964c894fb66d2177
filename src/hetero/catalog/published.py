"""Speeds that others measured and published, as rows with the columns of a user's own table.

In: published.yaml beside this file. Out: rows as text by column, each with its source. It must not compute anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

__all__ = ["published_rows"]

_KEYS = (
    "device",
    "count",
    "framework",
    "model",
    "precision",
    "kind",
    "batch",
    "input_len",
    "output_len",
    "value",
    "unit",
)


@cache
def published_rows() -> tuple[Mapping[str, str], ...]:
    """Return every published row, in the file's order.

    Examples
    --------
    >>> published_rows()[0]["device"], published_rows()[0]["kind"]
    ('RTX-4090', 'prefill')
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = files("hetero.catalog").joinpath("published.yaml").read_text(encoding="utf-8")
    found = []
    for page in yaml.load(text, Loader=loader):
        for row in page["rows"]:
            cells = dict(zip(_KEYS, map(str, row), strict=True))
            found.append({**cells, "source": page["address"], "oom": "0"})
    return tuple(found)
