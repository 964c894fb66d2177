"""Measuring for a split: how long each layer takes on a device and what it keeps, how long tensors travel.

In: layers, one input of each. Out: plain numbers. It must not place anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, isfinite
from statistics import median
from typing import TYPE_CHECKING

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray

from hetero.backends.registry import torch_place
from hetero.drive.frame import Frame, running_frame
from hetero.floor import clock
from hetero.model.device import Device
from hetero.plan.training.stages import LayerChain
from hetero.session.signature import register
from hetero.session.tasks import task
from hetero.splitting.fleet import SplitFleet
from hetero.splitting.layers import Layer
from hetero.splitting.stage import Pace, slow_layers
from hetero.splitting.transport import PackedTensor, StageChannel, loaded, packed, unpacked
from hetero.train.keyed_random import KeyedRandom

if TYPE_CHECKING:
    from hetero.train.values import OptimizerMaker

__all__ = [
    "LayerCost",
    "LinkCost",
    "Measuring",
    "SplitCosts",
    "as_bytes",
    "limit_bytes",
    "measure_layers",
    "measure_links",
    "only_meet",
    "survey",
]

_BUDGET_S = 0.1
_LEAST, _MOST = 2, 10
_PASSES = 4
_ROOM_FRAC = 0.7
_ROUND_TRIPS = 5

_MOST_DEVICES = 8
_CALLS = 5
_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Measuring:
    """How layers are to be measured.

    Attributes
    ----------
    number
        Of the split in its program.
    optimizer
        Makes an optimizer of parameters, None where nothing is trained.
    slow
        By device id, the share of speed at layers of a class.
    """

    number: int
    optimizer: OptimizerMaker | None
    slow: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What one layer costs on one device.

    Attributes
    ----------
    seconds
        Seconds of a micro-batch, the backward pass included where it is trained; inf where it cannot run.
    weight_bytes
        Bytes kept all the time: parameters, buffers, gradients, state of the optimizer.
    kept_bytes
        Bytes kept of a micro-batch for its backward pass.
    working_bytes
        Bytes of its input and output.
    reason
        Why it cannot run, '' where it can.
    """

    seconds: float
    weight_bytes: int = 0
    kept_bytes: int = 0
    working_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LinkCost:
    """How long a tensor takes from one device to another.

    Attributes
    ----------
    latency_s
        Seconds of a tensor of one number.
    s_per_byte
        Seconds each further byte takes.
    """

    latency_s: float
    s_per_byte: float

    def seconds(self, nbytes: float) -> float:
        """Predict the seconds of a tensor."""
        return self.latency_s + self.s_per_byte * nbytes


register(Measuring, lambda work: (f"measuring for split {work.number}", 0.0))


@dataclass(frozen=True, slots=True)
class SplitCosts:
    """What was measured.

    Attributes
    ----------
    layers, devices
        What.
    by_device
        Of each device, the cost of each layer.
    links
        By two device ids.
    output_bytes
        Of each layer.
    call_s
        Seconds that a call takes besides its work, on one device and on all of them.
    """

    layers: Sequence[Layer]
    devices: Sequence[Device]
    by_device: Sequence[Sequence[LayerCost]]
    links: Mapping[tuple[str, str], LinkCost]
    output_bytes: Sequence[int]
    call_s: tuple[float, float]

    def chain(self, micro_batches: int, training: bool) -> LayerChain:
        """Return the planner's view; in training a gradient comes back over every crossing."""
        rows = list(zip(*self.by_device, strict=True))
        return LayerChain(
            seconds=[[cost.seconds for cost in row] for row in rows],
            crossing_s=[self._crossings(nbytes, 2 if training else 1) for nbytes in self.output_bytes],
            weight_bytes=[max(cost.weight_bytes for cost in row) for row in rows],
            kept_bytes=[max(cost.kept_bytes for cost in row) for row in rows],
            working_bytes=[max(cost.working_bytes for cost in row) for row in rows],
            limit_bytes=[limit_bytes(device) for device in self.devices],
            micro_batches=micro_batches,
        )

    def _crossings(self, nbytes: int, times: int) -> list[list[float]]:
        ids = [device.id for device in self.devices]
        return [[0.0 if a == b else times * self.links[a, b].seconds(nbytes) for b in ids] for a in ids]


