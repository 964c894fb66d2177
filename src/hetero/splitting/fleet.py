"""What a split needs before it measures: devices that torch can use, and arguments that make sense together.

In: arguments as users give them. Out: a fleet, tensors, or an error that says what to give. It must not start a pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from hetero.floor.errors import BadValueError, did_you_mean
from hetero.model.device import Device
from hetero.session.options import ContextOptions, Fleet, devices_or_context
from hetero.splitting.layers import Layer
from hetero.train.replica import mixing_layers
from hetero.train.trainer import can_train

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["SplitFleet", "as_tensor", "check_training"]


def check_training(model: torch.nn.Module, loss: object, optimizer: object) -> None:
    """Raise BadValueError where a split cannot train a model so."""
    if (loss is None) != (optimizer is None):
        absent = "loss" if loss is None else "optimizer"
        raise BadValueError(f"to train a split, it needs a loss and an optimizer: there is no {absent}")
    if loss is None:
        return
    if not callable(optimizer):
        raise BadValueError(
            f"{type(optimizer).__name__} is no function of parameters, and every stage makes an optimizer of its own",
            remedy="write optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3)",
        )
    mixing = mixing_layers(model, all_train=not model.training)
    if mixing:
        raise BadValueError(
            f"{mixing[0]} takes its statistics from the samples of a micro-batch, so the result would depend on it",
            remedy="use torch.nn.GroupNorm, or put these layers into eval mode",
        )


def as_tensor(what: str, value: object) -> torch.Tensor:
    """Return a tensor or array with samples as a tensor; raises BadValueError for anything else."""
    if isinstance(value, torch.Tensor):
        found = value.detach()
    elif hasattr(value, "__array__"):
        found = torch.from_numpy(np.ascontiguousarray(value))
    else:
        raise BadValueError(f"{what} is a {type(value).__name__}", remedy="give one tensor or array, the samples first")
    if found.dim() == 0 or not len(found):
        raise BadValueError(f"{what} has no samples", remedy="give a tensor whose first dimension is the samples")
    return found


class SplitFleet:
    """The devices that a model may be split over, and what is emulated of them.

    Parameters
    ----------
    devices, context
        The fleet and how it is opened, or a Context that is open.
    slow
        By short device id, the share of speed at layers of a class.
    layers
        Of the model.

    Attributes
    ----------
    ctx
        The Context; `lent` where the user opened it.
    slow
        By device id.
    notes
        What is to be known of devices.

    Raises
    ------
    BadValueError
        There are less than two devices, or `slow` names what is not there.
    """

    def __init__(
        self,
        devices: Fleet | Context,
        context: ContextOptions | None,
        slow: Mapping[str, Mapping[str, float]],
        layers: Sequence[Layer],
    ) -> None:
        fleet, lent = devices_or_context(devices, context)
        self.lent = lent is not None
        self.ctx: Context = lent or (context or ContextOptions()).open(fleet, history=False)
        self.notes: list[str] = []
        try:
            self.devices = self._usable()
            self.slow = self._checked(slow, layers)
        except BaseException:
            self.close()
            raise

    def _usable(self) -> list[Device]:
        found = [device for device in self.ctx.devices if can_train(device)]
        if len(found) < 2:
            names = ", ".join(device.short for device in found) or "none"
            raise BadValueError(
                f"a split takes two devices or more that torch can use, and here is {names}",
                remedy="name more, as in devices='2xcpu', or call the model as it is",
            )
        return found

    def _checked(self, slow: Mapping[str, Mapping[str, float]], layers: Sequence[Layer]) -> dict[str, dict[str, float]]:
        ids = {device.short: device.id for device in self.devices}
        kinds = {type(part).__name__ for layer in layers for part in layer.module.modules()}
        for name, fracs in slow.items():
            if name not in ids:
                known = ", ".join(ids)
                raise BadValueError(
                    f"slow: {name!r} is no device here{did_you_mean(name, ids)}", remedy=f"the devices are {known}"
                )
            _check_shares(name, fracs, kinds)
        return {ids[name]: dict(fracs) for name, fracs in slow.items()}

    def close(self) -> None:
        """Release the devices where they were opened here."""
        if not self.lent:
            self.ctx.close()


def _check_shares(name: str, fracs: object, kinds: set[str]) -> None:
    if not isinstance(fracs, Mapping):
        raise BadValueError(f"slow: {name} has {fracs!r}", remedy="give shares of speed by class, {'Conv2d': 0.3}")
    for kind, frac in fracs.items():
        if kind not in kinds:
            raise BadValueError(
                f"slow: the model has no {kind!r}{did_you_mean(kind, kinds)}", remedy="name a class of its layers"
            )
        if not isinstance(frac, int | float) or not 0.0 < frac <= 1.0:
            raise BadValueError(f"slow: {kind} at {frac!r}", remedy="give a share of speed above 0, at most 1")
