"""How the stages of a model talk: tensors from stage to stage, and what each has to say at the end.

In: tensors on a device. Out: the same tensors on the device of another stage. It must not decide when to talk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray

from hetero.drive.frame import Frame
from hetero.engines.base import Channel

__all__ = ["PackedTensor", "StageChannel", "loaded", "packed", "unpacked"]


class PackedTensor(NamedTuple):
    """A tensor on its way.

    Attributes
    ----------
    array
        NumPy array of its bits.
    dtype
        Torch's name, since NumPy lacks bfloat16.
    """

    array: NDArray[np.generic]
    dtype: str


def packed(tensor: torch.Tensor) -> PackedTensor:
    """Copy a tensor to the host, as it travels.

    Examples
    --------
    >>> packed(torch.ones(2, dtype=torch.bfloat16)).dtype
    'bfloat16'
    """
    here = tensor.detach().cpu().contiguous()
    bits = here.view(torch.int16) if here.dtype == torch.bfloat16 else here
    return PackedTensor(bits.numpy(), str(tensor.dtype).removeprefix("torch."))


def unpacked(value: PackedTensor, place: str = "cpu") -> torch.Tensor:
    """Return a tensor that travelled on torch's device `place`."""
    here = torch.from_numpy(value.array)
    return (here.view(torch.bfloat16) if value.dtype == "bfloat16" else here).to(place)


def loaded(blob: Any, frame: Frame) -> Any:
    """Unpickle what travelled as an array of bytes; a device with memory of its own holds it as its own array."""
    here = frame.backend.copy_out(blob) if frame.backend.owns(blob) else blob
    return cloudpickle.loads(memoryview(here.data))


T = TypeVar("T")


class StageChannel:
    """The line of stages, as one member of a group task sees it.

    Parameters
    ----------
    frame
        Of the running task.
    devices
        Ids of the devices in the order of the stages.

    Notes
    -----
    Ranks are given by the scheduler, so the members first tell each other which stage they are.
    """

    def __init__(self, frame: Frame, devices: Sequence[str]) -> None:
        self.stage = list(devices).index(frame.device.id)
        self.stages = len(devices)
        self._channel = frame.channel
        self._ranks = [0] if self._channel is None else self._introduce(self._channel)

    def _introduce(self, channel: Channel) -> list[int]:
        """Return the rank of each stage."""
        if channel.rank:
            channel.send(self.stage, 0)
            ranks: list[int] = channel.recv(0)
            return ranks
        stages = [self.stage, *(channel.recv(rank) for rank in range(1, self.stages))]
        ranks = [stages.index(stage) for stage in range(self.stages)]
        for rank in range(1, self.stages):
            channel.send(ranks, rank)
        return ranks

    def send(self, value: object, stage: int) -> None:
        """Send a value to another stage."""
        assert self._channel is not None
        self._channel.send(value, self._ranks[stage])

    def recv(self, stage: int) -> Any:
        """Wait for the next value from another stage."""
        assert self._channel is not None
        return self._channel.recv(self._ranks[stage])

    def gather(self, value: T) -> list[T] | None:
        """Return what every stage has to say, in order, where the result of the task is taken from; None elsewhere."""
        if self._channel is None:
            return [value]
        if self._channel.rank:
            self._channel.send(value, 0)
            return None
        return [value if stage == self.stage else self._channel.recv(rank) for stage, rank in enumerate(self._ranks)]
