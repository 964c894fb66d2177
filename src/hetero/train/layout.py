"""The layout in memory of what convolutions work on: channels first, as users write it, or last, as kernels like it.

In: a model, whether channels go last. Out: the same numbers up to rounding, sooner where kernels are made for it.
It must not touch parameters: optimizers go over them as they lie.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Layout"]

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_CONVOLUTIONS = (torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)


class Layout:
    """The layout of a model's convolutions, which may be changed between two passes.

    Parameters
    ----------
    model : whose convolutions are meant

    Attributes
    ----------
    applies : whether it has any

    Examples
    --------
    >>> model = torch.nn.Conv2d(2, 3, 1)
    >>> layout = Layout(model)
    >>> layout.channels_last = True
    >>> model(torch.zeros(1, 2, 4, 4)).is_contiguous(memory_format=torch.channels_last)
    True
    """

    def __init__(self, model: Any) -> None:
        self._convolutions = [module for module in model.modules() if isinstance(module, _CONVOLUTIONS)]
        self._hooks: list[Any] = []
        self.applies = bool(self._convolutions)

    @property
    def channels_last(self) -> bool:
        """Return whether convolutions get their inputs with channels last."""
        return bool(self._hooks)

    @channels_last.setter
    def channels_last(self, last: bool) -> None:
        if last == self.channels_last:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks = [module.register_forward_pre_hook(_turned) for module in self._convolutions] if last else []


def _turned(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    first = inputs[0]
    form = _LAST.get(first.dim())
    return inputs if form is None else (first.to(memory_format=form), *inputs[1:])
