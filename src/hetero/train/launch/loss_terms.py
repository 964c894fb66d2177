"""What a loss is made of, read from autograd's graph: which parts are means over what, and which are sums.

In: the loss of one process. Out: its terms, each with what it divides by, so that parts of a batch can be weighted.
It must not talk to others or run a backward pass.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from types import FrameType
from typing import Literal

from torch import Tensor
from torch.autograd.graph import Node

__all__ = ["MOST_TERMS", "Meaning", "Term", "choices_of", "common_factor", "meanings_of", "parts_of", "terms_of"]

Meaning = Literal["mean", "sum", "divided", "samples", "once"]
"""How the parts of a term add up to that of the whole batch.

* ``mean``: each part counts by what its mean divides by;
* ``sum``: parts are added;
* ``divided``: a sum that the script divides by something of its own batch, by which each part counts;
* ``samples``: each part counts by its samples;
* ``once``: every process computes the same, as with a penalty on the parameters.
"""

_PASSED = frozenset(
    {
        "AddBackward0", "SubBackward0", "RsubBackward0", "NegBackward0", "CloneBackward0", "ToCopyBackward0",
        "ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0", "AliasBackward0", "UnsqueezeBackward0",
        "SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "ExpandBackward0", "NanToNumBackward0",
    }
)  # fmt: skip
_CHOOSING = frozenset(
    {
        "Abs", "Amax", "Amin", "Clamp", "ClampMax", "ClampMin", "Elu", "Hardshrink", "Hardtanh", "LeakyRelu", "Max",
        "Maximum", "Min", "Minimum", "Relu", "Sgn", "Softshrink", "Sort", "Threshold", "Topk", "Where",
    }
)  # fmt: skip
"""What is linear piece by piece, so that it depends on a number in which piece it is."""
_MOST_HELD = 64
MOST_TERMS = 16
_MOST_WAYS = 64
_MOST_APART = 8


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a loss.

    Attributes
    ----------
    name
        Of autograd's node.
    node
        The node, which takes hooks.
    weight
        What its mean divides by, NaN where it is no mean that is known.
    divisor
        What the script divides its sum by, NaN where it does not.
    """

    name: str
    node: Node
    weight: float = math.nan
    divisor: float = math.nan

    @property
    def signature(self) -> str:
        """What tells terms of one kind from others, whatever their numbers are."""
        return self.name if self.divisor != self.divisor else f"{self.name} / a number"

    def counts(self, meaning: Meaning) -> float:
        """Return by what a part counts under a meaning, NaN where that needs nothing of the others."""
        return {"mean": self.weight, "divided": self.divisor}.get(meaning, math.nan)

    @property
    def meanings(self) -> tuple[Meaning, ...]:
        """What this term may mean, the likeliest first."""
        if self.weight == self.weight:
            return ("mean", "samples", "once")
        if self.name.startswith(("SumBackward", "NansumBackward")) or self.name.endswith("(sum)"):
            return ("sum", "divided", "once") if self.divisor == self.divisor else ("sum", "once", "samples")
        return ("samples", "sum", "once")

    @property
    def is_known(self) -> bool:
        """Return whether its first meaning follows from torch's own definition."""
        return self.meanings[0] != "samples" and self.divisor != self.divisor


def terms_of(loss: Tensor) -> tuple[Term, ...]:
    """Return the terms that a loss is the sum of, with constant factors between.

    Examples
    --------
    >>> import torch
    >>> weights = torch.ones(3, requires_grad=True)
    >>> loss = (weights * torch.arange(3.0)).mean() / 4 + weights.pow(2).sum()
    >>> [(term.name, term.weight) for term in terms_of(loss)]
    [('MeanBackward0', 3.0), ('SumBackward0', nan)]
    """
    found = list(_walk(loss.grad_fn, math.nan))
    return tuple(found) if len(found) <= MOST_TERMS else (Term("many terms", loss.grad_fn),)


def choices_of(terms: Sequence[Term]) -> list[float]:
    """Return the numbers by which terms choose between pieces that are linear, as `clamp` of a mean does.

    Each is the sum of what autograd has saved in one place, so that there are as many in all processes whose losses are
    made alike. Where they differ, each process chooses by its own rows.

    Examples
    --------
    >>> import torch
    >>> weights = torch.ones(4, requires_grad=True)
    >>> choices_of(terms_of((weights.mean() - 0.25).abs() + weights.sum()))
    [0.75]
    """
    found: list[float] = []
    for node in [term.node for term in terms]:
        if node is None or re.sub(r"Backward\d+$", "", node.name()) not in _CHOOSING:
            continue
        for name in sorted(each for each in dir(node) if each.startswith("_saved_")):
            saved = getattr(node, name)
            if isinstance(saved, Tensor):
                found.append(float(saved.detach().double().sum()))
    return found


def meanings_of(terms: Sequence[Term]) -> Iterator[tuple[Meaning, ...]]:
    """Yield what the terms may mean together, the likeliest first; those of one kind mean the same at first."""
    given = list(terms)
    alike = [next(each for each in given if each.signature == term.signature) for term in given]
    kinds = list(dict.fromkeys(alike, None))
    together = [tuple(way[kinds.index(each)] for each in alike) for way in product(*(kind.meanings for kind in kinds))]
    seen: set[tuple[Meaning, ...]] = set()
    for ways in (together, _each_by_itself(given)):
        for way in sorted(ways, key=lambda way: _unlikely(given, way)):
            if way not in seen and len(seen) < _MOST_WAYS:
                seen.add(way)
                yield way


