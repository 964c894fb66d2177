"""The user's own training loop over several devices: what `hetero.train.init` returns, in each process of a script.

In: the script's model, optimizer, loader and losses. Out: the same, ready for the device of this process.
It must not own the loop: the script steps, clips, schedules and prints as it did. What several processes do together is
in `hetero.train.launch.launched`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from hetero.floor import settings
from hetero.floor.contexts import transparent
from hetero.floor.errors import BadValueError
from hetero.train.launch.host_processes import LAUNCHED, RECORD, LaunchedProcess
from hetero.train.launch.shared_loader import Batch, SharedLoader, map_tensors, moved_to, samples_in

__all__ = ["PlacedLoader", "TrainingFleet", "init", "is_made_by"]

T = TypeVar("T")


backward = torch.Tensor.backward
"""torch's own, which `hetero launch` stands in for."""

_LIGHTNING = {"lightning", "lightning.fabric", "pytorch_lightning", "lightning_fabric"}
_FRAMEWORKS = ("accelerate.accelerator.Accelerator", "transformers.trainer.Trainer")


def init() -> TrainingFleet:
    """Return this process's view of the devices that run the script; a second call returns the same.

    Under ``hetero launch script.py`` there is a process for each device, and each has its part of every batch. Under
    ``python script.py`` there is one device, and the loop runs as it stands.

    Raises
    ------
    BadValueError
        The script was started by another launcher.

    Notes
    -----
    In a process that the script has started itself, what is returned takes no part, and refuses to.

    Examples
    --------
    >>> import hetero, torch
    >>> fleet = hetero.train.init()
    >>> model, data = torch.nn.Linear(2, 1), torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
    >>> loader = torch.utils.data.DataLoader(data, 4)
    >>> model, optimizer, loader = fleet.prepare(model, optimizer, loader)
    >>> for inputs, targets in loader:
    ...     optimizer.zero_grad()
    ...     fleet.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    ...     optimizer.step()
    >>> fleet.is_main, fleet.devices
    (True, ('cpu:0',))
    """
    global _fleet
    if _LIGHTNING & sys.modules.keys():
        from hetero.train.frameworks import lightning_strategies

        lightning_strategies.register()
    if _fleet is not None and _fleet.is_own:
        return _fleet
    text = settings.read(LAUNCHED)
    if text.startswith("{"):
        settings.switch_on(LAUNCHED, f"process {os.getpid()}")
        from hetero.train.launch.launched import Member

        _fleet = Member(LaunchedProcess.from_text(text))
        return _fleet
    _fleet = TrainingFleet()
    if text.startswith(RECORD):
        settings.switch_on(LAUNCHED, "")
        from hetero.train.launch.step_records import record_steps

        record_steps(text.removeprefix(RECORD))
    elif text and text != f"process {os.getpid()}":
        _fleet.rank, _fleet._pid = -1, 0
    elif (settings.present(["WORLD_SIZE"])["WORLD_SIZE"] or "1") != "1":
        raise BadValueError(
            "the script was started by another launcher (WORLD_SIZE is set)", remedy="start it with `hetero launch`"
        )
    return _fleet


_fleet: TrainingFleet | None = None


