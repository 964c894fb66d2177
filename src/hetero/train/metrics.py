"""Metrics of a test: objects of torchmetrics, and functions of (outputs, targets).

In: outputs and targets, pass by pass in the order of the samples. Out: numbers by name. It must not know who computed
the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import torch

from hetero.floor.errors import BadValueError
from hetero.floor.units import shown
from hetero.train.values import FIGURES

__all__ = ["MetricValue", "Metrics", "Outputs", "check_metrics", "measured"]

Outputs: TypeAlias = tuple[object, object]
"""What the model gave in a pass of a test, and the targets, on the host."""
MetricValue: TypeAlias = "float | list[float]"


@runtime_checkable
class MetricObject(Protocol):
    """What torchmetrics calls a metric: it adds up passes, and computes at the end."""

    def reset(self) -> None:
        """Forget all passes."""
        ...

    def update(self, outputs: object, targets: object) -> object:
        """Add a pass."""
        ...

    def compute(self) -> object:
        """Return the value over all passes."""
        ...


Metrics: TypeAlias = Mapping[str, MetricObject | Callable[[object, object], object]]


def check_metrics(metrics: object) -> Metrics:
    """Check what a Trainer was given as metrics.

    Raises
    ------
    BadValueError
        It is no dict from texts to metrics or functions.

    Examples
    --------
    >>> check_metrics({"largest": lambda outputs, targets: outputs.max()}).keys()
    dict_keys(['largest'])
    """
    found: Mapping[object, object] = metrics if isinstance(metrics, Mapping) else {"": metrics}
    found = {} if metrics is None else found
    wrong = [name for name, one in found.items() if not (isinstance(name, str) and name and _can_measure(one))]
    if wrong:
        raise BadValueError(
            f"metrics={shown(metrics)} is not allowed",
            remedy="give a dict from names to objects of torchmetrics or functions of (outputs, targets)",
        )
    taken = [str(name) for name in found if name in FIGURES]
    if taken:
        raise BadValueError(
            f"metrics has {', '.join(taken)}, which every report has already", remedy="give it another name"
        )
    return {str(name): one for name, one in found.items() if isinstance(one, MetricObject) or callable(one)}


def _can_measure(one: object) -> bool:
    return not isinstance(one, type) and (isinstance(one, MetricObject) or callable(one))


def measured(metrics: Metrics, passes: Sequence[Outputs]) -> dict[str, MetricValue]:
    """Return what metrics find in a test.

    Parameters
    ----------
    passes
        In the order of the samples. A metric of torchmetrics is reset and takes them one by one, on its own device; a
        function takes all of them together.

    Raises
    ------
    BadValueError
        Passes cannot be put together for a function, or a value is no number.

    Examples
    --------
    >>> passes = [(torch.tensor([[0.0, 1.0]]), torch.tensor([1])), (torch.tensor([[0.0, 1.0]]), torch.tensor([0]))]
    >>> measured({"right": lambda outputs, targets: (outputs.argmax(1) == targets).double().mean()}, passes)
    {'right': 0.5}
    """
    found: dict[str, MetricValue] = {}
    for name, metric in metrics.items():
        if isinstance(metric, MetricObject):
            metric.reset()
            place = getattr(metric, "device", "cpu")
            for outputs, targets in passes:
                metric.update(_each_tensor(outputs, place), _each_tensor(targets, place))
            value = metric.compute()
        else:
            value = metric(_joined([each for each, _ in passes]), _joined([each for _, each in passes]))
        parts = {f"{name}_{key}": one for key, one in value.items()} if isinstance(value, Mapping) else {name: value}
        found |= {key: _plain(key, one) for key, one in parts.items()}
    return found


def _each_tensor(value: object, place: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.to(place)
    if isinstance(value, tuple | list):
        return tuple(_each_tensor(one, place) for one in value)
    return {key: _each_tensor(one, place) for key, one in value.items()} if isinstance(value, Mapping) else value


def _joined(parts: Sequence[object]) -> object:
    """Return what all passes have, by its first dimension; tables and tuples part by part."""
    first = parts[0]
    if isinstance(first, tuple | list):
        return tuple(_joined(column) for column in zip(*parts, strict=True))
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}  # type: ignore[index]
    try:
        return torch.cat(parts)
    except (RuntimeError, TypeError) as error:
        raise BadValueError(
            f"the passes of a test cannot be put together for a function: {' '.join(str(error).split())}",
            remedy="give a metric of torchmetrics, which takes them one by one",
        ) from error


def _plain(name: str, value: object) -> MetricValue:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().tolist()
    if isinstance(value, bool | int | float):
        return float(value)
    if hasattr(value, "tolist"):
        return _plain(name, value.tolist())
    if isinstance(value, list):
        return value
    raise BadValueError(
        f"the metric {name!r} gave {shown(value)}, which is no number", remedy="return a number or a tensor of numbers"
    )
