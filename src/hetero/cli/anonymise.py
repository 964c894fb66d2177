"""`hetero anonymise` and `hetero anonymise detect`: tables as a recipe says, and a recipe to begin with.

In: options. Out: what was done, in words or as one JSON document. The work is in `hetero.privacy`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetero.cli.options import AsJson, Devices, Settings
from hetero.cli.output import print_json, say

__all__ = ["anonymise", "detect"]


def anonymise(
    recipe: Annotated[Path, typer.Argument(help="Recipe, a YAML file like examples/anonymise.yaml.")],
    source: Annotated[Path, typer.Argument(help="CSV or Parquet file, or a folder of them.")],
    output: Annotated[Path, typer.Argument(help="File to write, or a folder for a folder.")],
    devices: Devices = None,
    set_: Settings = None,
    json: AsJson = False,
) -> None:
    """Anonymise tables as a recipe says: k-anonymity, l-diversity and t-closeness of the whole, over all devices."""
    from hetero.privacy.run import anonymise as run

    report = run(recipe, source, output, set=set_ or [], devices=devices)
    if json:
        print_json({"output": str(output), **report.as_dict()})
    else:
        say(report.as_text())


def detect(
    source: Annotated[Path, typer.Argument(help="CSV or Parquet file, or a folder of them.")],
    json: AsJson = False,
) -> None:
    """Print a recipe to begin with, from the names of a table's columns and its first rows."""
    from hetero.privacy.detect import recipe_of, suggested

    found = suggested(source)
    if json:
        print_json({"columns": [each._asdict() for each in found]})
    else:
        say(recipe_of(found), end="")
