"""Callbacks of `Trainer.fit` beside plain functions: early stopping, the best weights, and loggers of others.

In: reports of steps and epochs, the Trainer where a fit begins and ends. Out: the wish to stop, the weights to keep,
values in somebody's log. It must not train, and imports the package of a logger only where one begins to log.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.floor import clock
from hetero.floor.errors import BadValueError, did_you_mean
from hetero.floor.extras import need
from hetero.floor.files import atomic_write
from hetero.train.values import FIGURES, EpochReport, StepReport

if TYPE_CHECKING:
    import mlflow
    import torch
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    from hetero.train.trainer import Trainer

__all__ = ["BestWeights", "Callback", "EarlyStopping", "MLflowLogger", "TensorBoardLogger", "WandbLogger"]

_BATCH = 500
"""Values of a request to MLflow, which takes 1,000 at most."""
_SEND_S = 2.0
_MODES = ("min", "max")


class Callback:
    """What `Trainer(callbacks=[…])` may call beside plain functions; every method may be left as it is.

    Notes
    -----
    All of them are called in the program. On a step they are called a fraction of a second after it; on an epoch the
    model and the optimizer of the Trainer are up to date, and what is written to them is what training goes on with.

    Examples
    --------
    >>> class Printer(Callback):
    ...     def on_epoch(self, report):
    ...         print(f"epoch {report.epoch}")
    >>> import hetero, torch
    >>> x = torch.arange(8.0).reshape(8, 1)
    >>> model = torch.nn.Linear(1, 1)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> ctx = hetero.Context(devices="1xcpu", isolation="thread", history=False)
    >>> given = {"global_batch": 4, "devices": ctx, "callbacks": [Printer()]}
    >>> trainer = hetero.Trainer(model, torch.nn.MSELoss(), sgd, (x, 2 * x), **given)
    >>> reports = trainer.fit(2)
    epoch 1
    epoch 2
    >>> ctx.close()
    """

    def __call__(self, report: EpochReport) -> object:
        """Return what `on_epoch` does."""
        return self.on_epoch(report)

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Handle the event that a fit begins.

        Examples
        --------
        >>> Callback().on_fit_begin(None)
        """

    def on_step(self, report: StepReport) -> object:
        """Handle a step; every one is told once, in their order.

        The devices are ahead of it: what it writes to the model or the optimizer is refused, and so is True.

        Examples
        --------
        >>> Callback().on_step(StepReport(1, 1, 0.5, (0.1,), 0.001, {"cpu:0": 8}))
        """

    def on_epoch(self, report: EpochReport) -> object:
        """Handle the end of an epoch; True ends the training.

        Examples
        --------
        >>> Callback().on_epoch(None) is True
        False
        """

    def on_fit_end(self, trainer: Trainer) -> None:
        """Handle the event that a fit has ended, and not by an error.

        Examples
        --------
        >>> Callback().on_fit_end(None)
        """

    def close(self) -> None:
        """Release what it holds, as the Trainer is closed.

        Examples
        --------
        >>> Callback().close()
        """

    def state_dict(self) -> dict[str, object]:
        """Return what checkpoints are to keep of it, plain values.

        Examples
        --------
        >>> Callback().state_dict()
        {}
        """
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take over what `state_dict` returned.

        Examples
        --------
        >>> Callback().load_state_dict({})
        """


class _Monitor(Callback):
    """Finds the best epoch by one of its figures."""

    def __init__(self, monitor: str, mode: str, min_delta: float = 0.0) -> None:
        if mode not in _MODES:
            raise BadValueError(
                f"mode={mode!r} is not allowed{did_you_mean(mode, _MODES)}", remedy=f"give {', '.join(_MODES)}"
            )
        if not min_delta >= 0.0:
            raise BadValueError(f"min_delta={min_delta!r} is not allowed", remedy="give a number, 0 or more")
        self.monitor = monitor
        self.mode = mode
        self.min_delta = min_delta
        self.best: float | None = None
        self.best_epoch = 0

    def _improves(self, report: EpochReport) -> bool:
        """Return whether an epoch is better than all before by more than `min_delta`, and note it."""
        value = self._value(report)
        sign = 1.0 if self.mode == "min" else -1.0
        better = value == value and (self.best is None or sign * value < sign * self.best - self.min_delta)
        if better:
            self.best, self.best_epoch = value, report.epoch
        return better

    def _value(self, report: EpochReport) -> float:
        there = _values(report)
        if self.monitor not in there:
            raise BadValueError(
                f"{type(self).__name__} monitors {self.monitor!r}, and the epoch has {', '.join(there)}",
                remedy="name one of these, or give fit test=DATA and the Trainer metrics=",
            )
        return there[self.monitor]

    def state_dict(self) -> dict[str, object]:
        """Return the best epoch and its figure.

        Examples
        --------
        >>> EarlyStopping().state_dict()
        {'best': None, 'best_epoch': 0}
        """
        return {"best": self.best, "best_epoch": self.best_epoch}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take over the best epoch and its figure.

        Examples
        --------
        >>> stopping = EarlyStopping()
        >>> stopping.load_state_dict({"best": 0.5, "best_epoch": 3})
        >>> stopping.best_epoch
        3
        """
        best, epoch = state["best"], state["best_epoch"]
        assert best is None or isinstance(best, int | float)
        assert isinstance(epoch, int)
        self.best, self.best_epoch = best, epoch


