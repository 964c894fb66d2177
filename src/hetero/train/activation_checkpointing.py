"""Activations that are computed twice: parts of a model keep their inputs alone and run again in the backward pass.

In: a model, the parts that are to be recomputed. Out: the same model, with less to keep between the passes.
It must not change a result: what was drawn in the first run is drawn again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch.utils.checkpoint import checkpoint

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.train.keyed_random import KeyedRandom

__all__ = ["blocks", "chosen", "recompute_blocks"]


def recompute_blocks(model: torch.nn.Module, wanted: str | Sequence[str], random: KeyedRandom | None) -> None:
    """Recompute parts of a model in the backward pass.

    Parameters
    ----------
    wanted
        'none', 'blocks' for what `blocks` finds, or names of modules as `named_modules` has them.
    random
        What the model draws from, None where nothing is computed.

    Raises
    ------
    BadValueError
        The model has no such module, or no blocks.

    Notes
    -----
    Trades a second forward pass for the memory of what lies inside the parts (Chen, Xu, Zhang and Guestrin 2016).
    """
    modules = dict(model.named_modules())
    for name in chosen(model, wanted):
        module = modules[name]
        module.forward = functools.partial(_twice, module.forward, random)


def chosen(model: torch.nn.Module, wanted: str | Sequence[str]) -> list[str]:
    """Name the modules that are to be recomputed; raises BadValueError as `recompute_blocks` does."""
    if wanted == "none":
        return []
    if wanted == "blocks":
        return blocks(model)
    modules = dict(model.named_modules())
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if not name or name not in modules:
            raise BadValueError(
                f"recompute: the model has no module {name!r}{did_you_mean(name, ['none', 'blocks', *modules])}",
                remedy="give 'none', 'blocks' or names that model.named_modules() has",
            )
    return names


def blocks(model: object) -> list[str]:
    """Name the blocks of a model: what its ModuleLists hold, or its Sequentials where it has no such lists.

    Raises
    ------
    BadValueError
        There is none that is made of further modules.

    Notes
    -----
    The outermost lists count. A Sequential within a Sequential is gone into where it holds such modules, else it is
    a block itself.

    Examples
    --------
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16)
    >>> blocks(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.TransformerEncoder(layer, 2)))
    ['1.layers.0', '1.layers.1']
    """
    found = _held(model, torch.nn.ModuleList) or _held(model, torch.nn.Sequential)
    if not found:
        raise BadValueError(
            f"recompute='blocks': {type(model).__name__} has no ModuleList or Sequential of modules that have parts",
            remedy="name modules of the model instead",
        )
    return found


def _held(module: torch.nn.Module, kind: type | tuple[type, ...], path: str = "") -> list[str]:
    """Name what the outermost containers of a kind hold, as far as it has modules of its own."""
    found: list[str] = []
    for name, child in module.named_children():
        place = f"{path}.{name}" if path else name
        inner = _held(child, kind, place) if isinstance(child, kind) or not isinstance(module, kind) else []
        found += inner or ([place] if isinstance(module, kind) and any(child.children()) else [])
    return found


def _twice(forward: Callable[..., object], random: KeyedRandom | None, *args: object, **kwargs: object) -> object:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    again = nullcontext if random is None else random.again()
    return checkpoint(
        forward,
        *args,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), again()),
        **kwargs,
    )