def common_factor(factors: Sequence[float], way: Sequence[Meaning]) -> float | None:
    """Return by what the whole loss of each process counts in that of all; None where that depends on its terms.

    Parameters
    ----------
    factors, way
        Of each term.

    Notes
    -----
    With fᵢ for means, Σ fᵢ = 1 over the processes, so that Σ fᵢ (meanᵢ + penalty) = mean + penalty.

    Examples
    --------
    >>> common_factor([0.75, 0.5], ["mean", "once"]), common_factor([1.0, 0.5], ["sum", "once"])
    (0.75, None)
    """
    counted = [factor for factor, meaning in zip(factors, way, strict=True) if meaning != "once"]
    if not counted:
        return factors[0] if factors else None
    alike = all(math.isclose(each, counted[0], rel_tol=1e-9) for each in counted)
    return counted[0] if alike and not ("sum" in way and "once" in way) else None


def parts_of(loss: Tensor) -> list[tuple[Tensor | None, tuple[int, ...]]]:
    """Return what the callers have of the numbers that a loss is made of, and which of its terms each is made of.

    There is a place for each number, in the same order in all processes; None where no caller has it in a variable, or
    in a dict, list or tuple. A number of which a term is made in another way is made of no term.

    Examples
    --------
    >>> import torch
    >>> one, other = torch.ones(4, requires_grad=True).mean(), torch.ones(2, requires_grad=True).sum()
    >>> [(float(part.detach()), terms) for part, terms in parts_of(one / 2 + other) if part is not None]
    [(1.0, (0,)), (2.0, (1,))]
    """
    places: dict[Node, tuple[int, ...]] = {}
    within: dict[Node, tuple[int, ...]] = {}
    terms = 0

    def walk(node: Node) -> tuple[int, ...]:
        nonlocal terms
        if node is None:
            return ()
        places.setdefault(node, ())
        after = _followed(node)
        if not after:
            terms += 1
            within.update(dict.fromkeys((each for each, _ in node.next_functions if each is not None), ()))
            found: tuple[int, ...] = (terms - 1,)
        else:
            found = tuple(term for each in after for term in walk(each))
        places[node] = found
        return found

    walk(loss.grad_fn)
    places.pop(loss.grad_fn, None)
    places = {**places, **within, **places}
    held = {each.grad_fn: each for each in _held() if each.grad_fn in places and _is_all(each)}
    return [(held.get(node), made_of) for node, made_of in places.items()]


def _is_all(part: Tensor) -> bool:
    """Return whether a tensor is one number, and all that its node has made."""
    return part.dim() == 0 and not part.grad_fn.name().startswith(("Split", "Unbind"))


def _held() -> Iterator[Tensor]:
    """Yield the tensors that callers have in variables, and in what these hold."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, dict | list | tuple) and len(value) <= _MOST_HELD:
                yield from (
                    each for each in (value.values() if isinstance(value, dict) else value) if isinstance(each, Tensor)
                )
        frame = frame.f_back


def _each_by_itself(terms: Sequence[Term]) -> list[tuple[Meaning, ...]]:
    """Return all that terms may mean; of very many not those that are unlikely."""
    likely = len(terms) if len(terms) <= _MOST_APART else 0
    return list(
        product(*(term.meanings if number < likely else term.meanings[:1] for number, term in enumerate(terms)))
    )


def _unlikely(terms: Sequence[Term], way: Sequence[Meaning]) -> int:
    return sum(term.meanings.index(meaning) for term, meaning in zip(terms, way, strict=True))


def _walk(node: Node, divisor: float) -> Iterator[Term]:
    """Yield the terms below a node of one number; `divisor` is what the way down has divided by."""
    if node is None:
        return
    after = _followed(node)
    if not after:
        yield _reduced(node.name(), node, divisor)
    elif node.name().startswith("DivBackward"):
        yield from _walk(after[0], _number(getattr(node, "_saved_other", None), divisor))
    else:
        for each in after:
            yield from _walk(each, divisor)


def _followed(node: Node) -> list[Node]:
    """Return the nodes whose numbers are added up, or multiplied by a constant, in this one; [] for a term."""
    name, after = node.name(), [each for each, _ in node.next_functions]
    known = [each for each in after if each is not None]
    if name in _PASSED or (name.startswith("MulBackward") and len(known) == 1):
        return known
    if name.startswith("DivBackward") and after[0] is not None and (len(after) < 2 or after[1] is None):
        return after[:1]
    return []


def _number(value: Tensor | float | None, otherwise: float) -> float:
    if isinstance(value, int | float):
        return float(value)
    return otherwise if value is None or value.numel() != 1 or value.is_meta else float(value)


def _reduced(name: str, node: Node, divisor: float) -> Term:
    if name == "MeanBackward0":
        return Term(name, node, float(node._saved_self_sym_numel))
    if name == "MeanBackward1":
        sizes, dims = node._saved_self_sym_sizes, node._saved_dim
        return Term(name, node, float(math.prod(sizes[_signed(dim, len(sizes))] for dim in dims or range(len(sizes)))))
    if name.startswith(("SumBackward", "NansumBackward")):
        return Term(name, node, divisor=divisor)
    reduction = getattr(node, "_saved_reduction", None)
    if reduction == 1:
        total = getattr(node, "_saved_total_weight", None)
        weight = float(total) if total is not None else float(node._saved_self.numel())
        return Term(name, node, weight)
    if reduction == 2:
        return Term(f"{name}(sum)", node, divisor=divisor)
    return Term(name, node)


def _signed(dim: int, dims: int) -> int:
    """Return a dimension that autograd has saved as an unsigned number."""
    return dim if dim < dims else dim - 2**64
