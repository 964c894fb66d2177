"""Slowing a stage down on purpose: a throttled device, and an emulated device that is slow at some kinds of layer.

In: a frame, shares of speed. Out: seconds that a part of the work took, sleep included. It must not change a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hetero.drive.frame import Frame
from hetero.drive.throttle import Throttle
from hetero.floor import clock
from hetero.floor.contexts import transparent

if TYPE_CHECKING:
    import torch

__all__ = ["Pace", "slow_layers"]


class Pace:
    """Times what a device does micro-batch by micro-batch, and slows it down to the share of speed that it has.

    A stage is one long task, and a task is throttled at its end: too late for the stage that waits. So the stage
    sleeps after each part by itself, and tells the frame for how much CPU time.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._throttle = Throttle(frame.device.throttle_frac)
        self.busy_s = 0.0

    @transparent
    def part(self) -> Iterator[None]:
        """Do a part of the work inside."""
        begun_s = clock.monotonic_s()
        self._throttle.restart()
        yield
        if self._throttle.active:
            self._throttle.pause()
            self._frame.throttled_cpu_s += self._throttle.slept_for_s
        elif not self._frame.device.is_host:
            self._frame.backend.synchronize()
        self.busy_s += clock.monotonic_s() - begun_s


def slow_layers(module: torch.nn.Module, fracs: Mapping[str, float]) -> None:
    """Slow the layers of some classes down to a share of the device's speed.

    Parameters
    ----------
    module : whose parts are slowed down, forward and backward
    fracs : share of speed by class name, as in {'Conv2d': 0.3}

    Notes
    -----
    Backward it is the last operation of the layer that counts: all of a layer that is one operation, as convolutions
    and linear layers are.
    """
    for part in module.modules():
        frac = fracs.get(type(part).__name__, 1.0)
        if frac < 1.0:
            _slow(part, frac)


def _slow(part: torch.nn.Module, frac: float) -> None:
    forward, backward = Throttle(frac), Throttle(frac)

    def done(_: object, __: object, output: object) -> None:
        forward.pause()
        node = getattr(output, "grad_fn", None)
        if node is not None:
            node.register_prehook(backward.restart)
            node.register_hook(backward.pause)

    part.register_forward_pre_hook(forward.restart)
    part.register_forward_hook(done)
