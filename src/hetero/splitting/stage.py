"""A stage: consecutive layers of a model on one device, and the loop in which they compute micro-batch by micro-batch.

In: the layers, shares of speed, what the stage before gives. Out: outputs, or trained parameters that stay here until
they are fetched. It must not know why the layers are here.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from hetero.backends.registry import torch_place
from hetero.drive.frame import Frame, running_frame
from hetero.drive.throttle import Throttle
from hetero.floor import clock
from hetero.floor.contexts import transparent
from hetero.floor.errors import HeteroError
from hetero.plan.training.stages import one_forward_one_backward
from hetero.splitting.transport import PackedTensor, StageChannel, loaded, packed, unpacked
from hetero.train.keyed_random import KeyedRandom
from hetero.train.losses import SummedLoss
from hetero.train.values import NotANumberError

if TYPE_CHECKING:
    from hetero.model.device import Device
    from hetero.train.values import OptimizerMaker

__all__ = [
    "Pace",
    "StageAction",
    "StageJob",
    "StageLostError",
    "StageOutput",
    "StageParts",
    "drop_stage",
    "fetch_stage",
    "run_stages",
    "slow_layers",
]


StageAction: TypeAlias = Literal["load", "predict", "train"]


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
    module
        Whose parts are slowed down, forward and backward.
    fracs
        Share of speed by class name, as in {'Conv2d': 0.3}.

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


_AHEAD = 4


class StageLostError(HeteroError):
    """The parameters that a stage has trained are gone with its worker."""


@dataclass(frozen=True, slots=True)
class StageParts:
    """What a stage is made of, as it travels.

    Attributes
    ----------
    modules
        The layers.
    first
        Number of the first of them in the model.
    all_train
        True where the model was given in eval mode, so that all of it trains; else its own modes count.
    loss
        Of the last stage, None elsewhere and where nothing is trained.
    optimizer
        Makes an optimizer of the stage's parameters; None where nothing is trained.
    optimizer_state
        Where that begins, None at the beginning.
    """

    modules: tuple[torch.nn.Module, ...]
    first: int
    all_train: bool = False
    loss: object = None
    optimizer: OptimizerMaker | None = None
    optimizer_state: bytes | None = None


@dataclass(frozen=True, slots=True)
class StageJob:
    """One pass of a batch through the stages, or only their making.

    Attributes
    ----------
    action
        'load', 'predict' or 'train'.
    number
        Of the split in its program.
    generation
        Grows when all stages are to begin anew from what the program has.
    devices
        Ids in the order of the stages.
    slow
        By device id, the share of speed at layers of a class.
    layers
        Of the whole model.
    micro_batch
        Samples of one.
    begun, step
        Steps done where this generation began, and by now.
    seed
        Of dropout.
    """

    action: StageAction
    number: int
    generation: int
    devices: tuple[str, ...]
    slow: Mapping[str, Mapping[str, float]]
    layers: int
    micro_batch: int
    begun: int
    step: int
    seed: int


@dataclass(slots=True)
class StageOutput:
    """What a stage has to say of a pass.

    Attributes
    ----------
    busy_s
        Seconds that it computed.
    outputs
        Of the last stage in prediction.
    loss
        Of the last stage in training.
    """

    busy_s: float
    outputs: list[PackedTensor] = field(default_factory=list)
    loss: float = 0.0


class _Stage:
    """The layers of one stage, as they stay in the worker from pass to pass."""

    def __init__(self, parts: StageParts, job: StageJob, place: str, fracs: Mapping[str, float]) -> None:
        self.generation, self.step = job.generation, job.begun
        self.first, self.layers = parts.first, job.layers
        self.module = torch.nn.ModuleList(parts.modules).to(place)
        self.modes = [(part, part.training or parts.all_train) for part in self.module.modules()]
        self.place = place
        self.random = KeyedRandom(job.seed)
        loss = parts.loss.to(place) if isinstance(parts.loss, torch.nn.Module) else parts.loss
        self.loss = None if loss is None else SummedLoss(loss)
        self.trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self.optimizer = parts.optimizer(self.trained) if parts.optimizer and self.trained else None
        if self.optimizer is not None and parts.optimizer_state is not None:
            self.optimizer.load_state_dict(torch.load(io.BytesIO(parts.optimizer_state), weights_only=True))
        slow_layers(self.module, fracs)

    def to_training(self, training: bool) -> None:
        for part, mode in self.modes:
            part.training = mode and training

    def forward(self, value: object, ids: Sequence[int] | None = None) -> torch.Tensor:
        """Run the layers; with the ids of the samples, random numbers are theirs whoever computes them."""
        for number, layer in enumerate(self.module, self.first):
            keyed: AbstractContextManager[object] = nullcontext()
            if ids is not None:
                keyed = self.random.begin(self.step * self.layers + number, ids)
            with keyed:
                value = layer(value)
        return value

    def move(self, factor: float) -> None:
        """Step the optimizer with the gradients times a factor."""
        for parameter in self.trained:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        if self.optimizer is not None:
            self.optimizer.step()
        self.step += 1


_stages: dict[tuple[int, str], _Stage] = {}


def _stage(job: StageJob, stage: int, blobs: Sequence[object], device: Device) -> _Stage:
    """Return this worker's stage, made anew where it is not there.

    Raises
    ------
    StageLostError
        It was trained, and is not there any more.
    """
    key = job.number, device.id
    if key not in _stages or _stages[key].generation != job.generation:
        parts = loaded(blobs[stage], running_frame())
        _stages[key] = _Stage(parts, job, torch_place(device), job.slow.get(device.id, {}))
    if _stages[key].step != job.step:
        raise StageLostError(f"the worker of {device.short} was started anew, and what it had trained is gone")
    return _stages[key]


def drop_stage(number: int) -> None:
    """Release the stage of a split; runs as a task."""
    _stages.pop((number, running_frame().device.id), None)


def fetch_stage(number: int, step: int) -> tuple[list[PackedTensor], bytes | None]:
    """Return the state of a stage: its parameters and buffers in order, and its optimizer's; runs as a task.

    Raises
    ------
    StageLostError
        It is not there any more.
    """
    device = running_frame().device
    stage = _stages.get((number, device.id))
    if stage is None or stage.step != step:
        raise StageLostError(f"the worker of {device.short} was started anew, and what it had trained is gone")
    state = [packed(tensor) for tensor in stage.module.state_dict().values()]
    if stage.optimizer is None:
        return state, None
    content = io.BytesIO()
    torch.save(stage.optimizer.state_dict(), content)
    return state, content.getvalue()


def run_stages(
    job: StageJob, blobs: Sequence[object], inputs: PackedTensor | None, targets: PackedTensor | None
) -> list[StageOutput] | None:
    """Be one stage while a batch passes; runs as one member of a group task.

    Returns
    -------
    list of Said
        By stage, where the result of the task is taken from; None elsewhere.
    """
    frame = running_frame()
    channel = StageChannel(frame, job.devices)
    run = _StagePass(job, _stage(job, channel.stage, blobs, frame.device), channel, Pace(frame))
    if job.action == "predict":
        assert inputs is not None
        run.predict(inputs)
    elif job.action == "train":
        assert inputs is not None
        assert targets is not None
        run.train(inputs, targets)
    return channel.gather(run.said())


class _StagePass:
    """One batch on its way through one stage."""

    def __init__(self, job: StageJob, stage: _Stage, channel: StageChannel, pace: Pace) -> None:
        self.stage, self.channel, self.pace = stage, channel, pace
        self.micro_batch = job.micro_batch
        self.is_first, self.is_last = channel.stage == 0, channel.stage == channel.stages - 1
        self.before, self.after = channel.stage - 1, channel.stage + 1
        self.samples = 0
        self.flying: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.outputs: list[PackedTensor] = []
        self.loss = self.weight = 0.0

    def said(self) -> StageOutput:
        return StageOutput(self.pace.busy_s, self.outputs, self.loss)

    def _ids(self, number: int) -> range:
        return range(number * self.micro_batch, min((number + 1) * self.micro_batch, self.samples))

    def _cut(self, batch: PackedTensor, number: int) -> torch.Tensor:
        """Return a micro-batch of a batch, as a copy: layers may compute in place."""
        ids = self._ids(number)
        return unpacked(batch._replace(array=batch.array[ids.start : ids.stop].copy()), self.stage.place)

    def _take(self, inputs: PackedTensor, number: int) -> torch.Tensor:
        return (
            self._cut(inputs, number) if self.is_first else unpacked(self.channel.recv(self.before), self.stage.place)
        )

    # --- prediction ----------------------------------------------------------------------------------------

    def predict(self, inputs: PackedTensor) -> None:
        """Run a batch forward; a stage is at most four micro-batches ahead of the one behind it."""
        self.samples = len(inputs.array)
        count = -(-self.samples // self.micro_batch)
        self.stage.to_training(False)
        with torch.no_grad():
            for number in range(count):
                value = self._take(inputs, number)
                with self.pace.part():
                    output = packed(self.stage.forward(value))
                self._pass_on(output, number)
        for _ in range(0 if self.is_last else min(_AHEAD, count)):
            self.channel.recv(self.after)

    def _pass_on(self, output: PackedTensor, number: int) -> None:
        if self.is_last:
            self.outputs.append(output)
        else:
            if number >= _AHEAD:
                self.channel.recv(self.after)
            self.channel.send(output, self.after)
        if not self.is_first:
            self.channel.send(number, self.before)

    # --- training ------------------------------------------------------------------------------------------

    def train(self, inputs: PackedTensor, targets: PackedTensor) -> None:
        """Run a batch forward and backward, and let the optimizer move once all of it is through."""
        self.samples = len(inputs.array)
        count = -(-self.samples // self.micro_batch)
        self.stage.to_training(True)
        for parameter in self.stage.trained:
            parameter.grad = None
        for forward, number in one_forward_one_backward(self.channel.stage, self.channel.stages, count):
            if forward:
                self._forward(inputs, targets, number)
            else:
                self._backward(number)
        factor = self._agreed_factor()
        with self.pace.part():
            self.stage.move(factor)

    def _forward(self, inputs: PackedTensor, targets: PackedTensor, number: int) -> None:
        value = self._take(inputs, number)
        with self.pace.part():
            if not self.is_first and value.is_floating_point():
                value.requires_grad_()
            entry = value.clone() if value.requires_grad else value
            output = self.stage.forward(entry, self._ids(number))
            if self.is_last:
                output = self._lost(output, self._cut(targets, number))
            self.flying[number] = value, output
        if not self.is_last:
            self.channel.send(packed(output), self.after)

    def _lost(self, output: object, target: object) -> torch.Tensor:
        assert self.stage.loss is not None
        total, weight, _ = self.stage.loss.sums(output, target)
        self.loss += float(total.detach())
        self.weight += float(weight)
        return total / self.samples

    def _backward(self, number: int) -> None:
        value, output = self.flying.pop(number)
        gradient = None if self.is_last else self.channel.recv(self.after)
        with self.pace.part():
            if output.requires_grad and (self.is_last or gradient is not None):
                output.backward(None if gradient is None else unpacked(gradient, self.stage.place))
        if not self.is_first:
            self.channel.send(None if value.grad is None else packed(value.grad), self.before)

    def _agreed_factor(self) -> float:
        """Return what turns Σ l / n into the loss that was asked for; the last stage knows, when all is through.

        Raises
        ------
        NotANumberError
            The loss is not a number; no stage moves.
        """
        if not self.is_last:
            factor: float = self.channel.recv(self.channel.stages - 1)
            return factor
        assert self.stage.loss is not None
        if self.loss - self.loss != 0.0:
            raise NotANumberError(f"the loss is not a number at step {self.stage.step}")
        divisor = (self.weight or 1.0) if self.stage.loss.divides else 1.0
        self.loss /= divisor
        for stage in range(self.channel.stages - 1):
            self.channel.send(self.samples / divisor, stage)
        return self.samples / divisor
