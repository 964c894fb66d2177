"""Whether the graph of a loss still is one that was compared with one device, or mixes the rows of a batch anew.

In: losses of the first steps, and of later ones. Out: what of a later graph was never compared, and what of that can
mix rows. It must not run a backward pass, nor keep a graph alive.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

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
"""What chooses rows, as packed sequences of unequal lengths need it, and is named, not refused."""
_OF_PRODUCTS = frozenset({"Addmm", "Baddbmm", "Bmm", "Mm", "Mv"})
_OF_ENTRIES = frozenset(
    {
        "Abs", "Add", "Clamp", "ClampMin", "ClampMax", "Clone", "Diagonal", "Div", "Exp", "Log", "Mul", "Neg",
        "Permute", "Pow", "Relu", "ReshapeAlias", "Rsub", "Sigmoid", "Softplus", "Sqrt", "Squeeze", "Stack", "Sub",
        "T", "Tanh", "ToCopy", "Transpose", "Tril", "Triu", "Unsqueeze", "UnsafeView", "View",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Strange:
    """What of a graph was never compared.

    Attributes
    ----------
    mixing
        Nodes that can mix rows, by name.
    other
        The others.
    over
        Nodes that go over a first dimension, of as many entries as there are rows or not.
    """

    mixing: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    over: tuple[str, ...] = ()

    def __add__(self, more: Strange) -> Strange:
        return Strange(self.mixing + more.mixing, self.other + more.other, self.over + more.over)


class ComparedGraphs:
    """The kinds of edges that the graphs of compared losses have.

    Notes
    -----
    An edge is a node's function with the dimensions that it goes over, and that of a node after it. A graph is looked
    at where its functions and their dimensions, in their order, are those of no graph before.

    Examples
    --------
    >>> import torch
    >>> weights, rows = torch.ones(3, requires_grad=True), torch.arange(6.0).view(2, 3)
    >>> graphs = ComparedGraphs()
    >>> graphs.learn((rows * weights).pow(2).mean())
    >>> out = rows * weights
    >>> graphs.is_new((out - 1).pow(2).mean()), graphs.is_new(out.pow(2).mean())
    (True, False)
    >>> graphs.strange((out - 1).pow(2).mean(), 2, [])
    Strange(mixing=(), other=('Sub', 'Mul'), over=())
    >>> graphs.strange((out - out.mean(0)).pow(2).mean(), 2, []).mixing
    ('Mean over dimension 0',)
    """

    def __init__(self) -> None:
        self._edges: set[tuple[_Kind, _Kind]] = set()
        self._seen: set[int] = set()

    def learn(self, loss: Tensor) -> None:
        """Record the graph of a loss that is compared."""
        self._seen.add(_signature(loss))
        for node, after in _edges(loss):
            self._edges.add((_kind(node), _kind(after)))

    def is_new(self, loss: Tensor) -> bool:
        """Return whether no graph before was made in the same way; none is before one was compared."""
        signature = _signature(loss)
        if signature in self._seen:
            return False
        self._seen.add(signature)
        return bool(self._edges)

    def strange(self, loss: Tensor, rows: int, terms: Collection[Node]) -> Strange:
        """Return what of a graph was never compared, each edge once.

        Parameters
        ----------
        rows
            How many this process has; only what has so many in its first dimension can mix them.
        terms
            The nodes that are added up to the loss, whose reductions are known.
        """
        mixing, other, over = dict[str, None](), dict[str, None](), dict[str, None]()
        known = {id(term) for term in terms}
        for node, after in _edges(loss):
            edge = _kind(node), _kind(after)
            if edge in self._edges:
                continue
            self._edges.add(edge)
            goes_over = [each for each in (after, node) if id(each) not in known and _may_mix(each)]
            over.update(dict.fromkeys(map(_words, goes_over)))
            mixer = next((each for each in goes_over if _has_rows(each, rows) and not _is_of_parameters(each)), None)
            if mixer is not None:
                mixing[_words(mixer)] = None
            else:
                other[_words(after)] = None
        return Strange(tuple(mixing), tuple(other), tuple(over))


def _signature(loss: Tensor) -> int:
    """Return a number that tells graphs apart by their functions and the dimensions that these go over."""
    found: list[object] = []
    open_nodes, seen = [each for each in (loss.grad_fn,) if each is not None], {None}
    for node in open_nodes:
        kind = type(node)
        found.append(kind)
        if kind not in _readers_of_dims:
            _readers_of_dims[kind] = _reader_of_dims(node)
        if (read := _readers_of_dims[kind]) is not None:
            found.append(read(node))
        for after, _ in node.next_functions:
            if after not in seen:
                seen.add(after)
                open_nodes.append(after)
    return hash(tuple(found))


_readers_of_dims: dict[type, Callable[[Node], object] | None] = {}
"""By the type of a node, what reads the dimensions that it goes over."""


def _reader_of_dims(node: Node) -> Callable[[Node], object] | None:
    if _base(node) == "Index":
        return _dims
    word = next((each for each in ("_saved_dim", "_saved_dims") if hasattr(node, each)), None)
    return None if word is None else attrgetter(word)


def _edges(loss: Tensor) -> Iterator[tuple[Node, Node]]:
    """Yield each pair of nodes of which one follows the other."""
    open_nodes, seen = [loss.grad_fn], set[Node]()
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for after, _ in node.next_functions:
            if after is not None and not _is_leaf(after):
                yield node, after
                open_nodes.append(after)


def _is_leaf(node: Node) -> bool:
    return bool(node.name() == "torch::autograd::AccumulateGrad")


def _base(node: Node) -> str:
    return _without_end(node.name())


@lru_cache(maxsize=1024)
def _without_end(name: str) -> str:
    return re.sub(r"Backward\d*$", "", name)


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


def _may_mix(node: Node) -> bool:
    """Return whether a node combines the entries of its first dimension."""
    base, dims = _base(node), _dims(node)
    if base == "Mm":
        return all(each is not None for each, _ in node.next_functions)
    reduces = base in _OVER_A_DIMENSION - _KEEPS_ROWS_APART or getattr(node, "_saved_reduction", 0) in (1, 2)
    return base == "Cdist" or (reduces and (not dims or 0 in dims))


def _has_rows(node: Node, rows: int) -> bool:
    """Return whether the first dimension that a node goes over may be the own rows."""
    base, sizes = _base(node), _sizes(node)
    if base == "Mm":
        other = tuple(int(size) for size in node._saved_mat2_sym_sizes)
        return sizes[0] == rows == other[1] or (sizes[1] == rows == other[0] != sizes[0])
    return base == "Cdist" or base in _OF_UNKNOWN_SIZE or bool(sizes and sizes[0] == rows)


def _is_of_parameters(node: Node) -> bool:
    """Return whether nothing but parameters goes into a node, so that it has as many rows as a batch by chance.

    Notes
    -----
    Data has no node. It comes in by products, lookups and functions that are not known, or where entries are combined
    with those of data to more than there were: what is fixed cannot be combined with rows that are not.
    """
    open_nodes, seen = [node], set[Node]()
    while open_nodes:
        one = open_nodes.pop()
        if one in seen or _is_leaf(one):
            continue
        seen.add(one)
        base, after = _base(one), [each for each, _ in one.next_functions]
        there = [each for each in after if each is not None]
        if base in _OF_PRODUCTS and len(there) < len(after):
            return False
        if base not in _OF_PRODUCTS | _OF_ENTRIES | _OVER_A_DIMENSION - {"Gather", "Index", "IndexSelect"}:
            return False
        if base in _OF_ENTRIES and len(there) == 1 < len(after) and _count(there[0]) != _count(one):
            return False
        open_nodes += there
    return True


def _count(node: Node) -> int:
    """Return how many entries the result of a node has."""
    return math.prod(node.variable.shape if _is_leaf(node) else node._input_metadata[0].shape)


def _words(node: Node) -> str:
    base = _base(node)
    dims = _dims(node) if base in _OVER_A_DIMENSION else ()
    return f"{base} over dimension {', '.join(map(str, dims))}" if dims else base
