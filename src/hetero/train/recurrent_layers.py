"""Networks of `nn.LSTM`, `nn.GRU` and `nn.RNN`, computed layer by layer, with dropout between that the caller draws.

In: what torch's kernel of all layers is given. Out: the same results, to the bit. It must not draw anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

__all__ = ["KERNELS", "RecurrentCall", "lengths_of", "packed_rows", "repacked"]

KERNELS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Names of torch's kernels."""


@dataclass(frozen=True, slots=True)
class RecurrentCall:
    """A call of one of torch's kernels of recurrent networks.

    Attributes
    ----------
    kernel
        torch's function.
    input
        Time, batch, features, or as `batch_first` says; of a packed sequence the steps of time one after another.
    sizes
        Of a packed sequence, how many samples each step of time has; None for others.
    """

    kernel: Callable[..., tuple[Tensor, ...]]
    input: Tensor
    sizes: Tensor | None
    state: tuple[Tensor, ...]
    weights: Sequence[Tensor]
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool = False

    @classmethod
    def of(cls, kernel: Callable[..., tuple[Tensor, ...]], args: Sequence[Tensor]) -> RecurrentCall:
        """Return a call with the arguments as `torch.nn` gives them."""
        if isinstance(args[3], bool):
            return cls(kernel, args[0], None, *args[1:])
        return cls(kernel, *args)

    @property
    def drops(self) -> bool:
        """Return whether something is dropped between layers."""
        return self.train and self.dropout > 0.0 and self.layers > 1

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return int(self.input.shape[not self.batch_first] if self.sizes is None else self.sizes[0])

    def run(self, drop: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        """Return what the kernel returns, where `drop` sees what leaves each layer but the last.

        Notes
        -----
        On the host torch's kernel does this, too: what leaves a layer goes through dropout, time first.
        """
        flow = self.input.transpose(0, 1) if self.batch_first else self.input
        states: list[tuple[Tensor, ...]] = []
        for layer in range(self.layers):
            flow, *state = self._layer(layer, flow)
            states.append(tuple(state))
            flow = drop(flow) if layer + 1 < self.layers else flow
        after = (torch.cat(parts) for parts in zip(*states, strict=True))
        return (flow.transpose(0, 1) if self.batch_first else flow, *after)

    def _layer(self, layer: int, flow: Tensor) -> tuple[Tensor, ...]:
        each, ways = len(self.weights) // self.layers, 1 + self.bidirectional
        weights = self.weights[layer * each : (layer + 1) * each]
        begun = [part[layer * ways : (layer + 1) * ways] for part in self._states()]
        state = begun if len(begun) > 1 else begun[0]
        options = (state, weights, self.has_biases, 1, 0.0, self.train, self.bidirectional)
        return self.kernel(flow, *options, False) if self.sizes is None else self.kernel(flow, self.sizes, *options)

    def _states(self) -> tuple[Tensor, ...]:
        return (self.state,) if isinstance(self.state, Tensor) else tuple(self.state)


def lengths_of(sizes: Tensor, order: Tensor | None) -> Tensor:
    """Return the length of each sample of a packed sequence.

    Parameters
    ----------
    sizes
        How many samples each step of time has.
    order
        The samples by length, longest first; None where they come so.

    Examples
    --------
    >>> lengths_of(torch.tensor([3, 2, 1]), torch.tensor([2, 0, 1])).tolist()
    [2, 1, 3]
    """
    lengths = (sizes.unsqueeze(1) > torch.arange(int(sizes[0]))).sum(0)
    if order is None:
        return lengths
    return torch.empty_like(lengths).scatter_(0, order.cpu(), lengths)


def packed_rows(lengths: Tensor, own: Tensor, begin: int, *, is_sorted: bool) -> Tensor:
    """Return where the entries of some samples are in the packed sequence of all.

    Parameters
    ----------
    lengths
        Of all samples.
    own
        Of those sought.
    begin
        The first of them.
    is_sorted
        Whether the samples come by length, longest first.

    Examples
    --------
    >>> packed_rows(torch.tensor([1, 3, 2]), torch.tensor([3]), 1, is_sorted=False).tolist()
    [0, 3, 5]
    """
    longest = int(lengths.max())

    def packed(first: int, some: Tensor) -> Tensor:
        entries = torch.arange(first * longest, (first + len(some)) * longest).view(len(some), longest)
        return pack_padded_sequence(entries, some, batch_first=True, enforce_sorted=is_sorted).data

    everything = packed(0, lengths)
    places = torch.zeros(len(lengths) * longest, dtype=torch.int64)
    places[everything] = torch.arange(len(everything))
    return places[packed(begin, own)]


def repacked(sequence: PackedSequence, begin: int, count: int) -> PackedSequence:
    """Return a packed sequence of some of the samples of another.

    Examples
    --------
    >>> whole = torch.nn.utils.rnn.pack_sequence([torch.ones(1), torch.ones(3), torch.ones(2)], enforce_sorted=False)
    >>> repacked(whole, 1, 2).batch_sizes.tolist()
    [2, 2, 1]
    """
    padded, lengths = pad_packed_sequence(sequence, batch_first=True)
    own, some = padded[begin : begin + count], lengths[begin : begin + count]
    return pack_padded_sequence(own, some, batch_first=True, enforce_sorted=sequence.sorted_indices is None)
