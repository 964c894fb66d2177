"""Trained models at rest: safetensors, with the words that are needed to use them again.

In: a model, or a file. Out: a file that is whole or absent; its tensors. It must not unpickle anything.
`hetero.compression.files` loads them into a model, compressed or not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.floor.documents import parse_json
from hetero.floor.errors import BadValueError
from hetero.floor.files import atomic_write, output_file
from hetero.floor.units import shown
from hetero.train.state import frozen_word, in_one_order, kept_state

if TYPE_CHECKING:
    import torch

__all__ = ["FROZEN", "read_model", "save_model"]

_ALIASES = "hetero.aliases"
FROZEN = "hetero.frozen"
"""The word in a file's metadata that holds the checksum of the parameters left out."""


def save_model(
    model: torch.nn.Module, path: str | Path, facts: Mapping[str, str], *, trained_only: bool = False
) -> Path:
    """Write the parameters and buffers of a model.

    Parameters
    ----------
    facts
        Kept in the file's metadata.
    trained_only
        True to leave out the parameters that are not trained, of which a checksum is kept.

    Notes
    -----
    A tensor that the model has under several names is kept once; the other names are in the metadata.
    """
    from safetensors.torch import save

    state = kept_state(model) if trained_only else model.state_dict()
    words = {"format": "pt", **facts, **({FROZEN: frozen_word(model)} if trained_only else {})}
    kept: dict[str, object] = {}
    aliases: dict[str, str] = {}
    homes: dict[tuple[object, ...], str] = {}
    for name, tensor in state.items():
        home = homes.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype), name)
        if home == name or not tensor.numel():
            kept[name] = tensor.detach().cpu().contiguous().clone()
        else:
            aliases[name] = home
    path = output_file(path, "path")
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, in_one_order(save(kept, {**words, _ALIASES: json.dumps(aliases)})))
    return path


def read_model(path: str | Path) -> tuple[dict[str, object], dict[str, str]]:
    """Read the tensors and the words of a file.

    Raises
    ------
    BadValueError
        There is no such file, or it is no whole safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    if os.path.exists(path) and not os.path.isfile(path):
        raise BadValueError(f"{path} is no file that can be read", remedy="give a model that hetero train saved")
    try:
        with safe_open(str(path), "pt") as file:
            facts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
    except FileNotFoundError as error:
        raise BadValueError(f"{path}: there is no such file", remedy="give a model that hetero train saved") from error
    except (OSError, SafetensorError) as error:
        raise BadValueError(f"{path} is no whole safetensors file: {error}", remedy="save the model again") from error
    aliases = parse_json(facts.pop(_ALIASES, "{}"), str(path), BadValueError)
    if not isinstance(aliases, dict) or not all(isinstance(home, str) and home in tensors for home in aliases.values()):
        raise BadValueError(f"{path}: its shared tensors are {shown(aliases)}", remedy="save the model again")
    return {**tensors, **{name: tensors[home] for name, home in aliases.items()}}, facts
