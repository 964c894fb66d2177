"""A small decoder in torch, to time reading a prompt and answering: the shape of any Llama, with random weights.

In: its shape, a place, a dtype. Out: calls to be timed. It must not decide what the times mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero.model.architecture import ModelSpec

__all__ = ["Decoder"]


class Decoder:
    """Random weights of a model on a device of torch.

    Parameters
    ----------
    spec : its shape; grouped-query attention, gated MLP, no mixture
    place : of torch, as in 'cuda:1'
    dtype : of the weights
    """

    def __init__(self, spec: ModelSpec, place: str, dtype: Any) -> None:
        import torch

        def matrix(rows: int, columns: int) -> Any:
            return torch.randn(rows, columns, device=place, dtype=torch.float32).mul_(columns**-0.5).to(dtype)

        kv = spec.kv_heads * spec.head_dim
        self.spec = spec
        self.table = matrix(spec.vocab, spec.hidden)
        self.head = matrix(spec.vocab, spec.hidden)
        self.layers = [
            {
                "q": matrix(spec.query_width, spec.hidden),
                "k": matrix(kv, spec.hidden),
                "v": matrix(kv, spec.hidden),
                "o": matrix(spec.hidden, spec.query_width),
                "gate": matrix(spec.intermediate, spec.hidden),
                "up": matrix(spec.intermediate, spec.hidden),
                "down": matrix(spec.hidden, spec.intermediate),
            }
            for _ in range(spec.layers)
        ]

    def _heads(self, x: Any, count: int) -> Any:
        return x.view(x.shape[0], count, self.spec.head_dim).transpose(0, 1)

    def _pass(self, tokens: Any, cache: list[tuple[Any, Any]] | None) -> Any:
        """Compute the logits of the last token; with a cache, of one token after those that it holds."""
        import torch
        from torch.nn import functional

        spec = self.spec
        x = self.table[tokens]
        for index, layer in enumerate(self.layers):
            normed = functional.rms_norm(x, (spec.hidden,))
            q = self._heads(normed @ layer["q"].T, spec.heads)
            k = self._heads(normed @ layer["k"].T, spec.kv_heads)
            v = self._heads(normed @ layer["v"].T, spec.kv_heads)
            if cache is not None:
                k, v = torch.cat([cache[index][0], k], 1), torch.cat([cache[index][1], v], 1)
            share = spec.heads // spec.kv_heads
            k, v = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
            x = x + seen.transpose(0, 1).reshape(x.shape[0], spec.query_width) @ layer["o"].T
            normed = functional.rms_norm(x, (spec.hidden,))
            x = x + (functional.silu(normed @ layer["gate"].T) * (normed @ layer["up"].T)) @ layer["down"].T
        return functional.rms_norm(x[-1:], (spec.hidden,)) @ self.head.T

    def prompt(self, tokens: int) -> Callable[[], Any]:
        """Return the call that reads a prompt of so many tokens."""
        import torch

        given = torch.arange(tokens, device=self.table.device) % self.spec.vocab
        return lambda: self._pass(given, None)

    def step(self, kept: int) -> Callable[[], Any]:
        """Return the call that answers one token after so many."""
        import torch

        shape = (self.spec.kv_heads, kept, self.spec.head_dim)
        cache = [(self.table.new_zeros(shape), self.table.new_zeros(shape)) for _ in self.layers]
        given = torch.zeros(1, dtype=torch.long, device=self.table.device)
        return lambda: self._pass(given, cache)
