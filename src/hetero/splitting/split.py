"""`hetero.train.split`: one model over several devices, consecutive layers on each, for the fastest pipelined step.

In: a model, devices, a sample. Out: outputs of the whole model, or its trained parameters, and what was predicted.
It must not compute a layer: the stages do, each on its device.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hetero.floor import clock, settings
from hetero.floor.deprecation import moved_keywords
from hetero.floor.errors import BadValueError, HeteroError
from hetero.floor.units import parse_seconds
from hetero.model.device import Device
from hetero.session.options import OPENING, ContextOptions, Fleet
from hetero.session.signature import register
from hetero.session.tasks import task
from hetero.splitting.choice import StageChoice, choose, given_stages
from hetero.splitting.fleet import SplitFleet, as_tensor, check_training
from hetero.splitting.layers import Layer, chain_of, run_through
from hetero.splitting.measure import as_bytes, survey
from hetero.splitting.report import SplitReport, StageReport, device_note
from hetero.splitting.stage import StageAction, StageJob, StageOutput, StageParts, drop_stage, fetch_stage, run_stages
from hetero.splitting.transport import PackedTensor, packed, unpacked
from hetero.train.values import NotANumberError, TrainingError

if TYPE_CHECKING:
    from hetero.session.context import Context
    from hetero.session.tasks import TaskFunction
    from hetero.train.values import OptimizerMaker

__all__ = ["Split", "split"]

_PATIENCE_STEPS = 10.0
_LOADING_S = 600.0
_REMEMBERED = 100
_numbers = itertools.count(1)
register(StageJob, lambda job: (f"{job.action} of split {job.number}, {job.generation}", 0.0))


@moved_keywords(OPENING)
def split(
    model: object,
    devices: Fleet | Context,
    sample: object,
    *,
    loss: object = None,
    optimizer: OptimizerMaker | None = None,
    micro_batches: int = 8,
    place: str | Sequence[tuple[str, int]] = "auto",
    slow: Mapping[str, Mapping[str, float]] | None = None,
    seed: int | None = None,
    patience: str | float = "30s",
    context: ContextOptions | None = None,
) -> Split:
    """Split a model by layers over devices.

    Parameters
    ----------
    model
        A `torch.nn.Module` that is a chain: an `nn.Sequential`, or one whose forward torch.fx can trace.
    devices
        Two or more, as `hetero.Context` takes them, or a Context that is open; None for every sound device.
    sample
        One micro-batch as the model takes it: a tensor or an array, the samples first.
    loss, optimizer
        To train it: a loss as for the Trainer, and a function of parameters that gives an optimizer.
    micro_batches
        Of a batch, as far as the plan goes; a batch may have any number.
    place
        'auto', or (device, how many layers) of each stage in order.
    slow
        Emulates devices that are slow at some layers: by device, the share of speed by class of layer, as in {'cpu:1':
        {'Conv2d': 0.3}}; the device sleeps for the rest of the time.
    seed
        Of dropout; HETERO_SEED where none is given.
    patience
        How long a batch may take beyond 10 times what was predicted, before a stage counts as lost.
    context
        How a Context is opened where `devices` is none.

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
    Σ t + (m − 1) · max t is least, see `hetero.plan.training.stages`. One device takes all of it where the best
    split is not predicted to be at least 3 % faster.

    Examples
    --------
    >>> import hetero, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> x, y = torch.ones(4, 4), torch.zeros(4, dtype=torch.long)
    >>> ctx = hetero.Context(devices="2xcpu", isolation="thread", history=False)
    >>> with hetero.train.split(model, ctx, x[:2], place=[("cpu:0", 1), ("cpu:1", 2)]) as network:
    ...     network(x).shape, [stage.device for stage in network.report().stages]
    (torch.Size([4, 2]), ['cpu:0', 'cpu:1'])
    >>> ctx.close()
    """
    if not isinstance(model, torch.nn.Module):
        raise BadValueError(f"{type(model).__name__} is no model", remedy="give a torch.nn.Module")
    check_training(model, loss, optimizer)
    if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:
        raise BadValueError(f"micro_batches={micro_batches!r} is not allowed", remedy="give a whole number, 1 or more")
    if isinstance(place, str) and place != "auto":
        raise BadValueError(f"place={place!r} is not allowed", remedy="give 'auto', or [(device, layers), …]")
    value = as_tensor("sample", sample)
    layers, values = run_through(chain_of(model, loss is not None), value)
    chosen = settings.seed() if seed is None else seed
    asked = _SplitRequest(next(_numbers), model, tuple(layers), value, loss, optimizer, chosen, parse_seconds(patience))
    fleet = SplitFleet(devices, context, slow or {}, layers)
    try:
        costs = survey(fleet, layers, values, optimizer, asked.number)
        if isinstance(place, str):
            choice = choose(costs, micro_batches, loss is not None)
        else:
            choice = given_stages(costs, place, micro_batches, loss is not None)
        return Split(asked, fleet, choice, costs.devices)
    except BaseException:
        fleet.close()
        raise


@dataclass(frozen=True, slots=True)
class _SplitRequest:
    """What was asked of a split; `number` is its own in this program."""

    number: int
    model: torch.nn.Module
    layers: tuple[Layer, ...]
    sample: torch.Tensor
    loss: object
    optimizer: OptimizerMaker | None
    seed: int
    patience_s: float


class _Passed(NamedTuple):
    """What a batch took: s of the call, and s that each stage computed."""

    samples: int
    seconds: float
    busy_s: tuple[float, ...]


class Split:
    """A model over several devices; made by `hetero.train.split`.

    Attributes
    ----------
    model
        The whole; it has the trained parameters after `gather`.
    layers
        What it was cut into.
    context
        The Context that the stages run in.
    notes
        What is to be known of devices.

    Notes
    -----
    The stages stay in the workers. As a `with` block it brings trained parameters home at the end.

    Examples
    --------
    >>> import hetero, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> x, y = torch.ones(4, 4), torch.zeros(4, dtype=torch.long)
    >>> ctx = hetero.Context(devices="2xcpu", isolation="thread", history=False)
    >>> loss, sgd = torch.nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    >>> split = hetero.train.split(model, ctx, x[:2], loss=loss, optimizer=sgd)
    >>> split(x).shape
    torch.Size([4, 2])
    >>> split.close()
    >>> ctx.close()
    """

    def __init__(self, asked: _SplitRequest, fleet: SplitFleet, choice: StageChoice, devices: Sequence[Device]) -> None:
        self.model, self.layers, self.notes = asked.model, asked.layers, fleet.notes
        self._asked, self._fleet, self.context, self._choice = asked, fleet, fleet.ctx, choice
        self._names = tuple(device.short for device in devices)
        self._devices = tuple(devices[stage.device] for stage in choice.plan.stages)
        self._generation = self._made = self._begun = self._step = 0
        self._optimizer_states: list[bytes | None] = [None] * len(self._devices)
        self._passes: deque[_Passed] = deque(maxlen=_REMEMBERED)
        self._blobs: list[object] = []
        self._begin_anew()
        self._make()

    # --- making --------------------------------------------------------------------------------------------

    def _modules(self) -> list[tuple[object, ...]]:
        stages = self._choice.plan.stages
        return [tuple(layer.module for layer in self.layers[stage.first : stage.end]) for stage in stages]

    def _begin_anew(self) -> None:
        """Rebuild every stage from the parameters that the model has here."""
        self._generation += 1
        self._step = self._begun
        self._blobs = [self.context.put(as_bytes(self._parts(number))) for number in range(len(self._devices))]

    def _parts(self, number: int) -> StageParts:
        is_last = number == len(self._devices) - 1
        return StageParts(
            modules=self._modules()[number],
            first=self._choice.plan.stages[number].first,
            all_train=not self.model.training,
            loss=self._asked.loss if is_last else None,
            optimizer=self._asked.optimizer,
            optimizer_state=self._optimizer_states[number],
        )

    def _make(self) -> None:
        self._pass("load")
        self._made = self._generation

    # --- running -------------------------------------------------------------------------------------------

    def __call__(self, inputs: object) -> Any:
        """Return the model's outputs, in eval mode.

        Parameters
        ----------
        inputs
            As the sample, any number of samples.

        Returns
        -------
        torch.Tensor
            On the host.
        """
        value = self._inputs(inputs)
        said = self._pass("predict", value)
        return torch.cat([unpacked(output) for output in said[-1].outputs])

    def step(self, inputs: object, targets: object) -> float:
        """Train with one batch: forward, backward, and one step of every stage's optimizer.

        Parameters
        ----------
        inputs
            As the sample, any number of samples.
        targets
            As many, as the loss takes them.

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

        Examples
        --------
        >>> import hetero, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> x, y = torch.ones(4, 4), torch.zeros(4, dtype=torch.long)
        >>> ctx = hetero.Context(devices="2xcpu", isolation="thread", history=False)
        >>> loss, sgd = torch.nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.1)
        >>> split = hetero.train.split(model, ctx, x[:2], loss=loss, optimizer=sgd)
        >>> split.step(x, y) > split.step(x, y)
        True
        >>> split.close()
        >>> ctx.close()
        """
        if self._asked.loss is None:
            raise BadValueError("this split has no loss", remedy="give hetero.train.split(…, loss=…, optimizer=…)")
        value, wanted = self._inputs(inputs), as_tensor("targets", targets)
        if len(value) != len(wanted):
            raise BadValueError(f"{len(value)} inputs and {len(wanted)} targets", remedy="give as many of both")
        said = self._pass("train", value, wanted)
        self._step += 1
        return said[-1].loss

    def _inputs(self, inputs: object) -> torch.Tensor:
        value, sample = as_tensor("inputs", inputs), self._asked.sample
        if value.shape[1:] != sample.shape[1:] or value.dtype != sample.dtype:
            raise BadValueError(
                f"inputs are {_form(value)}, and the split was made for {_form(sample)}",
                remedy="give samples of that form, or make another split",
            )
        return value

    def _pass(
        self, action: StageAction, inputs: torch.Tensor | None = None, targets: object = None
    ) -> list[StageOutput]:
        """Run a batch through the stages; they are made first where they are to begin anew."""
        if action != "load" and self._made != self._generation:
            self._make()
        begun_s = clock.monotonic_s()
        try:
            said: list[StageOutput] = self.context.run(
                self._task(action, inputs), self._job(action), self._blobs, self._put(inputs), self._put(targets)
            )
        except HeteroError as error:
            if self._asked.loss is None or isinstance(error, NotANumberError):
                raise
            raise self._lost(error) from error
        if action == ("predict" if self._asked.loss is None else "train"):
            busy_s = tuple(stage.busy_s for stage in said)
            self._passes.append(_Passed(0 if inputs is None else len(inputs), clock.monotonic_s() - begun_s, busy_s))
        return said

    def _task(self, action: StageAction, inputs: torch.Tensor | None) -> TaskFunction[..., list[StageOutput]]:
        ids = tuple(device.id for device in self._devices)
        count = 0 if inputs is None else -(-len(inputs) // len(self._asked.sample))
        limit_s = self._asked.patience_s + _PATIENCE_STEPS * self._choice.predicted_s(count)
        if action == "load":
            limit_s += _LOADING_S
        crashes = 0 if action == "train" else 2
        return task(run_stages, on=ids, devices=len(ids), timeout=limit_s, crashes=crashes, name=f"split {action}")

    def _job(self, action: StageAction) -> StageJob:
        return StageJob(
            action=action,
            number=self._asked.number,
            generation=self._generation,
            devices=tuple(device.id for device in self._devices),
            slow=self._fleet.slow,
            layers=len(self.layers),
            micro_batch=len(self._asked.sample),
            begun=self._begun,
            step=self._step,
            seed=self._asked.seed,
        )

    def _put(self, value: object) -> object:
        return None if value is None else self.context.put(packed(value))

    def _lost(self, error: HeteroError) -> TrainingError:
        step = self._step
        self._begin_anew()
        return TrainingError(
            f"step {step} is lost: {error.problem}",
            remedy=f"the split is back at step {self._begun}: go on from there, and gather() more often to lose less",
        )

    # --- parameters ----------------------------------------------------------------------------------------

    def gather(self) -> torch.nn.Module:
        """Copy the trained parameters into the model, and give it; a lost stage goes back to here.

        Raises
        ------
        TrainingError
            A stage was lost; the split is back where `gather` was last called.

        Examples
        --------
        >>> import hetero, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> x, y = torch.ones(4, 4), torch.zeros(4, dtype=torch.long)
        >>> ctx = hetero.Context(devices="2xcpu", isolation="thread", history=False)
        >>> loss, sgd = torch.nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.1)
        >>> split = hetero.train.split(model, ctx, x[:2], loss=loss, optimizer=sgd)
        >>> before = model[0].weight.clone()
        >>> _ = split.step(x, y)
        >>> split.gather() is model, torch.equal(model[0].weight, before)
        (True, False)
        >>> split.close()
        >>> ctx.close()
        """
        if self._step == self._begun:
            return self.model
        asked = [task(fetch_stage, on=(device.id,), name="split gather") for device in self._devices]
        try:
            found = self.context.gather([self.context.submit(one, self._asked.number, self._step) for one in asked])
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
        """Return the stages with what was predicted and measured, and the best device alone beside them.

        Examples
        --------
        >>> import hetero, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> x, y = torch.ones(4, 4), torch.zeros(4, dtype=torch.long)
        >>> ctx = hetero.Context(devices="2xcpu", isolation="thread", history=False)
        >>> loss, sgd = torch.nn.CrossEntropyLoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.1)
        >>> split = hetero.train.split(model, ctx, x[:2], loss=loss, optimizer=sgd)
        >>> _ = split.step(x, y)
        >>> sum(stage.count for stage in split.report().stages)
        3
        >>> split.close()
        >>> ctx.close()
        """
        micro_batch = len(self._asked.sample)
        samples = self._passes[-1].samples if self._passes else micro_batch * self._choice.chain.micro_batches
        count = -(-samples // micro_batch)
        alone = self._choice.alone
        alone_s = self._choice.alone_s(count)
        return SplitReport(
            model=type(self.model).__name__,
            training=self._asked.loss is not None,
            stages=tuple(self._stage_report(number) for number in range(len(self._devices))),
            micro_batch=micro_batch,
            micro_batches=count,
            predicted_samples_per_s=samples / self._choice.predicted_s(count),
            measured_samples_per_s=median(one.samples / one.seconds for one in self._passes) if self._passes else None,
            passes=len(self._passes),
            alone=None if alone is None else self._names[alone.stages[0].device],
            alone_samples_per_s=None if alone_s is None else samples / alone_s,
            reason=self._choice.reason,
            notes=tuple(self.notes),
        )

    def _stage_report(self, number: int) -> StageReport:
        stage, device = self._choice.plan.stages[number], self._devices[number]
        busy_s = [one.busy_s[number] * len(self._asked.sample) / one.samples for one in self._passes]
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
        """Release the devices; what was trained since the last `gather` is gone.

        Examples
        --------
        >>> import hetero, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> x, y = torch.ones(4, 4), torch.zeros(4, dtype=torch.long)
        >>> ctx = hetero.Context(devices="2xcpu", isolation="thread", history=False)
        >>> split = hetero.train.split(model, ctx, x[:2])
        >>> split.close()
        >>> ctx.close()
        """
        if self._fleet.lent and not self.context.closed:
            for device in self._devices:
                self.context.submit(task(drop_stage, on=(device.id,)), self._asked.number)
        self._fleet.close()

    def __enter__(self) -> Split:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                self.gather()
        finally:
            self.close()


def _load(modules: Sequence[object], state: Sequence[PackedTensor]) -> None:
    own = torch.nn.ModuleList(modules).state_dict().values()
    for here, value in zip(own, state, strict=True):
        here.copy_(unpacked(value))


def _form(value: torch.Tensor) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    return f"{kind} of shape (…, {', '.join(map(str, value.shape[1:]))})"
