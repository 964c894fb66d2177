"""Where a model draws random numbers: the keyed mode is on there and nowhere else, since it costs at every operation.

In: a model, the keyed random numbers, a pass. Out: the same numbers as with the mode on everywhere.
It must not trust what it learned: a pass in which the model drew elsewhere is told of, and done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch

from hetero.train.keyed_random import KeyedRandom, RandomRefusedError

__all__ = ["Drawing", "refuse_unkeyed"]

_Found = TypeVar("_Found")


class Drawing:
    """Runs passes of a model under keyed random numbers.

    Parameters
    ----------
    random : what the model draws from
    model : whose modules are watched

    Notes
    -----
    In the first pass the mode is on throughout, and the innermost module in which each number was drawn is kept.
    From then on the mode is on in these modules alone. Whether anything was drawn elsewhere shows in torch's own
    generator, which has moved then; after that the mode is on throughout for good.
    """

    def __init__(self, random: KeyedRandom, model: Any) -> None:
        self.random = random
        self._places: list[Any] = []
        self._inside: list[Any] = []
        self._throughout = True
        random.on_draw = self._note
        self._hooks = [hook for module in model.modules() for hook in _around(module, self._inside.append, self._leave)]

    @contextmanager
    def over(self, step: int, samples: Sequence[int]) -> Iterator[Callable[[Callable[[], _Found]], _Found]]:
        """Do one pass over samples, given by their ids; returns what runs the forward part and hands on its outcome.

        Raises
        ------
        RandomRefusedError
            The model draws numbers that cannot be keyed.
        """
        self._inside.clear()
        before = torch.get_rng_state()

        def forward(run: Callable[[], _Found]) -> _Found:
            found = run()
            if not self._throughout and not torch.equal(before, torch.get_rng_state()):
                torch.set_rng_state(before)
                self._widen()
                with self.random.begin(step, samples):
                    found = run()
            refuse_unkeyed(before, "the model")
            return found

        self.random.begin(step, samples)
        with self.random if self._throughout else nullcontext():
            yield forward
        if self.random.on_draw is not None:
            self._narrow()

    def _narrow(self) -> None:
        """Keep the mode for the modules that drew; nothing changes where something outside all modules did."""
        self.random.on_draw = None
        self._take_off()
        if None not in self._places:
            self._throughout = False
            self._hooks = [hook for module in self._places for hook in _around(module, self._enter, self._exit)]

    def _widen(self) -> None:
        """Have the mode on throughout, for good."""
        self._take_off()
        self._throughout = True

    def _take_off(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _note(self) -> None:
        innermost = self._inside[-1] if self._inside else None
        if not any(innermost is place for place in self._places):
            self._places.append(innermost)

    def _leave(self, _: Any) -> None:
        self._inside.pop()

    def _enter(self, module: Any) -> None:
        if not self._inside:
            self.random.__enter__()
        self._inside.append(module)

    def _exit(self, _: Any) -> None:
        self._inside.pop()
        if not self._inside:
            self.random.__exit__(None, None, None)


def _around(module: Any, before: Any, after: Any) -> tuple[Any, Any]:
    """Call two functions of a module before and after each of its forward passes, also of one that fails."""
    return (
        module.register_forward_pre_hook(lambda inner, _: before(inner)),
        module.register_forward_hook(lambda inner, *_: after(inner), always_call=True),
    )


def refuse_unkeyed(before: Any, what: str) -> None:
    """Refuse what drew from torch's own generator since `before`: its numbers are the same for nobody else."""
    if not torch.equal(before, torch.get_rng_state()):
        raise RandomRefusedError(
            f"{what} draws random numbers from torch's generator in a way that cannot be keyed by sample",
            remedy="draw with torch.rand, torch.randn or dropout in the forward pass",
        )
