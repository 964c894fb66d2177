"""Quantisation: weights of linear layers in 8 bits, by torchao.

In: a model, a word. Out: the same model with quantised layers. It must not know how they are kept in a file.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.extras import need
from hetero.train.bulk_inference import quietly

if TYPE_CHECKING:
    import torch

__all__ = ["WORDS", "check_word", "inner_tensors", "quantise"]

WORDS = {
    "int8": "weights in 8 bits, and what they are multiplied with is rounded to 8 bits at each call",
    "int8-weights": "weights in 8 bits, computation as before",
}


def check_word(word: str) -> str:
    """Return the word of a kind of quantisation.

    Raises
    ------
    BadValueError
        There is no such kind.
    """
    if word not in WORDS:
        raise BadValueError(
            f"quantize={word!r} is not known{did_you_mean(word, WORDS)}", remedy=f"give {' or '.join(WORDS)}"
        )
    return word


def quantise(model: torch.nn.Module, word: str) -> list[str]:
    """Quantise the linear layers of a model; returns their names.

    Raises
    ------
    BadValueError
        The kind is not known, or the model has no linear layer.
    HeteroError
        torchao is not installed.
    """
    import torch

    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    if not names:
        raise BadValueError("the model has no linear layer, and others are not quantised", remedy="prune it instead")
    configs = _configs()
    with quietly():
        configs.quantize_(model, _config(configs, check_word(word)))
    return names


def _config(configs: ModuleType, word: str) -> object:
    return configs.Int8DynamicActivationInt8WeightConfig() if word == "int8" else configs.Int8WeightOnlyConfig()


def _configs() -> ModuleType:
    need("torchao", "a quantised model")
    with quietly():
        return import_module("torchao.quantization")


def inner_tensors(tensor: torch.Tensor) -> dict[str, object]:
    """Return the plain tensors that a quantised one consists of; nothing for a plain one."""
    import torch

    plain = tensor.data if isinstance(tensor, torch.nn.Parameter) else tensor
    if type(plain) is torch.Tensor:
        return {}
    names, _ = plain.__tensor_flatten__()
    return {name: getattr(plain, name) for name in names}
