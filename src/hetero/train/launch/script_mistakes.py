"""What a script under `hetero launch` may do that several processes cannot do together, and the line that says so.

In: losses, loaders, optimizers and errors of the script. Out: errors that name the mistake and the remedy.
It must not talk to other processes, nor end one.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from hetero.floor import settings
from hetero.floor.errors import BadValueError, HeteroError
from hetero.train.launch.shared_loader import Batch

__all__ = [
    "check_loss", "data_differs", "hidden_devices", "last_words", "loader_numbers", "loaders_differ", "raise_if",
    "uninitialized", "unprepared", "without_backward", "without_batch",
]  # fmt: skip

_OF_OTHER_LAUNCHERS = ("environment variable RANK expected", "process group has not been initialized")


def raise_if(error: HeteroError | None) -> None:
    """Raise what one of the others has found."""
    if error is not None:
        raise error


def check_loss(loss: Tensor, gradient: object) -> None:
    """Raise unless a loss is one number, or its gradient is given.

    Raises
    ------
    BadValueError
        The loss has several numbers.

    Examples
    --------
    >>> import torch
    >>> check_loss(torch.ones(()), None)
    >>> check_loss(torch.ones(3), None)
    Traceback (most recent call last):
        ...
    hetero.floor.errors.BadValueError: backward() was called on a tensor of shape (3,); call it on its mean() or sum()
    """
    if gradient is None and loss.numel() != 1:
        raise BadValueError(
            f"backward() was called on a tensor of shape {tuple(loss.shape)}", remedy="call it on its mean() or sum()"
        )


def loader_numbers(loader: DataLoader[Batch]) -> tuple[float, float]:
    """Return by what loaders of processes are compared: batches and samples, -1 for what has no length."""
    return _length(loader), _length(loader.dataset)


def _length(sized: Batch) -> float:
    try:
        return float(len(sized))
    except (TypeError, NotImplementedError):
        return -1.0


def loaders_differ(names: Sequence[str], numbers: Sequence[Sequence[float]]) -> BadValueError | None:
    """Return what is wrong with loaders that processes have prepared together, by `loader_numbers` of each.

    Examples
    --------
    >>> loaders_differ(["cpu:0", "cpu:1"], [(4, 64), (4, 64)])
    >>> loaders_differ(["cpu:0", "cpu:1"], [(4, 64), (3, 48)]).problem
    'the processes prepare different loaders: 4 batches of 64 samples in cpu:0, 3 of 48 in cpu:1'
    """
    if len({tuple(each) for each in numbers}) == 1:
        return None
    words = [f"{batches:g} of {samples:g} in {name}" for name, (batches, samples) in zip(names, numbers, strict=True)]
    words[0] = f"{numbers[0][0]:g} batches of {numbers[0][1]:g} samples in {names[0]}"
    return BadValueError(
        f"the processes prepare different loaders: {', '.join(words)}",
        remedy="give all of them the whole dataset: each process gets its part of every batch",
    )


def data_differs(names: Sequence[str], differs: Sequence[bool]) -> BadValueError:
    """Return the error that says which processes have other data than the one that checks.

    Examples
    --------
    >>> data_differs(["cpu:0", "cpu:1"], [False, True]).problem
    'cpu:1 reads other rows of the same batch than cpu:0 and the process that checks the first steps'
    """
    others = [name for name, is_other in zip(names, differs, strict=True) if is_other]
    alike = ", ".join(name for name in names if name not in others)
    return BadValueError(
        f"{', '.join(others)} {'reads' if len(others) == 1 else 'read'} other rows of the same batch than "
        f"{alike}{' and ' if alike else ''}the process that checks the first steps",
        remedy="have the same files on all hosts, and make the data alike in all processes",
    )


def uninitialized(label: str, parameters: Sequence[Tensor]) -> BadValueError | None:
    """Return what is wrong where parameters have no shape yet.

    Examples
    --------
    >>> import torch
    >>> uninitialized("LazyLinear", list(torch.nn.LazyLinear(2).parameters())).problem
    'LazyLinear has parameters whose shapes are not known yet'
    """
    if not any(is_lazy(each) for each in parameters):
        return None
    return BadValueError(
        f"{label} has parameters whose shapes are not known yet", remedy="call the model once before fleet.prepare()"
    )


_sizes: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()


def unprepared(optimizer: Optimizer, prepared: Collection[int]) -> BadValueError | None:
    """Return what is wrong where an optimizer steps parameters whose gradients are those of a part of a batch.

    Parameters
    ----------
    prepared
        By `id`, the parameters of what was prepared.

    Notes
    -----
    Looks at all parameters of an optimizer only where their number has changed.
    """
    size = sum(len(group["params"]) for group in optimizer.param_groups)
    if _sizes.get(optimizer) == size:
        return None
    strange = sum(id(each) not in prepared for group in optimizer.param_groups for each in group["params"])
    if not strange:
        _sizes[optimizer] = size
        return None
    return BadValueError(
        f"{type(optimizer).__name__} steps {strange} parameters that were not prepared, so that each process has "
        "gradients of its own part of a batch",
        remedy="give fleet.prepare() the model, or the optimizer after its last group was added",
    )


def without_backward(optimizer: Optimizer) -> BadValueError | None:
    """Return what is wrong where an optimizer steps by gradients that are no backward pass's of the batch.

    Examples
    --------
    >>> import torch
    >>> weights = torch.ones(2, requires_grad=True)
    >>> without_backward(torch.optim.SGD([weights], 0.1))
    >>> weights.grad = torch.ones(2)
    >>> without_backward(torch.optim.SGD([weights], 0.1)).problem
    'SGD steps by gradients that no backward() has brought, so that they are those of a part of a batch'
    """
    if all(each.grad is None for group in optimizer.param_groups for each in group["params"]):
        return None
    return BadValueError(
        f"{type(optimizer).__name__} steps by gradients that no backward() has brought, so that they are those of a "
        "part of a batch",
        remedy="call backward() of the loss in place of torch.autograd.grad, or add them up with fleet.sum",
    )


def held_back(optimizer: Optimizer) -> BadValueError:
    """Return the error that says that an optimizer steps before gradients of parts of batches were exchanged."""
    return BadValueError(
        f"{type(optimizer).__name__} steps while gradients of backward passes in fleet.no_sync() are not exchanged",
        remedy="leave no_sync() before the last backward() that comes before a step, also at the end of an epoch",
    )


def batches_differ(at: Mapping[str, int]) -> BadValueError:
    """Return the error that says that processes go backwards with other batches.

    Parameters
    ----------
    at
        How many batches each has had, by the name of its device.

    Examples
    --------
    >>> batches_differ({"cpu:0": 6, "cpu:1": 7}).problem
    'the processes go backwards with different batches: cpu:0 with its number 6, cpu:1 with its number 7'
    """
    return BadValueError(
        "the processes go backwards with different batches: "
        + ", ".join(f"{name} with its number {number}" for name, number in at.items()),
        remedy="skip a batch in all processes or in none: before backward, a loss is that of the own rows; "
        "fleet.sum(loss) is alike in all",
    )


def of_batch_by_closure(name: str) -> BadValueError:
    """Return the error that says that a step takes a part of its batch from outside.

    Examples
    --------
    >>> of_batch_by_closure("targets").remedy
    'give it all of the batch, as in fleet.step(train, inputs, targets)'
    """
    return BadValueError(
        f"the function of fleet.step takes {name}, a part of the batch, from outside, where it stays that of the "
        "processes that there were when one is lost",
        remedy="give it all of the batch, as in fleet.step(train, inputs, targets)",
    )


def without_batch() -> BadValueError:
    """Return the error that says that a step computes rows of a batch that it was not given."""
    return BadValueError(
        "fleet.step was given no batch, and its function computes other rows in each process: those of a process that "
        "is lost would be missing",
        remedy="give it the batch as the loader gave it, as in fleet.step(train, inputs, targets)",
    )


def hidden_devices(wanted: Mapping[str, str | None]) -> BadValueError | None:
    """Return what is wrong where a script has chosen other devices than those that it was given.

    Parameters
    ----------
    wanted
        The variables by which devices are hidden, as they were set for this process.

    Examples
    --------
    >>> hidden_devices({"A_VARIABLE_THAT_IS_NOT_SET": None})
    >>> hidden_devices({"A_VARIABLE_THAT_IS_NOT_SET": "1"}).problem
    "the script sets A_VARIABLE_THAT_IS_NOT_SET to None, and this process has '1'"
    """
    for name, value in settings.present(wanted).items():
        if value != wanted[name]:
            return BadValueError(
                f"the script sets {name} to {value!r}, and this process has {wanted[name]!r}",
                remedy="take that out, and choose devices by `hetero launch --devices`",
            )
    return None


def last_words(error: BaseException, trace: TracebackType | None) -> str | None:
    """Return one line on what has ended a script, None where it is an error of its own."""
    if not isinstance(error, HeteroError):
        if not any(words in str(error) for words in _OF_OTHER_LAUNCHERS):
            return None
        error = BadValueError(
            "torch.distributed is not set up by `hetero launch`",
            remedy="take init_process_group and DistributedDataParallel out: fleet.prepare(model) does their work",
        )
    own = [each for each in traceback.extract_tb(trace) if each.filename == sys.argv[0]]
    return f"{own[-1].filename}, line {own[-1].lineno}: {error}" if own else str(error)
