"""Whether the graph of a loss still is one that was compared with one device, or mixes the rows of a batch anew.

In: losses of the first steps, and of later ones. Out: what of a later graph was never compared, and what of that can
mix rows. It must not run a backward pass, nor keep a graph alive.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import Node

__all__ = ["ComparedGraphs", "Strange"]

_Kind = tuple[str, tuple[int, ...]]
_OVER_A_DIMENSION = frozenset(
    {
        "Amax", "Amin", "Cummax", "Cummin", "Cumprod", "Cumsum", "Flip", "Gather", "Index", "IndexSelect", "Kthvalue",
        "LinalgVectorNorm", "LogSoftmax", "Logcumsumexp", "Logsumexp", "Max", "Mean", "Median", "Min", "Nanmedian",
        "Nansum", "Norm", "Prod", "Roll", "Select", "Slice", "Softmax", "Sort", "Std", "StdMean", "Sum", "Topk", "Var",
        "VarMean",
    }
)  # fmt: skip
_OF_UNKNOWN_SIZE = frozenset({"Cumprod", "Cumsum", "Flip", "Roll"})
_KEEPS_ROWS_APART = frozenset({"IndexSelect", "Slice"})
"""What chooses rows, as sequences of unequal lengths need it, and is named, not refused."""
_FIRST = 64
_EVERY = 16


@dataclass(frozen=True, slots=True)
class Strange:
    """What of a graph was never compared.

    Attributes
    ----------
    mixing
        Nodes that can mix rows, by name.
    other
        The others.
    """

    mixing: tuple[str, ...] = ()
    other: tuple[str, ...] = ()


class ComparedGraphs:
    """The kinds of edges that the graphs of compared losses have.

    Notes
    -----
    An edge is a node's function with the dimensions that it goes over, and that of a node after it. After the last
    compared pass, or since something was prepared, 64 graphs are looked at, then every 16th.

    Examples
    --------
    >>> import torch
    >>> weights, rows = torch.ones(3, requires_grad=True), torch.arange(6.0).view(2, 3)
    >>> graphs = ComparedGraphs()
    >>> graphs.learn((rows * weights).pow(2).mean())
    >>> out = rows * weights
    >>> graphs.strange((out - 1).pow(2).mean(), 2, [])
    Strange(mixing=(), other=('Sub', 'Mul'))
    >>> graphs.strange((out - out.mean(0)).pow(2).mean(), 2, []).mixing
    ('Mean over dimension 0',)
    """

    def __init__(self) -> None:
        self._edges: set[tuple[_Kind, _Kind]] = set()
        self._passes = 0

    def learn(self, loss: Tensor) -> None:
        """Record the graph of a loss that is compared."""
        self._edges.update((_kind(node), _kind(after)) for node, after in _edges(loss))

    def watch(self) -> None:
        """Check the next graphs, as something was prepared."""
        self._passes = 0

    def is_due(self) -> bool:
        """Return whether the next graph is to be looked at."""
        self._passes += 1
        return bool(self._edges) and (self._passes <= _FIRST or self._passes % _EVERY == 0)

    def strange(self, loss: Tensor, rows: int, terms: Collection[Node]) -> Strange:
        """Return what of a graph was never compared, each edge once.

        Parameters
        ----------
        rows
            How many this process has; only what has so many in its first dimension can mix them.
        terms
            The nodes that are added up to the loss, whose reductions are known.
        """
        mixing: dict[str, None] = {}
        other: dict[str, None] = {}
        known = {id(term) for term in terms}
        for node, after in _edges(loss):
            edge = _kind(node), _kind(after)
            if edge in self._edges:
                continue
            self._edges.add(edge)
            mixer = next((each for each in (after, node) if id(each) not in known and _mixes(each, rows)), None)
            if mixer is not None:
                mixing[_words(mixer)] = None
            else:
                other[_words(after)] = None
        return Strange(tuple(mixing), tuple(other))


def _edges(loss: Tensor) -> Iterator[tuple[Node, Node]]:
    """Yield each pair of nodes of which one follows the other."""
    open_nodes, seen = [loss.grad_fn], set[Node]()
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for after, _ in node.next_functions:
            if after is not None and after.name() != "torch::autograd::AccumulateGrad":
                yield node, after
                open_nodes.append(after)


def _base(node: Node) -> str:
    return re.sub(r"Backward\d*$", "", node.name())


def _kind(node: Node) -> _Kind:
    base = _base(node)
    return base, _dims(node) if base in _OVER_A_DIMENSION else ()


def _dims(node: Node) -> tuple[int, ...]:
    """Return the dimensions that a node goes over, from the front; () for all of them."""
    found = getattr(node, "_saved_dim", getattr(node, "_saved_dims", None))
    if found is None and _base(node) == "Index":
        return tuple(number for number, index in enumerate(node._saved_indices) if index is not None)
    dims = [] if found is None else [found] if isinstance(found, int) else list(found)
    count = len(_sizes(node))
    return tuple(sorted(_from_front(int(dim), count) for dim in dims))


def _from_front(dim: int, count: int) -> int:
    """Return a dimension that autograd may have saved as an unsigned number."""
    signed = dim - 2**64 if dim >= 2**63 else dim
    return signed + count if signed < 0 else signed


def _sizes(node: Node) -> tuple[int, ...]:
    """Return the shape that a node goes over, () where it is not known."""
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    if sizes is not None:
        return tuple(int(size) for size in sizes)
    for name in ("_saved_self", "_saved_result"):
        with suppress(RuntimeError, AttributeError):
            return tuple(getattr(node, name).shape)
    return ()


def _mixes(node: Node, rows: int) -> bool:
    """Return whether a node can mix rows of the first dimension."""
    base, sizes = _base(node), _sizes(node)
    if base == "Mm":
        other = tuple(int(size) for size in node._saved_mat2_sym_sizes)
        has_both = all(each is not None for each, _ in node.next_functions)
        return has_both and (sizes[0] == rows == other[1] or (sizes[1] == rows == other[0] != sizes[0]))
    if base == "Cdist":
        return True
    reduces = base in _OVER_A_DIMENSION or getattr(node, "_saved_reduction", 0) in (1, 2)
    dims = _dims(node)
    if base in _OF_UNKNOWN_SIZE:
        return 0 in dims
    reduces &= base not in _KEEPS_ROWS_APART
    return reduces and bool(sizes) and sizes[0] == rows and (not dims or 0 in dims)


def _words(node: Node) -> str:
    base = _base(node)
    dims = _dims(node) if base in _OVER_A_DIMENSION else ()
    return f"{base} over dimension {', '.join(map(str, dims))}" if dims else base
