"""`hetero compress`: a saved model made smaller, and what that did to it.

In: options. Out: a table of size, accuracy and speed before and after, or one JSON document. The work is in
`hetero.train`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.cli.options import AsJson, Devices, Output
from hetero.cli.output import console, print_json
from hetero.floor.text import single_line

if TYPE_CHECKING:
    from hetero.compression.compress import Compressed

__all__ = ["compress"]


def compress(
    model: Annotated[Path, typer.Argument(help="Model that `hetero train` saved.")],
    prune: Annotated[float, typer.Option(help="Share of the weights to prune, as 0.5.")] = 0.0,
    structured: Annotated[bool, typer.Option("--structured", help="Prune whole channels: a faster model.")] = False,
    quantize: Annotated[str | None, typer.Option(help="int8 or int8-weights.")] = None,
    fine_tune: Annotated[int, typer.Option(help="Epochs of training after pruning.")] = 0,
    data: Annotated[Path | None, typer.Option(help="Folder of MNIST's files; scikit-learn's digits without.")] = None,
    output: Output = None,
    devices: Devices = None,
    json: AsJson = False,
) -> None:
    """Prune and quantise a saved model; tells size, speed on each device and accuracy before and after.

    Without --output the file is MODEL-compressed, beside the model.
    """
    from hetero.cli.train import need_torch
    from hetero.floor.files import output_file

    need_torch()
    from hetero.recipes.saved_models import compress_file

    target = output_file(output or model.parent / f"{model.stem}-compressed.safetensors", "--output")
    wishes = {"prune": prune, "structured": structured, "quantize": quantize, "fine_tune": fine_tune}
    made = compress_file(model, target, data_path=data, devices=devices, **wishes)
    if json:
        print_json({"model": str(model), "output": str(target), **made.as_dict()})
    else:
        _print(made, target)


def _print(made: Compressed, target: Path) -> None:
    from rich.table import Table

    out, before, after = console(), made.before, made.after
    for note in made.notes:
        out.print(note, soft_wrap=True)
    table = Table(box=None)
    table.add_column("")
    for heading in ("before", "after", "ratio"):
        table.add_column(heading, justify="right")
    table.add_row("size, bytes", *_row(before.size_bytes, after.size_bytes))
    table.add_row("parameters", *_row(before.parameters, after.parameters))
    table.add_row("zeros among the weights", f"{before.zeros_frac:.1%}", f"{after.zeros_frac:.1%}", "")
    if before.accuracy is not None and after.accuracy is not None:
        table.add_row("accuracy", f"{before.accuracy:.2%}", f"{after.accuracy:.2%}", "")
    for device, speed in before.samples_per_s.items():
        table.add_row(f"{device}, samples/s", *_row(speed, after.samples_per_s[device]))
    out.print(table)
    out.print(f"model: {single_line(target)}", soft_wrap=True)


def _row(before: float, after: float) -> tuple[str, str, str]:
    return f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.2f} ×"