def measure_layers(work: Measuring, blobs: Sequence[object], inputs: Sequence[PackedTensor]) -> list[LayerCost]:
    """Measure layers one after the other, with one at a time in the device's memory; runs as a task.

    Parameters
    ----------
    blobs
        The pickled layers as arrays of bytes.
    inputs
        Of each layer.

    Notes
    -----
    A layer by itself finds its weights in the cache, which it does not in a model that is larger than that. So where
    all layers fit, they are measured once more one behind the other, as they will run; of each the median counts.
    """
    alone = [_measured(work, blob, value) for blob, value in zip(blobs, inputs, strict=True)]
    need = sum(cost.weight_bytes + cost.kept_bytes for cost in alone) + max(cost.working_bytes for cost in alone)
    if not all(isfinite(cost.seconds) for cost in alone) or need > _ROOM_FRAC * limit_bytes(running_frame().device):
        return alone
    taken = _LayerRow([_trial(work, blob, value) for blob, value in zip(blobs, inputs, strict=True)]).seconds()
    return [replace(cost, seconds=seconds) for cost, seconds in zip(alone, taken, strict=True)]


def limit_bytes(device: Device) -> float:
    """Return the bytes that a device holds, inf where nobody counts them."""
    return float(device.memory_limit_bytes or (not device.is_host and device.memory_bytes) or inf)


def _trial(work: Measuring, blob: object, value: PackedTensor) -> _LayerTrial:
    frame = running_frame()
    place = torch_place(frame.device)
    return _LayerTrial(loaded(blob, frame).to(place), unpacked(value, place), work, frame)


def _measured(work: Measuring, blob: object, value: PackedTensor) -> LayerCost:
    try:
        return _trial(work, blob, value).cost()
    except Exception as error:  # noqa: BLE001  a layer that a device cannot run may raise anything
        return LayerCost(inf, reason=" ".join(str(error).split())[:200] or type(error).__name__)


