"""`hetero.split`: one model over several devices, consecutive layers on each, so that the pipelined step is fastest.

In: a model, devices, a sample. Out: outputs of the whole model, or its trained parameters, and what was predicted.
It must not compute a layer: the stages do, each on its device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import torch

from hetero.floor import clock, settings
from hetero.floor.errors import BadValueError, HeteroError, did_you_mean
from hetero.model.device import Device
from hetero.session.signature import register
from hetero.session.tasks import task
from hetero.train.replica import mixing_layers
from hetero.train.split_choice import Choice, Costs, choose, given_stages
from hetero.train.split_cut import Layer, chain_of, run_through
from hetero.train.split_measure import LinkCost, Measuring, measure_layers, measure_links, only_meet
from hetero.train.split_report import SplitReport, StageReport, device_note
from hetero.train.split_stage import Said, StageJob, StageParts, drop_stage, fetch_stage, run_stages
from hetero.train.split_talk import Packed, packed, unpacked
from hetero.train.trainer import can_train
from hetero.train.values import NotANumberError, TrainingError

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["Split", "split"]

_MOST_DEVICES = 8
_CALLS = 5
_PATIENCE_S = 30.0
_PATIENCE_STEPS = 20.0
_MEASURING_S = 600.0
_numbers = itertools.count(1)
register(StageJob, lambda job: (f"{job.action} of split {job.number}, {job.generation}", 0.0))
register(Measuring, lambda work: (f"measuring for split {work.number}", 0.0))


def split(
    model: Any,
    devices: str | Sequence[Any] | Context | None,
    sample: Any,
    *,
    loss: Any = None,
    optimizer: Callable[[Any], Any] | None = None,
    micro_batches: int = 8,
    place: str | Sequence[tuple[str, int]] = "auto",
    slow: Mapping[str, Mapping[str, float]] | None = None,
    seed: int | None = None,
    config: Any = None,
    set: Sequence[str] | Mapping[str, Any] = (),
    trace: str | Path | None = None,
) -> Split:
    """Split a model by layers over devices.

    Parameters
    ----------
    model : a `torch.nn.Module` that is a chain: an `nn.Sequential`, or one whose forward torch.fx can trace
    devices : two or more, as `hetero.Context` takes them, or a Context that is open; None for every sound device
    sample : one micro-batch as the model takes it: a tensor or an array, the samples first
    loss, optimizer : to train it: a loss as for the Trainer, and a function of parameters that gives an optimizer
    micro_batches : of a batch, as far as the plan goes; a batch may have any number
    place : 'auto', or (device, how many layers) of each stage in order
    slow : emulates devices that are slow at some layers: by device, the share of speed by class of layer, as in
        {'cpu:1': {'Conv2d': 0.3}}; the device sleeps for the rest of the time
    seed : of dropout; HETERO_SEED where none is given
    config, set, trace : as for `hetero.Context`

    Returns
    -------
    Split
        Call it with inputs for outputs, `step` with inputs and targets to train.

    Raises
    ------
    BadValueError
        The model cannot be cut, the sample does not fit it, or there is but one device; the message says why.
    NothingFitsError
        The devices together do not hold the model, or a layer runs on none of them.

    Notes
    -----
    Every layer is measured on every device, and tensors between them; then consecutive layers go where
    Σ t + (m − 1) · max t is least, see `hetero.plan.stages`. One device takes all of it where the best split is not
    predicted to be at least 3 % faster.
    """
    if not isinstance(model, torch.nn.Module):
        raise BadValueError(f"{type(model).__name__} is no model", remedy="give a torch.nn.Module")
    _check_training(model, loss, optimizer)
    if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:
        raise BadValueError(f"micro_batches={micro_batches!r} is not allowed", remedy="give a whole number, 1 or more")
    if isinstance(place, str) and place != "auto":
        raise BadValueError(f"place={place!r} is not allowed", remedy="give 'auto', or [(device, layers), …]")
    value = _tensor("sample", sample)
    layers, values = run_through(chain_of(model, loss is not None), value)
    opening = {"config": config, "set": set, "trace": trace}
    fleet = _Fleet(devices, opening, {name: dict(fracs) for name, fracs in (slow or {}).items()}, layers)
    try:
        made = Split(model, fleet, layers, values, (loss, optimizer), micro_batches, place, seed)
    except BaseException:
        fleet.close()
        raise
    return made


def _check_training(model: Any, loss: Any, optimizer: Any) -> None:
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
    mixing = mixing_layers(model)
    if mixing:
        raise BadValueError(
            f"{mixing[0]} takes its statistics from the samples of a micro-batch, so the result would depend on it",
            remedy="use torch.nn.GroupNorm, or put these layers into eval mode",
        )


def _tensor(what: str, value: Any) -> Any:
    if torch.is_tensor(value):
        found = value.detach()
    elif hasattr(value, "__array__"):
        found = torch.from_numpy(np.ascontiguousarray(value))
    else:
        raise BadValueError(f"{what} is a {type(value).__name__}", remedy="give one tensor or array, the samples first")
    if found.dim() == 0 or not len(found):
        raise BadValueError(f"{what} has no samples", remedy="give a tensor whose first dimension is the samples")
    return found


class _Fleet:
    """The devices that a model may be split over, and what is emulated of them."""

    def __init__(self, devices: Any, opening: Mapping[str, Any], slow: dict[str, dict[str, float]], layers: Any) -> None:
        self.lent = hasattr(devices, "submit_call")
        self.ctx: Context = devices if self.lent else _opened(devices, opening)
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
                remedy="name more, as in devices='cpu:1,cpu:1', or call the model as it is",
            )
        return found

    def _checked(self, slow: dict[str, dict[str, float]], layers: Sequence[Layer]) -> dict[str, dict[str, float]]:
        ids = {device.short: device.id for device in self.devices}
        kinds = {type(part).__name__ for layer in layers for part in layer.module.modules()}
        for name, fracs in slow.items():
            if name not in ids:
                known = ", ".join(ids)
                raise BadValueError(
                    f"slow: {name!r} is no device here{did_you_mean(name, ids)}", remedy=f"the devices are {known}"
                )
            for kind, frac in fracs.items():
                if kind not in kinds:
                    raise BadValueError(
                        f"slow: the model has no {kind!r}{did_you_mean(kind, kinds)}",
                        remedy="name a class of its layers",
                    )
                if not 0.0 < frac <= 1.0:
                    raise BadValueError(f"slow: {kind} at {frac!r}", remedy="give a share of speed above 0, at most 1")
        return {ids[name]: fracs for name, fracs in slow.items()}

    def close(self) -> None:
        if not self.lent:
            self.ctx.close()


def _opened(devices: Any, opening: Mapping[str, Any]) -> Context:
    from hetero.session.context import Context

    return Context(devices=devices, history=False, **opening)


class Split:
    """A model over several devices; made by `hetero.split`.

    Attributes
    ----------
    model : the whole; it has the trained parameters after `gather`
    layers : what it was cut into
    notes : what is to be known of devices

    Notes
    -----
    The stages stay in the workers. As a `with` block it brings trained parameters home at the end.
    """

    def __init__(
        self,
        model: Any,
        fleet: _Fleet,
        layers: Sequence[Layer],
        values: Sequence[Any],
        training: tuple[Any, Any],
        micro_batches: int,
        place: str | Sequence[tuple[str, int]],
        seed: int | None,
    ) -> None:
        self.model, self.layers, self.notes = model, tuple(layers), fleet.notes
        self._fleet, self._ctx = fleet, fleet.ctx
        self._loss, self._optimizer = training
        self._number = next(_numbers)
        self._sample = values[0]
        self._seed = settings.seed() if seed is None else seed
        costs = self._measure(values)
        if isinstance(place, str):
            self._choice = choose(costs, micro_batches, self._loss is not None)
        else:
            self._choice = given_stages(costs, place, micro_batches, self._loss is not None)
        self._devices = tuple(costs.devices[stage.device] for stage in self._choice.plan.stages)
        self._generation = self._begun = self._step = 0
        self._optimizer_states: list[bytes | None] = [None] * len(self._devices)
        self._passes: list[tuple[int, float, list[Said]]] = []
        self._blobs: list[Any] = []
        self._begin_anew()
        self._pass("load")

    # --- measuring and making ------------------------------------------------------------------------------

    def _measure(self, values: Sequence[Any]) -> Costs:
        """Measure links first: torch is up in every worker then."""
        devices = self._fleet.devices
        links, call_s = self._links(max(value.nbytes for value in values))
        work = Measuring(self._number, self._optimizer, self._fleet.slow)
        blobs = self._ctx.put([_bytes(layer.module) for layer in self.layers])
        inputs = self._ctx.put([packed(value) for value in values[:-1]])
        asked = [task(measure_layers, on=(device.id,), timeout=_MEASURING_S, crashes=1) for device in devices]
        found = self._ctx.gather([self._ctx.submit(one, work, blobs, inputs) for one in asked])
        devices, found = self._fastest(devices, found)
        return Costs(self.layers, devices, found, links, [value.nbytes for value in values[1:]], call_s)

    def _links(self, nbytes: int) -> tuple[dict[tuple[str, str], LinkCost], tuple[float, float]]:
        ids = tuple(device.id for device in self._fleet.devices)
        said = self._ctx.run(
            task(measure_links, on=ids, devices=len(ids), timeout=_MEASURING_S, crashes=1), ids, nbytes
        )
        found = {pair: cost for links in said for pair, cost in links.items()}
        return found, (self._call_s(ids[:1]), self._call_s(ids))

    def _call_s(self, ids: tuple[str, ...]) -> float:
        taken = []
        for _ in range(_CALLS):
            begun_s = clock.monotonic_s()
            self._ctx.run(task(only_meet, on=ids, devices=len(ids)), ids)
            taken.append(clock.monotonic_s() - begun_s)
        return median(taken)

    def _fastest(self, devices: list[Device], found: list[Any]) -> tuple[list[Device], list[Any]]:
        """Leave out all but the eight that run most layers soonest."""
        order = sorted(range(len(devices)), key=lambda one: (sum(cost.seconds for cost in found[one]), one))
        taken = sorted(order[:_MOST_DEVICES])
        self.notes += [f"{devices[one].short} is left out: eight devices are planned for" for one in order[8:]]
        return [devices[one] for one in taken], [found[one] for one in taken]

    def _modules(self) -> list[tuple[Any, ...]]:
        stages = self._choice.plan.stages
        return [tuple(layer.module for layer in self.layers[stage.first : stage.end]) for stage in stages]

    def _begin_anew(self) -> None:
        """Let all stages be made of the parameters that the model has here."""
        self._generation += 1
        self._step = self._begun
        last = len(self._devices) - 1
        self._blobs = [
            self._ctx.put(
                _bytes(
                    StageParts(
                        modules,
                        self._choice.plan.stages[number].first,
                        self._loss if number == last else None,
                        self._optimizer,
                        self._optimizer_states[number],
                    )
                )
            )
            for number, modules in enumerate(self._modules())
        ]

    # --- running -------------------------------------------------------------------------------------------

    def __call__(self, inputs: Any) -> Any:
        """Give the model's outputs, in eval mode.

        Parameters
        ----------
        inputs : as the sample, any number of samples

        Returns
        -------
        torch.Tensor
            On the host.
        """
        value = self._inputs(inputs)
        said = self._pass("predict", value)
        return torch.cat([unpacked(output) for output in said[-1].outputs])

    def step(self, inputs: Any, targets: Any) -> float:
        """Train with one batch: forward, backward, and one step of every stage's optimizer.

        Parameters
        ----------
        inputs : as the sample, any number of samples
        targets : as many, as the loss takes them

        Returns
        -------
        float
            The loss of the batch before the step.

        Raises
        ------
        NotANumberError
            The loss is not a number; nothing has moved.
        TrainingError
            A stage was lost; the split is back where `gather` was last called.
        """
        if self._loss is None:
            raise BadValueError("this split has no loss", remedy="give hetero.split(…, loss=…, optimizer=…)")
        value, wanted = self._inputs(inputs), _tensor("targets", targets)
        if len(value) != len(wanted):
            raise BadValueError(f"{len(value)} inputs and {len(wanted)} targets", remedy="give as many of both")
        said = self._pass("train", value, wanted)
        self._step += 1
        return said[-1].loss

    def _inputs(self, inputs: Any) -> Any:
        value, sample = _tensor("inputs", inputs), self._sample
        if value.shape[1:] != sample.shape[1:] or value.dtype != sample.dtype:
            raise BadValueError(
                f"inputs are {_form(value)}, and the split was made for {_form(sample)}",
                remedy="give samples of that form, or make another split",
            )
        return value

    def _pass(self, action: str, inputs: Any = None, targets: Any = None) -> list[Said]:
        ids = tuple(device.id for device in self._devices)
        micro_batch = len(self._sample)
        count = 0 if inputs is None else -(-len(inputs) // micro_batch)
        steps = (self._number, self._generation, ids, self._fleet.slow, len(self.layers), micro_batch)
        job = StageJob(action, *steps, self._begun, self._step, self._seed)
        limit_s = _PATIENCE_S + _PATIENCE_STEPS * self._choice.predicted_s(count)
        crashes = 0 if action == "train" else 2
        run = task(run_stages, on=ids, devices=len(ids), timeout=limit_s, crashes=crashes, name=f"split {action}")
        begun_s = clock.monotonic_s()
        try:
            said: list[Said] = self._ctx.run(run, job, self._blobs, self._put(inputs), self._put(targets))
        except HeteroError as error:
            if self._loss is None or isinstance(error, NotANumberError):
                raise
            raise self._lost(error) from error
        if inputs is not None:
            self._passes.append((len(inputs), clock.monotonic_s() - begun_s, said))
        return said

    def _put(self, value: Any) -> Any:
        return None if value is None else self._ctx.put(packed(value))

    def _lost(self, error: HeteroError) -> TrainingError:
        step = self._step
        self._begin_anew()
        return TrainingError(
            f"step {step} is lost: {error.problem}",
            remedy=f"the split is back at step {self._begun}, of the last gather(): go on from there",
        )

    # --- parameters ----------------------------------------------------------------------------------------

    def gather(self) -> Any:
        """Bring the trained parameters into the model, and give it; a lost stage goes back to here.

        Raises
        ------
        TrainingError
            A stage was lost; the split is back where `gather` was last called.
        """
        if self._step == self._begun:
            return self.model
        asked = [task(fetch_stage, on=(device.id,), name="split gather") for device in self._devices]
        try:
            found = self._ctx.gather([self._ctx.submit(one, self._number, self._step) for one in asked])
        except HeteroError as error:
            raise self._lost(error) from error
        with torch.no_grad():
            for modules, (state, _) in zip(self._modules(), found, strict=True):
                _load(modules, state)
        self._optimizer_states = [optimizer_state for _, optimizer_state in found]
        self._begun = self._step
        return self.model

    # --- seeing --------------------------------------------------------------------------------------------

    def report(self) -> SplitReport:
        """Give the stages with what was predicted and measured, and the best device alone beside them."""
        micro_batch = len(self._sample)
        samples = self._passes[-1][0] if self._passes else micro_batch * self._choice.chain.micro_batches
        count = -(-samples // micro_batch)
        alone = self._choice.alone
        alone_s = self._choice.alone_s(count)
        return SplitReport(
            model=type(self.model).__name__,
            training=self._loss is not None,
            stages=tuple(self._stage_report(number) for number in range(len(self._devices))),
            micro_batch=micro_batch,
            micro_batches=count,
            predicted_samples_per_s=samples / self._choice.predicted_s(count),
            measured_samples_per_s=median(n / s for n, s, _ in self._passes) if self._passes else None,
            passes=len(self._passes),
            alone=None if alone is None else self._fleet.devices[alone.stages[0].device].short,
            alone_samples_per_s=None if alone_s is None else samples / alone_s,
            reason=self._choice.reason,
            notes=tuple(self.notes),
        )

    def _stage_report(self, number: int) -> StageReport:
        stage, device = self._choice.plan.stages[number], self._devices[number]
        busy_s = [said[number].busy_s * len(self._sample) / samples for samples, _, said in self._passes]
        chain = self._choice.chain
        return StageReport(
            device=device.short,
            note=device_note(device, self._fleet.slow.get(device.id, {})),
            layers=(self.layers[stage.first].name, self.layers[stage.end - 1].name),
            count=stage.end - stage.first,
            predicted_s=stage.period_s,
            measured_s=median(busy_s) if busy_s else None,
            need_bytes=int(chain.need_bytes(stage.first, stage.end, len(self._devices) - 1 - number)),
        )

    def __repr__(self) -> str:
        return str(self.report())

    # --- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the devices back; what was trained since the last `gather` is gone."""
        if self._fleet.lent and not self._ctx.closed:
            for device in self._devices:
                self._ctx.submit(task(drop_stage, on=(device.id,)), self._number)
        self._fleet.close()

    def __enter__(self) -> Split:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                self.gather()
        finally:
            self.close()


def _bytes(value: Any) -> Any:
    return np.frombuffer(cloudpickle.dumps(value), dtype=np.uint8)


def _load(modules: Sequence[Any], state: Sequence[Packed]) -> None:
    own = torch.nn.ModuleList(modules).state_dict().values()
    for here, value in zip(own, state, strict=True):
        here.copy_(unpacked(value))


def _form(value: Any) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    return f"{kind} of shape (…, {', '.join(map(str, value.shape[1:]))})"
