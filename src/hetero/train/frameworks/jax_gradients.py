"""Gradients of a JAX function in a process of `hetero launch`: own rows are computed, those of all are returned.

In: a function, its parameters, a batch. Out: value and gradients of the whole batch, weighted and compared with one
device as those of torch are: to the fleet, they are gradients of parameters of torch. It must not import JAX before it
is called.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hetero.floor.errors import BadValueError
from hetero.train.launch.fleet import init
from hetero.train.launch.shared_loader import Batch

if TYPE_CHECKING:
    from hetero.train.launch.launched import Member

__all__ = ["value_and_grad"]

_CLOSE = 1e-2
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_Function = Callable[..., Any]


def value_and_grad(
    fun: _Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    reduction: Literal["mean", "sum"] = "mean",
    weight: _Function | None = None,
) -> _Function:
    """Return a function that computes `fun` and its gradients for a batch, of which each process has its rows.

    It is called as what ``jax.value_and_grad(fun, argnums, has_aux)`` returns, with the whole batch, in every process
    alike, and returns the same. Under plain ``python`` it is that function.

    Parameters
    ----------
    fun
        Returns the loss of the rows that it is given; it may be jitted.
    argnums
        Arguments by which to derive. Of all others, arrays are cut whose first dimension is that of the first array in
        them; keys of random numbers are not.
    has_aux
        Whether `fun` also returns something else: arrays with a row for each sample, numbers that are means over
        samples, and whole numbers and other things that do not depend on the rows.
    reduction
        Whether the loss is a mean or a sum over samples.
    weight
        Given the same arguments as `fun`, what the mean of the loss divides by; None for the number of samples.

    Returns
    -------
    Callable
        For use outside of ``jax.jit``: jit `fun` and the update instead.

    Examples
    --------
    >>> import hetero, jax.numpy as jnp
    >>> step = hetero.jax.value_and_grad(lambda scale, x: (scale * x).mean())
    >>> value, gradient = step(2.0, jnp.arange(4.0))
    >>> float(value), float(gradient)
    (3.0, 1.5)
    """
    if reduction not in ("mean", "sum"):
        raise BadValueError(f"reduction: {reduction!r} is not offered", remedy="give 'mean' or 'sum'")
    fleet, jax = init(), importlib.import_module("jax")
    plain: _Function = jax.value_and_grad(fun, argnums, has_aux)
    if fleet.world_size == 1:
        return plain
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    return _Divided(fleet, jax, plain, numbers, has_aux, reduction, weight)  # type: ignore[arg-type]


class _Divided:
    """What `value_and_grad` returns in one of several processes."""

    def __init__(
        self,
        fleet: Member,
        jax: Batch,
        plain: _Function,
        argnums: tuple[int, ...],
        has_aux: bool,
        reduction: str,
        weight: _Function | None,
    ) -> None:
        self._fleet = fleet
        self._jax = jax
        self._plain = plain
        self._name: str = getattr(plain, "__name__", "function")
        self._argnums = argnums
        self._has_aux = has_aux
        self._is_sum = reduction == "sum"
        self._weight = weight
        self._parameters: list[torch.nn.Parameter] = []
        self._calls = 0
        kinds = {"cuda": "gpu"}
        found = jax.devices(kinds.get(fleet.device.type, fleet.device.type))
        self._device = found[min(fleet.device.index or 0, len(found) - 1)]

    def __call__(self, *args: Batch, **options: Batch) -> Batch:
        tree = self._jax.tree_util
        if any(isinstance(each, self._jax.core.Tracer) for each in tree.tree_leaves((args, options))):
            raise BadValueError(
                "what hetero.jax.value_and_grad returns was called inside of jax.jit, where processes cannot exchange",
                remedy="jit the function that it is given, and the update of the parameters",
            )
        own_args, own_options = self._own(args, options)
        with self._jax.default_device(self._device):
            found, gradients = self._plain(*own_args, **own_options)
        value, aux = found if self._has_aux else (found, None)
        paths, shape = tree.tree_flatten_with_path(gradients)
        if not self._parameters:
            self._prepare(paths)
        arrays = [_floats(leaf) for _, leaf in paths]
        whole, summed = self._exchanged(float(value), arrays, self._count(own_args, own_options))
        self._calls += 1
        if self._fleet.compares_again(self._calls):
            self._compare(args, options, summed)
        aux = tree.tree_map(self._of_all, aux) if self._has_aux else None
        self._fleet.between_batches()
        numpy = self._jax.numpy
        like = [numpy.asarray(new, leaf.dtype) for new, (_, leaf) in zip(summed, paths, strict=True)]
        whole = numpy.asarray(whole, value.dtype)
        return (whole, aux) if self._has_aux else whole, tree.tree_unflatten(shape, like)

    def _compare(self, args: Sequence[Batch], options: dict[str, Batch], summed: Sequence[NDArray[np.generic]]) -> None:
        """Compare gradients with those of the whole batch, computed here: no other process does that any more."""
        with self._jax.default_device(self._device):
            _, gradients = self._plain(*args, **options)
        for (path, leaf), found in zip(self._jax.tree_util.tree_flatten_with_path(gradients)[0], summed, strict=True):
            whole, own = (np.asarray(each, np.float64) for each in (_floats(leaf), found))
            apart = float(np.linalg.norm(whole - own)) / (float(np.linalg.norm(whole)) or 1.0)
            if apart > _CLOSE:
                self._fleet.end_with(
                    BadValueError(
                        f"parts of a batch do not add up to the batch in call {self._calls} of {self._name}: the "
                        f"gradients of {self._jax.tree_util.keystr(path)} differ by {apart:.2g} from one device's",
                        remedy="something mixes the samples of a batch, or the loss is a mean over something else than "
                        "samples: give weight=, or start with --no-strict",
                    )
                )

    def _own(self, args: Sequence[Batch], options: dict[str, Batch]) -> tuple[list[Batch], dict[str, Batch]]:
        """Return the arguments with the own rows of the batch."""
        tree = self._jax.tree_util
        batch = [None if number in self._argnums else each for number, each in enumerate(args)], options
        leaves, shape = tree.tree_flatten(batch)
        arrays = [number for number, leaf in enumerate(leaves) if self._has_rows(leaf)]
        if not arrays:
            raise BadValueError(
                "there is no batch: no argument beside the parameters is an array with a row for each sample",
                remedy="give the batch as arguments, and the parameters by argnums",
            )
        samples = len(leaves[arrays[0]])
        cut = [number for number in arrays if len(leaves[number]) == samples]
        parts = self._fleet.split([_writable(leaves[number]) for number in cut])
        for number, part in zip(cut, parts, strict=True):
            leaves[number] = part
        found, own_options = tree.tree_unflatten(shape, leaves)
        own = [
            given if number in self._argnums else each
            for number, (given, each) in enumerate(zip(args, found, strict=True))
        ]
        return own, own_options

    def _has_rows(self, leaf: Batch) -> bool:
        """Return whether a leaf is an array with a first dimension, and no key of random numbers."""
        if not isinstance(leaf, np.ndarray | self._jax.Array) or not leaf.ndim:
            return False
        if self._jax.dtypes.issubdtype(leaf.dtype, self._jax.dtypes.prng_key):
            return False
        return not (leaf.dtype == np.uint32 and leaf.shape == (2,))

    def _count(self, args: Sequence[Batch], options: dict[str, Batch]) -> float:
        """Return by what the own value counts."""
        if self._weight is not None:
            return float(self._weight(*args, **options))
        return 1.0 if self._fleet.parts == 1 else float(self._fleet.rows.count)

    def _prepare(self, paths: Sequence[tuple[Batch, Batch]]) -> None:
        held: dict[str, torch.nn.Parameter] = {}
        for number, (path, leaf) in enumerate(paths):
            name = self._jax.tree_util.keystr(path).replace(".", "_") or "parameter"
            zeros = torch.zeros(leaf.shape, dtype=torch.from_numpy(_floats(leaf)[:0]).dtype)
            held[name if name not in held else f"{name} {number}"] = torch.nn.Parameter(zeros)
        self._parameters = list(held.values())
        self._fleet.prepare_function(self._name, list(held), self._parameters)

    def _exchanged(
        self, value: float, gradients: Sequence[NDArray[np.generic]], count: float
    ) -> tuple[float, list[NDArray[np.generic]]]:
        """Return value and gradients of the whole batch."""
        factor = 1.0
        if self._is_sum and self._fleet.parts > 1 and count:
            factor = self._fleet.rows.whole / count
        brought = [torch.from_numpy(np.multiply(each, factor) if factor != 1.0 else each) for each in gradients]
        start = torch.tensor(value * factor, dtype=torch.float64)
        loss = _Brought.apply(brought, start, *self._parameters)
        self._fleet.backward(loss, weight=count)
        summed = [each.grad.numpy() for each in self._parameters if each.grad is not None]
        for each in self._parameters:
            each.grad = None
        return float(loss.detach()), summed

    def _of_all(self, leaf: Batch) -> Batch:
        """Return what `fun` returns beside its value, of the whole batch."""
        if not isinstance(leaf, np.ndarray | np.generic | self._jax.Array | float | int):
            return leaf
        array, fleet = np.asarray(leaf), self._fleet
        if array.ndim and len(array) == max(fleet.rows.count, 1):
            return leaf if fleet.parts == 1 else self._jax.numpy.asarray(fleet.gathered(array))
        if array.size == 1 and not np.issubdtype(array.dtype, np.floating):
            if fleet.is_same(int(array.item())):
                return leaf
            words = f"a whole number ({array.item()}) differs between the parts of a batch"
        elif array.size == 1 and not self._is_sum and self._weight is None:
            kind = torch.bfloat16 if array.itemsize == 2 else torch.float64
            whole, mean = fleet.whole_and_mean(torch.tensor(float(array.item()), dtype=kind))
            if fleet.parts == 1 or math.isclose(float(whole), mean, rel_tol=_CLOSE):
                return mean if isinstance(leaf, float) else self._jax.numpy.asarray(mean, array.dtype)
            words = f"a number is {float(whole):.4g} for the whole batch, and {mean:.4g} as the mean of its parts"
        elif fleet.parts == 1:
            return leaf
        else:
            words = f"an array of shape {array.shape}, which has no row for each sample, is of the own rows only"
        raise BadValueError(
            f"has_aux: {words}",
            remedy="return arrays with a row for each sample, and numbers that are means over samples",
        )


class _Brought(torch.autograd.Function):  # type: ignore[misc]
    """A loss of torch with gradients that were computed elsewhere."""

    @staticmethod
    def forward(ctx: Batch, gradients: list[Tensor], value: Tensor, *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Batch, *factors: Tensor) -> tuple[Tensor | None, ...]:
        (factor,) = factors
        return (None, None, *(each * factor.to(each.dtype) for each in ctx.gradients))


def _writable(leaf: Batch) -> NDArray[np.generic]:
    array = np.asarray(leaf)
    return array if array.flags.writeable else array.copy()


def _floats(leaf: Batch) -> NDArray[np.generic]:
    """Return an array as one of those kinds of numbers that torch and NumPy share, which may be written to."""
    array = np.asarray(leaf)
    return np.array(array, dtype=array.dtype if array.dtype in _FLOATS else np.float32)
