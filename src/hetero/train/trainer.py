"""The Trainer: one model, trained over the devices of a fleet as one device would have trained it.

In: a model, a loss, an optimizer, data. Out: the trained model, reports of epochs, predictions.
It must not compute a step: the members do, each on its device.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch

from hetero.backends import registry
from hetero.comm.lines import LineServer
from hetero.floor.deprecation import Moved, moved_keywords
from hetero.floor.errors import BadValueError, NothingFitsError
from hetero.floor.options import options_argument
from hetero.floor.units import shown
from hetero.model.device import Device
from hetero.session.futures import Future
from hetero.session.options import OPENING, ContextOptions, Fleet, devices_or_context
from hetero.session.signature import register
from hetero.session.tasks import judged_by_caller, task
from hetero.train import argument_checks
from hetero.train.activation_checkpointing import chosen as chosen_modules
from hetero.train.bulk_inference import PackedModel, evaluate_part, predict_part, run_over
from hetero.train.callbacks import Callback
from hetero.train.checkpoints import TrainingCheckpoints, run_facts
from hetero.train.compatibility import difference, fingerprint, group_values, model_hooks, process_settings, seen
from hetero.train.data import Samples, as_array, as_samples, prepared, what_decides
from hetero.train.job import TrainingJob
from hetero.train.lead import Admission, Extent, Lead, ProgramHooks
from hetero.train.listener import Listener, ReportCollector, TraceRecorder
from hetero.train.losses import SummedLoss
from hetero.train.member import train_member
from hetero.train.memory import Fitting
from hetero.train.metrics import Metrics, check_metrics, measured
from hetero.train.reduction_groups import summer
from hetero.train.replica import Parts, training_modes
from hetero.train.sample_log import append_line, next_run
from hetero.train.saving import save_model
from hetero.train.schedules import ScheduleHistory, load_schedulers
from hetero.train.state import has_adapters, load_state, renewed, unpack
from hetero.train.values import (
    CHECKPOINT_KEYS,
    CheckpointOptions,
    DataOptions,
    EpochReport,
    Evaluation,
    StepReport,
    Totals,
    TrainingError,
    TrainOptions,
)

if TYPE_CHECKING:
    from hetero.session.context import Context

__all__ = ["Trainer", "can_train"]

_TRAINED = (", a weight,", ", a buffer,", ", the optimizer's state,")
_numbers = itertools.count(1)
register(TrainingJob, lambda job: (f"training {job.number}", 0.0))


def can_train(device: Device) -> bool:
    """Return whether torch can train on a device."""
    return registry.runs_torch(device)


class Trainer:
    """Trains one model over unequal devices, with the result that one device would give.

    Parameters
    ----------
    model
        A `torch.nn.Module`; it has the trained parameters after `fit`.
    loss
        A loss of torch's, or a function of (outputs, targets) that gives one loss a sample.
    optimizer
        An optimizer of the model's parameters, or a function that makes one of them.
    data
        (inputs, targets), a dataset with len() and [i], or a DataLoader of one.
    global_batch
        Samples of a step over all devices, where `options` is not given.
    devices
        The fleet, as `hetero.Context` takes it, or a Context that is open; every sound device that torch knows where
        none is named.
    options
        How steps are computed: the global batch, shares, precision, the order of samples, how gradients travel.
    data_options
        How samples are read: their cost, augmentation, reading ahead, the log of them.
    checkpoint
        Folder of the run's checkpoints, or that with how often and how many; None for none.
    callbacks
        Functions of an `EpochReport`, of which one that gives True ends the training, and objects such as
        `hetero.train.EarlyStopping`.
    metrics
        Of what is tested, by name: objects of torchmetrics, or functions of (outputs, targets) of all samples.
    context
        How a Context is opened where `devices` is none.

    Raises
    ------
    BadValueError
        An argument is not allowed, or the model has layers whose result would depend on the shares.

    Notes
    -----
    A step is Σ over the global batch of the losses, divided once; gradients are summed over the devices, and the
    number of samples rides in the same sum and must be the global batch. Dropout and noise are keyed by sample.

    Examples
    --------
    >>> import hetero, torch
    >>> x = torch.arange(8.0).reshape(8, 1)
    >>> model = torch.nn.Linear(1, 1)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
    >>> trainer = hetero.Trainer(model, torch.nn.MSELoss(), sgd, (x, 2 * x), global_batch=4, devices=ctx)
    >>> with trainer:
    ...     [(report.epoch, report.shares) for report in trainer.fit(2)]
    [(1, {'cpu:0': 4}), (2, {'cpu:0': 4})]
    >>> ctx.close()
    """

    @moved_keywords(
        Moved("options", TrainOptions, {each.name: each.name for each in fields(TrainOptions)}),
        Moved("data_options", DataOptions, {each.name: each.name for each in fields(DataOptions)}),
        Moved("checkpoint", CheckpointOptions, CHECKPOINT_KEYS),
        OPENING,
    )
    def __init__(
        self,
        model: torch.nn.Module,
        loss: object,
        optimizer: Any,
        data: object,
        *,
        global_batch: int | None = None,
        devices: Fleet | Context = None,
        options: TrainOptions | None = None,
        data_options: DataOptions | None = None,
        checkpoint: str | Path | CheckpointOptions | None = None,
        callbacks: Sequence[Callable[[EpochReport], object]] = (),
        metrics: Metrics | None = None,
        context: ContextOptions | None = None,
    ) -> None:
        argument_checks.model_and_optimizer(model, optimizer)
        given = argument_checks.train_options(global_batch, options)
        read = options_argument("data_options", data_options, DataOptions) or DataOptions()
        self._given = (data, read.augment, read.readers)
        self._data = prepared(as_samples(data), read.augment, read.readers)
        self._samples = len(self._data)  # a dataset of the program's own may grow
        self._data_seen = self._data_now()
        layout = given.layout
        if layout == "auto" and torch.are_deterministic_algorithms_enabled():
            layout = "channels_first"
        in_turn = self._data.draw.shuffle if given.shuffle is None else given.shuffle
        self.options = replace(given, shuffle=in_turn, layout=layout)
        chosen_modules(model, given.recompute)
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        argument_checks.sampling(self._data, self.options, logged=read.sample_log is not None)
        self._steps_an_epoch = -(-self._data.an_epoch(given.global_batch) // given.global_batch)
        kept = CheckpointOptions(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
        self._checkpoint = options_argument("checkpoint", kept, CheckpointOptions)
        self._sample_log = argument_checks.folder(read.sample_log)
        self.callbacks = argument_checks.callbacks(callbacks)
        self.metrics = check_metrics(metrics)
        self.reports: list[EpochReport] = []
        self.notes: list[str] = []
        self._costs = None if read.cost is None else argument_checks.costs(read.cost, len(self._data))
        self._fleet, self._ctx = devices_or_context(devices, context)
        self._lent = self._ctx is not None
        self._opening = context or ContextOptions()
        self._fitting = Fitting(model, loss, optimizer, self._data, self.options)
        self._kept: Any = None
        self._seen: dict[str, object] = {}
        self._test: object = None
        self._data_before: dict[str, object] = {}
        self._trained: tuple[str, ...] = ()
        self._state: bytes | None = None
        self._written: bytes | None = None
        self._settled: tuple[object, int] = (None, 0)
        self._step = 0
        self._totals: Totals | None = None
        self._runs_in = 0
        self._modes: list[tuple[torch.nn.Module, bool]] = []

    # --- the fleet -----------------------------------------------------------------------------------------

    @property
    def context(self) -> Context:
        """The Context that the members run in; opened when first needed."""
        if self._ctx is None or (self._ctx.closed and not self._lent):
            self._ctx = self._opening.open(self._fleet, history=False)
            self._kept = None
        return self._ctx

    @property
    def step(self) -> int:
        """Steps that were done."""
        return self._step

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that train.

        Raises
        ------
        NothingFitsError
            torch can train on none of the fleet.
        """
        found = tuple(device for device in self.context.devices if can_train(device))
        if not found:
            names = ", ".join(device.short for device in self.context.devices)
            raise NothingFitsError(f"torch can train on none of {names}", remedy="name a CPU or a GPU that torch knows")
        return found

    @property
    def ema_model(self) -> torch.nn.Module:
        """A copy of the model with the moving averages of the weights, and the buffers as they are.

        Raises
        ------
        BadValueError
            `TrainOptions` has no ema_decay.
        """
        if self.options.ema_decay is None:
            raise BadValueError(
                "this Trainer keeps no averages of the weights", remedy="give TrainOptions(ema_decay=0.999)"
            )
        made = copy.deepcopy(self.model)
        averages = {} if self._state is None else unpack(self._state).averages
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if name in averages:
                    parameter.copy_(averages[name])
        return made

    def save(
        self,
        path: str | Path,
        facts: Mapping[str, str] | None = None,
        *,
        trained_only: bool | None = None,
        ema: bool = False,
    ) -> Path:
        """Write the model's parameters as safetensors, whole or not at all; `hetero.train.load_parameters` reads them.

        Parameters
        ----------
        facts
            Words kept beside them, for `hetero infer` and for people.
        trained_only
            True to leave out what is not trained; so it is with adapters of `peft` where nothing is said.
        ema
            True for the model with the averages of the weights.

        Examples
        --------
        >>> import hetero, pathlib, tempfile, torch
        >>> x = torch.arange(8.0).reshape(8, 1)
        >>> model, again = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> trainer = hetero.Trainer(model, torch.nn.MSELoss(), sgd, (x, 2 * x), global_batch=4)
        >>> file = trainer.save(pathlib.Path(tempfile.mkdtemp()) / "line.safetensors", {"made": "here"})
        >>> hetero.train.load_parameters(again, file)["made"], torch.equal(again.weight, model.weight)
        ('here', True)
        """
        part = has_adapters(self.model) if trained_only is None else trained_only
        return save_model(self.ema_model if ema else self.model, path, facts or {}, trained_only=part)

    def resume(self) -> int:
        """Return to the newest complete checkpoint; returns the whole epochs that were done by then.

        Returns
        -------
        int
            0 also where there is no checkpoint yet; `trainer.fit(10 - trainer.resume())` makes ten in all, also
            from a checkpoint within an epoch.

        Raises
        ------
        BadValueError
            The Trainer has no checkpoints, or the newest is of another run.
        HeteroError
            All checkpoints are damaged, or the newest is of another model.

        Notes
        -----
        A damaged checkpoint is passed over for the one before it, and `notes` says so.

        Examples
        --------
        >>> import hetero, tempfile, torch
        >>> x = torch.arange(8.0).reshape(8, 1)
        >>> model = torch.nn.Linear(1, 1)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> folder = tempfile.mkdtemp()
        >>> ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
        >>> given = {"global_batch": 4, "devices": ctx, "checkpoint": hetero.train.CheckpointOptions(folder)}
        >>> trainer = hetero.Trainer(model, torch.nn.MSELoss(), sgd, (x, 2 * x), **given)
        >>> trainer.resume()  # there is no checkpoint yet
        0
        >>> ctx.close()
        """
        self._refuse_meanwhile("resume")
        checkpoints = self._checkpoints()
        if checkpoints is None:
            raise BadValueError("this Trainer keeps no checkpoints", remedy="give checkpoint=FOLDER")
        an_epoch = self._data.an_epoch(self.options.global_batch)
        found = checkpoints.newest_of(run_facts(self.options, an_epoch))
        if found is None:
            return 0
        self.notes += found.damaged
        self._adopt(found.state)
        load_schedulers(self.optimizer, found.facts.get("schedulers", {}), self.callbacks)
        epochs, further = divmod(self._step, self._steps_an_epoch)
        self._totals = Totals(**found.facts["totals"]) if further else None
        return epochs

    def close(self) -> None:
        """Release the devices.

        Raises
        ------
        BadValueError
            A callback calls it, which would take the devices from the `fit` that it is called by.

        Examples
        --------
        >>> import hetero, torch
        >>> x = torch.arange(8.0).reshape(8, 1)
        >>> model = torch.nn.Linear(1, 1)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> trainer = hetero.Trainer(model, torch.nn.MSELoss(), sgd, (x, 2 * x), global_batch=4, devices="1xcpu")
        >>> ctx = trainer.context
        >>> trainer.close()
        >>> ctx.closed
        True
        """
        if self._runs_in == threading.get_ident():
            self._refuse_meanwhile("close", "let the callback return True, which ends the training")
        if self._ctx is not None and not self._lent:
            self._ctx.close()
        for callback in self._objects():
            callback.close()

    def __repr__(self) -> str:
        def name(one: object) -> str:
            return getattr(one, "__name__", None) or type(one).__name__

        plain = TrainOptions(self.options.global_batch)
        options = {each.name: getattr(self.options, each.name) for each in fields(TrainOptions)}
        differ = [f"{key}={shown(one)}" for key, one in options.items() if one != getattr(plain, key)]
        given = [name(self.model), name(self.loss), name(self.optimizer), f"{self._samples} samples"]
        given += [f"global_batch={self.options.global_batch}", *differ, f"devices={self._ctx or self._fleet!r}"]
        given += [f"callbacks=[{', '.join(map(name, self.callbacks))}]"] * bool(self.callbacks)
        given += [f"metrics={{{', '.join(self.metrics)}}}"] * bool(self.metrics)
        return f"<Trainer {', '.join(given)}; step {self._step}; nothing that was given is ignored>"

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- training ------------------------------------------------------------------------------------------

    def fit(self, epochs: int = 1, *, test: object = None, listener: Listener | None = None) -> list[EpochReport]:
        """Train for some epochs more.

        Parameters
        ----------
        epochs
            ≥ 0.
        test
            Data as for the Trainer, that every epoch ends with a test on.
        listener
            Hears of steps, epochs and what becomes of devices.

        Returns
        -------
        list of EpochReport
            Of these epochs.

        Raises
        ------
        BadValueError
            The shares do not add up, the model cannot be trained exactly over these devices, or the folder of
            checkpoints has one that is further than this Trainer.
        NotANumberError
            A loss is not a number; the message names the step and the samples.
        TrainingError
            No device is left.

        Examples
        --------
        >>> import hetero, torch
        >>> x = torch.arange(8.0).reshape(8, 1)
        >>> model = torch.nn.Linear(1, 1)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
        >>> trainer = hetero.Trainer(model, torch.nn.MSELoss(), sgd, (x, 2 * x), global_batch=4, devices=ctx)
        >>> first, second = trainer.fit(2)
        >>> second.loss < first.loss
        True
        >>> ctx.close()
        """
        self._refuse_meanwhile("fit", "let the callback return True to end this one, and call fit again after it")
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
            raise BadValueError(f"epochs={epochs!r} is not allowed", remedy="give a whole number, 0 or more")
        steps = (self._step // self._steps_an_epoch + epochs) * self._steps_an_epoch
        if steps <= self._step:
            return []
        if self.context.engine == "inline":
            raise BadValueError(
                "engine='inline' runs tasks in the thread that submits them, and the members of a training must run"
                " beside it",
                remedy="open the Context with isolation='thread' to debug in this process",
            )
        argument_checks.supported(
            self.model, self.loss, self.optimizer, epochs, [*self.callbacks, *filter(None, [listener])]
        )
        self._note_hooks()
        self._note_mode()
        self._note_metrics(test)
        self._modes = training_modes(self.model)
        self._look_at_data()
        told = TraceRecorder(self.context.driver, listener or Listener())
        heard = ReportCollector(self.notes, [self._opened, *self.callbacks, self._refuse_changed], told)
        shows = bool(self.callbacks) or (listener is not None and listener.needs_model)
        for callback in self._objects():
            callback.on_fit_begin(self)
        self._runs_in, self._test = threading.get_ident(), test
        try:
            self._show(self._run(steps, None if test is None else as_samples(test, "test"), heard, shows))
        finally:
            self._runs_in, self._test = 0, None
            self.reports += [report for report in heard.reports if report.step <= self._step]
        for callback in self._objects():
            callback.on_fit_end(self)
        return heard.reports

    def evaluate(self, data: object, *, ema: bool = False) -> Evaluation:
        """Test the model on data, over all devices.

        Parameters
        ----------
        data
            Inputs and targets as for the Trainer.
        ema
            True for the model with the averages of the weights.

        Examples
        --------
        >>> import hetero, torch
        >>> x = torch.arange(8.0).reshape(8, 1)
        >>> model = torch.nn.Linear(1, 1)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
        >>> trainer = hetero.Trainer(model, torch.nn.MSELoss(), sgd, (x, 2 * x), global_batch=4, devices=ctx)
        >>> trainer.evaluate((x, 2 * x)).samples
        8
        >>> ctx.close()
        """
        self._refuse_meanwhile("evaluate", "give fit test=DATA, or evaluate after fit(1) in a loop")
        samples = as_samples(data, "test data")
        sums, passes = Parts(), []
        for part, outputs in self._over(evaluate_part, samples, self.ema_model if ema else self.model):
            sums = Parts(*(a + b for a, b in zip(sums.header, part, strict=True)))
            passes += outputs
        divisor = sums.weight if SummedLoss(self.loss).divides else sums.samples
        accuracy = sums.right / sums.classes if sums.classes else None
        loss = sums.loss / divisor if divisor else 0.0
        return Evaluation(int(sums.samples), loss, accuracy, measured(self.metrics, passes))

    def predict(self, data: object, *, ema: bool = False) -> Any:
        """Return the model's outputs for data, over all devices, in order.

        Parameters
        ----------
        data
            Inputs as an array or tensor, or whatever the Trainer takes, whose targets are not looked at.
        ema
            True for the model with the averages of the weights.

        Returns
        -------
        torch.Tensor
            shape (samples, …), float32

        Notes
        -----
        Each device takes batches of its own size from one queue.

        Examples
        --------
        >>> import hetero, torch
        >>> x = torch.arange(8.0).reshape(8, 1)
        >>> model = torch.nn.Linear(1, 1)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
        >>> trainer = hetero.Trainer(model, torch.nn.MSELoss(), sgd, (x, 2 * x), global_batch=4, devices=ctx)
        >>> trainer.predict(x).shape
        torch.Size([8, 1])
        >>> ctx.close()
        """
        self._refuse_meanwhile("predict")
        samples = Samples(arrays=(as_array(data),)) if hasattr(data, "shape") else as_samples(data, "data to predict")
        model = self.ema_model if ema else self.model
        return torch.cat([torch.from_numpy(part) for part in self._over(predict_part, samples, model)])

    def _over(self, function: Any, samples: Samples, model: torch.nn.Module) -> list[Any]:
        if not len(samples):
            raise BadValueError("there are no samples", remedy="give at least one")
        parts = cloudpickle.dumps((model, self.loss))
        options = replace(self.options, schedule=None, schedule_each="step")
        work = self.context.put(PackedModel(parts, options, next(_numbers), process_settings(), bool(self.metrics)))
        return run_over(self.context, self.devices, function, work, self._put(samples), len(samples))

    def _refuse_meanwhile(self, what: str, remedy: str = "call it after fit, as after fit(1) in a loop") -> None:
        if self._runs_in:
            raise BadValueError(f"{what}: fit is running, and its members hold the devices", remedy=remedy)

    def _run(self, steps: int, test: Samples | None, listener: Listener, shows: bool) -> bytes:
        names = tuple(device.short for device in self.devices)
        argument_checks.exact_over(self.model, self.options, names)
        checkpoints = self._checkpoints()
        if checkpoints is not None:
            checkpoints.refuse_to_overtake(self._step)
        full = self._fitting.left_out(self.devices)
        schedules = ScheduleHistory(
            self.optimizer, self._step, kept=checkpoints is not None, callbacks=self.callbacks, heard=shows
        )
        measures = bool(self.metrics) and test is not None
        hearers = [one for one in self._objects() if type(one).on_step is not Callback.on_step]
        reach = self.context.driver.engine.reach()
        with LineServer(reach.own, reach.certificates) as hub:
            job = TrainingJob(
                parts=self._parts(),
                options=self.options,
                steps=steps,
                names=names,
                address=hub.address,
                state=self._begin(),
                costs=self._costs,
                checkpoint=self._checkpoint.path if self._checkpoint else "",
                checkpoint_every=(self._checkpoint and self._checkpoint.every) or self._steps_an_epoch,
                keep=self._checkpoint.keep if self._checkpoint else 0,
                number=next(_numbers),
                totals=self._totals,
                sample_log=self._sample_log,
                run=next_run(self._sample_log) if self._sample_log else 0,
                need=self._fitting.need_on(self.devices),
                key=self._fitting.key,
                sum_on=summer(self.options.sum_on, self.context.devices),
                hosts={device.short: reach.workers[device.id] for device in self.devices} if reach.workers else {},
                process=process_settings(),
                shows=shows,
                on_host=frozenset(device.short for device in self.devices if device.is_host),
                tells_steps=bool(hearers),
                measures=measures,
                settled=self._settled_number(names),
            )
            ids = {device.short: device.id for device in self.devices}
            given = (job, self._put(self._data), self._put(test))

            def start(name: str) -> Future:
                made = judged_by_caller(task(train_member, on=(ids[name],), name="train"))
                return self.context.submit(made, *given)

            futures = {name: start(name) for name in ids if name not in full}
            for name, reason in full.items():
                listener.on_note(f"{name} is left out: {reason}")
            extent = Extent(self._step, steps, checkpoints, partial(append_line, self._sample_log, job.run))
            values, admission = partial(group_values, self.optimizer), Admission(self.options, job.on_host)
            program = ProgramHooks(
                show=self._show,
                written=self._take_written,
                measured=partial(measured, self.metrics) if measures else None,
                stepped=partial(self._hear_step, hearers),
            )
            lead = Lead(hub, start, futures, listener, extent, admission, values, schedules, program)
            for other in self.context.devices:
                if not can_train(other) and other != job.sum_on:
                    listener.on_note(f"{other.short} is left out: torch cannot train on it")
            self.context.held = threading.get_ident(), "Trainer.fit"
            try:
                state: bytes = lead.run()
            except TrainingError as error:
                if lead.killed.full:
                    raise self._fitting.refusal(full | lead.killed.full) from error
                raise
            finally:
                self.context.held = None
            return state

    @property
    def data(self) -> Samples:
        """The samples that are trained on."""
        return self._data

    @data.setter
    def data(self, data: object) -> None:
        raise BadValueError(
            f"the data of a Trainer were given another value, {type(data).__name__}",
            remedy="make another Trainer for other data",
        )

    def _checkpoints(self) -> TrainingCheckpoints | None:
        return TrainingCheckpoints(self._checkpoint.path, self._checkpoint.keep) if self._checkpoint else None

    def _parts(self) -> bytes:
        self._seen = seen(self.model, self.loss, self.optimizer)
        parts: bytes = cloudpickle.dumps((self.model, self.loss, self.optimizer))
        return parts

    def _put(self, samples: Samples | None) -> object:
        """Send samples once; those that are trained on stay for further runs."""
        if samples is not self._data:
            return None if samples is None else self.context.put(samples)
        if self._kept is None:
            self._kept = self.context.put(samples)
        return self._kept

    def _begin(self) -> bytes | None:
        """Return the state to begin with: what was reached, and what the program has changed since."""
        if self._state is None:
            return None
        trained = argument_checks.trained_names(self.model)
        if not hasattr(self.optimizer, "param_groups") and trained != self._trained:
            raise BadValueError(
                "other parameters are trained than before, and the function that makes the optimizer knows no more",
                remedy="give the optimizer itself, or another Trainer",
            )
        if self.options.ema_decay is not None and trained != self._trained:
            raise BadValueError(
                "other parameters are trained than before, of which there are no averages (ema_decay)",
                remedy="make another Trainer",
            )
        return renewed(self._state, self.model, self.optimizer)

    def _settled_number(self, names: Sequence[str]) -> int:
        """Return the same number as for the last fit where nothing but the trained state was changed since."""
        parts = {name: value for name, value in self._seen.items() if not name.endswith(_TRAINED)}
        modes = [training for _, training in self._modes]
        whole = id(self.model), id(self.loss), type(self.optimizer), tuple(names), modes, parts, self._data_seen
        found = (*whole, process_settings())
        if found != self._settled[0]:
            self._settled = found, next(_numbers)
        return self._settled[1]

    def _objects(self) -> list[Callback]:
        return [callback for callback in self.callbacks if isinstance(callback, Callback)]

    def _note_metrics(self, test: object) -> None:
        text = "metrics are of what is tested: give fit test=DATA for those of every epoch"
        if self.metrics and test is None and text not in self.notes:
            self.notes.append(text)

    def _note_hooks(self) -> None:
        found = model_hooks(self.model)
        text = f"hooks of {', '.join(found[:3])} run beside the devices: what they write outside the model stays there"
        if found and text not in self.notes:
            self.notes.append(text)

    def _note_mode(self) -> None:
        text = "the model is in eval mode and trains so, without dropout: call model.train() before fit for the other"
        if not self.model.training and text not in self.notes:
            self.notes.append(text)

    def _opened(self, _: EpochReport) -> None:
        """Notify schedulers that the optimizer has made its steps, and look at what callbacks must not change."""
        if hasattr(self.optimizer, "param_groups"):
            self.optimizer._opt_called = True
        self._data_before = self._all_data_now()

    def _refuse_changed(self, _: EpochReport) -> None:
        """Take over what callbacks wrote to the state that is trained, and refuse what else they changed."""
        now = seen(self.model, self.loss, self.optimizer)
        names = self._written_names({*self._seen, *now})
        was, new = ({name: value for name, value in one.items() if name not in names} for one in (self._seen, now))
        changed = difference(was, new) or difference(self._data_before, self._all_data_now())
        if changed:
            raise BadValueError(
                f"a callback changed {changed.rstrip(',')}, which the devices would not see",
                remedy="change it between two calls: fit(1) in a loop",
            )
        if self._state is not None and any(self._seen.get(name) != now.get(name) for name in names):
            self._state = self._written = renewed(self._state, self.model, self.optimizer)
        self._restore_modes()

    def _hear_step(self, hearers: Sequence[Callback], report: StepReport) -> None:
        """Call what hears steps; what it writes there would be lost, as the devices are ahead of it."""
        for hearer in hearers:
            if type(hearer).__module__ == Callback.__module__:  # the loggers write elsewhere
                hearer.on_step(report)
                continue
            before = self._versions()
            wish = hearer.on_step(report)
            if wish is True or self._versions() != before:
                done = "returned True from" if wish is True else "wrote to the model or the optimizer in"
                raise BadValueError(
                    f"{type(hearer).__name__} {done} on_step, which the devices would not see",
                    remedy="do it in on_epoch; a rate that changes each step is TrainOptions(schedule=)",
                )

    def _versions(self) -> object:
        """Return what changes when somebody writes to the model's tensors or to the optimizer's settings."""
        groups = getattr(self.optimizer, "param_groups", [])
        settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
        tensors = [each.detach() for each in (*self.model.parameters(), *self.model.buffers())]
        norms = [float(each) for each in torch._foreach_norm([each for each in tensors if each.is_floating_point()])]
        return [each._version for each in tensors], norms, settings

    def _written_names(self, names: set[str]) -> set[str]:
        """Return those names of `seen` that are parts of the state which is trained."""
        frozen = {f"{name}, a weight," for name, each in self.model.named_parameters() if not each.requires_grad}
        return {name for name in names if name.endswith(_TRAINED) and name not in frozen}

    def _take_written(self) -> bytes | None:
        written, self._written = self._written, None
        return written

    def _restore_modes(self) -> None:
        """Set the modes back: a callback that tests may leave the whole model in eval mode."""
        moved = any(module.training != training for module, training in self._modes)
        mode = "train" if self.model.training else "eval"
        text = f"a callback left the model in {mode} mode: training goes on in the mode that the model had at fit"
        if moved and text not in self.notes:
            self.notes.append(text)
        for module, training in self._modes:
            module.training = training

    def _data_now(self) -> dict[str, object]:
        """Return fingerprints of what decides on the samples, by name."""
        data, augment, _ = self._given
        parts = {**what_decides(data, "the data"), "something that augment uses": augment}
        return {name: fingerprint(part) for name, part in parts.items()}

    def _all_data_now(self) -> dict[str, object]:
        """Return fingerprints of all data that a callback could change without the devices seeing it.

        What threads read one by one they share with the program; what one reads may change it meanwhile.
        """
        shared = any(device.isolation == "thread" for device in self.devices)
        if not self.callbacks or (shared and self._data.one_by_one):
            return {}
        tested = {} if self._test is None else what_decides(self._test, "the test data")
        return {**self._data_now(), **{name: fingerprint(part) for name, part in tested.items()}}

    def _look_at_data(self) -> None:
        """Have the data travel again where the program has changed them in place."""
        found = self._data_now()
        if found == self._data_seen and len(self._data) == self._samples:
            return
        given, augment, readers = self._given
        data = prepared(as_samples(given), augment, readers)
        if len(data) != self._samples or data.draw != self._data.draw:
            raise BadValueError(
                f"the data have {len(data)} samples, and had {self._samples} when the Trainer was made",
                remedy="make another Trainer for other data",
            )
        self._data, self._data_seen, self._kept = data, found, None

    def _show(self, state: bytes) -> None:
        """Restore the program's model and optimizer to the state of an epoch, from where training goes on."""
        self._adopt(state)
        self._totals = None
        self._seen = seen(self.model, self.loss, self.optimizer)

    def _adopt(self, state: bytes) -> None:
        numbers = load_state(state, self.model, self.optimizer).numbers
        self._trained = argument_checks.trained_names(self.model)
        if hasattr(self.optimizer, "param_groups"):
            self.optimizer._opt_called = True
        self._state = state
        self._step = int(numbers[0])
