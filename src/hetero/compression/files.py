"""Compressed models at rest: safetensors in which zeros take a bit each, and quantised weights a byte.

In: a model, or a file. Out: bytes; a model that has the tensors of the file, whether compressed or not.
It must not unpickle anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.compression.quantisation import inner_tensors, quantise
from hetero.floor.documents import parse_json
from hetero.floor.errors import BadValueError
from hetero.train.saving import FROZEN, read_model
from hetero.train.state import in_one_order, load_kept

if TYPE_CHECKING:
    import torch

__all__ = ["COMPRESSED", "load_parameters", "pack", "restore"]

COMPRESSED = "hetero.compressed"
"""The word in a file's metadata that says how it was compressed."""

_WORTH_ELEMENTS = 64


def pack(model: torch.nn.Module, facts: Mapping[str, str], quantised: str | None = None) -> bytes:
    """Return a model as the bytes of a safetensors file.

    Parameters
    ----------
    facts
        Words kept in the file's metadata.
    quantised
        How it was quantised, None where it was not.

    Notes
    -----
    A tensor with zeros becomes its other values and a bitmap, where that is shorter.
    """
    import safetensors.torch

    state = model.state_dict()
    tensors: dict[str, object] = {}
    sparse: dict[str, list[int]] = {}
    for name, tensor in _plain(state).items():
        whole = tensor.detach().cpu().contiguous()
        packed = _packed(whole)
        if packed is None:
            tensors[name] = whole.clone()
        else:
            tensors[f"{name}:values"], tensors[f"{name}:bitmap"] = packed
            sparse[name] = list(whole.shape)
    shapes = {name: list(tensor.shape) for name, tensor in state.items()}
    about = {"quantise": quantised, "sparse": sparse, "shapes": shapes}
    return in_one_order(safetensors.torch.save(tensors, {"format": "pt", **facts, COMPRESSED: json.dumps(about)}))


def _plain(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a model's tensors, the parts of quantised ones one by one."""
    plain: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        inner = inner_tensors(tensor)
        plain |= {f"{name}/{part}": value for part, value in inner.items()} if inner else {name: tensor}
    return plain


def _packed(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    import numpy as np
    import torch

    there = tensor != 0
    count = int(there.sum())
    shorter = count * tensor.element_size() + tensor.numel() // 8 < tensor.numel() * tensor.element_size()
    if tensor.numel() < _WORTH_ELEMENTS or not shorter:
        return None
    return tensor[there].clone(), torch.from_numpy(np.packbits(there.numpy()))


def _unpacked(values: torch.Tensor, bitmap: torch.Tensor, shape: list[int]) -> torch.Tensor:
    import numpy as np
    import torch

    if not 0 <= math.prod(shape) - values.numel() <= 8 * bitmap.numel() - values.numel():
        raise ValueError(f"{values.numel()} values and {bitmap.numel()} bytes of marks are no tensor of shape {shape}")
    there = torch.from_numpy(np.unpackbits(bitmap.numpy(), count=math.prod(shape)).astype(bool)).reshape(shape)
    tensor = torch.zeros(shape, dtype=values.dtype)
    tensor[there] = values
    return tensor


def restore(model: object, tensors: Mapping[str, object], facts: Mapping[str, str]) -> None:
    """Make a fresh model into the compressed one whose file was read.

    Raises
    ------
    RuntimeError
        The file belongs to another model, as `load_state_dict` has it.
    """
    from hetero.compression.pruning import fit_shapes

    try:
        about = parse_json(facts[COMPRESSED], "the file", BadValueError)
        whole = dict(tensors)
        for name, shape in about["sparse"].items():
            whole[name] = _unpacked(whole.pop(f"{name}:values"), whole.pop(f"{name}:bitmap"), shape)
        fit_shapes(model, about["shapes"])
        if about["quantise"] is not None:
            quantise(model, about["quantise"])
        _fill(model, whole)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _fill(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    import torch

    own = _plain(model.state_dict())
    if set(own) != set(tensors):
        odd = sorted(set(own) ^ set(tensors))
        raise ValueError(f"{', '.join(odd[:3])} is only in one of them")
    with torch.no_grad():
        for name, tensor in own.items():
            if tensor.shape != tensors[name].shape:
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, and the model {tuple(tensor.shape)}")
            tensor.copy_(tensors[name])


def load_parameters(model: torch.nn.Module, path: str | Path) -> dict[str, str]:
    """Load a file that `Trainer.save` wrote into a model; returns the words of the file.

    Parameters
    ----------
    model
        Made as the one that was saved; where only adapters were, with the same base.

    Raises
    ------
    BadValueError
        The file cannot be read, or belongs to another model.

    Examples
    --------
    >>> import hetero, pathlib, tempfile, torch
    >>> from hetero.train.saving import save_model
    >>> model, again = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    >>> file = save_model(model, pathlib.Path(tempfile.mkdtemp()) / "line.safetensors", {"made": "here"})
    >>> load_parameters(again, file)["made"], torch.equal(again.weight, model.weight)
    ('here', True)
    """
    tensors, facts = read_model(path)
    try:
        if FROZEN in facts:
            load_kept(model, tensors, facts[FROZEN])
        elif COMPRESSED in facts:
            restore(model, tensors, facts)
        else:
            model.load_state_dict(tensors)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        raise BadValueError(f"{path} belongs to another model: {said}", remedy="give the file of this model") from error
    return facts