def _values(report: EpochReport) -> dict[str, float]:
    """Return the figures of an epoch that are numbers, by name; metrics come first."""
    figures = {name: getattr(report, name) for name in FIGURES} | report.metrics
    return {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}


class EarlyStopping(_Monitor):
    """Ends the training when a figure has not become better for some epochs.

    Parameters
    ----------
    monitor
        A figure of `EpochReport`, or the name of a metric.
    mode
        'min' where less is better, 'max' where more is.
    patience
        Epochs without a better figure after which training ends, at least 1.
    min_delta
        By how much a figure must be better to count.

    Raises
    ------
    BadValueError
        An argument is not allowed, or an epoch does not have the figure.

    Examples
    --------
    >>> EarlyStopping("accuracy", mode="max", patience=5).patience
    5
    """

    def __init__(
        self, monitor: str = "test_loss", *, mode: str = "min", patience: int = 3, min_delta: float = 0.0
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise BadValueError(f"patience={patience!r} is not allowed", remedy="give a whole number, 1 or more")
        self.patience = patience

    def on_epoch(self, report: EpochReport) -> bool:
        """Return whether training is to end.

        Examples
        --------
        >>> stopping = EarlyStopping("loss", patience=1)
        >>> figures = {"accuracy": None, "seconds": 1.0, "samples_per_s": 8.0, "shares": {}, "speeds": {}}
        >>> [stopping.on_epoch(EpochReport(n, n, loss, **figures)) for n, loss in enumerate([0.5, 0.4, 0.4], 1)]
        [False, False, True]
        """
        self._improves(report)
        return report.epoch - self.best_epoch >= self.patience


class BestWeights(_Monitor):
    """Keeps the weights of the best epoch, and gives them to the model where a fit ends.

    Parameters
    ----------
    monitor, mode
        As for `EarlyStopping`.
    file
        Safetensors file that they are kept in; in memory where None is given. A run that resumes from a checkpoint
        needs one.
    restore
        False to leave the model as it was trained last.

    Attributes
    ----------
    best, best_epoch
        The best figure, None before there is one, and its epoch.

    Raises
    ------
    BadValueError
        An argument is not allowed, an epoch does not have the figure, or a run resumes whose best weights were only in
        memory.

    Examples
    --------
    >>> BestWeights("test_accuracy", mode="max", file="best.safetensors").best_epoch
    0
    """

    def __init__(
        self, monitor: str = "test_loss", *, mode: str = "min", file: str | Path | None = None, restore: bool = True
    ) -> None:
        super().__init__(monitor, mode)
        self.file = None if file is None else Path(file).expanduser()
        self.restore = restore
        self._model: torch.nn.Module | None = None
        self._weights: dict[str, torch.Tensor] = {}

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Note whose weights are to be kept.

        Examples
        --------
        >>> from types import SimpleNamespace
        >>> BestWeights().on_fit_begin(SimpleNamespace(model=None))
        """
        self._model = trainer.model

    def on_epoch(self, report: EpochReport) -> None:
        """Keep the weights where the epoch is the best one.

        Examples
        --------
        >>> figures = {"accuracy": None, "seconds": 1.0, "samples_per_s": 8.0, "shares": {}, "speeds": {}}
        >>> BestWeights("accuracy").on_epoch(EpochReport(1, 1, 0.5, **figures))
        Traceback (most recent call last):
        hetero.floor.errors.BadValueError: BestWeights monitors 'accuracy', and the epoch has loss, seconds, ...
        """
        if not self._improves(report):
            return
        assert self._model is not None
        weights = {name: each.detach().cpu().clone() for name, each in self._model.state_dict().items()}
        if self.file is None:
            self._weights = weights
            return
        from safetensors.torch import save

        self.file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self.file, save({name: each.contiguous() for name, each in weights.items()}))

    def on_fit_end(self, trainer: Trainer) -> None:
        """Load the best weights into the model.

        Examples
        --------
        >>> BestWeights().on_fit_end(None)  # there are none yet
        """
        if self.restore and self.best is not None:
            trainer.model.load_state_dict(self.weights())

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights of the best epoch, as `state_dict` of the model had them.

        Examples
        --------
        >>> BestWeights().weights()
        {}
        """
        if self.file is None or self.best is None:
            return self._weights
        from safetensors.torch import load

        found: dict[str, torch.Tensor] = load(self.file.read_bytes())
        return found

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take over the best epoch and its figure; the weights are those that are kept.

        Examples
        --------
        >>> BestWeights().load_state_dict({"best": 0.5, "best_epoch": 3})
        Traceback (most recent call last):
        hetero.floor.errors.BadValueError: the weights of epoch 3, the best one, were kept in memory alone; give ...
        """
        super().load_state_dict(state)
        is_there = bool(self._weights) if self.file is None else self.file.is_file()
        if self.best is not None and not is_there:
            where = "in memory alone" if self.file is None else f"in {self.file}, which is not there"
            raise BadValueError(
                f"the weights of epoch {self.best_epoch}, the best one, were kept {where}",
                remedy="give BestWeights(file=…) from the beginning of a run that is to resume",
            )


# --- loggers -------------------------------------------------------------------------------------------------


class _ValueLogger(Callback):
    """Logs the values of steps and epochs, both by the number of the step."""

    package = ""

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Begin to log, where that has not begun yet.

        Examples
        --------
        >>> class Two(_ValueLogger):
        ...     package = "torch_that_is_not_here"
        >>> Two().on_fit_begin(None)
        Traceback (most recent call last):
        hetero.floor.errors.MissingPackageError: Two needs torch_that_is_not_here, which is not installed; ...
        """
        need(self.package, type(self).__name__)
        options = {each.name: getattr(trainer.options, each.name) for each in fields(trainer.options)}
        plain = {name: value for name, value in options.items() if isinstance(value, int | float | str)}
        self._begin({"model": type(trainer.model).__name__, **plain})

    def on_step(self, report: StepReport) -> None:
        """Log the loss and the learning rate of a step.

        Examples
        --------
        >>> class Printer(_ValueLogger):
        ...     def _log(self, values, step):
        ...         print(step, values)
        >>> Printer().on_step(StepReport(1, 5, 0.5, (0.1, 0.2), 0.001, {"cpu:0": 8}))
        5 {'step_loss': 0.5, 'learning_rate': 0.1, 'learning_rate_1': 0.2}
        """
        rates = {
            f"learning_rate_{group}" if group else "learning_rate": r for group, r in enumerate(report.learning_rates)
        }
        self._log({"step_loss": report.loss, **rates}, report.step)

    def on_epoch(self, report: EpochReport) -> None:
        """Log the figures and metrics of an epoch.

        Examples
        --------
        >>> class Printer(_ValueLogger):
        ...     def _log(self, values, step):
        ...         print(step, values["epoch"], values["loss"])
        >>> figures = {"accuracy": None, "seconds": 1.0, "samples_per_s": 8.0, "shares": {}, "speeds": {}}
        >>> Printer().on_epoch(EpochReport(2, 8, 0.5, **figures))
        8 2 0.5
        """
        self._log({"epoch": report.epoch, **_values(report)}, report.step)

    @abstractmethod
    def _begin(self, about: Mapping[str, int | float | str]) -> None:
        """Open the log, where it is not open, and write down what the run is."""

    @abstractmethod
    def _log(self, values: Mapping[str, float], step: int) -> None:
        """Write values of a step."""


class TensorBoardLogger(_ValueLogger):
    """Logs to a folder for TensorBoard; needs `tensorboard`.

    Parameters
    ----------
    folder
        Of the event files.

    Examples
    --------
    >>> TensorBoardLogger("runs/first").folder
    'runs/first'
    """

    package = "tensorboard"

    def __init__(self, folder: str | Path) -> None:
        self.folder = str(folder)
        self._writer: SummaryWriter | None = None

    def _begin(self, about: Mapping[str, int | float | str]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is None:
            self._writer = SummaryWriter(self.folder)
            self._writer.add_text("options", "\n".join(f"- {name}: {value}" for name, value in about.items()), 0)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        assert self._writer is not None
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def on_fit_end(self, trainer: Trainer) -> None:
        """Write everything to the folder.

        Examples
        --------
        >>> TensorBoardLogger("runs").on_fit_end(None)
        """
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the event file.

        Examples
        --------
        >>> TensorBoardLogger("runs").close()
        """
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class MLflowLogger(_ValueLogger):
    """Logs a run to MLflow; needs `mlflow` or `mlflow-skinny`.

    Parameters
    ----------
    experiment
        Of the run; it is made where it is not there.
    name
        Of the run, MLflow's choice where None is given.
    tracking_uri
        As for `mlflow.set_tracking_uri`, MLflow's own setting where None is given.

    Attributes
    ----------
    run_id
        Of the run, '' before it begins.

    Examples
    --------
    >>> MLflowLogger("digits").run_id
    ''
    """

    package = "mlflow"

    def __init__(
        self, experiment: str = "Default", *, name: str | None = None, tracking_uri: str | None = None
    ) -> None:
        self.experiment = experiment
        self.name = name
        self.tracking_uri = tracking_uri
        self.run_id = ""
        self._client: mlflow.MlflowClient | None = None
        self._waiting: list[mlflow.entities.Metric] = []
        self._sent_s = 0.0

    def _begin(self, about: Mapping[str, int | float | str]) -> None:
        import mlflow

        if self._client is not None:
            return
        self._client = mlflow.MlflowClient(self.tracking_uri)
        found = self._client.get_experiment_by_name(self.experiment)
        number = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
        self.run_id = self._client.create_run(number, run_name=self.name).info.run_id
        for name, value in about.items():
            self._client.log_param(self.run_id, name, value)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now_ms = int(1000 * clock.wall_time_s())
        self._waiting += [Metric(name, value, now_ms, step) for name, value in values.items()]
        if len(self._waiting) >= _BATCH or clock.monotonic_s() - self._sent_s > _SEND_S:
            self._send()

    def _send(self) -> None:
        """Send what waits, in requests of as many values as MLflow takes."""
        assert self._client is not None
        while self._waiting:
            self._client.log_batch(self.run_id, self._waiting[:_BATCH])
            del self._waiting[:_BATCH]
        self._sent_s = clock.monotonic_s()

    def on_fit_end(self, trainer: Trainer) -> None:
        """Send all values.

        Examples
        --------
        >>> MLflowLogger().on_fit_end(None)
        """
        if self._client is not None:
            self._send()

    def close(self) -> None:
        """End the run.

        Examples
        --------
        >>> MLflowLogger().close()
        """
        if self._client is not None:
            self._send()
            self._client.set_terminated(self.run_id)
            self._client = None


class WandbLogger(_ValueLogger):
    """Logs a run to Weights & Biases; needs `wandb`.

    Parameters
    ----------
    project
        Of the run.
    name
        Of the run, W&B's choice where None is given.
    mode
        'online', 'offline' or 'disabled' as for `wandb.init`, W&B's own setting where None is given.
    folder
        Where W&B writes its files.

    Examples
    --------
    >>> WandbLogger("digits", mode="offline").project
    'digits'
    """

    package = "wandb"

    def __init__(
        self, project: str, *, name: str | None = None, mode: str | None = None, folder: str | Path | None = None
    ) -> None:
        self.project = project
        self.name = name
        self.mode = mode
        self.folder = None if folder is None else str(folder)
        self._run: wandb.Run | None = None

    def _begin(self, about: Mapping[str, int | float | str]) -> None:
        import wandb

        if self._run is None:
            self._run = wandb.init(
                project=self.project, name=self.name, mode=self.mode, dir=self.folder, config=dict(about)
            )
            self._run.define_metric("*", step_metric="step")  # W&B's own count never goes back

    def _log(self, values: Mapping[str, float], step: int) -> None:
        assert self._run is not None
        self._run.log({"step": step, **values})

    def close(self) -> None:
        """End the run.

        Examples
        --------
        >>> WandbLogger("digits").close()
        """
        if self._run is not None:
            self._run.finish()
            self._run = None
