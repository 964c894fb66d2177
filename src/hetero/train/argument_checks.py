"""What a Trainer is given, checked before anything starts.

In: arguments as users write them. Out: values as the run needs them, or one line that says what is allowed.
It must not open devices or read samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hetero.floor.errors import BadValueError
from hetero.floor.options import options_argument
from hetero.plan.training.shares import given_shares
from hetero.train.compatibility import check_loss, check_model, check_optimizer, check_parameters
from hetero.train.data import Samples
from hetero.train.replica import mixing_layers
from hetero.train.schedules import unstepped_scheduler
from hetero.train.values import TrainOptions

if TYPE_CHECKING:
    from hetero.train.values import EpochReport

__all__ = [
    "batch_size",
    "callbacks",
    "costs",
    "exact_over",
    "folder",
    "model_and_optimizer",
    "sampling",
    "supported",
    "train_options",
    "trained_names",
]


def model_and_optimizer(model: object, optimizer: object) -> None:
    """Check that a model and an optimizer are such."""
    if not isinstance(model, torch.nn.Module):
        raise BadValueError(f"{type(model).__name__} is no model", remedy="give a torch.nn.Module")
    if isinstance(optimizer, list | tuple | dict):
        check_optimizer(optimizer)
    if isinstance(optimizer, type):
        raise BadValueError(
            f"{optimizer.__name__} is a class, and training needs an optimizer with its settings",
            remedy=f"give {optimizer.__name__}(model.parameters(), lr=0.01), or a function of the parameters",
        )
    if not hasattr(optimizer, "param_groups") and not callable(optimizer):
        raise BadValueError(
            f"{optimizer!r} is no optimizer", remedy="give torch.optim.Adam(model.parameters()) or a function"
        )


def batch_size(global_batch: int, samples: int) -> None:
    """Check that there are as many samples as a step needs."""
    if global_batch > samples:
        raise BadValueError(
            f"global_batch={global_batch} is more than the {samples} samples of the data", remedy="make it smaller"
        )


def sampling(data: Samples, options: TrainOptions, *, logged: bool) -> None:
    """Check that an epoch has as many samples as a step needs, and that what draws them suits the other options."""
    draw = data.draw
    batch_size(options.global_batch, draw.samples or len(data))
    if options.shuffle is False and (draw.samples or draw.replacement):
        raise BadValueError(
            "shuffle=False, and the loader's sampler draws at random", remedy="leave shuffle out, or give the dataset"
        )
    if logged and (data.an_epoch(options.global_batch) != len(data) or draw.replacement):
        raise BadValueError(
            "sample_log checks that an epoch has each sample once, and the loader draws or drops some",
            remedy="leave one of the two out",
        )


def supported(model: object, loss: object, optimizer: object, epochs: int, hearers: Sequence[object]) -> None:
    """Refuse by name what the program hung onto its parts and training would lose.

    Parameters
    ----------
    hearers
        What hears of every epoch, and may step a scheduler then.
    """
    check_optimizer(optimizer)
    check_model(model)
    check_parameters(model, optimizer)
    check_loss(loss)
    scheduler = unstepped_scheduler(optimizer, hearers) if epochs > 1 else ""
    if scheduler:
        silent = f": none of the {len(hearers)} callbacks has it at hand" if hearers else ""
        raise BadValueError(
            f"a {scheduler} holds the optimizer, and nothing would step it in {epochs} epochs{silent}",
            remedy="step it every epoch, by callbacks=[lambda report: scheduler.step()], or between calls of fit(1)",
        )


def trained_names(model: torch.nn.Module) -> tuple[str, ...]:
    """Name the parameters that are trained."""
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def folder(given: str | Path | None) -> str:
    """Return the absolute path of a folder, '' for none."""
    return "" if given is None else str(Path(given).expanduser().absolute())


def train_options(global_batch: int | None, options: TrainOptions | None) -> TrainOptions:
    """Return the options of a Trainer, which was given them or the global batch alone."""
    options = options_argument("options", options, TrainOptions)
    if options is None:
        if global_batch is None:
            raise BadValueError("a Trainer needs the samples of a step", remedy="give global_batch=128")
        return TrainOptions(global_batch)
    if global_batch is not None:
        raise BadValueError(
            f"global_batch={global_batch} has no effect beside options=",
            remedy=f"write options=TrainOptions({global_batch}, …)",
        )
    return options


def callbacks(given: object) -> tuple[Callable[[EpochReport], object], ...]:
    """Check functions of a report.

    Examples
    --------
    >>> callbacks([print]) == (print,)
    True
    """
    found = tuple(given) if isinstance(given, list | tuple) else (None,)
    if not all(callable(one) and not isinstance(one, type) for one in found):
        remedy = "give a list of functions of an EpochReport, or objects such as EarlyStopping()"
        raise BadValueError(f"callbacks={given!r} is not allowed", remedy=remedy)
    return found


def costs(cost: Iterable[float], samples: int) -> list[float]:
    """Check what each sample costs; returns it in units of the mean.

    Examples
    --------
    >>> costs([10, 30], 2)
    [0.5, 1.5]
    """
    found = [float(one) for one in cost]
    if len(found) != samples or not all(0 < one < float("inf") for one in found):
        raise BadValueError(
            f"cost has {len(found)} numbers for {samples} samples, or one that is not above 0",
            remedy="give one positive number a sample",
        )
    mean = sum(found) / len(found)
    return [one / mean for one in found]


def exact_over(model: object, options: TrainOptions, names: Sequence[str]) -> None:
    """Check that a model can be trained exactly over some devices, with the shares that were asked for."""
    if isinstance(options.shares, Mapping):
        given_shares(options.shares, names, options.global_batch)
    mixing = mixing_layers(model)
    if options.recompute != "none" and mixing:
        raise BadValueError(
            f"{mixing[0]} would count its samples twice where it is recomputed",
            remedy="use torch.nn.GroupNorm, put these layers into eval mode, or leave recompute out",
        )
    if options.cuts(len(names)) and mixing:
        raise BadValueError(
            f"{mixing[0]} takes its statistics from the samples of a pass, and each device sees only its part",
            remedy="use torch.nn.GroupNorm, put these layers into eval mode, or train on one device",
        )
