"""Models of which only a part is trained, such as adapters: that part travels and is kept, the rest stays as given.

In: a model with frozen parameters. Out: its state without them, and a word by which they are known again.
It must not know how adapters are made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch

from hetero.floor.errors import HeteroError

__all__ = ["frozen_word", "has_adapters", "kept_state", "load_kept"]

_words: WeakKeyDictionary[Any, tuple[object, str]] = WeakKeyDictionary()


def has_adapters(model: Any) -> bool:
    """Return whether a model has adapters of `peft`."""
    return hasattr(model, "peft_config")


def _frozen(model: Any) -> dict[str, Any]:
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter for name, parameter in named if not parameter.requires_grad}


def kept_state(model: Any) -> dict[str, Any]:
    """Return the state of a model without its frozen parameters.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    >>> _ = model[0].requires_grad_(False)
    >>> list(kept_state(model))
    ['1.weight', '1.bias']
    """
    frozen = _frozen(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def frozen_word(model: Any) -> str:
    """Return a checksum of the frozen parameters, '' where there are none; computed once while they are unchanged."""
    frozen = _frozen(model)
    if not frozen:
        return ""
    seen = tuple((tensor.data_ptr(), tensor._version) for tensor in frozen.values())
    if _words.get(model, (None, ""))[0] != seen:
        digest = hashlib.sha256()
        for name, tensor in frozen.items():
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            plain = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(plain.view(torch.uint8).numpy().data)
        _words[model] = seen, digest.hexdigest()
    return _words[model][1]


def load_kept(model: Any, state: Mapping[str, Any], word: str) -> None:
    """Load what `kept_state` gave into a model with the same frozen parameters.

    Parameters
    ----------
    word : what `frozen_word` gave of the model that the state is of

    Raises
    ------
    RuntimeError
        The state does not match the model, as torch words it.
    HeteroError
        The frozen parameters are others.
    """
    if word != frozen_word(model):
        raise HeteroError(
            "the parameters that are not trained are not those of the model that this was kept of",
            remedy="give the same base model",
        )
    missing, unexpected = model.load_state_dict(state, strict=False)
    wrong = [*sorted(set(missing) - set(_frozen(model))), *unexpected]
    if wrong:
        raise RuntimeError(f"missing or unexpected: {', '.join(wrong)}")
