"""Pruning: weights that matter least become zero, or whole channels go.

In: a model, the share to prune. Out: the same model with zeros that stay zero while it trains, or a narrower model.
It must not train, and what it cannot narrow it refuses by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn.utils import prune

from hetero.floor.errors import BadValueError

__all__ = ["drop_channels", "fit_shapes", "make_permanent", "zero_weights", "zeros_frac"]

_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BY_ELEMENT = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Identity)
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
_PASS = (*_BY_ELEMENT, *_POOLS, *_DROPOUTS, nn.Flatten)
_NORMS = nn.modules.batchnorm._BatchNorm


def _weighted(model: torch.nn.Module) -> list[tuple[str, object]]:
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, _WEIGHTED)]
    if not found:
        raise BadValueError("the model has no linear layer and no convolution", remedy="there is nothing to prune")
    return found


def zeros_frac(model: torch.nn.Module) -> float:
    """Return the share of zeros among the weights of linear layers and convolutions."""
    weights = [module.weight for module in model.modules() if isinstance(module, _WEIGHTED)]
    plain = [w.dequantize() if hasattr(w, "dequantize") and type(w.data) is not torch.Tensor else w for w in weights]
    count = sum(weight.numel() for weight in plain)
    return sum(int((weight == 0).sum()) for weight in plain) / count if count else 0.0


# --- zeros -------------------------------------------------------------------------------------------------


def zero_weights(model: object, frac: float) -> None:
    """Set the smallest weights of all layers together to zero, also while the model trains further."""
    pairs = [(module, "weight") for _, module in _weighted(model)]
    prune.global_unstructured(pairs, pruning_method=prune.L1Unstructured, amount=frac)


def make_permanent(model: torch.nn.Module) -> None:
    """End the pruning of a model: its zeros become plain weights."""
    for module in model.modules():
        if isinstance(module, _WEIGHTED) and prune.is_pruned(module):
            prune.remove(module, "weight")


# --- channels ----------------------------------------------------------------------------------------------


def drop_channels(model: object, frac: float) -> None:
    """Take whole channels out of every layer but the last, those with the smallest weights.

    Raises
    ------
    BadValueError
        The model is no chain of layers whose channels can be followed.

    Notes
    -----
    A channel is ranked by the Euclidean norm of its weights. Its row goes, and with it what the next layer made of
    it: one input channel of a convolution, or all features of a linear layer that a flattened channel became.
    """
    layers = _chain(model)
    places = [place for place, (_, layer) in enumerate(layers) if isinstance(layer, _WEIGHTED)]
    for place, following in pairwise(places):
        layer = layers[place][1]
        kept = _kept_channels(layer, frac)
        channels = len(layer.weight)
        _keep_outputs(layer, kept)
        for _, between in layers[place + 1 : following]:
            if isinstance(between, _NORMS):
                _keep_norm(between, kept)
        _keep_inputs(layers[following][1], kept, channels)


def _chain(model: object) -> list[tuple[str, nn.Module]]:
    layers = list(_leaves(model, ""))
    for name, layer in layers:
        grouped = isinstance(layer, _CONVOLUTIONS) and layer.groups > 1
        if grouped or not isinstance(layer, (*_WEIGHTED, *_PASS, _NORMS)):
            raise BadValueError(
                f"the channels of {name or 'the model'} ({type(layer).__name__}) cannot be followed",
                remedy="prune without structured, or give an nn.Sequential of layers that keep their channels apart",
            )
    _weighted(model)
    return layers


def _leaves(module: object, name: str) -> Iterator[tuple[str, object]]:
    if not isinstance(module, nn.Sequential):
        yield name, module
        return
    for part, child in module.named_children():
        yield from _leaves(child, f"{name}.{part}".lstrip("."))


def _kept_channels(layer: nn.Module, frac: float) -> torch.Tensor:
    rank = layer.weight.detach().flatten(1).norm(dim=1)
    count = max(1, len(rank) - round(frac * len(rank)))
    return rank.topk(count).indices.sort().values


def _keep_outputs(layer: nn.Module, kept: torch.Tensor) -> None:
    layer.weight = nn.Parameter(layer.weight.detach()[kept].clone())
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach()[kept].clone())
    _count_channels(layer)


def _keep_inputs(layer: nn.Module, kept: torch.Tensor, channels: int) -> None:
    weight = layer.weight.detach()
    each = weight.shape[1] // channels
    columns = (kept[:, None] * each + torch.arange(each)).flatten()
    layer.weight = nn.Parameter(weight[:, columns].clone())
    _count_channels(layer)


def _keep_norm(layer: nn.Module, kept: torch.Tensor) -> None:
    for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
        if tensor.dim():
            part = tensor.detach()[kept].clone()
            setattr(layer, name, nn.Parameter(part) if isinstance(tensor, nn.Parameter) else part)
    layer.num_features = len(kept)


def _count_channels(layer: nn.Module) -> None:
    outputs, inputs = layer.weight.shape[:2]
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = outputs, inputs
    else:
        layer.out_channels, layer.in_channels = outputs, inputs


def fit_shapes(model: torch.nn.Module, shapes: Mapping[str, Sequence[int]]) -> None:
    """Make the layers of a fresh model as narrow as those of a pruned one.

    Parameters
    ----------
    shapes
        Of the pruned model's parameters and buffers.
    """
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if not isinstance(module, (*_WEIGHTED, _NORMS)):
            continue
        for part, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            wanted = shapes.get(prefix + part)
            if wanted is not None and tuple(wanted) != tuple(tensor.shape) and len(wanted) == tensor.dim():
                fresh = torch.zeros(tuple(wanted), dtype=tensor.dtype)
                setattr(module, part, nn.Parameter(fresh) if isinstance(tensor, nn.Parameter) else fresh)
        if isinstance(module, _NORMS):
            module.num_features = len(module.running_mean) if module.running_mean is not None else module.num_features
        else:
            _count_channels(module)