class _LayerTrial:
    """One layer on one device."""

    def __init__(self, module: torch.nn.Module, value: torch.Tensor, work: Measuring, frame: Frame) -> None:
        self.module, self.work, self.frame = module, work, frame
        self.value = value
        self.trains = work.optimizer is not None
        if self.trains:
            self.value.requires_grad_(value.is_floating_point())
        else:
            module.eval()
        self.output_bytes = 0
        slow_layers(module, work.slow.get(frame.device.id, {}))

    def cost(self) -> LayerCost:
        kept_bytes = self._kept_bytes()
        self._pass()
        taken: list[float] = []
        while len(taken) < _LEAST or (len(taken) < _MOST and sum(taken) < _BUDGET_S):
            pace = Pace(self.frame)
            with pace.part():
                self._pass()
            taken.append(pace.busy_s)
        working = self.value.nbytes + self.output_bytes
        return LayerCost(min(taken), self._weight_bytes(), kept_bytes, working)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Run the layer, with the random numbers of a pass where it trains."""
        if not self.trains:
            with torch.no_grad():
                return self.module(value)
        with KeyedRandom(0).begin(0, range(len(value))):
            return self.module(value)

    def _pass(self) -> None:
        output = self.forward(self.value.clone())
        self.output_bytes = output.nbytes
        if output.requires_grad:
            output.backward(torch.ones_like(output))

    def _kept_bytes(self) -> int:
        """Count what autograd keeps of one pass besides the parameters, every storage once."""
        if not self.trains:
            return 0
        own = {tensor.untyped_storage().data_ptr() for tensor in self.module.state_dict().values()}
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            self._pass()
        return sum(kept.values())

    def _weight_bytes(self) -> int:
        weights = sum(tensor.nbytes for tensor in self.module.state_dict().values())
        trained = [parameter for parameter in self.module.parameters() if parameter.grad is not None]
        if self.work.optimizer is None or not trained:
            return int(weights)
        optimizer = self.work.optimizer(trained)
        optimizer.step()
        state = [value for one in optimizer.state.values() for value in one.values() if torch.is_tensor(value)]
        return int(weights + sum(parameter.grad.nbytes for parameter in trained) + sum(one.nbytes for one in state))


class _LayerRow:
    """All layers on one device, one behind the other."""

    def __init__(self, trials: Sequence[_LayerTrial]) -> None:
        self._trials = trials
        self._paces = [[Pace(trial.frame) for _ in range(_PASSES + 1)] for trial in trials]

    def seconds(self) -> list[float]:
        """Return the s of each layer; the first pass does not count."""
        for number in range(_PASSES + 1):
            self._pass(number)
        return [median(pace.busy_s for pace in paces[1:]) for paces in self._paces]

    def _pass(self, number: int) -> None:
        outputs, value = [], self._trials[0].value
        for trial, paces in zip(self._trials, self._paces, strict=True):
            value = value.detach().requires_grad_(trial.trains and value.is_floating_point())
            with paces[number].part():
                outputs.append((value, trial.forward(value.clone())))
            value = outputs[-1][1]
        gradient = torch.ones_like(value)
        for paces, (given, output) in zip(reversed(self._paces), reversed(outputs), strict=True):
            if not output.requires_grad:
                return
            with paces[number].part():
                output.backward(gradient)
            gradient = given.grad


def measure_links(devices: Sequence[str], nbytes: int) -> list[dict[tuple[str, str], LinkCost]] | None:
    """Measure how long tensors travel between each two devices; runs as one member of a group task.

    Parameters
    ----------
    devices
        Ids.
    nbytes
        Of the largest tensor that will travel.
    """
    frame = running_frame()
    channel, place = StageChannel(frame, devices), torch_place(frame.device)
    found: dict[tuple[str, str], LinkCost] = {}
    for one, other in combinations(range(len(devices)), 2):
        if channel.stage in (one, other):
            small_s, large_s = (_one_way_s(channel, one, other, size, place) for size in (4, max(nbytes, 8)))
            cost = LinkCost(small_s, max(0.0, large_s - small_s) / max(nbytes, 8))
            found |= {(devices[one], devices[other]): cost, (devices[other], devices[one]): cost}
    return channel.gather(found)


def _one_way_s(channel: StageChannel, one: int, other: int, nbytes: int, place: str) -> float:
    """Return half of the time of a round trip between two stages, from device to device."""
    value = torch.zeros(nbytes // 4, device=place)
    return median(_round_trips(channel, one, other, value, place)) / 2


def _round_trips(channel: StageChannel, one: int, other: int, value: object, place: str) -> Iterator[float]:
    for number in range(_ROUND_TRIPS + 1):
        begun_s = clock.monotonic_s()
        if channel.stage == one:
            channel.send(packed(value), other)
            unpacked(channel.recv(other), place)
        else:
            channel.send(packed(unpacked(channel.recv(one), place)), one)
        if number:
            yield clock.monotonic_s() - begun_s


def only_meet(devices: Sequence[str]) -> bool:
    """Do what every pass through the stages costs besides its work; runs as one member of a group task."""
    return StageChannel(running_frame(), devices).gather(None) is not None


def as_bytes(value: object) -> NDArray[np.uint8]:
    """Pickle a value into an array, which travels without a copy."""
    return np.frombuffer(cloudpickle.dumps(value), dtype=np.uint8)


def survey(
    fleet: SplitFleet,
    layers: Sequence[Layer],
    values: Sequence[torch.Tensor],
    optimizer: OptimizerMaker | None,
    number: int,
) -> SplitCosts:
    """Measure links and layers; links first, since torch is up in every worker then.

    Parameters
    ----------
    values
        The input of each layer, and the output.
    optimizer
        Makes an optimizer of parameters, None where nothing is trained.
    number
        Of the split in this program.
    """
    ctx = fleet.ctx
    links, call_s = _links(fleet, max(value.nbytes for value in values))
    work = Measuring(number, optimizer, fleet.slow)
    blobs = ctx.put([as_bytes(layer.module) for layer in layers])
    inputs = ctx.put([packed(value) for value in values[:-1]])
    asked = [task(measure_layers, on=(device.id,), timeout=_LIMIT_S, crashes=1) for device in fleet.devices]
    found = ctx.gather([ctx.submit(one, work, blobs, inputs) for one in asked])
    devices, found = _fastest(fleet, found)
    return SplitCosts(layers, devices, found, links, [value.nbytes for value in values[1:]], call_s)


def _links(fleet: SplitFleet, nbytes: int) -> tuple[dict[tuple[str, str], LinkCost], tuple[float, float]]:
    ids = tuple(device.id for device in fleet.devices)
    asked = task(measure_links, on=ids, devices=len(ids), timeout=_LIMIT_S, crashes=1)
    found = {pair: cost for links in fleet.ctx.run(asked, ids, nbytes) for pair, cost in links.items()}
    return found, (_call_s(fleet, ids[:1]), _call_s(fleet, ids))


def _call_s(fleet: SplitFleet, ids: tuple[str, ...]) -> float:
    taken = []
    for _ in range(_CALLS):
        begun_s = clock.monotonic_s()
        fleet.ctx.run(task(only_meet, on=ids, devices=len(ids)), ids)
        taken.append(clock.monotonic_s() - begun_s)
    return median(taken)


def _fastest(fleet: SplitFleet, found: list[list[LayerCost]]) -> tuple[list[Device], list[list[LayerCost]]]:
    """Leave out all but the eight devices that run the whole soonest."""
    order = sorted(range(len(found)), key=lambda one: (sum(cost.seconds for cost in found[one]), one))
    for one in order[_MOST_DEVICES:]:
        fleet.notes.append(f"{fleet.devices[one].short} is left out: stages are planned for eight devices")
    taken = sorted(order[:_MOST_DEVICES])
    return [fleet.devices[one] for one in taken], [found[one] for one in taken]
