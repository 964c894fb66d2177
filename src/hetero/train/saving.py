"""Trained models at rest: safetensors, with the words that are needed to use them again.

In: a model, or a file. Out: a file that is whole or absent; parameters loaded into a model.
It must not unpickle anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero.floor.errors import BadValueError
from hetero.floor.platform import atomic_write

__all__ = ["load_parameters", "read_model", "save_model"]

_ALIASES = "hetero.aliases"


def save_model(model: Any, path: str | Path, facts: Mapping[str, str]) -> Path:
    """Write the parameters and buffers of a model.

    Parameters
    ----------
    facts : kept in the file's metadata

    Notes
    -----
    A tensor that the model has under several names is kept once; the other names are in the metadata.
    """
    from safetensors.torch import save

    kept: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    homes: dict[tuple[object, ...], str] = {}
    for name, tensor in model.state_dict().items():
        home = homes.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype), name)
        if home == name or not tensor.numel():
            kept[name] = tensor.detach().cpu().contiguous().clone()
        else:
            aliases[name] = home
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, save(kept, {"format": "pt", **facts, _ALIASES: json.dumps(aliases)}))
    return path


def read_model(path: str | Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the tensors and the words of a file.

    Raises
    ------
    BadValueError
        There is no such file, or it is no whole safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:
            facts = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
    except FileNotFoundError as error:
        raise BadValueError(f"{path}: there is no such file", remedy="give a model that hetero train saved") from error
    except (OSError, SafetensorError) as error:
        raise BadValueError(f"{path} is no whole safetensors file: {error}", remedy="save the model again") from error
    aliases: dict[str, str] = json.loads(facts.pop(_ALIASES, "{}"))
    return {**tensors, **{name: tensors[home] for name, home in aliases.items()}}, facts


def load_parameters(model: Any, path: str | Path) -> dict[str, str]:
    """Load a file's parameters into a model; gives the words of the file.

    Raises
    ------
    BadValueError
        The file cannot be read, or belongs to another model.
    """
    tensors, facts = read_model(path)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        raise BadValueError(f"{path} belongs to another model: {said}", remedy="give the file of this model") from error
    return facts