class TrainingFleet:
    """The devices that run a script together; this one has a single device, as under plain ``python``.

    Attributes
    ----------
    rank
        This process's number, from 0.
    devices
        Short names of all devices, by rank.
    is_main
        Whether this process is the one that prints and saves.
    device
        torch's device of this process.

    Examples
    --------
    >>> import hetero
    >>> fleet = hetero.train.init()
    >>> fleet.rank, fleet.world_size, fleet.is_main
    (0, 1, True)
    """

    def __init__(self) -> None:
        self.rank = 0
        self.devices: tuple[str, ...] = ("cpu:0",)
        self.device = torch.device("cpu")
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if accelerator is not None:
            self.device = torch.device(accelerator.type, 0)
            self.devices = (f"{accelerator.type}:0",)
        self._pid = os.getpid()
        self._batch = 0

    @property
    def is_own(self) -> bool:
        """Return whether this is the process that called `init`, and none that it forked."""
        return self._pid == os.getpid()

    @property
    def world_size(self) -> int:
        """How many processes take part."""
        return len(self.devices)

    @property
    def is_main(self) -> bool:
        """Return whether this process is the one that prints and saves."""
        return self.rank == 0

    @property
    def global_batch(self) -> int:
        """Samples of the whole current batch, of which this process has a part; 0 before the first.

        Examples
        --------
        >>> import hetero
        >>> hetero.train.init().global_batch
        0
        """
        return self._batch

    def prepare(self, *objects: Batch) -> Batch:
        """Return models, optimizers, loaders and schedulers made ready for the devices, in the order given.

        Models are moved to this process's device and start with the same weights in all processes. A loader hands each
        process its own part of every batch. Optimizers, schedulers and gradient scalers stay as they are.

        Parameters
        ----------
        *objects
            `torch.nn.Module`, `torch.optim.Optimizer`, `torch.utils.data.DataLoader`, and what `torch` has for
            learning rates and for scaling gradients; a `transformers.Trainer` or an `accelerate.Accelerator`, which
            is changed itself; None stays None.

        Raises
        ------
        BadValueError
            One is of another type.

        Examples
        --------
        >>> import hetero, torch
        >>> model = hetero.train.init().prepare(torch.nn.Linear(2, 1))
        >>> type(model).__name__
        'Linear'
        """
        self._check_own()
        found = tuple(self._prepared(each) for each in objects)
        return found[0] if len(found) == 1 else found

    def _prepared(self, given: Batch) -> Batch:
        if isinstance(given, torch.nn.Module):
            return self._prepared_model(given)
        if isinstance(given, torch.optim.Optimizer):
            return self._prepared_optimizer(given)
        if isinstance(given, DataLoader):
            return self._prepared_loader(given)
        if given is None or _is_helper(given) or isinstance(given, SharedLoader | PlacedLoader):
            return given
        if is_made_by(given, *_FRAMEWORKS):
            return self._prepared_framework(given)
        raise BadValueError(
            f"a {type(given).__name__} cannot be prepared",
            remedy="give models, optimizers, DataLoaders, schedulers and gradient scalers of torch, a Trainer of "
            "transformers or an Accelerator",
        )

    def _prepared_model(self, model: torch.nn.Module) -> torch.nn.Module:
        return model if self.device.type == "cpu" else model.to(self.device)

    def _prepared_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return optimizer

    def _prepared_loader(self, loader: DataLoader[Batch]) -> Batch:
        return PlacedLoader(loader, self)

    def _prepared_framework(self, given: Batch) -> Batch:
        return given

    def backward(self, loss: Tensor, weight: float | None = None, **kwargs: Batch) -> None:
        """Compute gradients, those of the whole batch in every process.

        `loss.backward()` does the same. Afterwards the value of the loss is that of the whole batch, too, where it is
        one mean or one sum, or a mean and penalties on parameters.

        Parameters
        ----------
        loss
            Of this process's part of the batch.
        weight
            What the mean of the loss divides by in this process, as in the number of tokens; None finds it out.
        **kwargs
            As for `torch.Tensor.backward`.

        Examples
        --------
        >>> import hetero, torch
        >>> weights = torch.ones(2, requires_grad=True)
        >>> hetero.train.init().backward(weights.mean())
        >>> weights.grad.tolist()
        [0.5, 0.5]
        """
        del weight
        self._check_own()
        backward(loss, **kwargs)

    def step(self, function: Callable[..., T], *batch: Batch) -> T:
        """Call a function, again where a process is lost in it; returns what it returns.

        Without it a process that is killed ends the run. With it the others go back to where the function began, share
        the batch among themselves, and call it again.

        Parameters
        ----------
        function
            Computes a step, up to `optimizer.step()`, or an evaluation. Beside models and optimizers it changes nothing
            that lasts, since it may be called again.
        *batch
            What it is given: the batch as the loader gave it, whole or in parts, and whatever has no rows.

        Raises
        ------
        BadValueError
            A tensor is not of the last batch of a loader.

        Examples
        --------
        >>> import hetero, torch
        >>> fleet = hetero.train.init()
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1)), 4)
        >>> model, optimizer, loader = fleet.prepare(model, optimizer, loader)
        >>> def train(inputs, targets):
        ...     optimizer.zero_grad()
        ...     loss = torch.nn.functional.mse_loss(model(inputs), targets)
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss.item()
        >>> losses = [fleet.step(train, inputs, targets) for inputs, targets in loader]
        >>> len(losses)
        2
        """
        self._check_own()
        return function(*batch)

    def split(self, *batch: Batch, dim: int = 0) -> Batch:
        """Return this process's rows of a batch that the script made itself, and of its targets.

        Parameters
        ----------
        *batch
            Tensors, arrays, lists, or tuples and dicts of them; the first dimension is the samples. All processes
            give the same.
        dim
            Where tensors and arrays have the samples.

        Examples
        --------
        >>> import hetero, torch
        >>> hetero.train.init().split(torch.arange(4))
        tensor([0, 1, 2, 3])
        """
        self._check_own()
        found = batch[0] if len(batch) == 1 else batch
        self._batch = samples_in(found, dim) or 0
        return found

    def gather(self, rows: Batch) -> Batch:
        """Return the rows of all processes in the order of the batch, of each tensor that is given; no gradients pass.

        Examples
        --------
        >>> import hetero, torch
        >>> hetero.train.init().gather(torch.arange(4))
        tensor([0, 1, 2, 3])
        """
        self._check_own()
        return map_tensors(lambda part: part.detach(), rows)

    def sum(self, value: object) -> Tensor:
        """Return the sum of a number or tensor over all processes.

        Examples
        --------
        >>> import hetero
        >>> float(hetero.train.init().sum(2.5))
        2.5
        """
        self._check_own()
        return torch.as_tensor(value).detach()

    def broadcast(self, value: Batch) -> Batch:
        """Return in all processes what the main one gives, as the metrics of an evaluation that it has made alone.

        Parameters
        ----------
        value
            Anything that can be pickled; that of the other processes is ignored.

        Examples
        --------
        >>> import hetero
        >>> hetero.train.init().broadcast({"accuracy": 0.5})
        {'accuracy': 0.5}
        """
        self._check_own()
        return value

    @transparent
    def no_sync(self) -> Iterator[None]:
        """Keep the gradients of the backward passes in here until the first one outside, which exchanges them all.

        Examples
        --------
        >>> import hetero
        >>> with hetero.train.init().no_sync():
        ...     pass
        """
        yield

    def print(self, *words: object, **kwargs: Batch) -> None:
        """Print in the main process only, as `print` does.

        Examples
        --------
        >>> import hetero
        >>> hetero.train.init().print("hello")
        hello
        """
        if self.is_main:
            print(*words, **kwargs)  # noqa: T201  it is asked for

    def wait(self) -> None:
        """Wait until all processes are here.

        Examples
        --------
        >>> import hetero
        >>> hetero.train.init().wait()
        """
        self._check_own()

    @transparent
    def main_first(self) -> Iterator[None]:
        """Have the main process go through a block before the others, as to download or unpack what all read.

        Hosts share no folder: on each other host one process goes through it at the same time as the main one.

        Examples
        --------
        >>> import hetero
        >>> with hetero.train.init().main_first():
        ...     data = list(range(4))
        """
        if not self._is_first_here:
            self.wait()
        yield
        if self._is_first_here:
            self.wait()

    @property
    def _is_first_here(self) -> bool:
        """Return whether no process of a lower rank is on this host."""
        return self.is_main

    def _check_own(self) -> None:
        if not self.is_own:
            raise BadValueError(
                f"process {os.getpid()} was started by the script itself, and takes no part in the training",
                remedy="use the fleet only in the process that called hetero.train.init()",
            )


class PlacedLoader:
    """A loader whose batches are moved to a device."""

    def __init__(self, loader: DataLoader[Batch], fleet: TrainingFleet) -> None:
        self._loader = loader
        self._fleet = fleet

    def __getattr__(self, name: str) -> Batch:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        return self._placed(iter(self._loader))

    def _placed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._fleet._batch = samples_in(batch) or 0
            yield batch if self._fleet.device.type == "cpu" else moved_to(self._fleet.device, batch)


def is_made_by(given: object, *names: str) -> bool:
    """Return whether an object's class, or one that it inherits from, has one of these full names.

    Examples
    --------
    >>> is_made_by(torch.nn.Linear(1, 1), "torch.nn.modules.module.Module")
    True
    """
    return any(f"{kind.__module__}.{kind.__qualname__}" in names for kind in type(given).__mro__)


def _is_helper(given: object) -> bool:
    schedules = torch.optim.lr_scheduler.LRScheduler | torch.optim.lr_scheduler.ReduceLROnPlateau
    return isinstance(given, schedules | torch.amp.GradScaler | torch.optim.swa_utils.AveragedModel)
