"""A recipe trained on one device, inside a task: what a trial of a search does.

In: a recipe, data. Out: the test after every epoch. It is the loop of a training member without its group, so the
same seed gives what `hetero train` gives on that device. It must not open a Context.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hetero.train.recipe import Recipe
from hetero.train.values import Evaluation, Options

if TYPE_CHECKING:
    from hetero.train.mnist import Digits

__all__ = ["train_alone"]

_EVALUATE_AT_ONCE = 256


def train_alone(recipe: Recipe, digits: Digits) -> Iterator[Evaluation]:
    """Train epoch by epoch, and test after each.

    Raises
    ------
    NotANumberError
        The loss is not a number.
    """
    from hetero.comm.group import Group
    from hetero.train.data import as_samples

    options = Options(**recipe.options)
    replica = _replica(recipe, options)
    group, batch = Group(0, 1), options.global_batch
    train, test = as_samples(digits.train), as_samples(digits.test)
    for epoch in range(recipe.epochs):
        ids = train.order(options, epoch)
        for begin in range(0, len(ids), batch):
            piece = ids[begin : begin + batch]
            total, _ = replica.reduce(group, replica.compute(train, piece, len(piece)), [])
            replica.apply(total, len(piece))
            replica.step += 1
        sums = replica.evaluate(test, range(len(test)), _EVALUATE_AT_ONCE)
        accuracy = sums.right / sums.classes if sums.classes else None
        yield Evaluation(len(test), sums.loss / sums.weight, accuracy)


def _replica(recipe: Recipe, options: Options) -> Any:
    import cloudpickle
    import torch

    from hetero.drive.frame import current
    from hetero.train.example import make_model, make_optimizer
    from hetero.train.probing import torch_place
    from hetero.train.replica import Replica

    frame = current()
    torch.manual_seed(options.seed)
    parts = cloudpickle.dumps((make_model(recipe.model), torch.nn.CrossEntropyLoss(), make_optimizer(recipe)))
    return Replica(parts, options, "cpu" if frame is None else torch_place(frame.device), 0)
